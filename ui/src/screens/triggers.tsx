// Hooks, which others call, consumers, which fetch, and notifications, which tell: what they start,
// and what came of it.
import { call, may } from "../api/client";
import type { NotificationItem } from "../api/types";
import { useLoaded } from "../data";
import { reasonDialog, removeDialog } from "../parts/dialog";
import { Command, Copy, Empty, ExecutionId, tell, tellProblem, Trouble, Words } from "../parts/notes";
import { Mark, Status } from "../parts/status";
import { Listing } from "../parts/table";
import { chosenSpan, When } from "../time";
import { href, path } from "../url";

const EVERY = 10_000;
/** What they start is news; what they refuse or leave out is found by looking. */
export const NEWS = ["executions"];
const SHOWN = 100;

/** Nothing is started while it is paused; the note says why. */
export function pauseDialog(run: (reason: string) => Promise<unknown>, done: () => void): void {
  reasonDialog("Pause", "Pause", "Note", run, done);
}

/** No document of this kind is registered: what it would do. */
export function NoneYet({ title, kind }: { title: string; kind: string }) {
  return (
    <Empty title={title}>
      <p>A document of kind {kind}; register it like a playbook:</p>
      <Command>noetl register examples/triggers/</Command>
    </Empty>
  );
}

/** Where it is read and edited, as a line of its facts. */
export function Text({ name }: { name: string }) {
  return <><dt>text</dt><dd><a href={href(path("playbooks", name))}>{name}</a></dd></>;
}

/** What a document starts or wakes. */
function Target({ playbook, signal }: { playbook: string | null; signal: string | null }) {
  return playbook ? <>starts <a href={href(path("playbooks", playbook))}>{playbook}</a></> : <>sends <code>{signal}</code></>;
}

export function HookTable() {
  const found = useLoaded("hooks", () => call("GET /api/hooks", { query: { limit: 500 } }), EVERY, NEWS);
  const remove = (name: string) => removeDialog("Delete", name, () => call("DELETE /api/hooks/{path}", { path: { path: name } }), found.reload, "It takes no delivery any more. Its versions stay in the catalog.");
  return (
    <Listing
      error={found.error}
      rows={found.value?.hooks}
      none={<NoneYet title="Nobody calls in." kind="Hook gives others an address that starts a playbook or wakes executions that wait" />}
      label="Hooks"
      keyOf={(one) => one.path}
      columns={[
        { title: "hook", cell: (one) => <><a href={href(`${path("schedules", one.path)}?kind=hooks`)}>{one.path}</a> <span class="quiet">v{one.version}</span></> },
        { title: "called at", class: "mono", cell: (one) => <>{one.url} <Copy text={location.origin + href(one.url)} label="Copy the address" /></> },
        { title: "does", cell: (one) => <Target playbook={one.playbook} signal={one.signal} /> },
        { title: "verified by", named: true, cell: (one) => <>{one.verify}{one.missing_credentials.length > 0 && <div class="failed">takes nothing: no credential {one.missing_credentials.join(", ")}</div>}</> },
        { title: "description", cell: (one) => one.description },
        { title: "Delete", silent: true, class: "num", cell: (one) => may("author") && <button type="button" class="link" aria-label={`Delete ${one.path}`} onClick={() => remove(one.path)}>delete</button> },
      ]}
    />
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

export function Outcome({ outcome }: { outcome: string }) {
  const tone = outcome === "started" || outcome === "signalled" ? "done" : ["refused", "failed", "missed"].includes(outcome) ? "failed" : "skipped";
  return <span class={`status ${tone === "skipped" ? "quiet" : tone}`}><Mark status={tone} />{outcome}</span>;
}

/** One hook: how it is called, and what came of the last deliveries. */
export function Hook({ name }: { name: string }) {
  const found = useLoaded(`hook ${name}`, () => call("GET /api/hooks/{path}", { path: { path: name }, query: { deliveries: SHOWN } }), EVERY, NEWS);
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
            <Text name={name} />
          </dl>
          <h2>What became of the last deliveries</h2>
          <Listing
            none={<div class="quiet"><p>Nobody has called yet. Try it:</p><Command>{`curl -X POST ${location.origin + href(one.url)} -H "Content-Type: application/json" -d '{}'`}</Command></div>}
            label="Deliveries"
            rows={one.deliveries}
            columns={[
              { title: "when", cell: (told) => <When at={told.time} /> },
              { title: "outcome", cell: (told) => <Outcome outcome={told.outcome} /> },
              { title: "execution", cell: (told) => told.execution_id && <ExecutionId id={told.execution_id} /> },
              { title: "reason", cell: (told) => [told.reason, OUTCOMES[told.outcome]].filter(Boolean).join(": ") },
            ]}
          />
          {one.deliveries.length === SHOWN && <p class="quiet">the last {SHOWN}</p>}
        </>
      )}
    </main>
  );
}

