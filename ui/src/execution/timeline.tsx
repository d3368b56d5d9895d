// One line for each run of a step: queue, run, backing off, waiting, child. Long waits are squeezed.
import { useMemo } from "preact/hooks";
import type { CriticalPath, RunLine, Span } from "../api/types";
import { Mark } from "../parts/status";
import { count, now, took } from "../time";

const LINES_MAX = 400;
/** The names of steps have as much room as the longest needs, in characters, with its marks. */
const NAMES_MAX = 44;
const MARKS = 7;
/** A log that takes longer to read than a blink. */
const LONG = 20_000;
const WORDS: Record<string, string> = { queue: "in the queue", run: "runs", backoff: "backs off", child: "a playbook that it called", person: "waits for a person", event: "waits for an event" };
const IDLE = new Set(["person", "event"]);

export interface Bar {
  kind: string;
  from: number;
  to: number;
  says: string;
}

function barsOf(run: RunLine, until: number): Bar[] {
  return run.spans
    .map((span: Span) => ({ kind: span.kind as string, from: Date.parse(span.start ?? ""), to: span.end ? Date.parse(span.end) : until, says: WORDS[span.kind] ?? span.kind }))
    .filter((bar) => bar.from <= until)
    .map((bar) => ({ ...bar, to: Math.min(bar.to, until) }));
}

/** Time on a line where long stretches in which nothing happens but waiting are squeezed. */
export function scale(bars: Bar[], begin: number, end: number): { place: (moment: number) => number; squeezed: boolean } {
  const edges = [...new Set([begin, end, ...bars.flatMap((bar) => [bar.from, bar.to])])].filter((edge) => edge >= begin && edge <= end).sort((a, b) => a - b);
  const busy = bars.filter((bar) => !IDLE.has(bar.kind)).sort((a, b) => a.from - b.from);
  const stretches: { from: number; to: number; idle: boolean; wide: number; start: number }[] = [];
  let [index, latest, working] = [0, -Infinity, 0];
  for (let number = 1; number < edges.length; number++) {
    const [from, to] = [edges[number - 1]!, edges[number]!];
    while (index < busy.length && busy[index]!.from <= from) latest = Math.max(latest, busy[index++]!.to);
    const idle = latest < to;
    if (!idle) working += to - from;
    stretches.push({ from, to, idle, wide: to - from, start: 0 });
  }
  const most = Math.max(working * 0.3, 1);
  let [squeezed, total] = [false, 0];
  for (const one of stretches) {
    if (one.idle && working > 0 && one.wide > most) {
      one.wide = most;
      squeezed = true;
    }
    one.start = total;
    total += one.wide;
  }
  const place = (moment: number) => {
    if (!total) return 0;
    let [low, high] = [0, stretches.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (stretches[middle]!.from <= moment) low = middle;
      else high = middle - 1;
    }
    const one = stretches[low]!;
    const part = one.to > one.from ? Math.min(1, Math.max(0, (moment - one.from) / (one.to - one.from))) : 0;
    return (one.start + part * one.wide) / total;
  };
  return { place, squeezed };
}

/** Runs as they are at the cursor. What comes after it keeps its line, so that nothing moves with the slider. */
export function Timeline({ runs, asked, events, critical, at, cursor, begin, end, selected, onSelect }: { runs: RunLine[]; asked: boolean; events: number; critical: CriticalPath | undefined; at: number | null; cursor: number | null; begin: number; end: number | null; selected: string; onSelect: (step: string) => void }) {
  const finish = Math.max(end ?? now.value, begin + 1);
  const until = Math.min(cursor ?? finish, finish);
  const { place, squeezed } = useMemo(() => scale(runs.flatMap((run) => barsOf(run, finish)), begin, finish), [runs, begin, finish]);
  const begun = at === null ? runs.length : runs.findLastIndex((run) => run.seq <= at) + 1;
  const last = Math.max(begun, Math.min(runs.length, LINES_MAX));
  const shown = useMemo(
    () => runs.slice(Math.max(0, last - LINES_MAX), last).map((run, number) => {
      const later = Math.max(0, last - LINES_MAX) + number >= begun;
      return { run, later, bars: later ? [] : barsOf(run, until) };
    }),
    [runs, last, begun, until],
  );
  const names = Math.min(NAMES_MAX, Math.max(...shown.map(({ run }) => run.step.length)) + MARKS);
  const decisive = new Set(critical && critical.runs.length < runs.length ? critical.runs.map((run) => run.step_run_id) : []);
  const spent = Object.entries(critical?.by_kind ?? {}).filter(([, seconds]) => seconds >= 0.001);
  return (
    <section class="timeline" aria-label="Timeline" tabIndex={0} style={{ "--names": names }}>
      {asked && events > LONG && <p class="quiet note">reading its log of {count(events)} events, once</p>}
      {runs.length > LINES_MAX && <p class="quiet note">{last < runs.length ? LINES_MAX : `the last ${LINES_MAX}`} of {count(runs.length)} runs</p>}
      {shown.map(({ run, later, bars }) => {
        const from = Date.parse(run.scheduled_at ?? "");
        const isOpen = !run.ended_at || Date.parse(run.ended_at) > until;
        const waits = isOpen && ["person", "event"].includes(bars.at(-1)?.kind ?? "");
        const status = later ? "later" : waits ? "waiting" : isOpen && run.ended_at ? "running" : run.status;
        return (
          <button type="button" key={run.step_run_id} class={`line ${later ? "later" : ""} ${run.step === selected ? "at" : ""}`} onClick={() => onSelect(run.step)}>
            <span class="cut" title={run.step}>
              <Mark status={status} /> {run.step}
              {later && <span class="hidden"> not begun</span>}
              {decisive.has(run.step_run_id) && <span class="critical" title="on the critical path"> ◆<span class="hidden">on the critical path</span></span>}
              {run.number > 1 && <span class="quiet"> run {run.number}</span>}
            </span>
            <span class="bars">
              {cursor !== null && <i class="cursor" style={{ left: `${(place(until) * 100).toFixed(2)}%` }} />}
              {bars.map((bar) => (
                <i
                  class={`bar ${bar.kind === "run" ? `run-${status}` : bar.kind}`}
                  title={`${bar.says}: ${took((bar.to - bar.from) / 1000)}`}
                  style={{ left: `${(place(bar.from) * 100).toFixed(2)}%`, width: `${Math.max(0, place(bar.to) - place(bar.from)) * 100}%` }}
                />
              ))}
            </span>
            <span class="num">{!later && took(((isOpen ? until : Date.parse(run.ended_at!)) - from) / 1000)}</span>
          </button>
        );
      })}
      {(squeezed || spent.length > 0) && (
        <p class="quiet note">
          {spent.length > 0 && <>critical path: {spent.map(([kind, seconds]) => `${WORDS[kind] ?? kind} ${took(seconds)}`).join(", ")}. </>}
          {squeezed && "Long waits are squeezed."}
        </p>
      )}
    </section>
  );
}
