// What the page says about itself: errors with what to do, empty places with the next command, news.
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Problem } from "../api/client";
import { clock } from "../prefs";
import { exact } from "../time";
import { href, path } from "../url";

/** A sentence whose names stand between backticks. */
export function Words({ text }: { text: string }) {
  return <>{text.split("`").map((part, number) => (number % 2 ? <code>{part}</code> : part))}</>;
}

/** A sentence that holds moments as the server writes them: in it stands the time of day, elsewhere "in 3 s". */
export function Timed({ text }: { text: string }) {
  return (
    <>
      {text.split(/(\d{4}-\d\d-\d\dT[\d:.]+Z)/).map((part, number) => {
        if (number % 2 === 0) return <Words text={part} />;
        const date = new Date(part);
        const [said, today] = [date, new Date()].map((one) => exact(one, clock.value === "utc").slice(0, 19)) as [string, string];
        return <time dateTime={part} title={part}>{said.slice(0, 10) === today.slice(0, 10) ? said.slice(11) : said}</time>;
      })}
    </>
  );
}

/** An execution by the end of its id, one click away. */
export function ExecutionId({ id }: { id: string }) {
  return <a class="id" href={href(path("executions", id))}>…{id.slice(-6)}</a>;
}

/** What an error says; an execution that it names is one click away. */
export function Message({ text }: { text: string }) {
  return <>{text.split(/(?<=child execution )(\d{6,})/).map((part, number) => (number % 2 ? <a href={href(path("executions", part))}>{part}</a> : part))}</>;
}

export function Trouble({ problem }: { problem: Problem }) {
  const all: Record<string, unknown>[] = Array.isArray(problem.details) ? problem.details : [];
  const details = all.filter((one) => one.message !== problem.message);
  return (
    <div class="trouble" role="alert">
      <strong><Words text={problem.message} /></strong> <code class="quiet">{problem.code}</code>
      {details.length > 0 && (
        <ul>
          {details.slice(0, 20).map((one) => (
            <li>
              {one.line !== undefined && <span class="mono">{String(one.line)}: </span>}
              <Words text={String(one.message ?? JSON.stringify(one))} />
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

/** Nothing is here yet: why, and what to do next. */
export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p>
        <strong>{title}</strong>
      </p>
      {children}
    </div>
  );
}

/** Said only when an answer takes longer than a blink. */
export function Asking({ what }: { what: string }) {
  const [late, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), 400);
    return () => clearTimeout(timer);
  }, []);
  return late ? <p class="quiet" role="status">Asking the server for {what} …</p> : null;
}

/** A page whose thing is not there: not yet, or not at all. */
export function Absent({ title, what, problem, all }: { title: string; what: string; problem: Problem | undefined; all: { href: string; text: string } }) {
  return (
    <main class="page" tabIndex={-1}>
      {!problem && <Asking what={what} />}
      {problem && (
        <>
          <h1>{title}</h1>
          <Trouble problem={problem} />
          <p><a href={all.href}>{all.text}</a></p>
        </>
      )}
    </main>
  );
}

/** A command to copy. */
export function Command({ children }: { children: string }) {
  return (
    <div class="command">
      <code>{children}</code>
      <Copy text={children} label="Copy the command" />
    </div>
  );
}

/** Whether it is in the clipboard now. Over plain HTTP, pages have no other way than an old command. */
async function copy(text: string, beside: HTMLElement): Promise<boolean> {
  if (navigator.clipboard)
    return navigator.clipboard.writeText(text).then(
      () => true,
      () => false,
    );
  const box = document.createElement("textarea");
  box.value = text;
  box.className = "hidden";
  beside.after(box); // beside it: outside of an open dialog nothing can be selected
  box.select();
  const done = document.execCommand("copy");
  box.remove();
  beside.focus();
  return done;
}

export function Copy({ text, label = "Copy" }: { text: string; label?: string }) {
  return (
    <button
      type="button"
      class="bare copy"
      title={label}
      aria-label={label}
      onClick={(event) => {
        event.stopPropagation();
        event.preventDefault();
        void copy(text, event.currentTarget).then((done) =>
          done ? tell("Copied.") : tell("The browser did not let the page copy. Select the text and copy it by hand.", { failed: true }),
        );
      }}
    >
      <svg viewBox="0 0 12 12" width="12" height="12" aria-hidden="true">
        <path d="M4 4V1.5h6.5V8H8M1.5 4H8v6.5H1.5z" />
      </svg>
    </button>
  );
}

interface News {
  text: string;
  failed: boolean;
  id: number;
  link?: { href: string; text: string };
}
const news = signal<News[]>([]);
let last = 0;

/** Say something for a few seconds. */
export function tell(text: string, options: { failed?: boolean; link?: { href: string; text: string } } = {}): void {
  const id = ++last;
  news.value = [...news.value.slice(-3), { text, failed: options.failed ?? false, id, link: options.link }];
  setTimeout(() => (news.value = news.value.filter((one) => one.id !== id)), options.failed ? 12_000 : 5_000);
}

export function tellProblem(error: unknown): void {
  tell(error instanceof Error ? error.message : String(error), { failed: true });
}

export function NewsList() {
  return (
    <div class="news" role="status" aria-live="polite">
      {news.value.map((one) => (
        <p key={one.id} class={one.failed ? "failed" : ""}>
          {one.text} {one.link && <a href={one.link.href}>{one.link.text}</a>}
        </p>
      ))}
    </div>
  );
}
