// Pools of workers: who is there, what waits for them.
import { call, may } from "../api/client";
import type { WorkerDocument } from "../api/types";
import { useLoaded } from "../data";
import { removeDialog } from "../parts/dialog";
import { Command, Empty, ExecutionId, Trouble } from "../parts/notes";
import { Listing } from "../parts/table";
import { count, now, took, When } from "../time";

const EVERY = 3000;
const SILENT_SECONDS = 30;

function drain(name: string, done: () => void) {
  removeDialog("Drain", name, () => call("POST /api/worker/drain", { body: { worker_id: name } }), done, "It takes nothing new, finishes what it has, and ends. It hears of it with its next heartbeat.");
}

export function commandsWait(number: number): string {
  return `${count(number)} ${number === 1 ? "command waits" : "commands wait"}`;
}

/** When it was last heard of; one that drains says so. */
function Seen({ worker }: { worker: WorkerDocument }) {
  const silent = worker.seen_at !== null && now.value - Date.parse(worker.seen_at) > SILENT_SECONDS * 1000;
  return (
    <span class={silent ? "failed" : ""}>
      <When at={worker.seen_at} /> {worker.draining && <span class="paused">draining</span>}
    </span>
  );
}

export function Workers() {
  const pools = useLoaded("pools", () => call("GET /api/worker/pools", {}), EVERY);
  const queues = useLoaded("queues", () => call("GET /api/queues", {}), EVERY);
  return (
    <main class="page" tabIndex={-1}>
      <h1>Workers</h1>
      {pools.error && <Trouble problem={pools.error} />}
      {pools.value && !pools.value.pools.length && (
        <Empty title="No worker is there.">
          <p>Commands wait until one comes:</p>
          <Command>noetl worker start</Command>
        </Empty>
      )}
      {pools.value?.pools.map((pool) => {
        const queue = queues.value?.queues.find((one) => one.pool === pool.pool);
        return (
          <section class={pools.stale ? "stale" : ""}>
            <h2>
              pool {pool.pool}{" "}
              <span class="quiet">
                {pool.slots > 0 ? `${count(pool.leased)} of ${count(pool.slots)} slots in use` : "no worker"} · {commandsWait(pool.waiting)}
              </span>
            </h2>
            {pool.slots > 0 && (
              <div class="progress" role="img" aria-label={`${pool.leased} of ${pool.slots} slots in use`}>
                <i class="tone-running" style={{ width: `${Math.min(100, (100 * pool.leased) / pool.slots)}%` }} />
              </div>
            )}
            {queue && queue.waiting > 0 && (
              <p>
                {queue.oldest_seconds !== null && queue.oldest_execution_id && (
                  <>
                    The oldest waits for {took(queue.oldest_seconds)}: <ExecutionId id={queue.oldest_execution_id} />.{" "}
                  </>
                )}
                <span class="quiet">
                  {queue.kinds_of < queue.waiting ? `Of the oldest ${count(queue.kinds_of)}: ` : ""}
                  {Object.entries(queue.kinds).sort(([, a], [, b]) => b - a).map(([kind, number]) => `${count(number)} ${kind}`).join(" · ")}
                </span>
              </p>
            )}
            {pool.waiting > 0 && pool.workers.length === 0 && (
              <>
                <p class="failed">Nobody takes these commands.</p>
                <Command>{`noetl worker start --pool ${pool.pool}`}</Command>
              </>
            )}
            <Listing
              none={null}
              label={`Workers of ${pool.pool}`}
              rows={pool.workers}
              keyOf={(one) => one.name}
              columns={[
                { title: "worker", class: "mono", cell: (one) => one.name },
                { title: "host", named: true, cell: (one) => one.host },
                { title: "labels", class: "long", named: true, cell: (one) => one.labels.join(", ") },
                { title: "slots", class: "num", named: true, cell: (one) => one.slots },
                { title: "version", named: true, cell: (one) => one.version },
                { title: "sandbox", named: true, cell: (one) => one.sandbox || <span class="quiet">none</span> },
                { title: "started", named: true, cell: (one) => <When at={one.started_at} /> },
                { title: "seen", named: true, cell: (one) => <Seen worker={one} /> },
                { title: "Drain", silent: true, class: "num", cell: (one) => may("operate") && !one.draining && !one.name.startsWith("embedded-") && <button type="button" class="link" aria-label={`Drain ${one.name}`} onClick={() => drain(one.name, pools.reload)}>drain</button> },
              ]}
            />
          </section>
        );
      })}
    </main>
  );
}
