// What needs somebody: what failed, what waits for a person, what nobody takes; and what runs.
import { call } from "../api/client";
import type { ExecutionSummary } from "../api/types";
import { useLoaded } from "../data";
import { Command, Empty, Trouble } from "../parts/notes";
import { Mark, Status } from "../parts/status";
import { count, Took, When } from "../time";
import { href, path } from "../url";

const SHOWN = 8;
const EVERY = 4000;

function Entry({ one }: { one: ExecutionSummary }) {
  return (
    <li>
      <Mark status={one.waits ? "waiting" : one.status} />
      <a href={href(path("executions", one.execution_id))}>{one.path}</a>
      <span class="quiet cut">{one.error ?? one.current_steps.join(", ")}</span>
      <span class="space" />
      {one.status === "RUNNING" && !one.waits ? <Took from={one.start_time} /> : <When at={one.end_time ?? one.start_time} />}
    </li>
  );
}

function Part({ title, query, none }: { title: string; query: string; none: string }) {
  const found = useLoaded(query, () => call("GET /api/executions", { query: { q: query, limit: SHOWN } }), EVERY);
  const total = useLoaded(`count ${query}`, () => call("GET /api/executions/count", { query: { q: query } }), EVERY).value?.count ?? 0;
  const rows = found.value?.executions;
  return (
    <section>
      <h2>
        {title} {total > 0 && <span class="quiet num">{count(total)}</span>}
      </h2>
      {found.error && <Trouble problem={found.error} />}
      {rows && rows.length === 0 && <p class="quiet">{none}</p>}
      <ul class={`plain ${found.stale ? "stale" : ""}`}>{rows?.map((one) => <Entry key={one.execution_id} one={one} />)}</ul>
      {total > SHOWN && (
        <p>
          <a href={href(`/executions?q=${encodeURIComponent(query)}`)}>all {count(total)}</a>
        </p>
      )}
    </section>
  );
}

function Queues() {
  const pools = useLoaded("pools", () => call("GET /api/worker/pools", {}), EVERY);
  const stuck = pools.value?.pools.filter((one) => one.waiting > 0 && one.slots === 0) ?? [];
  return (
    <section>
      <h2>Commands that no worker takes</h2>
      {pools.error && <Trouble problem={pools.error} />}
      {pools.value && !stuck.length && <p class="quiet">None.</p>}
      <ul class="plain">
        {stuck.map((one) => (
          <li>
            <Status status="waiting" />
            <a href={href("/workers")}>pool {one.pool}</a>
            <span>{count(one.waiting)} wait, no worker is there</span>
          </li>
        ))}
      </ul>
      {stuck.map((one) => (
        <Command>{`noetl worker start --pool ${one.pool}`}</Command>
      ))}
    </section>
  );
}

export function Home() {
  const any = useLoaded("any", () => call("GET /api/executions", { query: { limit: 1 } }), EVERY);
  if (any.value && !any.value.executions.length) {
    return (
      <main class="page" tabIndex={-1}>
        <h1>Nothing has run here yet</h1>
        <Empty title="Register a playbook, start it, and watch it here:">
          <Command>noetl register examples/approval.yaml</Command>
          <Command>noetl execute examples/approval</Command>
          <p>
            Or write one in the <a href={href("/editor")}>editor</a>.
          </p>
        </Empty>
      </main>
    );
  }
  return (
    <main class="page" tabIndex={-1}>
      <h1>What needs you</h1>
      <div class="columns">
        <Part title="Failed today" query="status:failed since:1d" none="Nothing failed in the last 24 hours." />
        <Part title="Waits for people or events" query="status:waiting" none="Nobody is asked for anything." />
        <Queues />
        <Part title="Running now" query="status:running -status:waiting" none="Nothing runs." />
        <Part title="Paused" query="status:paused" none="Nothing is paused." />
      </div>
    </main>
  );
}
