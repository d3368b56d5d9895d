// The panes beside the graph: events, data, output, and why.
import { useEffect, useRef, useState } from "preact/hooks";
import { call } from "../api/client";
import type { EventDocument, ExecutionDocument, LogEntry } from "../api/types";
import { useLoaded } from "../data";
import { brief, Json } from "../parts/json";
import { Empty, Message, Timed, Trouble, Words } from "../parts/notes";
import { Rows } from "../parts/rows";
import { isOver, Mark, wordOf } from "../parts/status";
import { clockTime, count, When } from "../time";
import { usePages } from "./events";

/** All events by number, in pages as they are seen; or those of one step or name: the first thousand, or a
 * thousand from the moment on, where that comes after them. */
export function EventsPane({ execution, head, at, step, onAt }: { execution: ExecutionDocument; head: number; at: number | null; step: string; onAt: (seq: number) => void }) {
  const [name, setName] = useState("");
  const [onlyStep, setOnlyStep] = useState(false);
  const byNumber = usePages(execution.execution_id);
  const isFiltered = Boolean(name || (onlyStep && step));
  const which = `${execution.execution_id} ${name} ${onlyStep && step}`;
  const [begin, setBegin] = useState({ which, seq: 1 });
  const first = begin.which === which ? begin.seq : 1;
  const filtered = useLoaded(isFiltered ? `${which} ${first} ${head}` : "", () =>
    isFiltered
      ? call("GET /api/executions/{execution_id}/events", { path: { execution_id: execution.execution_id }, query: { type: name ? [name] : [], step: onlyStep && step ? step : null, after: first - 1, limit: 1000 } })
      : Promise.resolve(null),
  );
  useEffect(() => {
    const page = filtered.isOwn ? filtered.value : null;
    if (at === null || at < first) setBegin({ which, seq: 1 });
    else if (page?.more && at > page.events.at(-1)!.seq) setBegin({ which, seq: at });
  }, [at, which, filtered.value]);
  const chosen = isFiltered ? (filtered.value?.events ?? []) : null;
  const total = chosen ? chosen.length : head;
  const eventAt = (index: number) => (chosen ? chosen[index] : byNumber(index + 1));
  // Without a moment the slider stands at the end; of a filtered list nobody knows where that is.
  const cursor = chosen ? (at === null ? undefined : chosen.findLastIndex((event) => event.seq <= at)) : (at ?? head) - 1;
  const shown = cursor === undefined || cursor < 0 ? undefined : eventAt(cursor);
  return (
    <>
      <div class="query">
        <input
          type="search"
          style={{ flex: "1" }}
          aria-label="Only events of this name"
          placeholder="name, such as step.failed"
          list="event-names"
          defaultValue={name}
          onChange={(event) => setName(event.currentTarget.value.trim())}
        />
        <datalist id="event-names">
          {NAMES.map((one) => (
            <option value={one} />
          ))}
        </datalist>
        {step && <OnlyStep step={step} only={onlyStep} onOnly={setOnlyStep} />}
        <span class="quiet num">{count(total)}{filtered.value?.more && isFiltered && "+"}{isFiltered && first > 1 && ` from ${count(first)} on`}</span>
      </div>
      {filtered.error && <Trouble problem={filtered.error} />}
      <Rows
        count={total}
        label="Events"
        cursor={first > 1 && cursor !== undefined ? Math.max(0, cursor) : cursor}
        follows={at === null}
        row={(index) => {
          const event = eventAt(index);
          if (!event) return <div role="row" key={`gap-${index}`} class="event-row"><span role="cell" class="num quiet">{index + 1}</span></div>;
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
      {shown && (at !== null || isOver(execution.status)) && <EventDetail event={shown} />}
    </>
  );
}

function OnlyStep({ step, only, onOnly }: { step: string; only: boolean; onOnly: (only: boolean) => void }) {
  return (
    <label>
      <input type="checkbox" checked={only} onChange={() => onOnly(!only)} /> only {step}
    </label>
  );
}

const NAMES = [
  ...["step.scheduled", "step.started", "step.done", "step.failed", "step.skipped", "step.waiting", "step.resumed", "step.cancelled"],
  ...["task.started", "task.done", "task.log", "retry.started", "next.selected", "token.created", "ctx.patched", "timer.set", "timer.fired"],
  ...["loop.started", "loop.iteration.started", "loop.iteration.done", "loop.iteration.failed", "loop.done", "child.started", "child.finished"],
  ...["command.issued", "command.lost", "playbook.paused", "playbook.resumed", "playbook.cancelled", "workflow.failing", "workflow.finished"],
];

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

const RESULTS = 100;

export function DataPane({ execution }: { execution: ExecutionDocument }) {
  const [shown, setShown] = useState(RESULTS);
  const parts: [string, unknown][] = [
    ["result", execution.result],
    ["workload", execution.workload],
    ["ctx", execution.ctx],
    ["vars", execution.vars],
  ];
  const results = execution.steps.filter((one) => one.result !== null && one.result !== undefined);
  const filled = parts.filter(([, value]) => value !== null && value !== undefined && (typeof value !== "object" || Object.keys(value).length > 0));
  return (
    <>
      {filled.map(([name, value]) => (
        <section>
          <h3>{name}</h3>
          <Json value={value} label={name} />
        </section>
      ))}
      {results.length > 0 && <h3>results of steps</h3>}
      {results.slice(0, shown).map((one) => <Result key={one.step} step={one.step} value={one.result} />)}
      {results.length > shown && <button type="button" onClick={() => setShown(shown + RESULTS)}>{count(results.length - shown)} more</button>}
      {!filled.length && !results.length && <Empty title={isOver(execution.status) ? "It has no data." : "No data yet."} />}
    </>
  );
}

/** Drawn when somebody opens it: there may be thousands. */
function Result({ step, value }: { step: string; value: unknown }) {
  const [open, setOpen] = useState(false);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary class="cut">
        {step} <span class="quiet mono">{brief(value)}</span>
      </summary>
      {open && <Json value={value} label={`result of ${step}`} />}
    </details>
  );
}

const LINES = 500;
const PAGES_MAX = 10;
const LINES_MAX = 5000;

/** Output, read on from where it was read to; of very much the newest is kept. */
function useOutput(execution: ExecutionDocument, step: string, grep: string, live: boolean) {
  const read = useRef({ key: "", entries: [] as LogEntry[], after: 0, left: 0 });
  const key = `${execution.execution_id} ${step} ${grep}`;
  if (read.current.key !== key) read.current = { key, entries: [], after: 0, left: 0 };
  return useLoaded(
    `${key} ${execution.status}`,
    async () => {
      const mine = read.current;
      for (let more = true, pages = 0; more && pages < (live ? PAGES_MAX : 1); pages++) {
        const page = await call("GET /api/executions/{execution_id}/logs", { path: { execution_id: execution.execution_id }, query: { step: step || null, grep: grep || null, after: mine.after, limit: LINES } });
        const all = [...mine.entries, ...page.entries];
        Object.assign(mine, { entries: all.slice(-LINES_MAX), left: mine.left + Math.max(0, all.length - LINES_MAX), after: page.next_after });
        more = page.more;
        if (!more || !live) return { ...mine, more };
      }
      return { ...mine, more: true };
    },
    live ? 2000 : 0,
  );
}

export function OutputPane({ execution, step }: { execution: ExecutionDocument; step: string }) {
  const [grep, setGrep] = useState("");
  const [onlyStep, setOnlyStep] = useState(true);
  const [follows, setFollows] = useState(true);
  const box = useRef<HTMLDivElement>(null);
  const live = !isOver(execution.status);
  const logs = useOutput(execution, onlyStep ? step : "", grep, live);
  useEffect(() => {
    if (live && follows) box.current?.scrollTo(0, box.current.scrollHeight);
  }, [logs.value, live, follows]);
  return (
    <>
      <div class="query">
        <input type="search" style={{ flex: "1" }} aria-label="Search the output" placeholder="search (regular expression)" defaultValue={grep} onChange={(event) => setGrep(event.currentTarget.value)} />
        {step ? <OnlyStep step={step} only={onlyStep} onOnly={setOnlyStep} /> : <span class="quiet">of all steps</span>}
        {live && <label><input type="checkbox" checked={follows} onChange={(event) => setFollows(event.currentTarget.checked)} /> follow</label>}
      </div>
      {logs.error && <Trouble problem={logs.error} />}
      <div class="scroll" tabIndex={0} role="group" aria-label="Output" ref={box}>
        {logs.value && logs.value.left > 0 && <p class="quiet note">{count(logs.value.left)} entries before these are not kept here; `noetl executions logs` has them</p>}
        {logs.value?.entries.map((one) => (
          <div class="log-line">
            <span class="quiet cut" title={one.timestamp ?? ""}>
              {one.step}
              {one.iteration !== null && `[${one.iteration}]`}
              {one.attempt > 1 && ` try ${one.attempt}`}
            </span>
            <pre>{one.text}</pre>
          </div>
        ))}
        {logs.value && !logs.value.entries.length && (
          <Empty title={grep ? "No line matches." : "Nothing was printed."}>{!grep && <p>What python, shell and container tasks print stands here.</p>}</Empty>
        )}
        {logs.value?.more && <p class="note"><button type="button" onClick={logs.reload}>Show more</button></p>}
      </div>
    </>
  );
}

export function WhyPane({ execution, onSelect }: { execution: ExecutionDocument; onSelect: (step: string) => void }) {
  const why = useLoaded(`${execution.execution_id} ${execution.status}`, () => call("GET /api/executions/{execution_id}/why", { path: { execution_id: execution.execution_id } }), isOver(execution.status) ? 0 : 3000);
  return (
    <>
      {why.error && <Trouble problem={why.error} />}
      {isOver(execution.status) && <p>It has ended: {wordOf(execution.status)}. Nothing waits.</p>}
      {execution.error && execution.failed_step && (
        <p>
          <button type="button" class="link" onClick={() => onSelect(execution.failed_step!)}>{execution.failed_step}</button> failed, and no arc handles its failure: <Message text={execution.error.message} />
        </p>
      )}
      <ul class="plain">
        {why.value?.waits_for.map((one) => (
          <li>
            <Mark status={one.waits_for === "worker" || one.waits_for === "lease" ? "running" : "waiting"} />
            <span><Timed text={one.text} /> {one.until && <span class="quiet">(<When at={one.until} />)</span>}</span>
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
                <Mark status="warning" />
                <span><Words text={one.message} /></span>
                {one.step && <button type="button" class="link" onClick={() => onSelect(one.step!)}>{one.step}</button>}
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
                <When at={one.at} /> <span>{one.action.replace("playbook.", "")}</span> <span class="quiet">{one.actor?.text}</span> {one.reason}
              </li>
            ))}
          </ul>
        </>
      )}
    </>
  );
}
