// One execution: graph, timeline, events and data on one time cursor. Live while it runs.
import { useMemo, useRef } from "preact/hooks";
import { call, isRecording } from "../api/client";
import type { ExecutionDocument, MomentDocument } from "../api/types";
import { useLoaded } from "../data";
import { Actions, Takeaways } from "../execution/actions";
import { useNews } from "../execution/events";
import { DataPane, EventsPane, OutputPane, WhyPane } from "../execution/panes";
import { StepPanel } from "../execution/step";
import { Timeline } from "../execution/timeline";
import type { Mood } from "../graph/canvas";
import { drawn } from "../graph/layout";
import { GraphView } from "../graph/view";
import { useKeys } from "../keys";
import { Absent, Copy, Empty, Message, Trouble, Words } from "../parts/notes";
import { isOver, Status } from "../parts/status";
import { Tabs } from "../parts/tabs";
import { clockTime, count, Took, When } from "../time";
import { ask, asked, href, path, words } from "../url";

const TABS = ["step", "events", "data", "output", "why"] as const;
type Tab = (typeof TABS)[number];
const ARC_PAGES_MAX = 20;
const ARC_PAGE = 1000;

export function Execution() {
  const id = words.value[1]!;
  const shown = useLoaded<MomentDocument>(id, () => momentOf(id, null));
  if (!shown.value) return <Absent title={`Execution ${id}`} what={`execution ${id}`} problem={shown.error} all={{ href: href("/executions"), text: "All executions" }} />;
  return <Shown latest={shown.value} reload={shown.reload} hear={shown.hear} stale={shown.stale} />;
}

function momentOf(id: string, seq: number | null): Promise<MomentDocument> {
  return call("GET /api/executions/{execution_id}/state", { path: { execution_id: id }, query: { seq } });
}

/** Arcs that tokens went over, each with the first event that says so; read on from where the log was read to. */
function useArcs(id: string, head: number, isOver: boolean) {
  const read = useRef({ id, after: 0, arcs: new Map<string, number>() });
  if (read.current.id !== id) read.current = { id, after: 0, arcs: new Map() };
  return useLoaded(`arcs ${id} ${isOver}`, async (signal) => {
    const mine = read.current;
    for (let [more, pages] = [true, 0]; more && pages < ARC_PAGES_MAX; pages++) {
      const known = mine.arcs.size;
      const page = await call("GET /api/executions/{execution_id}/events", { path: { execution_id: id }, query: { type: ["token.created"], after: mine.after, limit: ARC_PAGE }, signal });
      for (const event of page.events) {
        const arc = `${String(event.payload.arc ?? "").split("#")[0]}>${event.step}`;
        if (!mine.arcs.has(arc)) mine.arcs.set(arc, event.seq);
      }
      mine.after = page.events.at(-1)?.seq ?? mine.after;
      more = page.more;
      // Tokens that go round and round bring nothing new, until one leaves at the end.
      if (mine.arcs.size === known) mine.after = Math.max(mine.after, head - ARC_PAGE);
    }
    return [...mine.arcs];
  });
}

function moodsOf(execution: ExecutionDocument): Map<string, Mood> {
  return new Map(
    execution.steps.map((one) => [one.step, { status: one.waiting ? "waiting" : one.status, attempts: one.loop ? one.runs : one.attempts, runs: one.runs, ...(one.loop ? { loop: one.loop } : {}) }]),
  );
}

