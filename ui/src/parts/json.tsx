// A value as a tree: closed where it is large, opened by clicking, never more than a page at once.
import { useState } from "preact/hooks";
import { address, call } from "../api/client";
import { writeJson } from "../api/exact";
import { useLoaded } from "../data";
import { count } from "../time";
import { Copy, Trouble } from "./notes";

const PAGE = 100;
const TEXT_MAX = 400;
const OPEN_DEPTH = 2;
const OPEN_SIZE = 20;
const BRIEF_MAX = 80;
/** A larger body is downloaded, not shown: a page of it would fill the memory of the browser. */
const SHOWN_BYTES_MAX = 20_000_000;

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null;
}

function isNumber(value: unknown): boolean {
  return typeof value === "number" || typeof value === "bigint";
}

function summary(value: object): string {
  if (Array.isArray(value)) return `[${value.length}]`;
  const keys = Object.keys(value);
  const shown = keys.slice(0, 4).join(", ");
  return `{${shown}${keys.length > 4 ? `, … ${keys.length}` : ""}}`;
}

/** A value in a few words, for one line. */
export function brief(value: unknown): string {
  if (isObject(value)) return referenceOf(value) ? String(value._preview ?? "").slice(0, BRIEF_MAX) : summary(value);
  const text = writeJson(value) ?? "";
  return text.length > BRIEF_MAX ? `${text.slice(0, BRIEF_MAX)}…` : text;
}

/** What stands for a value that is too large for an event. */
export interface Reference {
  owner: string;
  key: string;
  size: number;
  /** A long list is kept in segments; those that are not kept hold nothing but nulls. */
  list?: { length: number; width: number; kept: [begin: number, end: number][] };
}

/** The reference that a value is; null for all else, also for a file, whose bytes are not JSON. */
export function referenceOf(value: unknown): Reference | null {
  const ref = isObject(value) && isObject(value._ref) ? value._ref : {};
  if (typeof ref.key !== "string" || typeof ref.execution_id !== "string" || !ref.execution_id || "parts" in ref) return null;
  return { owner: ref.execution_id, key: ref.key, size: Number(ref.size), ...(ref.segments ? { list: ref.segments as Reference["list"] } : {}) };
}

/** The value; of a list the segment that begins with that element. */
export async function readBody({ owner, key, list }: Reference, from: number): Promise<unknown> {
  const body = (name: string) => call("GET /api/results/{execution_id}/{key}", { path: { execution_id: owner, key: name } });
  if (!list) return body(key);
  const number = from / list.width;
  const isKept = list.kept.some(([begin, end]) => number >= begin && number < end);
  return isKept ? body(`${key}-${number}`) : Array(Math.min(list.width, list.length - from)).fill(null);
}

function bytes(size: number): string {
  return size < 1_000_000 ? `${Math.ceil(size / 1000)} KB` : `${(size / 1_000_000).toFixed(1)} MB`;
}

/** A value that is kept beside the log: it is read when somebody wants it, a long list piece by piece. */
function Stored({ name, reference, preview, depth }: { name?: string; reference: Reference; preview: string; depth: number }) {
  const [from, setFrom] = useState<number | null>(null);
  const { owner, key, size, list } = reference;
  const read = useLoaded(`${owner} ${key} ${from}`, () => (from === null ? Promise.resolve(undefined) : readBody(reference, from)));
  const last = list && from !== null ? Math.min(list.length, from + list.width) - 1 : 0;
  return (
    <>
      <div class="json-line">
        {name !== undefined && <span class="json-key">{name}: </span>}
        {from === null && <span class="quiet">{preview}{!list && "…"} </span>}
        {list && from !== null && <span class="quiet">elements {count(from)} to {count(last)} of {count(list.length)} </span>}
        <span class="quiet">({bytes(size)}) </span>
        {from === null && (list || size <= SHOWN_BYTES_MAX) && <button type="button" class="link" onClick={() => setFrom(0)}>show{list ? "" : " all"}</button>}
        {list && from !== null && (
          <>
            <button type="button" class="link" disabled={from === 0} onClick={() => setFrom(from - list.width)}>before</button>{" "}
            <button type="button" class="link" disabled={last === list.length - 1} onClick={() => setFrom(from + list.width)}>next</button>
          </>
        )}{" "}
        <a href={address("/api/results/{execution_id}/{key}", { execution_id: owner, key })} download={`${key}.json`}>download</a>
      </div>
      {read.error && <Trouble problem={read.error} />}
      {read.value !== undefined && <Node key={from} value={read.value} depth={depth} isOpen first={list ? from! : 0} />}
    </>
  );
}

