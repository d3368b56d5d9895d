// A loop: how far it has come, why iterations failed, and each of them in a table.
import { useState } from "preact/hooks";
import { call } from "../api/client";
import type { EventDocument, ExecutionDocument, StepDocument } from "../api/types";
import { useLoaded } from "../data";
import { useKeys } from "../keys";
import { Rows } from "../parts/rows";
import { Status } from "../parts/status";
import { count } from "../time";

interface Iteration {
  number: number;
  status: string;
  error: string;
}

function iterationsOf(events: EventDocument[]): Iteration[] {
  const found = new Map<number, Iteration>();
  for (const event of events) {
    const payload = event.payload as Record<string, any>;
    const number = event.iteration ?? payload.iteration;
    if (number === undefined || number === null) continue;
    const status = event.name.endsWith(".done") ? "done" : event.name.endsWith(".failed") ? "failed" : "running";
    found.set(number, { number, status, error: payload.error?.message ?? "" });
  }
  return [...found.values()].sort((a, b) => a.number - b.number);
}

export function LoopPanel({ execution, step }: { execution: ExecutionDocument; step: StepDocument }) {
  const loop = step.loop!;
  const [only, setOnly] = useState(loop.failed > 0 ? "failed" : "");
  const [at, setAt] = useState(-1);
  const types = only === "failed" ? ["loop.iteration.failed"] : ["loop.iteration.started", "loop.iteration.done", "loop.iteration.failed"];
  const page = useLoaded(`${execution.execution_id} ${step.step} ${only} ${loop.done} ${loop.failed}`, () =>
    call("GET /api/executions/{execution_id}/events", { path: { execution_id: execution.execution_id }, query: { step: step.step, type: types, limit: 1000 } }),
  );
  const iterations = iterationsOf(page.value?.events ?? []);
  useKeys([{ key: "n", says: "next failed iteration", run: () => setAt(iterations.findIndex((one, index) => index > at && one.status === "failed")) }]);
  const part = (number: number) => `${(100 * number) / Math.max(1, loop.total)}%`;
  return (
    <section>
      <h3>
        {count(loop.total)} iterations: {count(loop.done)} done{loop.failed > 0 && <>, <span class="failed">{count(loop.failed)} failed</span></>}
        {loop.total > loop.done + loop.failed && <>, {count(loop.total - loop.done - loop.failed)} {step.status === "running" ? "left" : "not run"}</>}
      </h3>
      <div class="progress" aria-hidden="true">
        <i class="tone-done" style={{ width: part(loop.done) }} />
        <i class="tone-failed" style={{ width: part(loop.failed) }} />
      </div>
      {loop.errors && loop.errors.length > 0 && (
        <ul class="plain">
          {loop.errors.map((one) => (
            <li>
              <span class="num failed">{count(one.count)}×</span>
              <code>{one.message}</code>
            </li>
          ))}
        </ul>
      )}
      <div class="row">
        <label>
          Show
          <select value={only} onChange={(event) => setOnly(event.currentTarget.value)}>
            <option value="">all</option>
            <option value="failed">failed</option>
          </select>
        </label>
        <span class="quiet">
          {count(iterations.length)} shown{page.value?.more && ", the first of more"} · <kbd>n</kbd> next failed
        </span>
      </div>
      <div style={{ height: `${Math.min(320, 30 + 28 * Math.max(1, iterations.length))}px`, display: "flex" }}>
        <Rows
          count={iterations.length}
          label="Iterations"
          cursor={at}
          row={(index) => {
            const one = iterations[index]!;
            return (
              <div role="row" key={one.number} class={`iteration-row ${index === at ? "at" : ""}`} aria-rowindex={index + 1}>
                <span role="cell" class="num">{one.number}</span>
                <span role="cell"><Status status={one.status} /></span>
                <span role="cell" class="mono" title={one.error}>{one.error}</span>
              </div>
            );
          }}
        />
      </div>
    </section>
  );
}
