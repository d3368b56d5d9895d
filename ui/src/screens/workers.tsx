// Pools of workers: who is there, what waits for them.
import { call, may } from "../api/client";
import { useLoaded } from "../data";
import { Ask, showDialog } from "../parts/dialog";
import { Command, Empty, Trouble } from "../parts/notes";
import { count, now, took, When } from "../time";
import { href, path } from "../url";

const EVERY = 3000;
const SILENT_SECONDS = 30;

function drain(name: string, done: () => void) {
  showDialog(`Drain ${name}?`, (close) => (
    <Ask does="Drain" close={close} run={async () => { await call("POST /api/worker/drain", { body: { worker_id: name } }); done(); }}>
      <p>It takes nothing new, finishes what it has, and ends. It hears of it with its next heartbeat.</p>
    </Ask>
  ));
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
              {count(pool.leased)} of {count(pool.slots)} slots in use · {count(pool.waiting)} {pool.waiting === 1 ? "command waits" : "commands wait"}
            </span>
          </h2>
          <div class="progress" role="img" aria-label={`${pool.leased} of ${pool.slots} slots in use`}>
            <i class="tone-running" style={{ width: `${Math.min(100, (100 * pool.leased) / Math.max(1, pool.slots))}%` }} />
          </div>
          {queue && queue.waiting > 0 && (
            <p>
              {queue.oldest_seconds !== null && queue.oldest_execution_id && (
                <>
                  The oldest waits for {took(queue.oldest_seconds)}: <a class="id" href={href(path("executions", queue.oldest_execution_id))}>…{queue.oldest_execution_id.slice(-6)}</a>.{" "}
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
          <div class="tablebox" tabIndex={0} role="group" aria-label={`Workers of ${pool.pool}`}>
            <table>
              <thead>
                <tr>
                  <th scope="col">worker</th>
                  <th scope="col">host</th>
                  <th scope="col" class="num">slots</th>
                  <th scope="col">version</th>
                  <th scope="col">sandbox</th>
                  <th scope="col">started</th>
                  <th scope="col">seen</th>
                  <th scope="col"><span class="hidden">Drain</span></th>
                </tr>
              </thead>
              <tbody>
                {pool.workers.map((one) => {
                  const silent = one.seen_at !== null && now.value - Date.parse(one.seen_at) > SILENT_SECONDS * 1000;
                  return (
                    <tr key={one.name}>
                      <td class="mono">{one.name}</td>
                      <td>{one.host}</td>
                      <td class="num">{one.slots}</td>
                      <td>{one.version}</td>
                      <td>{one.sandbox || <span class="quiet">none</span>}</td>
                      <td><When at={one.started_at} /></td>
                      <td class={silent ? "failed" : ""}>
                        <When at={one.seen_at} /> {one.draining && <span class="paused">draining</span>}
                      </td>
                      <td class="num">{may("operate") && !one.draining && !one.name.startsWith("embedded-") && <button type="button" class="link" aria-label={`Drain ${one.name}`} onClick={() => drain(one.name, pools.reload)}>drain</button>}</td>
                    </tr>
                  );
                })}
              </tbody>
            </table>
          </div>
        </section>
        );
      })}
    </main>
  );
}
