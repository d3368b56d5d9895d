// Questions that must be answered before anything else: a native dialog, closed by Escape.
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { Problem } from "../api/client";
import { Trouble } from "./notes";

const open = signal<{ title: string; body: (close: () => void) => ComponentChildren; wide?: boolean } | null>(null);

export function showDialog(title: string, body: (close: () => void) => ComponentChildren, wide = false): void {
  open.value = { title, body, wide };
}

export function Dialogs() {
  const shown = open.value;
  const element = useRef<HTMLDialogElement>(null);
  // Before anything else is typed: what follows ⌘K is meant for what it opens.
  useLayoutEffect(() => {
    const dialog = element.current;
    if (shown && dialog && !dialog.open) dialog.showModal();
  }, [shown]);
  if (!shown) return null;
  const close = () => (open.value = null);
  return (
    <dialog
      ref={element}
      class={shown.wide ? "wide" : ""}
      aria-labelledby="dialog-title"
      onClose={close}
      onClick={(event) => event.target === element.current && close()}
    >
      <div class="dialog-body">
        <h2 id="dialog-title">{shown.title}</h2>
        {shown.body(close)}
      </div>
    </dialog>
  );
}

/** A form that does one thing and says what went wrong. */
export function Ask({
  does,
  danger,
  run,
  close,
  children,
}: {
  does: string;
  danger?: boolean;
  /** Whatever it has to do; "stay" keeps the dialog open. */
  run: (data: FormData) => Promise<void | "stay">;
  close: () => void;
  children?: ComponentChildren;
}) {
  const [error, setError] = useState<Problem>();
  const [busy, setBusy] = useState(false);
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    setBusy(true);
    setError(undefined);
    try {
      if ((await run(new FormData(form))) !== "stay") close();
    } catch (problem) {
      const known = problem instanceof Problem ? problem : new Problem(0, "broken", String(problem));
      setError(known.code === "unreachable" ? new Problem(0, known.code, "The server does not answer. Nobody knows whether this was done: look when it answers again.") : known);
    } finally {
      setBusy(false);
    }
  };
  return (
    <form onSubmit={submit} class="ask">
      {children}
      {error && <Trouble problem={error} />}
      <p class="actions">
        <button type="submit" class={danger ? "danger" : "primary"} disabled={busy}>
          {busy ? "…" : does}
        </button>
        <button type="button" onClick={close}>
          Close
        </button>
      </p>
    </form>
  );
}

/** Something that can hardly be undone, after it was said what that means. */
export function removeDialog(does: string, what: string, run: () => Promise<unknown>, done: () => void, says = "This cannot be undone."): void {
  showDialog(`${does} ${what}?`, (close) => (
    <Ask does={does} danger close={close} run={() => run().then(done)}>
      <p>{says}</p>
    </Ask>
  ));
}

/** Something that is done with a few words on why. */
export function reasonDialog(title: string, does: string, label: ComponentChildren, run: (reason: string) => Promise<unknown>, done: () => void = () => undefined, danger = false): void {
  showDialog(title, (close) => (
    <Ask does={does} danger={danger} close={close} run={(data) => run(String(data.get("reason"))).then(done)}>
      <label><span>{label}</span> <input name="reason" autofocus /></label>
    </Ask>
  ));
}