function Shown({ latest, reload, hear, stale }: { latest: MomentDocument; reload: () => void; hear: () => void; stale: boolean }) {
  const id = latest.execution_id;
  const head = latest.last_seq;
  // Once more when it is over: the last look may be older than the state that says so, and no news follow.
  const timeline = useLoaded(`timeline ${id} ${isOver(latest.status)}`, () => call("GET /api/executions/{execution_id}/timeline", { path: { execution_id: id } }));
  const critical = useLoaded(`critical ${id} ${latest.status}`, () => (isOver(latest.status) ? call("GET /api/executions/{execution_id}/critical-path", { path: { execution_id: id } }) : Promise.resolve(undefined)));
  const arcs = useArcs(id, head, isOver(latest.status));
  useNews(id, !isOver(latest.status), () => {
    hear();
    timeline.hear();
    arcs.hear();
  });
  const wanted = Number(asked("at"));
  const at = asked("at") && wanted >= 1 && wanted < head ? wanted : null;
  const past = useLoaded<MomentDocument | null>(at === null ? "" : `${id} ${at}`, () => (at === null ? Promise.resolve(null) : momentOf(id, at)));
  const execution: MomentDocument = at === null ? latest : (past.value ?? latest);
  const moods = useMemo(() => moodsOf(execution), [execution]);
  const taken = useMemo(() => new Set((arcs.value ?? []).filter(([, seq]) => at === null || seq <= at).map(([arc]) => arc)), [arcs.value, at]);
  const runs = timeline.value?.runs ?? [];
  const playbook = useLoaded(`${latest.path} ${latest.version}`, () =>
    latest.version === null || isRecording() ? Promise.resolve(null) : call("GET /api/catalog/{path}", { path: { path: latest.path }, query: { version: latest.version } }),
  );
  const layout = useLoaded(latest.digest, () => call("GET /api/playbooks/{digest}/layout", { path: { digest: latest.digest } }));
  const drawing = useMemo(() => (layout.value ? drawn(layout.value) : null), [layout.value]);
  const step = asked("step") || (asked("tab") ? "" : firstOf(latest));
  const tab: Tab = (TABS as readonly string[]).includes(asked("tab")) ? (asked("tab") as Tab) : step ? "step" : "data";
  const select = (name: string) => ask({ step: name, tab: name ? "step" : tab === "step" ? "data" : tab });
  const move = (seq: number | null) => ask({ at: seq === null || seq >= head ? null : String(Math.max(1, seq)), ...(asked("tab") ? {} : { tab, step }) });
  const cursor = at !== null && past.value?.at ? Date.parse(past.value.at) : null;
  const order = [...new Set(runs.map((run) => run.step))];
  const along = (by: number) => {
    const next = order[Math.min(order.length - 1, Math.max(0, order.indexOf(step) + by))];
    if (next) select(next);
  };
  useKeys([
    { key: "j", says: "next step", run: () => along(1) },
    { key: "k", says: "step before", run: () => along(-1) },
    { key: "[", says: "event before", run: () => move((at ?? head) - 1) },
    { key: "]", says: "next event", run: () => move((at ?? head) + 1) },
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
          {isRecording() ? latest.path : <a href={href(path("playbooks", latest.path))}>{latest.path}</a>}
        </h1>
        {latest.version !== null && <span class="quiet">v{latest.version}</span>}
        <span class="id" title={id}>
          …{id.slice(-6)}
        </span>
        <Copy text={id} label="Copy the id" />
        <Status status={!isOver(latest.status) && latest.steps.some((one) => one.waiting) && !latest.steps.some((one) => one.status === "running" && !one.waiting) ? "waiting" : latest.status} />
        <span class="quiet">
          <When at={latest.start_time} /> · <Took from={latest.start_time} to={latest.end_time} seconds={latest.duration_seconds} />
        </span>
        {latest.parent_execution_id && <a href={href(path("executions", latest.parent_execution_id))}>called by …{latest.parent_execution_id.slice(-6)}</a>}
        <span class="space" />
        <Takeaways execution={latest} />
        <Actions execution={latest} seq={at ?? head} reload={reload} />
      </div>
      {latest.error && (
        <div class="headline">
          <Status status={latest.status === "CANCELLED" ? latest.status : "FAILED"} />
          {latest.failed_step && (
            <button type="button" class="link" onClick={() => select(latest.failed_step!)}>
              {latest.failed_step}
            </button>
          )}
          <span class="mono" title={latest.error.message}><Message text={latest.error.message} /></span>
        </div>
      )}
      <Notices execution={latest} onSelect={select} />
      <div class="slider">
        <button type="button" class="bare" aria-label="Event before" disabled={head < 2} onClick={() => move((at ?? head) - 1)}>◀</button>
        <input type="range" min={1} max={Math.max(1, head)} value={at ?? head} aria-label="Moment, by event" onInput={(event) => move(Number(event.currentTarget.value))} />
        <button type="button" class="bare" aria-label="Next event" disabled={at === null} onClick={() => move((at ?? head) + 1)}>▶</button>
        <span class="mono moment" style={{ "--digits": count(head).length }}>
          event {count(at ?? head)} of {count(head)}
          {execution.at && <span class="wide-only">, {clockTime(new Date(execution.at))}</span>}
        </span>
        <button type="button" disabled={at === null} onClick={() => move(null)}>{isOver(latest.status) ? "end" : "live"}</button>
      </div>
      {past.error && <Trouble problem={past.error} />}
      {timeline.error && <Trouble problem={timeline.error} />}
      <div class="panes">
        <div class="left">
          <section class="graph" aria-label="Graph">
            {drawing ? (
              <GraphView drawing={drawing} moods={moods} taken={taken} selected={step} onSelect={select} view={asked("view")} onView={(view) => ask({ view })} />
            ) : (
              layout.error && <Trouble problem={layout.error} />
            )}
          </section>
          <Timeline runs={runs} asked={timeline.value === undefined && !timeline.error} events={head} critical={critical.value} at={at} cursor={cursor} begin={begin} end={end} selected={step} onSelect={select} />
        </div>
        <section class="panel" aria-label="Details">
          <Tabs label="Panes" names={TABS} chosen={tab} onChoose={(one) => ask({ tab: one, step: step || firstOf(latest) || order[0] })} />
          <div class={`panel-body ${tab === "events" || tab === "output" ? "flush" : ""}`} id="pane" role="tabpanel" aria-labelledby={`tab-${tab}`} tabIndex={0}>
            {tab === "step" && !step && <Empty title="No step yet."><p>Choose one in the graph or in the timeline.</p></Empty>}
            {tab === "step" && step && <StepPanel key={step} execution={execution} step={step} runs={runs} at={at} content={playbook.value?.content} callsOthers={Boolean(layout.value?.nodes.find((one) => one.id === step)?.kinds.includes("playbook"))} onSelect={select} />}
            {tab === "events" && <EventsPane execution={latest} head={head} at={at} step={step} onAt={move} />}
            {tab === "data" && <DataPane execution={execution} />}
            {tab === "output" && <OutputPane execution={latest} step={step} />}
            {tab === "why" && <WhyPane execution={latest} onSelect={select} />}
          </div>
        </section>
      </div>
    </main>
  );
}

/** What nobody would notice: loops that went on without some of their iterations, branches that ended, warnings. However many
 * there are, they leave the panes their room. */
function Notices({ execution: { error, steps, warnings }, onSelect }: { execution: ExecutionDocument; onSelect: (step: string) => void }) {
  const loops = error ? [] : steps.filter((one) => one.loop && one.loop.failed > 0);
  const ended = steps.filter((one) => one.unmatched && !warnings.some((warning) => warning.step === one.step));
  if (!loops.length && !ended.length && !warnings.length) return null;
  const link = (step: string) => <button type="button" class="link" onClick={() => onSelect(step)}>{step}</button>;
  return (
    <div class="notices" tabIndex={0} role="group" aria-label="What to know">
      {loops.map(({ step, loop }) => (
        <div class="headline">
          <Status status="warning" /> {link(step)}
          <span>{count(loop!.failed)} of {count(loop!.total)} iterations failed</span>
          {loop!.errors?.[0] && <span class="mono" title={loop!.errors[0].message}><Message text={loop!.errors[0].message} /></span>}
        </div>
      ))}
      {ended.map(({ step }) => <div class="headline">{link(step)} <span class="quiet">none of its arcs held; its branch ended there</span></div>)}
      {warnings.map(({ message }) => <div class="headline"><Status status="warning" /> <span><Words text={message} /></span></div>)}
    </div>
  );
}

/** The step to look at first: where it failed, else where it waits for somebody. */
function firstOf(execution: ExecutionDocument): string {
  return execution.failed_step ?? execution.steps.find((one) => one.waiting)?.step ?? execution.steps.find((one) => one.status === "running")?.step ?? "";
}
