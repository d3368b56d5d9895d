// One step of an execution, failure first: what went wrong, where it stands in the playbook, each try.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { call, may, mayAnswer, Problem } from "../api/client";
import type { MomentDocument, AttemptDocument, EventDocument, ExecutionDocument, FailureDocument, RunLine, StepDocument, WaitDocument } from "../api/types";
import { useLoaded } from "../data";
import { showDialog } from "../parts/dialog";
import { Json } from "../parts/json";
import { Message, Timed, Trouble, Words } from "../parts/notes";
import { standing, isOver, Mark, Status } from "../parts/status";
import { count, exact, Took, took, When } from "../time";
import { href, path } from "../url";
import { rerunDialog } from "./actions";
import { AnswerForm } from "./form";
import { LoopPanel } from "./loop";

const CALLS_MAX = 400;
const ANSWERS = ["approval.received", "message.received"];
const AROUND = 3;
const CHILDREN_SHOWN = 50;
const WAITS_EVERY = 3000;
const WAITS_SHOWN = 3;
/** Of a longer error the beginning is shown first: what follows it is not pushed out of sight. */
const MESSAGE_LINES = 12;
const MESSAGE_MAX = 1000;

function beginningOf(text: string): string {
  return text.split("\n", MESSAGE_LINES).join("\n").slice(0, MESSAGE_MAX);
}

/** An error: what it says, of which kind it is, and where in the playbook its step stands. */
export function Failure({ error, line }: { error: FailureDocument; line?: string }) {
  const [whole, setWhole] = useState(false);
  const told = whole ? error.message : beginningOf(error.message);
  return (
    <div class="failure">
      <div class="message">
        <Message text={told} />
        {told.length < error.message.length && (
          <>
            {"… "}
            <button type="button" class="link" onClick={() => setWhole(true)}>{count(error.message.length - told.length)} more characters</button>
          </>
        )}
      </div>
      <div class="quiet">
        {error.kind}
        {error.code !== undefined && <> · code {String(error.code)}</>}
        {error.retryable !== undefined && <> · {error.retryable ? "worth a retry" : "a retry would not help"}</>}
        {line && (
          <>
            {" "}
            · <button type="button" class="link" onClick={() => document.getElementById("source")?.scrollIntoView({ block: "start" })}>{line}</button>
          </>
        )}
      </div>
      {error.details !== undefined && error.details !== null && (
        <details>
          <summary class="quiet">details</summary>
          <Json value={error.details} label="details of the error" />
        </details>
      )}
    </div>
  );
}

export function Said({ text }: { text: string }) {
  return <p><Words text={text} /></p>;
}

/** Where a step begins in the text of its playbook; -1 if it cannot be found. */
export function lineOf(content: string, step: string): number {
  const escaped = step.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  return content.split("\n").findIndex((line) => new RegExp(`^\\s*(-\\s+)?step:\\s*["']?${escaped}["']?\\s*(#.*)?$`).test(line));
}

/** The lines of a step, without empty ones at its end. */
function linesOf(lines: string[], first: number): [first: number, last: number] {
  const indent = lines[first]!.search(/\S/);
  let last = first + 1;
  while (last < lines.length && (!lines[last]!.trim() || lines[last]!.search(/\S/) > indent)) last++;
  while (last > first && !lines[last - 1]!.trim()) last--;
  return [first, last];
}

/**
 * Where a step failed in the text of its playbook: the line of its code that the error names, if it has one code and ran it
 * itself; else where the step begins.
 */
