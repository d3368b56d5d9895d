// What starts executions without people; schedules, with what became of each time.
import { useState } from "preact/hooks";
import { call, may } from "../api/client";
import type { ScheduleDocument, ScheduleItem, ScheduleTime } from "../api/types";
import { useLoaded } from "../data";
import { Ask, showDialog } from "../parts/dialog";
import { Json } from "../parts/json";
import { ExecutionId, tell, tellProblem, Trouble } from "../parts/notes";
import { standing, Status } from "../parts/status";
import { Listing } from "../parts/table";
import { Tabs } from "../parts/tabs";
import { Consumer, ConsumerTable, Hook, HookTable, NEWS, NoneYet, NotificationTable, Outcome, pauseDialog, Text } from "./triggers";
import { chosenSpan, count, exact, When } from "../time";
import { ask, asked, go, href, path, words } from "../url";

const EVERY = 10_000;
const DAYS = 14;
/** The most that the API returns: two weeks of a schedule that is due every quarter of an hour. */
const TIMES_MAX = 1000;
const ROWS = 200;
/** Of so many executions that it started last is shown how they are. */
const FOLLOWED = 50;
/** So many schedules are listed, each with how the execution of its last time is. */
const LISTED = 500;

function rhythm(one: ScheduleItem | ScheduleDocument): string {
  return one.cron.length ? `${one.cron.join(" and ")} ${one.timezone}` : one.every !== null ? `every ${chosenSpan(one.every)}` : "by hand";
}

function State({ one }: { one: ScheduleItem | ScheduleDocument }) {
  return <Status status={one.status === "paused" ? "paused" : one.running.length ? "running" : one.status} />;
}

const KINDS = ["schedules", "hooks", "consumers", "notifications"] as const;

export function Schedules() {
  const kind = KINDS.find((one) => one === asked("kind")) ?? "schedules";
  return (
    <main class="page" tabIndex={-1}>
      <h1>Schedules and triggers</h1>
      <Tabs label="Kinds" names={KINDS} chosen={kind} onChoose={(one) => ask({ kind: one })} />
      <div class="part" role="tabpanel" aria-labelledby={`tab-${kind}`}>
        {kind === "schedules" && <ScheduleTable />}
        {kind === "hooks" && <HookTable />}
        {kind === "consumers" && <ConsumerTable />}
        {kind === "notifications" && <NotificationTable />}
      </div>
    </main>
  );
}

/** How the first executions of these times are, as far as they are known. */
function useBecame(times: readonly (ScheduleTime | null)[], most: number): ReadonlyMap<string, string> {
  const started = times.flatMap((time) => (time?.execution_id ? [time.execution_id] : [])).slice(0, most);
  const load = async () => {
    const became = new Map<string, string>();
    for (let from = 0; from < started.length; from += FOLLOWED) {
      const page = await call("GET /api/executions", { query: { q: `id:${started.slice(from, from + FOLLOWED).join()}`, limit: FOLLOWED } });
      for (const run of page.executions) became.set(run.execution_id, standing(run));
    }
    return became;
  };
  return useLoaded(started.join(), load, 0, NEWS).value ?? new Map<string, string>();
}

/** What became of the newest time: how its execution is, or why there is none. */
function Last({ time, became }: { time: ScheduleTime | null; became: ReadonlyMap<string, string> }) {
  if (!time) return <span class="quiet">not yet</span>;
  const status = became.get(time.execution_id ?? "");
  return (
    <span title={time.reason}>
      {status ? <a href={href(path("executions", time.execution_id!))}><Status status={status} /></a> : <Outcome outcome={time.outcome} />} <When at={time.time} />
    </span>
  );
}

