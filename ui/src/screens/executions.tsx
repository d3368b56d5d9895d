// The list of executions: one query in the address decides the rows, the pictures and what is acted on.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { call, may } from "../api/client";
import { writeJson } from "../api/exact";
import type { ExecutionSummary } from "../api/types";
import { useLoaded } from "../data";
import { useKeys } from "../keys";
import { Histogram, Scatter, type Dot } from "../parts/charts";
import { Ask, removeDialog, showDialog } from "../parts/dialog";
import { Command, Empty, tell, tellProblem, Trouble } from "../parts/notes";
import { QueryBar } from "../parts/querybar";
import { narrow } from "../prefs";
import { ROW, Rows } from "../parts/rows";
import { standing, Status, whereabouts } from "../parts/status";
import { count, now, Took, When } from "../time";
import { ask, asked, go, href, path } from "../url";

const PAGE = 100;
const LOADED_MAX = 5000;
const REFRESH = 15_000;
const NEWS = ["executions"];
/** Where a row has no room for why it failed, that stands below: see `.execution-row` in style.css. */
const ROW_NARROW = 46;

interface Page {
  rows: ExecutionSummary[];
  cursor: string | null;
}

/** Rows of the query: pages as they are scrolled to, the newest again every few seconds. */
function useRows(query: string, fields: string[]) {
  const [more, setMore] = useState<{ key: string; rows: ExecutionSummary[]; cursor: string | null } | null>(null);
  const loading = useRef(false);
  const key = `${query}\n${fields.join(",")}`;
  const ask = (cursor: string | null): Promise<Page> =>
    call("GET /api/executions", { query: { q: query, limit: PAGE, cursor, workload: fields } }).then((found) => ({
      rows: found.executions,
      cursor: found.next_cursor,
    }));
  const first = useLoaded<Page>(key, () => ask(null), REFRESH, NEWS);
  const rows = useMemo(() => {
    const newest = first.value?.rows ?? [];
    if (!more || more.key !== key) return newest;
    const seen = new Set(newest.map((one) => one.execution_id));
    return [...newest, ...more.rows.filter((one) => !seen.has(one.execution_id))];
  }, [first.value, more, key]);
  const cursor = more && more.key === key ? more.cursor : (first.value?.cursor ?? null);
  const next = () => {
    if (!cursor || loading.current || rows.length >= LOADED_MAX) return;
    loading.current = true;
    ask(cursor)
      .then((page) => setMore((old) => ({ key, rows: [...(old && old.key === key ? old.rows : (first.value?.rows ?? [])), ...page.rows], cursor: page.cursor })), tellProblem)
      .finally(() => (loading.current = false));
  };
  return { rows, next, error: first.error, stale: first.stale, isOwn: first.isOwn, isKnown: first.value !== undefined, reload: first.reload };
}

const BARS_MIN = 40;

function Charts({ query, rows }: { query: string; rows: ExecutionSummary[] }) {
  const { value } = useLoaded(`histogram ${query}`, () => call("GET /api/executions/histogram", { query: { q: query, buckets: 120 } }), REFRESH, NEWS);
  const dots: Dot[] = useMemo(
    () =>
      rows
        .filter((one) => one.start_time && one.duration_seconds !== null)
        .map((one) => ({ at: Date.parse(one.start_time!), seconds: one.duration_seconds!, status: one.status, id: one.execution_id })),
    [rows],
  );
  // Their place is kept: rows that are there first would be pushed away.
  if (!value) return <div class="charts" aria-hidden="true" />;
  if (!value.start || !value.end || value.total < 2) return null;
  const bucket = value.bucket_seconds * 1000;
  const end = Math.max(Date.parse(value.end), Date.parse(value.start) + bucket);
  // A few seconds are a few bars, and not as many blocks.
  const begin = Math.min(Date.parse(value.start), end - BARS_MIN * bucket);
  const onSpan = (from: number, to: number) => {
    const rest = query.replace(/(^|\s)(since|until):\S+/g, "").trim();
    ask({ q: `${rest} since:${new Date(from).toISOString()} until:${new Date(to).toISOString()}`.trim() }, { push: true });
  };
  const first = dots.length ? Math.min(...dots.map((one) => one.at)) : begin;
  return (
    <div class="charts">
      <figure>
        <Histogram buckets={value.buckets} begin={begin} end={end} width={value.bucket_seconds} onSpan={onSpan} />
        <figcaption>
          <When at={new Date(begin).toISOString()} />
          <span>{count(value.total)} by time, failed on top; drag to filter</span>
          <When at={new Date(Math.min(end, now.value)).toISOString()} />
        </figcaption>
      </figure>
      <figure>
        <Scatter dots={dots} begin={first} end={Math.max(end, first + 1000)} onOpen={(id) => go(path("executions", id))} onSpan={onSpan} />
        <figcaption>
          <span>duration (log) of the newest {count(dots.length)}; click to open</span>
        </figcaption>
      </figure>
    </div>
  );
}

