// A loop: how far it has come, where in it iterations failed and why, and each of them in a table.
import { useEffect, useState } from "preact/hooks";
import { call, may } from "../api/client";
import type { ExecutionDocument, LoopDocument, RunLine } from "../api/types";
import { useLoaded } from "../data";
import { useKeys } from "../keys";
import { Message, tellProblem, Trouble } from "../parts/notes";
import { Rows } from "../parts/rows";
import { Status } from "../parts/status";
import { count, took } from "../time";
import { forkDialog } from "./fork";

const PAGE = 200;
const SHOWN_MAX = 1000;
/** More kinds of errors than these push the iterations out of sight. */
const ERRORS = 8;

/** Errors that differ only in numbers are one line: that forty rows have no city is one thing to know. */
export function alike(errors: { message: string; count: number }[]): { first: string; times: number; others: number }[] {
  const groups = [...Map.groupBy(errors, (one) => one.message.replace(/\d+/g, "0")).values()];
  return groups.map((same) => ({ first: same[0]!.message, times: same.reduce((sum, one) => sum + one.count, 0), others: same.length - 1 })).sort((a, b) => b.times - a.times);
}

/** `moment` is how far it had come at the event under the slider; the rest is what became of it in the end. */
export function LoopPanel({ execution, run, moment }: { execution: ExecutionDocument; run: RunLine; moment?: LoopDocument | null }) {
  const loop = run.loop!;
  const [only, setOnly] = useState<"" | "failed" | "done" | "running" | "cancelled">(loop.failed > 0 ? "failed" : "");
  const [from, setFrom] = useState(-1);
  const [at, setAt] = useState(-1);
  const [shown, setShown] = useState(PAGE);
  const [allErrors, setAllErrors] = useState(false);
  const which = { execution_id: execution.execution_id, step_run_id: run.step_run_id };
  const ask = (after: number, limit = shown, status: typeof only = only) =>
    call("GET /api/executions/{execution_id}/loops/{step_run_id}/iterations", { path: which, query: { status: status || null, after, limit } });
  // While it runs all that is shown is asked for again: nothing that somebody scrolled to goes away.
  const page = useLoaded(`${run.step_run_id} ${only} ${from} ${shown} ${loop.done} ${loop.failed}`, () => ask(from));
  useEffect(() => setShown(PAGE), [only, from]);
  const iterations = page.value?.iterations ?? [];
  const next = () => {
    if (page.isOwn && page.value!.more) setShown(Math.min(SHOWN_MAX, iterations.length + PAGE));
  };
  const nextFailed = () => {
    const here = iterations[at]?.iteration ?? from;
    const near = iterations.findIndex((one, index) => index > at && one.status === "failed");
    if (near >= 0) setAt(near);
    else
      ask(here, 1, "failed").then((found) => {
        const number = found.iterations[0]?.iteration;
        if (number !== undefined) {
          setFrom(number - 1);
          setAt(0);
        }
      }, tellProblem);
  };
  useKeys([{ key: "n", says: "next failed iteration", run: nextFailed }]);
  const errors = alike(page.value?.errors ?? []);
  const total = loop.total ?? loop.done + loop.failed + loop.running;
  const { done, failed } = moment ?? loop;
  const left = total - done - failed;
  const isOpen = !run.ended_at;
  // Of a loop over a cursor nobody knows which rows an iteration would be given again.
  const mayFork = may("operate") && loop.total !== null;
  return (
    <section>
      <h3>
        {count(total)} iterations: {count(done)} done{failed > 0 && <>, <span class="failed">{count(failed)} failed</span></>}
        {left > 0 && <>, {count(left)} {isOpen || moment ? "left" : "not run"}</>}
      </h3>
      {moment && <p class="quiet">at this event; below is how they are now</p>}
      {loop.strip.length > 1 && (
        <div class="density" role="img" aria-label="Iterations by number">
          {loop.strip.map(([done, failed, running], number) => (
            <i
              class={failed ? "tone-failed" : running ? "tone-running" : done ? "tone-done" : "tone-none"}
              title={`from ${number * loop.bucket_size}: ${done} done, ${failed} failed`}
              onClick={() => {
                setFrom(number * loop.bucket_size - 1);
                setAt(0);
              }}
            />
          ))}
        </div>
      )}
      {errors.length > 0 && (
        <ul class="plain">
          {errors.slice(0, allErrors ? errors.length : ERRORS).map(({ first, times, others }) => (
            <li>
              <span class="num failed">{count(times)}×</span>
              <span class="words"><code><Message text={first} /></code>{others > 0 && <span class="quiet"> and {count(others)} alike but for numbers</span>}</span>
            </li>
          ))}
          {errors.length > ERRORS && !allErrors && <li><button type="button" class="link" onClick={() => setAllErrors(true)}>{count(errors.length - ERRORS)} more errors</button></li>}
        </ul>
      )}
      <div class="row">
        <label>
          Show
          <select value={only} onChange={(event) => { setOnly(event.currentTarget.value as typeof only); setFrom(-1); setAt(-1); }}>
            <option value="">all</option>
            <option value="failed">failed</option>
            <option value="running">running</option>
            <option value="done">done</option>
            <option value="cancelled">cancelled</option>
          </select>
        </label>
        {from >= 0 && <button type="button" class="link" onClick={() => setFrom(-1)}>from the first</button>}
        {loop.failed > 0 && (
          <button type="button" class="link" onClick={nextFailed}>
            next failed <kbd>n</kbd>
          </button>
        )}
        <span class="space" />
        {mayFork && loop.failed > 0 && <button type="button" onClick={() => forkDialog(execution, { seq: run.seq, failed: true })}>Rerun the failed</button>}
      </div>
      {page.error && <Trouble problem={page.error} />}
      <div style={{ height: `${Math.min(320, 4 + 28 * Math.max(1, iterations.length))}px`, display: "flex" }}>
        <Rows
          count={iterations.length}
          label="Iterations"
          cursor={at}
          onEnd={next}
          row={(index) => {
            const one = iterations[index]!;
            return (
              <div role="row" key={one.iteration} class={`iteration-row ${index === at ? "at" : ""}`} aria-rowindex={index + 1}>
                <span role="cell" class="num">{one.iteration}</span>
                <span role="cell"><Status status={one.status} /></span>
                <span role="cell" class="num">{took(one.duration_seconds)}</span>
                <span role="cell" class="mono" title={one.error ?? ""}>{one.error}</span>
                <span role="cell" class="num">
                  {mayFork && <button type="button" class="link" aria-label={`Fork iteration ${one.iteration}`} onClick={() => forkDialog(execution, { seq: run.seq, iteration: one.iteration })}>fork</button>}
                </span>
              </div>
            );
          }}
        />
      </div>
    </section>
  );
}
