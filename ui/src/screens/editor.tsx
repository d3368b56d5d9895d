// The editor: a text with the problems that the real compiler finds, and its registration.
// CodeMirror is large, so it comes in a chunk of its own, and only here.
import { useEffect, useRef, useState } from "preact/hooks";
import { call, may, Problem } from "../api/client";
import type { Problem as Found } from "../api/types";
import type { Handle } from "../editor/codemirror";
import { Mark } from "../parts/status";
import { tell, Trouble } from "../parts/notes";
import { asked, go, path } from "../url";

const PAUSE = 300;
const NEW = `apiVersion: noetl.io/v2
kind: Playbook
metadata:
  name: hello
  path: examples/hello

workload:
  whom: world

workflow:
  - step: start
    tool:
      kind: noop
      result: "hello {{ workload.whom }}"
    next: end

  - step: end
    tool: { kind: noop, result: "{{ start }}" }
`;

export function Editor() {
  const wanted = asked("path");
  const draft = `noetl.draft.${wanted}`;
  const host = useRef<HTMLDivElement>(null);
  const handle = useRef<Handle | null>(null);
  const [problems, setProblems] = useState<Found[] | null>(null);
  const [error, setError] = useState<Problem>();
  const [isDraft, setIsDraft] = useState(false);
  const original = useRef("");

  useEffect(() => {
    let stopped = false;
    let timer = 0;
    let asking = 0;
    const check = async () => {
      const mine = ++asking;
      try {
        const told = await call("POST /api/catalog/validate", { body: { content: handle.current!.text() } });
        if (stopped || mine !== asking) return;
        setProblems([...told.problems]);
        setError(undefined);
        handle.current!.show(told.problems);
      } catch (problem) {
        if (!stopped) setError(problem as Problem);
      }
    };
    const changed = (text: string) => {
      clearTimeout(timer);
      timer = window.setTimeout(check, PAUSE);
      setIsDraft(text !== original.current);
      if (text === original.current) localStorage.removeItem(draft);
      else localStorage.setItem(draft, text);
    };
    const begin = async () => {
      try {
        original.current = wanted ? (await call("GET /api/catalog/{path}", { path: { path: wanted } })).content : NEW;
        const kept = localStorage.getItem(draft);
        const { edit } = await import("../editor/codemirror");
        if (stopped) return;
        handle.current = edit(host.current!, kept ?? original.current, changed);
        setIsDraft(kept !== null && kept !== original.current);
        void check();
      } catch (problem) {
        setError(problem instanceof Problem ? problem : new Problem(0, "broken", "The editor could not be loaded. The server may have been updated: reload the page."));
      }
    };
    void begin();
    return () => {
      stopped = true;
      clearTimeout(timer);
      handle.current?.close();
      handle.current = null;
    };
  }, [wanted]);

  const register = async () => {
    try {
      const told = await call("POST /api/catalog/register", { body: { content: handle.current!.text() } });
      localStorage.removeItem(draft);
      tell(`${told.path} version ${told.version}.`);
      go(path("playbooks", told.path));
    } catch (problem) {
      setError(problem as Problem);
    }
  };
  const bad = problems?.some((one) => one.severity === "error") ?? true;
  return (
    <main class="execution" tabIndex={-1}>
      <div class="title">
        <h1>{wanted || "New playbook"}</h1>
        {isDraft && (
          <>
            <span class="paused">draft, kept in this browser</span>
            <button type="button" class="link" onClick={() => handle.current?.replace(original.current)}>discard</button>
          </>
        )}
        <span class="space" />
        {may("author") && <button type="button" class="primary" disabled={bad} onClick={register}>Register</button>}
      </div>
      <div class="split">
        <div class="editor-host" ref={host} />
        <section aria-label="Problems">
          <h2 aria-live="polite">{problems === null ? "Checking …" : problems.length ? `${problems.length} ${problems.length === 1 ? "problem" : "problems"}` : "No problems"}</h2>
          {error && <Trouble problem={error} />}
          <ul class="plain">
            {problems?.map((one) => (
              <li>
                <Mark status={one.severity === "error" ? "failed" : "waiting"} />
                <button type="button" class="link" onClick={() => handle.current?.goTo(one.line ?? 1, one.column ?? 1)}>
                  {one.line}:{one.column}
                </button>
                <span>
                  {one.message} <code class="quiet">{one.code}</code>
                </span>
              </li>
            ))}
          </ul>
        </section>
      </div>
    </main>
  );
}
