// Two executions side by side: the first difference on top, then durations step by step.
import { call } from "../api/client";
import type { ExecutionDocument, StepDocument } from "../api/types";
import { useLoaded } from "../data";
import { Empty, Trouble } from "../parts/notes";
import { Mark, Status, wordOf } from "../parts/status";
import { took, When } from "../time";
import { ask, asked, href, path } from "../url";

function secondsOf(step: StepDocument | undefined): number | null {
  return step?.started_at && step.ended_at ? (Date.parse(step.ended_at) - Date.parse(step.started_at)) / 1000 : null;
}

function said(value: unknown): string {
  return JSON.stringify(value) ?? "undefined";
}

/** What is different between the same step of two executions; null if nothing is. */
function difference(a: StepDocument | undefined, b: StepDocument | undefined): string | null {
  if (!a || !b) return a ? "only in A" : "only in B";
  if (a.status !== b.status) return `${wordOf(a.status)} / ${wordOf(b.status)}`;
  if (a.error?.message !== b.error?.message) return "other error";
  if (said(a.result) !== said(b.result)) return "other result";
  if (a.runs !== b.runs) return `${a.runs} / ${b.runs} runs`;
  if (a.attempts !== b.attempts) return `${a.attempts} / ${b.attempts} tries`;
  return null;
}

export function Compare() {
  const ids = [asked("a"), asked("b")] as const;
  const [a, b] = ids.map((id) => useLoaded<ExecutionDocument | null>(id, () => (id ? call("GET /api/executions/{execution_id}", { path: { execution_id: id } }) : Promise.resolve(null)))) as [ReturnType<typeof useLoaded<ExecutionDocument | null>>, ReturnType<typeof useLoaded<ExecutionDocument | null>>];
  const form = (
    <form
      class="row"
      onSubmit={(event) => {
        event.preventDefault();
        const data = new FormData(event.currentTarget);
        ask({ a: String(data.get("a")).trim(), b: String(data.get("b")).trim() }, { push: true });
      }}
    >
      <label>A <input name="a" class="mono" defaultValue={ids[0]} key={ids[0]} placeholder="id" /></label>
      <label>B <input name="b" class="mono" defaultValue={ids[1]} key={ids[1]} placeholder="id" /></label>
      <button type="submit">Compare</button>
    </form>
  );
  return (
    <main class="page" tabIndex={-1}>
      <h1>Compare</h1>
      {form}
      {[a, b].map((one) => one.error && <Trouble problem={one.error} />)}
      {a.value && b.value ? (
        <Both a={a.value} b={b.value} />
      ) : (
        <Empty title="Choose two executions.">
          <p>
            Select two in the <a href={href("/executions")}>list</a> and press compare, or paste their ids.
          </p>
        </Empty>
      )}
    </main>
  );
}

function Both({ a, b }: { a: ExecutionDocument; b: ExecutionDocument }) {
  const names = [...new Set([...a.steps, ...b.steps].map((one) => one.step))];
  const rows = names.map((name) => {
    const [left, right] = [a.steps.find((one) => one.step === name), b.steps.find((one) => one.step === name)];
    return { name, left, right, differs: difference(left, right) };
  });
  const first = rows.find((row) => row.differs);
  const inputs = [...new Set([...Object.keys(a.workload), ...Object.keys(b.workload)])].filter((key) => said(a.workload[key]) !== said(b.workload[key]));
  const longest = Math.max(0.001, ...rows.flatMap((row) => [secondsOf(row.left) ?? 0, secondsOf(row.right) ?? 0]));
  return (
    <>
      <p class="row">
        {[a, b].map((one, number) => (
          <span class="row">
            <strong>{number ? "B" : "A"}</strong>
            <a href={href(path("executions", one.execution_id))}>
              {one.path}
              {one.version !== null && ` v${one.version}`}
            </a>
            <Status status={one.status} /> <When at={one.start_time} /> <span class="num">{took(one.duration_seconds)}</span>
          </span>
        ))}
      </p>
      <h2>{first ? `First difference: ${first.name}` : "No step is different."}</h2>
      {first && (
        <div class="columns">
          {[first.left, first.right].map((one, number) => (
            <section>
              <h3>{number ? "B" : "A"}</h3>
              {one ? <Status status={one.status} /> : <span class="quiet">not reached</span>}
              {one?.error && <div class="failure"><div class="message">{one.error.message}</div></div>}
              {one && one.result !== null && <pre>{JSON.stringify(one.result, null, 2)?.slice(0, 4000)}</pre>}
            </section>
          ))}
        </div>
      )}
      {inputs.length > 0 && (
        <>
          <h2>Workload</h2>
          <table>
            <thead>
              <tr>
                <th scope="col">key</th>
                <th scope="col">A</th>
                <th scope="col">B</th>
              </tr>
            </thead>
            <tbody>
              {inputs.map((key) => (
                <tr>
                  <td>{key}</td>
                  <td class="mono">{said(a.workload[key]).slice(0, 400)}</td>
                  <td class="mono">{said(b.workload[key]).slice(0, 400)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </>
      )}
      <h2>Steps</h2>
      <div class="tablebox" tabIndex={0} role="group" aria-label="Steps side by side">
        <table>
          <thead>
            <tr>
              <th scope="col">step</th>
              <th scope="col" class="num">A</th>
              <th scope="col" class="num">B</th>
              <th scope="col">durations</th>
              <th scope="col">difference</th>
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => {
              const [left, right] = [secondsOf(row.left), secondsOf(row.right)];
              return (
                <tr>
                  <td>{row.name}</td>
                  <td class="num">{row.left && <Mark status={row.left.status} />} {took(left)}</td>
                  <td class="num">{row.right && <Mark status={row.right.status} />} {took(right)}</td>
                  <td>
                    <div class="pair" aria-hidden="true">
                      <i class="tone-running" style={{ width: `${(100 * (left ?? 0)) / longest}%` }} />
                      <i class="tone-waiting" style={{ width: `${(100 * (right ?? 0)) / longest}%` }} />
                    </div>
                  </td>
                  <td>{row.differs ?? <span class="quiet">same</span>}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </>
  );
}
