// The query of a list, with completion of its words.
import { useEffect, useRef, useState } from "preact/hooks";

const KEYS: [word: string, says: string][] = [
  ["status:", "failed, running, waiting, done, paused, cancelled, active, ended"],
  ["path:", "a playbook; * stands for anything"],
  ["waits:", "form, event, timer"],
  ["took:", ">5m, <2s"],
  ["since:", "1h, 2d, 2026-01-31"],
  ["until:", "1h, 2026-01-31"],
  ["step:", "where it failed or stands"],
  ["error:", "a word of its error"],
  ["version:", "of the playbook"],
  ["parent:", "the execution that called it; none, *"],
  ["id:", "how its id begins or ends"],
  ["label.", "label.team=x"],
];
const VALUES: Record<string, string[]> = {
  "status:": ["failed", "running", "waiting", "done", "paused", "cancelled", "pending", "active", "ended"],
  "waits:": ["form", "event", "timer"],
  "since:": ["1h", "1d", "2d", "7d"],
  "took:": [">1s", ">1m", ">5m", ">1h"],
};

export function hintsFor(word: string, paths: string[]): [text: string, says: string][] {
  const bare = word.replace(/^-/, "");
  const minus = word.startsWith("-") ? "-" : "";
  const key = Object.keys({ ...VALUES, "path:": 0 }).find((one) => bare.startsWith(one));
  if (key) {
    const typed = bare.slice(key.length);
    const values = key === "path:" ? paths : VALUES[key]!;
    return values.filter((one) => one.includes(typed) && one !== typed).slice(0, 8).map((one) => [minus + key + one, ""]);
  }
  return KEYS.filter(([one]) => one.startsWith(bare) && one !== bare).map(([one, says]) => [minus + one, says]);
}

export function QueryBar({ value, onChange, paths }: { value: string; onChange: (text: string) => void; paths: string[] }) {
  const [text, setText] = useState(value);
  const [at, setAt] = useState(-1);
  const [open, setOpen] = useState(false);
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => setText(value), [value]);
  const last = /\S*$/.exec(text)![0];
  const hints = open ? hintsFor(last, paths) : [];
  const take = (hint: string) => {
    const next = text.slice(0, text.length - last.length) + hint;
    const isKey = hint.endsWith(":") || hint.endsWith(".");
    setText(isKey ? next : `${next} `);
    setOpen(isKey);
    setAt(-1);
    input.current?.focus();
  };
  const submit = (next: string) => {
    setOpen(false);
    onChange(next.trim());
  };
  return (
    <div class="bar">
      <input
        ref={input}
        id="query"
        role="combobox"
        aria-label="Query"
        aria-expanded={hints.length > 0}
        aria-controls="query-hints"
        aria-autocomplete="list"
        aria-activedescendant={at >= 0 ? `hint-${at}` : undefined}
        placeholder="status:failed path:shop/* took:>5m since:2d text"
        spellcheck={false}
        autocomplete="off"
        value={text}
        onInput={(event) => {
          setText(event.currentTarget.value);
          setOpen(/\S$/.test(event.currentTarget.value));
          setAt(-1);
        }}
        onBlur={() => setTimeout(() => setOpen(false), 150)}
        onKeyDown={(event) => {
          if (event.key === "ArrowDown" && !open) setOpen(true);
          else if (event.key === "ArrowDown" && hints.length) setAt(Math.min(at + 1, hints.length - 1));
          else if (event.key === "ArrowUp" && hints.length) setAt(Math.max(at - 1, -1));
          else if (event.key === "Tab" && hints.length && open) take(hints[Math.max(at, 0)]![0]);
          else if (event.key === "Enter") {
            if (at >= 0) take(hints[at]![0]);
            else submit(text);
          } else if (event.key === "Escape") {
            if (open) setOpen(false);
            else event.currentTarget.blur();
          } else return;
          event.preventDefault();
        }}
      />
      <ul class="hints" id="query-hints" role="listbox" aria-label="Completions" hidden={!hints.length}>
        {hints.map(([hint, says], number) => (
          <li
            id={`hint-${number}`}
            role="option"
            aria-selected={number === at}
            onMouseDown={(event) => {
              event.preventDefault();
              take(hint);
            }}
          >
            <code>{hint}</code>
            <span class="quiet">{says}</span>
          </li>
        ))}
      </ul>
    </div>
  );
}
