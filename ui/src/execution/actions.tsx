// What can be done to an execution. What a role may not do is not offered.
import { call, may } from "../api/client";
import type { ExecutionDocument } from "../api/types";
import { Ask, reasonDialog, showDialog } from "../parts/dialog";
import { tell } from "../parts/notes";
import { isOver } from "../parts/status";
import { typedObject } from "../parts/typed";
import { go, href, path } from "../url";
import { forkDialog } from "./fork";

const REASON = <>Reason <span class="quiet">(optional, kept in the log)</span></>;

export function rerunDialog(execution: ExecutionDocument, from: string | null): void {
  const steps = execution.steps.map((one) => one.step);
  showDialog(`Rerun ${execution.path}`, (close) => (
    <Ask
      does="Rerun"
      close={close}
      run={async (data) => {
        const step = String(data.get("from"));
        const started = await call("POST /api/executions/{execution_id}/rerun", {
          path: { execution_id: execution.execution_id },
          body: { from: step || null, workload: typedObject("The workload", data.get("workload")) },
        });
        tell("Started again.");
        go(path("executions", started.execution_id));
      }}
    >
      <label>
        From
        <select name="from">
          <option value="">the start</option>
          {steps.map((step) => (
            <option value={step} selected={step === from}>{step}, with the results before it</option>
          ))}
        </select>
      </label>
      <label>
        <span>
          Over the old workload <span class="quiet">(JSON, optional)</span>
        </span>
        <textarea name="workload" rows={4} placeholder='{"region": "north"}' spellcheck={false} />
      </label>
    </Ask>
  ));
}

function hold(execution: ExecutionDocument) {
  const keep = async (note: string) => {
    await call("POST /api/executions/{execution_id}/hold", { path: { execution_id: execution.execution_id }, body: { note } });
    tell("It is kept until somebody releases it (Admin, retention).");
  };
  reasonDialog("Keep this execution, whatever the rules of retention say", "Keep it", "Note", keep);
}

/** What can be taken away from it, by anybody who may look. */
export function Takeaways({ execution }: { execution: ExecutionDocument }) {
  const at = (what: string) => href(`/api/executions/${encodeURIComponent(execution.execution_id)}/${what}`);
  return (
    <span class="row">
      <a class="button" href={at("export")} download title="One file with log, graph and results, without secrets; `noetl ui FILE` shows it">Export</a>
      {(execution.status === "COMPLETED" || execution.status === "FAILED") && (
        <a class="button" href={at("test")} download title="A test file that says again what its tools answered">Test</a>
      )}
    </span>
  );
}

export function Actions({ execution, seq, reload }: { execution: ExecutionDocument; seq: number; reload: () => void }) {
  if (!may("operate")) return null;
  const which = { path: { execution_id: execution.execution_id } };
  const over = isOver(execution.status);
  return (
    <span class="row">
      <button type="button" onClick={() => rerunDialog(execution, null)}>Rerun</button>
      <button type="button" onClick={() => forkDialog(execution, { seq })}>Fork here</button>
      {over && may("manage") && <button type="button" onClick={() => hold(execution)}>Keep</button>}
      {!over && execution.status !== "PAUSED" && (
        <button type="button" onClick={() => reasonDialog("Pause", "Pause", REASON, (reason) => call("POST /api/executions/{execution_id}/pause", { ...which, body: { reason } }), reload)}>Pause</button>
      )}
      {execution.status === "PAUSED" && (
        <button type="button" class="primary" onClick={() => call("POST /api/executions/{execution_id}/resume", { ...which, body: {} }).then(reload, (error: Error) => tell(error.message, { failed: true }))}>Resume</button>
      )}
      {!over && (
        <button type="button" class="danger" onClick={() => reasonDialog("Cancel this execution", "Cancel it", REASON, (reason) => call("POST /api/executions/{execution_id}/cancel", { ...which, body: { reason } }), reload, true)}>Cancel</button>
      )}
    </span>
  );
}