/** Who comes back from an execution stands on its row. */
function leave(one: ExecutionSummary): void {
  history.replaceState({ row: one.execution_id }, "");
}

function open(one: ExecutionSummary): void {
  leave(one);
  go(path("executions", one.execution_id));
}

function rowLeft(): string {
  return history.state?.row ?? "";
}

function reason(one: ExecutionSummary): string {
  if (one.error) return one.step ? `${one.step}: ${one.error}` : one.error;
  return whereabouts(one);
}

export function Executions() {
  const query = asked("q");
  const fields = asked("columns").split(",").map((one) => one.trim()).filter(Boolean);
  const { rows, next, error, stale, isOwn, isKnown, reload } = useRows(query, fields);
  const counted = useLoaded(`count ${query}`, () => call("GET /api/executions/count", { query: { q: query } }), REFRESH, NEWS);
  const total = counted.value?.count;
  // Rows of the query before are shown until those of this one are there; keys do not act on them.
  const reached = isOwn ? rows : [];
  const playbooks = useLoaded("paths", () => call("POST /api/catalog/list", { body: {} })).value?.entries.map((one) => one.path) ?? [];
  // The row, and not its number: others come above it while somebody reads.
  const [row, setRow] = useState(rowLeft);
  const at = reached.findIndex((one) => one.execution_id === row);
  const near = useRef(0);
  if (at >= 0) near.current = at;
  const move = (by: 1 | -1) => {
    // A row that matches no more has left its place to the one after it.
    const to = at >= 0 ? at + by : by > 0 ? near.current : near.current - 1;
    setRow(reached[Math.max(0, Math.min(to, reached.length - 1))]?.execution_id ?? "");
  };
  const [chosen, setChosen] = useState<ReadonlyMap<string, ExecutionSummary>>(new Map());
  const [all, setAll] = useState(false);
  useEffect(() => {
    setRow(rowLeft());
    near.current = 0;
    setChosen(new Map());
    setAll(false);
  }, [query]);
  const toggle = (one: ExecutionSummary) => {
    const next = new Map(chosen);
    if (!next.delete(one.execution_id)) next.set(one.execution_id, one);
    setChosen(next);
    setAll(false);
  };
  useKeys([
    { key: "/", says: "write a query", run: () => document.getElementById("query")?.focus() },
    { key: "j", says: "next row", run: () => move(1) },
    { key: "k", says: "row before", run: () => move(-1) },
    { key: "ArrowDown", says: "next row", run: () => move(1) },
    { key: "ArrowUp", says: "row before", run: () => move(-1) },
    { key: "Enter", says: "open", run: () => reached[at] && open(reached[at]!) },
    { key: "x", says: "select", run: () => reached[at] && toggle(reached[at]!) },
    { key: "Escape", says: "select nothing", run: () => { setChosen(new Map()); setAll(false); } },
  ]);
  const clicked = (event: MouseEvent, one: ExecutionSummary) => {
    const on = event.target as Element;
    if (on.closest("a")) leave(one);
    else if (!on.closest("button, [role=cell]:first-child") && !String(getSelection())) open(one);
  };
  const draw = (index: number) => {
    const one = rows[index]!;
    return (
      <div role="row" key={one.execution_id} class={`execution-row ${fields.length ? "more-columns" : ""} ${index === at ? "at" : ""}`} style={fields.length ? { "--extra": String(fields.length) } : undefined} aria-rowindex={index + 1} onClick={(event) => clicked(event, one)}>
        <span role="cell">
          <input type="checkbox" aria-label={`Select …${one.execution_id.slice(-6)}`} checked={all || chosen.has(one.execution_id)} onChange={() => toggle(one)} />
        </span>
        <span role="cell" class="id">
          <a href={href(path("executions", one.execution_id))} title={one.execution_id}>
            …{one.execution_id.slice(-6)}
          </a>
        </span>
        <span role="cell">
          <button type="button" class="link" title={`Only ${one.path}`} onClick={() => ask({ q: withTerm(query, "path", one.path) }, { push: true })}>{one.path}</button>
          {one.version !== null && <span class="quiet"> v{one.version}</span>}
        </span>
        <span role="cell">
          <Status status={standing(one)} />
        </span>
        <span role="cell"><When at={one.start_time} /></span>
        <span role="cell" class="num"><Took from={one.start_time} to={one.end_time} seconds={one.duration_seconds} /></span>
        <span role="cell" title={reason(one)} class={one.status === "FAILED" ? "" : "quiet"}>{reason(one)}</span>
        {fields.map((field) => (
          <span role="cell" class="mono">{shown(one.workload?.[field])}</span>
        ))}
      </div>
    );
  };
  // Some may be in the list no more: they have gone on since they were chosen.
  const [older, newer] = [...chosen.values()].sort((a, b) => (a.start_time ?? "~").localeCompare(b.start_time ?? "~")).map((one) => one.execution_id);
  const selected = all ? (total ?? chosen.size) : chosen.size;
  return (
    <main class="list" tabIndex={-1} id="content">
      <h1 class="hidden">Executions</h1>
      <div class="query">
        <QueryBar value={query} onChange={(text) => ask({ q: text }, { push: true })} paths={playbooks} />
        <Views query={query} columns={fields} />
        <button type="button" onClick={() => showDialog("Columns", (close) => <Columns close={close} fields={fields} />)}>Columns</button>
        <span class="quiet num" aria-live="polite">{total === undefined || !isOwn || !counted.isOwn ? "" : `${count(total)} ${total === 1 ? "hit" : "hits"}`}</span>
      </div>
      {error && <div class="query"><Trouble problem={error} /></div>}
      {!error && <Charts query={query} rows={rows} />}
      {error && !rows.length ? (
        <div class="rows" />
      ) : isKnown && !rows.length ? (
        query ? (
          <Empty title="No execution matches.">
            <p>
              <button type="button" class="link" onClick={() => ask({ q: null }, { push: true })}>Show all</button>, or widen the query.
            </p>
          </Empty>
        ) : (
          <Empty title="Nothing has run here yet.">
            <p>Register a playbook and start it:</p>
            <Command>noetl register examples/fork_join.yaml</Command>
            <Command>noetl execute examples/fork_join --wait</Command>
            <p>or start one from <a href={href("/playbooks")}>Playbooks</a>.</p>
          </Empty>
        )
      ) : (
        <Rows
          count={rows.length}
          row={draw}
          keyOf={(index) => rows[index]!.execution_id}
          label="Executions"
          cursor={at}
          onEnd={next}
          height={narrow.value ? ROW_NARROW : ROW}
          head={
            <div role="row" class={`execution-row ${fields.length ? "more-columns" : ""} ${stale ? "stale" : ""}`} style={fields.length ? { "--extra": String(fields.length) } : undefined}>
              <span role="columnheader"><span class="hidden">Selected</span></span>
              <span role="columnheader">id</span>
              <span role="columnheader">playbook</span>
              <span role="columnheader">status</span>
              <span role="columnheader">started</span>
              <span role="columnheader" class="num">took</span>
              <span role="columnheader">step, error</span>
              {fields.map((field) => (
                <span role="columnheader">{field}</span>
              ))}
            </div>
          }
        />
      )}
      <div class="foot">
        {selected > 0 ? (
          <>
            <strong>{count(selected)} selected</strong>
            {!all && total !== undefined && total > chosen.size && (
              <button type="button" class="link" onClick={() => setAll(true)}>all {count(total)} that match</button>
            )}
            {may("operate") && (["rerun", "cancel", "pause", "resume"] as const).map((action) => (
              <button type="button" onClick={() => showDialog(`${action} ${count(selected)}`, (close) => <Bulk close={close} action={action} ids={all ? null : [...chosen.keys()]} query={query} done={reload} />)}>
                {action}
              </button>
            ))}
            {chosen.size === 2 && !all && (
              <button type="button" onClick={() => go(`/compare?a=${older}&b=${newer}`)}>compare</button>
            )}
          </>
        ) : (
          <span class="quiet">{rows.length < (total ?? 0) ? `${count(rows.length)} of ${count(total!)} loaded` : ""}</span>
        )}
        <span class="help">
          <kbd>j</kbd>/<kbd>k</kbd> move <kbd>⏎</kbd> open <kbd>x</kbd> select <kbd>/</kbd> query <kbd>?</kbd> help
        </span>
      </div>
    </main>
  );
}

