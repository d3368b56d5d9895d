// The catalog as a tree of paths.
import { useState } from "preact/hooks";
import { call, may } from "../api/client";
import type { CatalogItem } from "../api/types";
import { useLoaded } from "../data";
import { useKeys } from "../keys";
import { Command, Empty, Trouble } from "../parts/notes";
import { When } from "../time";
import { ask, asked, href, path } from "../url";

interface Folder {
  name: string;
  folders: Map<string, Folder>;
  items: CatalogItem[];
}

function tree(items: CatalogItem[]): Folder {
  const root: Folder = { name: "", folders: new Map(), items: [] };
  for (const item of items) {
    let folder = root;
    for (const part of item.path.split("/").slice(0, -1)) {
      let next = folder.folders.get(part);
      if (!next) folder.folders.set(part, (next = { name: part, folders: new Map(), items: [] }));
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

function Branch({ folder, closed }: { folder: Folder; closed: boolean }) {
  return (
    <>
      {[...folder.folders.values()].map(shortened).map((one) => (
        <details open={!closed}>
          <summary>
            {one.name}/ <span class="quiet">{size(one)}</span>
          </summary>
          <div class="folder">
            <Branch folder={one} closed={closed} />
          </div>
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
            <span class="quiet wide-only">registered</span>
            <When at={item.created_at} />
          </li>
        ))}
      </ul>
    </>
  );
}

function size(folder: Folder): number {
  return folder.items.length + [...folder.folders.values()].reduce((sum, one) => sum + size(one), 0);
}

export function Playbooks() {
  const found = useLoaded("catalog", () => call("POST /api/catalog/list", { body: {} }), 10_000);
  const [text, setText] = useState(asked("q"));
  useKeys([{ key: "/", says: "search", run: () => document.getElementById("search")?.focus() }]);
  const items = found.value?.entries.filter((one) => !text || `${one.path} ${one.description}`.toLowerCase().includes(text.toLowerCase()));
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
      {items && items.length > 0 && <Branch folder={tree(items)} closed={!text && items.length > 200} />}
      {items && !items.length && found.value!.entries.length > 0 && <Empty title="No playbook is called so." />}
    </main>
  );
}
