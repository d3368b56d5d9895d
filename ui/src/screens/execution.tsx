// One execution: graph, timeline, events and data on one time cursor. Live while it runs.
import { useMemo } from "preact/hooks";
import { call } from "../api/client";
import type { ExecutionDocument } from "../api/types";
import { useLoaded } from "../data";
import { Actions } from "../execution/actions";
import { useLog } from "../execution/events";
import { fold } from "../execution/fold";
import { DataPane, EventsPane, OutputPane, WhyPane } from "../execution/panes";
import { StepPanel } from "../execution/step";
import { Timeline } from "../execution/timeline";
import { Graph } from "../graph/canvas";
import { drawn } from "../graph/layout";
import { GraphTree } from "../graph/tree";
import { useKeys } from "../keys";
import { Copy, Trouble } from "../parts/notes";
import { isOver, Status } from "../parts/status";
import { clockTime, count, Took, When } from "../time";
import { ask, asked, href, path, words } from "../url";

const TABS = ["step", "events", "data", "output", "why"] as const;
type Tab = (typeof TABS)[number];

export function Execution() {
  const id = words.value[1]!;
  const shown = useLoaded<ExecutionDocument>(id, () => call("GET /api/executions/{execution_id}", { path: { execution_id: id } }));
  if (!shown.value) {
    return (
      <main class="page" tabIndex={-1}>
        {shown.error ? (
          <>
            <h1>Execution {id}</h1>
            <Trouble problem={shown.error} />
            <p>
              <a href={href("/executions")}>All executions</a>
            </p>
          </>
        ) : null}
      </main>
    );
  }
  return <Shown execution={shown.value} reload={shown.reload} stale={shown.stale} />;
}