function ScheduleTable() {
  const found = useLoaded("schedules", () => call("GET /api/schedules", { query: { limit: LISTED } }), EVERY, NEWS);
  const became = useBecame(found.value?.schedules.map((one) => one.last) ?? [], LISTED);
  return (
    <Listing
      error={found.error}
      rows={found.value?.schedules}
      none={<NoneYet title="Nothing is scheduled." kind="Schedule names a playbook and its times" />}
      label="Schedules"
      keyOf={(one) => one.path}
      columns={[
        { title: "schedule", cell: (one) => <a href={href(path("schedules", one.path))}>{one.path}</a> },
        { title: "state", cell: (one) => <State one={one} /> },
        { title: "playbook", cell: (one) => <a href={href(path("playbooks", one.playbook))}>{one.playbook}</a> },
        { title: "times", class: "mono", cell: (one) => rhythm(one) },
        { title: "last", named: true, cell: (one) => <Last time={one.last} became={became} /> },
        { title: "next", named: true, cell: (one) => <When at={one.next_time} /> },
        { title: "note", cell: (one) => one.reason || one.description },
      ]}
    />
  );
}

export function Schedule() {
  const name = words.value.slice(1).join("/");
  const kind = asked("kind");
  return kind === "hooks" ? <Hook name={name} /> : kind === "consumers" ? <Consumer name={name} /> : <OneSchedule name={name} />;
}

function OneSchedule({ name }: { name: string }) {
  const found = useLoaded(`schedule ${name}`, () => call("GET /api/schedules/{path}", { path: { path: name }, query: { next: TIMES_MAX, times: TIMES_MAX } }), EVERY, NEWS);
  const act = (run: Promise<unknown>, said: string) => run.then(() => { tell(said); found.reload(); }, tellProblem);
  const one = found.value;
  const became = useBecame(one?.times ?? [], FOLLOWED);
  return (
    <main class="page" tabIndex={-1}>
      <div class="row">
        <h1>{name}</h1>
        {one && <State one={one} />}
        <span class="space" />
        {one && may("operate") && (
          <>
            <button type="button" onClick={() => call("POST /api/schedules/run", { body: { path: name } }).then((started) => go(path("executions", started.execution_id)), tellProblem)}>Run now</button>
            <button type="button" onClick={() => showDialog("Backfill", (close) => <BackfillForm name={name} zone={one.timezone} close={close} done={found.reload} />)}>Backfill</button>
            {one.status === "paused" ? (
              <button type="button" class="primary" onClick={() => act(call("POST /api/schedules/resume", { body: { path: name } }), "Resumed.")}>Resume</button>
            ) : (
              <button
                type="button"
                onClick={() => pauseDialog((reason) => call("POST /api/schedules/pause", { body: { path: name, reason } }), found.reload)}
              >
                Pause
              </button>
            )}
          </>
        )}
      </div>
      {found.error && <Trouble problem={found.error} />}
      {one && (
        <>
          {one.description && <p class="quiet">{one.description}</p>}
          <dl class="facts">
            <dt>starts</dt>
            <dd><a href={href(path("playbooks", one.playbook))}>{one.playbook}</a> {one.playbook_version !== null && `v${one.playbook_version}`}</dd>
            <dt>times</dt>
            <dd class="mono">{rhythm(one)}</dd>
            <dt>next</dt>
            <dd><When at={one.next_time} /></dd>
            <dt>overlap</dt>
            <dd>{one.overlap}</dd>
            {one.reason && (<><dt>note</dt><dd>{one.reason}</dd></>)}
            <Text name={name} />
          </dl>
          {Object.keys(one.workload).length > 0 && (
            <section>
              <h3>workload</h3>
              <Json value={one.workload} label="workload" />
            </section>
          )}
          <h2>Two weeks <span class="quiet">in {one.timezone}</span></h2>
          <Calendar one={one} />
          <h2>What became of the last times</h2>
          <Listing
            none={<p class="quiet">It has not come to a time yet.</p>}
            label="Times"
            rows={one.times.slice(0, ROWS)}
            columns={[
              { title: "time", cell: (time) => <When at={time.time} /> },
              { title: "outcome", cell: (time) => <Outcome outcome={time.outcome} /> },
              { title: "by", class: "quiet", cell: (time) => time.origin },
              { title: "execution", cell: (time) => time.execution_id && <><ExecutionId id={time.execution_id} /> {became.has(time.execution_id) && <Status status={became.get(time.execution_id)!} />}</> },
              { title: "reason", cell: (time) => time.reason },
            ]}
          />
        </>
      )}
    </main>
  );
}

