// What needs somebody: what failed, who is asked, what nobody takes, what was missed; and what runs.
import type { ComponentChildren } from "preact";
import { call, may } from "../api/client";
import type { ExecutionSummary } from "../api/types";
import { useLoaded } from "../data";
import { Command, Empty, Trouble, Words } from "../parts/notes";
import { Mark, standing, whereabouts } from "../parts/status";
import { count, Took, took, When } from "../time";
import { href, path } from "../url";
import { commandsWait } from "./workers";

const EVERY = 15_000;
const FAILED = "status:failed parent:none since:1d";

function Entry({ one, times = 1 }: { one: ExecutionSummary; times?: number }) {
  return (
    <li class={one.error ? "why" : ""}>
      <Mark status={standing(one)} />
      <a href={href(path("executions", one.execution_id))}>{one.path}</a>
      {times > 1 && <a class="times" href={href(`/executions?q=${encodeURIComponent(`${FAILED} path:"${one.path}"`)}`)} title={`it failed ${times} times`}>{count(times)}×</a>}
      {!one.error && <span class="quiet cut">{whereabouts(one)}</span>}
      {!one.error && <span class="space" />}
      {one.end_time ? <When at={one.end_time} /> : <Took from={one.start_time} />}
      {one.error && <p class="quiet" title={one.error}>{one.step ? `${one.step}: ` : ""}<Words text={one.error} /></p>}
    </li>
  );
}

function Part({ title, total, query, none, children }: { title: string; total: number; query?: string; none: string; children: ComponentChildren }) {
  return (
    <section>
      <h2>
        {query && total > 0 ? <a href={href(`/executions?q=${encodeURIComponent(query)}`)}>{title}</a> : title} {total > 0 && <span class="quiet num">{count(total)}</span>}
      </h2>
      {total ? <ul class="plain">{children}</ul> : <p class="quiet">{none}</p>}
    </section>
  );
}

export function Home() {
  const found = useLoaded("overview", () => call("GET /api/overview", {}), EVERY, ["executions", "inbox", "workers"]);
  const any = useLoaded("any", () => call("GET /api/executions", { query: { limit: 1 } }), EVERY, ["executions"]);
  if (any.value && !any.value.executions.length) {
    return (
      <main class="page" tabIndex={-1}>
        <h1>Nothing has run here yet</h1>
        {may("author") && (
          <Empty title="Here: the editor has a small playbook in it. Register it, press Start, and watch it run.">
            <p class="actions"><a class="button primary" href={href("/editor")}>Open the editor</a></p>
          </Empty>
        )}
        <Empty title="In a terminal: register a file, and start it by its path.">
          <Command>noetl register examples/approval.yaml</Command>
          <Command>noetl execute examples/approval</Command>
          <p>What is registered stands under <a href={href("/playbooks")}>Playbooks</a>.</p>
        </Empty>
      </main>
    );
  }
  const seen = found.value;
  return (
    <main class="page" tabIndex={-1}>
      <h1>What needs you</h1>
      {found.error && <Trouble problem={found.error} />}
      {seen && (
        <div class={`columns home ${found.stale ? "stale" : ""}`}>
          <Part title="Failed today" total={seen.failed.count} query={FAILED} none="Nothing failed in the last 24 hours.">
            {seen.failed.executions.map((one) => <Entry key={one.execution_id} one={one} times={seen.failed.times[one.path]} />)}
          </Part>
          <Part title="Forms that wait" total={seen.forms.next_cursor ? seen.forms.total : seen.forms.forms.length} none="You are asked for nothing.">
            {seen.forms.forms.map((one) => (
              <li key={one.step_run_id} class="why">
                <Mark status="waiting" />
                <a href={href("/inbox")}>{one.form[0]?.label || one.step}</a>
                <When at={one.since} />
                <p class="quiet">{one.path}{one.role && `, for the role ${one.role}`}</p>
              </li>
            ))}
          </Part>
          <Part title="Commands that no worker takes" total={seen.stuck.length} none="None.">
            {seen.stuck.map((one) => (
              <li key={one.pool}>
                <Mark status="waiting" />
                <a href={href("/workers")}>pool {one.pool}</a>
                <span>
                  {commandsWait(one.waiting)}{one.oldest_seconds !== null && <>, the oldest for {took(one.oldest_seconds)}</>}
                </span>
              </li>
            ))}
          </Part>
          <Part title="Running now" total={seen.running.count} query="status:active" none="Nothing runs.">
            {seen.running.executions.map((one) => <Entry key={one.execution_id} one={one} />)}
          </Part>
          <Part title="Missed times" total={seen.missed.length} none="No schedule missed a time.">
            {seen.missed.map((one) => (
              <li class="why">
                <Mark status="failed" />
                <a href={href(path("schedules", one.schedule))}>{one.schedule}</a>
                <When at={one.time} />
                <p class="quiet" title={one.reason}>{one.reason}</p>
              </li>
            ))}
          </Part>
          <Part title="Next times" total={seen.next_times.length} none="No schedule is due.">
            {seen.next_times.map((one) => (
              <li>
                <Mark status="pending" />
                <a href={href(path("schedules", one.schedule))}>{one.schedule}</a>
                <span class="space" />
                <When at={one.time} />
              </li>
            ))}
          </Part>
        </div>
      )}
    </main>
  );
}
