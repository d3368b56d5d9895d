// A status is a shape, a word and a colour: none of them alone.

export type Tone = "running" | "waiting" | "done" | "failed" | "quiet" | "paused";

const WORDS: Record<string, [word: string, tone: Tone]> = {
  PENDING: ["pending", "waiting"],
  RUNNING: ["running", "running"],
  PAUSED: ["paused", "paused"],
  COMPLETED: ["done", "done"],
  FAILED: ["failed", "failed"],
  CANCELLED: ["cancelled", "quiet"],
  pending: ["pending", "waiting"],
  running: ["running", "running"],
  waiting: ["waiting", "waiting"],
  paused: ["paused", "paused"],
  done: ["done", "done"],
  failed: ["failed", "failed"],
  skipped: ["skipped", "quiet"],
  cancelled: ["cancelled", "quiet"],
  in_progress: ["running", "running"],
  success: ["done", "done"],
  error: ["failed", "failed"],
  added: ["added", "done"],
  changed: ["changed", "paused"],
  removed: ["removed", "failed"],
  unchanged: ["unchanged", "quiet"],
  active: ["active", "done"],
  warning: ["warning", "paused"],
  later: ["pending", "quiet"],
};

export function wordOf(status: string): string {
  return WORDS[status]?.[0] ?? status.toLowerCase();
}

export function toneOf(status: string): Tone {
  return WORDS[status]?.[1] ?? "quiet";
}

/** An execution that runs and only waits for something from outside is shown as waiting. What backs off goes on by itself. */
export function standing(one: { status: string; waits: string | null }): string {
  return one.status === "RUNNING" && (one.waits === "form" || one.waits === "event") ? "waiting" : one.status;
}

/** Where it stands, and what it waits for there. */
export function whereabouts(one: { status: string; waits: string | null; step: string | null; current_steps: string[] }): string {
  if (isOver(one.status)) return "";
  const waits = { form: "waits for a form", event: "waits for an event", timer: "backs off" }[one.waits ?? ""];
  return waits ? `${one.step ?? ""}: ${waits}` : one.current_steps.join(", ");
}

export function isOver(status: string): boolean {
  return status === "COMPLETED" || status === "FAILED" || status === "CANCELLED";
}

/** The shape on a 12-px square, also for the canvas. */
export const SHAPES: Record<string, string> = {
  running: "M6 1.5a4.5 4.5 0 1 1-4.5 4.5M6 4v2.5h2",
  waiting: "M6 1.5a4.5 4.5 0 1 1 0 9a4.5 4.5 0 1 1 0-9M6 5.6v.8",
  pending: "M6 1.5a4.5 4.5 0 1 1 0 9a4.5 4.5 0 1 1 0-9",
  done: "M2 6.5l2.8 2.8L10 3.5",
  failed: "M2.5 2.5l7 7M9.5 2.5l-7 7",
  skipped: "M2.5 6h7",
  cancelled: "M6 1.5a4.5 4.5 0 1 1 0 9a4.5 4.5 0 1 1 0-9M3 9l6-6",
  paused: "M4 2.5v7M8 2.5v7",
  added: "M6 2v8M2 6h8",
  changed: "M2 4.5h8M2 7.5h8M8 2.5l-4 7",
  removed: "M2 6h8",
  warning: "M6 1.5l5 9H1zM6 5v2.2M6 9v.1",
  active: "M6 1.5a4.5 4.5 0 1 1 0 9a4.5 4.5 0 1 1 0-9M4 6.2l1.5 1.5L8.2 4.6",
};

export function Mark({ status }: { status: string }) {
  return (
    <svg class={`mark ${toneOf(status)}`} viewBox="0 0 12 12" width="12" height="12" aria-hidden="true">
      <path d={SHAPES[wordOf(status)] ?? SHAPES.pending} />
    </svg>
  );
}

export function Status({ status }: { status: string }) {
  return (
    <span class={`status ${toneOf(status)}`}>
      <Mark status={status} />
      {wordOf(status)}
    </span>
  );
}
