// What the events up to a moment say of each step: for the graph and for the timeline.
import type { EventDocument } from "../api/types";
import type { Mood } from "../graph/canvas";

export type BarKind = "queue" | "run" | "ok" | "bad" | "wait" | "backoff" | "child" | "off";

export interface Bar {
  kind: BarKind;
  from: number;
  /** NaN while it goes on. */
  to: number;
  says: string;
}

export interface Line {
  step: string;
  runId: string;
  number: number;
  status: string;
  from: number;
  to: number;
  bars: Bar[];
  loop?: { total: number; done: number; failed: number };
  attempts: number;
}

export interface Folded {
  lines: Line[];
  moods: Map<string, Mood>;
  taken: Set<string>;
}

const RUN_ENDS: Record<string, string> = { "step.done": "done", "step.failed": "failed", "step.cancelled": "cancelled", "step.skipped": "skipped" };

function at(event: EventDocument): number {
  return Date.parse(event.timestamp ?? event.recorded_at ?? "");
}

export function fold(events: EventDocument[], until: number): Folded {
  const lines = new Map<string, Line>();
  const open = new Map<string, Bar>();
  const taken = new Set<string>();
  const stepOf = new Map<string, string>();
  const close = (key: string, to: number, kind?: BarKind) => {
    const bar = open.get(key);
    if (!bar) return;
    bar.to = to;
    if (kind) bar.kind = kind;
    open.delete(key);
  };
  for (const event of events) {
    if (event.seq > until) break;
    const payload = event.payload as Record<string, any>;
    const run = event.step_run_id ?? "";
    const line = lines.get(run);
    const now = at(event);
    const begin = (key: string, kind: BarKind, says: string) => {
      const bar: Bar = { kind, from: now, to: NaN, says };
      open.set(key, bar);
      line?.bars.push(bar);
    };
    const call = `${run}/${payload.action_id ?? payload.task ?? ""}`;
    const isLoop = line?.loop !== undefined;
    switch (event.name) {
      case "step.scheduled":
      case "step.skipped": {
        if (!event.step || line) break;
        const made: Line = { step: event.step, runId: run, number: payload.number ?? 1, status: "running", from: now, to: NaN, bars: [], attempts: 0 };
        lines.set(run, made);
        stepOf.set(run, event.step);
        if (event.name === "step.skipped") {
          made.status = "skipped";
          made.to = now;
        } else {
          const bar: Bar = { kind: "queue", from: now, to: NaN, says: "in the queue" };
          made.bars.push(bar);
          open.set(`${run}/queue`, bar);
        }
        break;
      }
      case "step.started":
        close(`${run}/queue`, now);
        break;
      case "task.started":
        if (line) line.attempts++;
        close(`${call}/backoff`, now);
        if (!isLoop) begin(call, "run", `${payload.task}${(event.attempt ?? 1) > 1 ? `, try ${event.attempt}` : ""}`);
        break;
      case "task.done":
        close(call, now, event.status === "error" ? "bad" : "ok");
        break;
      case "retry.started":
        if (!isLoop && payload.delay) begin(`${call}/backoff`, "backoff", `waits ${payload.delay} s before the next try`);
        break;
      case "step.waiting":
        if (line) line.status = "waiting";
        close(`${run}/queue`, now);
        begin(`${run}/wait`, "wait", "waits for an event");
        break;
      case "step.resumed":
        if (line) line.status = "running";
        close(`${run}/wait`, now);
        break;
      case "child.started":
        begin(`${run}/child/${payload.child_id ?? payload.execution_id ?? ""}`, "child", "a playbook that it called");
        break;
      case "child.finished":
        close(`${run}/child/${payload.child_id ?? payload.execution_id ?? ""}`, now);
        break;
      case "loop.started":
        if (line) {
          line.loop = { total: payload.total ?? payload.size ?? 0, done: 0, failed: 0 };
          close(`${run}/queue`, now);
          begin(`${run}/loop`, "run", "iterations");
        }
        break;
      case "loop.iteration.done":
        if (line?.loop) line.loop.done++;
        break;
      case "loop.iteration.failed":
        if (line?.loop) line.loop.failed++;
        break;
      case "loop.done":
        close(`${run}/loop`, now, line?.loop?.failed ? "bad" : "ok");
        break;
      case "next.selected":
        for (const target of (payload.targets as string[] | undefined) ?? []) taken.add(`${event.step}>${target}`);
        break;
    }
    const ended = RUN_ENDS[event.name];
    if (ended && line) {
      line.status = ended;
      line.to = now;
      for (const [key, bar] of open) if (key.startsWith(`${run}/`)) close(key, now, bar.kind === "run" ? (ended === "failed" ? "bad" : ended === "done" ? "ok" : "off") : undefined);
    }
    if (event.name === "workflow.finished")
      for (const one of lines.values())
        if (Number.isNaN(one.to)) {
          one.to = now;
          one.status = "cancelled";
          for (const bar of one.bars) if (Number.isNaN(bar.to)) Object.assign(bar, { to: now, kind: bar.kind === "run" ? "off" : bar.kind });
        }
  }
  const moods = new Map<string, Mood>();
  for (const line of lines.values()) {
    const old = moods.get(line.step);
    moods.set(line.step, {
      status: line.status,
      attempts: (old?.attempts ?? 0) + line.attempts,
      runs: (old?.runs ?? 0) + 1,
      ...(line.loop ? { loop: line.loop } : {}),
    });
  }
  return { lines: [...lines.values()], moods, taken };
}

/** Time on a line where long stretches in which nothing happens but waiting are squeezed. */
export function scale(lines: Line[], begin: number, end: number): { place: (moment: number) => number; squeezed: boolean } {
  const edges = [...new Set([begin, end, ...lines.flatMap((line) => line.bars.flatMap((bar) => [bar.from, Number.isNaN(bar.to) ? end : bar.to]))])]
    .filter((edge) => edge >= begin && edge <= end)
    .sort((a, b) => a - b);
  const busy = lines.flatMap((line) => line.bars.filter((bar) => bar.kind !== "wait").map((bar) => [bar.from, Number.isNaN(bar.to) ? end : bar.to] as const)).sort((a, b) => a[0] - b[0]);
  const stretches: { from: number; to: number; idle: boolean; wide: number; start: number }[] = [];
  let index = 0;
  let latest = -Infinity;
  let working = 0;
  for (let number = 1; number < edges.length; number++) {
    const [from, to] = [edges[number - 1]!, edges[number]!];
    while (index < busy.length && busy[index]![0] <= from) latest = Math.max(latest, busy[index++]![1]);
    const idle = latest < to;
    if (!idle) working += to - from;
    stretches.push({ from, to, idle, wide: to - from, start: 0 });
  }
  const cap = Math.max(working * 0.2, (end - begin) * 0.02, 1);
  let squeezed = false;
  let total = 0;
  for (const one of stretches) {
    if (one.idle && working > 0 && one.wide > cap) {
      one.wide = cap;
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
