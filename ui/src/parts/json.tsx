// A value as a tree: closed where it is large, opened by clicking, never more than a page at once.
import { useState } from "preact/hooks";
import { Copy } from "./notes";

const PAGE = 100;
const TEXT_MAX = 400;
const OPEN_DEPTH = 2;
const OPEN_SIZE = 20;

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null;
}

function summary(value: object): string {
  if (Array.isArray(value)) return `[${value.length}]`;
  const keys = Object.keys(value);
  const shown = keys.slice(0, 4).join(", ");
  return `{${shown}${keys.length > 4 ? `, … ${keys.length}` : ""}}`;
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

function Table({ rows, columns }: { rows: Record<string, unknown>[]; columns: string[] }) {
  const [shown, setShown] = useState(PAGE);
  return (
    <div class="json-table" tabIndex={0}>
      <table>
        <thead>
          <tr>
            <th scope="col" class="quiet">#</th>
            {columns.map((key) => (
              <th scope="col">{key}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, shown).map((row, number) => (
            <tr>
              <td class="quiet num">{number}</td>
              {columns.map((key) => (
                <td class={typeof row[key] === "number" ? "num" : ""}>{row[key] === null ? <span class="quiet">null</span> : String(row[key])}</td>
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

function Node({ name, value, depth }: { name?: string; value: unknown; depth: number }) {
  const size = isObject(value) ? Object.keys(value).length : 0;
  const [open, setOpen] = useState(depth < OPEN_DEPTH && size <= OPEN_SIZE);
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
            <Table rows={value as unknown as Record<string, unknown>[]} columns={columns} />
          ) : (
            entries.map(([key, one]) => <Node key={key} name={key} value={one} depth={depth + 1} />)
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
        <Copy text={JSON.stringify(value, null, 2) ?? ""} label="Copy as JSON" />
      </div>
      <Node value={value} depth={0} />
    </div>
  );
}
