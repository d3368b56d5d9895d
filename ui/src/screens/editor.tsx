// The editor: a text, its graph, the problems that the real compiler finds; expressions and what-if
// over recorded executions, tests, and registration. CodeMirror is large, so it comes in a chunk of
// its own, and only here.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { call, fetchText, may, Problem } from "../api/client";
import { writeJson } from "../api/exact";
import type { ExecutionSummary, Problem as Found, RemarkDocument, TestsDocument, WhatIfDocument } from "../api/types";
import { mayPass, useLoaded } from "../data";
import type { Handle } from "../editor/codemirror";
import { Answered, lineOf, Said, templateOf, useAnswer } from "../execution/step";
import { NO_ARCS, NO_MOODS, type Drawing } from "../graph/canvas";
import { GraphView } from "../graph/view";
import { drawn } from "../graph/layout";
import { Absent, Empty, ExecutionId, tell, Trouble, Words } from "../parts/notes";
import { Mark, Status, wordOf } from "../parts/status";
import { Tabs } from "../parts/tabs";
import { moment } from "../time";
import { asked, ask, go, href, path } from "../url";

const PAUSE = 300;
const AGAIN = 2000;
const LAST = 20;
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
const PARTS = ["problems", "expression", "what if", "tests"] as const;

export function Editor() {
  const wanted = asked("path");
  return <Editing key={wanted} wanted={wanted} />;
}

function Editing({ wanted }: { wanted: string }) {
  const draft = `noetl.draft.${wanted}`;
  const host = useRef<HTMLDivElement>(null);
  const handle = useRef<Handle | null>(null);
  const [problems, setProblems] = useState<Found[] | null>(null);
  const [remarks, setRemarks] = useState<RemarkDocument[]>([]);
  const [drawing, setDrawing] = useState<Drawing | null>(null);
  const [error, setError] = useState<Problem>();
  const [absent, setAbsent] = useState<Problem>();
  const [isDraft, setIsDraft] = useState(false);
  const [step, setStep] = useState("");
  const original = useRef("");

  useEffect(() => {
    let stopped = false;
    let timer = 0;
    let asking = 0;
    const check = async () => {
      const mine = ++asking;
      try {
        const told = await call("POST /api/language", { body: { content: handle.current!.text(), want: "problems" } });
        if (stopped || mine !== asking) return;
        setProblems(told.problems ?? []);
        setError(undefined);
        if (told.layout) setDrawing(drawn(told.layout));
        handle.current!.show(told.problems ?? []);
      } catch (problem) {
        if (stopped || mine !== asking) return;
        // What was found in another text says nothing about this one.
        setProblems(null);
        setError(problem as Problem);
        if (mayPass(problem as Problem)) timer = window.setTimeout(check, AGAIN);
      }
    };
    const changed = (text: string) => {
      clearTimeout(timer);
      timer = window.setTimeout(check, PAUSE);
      setIsDraft(text !== original.current);
      if (text === original.current) localStorage.removeItem(draft);
      else localStorage.setItem(draft, text);
    };
    const at = (want: "completion" | "hover", content: string, line: number, column: number) => call("POST /api/language", { body: { content, want, line, column } });
    const know = {
      offers: (text: string, line: number, column: number) => at("completion", text, line, column).then((told) => told.completions ?? [], () => []),
      about: (text: string, line: number, column: number) => at("hover", text, line, column).then((told) => told.hover ?? null, () => null),
    };
    const begin = async () => {
      try {
        original.current = wanted ? (await call("GET /api/catalog/{path}", { path: { path: wanted } })).content : NEW;
        const kept = localStorage.getItem(draft);
        const { edit } = await import("../editor/codemirror");
        if (stopped) return;
        handle.current = edit(host.current!, kept ?? original.current, changed, know);
        setIsDraft(kept !== null && kept !== original.current);
        void check();
      } catch (problem) {
        if (problem instanceof Problem) setAbsent(problem);
        else setError(new Problem(0, "broken", "The editor could not be loaded. The server may have been updated: reload the page."));
      }
    };
    void begin();
    return () => {
      stopped = true;
      clearTimeout(timer);
      handle.current?.close();
      handle.current = null;
    };
  }, []);

  const attempt = async (run: (text: string) => Promise<void>) => {
    setError(undefined);
    try {
      await run(handle.current!.text());
    } catch (problem) {
      setError(problem as Problem);
    }
  };
  const rewrite = (want: "format" | "migration") =>
    attempt(async (content) => {
      const told = await call("POST /api/language", { body: { content, want } });
      setRemarks(told.remarks ?? []);
      if (told.text !== null && told.text !== undefined && told.text !== content) handle.current!.replace(told.text);
      else tell(want === "format" ? "It is formatted already." : "Nothing is left to migrate.");
    });
  const register = () =>
    attempt(async (content) => {
      const told = await call("POST /api/catalog/register", { body: { content } });
      localStorage.removeItem(draft);
      tell(`${told.path} version ${told.version}.`);
      go(path("playbooks", told.path));
    });
  const select = (name: string) => {
    setStep(name);
    const line = name ? lineOf(handle.current!.text(), name) : -1;
    if (line >= 0) handle.current!.goTo(line + 1, 1);
  };
  if (absent) return <Absent title={wanted} what={wanted} problem={absent} all={{ href: href("/playbooks"), text: "All playbooks" }} />;
  const bad = problems?.some((one) => one.severity === "error") ?? true;
  const part = PARTS.find((one) => one === asked("part")) ?? "problems";
  const title = problems === null ? "problems" : `problems ${problems.length}`;
  return (
    <main class="execution" tabIndex={-1}>
      <div class="title">
        <h1>{wanted ? <a href={href(path("playbooks", wanted))}>{wanted}</a> : "New playbook"}</h1>
        {isDraft && (
          <>
            <span class="paused">draft, kept in this browser</span>
            <button type="button" class="link" onClick={() => { handle.current?.replace(original.current); setRemarks([]); }}>discard</button>
          </>
        )}
        <span class="space" />
        <span class="leaves quiet"><kbd>Esc</kbd> <kbd>Tab</kbd> leaves the text</span>
        <button type="button" onClick={() => rewrite("format")}>Format</button>
        <button type="button" onClick={() => rewrite("migration")}>Migrate</button>
        {may("author") && <button type="button" class="primary" disabled={bad} onClick={register}>Register</button>}
      </div>
      <div class="split">
        <div class="editor-host" ref={host} />
        <div class="beside">
          <section class="graph" aria-label="Graph">
            {drawing && <GraphView drawing={drawing} moods={NO_MOODS} taken={NO_ARCS} selected={step} onSelect={select} />}
            {problems !== null && bad && drawing && <p class="stale-note quiet">as it was before the errors</p>}
          </section>
          <Tabs label="Tools" names={PARTS} chosen={part} onChoose={(one) => ask({ part: one })} titles={{ problems: title }} />
          <div class="panel-body" id="tools-panel" role="tabpanel" aria-labelledby={`tab-${part}`} tabIndex={0}>
            {error && <Trouble problem={error} />}
            {part === "problems" && (
              <>
                <p aria-live="polite" class={problems?.length ? "hidden" : "quiet"}>{problems === null ? "Checking …" : problems.length ? `${problems.length} ${problems.length === 1 ? "problem" : "problems"}` : "No problems"}</p>
                <ul class="plain">
                  {problems?.map((one) => (
                    <li class="top">
                      <Mark status={one.severity === "error" ? "failed" : "warning"} />
                      <button type="button" class="link num" onClick={() => handle.current?.goTo(one.line ?? 1, one.column ?? 1)}>
                        {one.line}:{one.column}
                      </button>
                      <span>
                        <Words text={one.message} /> <code class="quiet">{one.code}</code>
                      </span>
                    </li>
                  ))}
                </ul>
                {remarks.length > 0 && (
                  <>
                    <h3>migrated, by the lines of the text before</h3>
                    <ul class="plain">
                      {remarks.map((one) => (
                        <li class="top">
                          <Mark status={one.changed ? "done" : "waiting"} />
                          <span class="num quiet">{one.line}</span> <span><Words text={one.message} />{!one.changed && <span class="quiet"> (left as it was)</span>}</span>
                        </li>
                      ))}
                    </ul>
                  </>
                )}
              </>
            )}
            {part === "expression" && <ExpressionPart name={wanted} />}
            {part === "what if" && <WhatIfPart name={wanted} text={() => handle.current!.text()} />}
            {part === "tests" && <TestsPart name={wanted} text={() => handle.current!.text()} />}
          </div>
        </div>
      </div>
    </main>
  );
}

