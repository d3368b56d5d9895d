// Forms that wait for people.
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { call, may } from "../api/client";
import type { WaitDocument } from "../api/types";
import { useLoaded } from "../data";
import { AnswerForm } from "../execution/form";
import { showDialog } from "../parts/dialog";
import { Empty, Trouble } from "../parts/notes";
import { When } from "../time";
import { href, path } from "../url";

const EVERY = 5000;
const QUERY = "status:waiting";
const waiting = signal(0);

interface Letter {
  executionId: string;
  playbook: string;
  wait: WaitDocument;
}

async function letters(): Promise<Letter[]> {
  const page = await call("GET /api/executions", { query: { q: QUERY, limit: 100 } });
  const asking = page.executions.filter((one) => one.waits === "form");
  const found = await Promise.all(
    asking.map(async (one) => {
      const why = await call("GET /api/executions/{execution_id}/why", { path: { execution_id: one.execution_id } });
      return why.waits_for.filter((wait) => wait.form?.length).map((wait) => ({ executionId: one.execution_id, playbook: one.path, wait }));
    }),
  );
  return found.flat();
}

/** How many forms wait, for the header. */
export function useInboxCount(): number {
  useEffect(() => {
    const look = () => {
      if (!document.hidden)
        call("GET /api/executions", { query: { q: QUERY, limit: 100 } }).then(
          (page) => (waiting.value = page.executions.filter((one) => one.waits === "form").length),
          () => undefined,
        );
    };
    look();
    const timer = setInterval(look, 2 * EVERY);
    return () => clearInterval(timer);
  }, []);
  return waiting.value;
}

export function Inbox() {
  const found = useLoaded("inbox", letters, EVERY);
  return (
    <main class="page" tabIndex={-1}>
      <h1>Inbox</h1>
      {found.error && <Trouble problem={found.error} />}
      {found.value && !found.value.length && (
        <Empty title="No form waits for anybody.">
          <p>
            A step with <code>spec.form</code> waits here until somebody answers; see examples/approval.yaml.
          </p>
        </Empty>
      )}
      <ul class={`plain ${found.stale ? "stale" : ""}`}>
        {found.value?.map(({ executionId, playbook, wait }) => (
          <li key={`${executionId}/${wait.step}`}>
            <div class="cut">
              <strong>{wait.form![0]!.label || wait.step}</strong>
              <div class="quiet">
                <a href={href(`${path("executions", executionId)}?step=${encodeURIComponent(wait.step ?? "")}`)}>
                  {playbook}, {wait.step}
                </a>{" "}
                since <When at={wait.since ?? null} />
                {wait.until && (
                  <>
                    , until <When at={wait.until} />
                  </>
                )}
              </div>
            </div>
            <span class="space" />
            {may("operate") && (
              <button
                type="button"
                class="primary"
                onClick={() =>
                  showDialog(wait.step ?? playbook, (close) => (
                    <AnswerForm executionId={executionId} step={wait.step ?? ""} questions={wait.form!} event={wait.events?.[0] ?? "approval.received"} close={close} done={found.reload} />
                  ))
                }
              >
                Answer
              </button>
            )}
          </li>
        ))}
      </ul>
    </main>
  );
}
