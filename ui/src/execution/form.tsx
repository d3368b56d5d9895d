// A form that an execution waits with: its questions, and the answer that is sent.
import { call } from "../api/client";
import { readNumber, writeJson } from "../api/exact";
import type { QuestionDocument } from "../api/types";
import { Ask } from "../parts/dialog";
import { tell } from "../parts/notes";
import { typedJson } from "../parts/typed";
import { exact } from "../time";

export interface Question {
  name: string;
  type: string;
  label?: string;
  required?: boolean;
  help?: string;
  desc?: string;
  default?: unknown;
  options?: unknown;
  min?: unknown;
  max?: unknown;
}

function text(value: unknown): string {
  return value === undefined || value === null ? "" : typeof value === "string" ? value : writeJson(value);
}

interface Choice {
  value: unknown;
  label: string;
}

/** What there is to choose: values, values with labels, or labels by their value. */
function choicesOf({ type, options }: Question): Choice[] | null {
  if (typeof options !== "object" || options === null || ["list", "object", "json"].includes(type)) return null;
  if (!Array.isArray(options)) return Object.entries(options).map(([value, label]) => ({ value, label: text(label) }));
  return options.map((one) => (typeof one === "object" && one !== null && "value" in one ? { value: one.value, label: text(one.label ?? one.value) } : { value: one, label: text(one) }));
}

/** A moment as a field of a browser has it: in the browser's time. Without a zone it is UTC. */
function local(moment: unknown): string {
  const written = text(moment);
  const date = new Date(/T.*(Z|[+-]\d\d:?\d\d)$/.test(written) ? written : `${written}Z`);
  return Number.isNaN(date.getTime()) ? "" : exact(date, false).slice(0, 19).replace(" ", "T");
}

/** What cannot be guessed from the field. */
const HINTS: Record<string, string> = {
  datetime: "in the time of this browser",
  list: 'JSON, such as ["a", "b"]',
  object: 'JSON, such as {"a": 1}',
  json: 'JSON, such as {"a": 1}',
  secret: "the name of a stored credential",
  file: "a path or an address",
};

export function Field({ question }: { question: Question }) {
  const { name, type, required = false } = question;
  const label = question.label || name;
  const hint = question.help ?? question.desc;
  const said = hint ? <span class="quiet">{hint}</span> : null;
  if (type === "boolean" && required && typeof question.default !== "boolean") {
    // An answer that nobody gave is no "no".
    return (
      <fieldset class="yes-no">
        <legend>{label}</legend>
        <label class="check"><input type="radio" name={name} value="yes" required /> Yes</label>
        <label class="check"><input type="radio" name={name} value="no" required /> No</label>
        {said}
      </fieldset>
    );
  }
  if (type === "boolean") {
    return (
      <label class="check">
        <input type="checkbox" name={name} defaultChecked={question.default === true} /> {label} {said}
      </label>
    );
  }
  const choices = choicesOf(question);
  const isJson = type === "object" || type === "list" || type === "json";
  const written = (value: unknown) => (type === "datetime" ? local(value) : text(value));
  return (
    <label>
      <span>
        {label}
        {!choices && HINTS[type] && <span class="quiet"> ({HINTS[type]})</span>}
        {!required && <span class="quiet"> (optional)</span>}
      </span>
      {choices ? (
        <select name={name} required={required}>
          {(!required || !choices.some(({ value }) => text(value) === text(question.default))) && <option value="" />}
          {choices.map(({ value, label }) => (
            <option value={text(value)} selected={text(value) === text(question.default)}>{label}</option>
          ))}
        </select>
      ) : isJson || type === "textarea" ? (
        <textarea name={name} required={required} rows={4} spellcheck={false}>
          {question.default === undefined || question.default === null ? "" : typeof question.default === "string" ? question.default : writeJson(question.default, 2)}
        </textarea>
      ) : (
        <input
          name={name}
          required={required}
          {...({ type: type === "secret" || type === "password" ? "password" : type === "number" || type === "integer" ? "number" : type === "date" ? "date" : type === "datetime" ? "datetime-local" : "text" } as object)}
          step={type === "integer" ? "1" : "any"}
          min={written(question.min) || undefined}
          max={written(question.max) || undefined}
          autocomplete="off"
          defaultValue={written(question.default)}
        />
      )}
      {said}
    </label>
  );
}

/** The answers of a form as values of their types; what was left empty is left out. */
export function answers(questions: Question[], data: FormData): Record<string, unknown> {
  const found: Record<string, unknown> = {};
  for (const question of questions) {
    const { name, type } = question;
    const value = data.get(name);
    if (type === "boolean") found[name] = value !== null && value !== "no";
    else if (value === null || value === "") continue;
    else if (type === "number" || type === "integer") found[name] = readNumber(String(value));
    else if (type === "list" || type === "object" || type === "json") found[name] = typedJson(name, String(value));
    else if (type === "datetime") found[name] = new Date(String(value)).toISOString();
    else {
      const chosen = choicesOf(question)?.find((one) => text(one.value) === value);
      found[name] = chosen ? chosen.value : String(value);
    }
  }
  return found;
}

/** Answer the form that a step waits with. */
export function AnswerForm({ executionId, step, questions, close, done }: { executionId: string; step: string; questions: QuestionDocument[]; close: () => void; done?: () => void }) {
  return (
    <Ask
      does="Answer"
      close={close}
      run={async (data) => {
        await call("POST /api/executions/{execution_id}/events", { path: { execution_id: executionId }, body: { name: "approval.received", data: answers(questions as Question[], data), step } });
        tell("Answered.");
        done?.();
      }}
    >
      {questions.map((one) => (
        <Field question={one as Question} />
      ))}
    </Ask>
  );
}
