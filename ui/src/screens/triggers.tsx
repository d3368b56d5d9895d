// Hooks, which others call, consumers, which fetch, and notifications, which tell: what they start,
// and what came of it.
import { call, may } from "../api/client";
import type { NotificationItem } from "../api/types";
import { useLoaded } from "../data";
import { Ask, showDialog } from "../parts/dialog";
import { Command, Copy, Empty, tell, tellProblem, Trouble } from "../parts/notes";
import { Mark, Status } from "../parts/status";
import { chosenSpan, When } from "../time";
import { href, path } from "../url";

const EVERY = 10_000;
const SHOWN = 100;

/** Nothing is started while it is paused; the note says why. */
export function pauseDialog(run: (reason: string) => Promise<unknown>, done: () => void): void {
  showDialog("Pause", (close) => (
    <Ask does="Pause" close={close} run={async (data) => { await run(String(data.get("reason"))); done(); }}>
      <label>Note <input name="reason" autofocus /></label>
    </Ask>
  ));
}

/** What a document starts or wakes. */
function Target({ playbook, signal }: { playbook: string | null; signal: string | null }) {
  return playbook ? <>starts <a href={href(path("playbooks", playbook))}>{playbook}</a></> : <>sends <code>{signal}</code></>;
}

export function HookTable() {
  const found = useLoaded("hooks", () => call("GET /api/hooks", { query: { limit: 500 } }), EVERY);
  const hooks = found.value?.hooks;
  const remove = (name: string) =>
    showDialog(`Delete ${name}?`, (close) => (
      <Ask does="Delete" danger close={close} run={async () => { await call("DELETE /api/hooks/{path}", { path: { path: name } }); found.reload(); }}>
        <p>It takes no delivery any more. Its versions stay in the catalog.</p>
      </Ask>
    ));
  return (
    <>
      {found.error && <Trouble problem={found.error} />}
      {hooks && !hooks.length && (
        <Empty title="Nobody calls in.">
          <p>A document of kind Hook gives others an address that starts a playbook or wakes executions that wait; register it like a playbook:</p>
          <Command>noetl register examples/triggers/</Command>
        </Empty>
      )}
      {hooks && hooks.length > 0 && (
        <div class="tablebox cards" tabIndex={0} role="group" aria-label="Hooks">
          <table>
            <thead><tr><th scope="col">hook</th><th scope="col">called at</th><th scope="col">does</th><th scope="col">verified by</th><th scope="col">description</th><th scope="col"><span class="hidden">Delete</span></th></tr></thead>
            <tbody>
              {hooks.map((one) => (
                <tr key={one.path}>
                  <td><a href={href(`${path("schedules", one.path)}?kind=hooks`)}>{one.path}</a> <span class="quiet">v{one.version}</span></td>
                  <td class="mono">{one.url} <Copy text={location.origin + href(one.url)} label="Copy the address" /></td>
                  <td><Target playbook={one.playbook} signal={one.signal} /></td>
                  <td>
                    {one.verify}
                    {one.missing_credentials.length > 0 && <div class="failed">takes nothing: no credential {one.missing_credentials.join(", ")}</div>}
                  </td>
                  <td>{one.description}</td>
                  <td class="num">{may("author") && <button type="button" class="link" onClick={() => remove(one.path)}>delete</button>}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}

/** What became of a delivery, where no reason says it. */
const OUTCOMES: Record<string, string> = {
  ignored: "filtered: `when` does not hold",
  repeated: "delivered before, and started once",
  debounced: "waits for more that belong together",
  unmatched: "no execution waits for it",
  refused: "not genuine: the sender is told no more",
};

function Outcome({ outcome }: { outcome: string }) {
  const tone = outcome === "started" || outcome === "signalled" ? "done" : outcome === "refused" || outcome === "failed" ? "failed" : "skipped";
  return <span class={`status ${tone === "skipped" ? "quiet" : tone}`}><Mark status={tone} />{outcome}</span>;
}

/** One hook: how it is called, and what came of the last deliveries. */
export function Hook({ name }: { name: string }) {
  const found = useLoaded(`hook ${name}`, () => call("GET /api/hooks/{path}", { path: { path: name }, query: { deliveries: SHOWN } }), EVERY);
  const one = found.value;
  return (
    <main class="page" tabIndex={-1}>
      <h1>{name}</h1>
      {found.error && <Trouble problem={found.error} />}
      {one && (
        <>
          <dl class="facts">
            <dt>called at</dt>
            <dd class="mono">{location.origin + href(one.url)} <Copy text={location.origin + href(one.url)} label="Copy the address" /></dd>
            <dt>does</dt>
            <dd><Target playbook={one.playbook} signal={one.signal} />{one.signal && " to executions that wait for it"}{one.debounced && ", several that come together as one"}</dd>
            <dt>verified by</dt>
            <dd>{one.verify}{one.credentials.length > 0 && <span class="quiet"> with {one.credentials.join(", ")}</span>}</dd>
            {one.missing_credentials.length > 0 && (<><dt>missing</dt><dd class="failed">{one.missing_credentials.join(", ")}: no delivery is taken</dd></>)}
            {one.wait > 0 && (<><dt>answers</dt><dd>with the result, after at most {chosenSpan(one.wait)}</dd></>)}
          </dl>
          <h2>What became of the last deliveries</h2>
          {!one.deliveries.length && (
            <div class="quiet">
              <p>Nobody has called yet. Try it:</p>
              <Command>{`curl -X POST ${location.origin + href(one.url)} -H "Content-Type: application/json" -d '{}'`}</Command>
            </div>
          )}
          {one.deliveries.length > 0 && (
            <div class="tablebox cards" tabIndex={0} role="group" aria-label="Deliveries">
              <table>
                <thead><tr><th scope="col">when</th><th scope="col">outcome</th><th scope="col">execution</th><th scope="col">reason</th></tr></thead>
                <tbody>
                  {one.deliveries.map((told) => (
                    <tr>
                      <td><When at={told.time} /></td>
                      <td><Outcome outcome={told.outcome} /></td>
                      <td>{told.execution_id && <a class="id" href={href(path("executions", told.execution_id))}>…{told.execution_id.slice(-6)}</a>}</td>
                      <td>{[told.reason, OUTCOMES[told.outcome]].filter(Boolean).join(": ")}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          )}
          {one.deliveries.length === SHOWN && <p class="quiet">the last {SHOWN}</p>}
        </>
      )}
    </main>
  );
}

export function ConsumerTable() {
  const found = useLoaded("consumers", () => call("GET /api/consumers", { query: { limit: 500 } }), EVERY);
  const consumers = found.value?.consumers;
  return (
    <>
      {found.error && <Trouble problem={found.error} />}
      {consumers && !consumers.length && (
        <Empty title="Nothing is fetched.">
          <p>A document of kind Consumer takes messages of NATS, rows of PostgreSQL or new files, and starts a playbook for each, once; register it like a playbook:</p>
          <Command>noetl register inbox.yaml</Command>
        </Empty>
      )}
      {consumers && consumers.length > 0 && (
        <div class="tablebox cards" tabIndex={0} role="group" aria-label="Consumers">
          <table>
            <thead><tr><th scope="col">consumer</th><th scope="col">state</th><th scope="col">from</th><th scope="col">does</th><th scope="col">note</th></tr></thead>
            <tbody>
              {consumers.map((one) => (
                <tr key={one.path}>
                  <td><a href={href(`${path("schedules", one.path)}?kind=consumers`)}>{one.path}</a> <span class="quiet">v{one.version}</span></td>
                  <td><Status status={one.problem ? "failed" : one.status} /></td>
                  <td class="mono">{one.source}</td>
                  <td><Target playbook={one.playbook} signal={one.signal} /></td>
                  <td>{one.problem ? <span class="failed">{one.problem}</span> : one.reason || one.description}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}

/** One consumer: where from, how much at once, and what became of the last messages. */
export function Consumer({ name }: { name: string }) {
  const found = useLoaded(`consumer ${name}`, () => call("GET /api/consumers/{path}", { path: { path: name }, query: { messages: 100 } }), EVERY);
  const one = found.value;
  const resume = () => call("POST /api/consumers/resume", { body: { path: name } }).then(() => { tell("Resumed."); found.reload(); }, tellProblem);
  return (
    <main class="page" tabIndex={-1}>
      <div class="row">
        <h1>{name}</h1>
        {one && <Status status={one.problem ? "failed" : one.status} />}
        <span class="space" />
        {one && may("operate") && (one.status === "paused" ? (
          <button type="button" class="primary" onClick={resume}>Resume</button>
        ) : (
          <button type="button" onClick={() => pauseDialog((reason) => call("POST /api/consumers/pause", { body: { path: name, reason } }), found.reload)}>Pause</button>
        ))}
      </div>
      {found.error && <Trouble problem={found.error} />}
      {one && (
        <>
          <dl class="facts">
            <dt>from</dt>
            <dd class="mono">{one.source}</dd>
            <dt>does</dt>
            <dd><Target playbook={one.playbook} signal={one.signal} /></dd>
            <dt>at once</dt>
            <dd>{one.running.length} of at most {one.max_running}</dd>
            {one.holder && (<><dt>read by</dt><dd class="mono">{one.holder}</dd></>)}
            {one.problem && (<><dt>problem</dt><dd class="failed">{one.problem}</dd></>)}
            {one.reason && (<><dt>note</dt><dd>{one.reason}</dd></>)}
          </dl>
          <h2>What became of the last messages</h2>
          {!one.messages.length && <p class="quiet">None came yet.</p>}
          <div class="tablebox cards" tabIndex={0} role="group" aria-label="Messages">
            <table>
              <tbody>
                {one.messages.map((message) => (
                  <tr key={message.id}>
                    <td><When at={message.time} /></td>
                    <td class="mono">{message.id}</td>
                    <td><Outcome outcome={message.outcome} /></td>
                    <td>{message.reason}</td>
                    <td>{message.execution_id && <a class="id" href={href(path("executions", message.execution_id))}>…{message.execution_id.slice(-6)}</a>}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </>
      )}
    </main>
  );
}

export function NotificationTable() {
  const found = useLoaded("notifications", () => call("GET /api/notifications", { query: { limit: 500 } }), EVERY);
  const rules = found.value?.notifications;
  const resume = (name: string) => call("POST /api/notifications/resume", { body: { path: name } }).then(() => { tell("Resumed."); found.reload(); }, tellProblem);
  const about = (one: NotificationItem) => [...one.paths, ...Object.entries(one.labels).map(([name, value]) => `${name}=${value}`)].join(", ");
  return (
    <>
      {found.error && <Trouble problem={found.error} />}
      {rules && !rules.length && (
        <Empty title="Nobody is told.">
          <p>A document of kind Notification names what is told (failures, executions that are late, steps that wait, missed times) and the playbook that tells it; register it like a playbook:</p>
          <Command>noetl register on_call.yaml</Command>
        </Empty>
      )}
      {rules && rules.length > 0 && (
        <div class="tablebox cards" tabIndex={0} role="group" aria-label="Notifications">
          <table>
            <thead><tr><th scope="col">notification</th><th scope="col">state</th><th scope="col">tells of</th><th scope="col">where</th><th scope="col">by</th><th scope="col" class="num">once in</th><th scope="col">note</th><th scope="col"><span class="hidden">Pause</span></th></tr></thead>
            <tbody>
              {rules.map((one) => (
                <tr key={one.path}>
                  <td>{one.path} <span class="quiet">v{one.version}</span></td>
                  <td><Status status={one.problem ? "failed" : one.status} /></td>
                  <td>{one.on.join(", ")}</td>
                  <td class="mono">{about(one) || "all"}</td>
                  <td><a href={href(path("playbooks", one.playbook))}>{one.playbook}</a></td>
                  <td class="num">{chosenSpan(one.window)}</td>
                  <td>{one.problem ? <span class="failed">{one.problem}</span> : one.reason || one.description}</td>
                  <td class="num">
                    {may("operate") && (one.status === "paused" ? (
                      <button type="button" class="link" onClick={() => resume(one.path)}>resume</button>
                    ) : (
                      <button type="button" class="link" onClick={() => pauseDialog((reason) => call("POST /api/notifications/pause", { body: { path: one.path, reason } }), found.reload)}>pause</button>
                    ))}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}