export function ConsumerTable() {
  const found = useLoaded("consumers", () => call("GET /api/consumers", { query: { limit: 500 } }), EVERY, NEWS);
  return (
    <Listing
      error={found.error}
      rows={found.value?.consumers}
      none={<NoneYet title="Nothing is fetched." kind="Consumer takes messages of NATS, rows of PostgreSQL or new files, and starts a playbook for each, once" />}
      label="Consumers"
      keyOf={(one) => one.path}
      columns={[
        { title: "consumer", cell: (one) => <><a href={href(`${path("schedules", one.path)}?kind=consumers`)}>{one.path}</a> <span class="quiet">v{one.version}</span></> },
        { title: "state", cell: (one) => <Status status={one.problem ? "failed" : one.status} /> },
        { title: "from", class: "mono", cell: (one) => one.source },
        { title: "does", cell: (one) => <Target playbook={one.playbook} signal={one.signal} /> },
        { title: "note", cell: (one) => (one.problem ? <span class="failed"><Words text={one.problem} /></span> : one.reason || one.description) },
      ]}
    />
  );
}

/** One consumer: where from, how much at once, and what became of the last messages. */
export function Consumer({ name }: { name: string }) {
  const found = useLoaded(`consumer ${name}`, () => call("GET /api/consumers/{path}", { path: { path: name }, query: { messages: 100 } }), EVERY, NEWS);
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
            <Text name={name} />
          </dl>
          <h2>What became of the last messages</h2>
          <Listing
            none={<p class="quiet">None came yet.</p>}
            label="Messages"
            rows={one.messages}
            keyOf={(message) => message.id}
            columns={[
              { title: "when", cell: (message) => <When at={message.time} /> },
              { title: "message", class: "mono", cell: (message) => message.id },
              { title: "outcome", cell: (message) => <Outcome outcome={message.outcome} /> },
              { title: "execution", cell: (message) => message.execution_id && <ExecutionId id={message.execution_id} /> },
              { title: "reason", cell: (message) => message.reason },
            ]}
          />
        </>
      )}
    </main>
  );
}

export function NotificationTable() {
  const found = useLoaded("notifications", () => call("GET /api/notifications", { query: { limit: 500 } }), EVERY, NEWS);
  const resume = (name: string) => call("POST /api/notifications/resume", { body: { path: name } }).then(() => { tell("Resumed."); found.reload(); }, tellProblem);
  const about = (one: NotificationItem) => [...one.paths, ...Object.entries(one.labels).map(([name, value]) => `${name}=${value}`)].join(", ");
  return (
    <Listing
      error={found.error}
      rows={found.value?.notifications}
      none={<NoneYet title="Nobody is told." kind="Notification names what is told (failures, executions that are late, steps that wait, missed times) and the playbook that tells it" />}
      label="Notifications"
      keyOf={(one) => one.path}
      columns={[
        { title: "notification", cell: (one) => <><a href={href(path("playbooks", one.path))}>{one.path}</a> <span class="quiet">v{one.version}</span></> },
        { title: "state", cell: (one) => <Status status={one.problem ? "failed" : one.status} /> },
        { title: "tells of", named: true, cell: (one) => one.on.join(", ") },
        { title: "where", class: "mono", named: true, cell: (one) => about(one) || "all" },
        { title: "by", named: true, cell: (one) => <a href={href(path("playbooks", one.playbook))}>{one.playbook}</a> },
        { title: "once in", class: "num", named: true, cell: (one) => chosenSpan(one.window) },
        { title: "note", cell: (one) => (one.problem ? <span class="failed"><Words text={one.problem} /></span> : one.reason || one.description) },
        {
          title: "Pause",
          silent: true,
          class: "num",
          cell: (one) =>
            may("operate") &&
            (one.status === "paused" ? (
              <button type="button" class="link" aria-label={`Resume ${one.path}`} onClick={() => resume(one.path)}>resume</button>
            ) : (
              <button type="button" class="link" aria-label={`Pause ${one.path}`} onClick={() => pauseDialog((reason) => call("POST /api/notifications/pause", { body: { path: one.path, reason } }), found.reload)}>pause</button>
            )),
        },
      ]}
    />
  );
}
