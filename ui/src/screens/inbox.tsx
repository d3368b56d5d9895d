// Forms that wait for people.
import { signal } from "@preact/signals";
import { call, may, mayAnswer } from "../api/client";
import { useLoaded } from "../data";
import { AnswerForm } from "../execution/form";
import { showDialog } from "../parts/dialog";
import { Command, Empty, Trouble } from "../parts/notes";
import { Tabs } from "../parts/tabs";
import { count, When } from "../time";
import { ask, asked, href, path } from "../url";

const EVERY = 15_000;
const COUNT_EVERY = 60_000;
const SHOWN = 200;
const COUNTED = 100;
/** Changes with each answer that is given here: nobody waits for the news of their own. */
const answered = signal(0);

/** How many forms wait for whoever looks, for the header. */
export function useInboxCount(): string {
  const found = useLoaded(`answered ${answered.value}`, () => call("GET /api/inbox", { query: { mine: true, limit: COUNTED } }), COUNT_EVERY, ["inbox"]);
  const forms = found.value?.forms.length ?? 0;
  return found.value?.next_cursor ? `${forms}+` : forms ? String(forms) : "";
}

const WHOSE = ["mine", "all"] as const;

export function Inbox() {
  const role = asked("role");
  const whose = role || asked("show") === "all" || !may("operate") ? "all" : "mine";
  const found = useLoaded(`inbox ${whose} ${role}`, () => call("GET /api/inbox", { query: { limit: SHOWN, mine: whose === "mine", role: role || null } }), EVERY, ["inbox"]);
  const reload = () => {
    found.reload();
    answered.value++;
  };
  return (
    <main class="page" tabIndex={-1}>
      <h1>Inbox</h1>
      <Tabs label="Whose forms" names={may("operate") ? WHOSE : ["all"]} chosen={whose} onChoose={(one) => ask({ show: one, role: "" })} />
      <div class="part" role="tabpanel" aria-labelledby={`tab-${whose}`}>
        {found.error && <Trouble problem={found.error} />}
        {role && <p class="quiet">for the role {role} · <button type="button" class="link" onClick={() => ask({ show: "all", role: "" })}>all roles</button></p>}
        {found.value && !found.value.forms.length && (
          <Empty title={whose === "mine" ? "No form waits for you." : role ? `No form waits for the role ${role}.` : "No form waits for anybody."}>
            <p>
              A step with <code>spec.form</code> waits here until somebody answers; with <code>role</code> in it, until somebody of that role does. Try one:
            </p>
            <Command>noetl register examples/approval.yaml</Command>
            <Command>noetl execute examples/approval</Command>
          </Empty>
        )}
      <ul class={`plain ${found.stale ? "stale" : ""}`}>
        {found.value?.forms.map((one) => (
          <li key={one.step_run_id}>
            <div class="words">
              <strong>{one.form[0]?.label || one.step}</strong>
              <div class="quiet">
                <a href={href(`${path("executions", one.execution_id)}?step=${encodeURIComponent(one.step)}`)}>
                  {one.path}, {one.step}
                </a>{" "}
                {one.role && (
                  <>
                    for the role <button type="button" class="link" onClick={() => ask({ role: one.role ?? "" })}>{one.role}</button>{" "}
                  </>
                )}
                asked <When at={one.since} />
                {one.until && (
                  <>
                    , waits until <When at={one.until} />
                  </>
                )}
              </div>
            </div>
            <span class="space" />
            {mayAnswer(one.role) && (
              <button type="button" class="primary" onClick={() => showDialog(`${one.path}, ${one.step}`, (close) => <AnswerForm executionId={one.execution_id} step={one.step} questions={one.form} close={close} done={reload} />)}>
                Answer
              </button>
            )}
          </li>
        ))}
      </ul>
      {found.value?.next_cursor && <p class="quiet">the first {count(found.value.forms.length)}; {count(found.value.total)} executions wait with a form</p>}
      </div>
    </main>
  );
}