/** A list of objects that all have the same few keys: a table. */
export function columnsOf(value: unknown): string[] | null {
  if (!Array.isArray(value) || value.length < 2) return null;
  const first = value[0];
  if (!isObject(first) || Array.isArray(first)) return null;
  const keys = Object.keys(first);
  if (!keys.length || keys.length > 12) return null;
  const same = value.slice(0, 50).every(
    (row) => isObject(row) && !Array.isArray(row) && Object.keys(row).length === keys.length && keys.every((key) => key in row && !isObject(row[key])),
  );
  return same ? keys : null;
}

function Leaf({ value }: { value: unknown }) {
  const [whole, setWhole] = useState(false);
  if (typeof value === "string") {
    const cut = !whole && value.length > TEXT_MAX;
    return (
      <span class="json-text">
        "{cut ? value.slice(0, TEXT_MAX) : value}"
        {cut && (
          <button type="button" class="bare" onClick={() => setWhole(true)}>
            … {value.length - TEXT_MAX} more characters
          </button>
        )}
      </span>
    );
  }
  return <span class={value === null ? "quiet" : "json-plain"}>{String(value)}</span>;
}

function Table({ rows, columns, first }: { rows: Record<string, unknown>[]; columns: string[]; first: number }) {
  const [shown, setShown] = useState(PAGE);
  return (
    <div class="json-table" tabIndex={0}>
      <table>
        <thead>
          <tr>
            <th scope="col" class="quiet">#</th>
            {columns.map((key) => (
              <th scope="col" class={isNumber(rows[0]![key]) ? "num" : ""}>{key}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, shown).map((row, number) => (
            <tr>
              <td class="quiet num">{first + number}</td>
              {columns.map((key) => (
                <td class={isNumber(row[key]) ? "num" : ""}>{row[key] === null ? <span class="quiet">null</span> : String(row[key])}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > shown && (
        <button type="button" onClick={() => setShown(shown + PAGE)}>
          {rows.length - shown} more rows
        </button>
      )}
    </div>
  );
}

/** `first` is the number of the first element, of a list that is a part of a longer one. */
function Node({ name, value, depth, isOpen, first = 0 }: { name?: string; value: unknown; depth: number; isOpen?: boolean; first?: number }) {
  const size = isObject(value) ? Object.keys(value).length : 0;
  const [open, setOpen] = useState(isOpen ?? (depth < OPEN_DEPTH && size <= OPEN_SIZE));
  const [shown, setShown] = useState(PAGE);
  const label = name !== undefined && <span class="json-key">{name}: </span>;
  if (!isObject(value) || size === 0) {
    return (
      <div class="json-line">
        {label}
        {isObject(value) ? <span class="quiet">{Array.isArray(value) ? "[]" : "{}"}</span> : <Leaf value={value} />}
      </div>
    );
  }
  const reference = referenceOf(value);
  if (reference) return <Stored name={name} reference={reference} preview={String(value._preview ?? "")} depth={depth} />;
  const columns = open ? columnsOf(value) : null;
  const entries = open && !columns ? Object.entries(value).slice(0, shown) : [];
  return (
    <div>
      <div class="json-line">
        <button type="button" class="bare fold" aria-expanded={open} onClick={() => setOpen(!open)}>
          {label}
          <span class="quiet">{summary(value)}</span>
        </button>
      </div>
      {open && (
        <div class="json-inner">
          {columns ? (
            <Table rows={value as unknown as Record<string, unknown>[]} columns={columns} first={first} />
          ) : (
            entries.map(([key, one]) => <Node key={key} name={Array.isArray(value) ? String(first + Number(key)) : key} value={one} depth={depth + 1} />)
          )}
          {!columns && size > shown && (
            <button type="button" class="bare" onClick={() => setShown(shown + PAGE)}>
              {size - shown} more
            </button>
          )}
        </div>
      )}
    </div>
  );
}

export function Json({ value, label }: { value: unknown; label?: string }) {
  return (
    <div class="json" role="group" aria-label={label ?? "value"}>
      <div class="json-copy">
        <Copy text={writeJson(value, 2) ?? ""} label="Copy as JSON" />
      </div>
      <Node value={value} depth={0} />
    </div>
  );
}
