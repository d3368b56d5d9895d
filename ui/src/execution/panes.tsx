// The panes beside the graph: events, data, output, and why.
import { useState } from "preact/hooks";
import { call } from "../api/client";
import type { EventDocument, ExecutionDocument } from "../api/types";
import { useLoaded } from "../data";
import { Json } from "../parts/json";
import { Empty, Trouble } from "../parts/notes";
import { Rows } from "../parts/rows";
import { isOver, Mark } from "../parts/status";
import { clockTime, count, When } from "../time";
import { KEPT_MAX, type Log } from "./events";
import { Result } from "./step";

export function EventsPane({ log, at, step, onAt }: { log: Log; at: number | null; step: string; onAt: (seq: number) => void }) {
  const [text, setText] = useState("");
  const [onlyStep, setOnlyStep] = useState(false);
  const events = log.events.filter((event) => (!onlyStep || !step || event.step === step) && (!text || event.name.includes(text) || (event.step ?? "").includes(text) || JSON.stringify(event.payload).includes(text)));
  const cursor = at === null ? undefined : events.findLastIndex((event) => event.seq <= at);
  const shown = cursor === undefined ? undefined : events[cursor];
  return (
    <>
      <div class="query">
        <input type="search" style={{ flex: "1" }} aria-label="Search events" placeholder="search names, steps, payloads" value={text} onInput={(event) => setText(event.currentTarget.value)} />
        {step && (
          <label>
            <input type="checkbox" checked={onlyStep} onChange={() => setOnlyStep(!onlyStep)} /> only {step}
          </label>
        )}
        <span class="quiet num">{count(events.length)}</span>
      </div>
      {log.isCut && <p class="quiet note">the first {count(KEPT_MAX)} events are kept here; noetl executions events shows all</p>}
      <Rows
        count={events.length}
        label="Events"
        cursor={cursor}
        row={(index) => {
          const event = events[index]!;
          return (
            <div role="row" key={event.seq} class={`event-row ${event.seq === shown?.seq ? "at" : ""}`} aria-rowindex={index + 1} onClick={() => onAt(event.seq)}>
              <span role="cell" class="num quiet">{event.seq}</span>
              <span role="cell" class="mono quiet">{event.timestamp && clockTime(new Date(event.timestamp))}</span>
              <span role="cell">{event.status === "error" && <><Mark status="failed" /><span class="hidden">error</span></>}</span>
              <span role="cell" title={event.name}>
                <button type="button" class="link" onClick={() => onAt(event.seq)}>{event.name}</button>
              </span>
              <span role="cell">
                {event.step}
                {event.iteration !== null && <span class="quiet"> [{event.iteration}]</span>}
              </span>
            </div>
          );
        }}
      />
      {shown && <EventDetail event={shown} />}
    </>
  );
}

function EventDetail({ event }: { event: EventDocument }) {
  return (
    <div class="event-detail" tabIndex={0} role="group" aria-label={`Event ${event.seq}`}>
      <p>
        <strong>{event.name}</strong> <span class="quiet">event {event.seq} · </span>
        <When at={event.timestamp} /> {event.actor && <span class="quiet">by {event.actor.text}</span>}
      </p>
      <Json value={event.payload} label="payload" />
    </div>
  );
}

export function DataPane({ execution }: { execution: ExecutionDocument }) {
  const parts: [string, unknown][] = [
    ["result", execution.result],
    ["workload", execution.workload],
    ["ctx", execution.ctx],
    ["vars", execution.vars],
  ];
  const filled = parts.filter(([, value]) => value !== null && value !== undefined && (typeof value !== "object" || Object.keys(value).length > 0));
  return (
    <>
      {filled.map(([name, value]) => (
        <section>
          <h3>{name}</h3>
          <Result value={value} />
        </section>
      ))}
      {execution.steps.some((one) => one.result !== null && one.result !== undefined) && <h3>results of steps</h3>}
      {execution.steps
        .filter((one) => one.result !== null && one.result !== undefined)
        .map((one) => (
          <details>
            <summary>{one.step}</summary>
            <Result value={one.result} />
          </details>
        ))}
      {!filled.length && <Empty title="No data yet." />}
    </>
  );
}

const LINES = 500;

export function OutputPane({ execution, step }: { execution: ExecutionDocument; step: string }) {
  const [grep, setGrep] = useState("");
  const live = !isOver(execution.status);
  const logs = useLoaded(
    `${execution.execution_id} ${step} ${grep} ${execution.status}`,
    () => call("GET /api/executions/{execution_id}/logs", { path: { execution_id: execution.execution_id }, query: { step: step || null, grep: grep || null, limit: LINES } }),
    live ? 2000 : 0,
  );
  return (
    <>
      <div class="query">
        <input type="search" style={{ flex: "1" }} aria-label="Search the output" placeholder="search (regular expression)" defaultValue={grep} onChange={(event) => setGrep(event.currentTarget.value)} />
        <span class="quiet">{step ? `of ${step}` : "of all steps"}</span>
      </div>
      {logs.error && <Trouble problem={logs.error} />}
      <div class="scroll" tabIndex={0} role="group" aria-label="Output">
        {logs.value?.entries.map((one) => (
          <div class="log-line">
            <span class="quiet cut" title={one.timestamp ?? ""}>
              {one.step}
              {one.iteration !== null && `[${one.iteration}]`}
            </span>
            <pre>{one.text}</pre>
          </div>
        ))}
        {logs.value && !logs.value.entries.length && (
          <Empty title={grep ? "No line matches." : "Nothing was printed."}>{!grep && <p>What python, shell and container tasks print stands here.</p>}</Empty>
        )}
        {logs.value?.more && <p class="quiet note">the first {LINES} entries; narrow the search to see others</p>}
      </div>
    </>
  );
}

export function WhyPane({ execution, onSelect }: { execution: ExecutionDocument; onSelect: (step: string) => void }) {
  const why = useLoaded(`${execution.execution_id} ${execution.status}`, () => call("GET /api/executions/{execution_id}/why", { path: { execution_id: execution.execution_id } }), isOver(execution.status) ? 0 : 3000);
  return (
    <>
      {why.error && <Trouble problem={why.error} />}
      {isOver(execution.status) && <p>It has ended: {execution.status.toLowerCase()}. Nothing waits.</p>}
      {execution.error && execution.failed_step && (
        <p>
          <button type="button" class="link" onClick={() => onSelect(execution.failed_step!)}>{execution.failed_step}</button> failed, and no arc handles its failure: {execution.error.message}
        </p>
      )}
      <ul class="plain">
        {why.value?.waits_for.map((one) => (
          <li>
            <Mark status={one.waits_for === "worker" || one.waits_for === "lease" ? "running" : "waiting"} />
            <span>{one.text}</span>
            {one.step && <button type="button" class="link" onClick={() => onSelect(one.step!)}>{one.step}</button>}
          </li>
        ))}
      </ul>
      {execution.warnings.length > 0 && (
        <>
          <h3>warnings</h3>
          <ul class="plain">
            {execution.warnings.map((one) => (
              <li>
                <span>{one.message}</span> <span class="quiet">{one.step}</span>
              </li>
            ))}
          </ul>
        </>
      )}
      {execution.acts.length > 0 && (
        <>
          <h3>what people did</h3>
          <ul class="plain">
            {execution.acts.map((one) => (
              <li>
                <When at={one.at} /> <span>{one.action}</span> <span class="quiet">{one.actor?.text}</span> {one.reason}
              </li>
            ))}
          </ul>
        </>
      )}
    </>
  );
}
