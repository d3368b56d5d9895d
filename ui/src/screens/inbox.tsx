// Forms that wait for people.
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { call, may } from "../api/client";
import { subscribe } from "../api/live";
import { useLoaded } from "../data";
import { AnswerForm } from "../execution/form";
import { showDialog } from "../parts/dialog";
import { Empty, tellProblem, Trouble } from "../parts/notes";
import { count, When } from "../time";
import { href, path } from "../url";

const EVERY = 5000;
const SHOWN = 200;
const waiting = signal(0);

/** How many forms wait, for the header. */
export function useInboxCount(): number {
  useEffect(() => {
    call("GET /api/inbox", { query: { limit: 1 } }).then((inbox) => (waiting.value = inbox.total), tellProblem);
    return subscribe("inbox", (said) => (waiting.value = (said as { total: number } | null)?.total ?? waiting.value));
  }, []);
  return waiting.value;
}

export function Inbox() {
  const found = useLoaded("inbox", () => call("GET /api/inbox", { query: { limit: SHOWN } }), EVERY);
  const reload = () => {
    found.reload();
    waiting.value = Math.max(0, waiting.value - 1);
  };
  return (
    <main class="page" tabIndex={-1}>
      <h1>Inbox</h1>
      {found.error && <Trouble problem={found.error} />}
      {found.value && !found.value.forms.length && (
        <Empty title="No form waits for anybody.">
          <p>
            A step with <code>spec.form</code> waits here until somebody answers; see examples/approval.yaml.
          </p>
        </Empty>
      )}
      <ul class={`plain ${found.stale ? "stale" : ""}`}>
        {found.value?.forms.map((one) => (
          <li key={one.step_run_id}>
            <div class="cut">
              <strong>{one.form[0]?.label || one.step}</strong>
              <div class="quiet">
                <a href={href(`${path("executions", one.execution_id)}?step=${encodeURIComponent(one.step)}`)}>
                  {one.path}, {one.step}
                </a>{" "}
                since <When at={one.since} />
                {one.until && (
                  <>
                    , until <When at={one.until} />
                  </>
                )}
              </div>
            </div>
            <span class="space" />
            {may("operate") && (
              <button type="button" class="primary" onClick={() => showDialog(one.step, (close) => <AnswerForm executionId={one.execution_id} step={one.step} questions={one.form} event="approval.received" close={close} done={reload} />)}>
                Answer
              </button>
            )}
          </li>
        ))}
      </ul>
      {found.value?.next_cursor && <p class="quiet">the first {count(SHOWN)} of {count(found.value.total)}</p>}
    </main>
  );
}
