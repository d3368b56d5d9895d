// One step of an execution, failure first: what went wrong, where it stands in the playbook, each try.
import { useEffect, useMemo, useState } from "preact/hooks";
import { call, may, Problem } from "../api/client";
import type { EventDocument, ExecutionDocument, FailureDocument, StepDocument } from "../api/types";
import { useLoaded } from "../data";
import { showDialog } from "../parts/dialog";
import { Json } from "../parts/json";
import { Trouble } from "../parts/notes";
import { Mark, Status } from "../parts/status";
import { count, exact, Took, took, When } from "../time";
import { href, path } from "../url";
import { rerunDialog } from "./actions";
import { AnswerForm } from "./form";
import { LoopPanel } from "./loop";

const CALLS_MAX = 200;
const AROUND = 3;

export function Failure({ error }: { error: FailureDocument }) {
  return (
    <div class="failure">
      <div class="message">{error.message}</div>
      <div class="quiet">
        {error.kind}
        {error.code !== undefined && <> · {String(error.code)}</>}
        {error.retryable !== undefined && <> · {error.retryable ? "worth a retry" : "a retry would not help"}</>}
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

/** A sentence whose names stand between backticks. */
export function Said({ text }: { text: string }) {
  return <p>{text.split("`").map((part, number) => (number % 2 ? <code>{part}</code> : part))}</p>;
}

/** Where a step begins in the text of its playbook; -1 if it cannot be found. */
export function lineOf(content: string, step: string): number {
  const escaped = step.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  return content.split("\n").findIndex((line) => new RegExp(`^\\s*(-\\s+)?step:\\s*["']?${escaped}["']?\\s*(#.*)?$`).test(line));
}

function Source({ content, step, playbook, version, isFailed }: { content: string; step: string; playbook: string; version: number | null; isFailed: boolean }) {
  const [whole, setWhole] = useState(false);
  const lines = content.split("\n");
  const first = lineOf(content, step);
  if (first < 0) return null;
  const indent = lines[first]!.search(/\S/);
  let last = first + 1;
  while (last < lines.length && (!lines[last]!.trim() || lines[last]!.search(/\S/) > indent)) last++;
  while (last > first && !lines[last - 1]!.trim()) last--;
  const end = whole ? last : Math.min(last, first + 2 * AROUND + 6);
  return (
    <section>
      <h3>
        <a href={href(`${path("playbooks", playbook)}?version=${version ?? ""}&step=${encodeURIComponent(step)}`)}>
          {playbook}
          {version !== null && ` v${version}`}, line {first + 1}
        </a>
      </h3>
      <pre class={isFailed ? "source" : "source plain-mark"} tabIndex={0} role="group" aria-label={`Text of step ${step}`}>
        {lines.slice(first, end).map((line, number) => (
          <span class={number === 0 ? "here" : ""}>
            <span class="line-number">{String(first + number + 1).padStart(4)} </span>
            {line || " "}
          </span>
        ))}
      </pre>
      {end < last && (
        <button type="button" class="link" onClick={() => setWhole(true)}>
          {last - end} more lines
        </button>
      )}
    </section>
  );
}

interface Try {
  key: string;
  task: string;
  kind: string;
  attempt: number;
  iteration: number | null;
  from: string | null;
  to: string | null;
  status: string;
  seconds: number | null;
  error: FailureDocument | null;
  result: unknown;
  log: string;
  rule: string;
  actionId: string;
}

function triesOf(events: EventDocument[]): Try[] {
  const tries = new Map<string, Try>();
  for (const event of events) {
    const payload = event.payload as Record<string, any>;
    const key = `${payload.action_id ?? payload.task}/${event.attempt ?? 1}/${payload.page ?? 0}/${event.iteration ?? ""}`;
    if (event.name === "task.started") {
      tries.set(key, {
        key,
        task: payload.task,
        kind: payload.kind ?? "",
        attempt: event.attempt ?? 1,
        iteration: event.iteration,
        from: event.timestamp,
        to: null,
        status: "running",
        seconds: null,
        error: null,
        result: undefined,
        log: "",
        rule: "",
        actionId: payload.action_id ?? "",
      });
    } else if (event.name === "task.done") {
      const one = tries.get(key);
      if (!one) continue;
      one.to = event.timestamp;
      one.status = payload.outcome?.status === "error" ? "failed" : "done";
      one.seconds = payload.outcome?.meta?.duration ?? null;
      one.error = payload.outcome?.error ?? null;
      one.result = payload.outcome?.result;
      one.log += (payload.log as string | undefined)?.slice(payload.told ?? 0) ?? "";
      one.rule = payload.directive ?? "";
    } else if (event.name === "task.log") {
      const one = tries.get(key);
      if (one) one.log += payload.text ?? "";
    }
  }
  return [...tries.values()];
}

export function StepPanel({ execution, step, at, content, onSelect }: { execution: ExecutionDocument; step: string; at: number | null; content: string | undefined; onSelect: (step: string) => void }) {
  const found = execution.steps.find((one) => one.step === step);
  const isOpen = found?.status === "running";
  const key = `${execution.execution_id} ${step} ${found?.attempts} ${found?.status}`;
  const calls = useLoaded(key, () =>
    call("GET /api/executions/{execution_id}/events", {
      path: { execution_id: execution.execution_id },
      query: { step, type: ["task.started", "task.done", "task.log"], limit: CALLS_MAX * 2 },
    }),
  );
  const why = useLoaded(`why ${key} ${at}`, () => call("GET /api/executions/{execution_id}/why", { path: { execution_id: execution.execution_id }, query: { step, seq: at } }));
  const tries = useMemo(() => triesOf((calls.value?.events ?? []).filter((event) => at === null || event.seq <= at)), [calls.value, at]);
  const told = why.value?.step;
  return (
    <>
      <div class="row">
        <h2>{step}</h2>
        {found ? <Status status={found.waiting ? "waiting" : found.status} /> : <span class="quiet">not reached</span>}
        {found && (
          <span class="quiet">
            {found.runs > 1 && <>{found.runs} runs · </>}
            {found.attempts > 1 && <>{found.attempts} tries · </>}
            <Took from={found.started_at} to={found.ended_at} />
          </span>
        )}
        <span class="space" />
        {may("operate") && found && <button type="button" onClick={() => rerunDialog(execution, step)}>Rerun from here</button>}
      </div>
      {found?.error && <Failure error={found.error} />}
      {found?.waiting && <Waiting execution={execution} step={found} />}
      {told && <Said text={told.text} />}
      {told && told.conditions && told.conditions.length > 0 && (
        <ul class="plain">
          {told.conditions.map((one) => (
            <li>
              <button type="button" class="link" onClick={() => onSelect(one.source)}>{one.source}</button>
              <span class="quiet">→ {one.target}</span>
              <code class="cut">{one.guard ?? "always"}</code>
              <span class="space" />
              <span class={one.verdict === "fired" || one.verdict === "allow" ? "done" : "quiet"}>{one.verdict.replaceAll("_", " ")}</span>
            </li>
          ))}
        </ul>
      )}
      {found?.loop && <LoopPanel execution={execution} step={found} />}
      {tries.length > 0 && !found?.loop && <Tries tries={tries} isOpen={isOpen} told={found?.error?.message ?? ""} />}
      {content && found?.status === "failed" && <Source content={content} step={step} playbook={execution.path} version={execution.version} isFailed={found?.status === "failed"} />}
      {found && found.result !== null && found.result !== undefined && (
        <section>
          <h3>result</h3>
          <Result value={found.result} />
        </section>
      )}
      <Expression execution={execution} step={step} />
      {content && found?.status !== "failed" && <Source content={content} step={step} playbook={execution.path} version={execution.version} isFailed={found?.status === "failed"} />}
      {why.error && why.error.status !== 404 && <Trouble problem={why.error} />}
    </>
  );
}

/** A value; a large one is a reference, and is read when somebody wants it. */
export function Result({ value }: { value: unknown }) {
  const [body, setBody] = useState<unknown>();
  const [error, setError] = useState<Problem>();
  const reference = referenceOf(value);
  useEffect(() => setBody(undefined), [reference]);
  if (!reference) return <Json value={value} />;
  const address = reference.replace(/^\/?api\//, "");
  const read = async () => {
    const response = await fetch(href(`/api/${address}`), { credentials: "same-origin" });
    if (!response.ok) setError(new Problem(response.status, String(response.status), "The body of this result cannot be read."));
    else setBody(await response.json().catch(() => "not JSON: download it instead"));
  };
  return (
    <>
      {body === undefined ? <Json value={value} /> : <Json value={body} />}
      {error && <Trouble problem={error} />}
      <p class="row">
        {body === undefined && <button type="button" onClick={read}>Show the whole value</button>}
        <a href={href(`/api/${address}`)} download>Download</a>
      </p>
    </>
  );
}

function referenceOf(value: unknown): string | null {
  if (typeof value !== "object" || value === null || !("_ref" in value || "$ref" in value || "reference" in value)) return null;
  const found = value as Record<string, any>;
  const ref = found._ref ?? found.$ref ?? found.reference;
  const text = typeof ref === "string" ? ref : (ref?.url ?? ref?.uri ?? null);
  return typeof text === "string" && text.includes("results/") ? text.slice(text.indexOf("results/")) : null;
}

function Tries({ tries, isOpen, told }: { tries: Try[]; isOpen: boolean; told: string }) {
  const firstBad = tries.findLastIndex((one) => one.status === "failed");
  const [chosen, setChosen] = useState<string>();
  const one = tries.find((found) => found.key === chosen) ?? tries[firstBad >= 0 ? firstBad : tries.length - 1]!;
  return (
    <section>
      <h3>{tries.length === 1 ? "call" : `${count(tries.length)} calls`}</h3>
      {tries.length > 1 && (
        <div class="attempts">
          {tries.slice(0, 60).map((found) => (
            <button type="button" aria-pressed={found === one} onClick={() => setChosen(found.key)}>
              <Mark status={found.status} /> {found.task} {found.attempt > 1 && `try ${found.attempt}`} <span class="num quiet">{took(found.seconds)}</span>
            </button>
          ))}
        </div>
      )}
      <dl class="facts">
        <dt>task</dt>
        <dd>
          {one.task} <span class="quiet">{one.kind}</span>
        </dd>
        <dt>started</dt>
        <dd>{one.from && <time title={one.from}>{exact(new Date(one.from), false).slice(11)}</time>}</dd>
        <dt>took</dt>
        <dd>{one.seconds !== null ? took(one.seconds) : isOpen ? <Took from={one.from} /> : "–"}</dd>
        {one.rule && (
          <>
            <dt>rule</dt>
            <dd>{one.rule}</dd>
          </>
        )}
      </dl>
      {one.error && one.error.message !== told && <div class="failure"><div class="message">{one.error.message}</div></div>}
      {one.log && (
        <>
          <h3>output</h3>
          <pre>{one.log}</pre>
        </>
      )}
      {one.result !== undefined && one.result !== null && tries.length > 1 && (
        <>
          <h3>result of this call</h3>
          <Result value={one.result} />
        </>
      )}
    </section>
  );
}

function Waiting({ execution, step }: { execution: ExecutionDocument; step: StepDocument }) {
  const waiting = step.waiting!;
  const form = waiting.form;
  return (
    <div class="row">
      <span>
        waits for {waiting.events.join(" or ")} since <When at={waiting.since} />
        {waiting.until && (
          <>
            , until <When at={waiting.until} />
          </>
        )}
      </span>
      {form.length > 0 && may("operate") && (
        <button
          type="button"
          class="primary"
          onClick={() => showDialog(step.step, (close) => <AnswerForm executionId={execution.execution_id} step={step.step} questions={form} event={waiting.events[0] ?? "approval.received"} close={close} />)}
        >
          Answer
        </button>
      )}
    </div>
  );
}

function Expression({ execution, step }: { execution: ExecutionDocument; step: string }) {
  const [answer, setAnswer] = useState<{ value: unknown } | null>(null);
  const [error, setError] = useState<Problem>();
  const run = async (event: SubmitEvent) => {
    event.preventDefault();
    const text = String(new FormData(event.currentTarget as HTMLFormElement).get("expression")).trim();
    if (!text) return;
    setError(undefined);
    try {
      const template = text.includes("{{") ? text : `{{ ${text} }}`;
      setAnswer({ value: (await call("POST /api/context/render", { body: { execution_id: execution.execution_id, step, template } })).rendered });
    } catch (problem) {
      setAnswer(null);
      setError(problem as Problem);
    }
  };
  return (
    <section>
      <h3>expression, as this step sees it</h3>
      <form class="row" onSubmit={run}>
        <input name="expression" class="mono" style={{ flex: "1" }} placeholder="ctx.total > 0" aria-label="Expression" spellcheck={false} autocomplete="off" />
        <button type="submit">Evaluate</button>
      </form>
      {error && <Trouble problem={error} />}
      {answer && <Json value={answer.value} />}
    </section>
  );
}
