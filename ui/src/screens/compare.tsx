// Two executions side by side: the first difference on top, then durations step by step.
import { call } from "../api/client";
import type { DiffDocument, Difference } from "../api/types";
import { useLoaded } from "../data";
import { Said } from "../execution/step";
import { Json } from "../parts/json";
import { Empty, Trouble } from "../parts/notes";
import { Status } from "../parts/status";
import { Table } from "../parts/table";
import { count, took } from "../time";
import { ask, asked, href, path } from "../url";

export function Compare() {
  const [a, b] = [asked("a"), asked("b")];
  const found = useLoaded<DiffDocument | null>(`${a} ${b}`, () => (a && b ? call("GET /api/executions/diff", { query: { a, b } }) : Promise.resolve(null)));
  return (
    <main class="page" tabIndex={-1}>
      <h1>Compare</h1>
      <form
        class="row"
        onSubmit={(event) => {
          event.preventDefault();
          const data = new FormData(event.currentTarget);
          ask({ a: String(data.get("a")).trim(), b: String(data.get("b")).trim() }, { push: true });
        }}
      >
        <label>A <input name="a" class="mono" defaultValue={a} key={a} placeholder="id" /></label>
        <label>B <input name="b" class="mono" defaultValue={b} key={b} placeholder="id" /></label>
        <button type="submit">Compare</button>
      </form>
      {found.error && <Trouble problem={found.error} />}
      {found.value ? (
        <Both diff={found.value} />
      ) : (
        !found.error &&
        !(a && b) && (
          <Empty title="Choose two executions.">
            <p>
              Select two in the <a href={href("/executions")}>list</a> and press compare, or paste their ids.
            </p>
          </Empty>
        )
      )}
    </main>
  );
}

/** A difference in words; those of a status are the words of every other page. */
function Sentence({ one }: { one: Difference }) {
  if (one.what !== "status") return <Said text={one.text} />;
  return <p>it is <Status status={String(one.a)} /> in the first and <Status status={String(one.b)} /> in the second</p>;
}

const WITH_VALUES = new Set(["playbook", "workload", "outcome", "result"]);

/** What is on either side. Of two texts of a playbook nobody reads the checksums: their differences are a click away. */
function Sides({ one, diff: { a, b } }: { one: Difference; diff: DiffDocument }) {
  if (one.what === "status") return null;
  if (one.what === "playbook")
    return a.path === b.path && a.version !== null && b.version !== null ? (
      <p><a href={href(`${path("playbooks", a.path)}?version=${b.version}&against=${a.version}`)}>what differs between the versions</a></p>
    ) : null;
  return (
    <div class="columns">
      {([["A", one.a, a, one.seq_a], ["B", one.b, b, one.seq_b]] as const).map(([name, value, { execution_id: id }, seq]) => (
        <section>
          <h3>{seq ? <a href={href(`${path("executions", id)}?tab=events&at=${seq}`)}>{name}, event {seq}</a> : name}</h3>
          {value !== null && value !== undefined ? <Json value={value} /> : <span class="quiet">nothing</span>}
        </section>
      ))}
    </div>
  );
}

function inAll(runs: number, seconds: number): string {
  if (!runs) return "–";
  return runs > 1 ? `${took(seconds)}, ${count(runs)} runs` : took(seconds);
}

function Both({ diff }: { diff: DiffDocument }) {
  const [first, ...others] = diff.differences;
  const longest = Math.max(0.001, ...diff.steps.flatMap((one) => [one.seconds_a, one.seconds_b]));
  return (
    <>
      {[diff.a, diff.b].map((one, number) => (
        <p class="row">
          <strong>{number ? "B" : "A"}</strong>
          <a href={href(path("executions", one.execution_id))}>
            {one.path}
            {one.version !== null && ` v${one.version}`} …{one.execution_id.slice(-6)}
          </a>
          <Status status={one.status} /> <span class="num">{took(one.duration_seconds)}</span>
        </p>
      ))}
      <h2>{first ? `First difference${first.step ? `: ${first.step}` : ""}` : "They are the same."}</h2>
      {first && (
        <>
          <Sentence one={first} />
          <Sides one={first} diff={diff} />
        </>
      )}
      {others.length > 0 && (
        <>
          <h2>Further differences</h2>
          <ul class="plain">
            {others.map((one) => (
              <li class="wraps">
                {one.step && <span class="quiet">{one.step}</span>} <Sentence one={one} />
                {WITH_VALUES.has(one.what) && (
                  <details>
                    <summary class="quiet">A and B</summary>
                    <Sides one={one} diff={diff} />
                  </details>
                )}
              </li>
            ))}
          </ul>
          {diff.more && <p class="quiet">and more</p>}
        </>
      )}
      <h2>Steps</h2>
      <Table
        label="Steps side by side"
        rows={diff.steps}
        columns={[
          { title: "step", cell: (one) => one.step },
          { title: "A", class: "num", named: true, cell: (one) => inAll(one.runs_a, one.seconds_a) },
          { title: "B", class: "num", named: true, cell: (one) => inAll(one.runs_b, one.seconds_b) },
          {
            title: "durations",
            cell: (one) => (
              <div class="pair" aria-hidden="true">
                <i style={{ width: `${(100 * one.seconds_a) / longest}%` }} />
                <i style={{ width: `${(100 * one.seconds_b) / longest}%` }} />
              </div>
            ),
          },
        ]}
      />
    </>
  );
}
