// One playbook: its graph and text, versions and what changed, how it ran lately, and a form to start it.
import { useMemo, useState } from "preact/hooks";
import { call, may } from "../api/client";
import type { CatalogResource } from "../api/types";
import { useLoaded } from "../data";
import { answers, Field, type Question } from "../execution/form";
import { lineOf } from "../execution/step";
import { type Drawing, type Mood, NO_ARCS, NO_MOODS } from "../graph/canvas";
import { drawn } from "../graph/layout";
import { GraphView } from "../graph/view";
import { Diff } from "../parts/diff";
import { Ask, showDialog } from "../parts/dialog";
import { Absent, Trouble } from "../parts/notes";
import { Status } from "../parts/status";
import { Strip } from "../parts/strip";
import { typedObject } from "../parts/typed";
import { When } from "../time";
import { ask, asked, go, href, path, words } from "../url";

export function Playbook() {
  const name = words.value.slice(1).join("/");
  const version = asked("version");
  const against = asked("against");
  const one = (number: string) => call("GET /api/catalog/{path}", { path: { path: name }, query: { version: number ? Number(number) : null } });
  const found = useLoaded(`${name} ${version}`, () => one(version));
  const history = useLoaded(`${name} versions`, () => call("GET /api/versions/{path}", { path: { path: name }, query: { limit: 200 } }), 10_000);
  const other = useLoaded(`${name} against ${against}`, () => (against ? one(against) : Promise.resolve(null)));
  const step = asked("step");
  const layout = found.value?.layout;
  const drawing = useMemo(() => (layout ? drawn(layout) : null), [layout]);
  if (!found.value) return <Absent title={name} what={name} problem={found.error} all={{ href: href("/playbooks"), text: "All playbooks" }} />;
  const shown = found.value;
  const versions = history.value?.versions.map((one) => one.version) ?? [shown.version];
  const named = (title: string, paths: string[]) => paths.length > 0 && <span>{title} {paths.map((one, number) => <>{number > 0 && ", "}<a href={href(path("playbooks", one))}>{one}</a></>)}</span>;
  const links = [named("called by", history.value?.called_by ?? []), named("calls", history.value?.calls ?? [])].filter(Boolean);
  const first = step ? lineOf(shown.content, step) : -1;
  return (
    <main class="execution" tabIndex={-1}>
      <div class="title">
        <h1>{shown.path}</h1>
        <label>
          <span class="hidden">Version</span>
          <select value={String(shown.version)} onChange={(event) => ask({ version: event.currentTarget.value })}>
            {versions.map((number) => (
              <option value={String(number)}>version {number}</option>
            ))}
          </select>
        </label>
        {versions.length > 1 && (
          <label>
            compare with
            <select value={against} onChange={(event) => ask({ against: event.currentTarget.value })}>
              <option value="">–</option>
              {versions.filter((number) => number !== shown.version).map((number) => (
                <option value={String(number)}>{number}</option>
              ))}
            </select>
          </label>
        )}
        <span class="quiet">
          registered <When at={shown.created_at} />
        </span>
        <span class="space" />
        {!!history.value?.runs.length && <span class="quiet strip-title">{history.value.runs.length === 1 ? "last run" : "last runs"}</span>}
        <Strip name={shown.path} runs={history.value?.runs ?? []} />
        {may("author") && <a class="button" href={href(`/editor?path=${encodeURIComponent(shown.path)}`)}>Edit</a>}
        {may("operate") && shown.kind === "Playbook" && <button type="button" class="primary" onClick={() => showDialog(`Start ${shown.path}`, (close) => <Start playbook={shown} close={close} />)}>Start</button>}
      </div>
      {(shown.description || links.length > 0) && (
        <p class="headline quiet">
          {shown.description} {links}
        </p>
      )}
      <div class="panes">
        <div class="left">
          {other.value && drawing && other.value.layout ? (
            <GraphDiff
              name={name}
              before={other.value.version < shown.version ? [other.value.version, drawn(other.value.layout)] : [shown.version, drawing]}
              after={other.value.version < shown.version ? [shown.version, drawing] : [other.value.version, drawn(other.value.layout)]}
              selected={step}
            />
          ) : (
            <section class="graph" aria-label="Graph">
              {drawing && <GraphView drawing={drawing} moods={NO_MOODS} taken={NO_ARCS} selected={step} onSelect={(name) => ask({ step: name })} view={asked("view")} onView={(view) => ask({ view })} />}
            </section>
          )}
        </div>
        <section class="panel" aria-label="Text">
          <div class="panel-body" tabIndex={0}>
            {other.error && <Trouble problem={other.error} />}
            {other.value ? (
              <>
                <h2>
                  version {Math.min(other.value.version, shown.version)} → {Math.max(other.value.version, shown.version)}
                </h2>
                {other.value.version < shown.version ? <Diff before={other.value.content} after={shown.content} /> : <Diff before={shown.content} after={other.value.content} />}
              </>
            ) : (
              <Text content={shown.content} first={first} />
            )}
          </div>
        </section>
      </div>
    </main>
  );
}