function Shown({ execution: latest, reload, stale }: { execution: ExecutionDocument; reload: () => void; stale: boolean }) {
  const id = latest.execution_id;
  const log = useLog(id, !isOver(latest.status), reload);
  const moment = asked("at");
  const at = moment ? Number(moment) : null;
  const execution = latest;
  const folded = useMemo(() => fold(log.events, at ?? Infinity), [log.events, at]);
  const playbook = useLoaded(`${latest.path} ${latest.version}`, () =>
    latest.version === null ? Promise.resolve(null) : call("GET /api/catalog/{path}", { path: { path: latest.path }, query: { version: latest.version } }),
  );
  const layout = playbook.value?.layout;
  const drawing = useMemo(() => (layout ? drawn(layout) : null), [layout]);
  const step = asked("step") || (asked("tab") ? "" : firstOf(latest));
  const tab: Tab = (TABS as readonly string[]).includes(asked("tab")) ? (asked("tab") as Tab) : step ? "step" : "data";
  const select = (name: string) => ask({ step: name, tab: name ? "step" : tab === "step" ? "data" : tab });
  const move = (seq: number | null) => ask({ at: seq === null || seq >= log.head ? null : String(Math.max(1, seq)) });
  const cursorEvent = at === null ? undefined : log.events.findLast((event) => event.seq <= at);
  const cursor = cursorEvent?.timestamp ? Date.parse(cursorEvent.timestamp) : null;
  const order = folded.lines.map((line) => line.step);
  const along = (by: number) => {
    const next = order[Math.min(order.length - 1, Math.max(0, order.indexOf(step) + by))];
    if (next) select(next);
  };
  useKeys([
    { key: "j", says: "next step", run: () => along(1) },
    { key: "k", says: "step before", run: () => along(-1) },
    { key: "[", says: "event before", run: () => move((at ?? log.head) - 1) },
    { key: "]", says: "next event", run: () => move((at ?? log.head) + 1) },
    { key: "l", says: "back to now", run: () => move(null) },
    { key: "/", says: "search events", run: () => { ask({ tab: "events" }); setTimeout(() => document.querySelector<HTMLElement>("input[type=search]")?.focus(), 50); } },
    ...TABS.map((one, number) => ({ key: String(number + 1), says: `pane ${one}`, run: () => ask({ tab: one, step }) })),
  ]);
  const begin = latest.start_time ? Date.parse(latest.start_time) : 0;
  const end = latest.end_time ? Date.parse(latest.end_time) : null;
  return (
    <main class="execution" tabIndex={-1}>
      <div class={`title ${stale ? "stale" : ""}`}>
        <h1>
          <a href={href(path("playbooks", latest.path))}>{latest.path}</a>
        </h1>
        {latest.version !== null && <span class="quiet">v{latest.version}</span>}
        <span class="id" title={id}>
          …{id.slice(-6)}
        </span>
        <Copy text={id} label="Copy the id" />
        <Status status={latest.status} />
        <span class="quiet">
          <When at={latest.start_time} /> · <Took from={latest.start_time} to={latest.end_time} seconds={latest.duration_seconds} />
        </span>
        {latest.parent_execution_id && <a href={href(path("executions", latest.parent_execution_id))}>called by …{latest.parent_execution_id.slice(-6)}</a>}
        <span class="space" />
        <Actions execution={latest} reload={reload} />
      </div>
      {latest.error && (
        <div class="headline">
          <Status status="FAILED" />
          {latest.failed_step && (
            <button type="button" class="link" onClick={() => select(latest.failed_step!)}>
              {latest.failed_step}
            </button>
          )}
          <span class="mono">{latest.error.message}</span>
        </div>
      )}
      <div class="slider">
        <button type="button" class="bare" aria-label="Event before" disabled={log.head < 2} onClick={() => move((at ?? log.head) - 1)}>◀</button>
        <input type="range" min={1} max={Math.max(1, log.head)} value={at ?? log.head} aria-label="Moment, by event" onInput={(event) => move(Number(event.currentTarget.value))} />
        <button type="button" class="bare" aria-label="Next event" disabled={at === null} onClick={() => move((at ?? log.head) + 1)}>▶</button>
        <span class="mono">
          event {count(at ?? log.head)} of {count(log.head)}
          {cursorEvent?.timestamp && <>, {clockTime(new Date(cursorEvent.timestamp))}</>}
        </span>
        <button type="button" class={at === null ? "bare live" : ""} disabled={at === null} onClick={() => move(null)}>{isOver(latest.status) ? "end" : "live"}</button>
      </div>
      {log.error && <Trouble problem={log.error} />}
      <div class="panes">
        <div class="left">
          <section class="graph" aria-label="Graph">
            {drawing ? (
              <>
                <Graph drawing={drawing} moods={folded.moods} taken={folded.taken} selected={step} onSelect={select} view={asked("view")} onView={(view) => ask({ view })} />
                <GraphTree drawing={drawing} moods={folded.moods} selected={step} onSelect={select} />
              </>
            ) : (
              <p class="empty">{playbook.error || latest.version === null ? "This execution was started from a file; the catalog has no graph of it." : ""}</p>
            )}
          </section>
          <Timeline lines={folded.lines} begin={begin} end={at === null ? end : (cursor ?? end)} cursor={null} selected={step} onSelect={select} />
        </div>
        <section class="panel" aria-label="Details">
          <div class="tabs" role="tablist" aria-label="Panes">
            {TABS.map((one) => (
              <button type="button" role="tab" id={`tab-${one}`} aria-selected={tab === one} aria-controls="pane" disabled={one === "step" && !step} onClick={() => ask({ tab: one, step })}>
                {one}
              </button>
            ))}
          </div>
          <div class={`panel-body ${tab === "events" || tab === "output" ? "flush" : ""}`} id="pane" role="tabpanel" aria-labelledby={`tab-${tab}`} tabIndex={0}>
            {tab === "step" && step && <StepPanel key={step} execution={execution} step={step} at={at} content={playbook.value?.content} onSelect={select} />}
            {tab === "events" && <EventsPane log={log} at={at} step={step} onAt={move} />}
            {tab === "data" && <DataPane execution={execution} />}
            {tab === "output" && <OutputPane execution={latest} step={step} />}
            {tab === "why" && <WhyPane execution={latest} onSelect={select} />}
          </div>
        </section>
      </div>
    </main>
  );
}

/** The step to look at first: where it failed, else where it waits for somebody. */
function firstOf(execution: ExecutionDocument): string {
  return execution.failed_step ?? execution.steps.find((one) => one.waiting)?.step ?? execution.steps.find((one) => one.status === "running")?.step ?? "";
}