function shown(value: unknown): string {
  return value === undefined || value === null ? "" : typeof value === "string" ? value : writeJson(value);
}

/** The query with another value for one of its keys. */
export function withTerm(query: string, key: string, value: string): string {
  const rest = query.replace(new RegExp(`(^|\\s)${key}:("[^"]*"|\\S+)`, "g"), "").trim();
  return `${rest} ${key}:${/\s/.test(value) ? JSON.stringify(value) : value}`.trim();
}

function Columns({ close, fields }: { close: () => void; fields: string[] }) {
  return (
    <Ask does="Show" close={close} run={async (data) => ask({ columns: String(data.get("columns")) })}>
      <label>
        Fields of the workload, with commas
        <input name="columns" value={fields.join(", ")} placeholder="region, shop.name" autofocus />
      </label>
    </Ask>
  );
}

type Action = "rerun" | "cancel" | "pause" | "resume";
const DONE: Record<Action, string> = { rerun: "rerun", cancel: "cancelled", pause: "paused", resume: "resumed" };

/** What an action would do is said before it is done. */
function Bulk({ close, action, ids, query, done }: { close: () => void; action: Action; ids: string[] | null; query: string; done: () => void }) {
  const which = ids ? { ids } : { q: query };
  const dry = useLoaded(`${action} ${query} ${ids?.join()}`, () => call("POST /api/executions/bulk", { body: { action, ...which, dry_run: true } }));
  const run = async (data: FormData) => {
    const told = await call("POST /api/executions/bulk", { body: { action, ...which, dry_run: false, reason: String(data.get("reason") ?? "") } });
    const first = told.failed[0];
    tell(`${action}: ${count(told.done)} of ${count(told.eligible)}.${first ? ` ${first.message}` : ""}`, { failed: told.failed.length > 0 });
    done();
  };
  if (dry.error) return <Trouble problem={dry.error} />;
  if (!dry.value) return <p class="quiet">Counting …</p>;
  if (!dry.value.eligible)
    return (
      <>
        <p>{dry.value.matched === 1 ? "It cannot" : `None of the ${count(dry.value.matched)} selected can`} be {DONE[action]} in the state it is in.</p>
        <p class="actions"><button type="button" onClick={close}>Close</button></p>
      </>
    );
  return (
    <Ask does={`${action} ${count(dry.value.eligible)}`} danger={action === "cancel"} run={run} close={close}>
      <p>
        {count(dry.value.eligible)} of the {count(dry.value.matched)} selected will be {DONE[action]}.
        {dry.value.eligible < dry.value.matched && " The state of the others does not allow it; they stay as they are."}
      </p>
      {action !== "resume" && action !== "rerun" && (
        <label>
          <span>Reason <span class="quiet">(optional, kept in the log)</span></span>
          <input name="reason" autofocus />
        </label>
      )}
    </Ask>
  );
}