/** The day of a moment where the schedule is at home, such as 2026-01-31; of a zone that the browser does not know, the day in UTC. */
function dayOf(moment: Date, timezone: string): string {
  try {
    return new Intl.DateTimeFormat("sv", { timeZone: timezone }).format(moment);
  } catch {
    return exact(moment, true).slice(0, 10);
  }
}

/** Seven days back, seven ahead, in the zone of the schedule: what became of each time, and those to come. Days beyond what was read say so. */
function Calendar({ one }: { one: ScheduleDocument }) {
  const today = dayOf(new Date(), one.timezone);
  const days = Array.from({ length: DAYS }, (_, number) => new Date(Date.parse(today) + (number - DAYS / 2) * 86_400_000));
  const times = one.times.filter((time) => time.time).map((time) => ({ ...time, day: dayOf(new Date(time.time!), one.timezone) }));
  const past = Map.groupBy(times, (time) => time.day);
  const coming = Map.groupBy(one.next_times, (time) => time.slice(0, 10));
  const oldest = one.times.length >= TIMES_MAX ? times.at(-1)!.day : "";
  const newest = one.next_times.length >= TIMES_MAX ? one.next_times.at(-1)!.slice(0, 10) : "9999";
  return (
    <ol class="calendar">
      {days.map((day) => {
        const key = day.toISOString().slice(0, 10);
        const been = past.get(key) ?? [];
        const next = coming.get(key) ?? [];
        const bad = been.filter((time) => time.outcome !== "started").length;
        const good = been.length - bad;
        return (
          <li class={key === today ? "today" : ""}>
            <span class="quiet">{day.toLocaleDateString("en", { weekday: "short", timeZone: "UTC" })} {day.getUTCDate()}</span>
            {good > 0 && <span class="done">{count(good)}{key === oldest && "+"} started</span>}
            {bad > 0 && <span class="failed">{count(bad)}{key === oldest && "+"} not started</span>}
            {next.length > 0 && <span>{next.length >= 4 ? `${count(next.length)}${key === newest ? "+" : ""} times` : next.map((time) => time.slice(11, 16)).join(", ")}</span>}
            {(key < oldest || key > newest) && <span class="quiet" title="Too many times to count here">many</span>}
          </li>
        );
      })}
    </ol>
  );
}

function times(number: number, one: string, more: string): string {
  return `${count(number)} ${number === 1 ? `time ${one}` : `times ${more}`}`;
}

function BackfillForm({ name, zone, close, done }: { name: string; zone: string; close: () => void; done: () => void }) {
  const [preview, setPreview] = useState<string[] | null>(null);
  const span = (data: FormData) => ({ path: name, from: new Date(String(data.get("from"))).toISOString(), to: new Date(String(data.get("to"))).toISOString() });
  return (
    <Ask
      does={preview?.length ? `Start ${preview.length}` : "Preview"}
      close={close}
      run={async (data) => {
        if (!preview?.length) {
          setPreview((await call("POST /api/schedules/backfill", { body: { ...span(data), dry_run: true } })).times);
          return "stay";
        }
        const told = await call("POST /api/schedules/backfill", { body: { ...span(data), dry_run: false } });
        tell(times(told.times.length, "is started.", "are started."));
        done();
        return undefined;
      }}
    >
      <label>From (in the time of this browser) <input name="from" type="datetime-local" required onInput={() => setPreview(null)} /></label>
      <label>To <input name="to" type="datetime-local" required onInput={() => setPreview(null)} /></label>
      {preview && (
        <p>
          {preview.length ? <>{times(preview.length, "is", "are")} due: {[...new Set([preview[0]!, preview.at(-1)!])].map((time) => time.slice(0, 16).replace("T", " ")).join(" to ")}, in {zone}.</> : "No time lies between these that was not started."}
        </p>
      )}
    </Ask>
  );
}