/** Both graphs, one above the other: what went in the upper one, what came and changed in the lower. */
function GraphDiff({ name, before, after, selected }: { name: string; before: [number, Drawing]; after: [number, Drawing]; selected: string }) {
  const found = useLoaded(`${name} ${before[0]} ${after[0]}`, () => call("GET /api/version-diff/{path}", { path: { path: name }, query: { from: before[0], to: after[0] } }));
  const arcs = ([, drawing]: [number, Drawing]) => new Set(drawing.wires.map((one) => `${one.from}>${one.to}`));
  const without = (all: Set<string>, others: Set<string>) => new Set([...all].filter((one) => !others.has(one)));
  const [gone, come] = [without(arcs(before), arcs(after)), without(arcs(after), arcs(before))];
  const marks = ([, drawing]: [number, Drawing], words: [string, string[]][]) =>
    new Map<string, Mood>(drawing.boxes.map((box) => [box.id, { status: words.find(([, steps]) => steps.includes(box.id))?.[0] ?? "unchanged", attempts: 0, runs: 0 }]));
  const diff = found.value;
  const sides: [string, Drawing, Map<string, Mood>, Set<string>][] = [
    [`version ${before[0]}`, before[1], marks(before, [["removed", diff?.steps_removed ?? []], ["changed", diff?.steps_changed ?? []]]), gone],
    [`version ${after[0]}`, after[1], marks(after, [["added", diff?.steps_added ?? []], ["changed", diff?.steps_changed ?? []]]), come],
  ];
  const words = diff && [["added", diff.steps_added], ["changed", diff.steps_changed], ["removed", diff.steps_removed]].filter(([, steps]) => steps!.length);
  return (
    <>
      {found.error && <Trouble problem={found.error} />}
      {words && (
        <p class="note row">
          {words.length ? words.map(([word, steps]) => <span><Status status={word as string} /> {(steps as string[]).join(", ")}</span>) : <span class="quiet">No step differs.</span>}
          {gone.size + come.size > 0 && <span class="quiet">Arcs drawn dark are only in that version.</span>}
        </p>
      )}
      {sides.map(([title, drawing, moods, taken]) => (
        <section class="graph side" aria-label={`Graph of ${title}`}>
          <span class="side-title quiet">{title}</span>
          <GraphView drawing={drawing} moods={moods} taken={taken} selected={selected} onSelect={(name) => ask({ step: name })} />
        </section>
      ))}
    </>
  );
}

function Text({ content, first }: { content: string; first: number }) {
  const lines = content.split("\n");
  const numbers = lines.map((_, number) => number + 1).join("\n");
  const part = (from: number, to?: number) => lines.slice(from, to).join("\n");
  return (
    <div class="text" tabIndex={0} role="group" aria-label="Text of the playbook">
      <pre class="line-number" aria-hidden="true">{numbers}</pre>
      <pre>
        {first < 0 ? (
          content
        ) : (
          <>
            {first > 0 && `${part(0, first)}\n`}
            <mark ref={(element) => element?.scrollIntoView({ block: "center" })}>{lines[first]}</mark>
            {`\n${part(first + 1)}`}
          </>
        )}
      </pre>
    </div>
  );
}

function Start({ playbook, close }: { playbook: CatalogResource; close: () => void }) {
  const [text] = useState(() => workloadOf(playbook.content));
  const inputs = playbook.inputs as Question[];
  return (
    <Ask
      does="Start"
      close={close}
      run={async (data) => {
        const workload = { ...typedObject("The workload", data.get("workload")), ...answers(inputs, data) };
        const started = await call("POST /api/executions", { body: { path: playbook.path, version: playbook.version, workload } });
        go(path("executions", started.execution_id));
      }}
    >
      {inputs.map((one) => (
        <Field question={one} />
      ))}
      <label>
        <span>
          {inputs.length ? "More of the workload" : "Workload"} <span class="quiet">(JSON, put over the playbook's own)</span>
        </span>
        <textarea name="workload" rows={6} spellcheck={false} placeholder="{}" />
      </label>
      {text && (
        <details>
          <summary>the playbook's own workload</summary>
          <pre>{text}</pre>
        </details>
      )}
    </Ask>
  );
}

/** The section `workload` of the text, as it is written. */
function workloadOf(content: string): string {
  const lines = content.split("\n");
  const first = lines.findIndex((line) => /^workload:/.test(line));
  if (first < 0) return "";
  let last = first + 1;
  while (last < lines.length && (!lines[last]!.trim() || /^\s/.test(lines[last]!))) last++;
  return lines.slice(first, last).join("\n").trimEnd();
}