/** Executions of the playbook to choose from, newest first. */
function useRuns(name: string): ExecutionSummary[] {
  const found = useLoaded(`runs ${name}`, () => (name ? call("GET /api/executions", { query: { path: name, limit: LAST } }) : Promise.resolve({ executions: [], next_cursor: null })));
  return found.value?.executions ?? [];
}

function RunChoice({ runs, name = "run" }: { runs: ExecutionSummary[]; name?: string }) {
  return (
    <label>
      Execution
      <select name={name}>
        {runs.map((one) => (
          <option value={one.execution_id}>
            …{one.execution_id.slice(-6)} {wordOf(one.status)}, {one.start_time ? moment(one.start_time) : ""}
          </option>
        ))}
      </select>
    </label>
  );
}

function NoRuns() {
  return (
    <Empty title="Nothing is recorded of this playbook.">
      <p>Register it and start it; what happened then can be asked here.</p>
    </Empty>
  );
}

function ExpressionPart({ name }: { name: string }) {
  const runs = useRuns(name);
  const [answer, ask] = useAnswer();
  if (!runs.length) return <NoRuns />;
  const run = (event: SubmitEvent) => {
    event.preventDefault();
    const data = new FormData(event.currentTarget as HTMLFormElement);
    const body = { want: "value" as const, expression: templateOf(data), execution_id: String(data.get("run")), step: String(data.get("step")).trim() || null };
    ask(call("POST /api/language", { body }).then((told) => told.value));
  };
  return (
    <form onSubmit={run}>
      <div class="row">
        <RunChoice runs={runs} />
        <label>
          <span>Step <span class="quiet">(optional)</span></span>
          <input name="step" autocomplete="off" spellcheck={false} />
        </label>
      </div>
      <div class="row">
        <input name="expression" class="mono grow" required aria-label="Expression" placeholder="workload.orders > 20" autocomplete="off" spellcheck={false} />
        <button type="submit">Evaluate</button>
      </div>
      {answer && <Answered answer={answer} />}
    </form>
  );
}

