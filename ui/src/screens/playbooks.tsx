// The catalog as a tree of paths.
import { useState } from "preact/hooks";
import { call, may } from "../api/client";
import type { CatalogItem, RunMark } from "../api/types";
import { useLoaded } from "../data";
import { useKeys } from "../keys";
import { Command, Empty, Trouble } from "../parts/notes";
import { standing, Status } from "../parts/status";
import { Strip } from "../parts/strip";
import { count, When } from "../time";
import { ask, asked, href, path } from "../url";

interface Folder {
  name: string;
  path: string;
  folders: Map<string, Folder>;
  items: CatalogItem[];
}

function tree(items: CatalogItem[]): Folder {
  const root: Folder = { name: "", path: "", folders: new Map(), items: [] };
  for (const item of items) {
    let folder = root;
    for (const part of item.path.split("/").slice(0, -1)) {
      let next = folder.folders.get(part);
      if (!next) folder.folders.set(part, (next = { name: part, path: `${folder.path}${part}/`, folders: new Map(), items: [] }));
      folder = next;
    }
    folder.items.push(item);
  }
  return root;
}

/** A folder that holds nothing but one other is one line with it. */
function shortened(folder: Folder): Folder {
  const only = folder.folders.size === 1 && !folder.items.length ? [...folder.folders.values()][0]! : null;
  return only ? shortened({ ...only, name: `${folder.name}/${only.name}` }) : folder;
}

/** Other documents stand in the catalog, too; they have pages of their own. */
function pageOf(item: CatalogItem): string {
  const kind = item.kind.toLowerCase();
  if (kind === "schedule") return path("schedules", item.path);
  if (kind === "hook" || kind === "consumer") return `${path("schedules", item.path)}?kind=${kind}s`;
  if (kind === "notification") return "/schedules?kind=notifications";
  return path("playbooks", item.path);
}

/** The server tells of so many at once how they ran. */
const ASKED_MAX = 500;
/** With more than so many in it a tree is closed until somebody opens it. */
const OPEN_MAX = 200;

async function runsOf(paths: string[]): Promise<Map<string, RunMark[]>> {
  const runs = new Map<string, RunMark[]>();
  for (let from = 0; from < paths.length; from += ASKED_MAX) {
    const found = await call("POST /api/executions/latest", { body: { paths: paths.slice(from, from + ASKED_MAX) } });
    for (const one of found.playbooks) runs.set(one.path, one.runs);
  }
  return runs;
}

/** Which folders are open, by their path. */
interface Opened {
  has: (path: string) => boolean;
  set: (path: string, open: boolean) => void;
}

function Branch({ folder, opened, runs }: { folder: Folder; opened: Opened; runs: ReadonlyMap<string, RunMark[]> }) {
  return (
    <>
      {[...folder.folders.values()].map(shortened).map((one) => (
        <details key={one.path} open={opened.has(one.path)} onToggle={(event) => opened.set(one.path, event.currentTarget.open)}>
          <summary>
            <bdi>{one.name}/</bdi> <span class="quiet">{count(size(one))}</span>
          </summary>
          {opened.has(one.path) && (
            <div class="folder">
              <Branch folder={one} opened={opened} runs={runs} />
            </div>
          )}
        </details>
      ))}
      <ul class="plain">
        {folder.items.map((item) => (
          <li key={item.path}>
            <a href={href(pageOf(item))}>{item.path.split("/").at(-1)}</a>
            <span class="quiet">v{item.version}</span>
            {item.kind !== "Playbook" && <span class="kind">{item.kind.toLowerCase()}</span>}
            <span class="quiet cut">{item.description}</span>
            <span class="space" />
            <Became item={item} runs={runs.get(item.path) ?? []} />
          </li>
        ))}
      </ul>
    </>
  );
}

/** How it ran lately; of what never ran, since when it is there. */
function Became({ item, runs }: { item: CatalogItem; runs: RunMark[] }) {
  const last = runs[0];
  if (!last)
    return (
      <>
        <span class="quiet wide-only">registered</span>
        <When at={item.created_at} />
      </>
    );
  return (
    <>
      <Strip name={item.path} runs={runs} />
      <a class="last" href={href(path("executions", last.execution_id))}>
        <span class="hidden">last run of {item.path}:</span> <Status status={standing(last)} /> <When at={last.start_time} />
      </a>
    </>
  );
}

function size(folder: Folder): number {
  return folder.items.length + [...folder.folders.values()].reduce((sum, one) => sum + size(one), 0);
}

/** Playbooks that nobody has to open a folder for. */
function seen(folder: Folder, opened: Opened): string[] {
  const below = [...folder.folders.values()].map(shortened).filter((one) => opened.has(one.path));
  return [...below.flatMap((one) => seen(one, opened)), ...folder.items.flatMap((one) => (one.kind === "Playbook" ? [one.path] : []))];
}

export function Playbooks() {
  const found = useLoaded("catalog", () => call("POST /api/catalog/list", { body: {} }), 10_000);
  const [text, setText] = useState(asked("q"));
  useKeys([{ key: "/", says: "search", run: () => document.getElementById("search")?.focus() }]);
  const items = found.value?.entries.filter((one) => !text || `${one.path} ${one.description}`.toLowerCase().includes(text.toLowerCase()));
  const isOpen = (items?.length ?? 0) <= OPEN_MAX;
  // What somebody opened or closed stays so; the rest follows how many there are.
  const [turned, setTurned] = useState<ReadonlyMap<string, boolean>>(new Map());
  const opened: Opened = {
    has: (path) => turned.get(path) ?? isOpen,
    set: (path, open) => open !== opened.has(path) && setTurned(new Map(turned).set(path, open)),
  };
  const root = tree(items ?? []);
  const followed = seen(root, opened);
  const latest = useLoaded(followed.join(), () => runsOf(followed), 0, ["executions"]);
  const runs = latest.value ?? new Map<string, RunMark[]>();
  return (
    <main class="page" tabIndex={-1}>
      <div class="row">
        <h1>Playbooks</h1>
        <input
          id="search"
          type="search"
          aria-label="Search playbooks"
          placeholder="search"
          value={text}
          onInput={(event) => {
            setText(event.currentTarget.value);
            setTurned(new Map());
            ask({ q: event.currentTarget.value });
          }}
        />
        <span class="space" />
        {may("author") && <a href={href("/editor")}>New playbook</a>}
      </div>
      {found.error && <Trouble problem={found.error} />}
      {found.value && !found.value.entries.length && (
        <Empty title="The catalog is empty.">
          <p>Register a file or a whole directory:</p>
          <Command>noetl register examples/</Command>
        </Empty>
      )}
      {items && items.length > 0 && <Branch folder={root} opened={opened} runs={runs} />}
      {items && !items.length && found.value!.entries.length > 0 && <Empty title="No playbook is called so." />}
    </main>
  );
}
