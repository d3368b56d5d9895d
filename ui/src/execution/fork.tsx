// A new execution that goes on from any event of this one; the dry run says which calls happen again.
import { useState } from "preact/hooks";
import { call } from "../api/client";
import type { ExecutionDocument, ForkPlanDocument } from "../api/types";
import { Ask, showDialog } from "../parts/dialog";
import { tell } from "../parts/notes";
import { count } from "../time";
import { go, path } from "../url";

function ForkForm({ execution, seq, close }: { execution: ExecutionDocument; seq: number; close: () => void }) {
  const [plan, setPlan] = useState<ForkPlanDocument | null>(null);
  return (
    <Ask
      does={plan ? "Fork" : "What would happen?"}
      close={close}
      run={async (data) => {
        const changed = String(data.get("ctx")).trim();
        const body = { seq, version: data.get("latest") ? ("latest" as const) : null, ctx: changed ? JSON.parse(changed) : null };
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
      <p class="quiet">A new execution with everything up to event {count(seq)}; this one stays as it is.</p>
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
        <>
          <p>
            {count(plan.reused)} calls are reused, {count(plan.again)} happen again{plan.goes_on.length > 0 && <>; it goes on in {plan.goes_on.join(", ")}</>}.
          </p>
          <ul class="plain">
            {plan.calls.map((one) => (
              <li>
                <span>
                  {one.step}, {one.task}
                </span>
                <span class="space" />
                <span class="quiet">{count(one.reused)} reused</span>
                {one.again > 0 && <span class="paused">{count(one.again)} again</span>}
              </li>
            ))}
          </ul>
        </>
      )}
    </Ask>
  );
}

export function forkDialog(execution: ExecutionDocument, seq: number): void {
  showDialog(`Fork ${execution.path} at event ${seq}`, (close) => <ForkForm execution={execution} seq={seq} close={close} />);
}