export function failedLine(content: string, step: string, error: FailureDocument | null | undefined): number {
  const begins = lineOf(content, step);
  const named = /\(line (\d+)\)$/.exec(error?.message ?? "");
  const details = (error?.details ?? {}) as Record<string, unknown>;
  if (begins < 0 || !named || error?.kind !== "exception" || "execution_id" in details) return begins;
  const lines = content.split("\n");
  const [first, last] = linesOf(lines, begins);
  const codes = lines.flatMap((line, number) => (number >= first && number < last && /^\s*(-\s+)?code:\s*[|>][+-]?\s*(#.*)?$/.test(line) ? [number] : []));
  const failed = codes[0]! + Number(named[1]);
  return codes.length === 1 && failed < last ? failed : begins;
}

function Source({ content, step, playbook, version, error }: { content: string; step: string; playbook: string; version: number | null; error: FailureDocument | null | undefined }) {
  const [whole, setWhole] = useState(false);
  const lines = content.split("\n");
  if (lineOf(content, step) < 0) return null;
  const [first, last] = linesOf(lines, lineOf(content, step));
  const here = failedLine(content, step, error);
  const end = whole ? last : Math.min(last, Math.max(first + 2 * AROUND + 6, here + AROUND + 1));
  return (
    <section id="source">
      <h3>
        <a href={href(`${path("playbooks", playbook)}?version=${version ?? ""}&step=${encodeURIComponent(step)}`)}>
          {playbook}
          {version !== null && ` v${version}`}, line {here + 1}
        </a>
      </h3>
      <pre class={error ? "source" : "source plain-mark"} tabIndex={0} role="group" aria-label={`Text of step ${step}`}>
        {lines.slice(first, end).map((line, number) => (
          <span class={first + number === here ? "here" : ""}>
            <span class="line-number">{String(first + number + 1).padStart(4)} </span>
            {line || " "}
          </span>
        ))}
      </pre>
      {end < last && (
        <button type="button" class="link" onClick={() => setWhole(true)}>
          {last - end} more {last - end === 1 ? "line" : "lines"}
        </button>
      )}
    </section>
  );
}

interface Called {
  actionId: string;
  task: string;
  kind: string;
  seq: number;
  attempts: number;
  status: string;
}

/** The calls of a step, oldest first, from the events that began and ended them. */
function callsOf(events: EventDocument[]): Called[] {
  const calls = new Map<string, Called>();
  for (const event of events) {
    const payload = event.payload as Record<string, any>;
    const key = event.action_id ?? String(payload.task);
    const known = calls.get(key);
    if (event.name === "task.started") {
      if (known) Object.assign(known, { attempts: known.attempts + 1, status: "running" });
      else calls.set(key, { actionId: key, task: payload.task, kind: payload.kind ?? "", seq: event.seq, attempts: 1, status: "running" });
    } else if (known) known.status = event.status === "error" ? "failed" : "done";
  }
  return [...calls.values()];
}

export function StepPanel({ execution, step, runs, at, content, callsOthers, onSelect }: { execution: MomentDocument; step: string; runs: RunLine[]; at: number | null; content: string | undefined; callsOthers: boolean; onSelect: (step: string) => void }) {
  const found = execution.steps.find((one) => one.step === step);
  const run = runs.findLast((one) => one.step === step);
  const isLoop = Boolean(found?.loop ?? run?.loop);
  const key = `${execution.execution_id} ${step} ${isLoop ? found?.runs : found?.attempts} ${found?.status}`;
  const began = useLoaded(`${key} ${isLoop}`, () =>
    isLoop
      ? Promise.resolve(null)
      : call("GET /api/executions/{execution_id}/events", { path: { execution_id: execution.execution_id }, query: { step, type: ["task.started", "task.done", ...ANSWERS], limit: CALLS_MAX } }),
  );
  const isOpen = at === null && found?.status === "running" && !isOver(execution.status);
  // Why it ran is read from the whole log, once; what it waits for from where the execution stands.
  const why = useLoaded(`why ${key} ${at}`, () => call("GET /api/executions/{execution_id}/why", { path: { execution_id: execution.execution_id }, query: { step, seq: at } }));
  const waits = useLoaded(`waits ${key} ${isOpen}`, () => (isOpen ? call("GET /api/executions/{execution_id}/why", { path: { execution_id: execution.execution_id } }) : Promise.resolve(null)), isOpen ? WAITS_EVERY : 0);
  const happened = useMemo(() => (began.value?.events ?? []).filter((event) => at === null || event.seq <= at), [began.value, at]);
  const calls = useMemo(() => callsOf(happened.filter((event) => !ANSWERS.includes(event.name))), [happened]);
  const told = why.value?.step;
  const source = content && <Source content={content} step={step} playbook={execution.path} version={execution.version} error={found?.status === "failed" ? found.error : null} />;
  return (
    <>
      <div class="row">
        <h2>{step}</h2>
        {found ? <Status status={found.waiting ? "waiting" : found.status} /> : <span class="quiet">not reached</span>}
        {found && (
          <span class="quiet">
            {found.runs > 1 && <>{found.runs} runs · </>}
            {found.attempts > 1 && !isLoop && <>{found.attempts} tries · </>}
            <Took from={found.started_at} to={found.ended_at ?? (at === null ? null : execution.at)} />
          </span>
        )}
        <span class="space" />
        {may("operate") && found && <button type="button" onClick={() => rerunDialog(execution, step)}>Rerun from here</button>}
      </div>
      {found?.error && <Failure error={found.error} line={content && lineOf(content, step) >= 0 ? `line ${failedLine(content, step, found.error) + 1} of the playbook` : undefined} />}
      {found?.waiting ? <Waiting execution={execution} step={found} asks={at === null} /> : isOpen && waits.isOwn && <WaitsFor waits={waits.value!.waits_for.filter((one) => one.step === step)} />}
      {told && <Said text={told.text} />}
      {told?.conditions && told.conditions.length > 0 && (
        <ul class="plain">
          {told.conditions.map((one) => (
            <li class="wraps">
              <button type="button" class="link" onClick={() => onSelect(one.source)}>{one.source}</button>
              <span class="quiet">→ {one.target}</span>
              <code class="cut" title={one.guard ?? ""}>{one.guard ?? "always"}</code>
              <span class="space" />
              <span class={one.verdict === "fired" || one.verdict === "allow" ? "done" : "quiet"}>{one.verdict.replaceAll("_", " ")}</span>
            </li>
          ))}
        </ul>
      )}
      <Answers events={happened.filter((event) => ANSWERS.includes(event.name))} />
      {found?.loop && !run && (
        <h3>
          {count(found.loop.total)} iterations: {count(found.loop.done)} done{found.loop.failed > 0 && <>, <span class="failed">{count(found.loop.failed)} failed</span></>}
          <span class="quiet"> · reading its log of {count(execution.last_seq)} events, once</span>
        </h3>
      )}
      {run?.loop && <LoopPanel execution={execution} run={run} moment={at === null ? null : found?.loop} />}
      {isLoop && callsOthers && <p><a href={href(`/executions?q=${encodeURIComponent(`parent:${execution.execution_id}`)}`)}>the executions that it called</a></p>}
      {run && run.children.length > 0 && (
        <section>
          <h3>{run.children.length === 1 ? "playbook that it called" : `${count(run.children.length)} playbooks that it called`}</h3>
          <Children ids={run.children} />
        </section>
      )}
      {calls.length > 0 && <Calls key={step} execution={execution} calls={calls} told={found?.error?.message ?? ""} />}
      {found?.status === "failed" && source}
      {found && found.result !== null && found.result !== undefined && (
        <section>
          <h3>result</h3>
          <Json value={found.result} label="result" />
        </section>
      )}
      <Expression execution={execution} step={step} />
      {found?.status !== "failed" && source}
      {why.error && why.error.status !== 404 && <Trouble problem={why.error} />}
    </>
  );
}

/** The executions that a step started: the last ones, with how they are. */
function Children({ ids }: { ids: string[] }) {
  const shown = ids.slice(-CHILDREN_SHOWN);
  const found = useLoaded(shown.join(), () => call("GET /api/executions", { query: { q: `id:${shown.join()}`, limit: CHILDREN_SHOWN } }), 0, ["executions"]);
  return (
    <>
      {found.error && <Trouble problem={found.error} />}
      <ul class="plain">
        {found.value?.executions.map((one) => (
          <li key={one.execution_id}>
            <Status status={standing(one)} />
            <a href={href(path("executions", one.execution_id))}>{one.path} <span class="id">…{one.execution_id.slice(-6)}</span></a>
            <span class="space" />
            <Took from={one.start_time} to={one.end_time} seconds={one.duration_seconds} />
          </li>
        ))}
      </ul>
      {ids.length > CHILDREN_SHOWN && <p class="quiet">the last {CHILDREN_SHOWN}</p>}
    </>
  );
}

/** What people and the world said to the step, and who. */
function Answers({ events }: { events: EventDocument[] }) {
  if (!events.length) return null;
  return (
    <section>
      <h3>{events.length === 1 ? "answer" : `${count(events.length)} answers`}</h3>
      {events.slice(-20).map((event) => (
        <div key={event.seq}>
          <p>
            {event.actor?.text ?? "somebody"} <span class="quiet">{event.payload.name as string}</span> <When at={event.timestamp} />
          </p>
          <Json value={event.payload.data} label="answer" />
        </div>
      ))}
    </section>
  );
}

/** The calls of a step; one of them with its tries side by side, what it was given and what it printed. */
function Calls({ execution, calls, told }: { execution: ExecutionDocument; calls: Called[]; told: string }) {
  const [chosen, setChosen] = useState<string>();
  const [tried, setTried] = useState<number>();
  const one = calls.find((found) => found.actionId === chosen) ?? calls.findLast((found) => found.status === "failed") ?? calls.at(-1)!;
  const shown = useLoaded(`${execution.execution_id} ${one.actionId} ${one.attempts} ${one.status}`, () =>
    call("GET /api/executions/{execution_id}/calls/{action_id}", { path: { execution_id: execution.execution_id, action_id: one.actionId }, query: { after: one.seq - 1 } }),
  );
  const attempts = shown.value?.attempts ?? [];
  const attempt = attempts.find((found) => found.attempt === tried) ?? attempts.at(-1);
  return (
    <section>
      <h3>{calls.length === 1 ? "call" : `${count(calls.length)} calls`}</h3>
      {calls.length > 1 && (
        <div class="attempts">
          {calls.slice(-60).map((found) => (
            <button type="button" aria-pressed={found === one} onClick={() => { setChosen(found.actionId); setTried(undefined); }}>
              <Mark status={found.status} /> {found.task}
            </button>
          ))}
        </div>
      )}
      {shown.error && <Trouble problem={shown.error} />}
      <p>
        {one.task} <span class="quiet">{one.kind}</span>
      </p>
      {attempts.length > 1 && (
        <div class="attempts tries">
          {attempts.map((found) => (
            <button type="button" aria-pressed={found === attempt} onClick={() => setTried(found.attempt)}>
              <Mark status={statusOf(found.status)} /> try {found.attempt} <span class="num quiet">{took(found.duration_seconds)}</span>
            </button>
          ))}
        </div>
      )}
      {attempt && (
        <dl class="facts">
          <dt>started</dt>
          <dd>{attempt.started_at && <time title={attempt.started_at}>{exact(new Date(attempt.started_at), false).slice(11)}</time>}</dd>
          <dt>took</dt>
          <dd>{attempt.duration_seconds !== null ? took(attempt.duration_seconds) : attempt.status === "running" ? <Took from={attempt.started_at} /> : "–"}</dd>
          {attempt.directive && (shown.value!.rules.length > 0 || attempt.retry_delay !== null) && (
            <>
              <dt>rule</dt>
              <dd>
                <RuleSaid attempt={attempt} rules={shown.value?.rules ?? []} />
              </dd>
            </>
          )}
        </dl>
      )}
      {attempt?.error && attempt.error.message !== told && <div class="failure"><div class="message">{attempt.error.message}</div></div>}
      {attempt?.output && (
        <>
          <h3>output</h3>
          <pre class="output" tabIndex={0}>{attempt.output}</pre>
        </>
      )}
      {shown.value && Object.keys(shown.value.rendered).length + Object.keys(shown.value.unknown).length > 0 && (
        <>
          <h3>config, rendered</h3>
          <Json value={{ ...shown.value.rendered, ...Object.fromEntries(Object.entries(shown.value.unknown).map(([key, why]) => [key, `(${why})`])) }} label="rendered config" />
        </>
      )}
      {shown.value && shown.value.result !== null && shown.value.result !== undefined && calls.length > 1 && (
        <>
          <h3>result of this call</h3>
          <Json value={shown.value.result} label="result of this call" />
        </>
      )}
    </section>
  );
}

/** What the policy made of a try, and by which of its rules. */
function RuleSaid({ attempt, rules }: { attempt: AttemptDocument; rules: unknown[] }) {
  const rule = typeof attempt.rule === "number" ? (rules[attempt.rule] as { when?: unknown; actions?: { do: string; attempts?: number }[] } | undefined) : undefined;
  const spent = attempt.directive === "fail" ? rule?.actions?.find((one) => one.do === "retry") : undefined;
  return (
    <>
      {attempt.directive}
      {attempt.retry_delay !== null && <span class="quiet"> after {took(attempt.retry_delay)}</span>}
      {rule ? (
        <>
          <span class="quiet">: rule {attempt.rule! + 1} of {rules.length} matched, </span>
          <code>{rule.when === null || rule.when === undefined ? "else" : String(rule.when)}</code>
          {spent && <span class="quiet">; its {spent.attempts} tries are used up</span>}
        </>
      ) : (
        rules.length > 0 && attempt.directive === "fail" && <span class="quiet">: no rule matched</span>
      )}
    </>
  );
}

function statusOf(told: string): string {
  return told === "ok" ? "done" : told === "error" ? "failed" : "running";
}

/** `asks`: it waits now, and not only at the event under the slider. */
function Waiting({ execution, step, asks }: { execution: ExecutionDocument; step: StepDocument; asks: boolean }) {
  const waiting = step.waiting!;
  const form = waiting.form;
  return (
    <div class="row">
      <span>
        {form.length > 0 ? <>asks “{form[0]!.label || form[0]!.name}”</> : <>waits for {waiting.events.join(" or ")}</>}, <When at={waiting.since} />
        {waiting.until && (
          <>
            , and waits until <When at={waiting.until} />
          </>
        )}
      </span>
      {waiting.role && <span class="quiet">for the role {waiting.role}</span>}
      {asks && form.length > 0 && mayAnswer(waiting.role) && (
        <button
          type="button"
          class="primary"
          onClick={() => showDialog(step.step, (close) => <AnswerForm executionId={execution.execution_id} step={step.step} questions={form} close={close} />)}
        >
          Answer
        </button>
      )}
    </div>
  );
}

/** What a step that nobody is asked for waits for: a worker, the time of its next try, a playbook that it called. */
function WaitsFor({ waits }: { waits: WaitDocument[] }) {
  return (
    <>
      {waits.slice(0, WAITS_SHOWN).map((one) => (
        <p class="waits">
          <Timed text={one.text} /> {one.until && <span class="quiet">(<When at={one.until} />)</span>}
        </p>
      ))}
      {waits.length > WAITS_SHOWN && <p class="quiet">and {count(waits.length - WAITS_SHOWN)} more</p>}
    </>
  );
}

type Answer<T> = { value: T } | { error: Problem };

/** What the last question was answered with: the answer to one before may come later. */
export function useAnswer<T = unknown>(): [answer: Answer<T> | undefined, ask: (asked: Promise<T>) => void, busy: boolean] {
  const [answer, setAnswer] = useState<Answer<T>>();
  const [open, setOpen] = useState<Promise<T>>();
  const last = useRef<Promise<T>>(undefined);
  const ask = (asked: Promise<T>) => {
    setOpen((last.current = asked));
    const tell = (told: Answer<T>) => {
      if (last.current !== asked) return;
      setAnswer(told);
      setOpen(undefined);
    };
    asked.then((value) => tell({ value }), (error: Problem) => tell({ error }));
  };
  return [answer, ask, open !== undefined];
}

export function Answered({ answer }: { answer: Answer<unknown> }) {
  const box = useRef<HTMLDivElement>(null);
  // The question is often the last thing that is seen of the pane.
  useEffect(() => box.current!.scrollIntoView({ block: "nearest" }), [answer]);
  return <div ref={box}>{"error" in answer ? <Trouble problem={answer.error} /> : <Json value={answer.value} />}</div>;
}

/** An expression as a template, which it may be already. */
export function templateOf(data: FormData): string {
  const text = String(data.get("expression")).trim();
  return text.includes("{{") ? text : `{{ ${text} }}`;
}

function Expression({ execution, step }: { execution: ExecutionDocument; step: string }) {
  const [answer, ask] = useAnswer();
  const run = (event: SubmitEvent) => {
    event.preventDefault();
    const template = templateOf(new FormData(event.currentTarget as HTMLFormElement));
    ask(call("POST /api/context/render", { body: { execution_id: execution.execution_id, step, template } }).then((told) => told.rendered));
  };
  return (
    <section>
      <h3>expression, as this step sees it</h3>
      <form class="row" onSubmit={run}>
        <input name="expression" class="mono" style={{ flex: "1" }} required placeholder="ctx.total > 0" aria-label="Expression" spellcheck={false} autocomplete="off" />
        <button type="submit">Evaluate</button>
      </form>
      {answer && <Answered answer={answer} />}
    </section>
  );
}