function Views({ query, columns }: { query: string; columns: string[] }) {
  const views = useLoaded("views", () => call("GET /api/views", {}));
  const found = views.value?.views ?? [];
  const current = found.find((one) => one.q === query && query);
  const save = (close: () => void) => (
    <Ask
      does="Keep"
      close={close}
      run={async (data) => {
        await call("PUT /api/views/{name}", { path: { name: String(data.get("name")) }, body: { q: query, columns } });
        views.reload();
      }}
    >
      <p>
        Keep <code>{query || "(all)"}</code> on the server, for everybody:
      </p>
      <label>
        Name
        <input name="name" required maxLength={100} autofocus />
      </label>
    </Ask>
  );
  return (
    <label>
      <span class="hidden">Saved views</span>
      <select
        value={current?.name ?? ""}
        onChange={(event) => {
          const chosen = event.currentTarget.value;
          event.currentTarget.value = current?.name ?? "";
          if (chosen === "+") showDialog("Keep this view", save);
          else if (chosen === "-" && current) removeDialog("Forget", `“${current.name}”`, () => call("DELETE /api/views/{name}", { path: { name: current.name } }), views.reload, "It goes for everybody.");
          else {
            const view = found.find((one) => one.name === chosen);
            ask({ q: view?.q ?? "", columns: view?.columns.join(",") ?? "" }, { push: true });
          }
        }}
      >
        <option value="">views</option>
        {found.map((one) => (
          <option value={one.name}>{one.name}</option>
        ))}
        {may("operate") && <option value="+">keep this one …</option>}
        {may("operate") && current && <option value="-">forget “{current.name}”</option>}
      </select>
    </label>
  );
}