function WhatIfPart({ name, text }: { name: string; text: () => string }) {
  const [answer, ask, busy] = useAnswer<WhatIfDocument>();
  const found = answer && "value" in answer ? answer.value : undefined;
  const run = (event: SubmitEvent) => {
    event.preventDefault();
    const data = new FormData(event.currentTarget as HTMLFormElement);
    ask(call("POST /api/whatif", { body: { content: text(), query: String(data.get("query")).trim() || null, last: Number(data.get("last")) || LAST } }));
  };
  return (
    <form onSubmit={run}>
      <p class="quiet">Which recorded executions would have gone another way under this text? Their recorded outcomes stand in for all tools: nothing is called.</p>
      <div class="row">
        <input name="query" class="mono grow" aria-label="Which executions" defaultValue={name ? `path:${name}` : ""} placeholder="path:shop/orders status:failed" autocomplete="off" spellcheck={false} />
        <label>last <input name="last" type="number" min="1" max="100" defaultValue={String(LAST)} /></label>
        <button type="submit" disabled={busy}>{busy ? "…" : "Compare"}</button>
      </div>
      {answer && "error" in answer && <Trouble problem={answer.error} />}
      {found && (
        <>
          <p aria-live="polite">
            {found.executions.length ? `${found.same} the same, ${found.different} different, ${found.unknown} unknown.` : "No recorded execution matches."}
          </p>
          <ul class="plain">
            {found.executions.map((one) => (
              <li class="top">
                <Mark status={one.verdict === "same" ? "done" : one.verdict === "different" ? "changed" : "waiting"} />
                <ExecutionId id={one.execution_id} />
                <Said text={one.text} />
              </li>
            ))}
          </ul>
        </>
      )}
    </form>
  );
}

function TestsPart({ name, text }: { name: string; text: () => string }) {
  const runs = useRuns(name);
  const key = `noetl.tests.${name}`;
  const example = useMemo(() => `playbook: ${name.split("/").at(-1) || "hello"}.yaml\ntests:\n  - name: ends well\n    stand_ins: {}\n    expect: { status: COMPLETED }\n`, [name]);
  const [tests, setTests] = useState(localStorage.getItem(key) ?? example);
  const [answer, ask, busy] = useAnswer<TestsDocument | undefined>();
  const found = answer && "value" in answer ? answer.value : undefined;
  const write = (next: string) => {
    setTests(next);
    localStorage.setItem(key, next);
  };
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        ask(call("POST /api/tests", { body: { content: text(), tests } }));
      }}
    >
      <textarea class="grow" rows={10} aria-label="Tests" spellcheck={false} value={tests} onInput={(event) => write(event.currentTarget.value)} />
      <div class="row">
        <button type="submit" disabled={busy}>{busy ? "…" : "Run the tests"}</button>
        {runs.length > 0 && (
          <>
            <span class="space" />
            <RunChoice runs={runs} name="from" />
            <button
              type="button"
              onClick={(event) => {
                const id = String(new FormData(event.currentTarget.form!).get("from"));
                ask(fetchText("/api/executions/{execution_id}/test", { execution_id: id }).then((made) => void write(made)));
              }}
            >
              Make a test of it
            </button>
          </>
        )}
      </div>
      <p class="quiet">Stand-ins answer for every tool, and waiting takes no time. Kept in this browser; put it beside the playbook as a <code>.test.yaml</code> file for <code>noetl test</code>.</p>
      {answer && "error" in answer && <Trouble problem={answer.error} />}
      {found && found.problems.length > 0 && (
        <ul class="plain">
          {found.problems.map((one) => (
            <li class="top">
              <Mark status="failed" /> <span class="num quiet">{one.line}:{one.column}</span> <span>{one.message}</span>
            </li>
          ))}
        </ul>
      )}
      {found && !found.problems.length && <p aria-live="polite">{found.passed} passed, {found.failed} failed.</p>}
      {found?.tests.map((one) => (
        <section>
          <p class="row">
            <Status status={one.passed ? "done" : "failed"} /> <strong>{one.name}</strong> <span class="quiet">{one.steps.join(" → ")}</span>
          </p>
          {one.complaints.map((said) => <pre>{said}</pre>)}
          {one.differences.map((said) => (
            <dl class="facts">
              <dt>{said.what}, expected</dt>
              <dd class="mono">{writeJson(said.expected)}</dd>
              <dt>found</dt>
              <dd class="mono">{writeJson(said.found)}</dd>
            </dl>
          ))}
        </section>
      ))}
    </form>
  );
}
