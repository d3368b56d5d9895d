// A new execution that goes on from any event of this one; the dry run says which calls happen again.
import { useState } from "preact/hooks";
import { call } from "../api/client";
import type { ExecutionDocument, ForkPlanDocument } from "../api/types";
import { Ask, showDialog } from "../parts/dialog";
import { tell } from "../parts/notes";
import { isOver } from "../parts/status";
import { typedObject } from "../parts/typed";
import { count } from "../time";
import { go, path } from "../url";

/** From where: an event; or of the loop that it belongs to one iteration, or all that failed. */
export interface Wish {
  seq: number;
  iteration?: number;
  failed?: true;
}

function told(wish: Wish): string {
  if (wish.failed) return "Only the failed iterations of the loop happen again, and what follows the loop; all others are reused.";
  if (wish.iteration !== undefined) return `Only iteration ${wish.iteration} happens again, and what follows the loop; all others are reused.`;
  return `Everything up to event ${count(wish.seq)} is reused.`;
}

function ForkForm({ execution, wish, close }: { execution: ExecutionDocument; wish: Wish; close: () => void }) {
  const [plan, setPlan] = useState<ForkPlanDocument | null>(null);
  return (
    <Ask
      does={plan ? "Fork" : "What would happen?"}
      close={close}
      run={async (data) => {
        const body = { ...wish, version: data.get("latest") ? ("latest" as const) : null, ctx: typedObject("The change of ctx", data.get("ctx")) };
        const told = await call("POST /api/executions/{execution_id}/fork", { path: { execution_id: execution.execution_id }, body: { ...body, dry_run: plan === null } });
        if (!plan) {
          setPlan(told.plan);
          return "stay";
        }
        tell("Forked.");
        if (told.execution_id) go(path("executions", told.execution_id));
        return undefined;
      }}
    >
      <p class="quiet">A new execution; this one stays as it is. {told(wish)}</p>
      <label class="check">
        <input type="checkbox" name="latest" onChange={() => setPlan(null)} /> with the newest version of the playbook
      </label>
      <label>
        <span>
          Change ctx <span class="quiet">(JSON, optional)</span>
        </span>
        <textarea name="ctx" rows={3} spellcheck={false} onInput={() => setPlan(null)} />
      </label>
      {plan && (
        <div aria-live="polite">
          <p>
            {count(plan.reused)} {plan.reused === 1 ? "call is" : "calls are"} reused, {count(plan.again)} {plan.again === 1 ? "happens" : "happen"} again{plan.goes_on.length > 0 && <>; it goes on in {plan.goes_on.join(", ")}</>}.
            {plan.again === 0 && isOver(execution.status) && " Nothing that ran runs again: to repeat a step, move the slider to an event before it, or rerun from it."}
          </p>
          <ul class="plain">
            {plan.calls.map((one) => (
              <li>
                <span class="words">
                  {one.step}, {one.task}
                  {(one.iterations?.length ?? 0) > 0 && <span class="quiet"> [{one.iterations!.join(", ")}{one.again > one.iterations!.length && ", …"}]</span>}
                </span>
                <span class="space" />
                <span class="quiet num">{count(one.reused)} reused</span>
                {one.again > 0 && <span class="paused num">{count(one.again)} again</span>}
              </li>
            ))}
          </ul>
        </div>
      )}
    </Ask>
  );
}

export function forkDialog(execution: ExecutionDocument, wish: Wish): void {
  const where = wish.failed ? ", failed iterations" : wish.iteration !== undefined ? `, iteration ${wish.iteration}` : ` at event ${wish.seq}`;
  showDialog(`Fork ${execution.path}${where}`, (close) => <ForkForm execution={execution} wish={wish} close={close} />);
}
