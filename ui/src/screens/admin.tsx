// Who may come in, what secrets are kept, who did what, and how the server does.
import { useState } from "preact/hooks";
import { call, may, me } from "../api/client";
import { useLoaded } from "../data";
import { Ask, removeDialog, showDialog } from "../parts/dialog";
import { Command, Copy, Empty, ExecutionId, tell, tellProblem, Trouble } from "../parts/notes";
import { Mark, Status } from "../parts/status";
import { Listing, Table } from "../parts/table";
import { Tabs } from "../parts/tabs";
import { typedObject } from "../parts/typed";
import { chosenSpan, count, took, When } from "../time";
import { ask, asked, href } from "../url";
import { commandsWait } from "./workers";

const ROLES: [name: string, may: string][] = [
  ["viewer", "looks"],
  ["operator", "and starts, cancels, answers"],
  ["author", "and registers playbooks"],
  ["worker", "takes commands, and reports on them"],
  ["admin", "may do everything"],
];
const listed = (text: unknown) => String(text ?? "").split(/[\s,]+/).filter(Boolean);
const rolesOf = (data: FormData) => [...data.getAll("roles").map(String), ...listed(data.get("own"))];
const PARTS: [name: string, right: string][] = [
  ["credentials", "secrets.list"],
  ["users", "manage"],
  ["tokens", "manage"],
  ["sessions", "self"],
  ["audit", "manage"],
  ["retention", "read"],
  ["health", "anyone"],
];

export function Admin() {
  const parts = PARTS.filter(([name, right]) => right === "anyone" || (may(right) && (name !== "sessions" || me.value?.kind === "user"))).map(([name]) => name);
  const part = parts.includes(asked("part")) ? asked("part") : parts[0]!;
  return (
    <main class="page" tabIndex={-1}>
      <h1>Admin</h1>
      <Tabs label="Parts" names={parts} chosen={part} onChoose={(one) => ask({ part: one })} />
      <div id="part" role="tabpanel" aria-labelledby={`tab-${part}`} class="part">
        {part === "credentials" && <Credentials />}
        {part === "users" && <Users />}
        {part === "tokens" && <Tokens />}
        {part === "sessions" && <Sessions />}
        {part === "audit" && <Audit />}
        {part === "retention" && <Retention />}
        {part === "health" && <Health />}
      </div>
    </main>
  );
}

function Credentials() {
  const found = useLoaded("credentials", () => call("GET /api/credentials", {}));
  const put = (close: () => void) => (
    <Ask
      does="Keep"
      close={close}
      run={async (data) => {
        await call("POST /api/credentials", {
          body: { name: String(data.get("name")), type: String(data.get("type")) || "generic", description: String(data.get("description")), playbooks: data.get("playbooks") ? listed(data.get("playbooks")) : null, data: typedObject("Data", data.get("data")) ?? {} },
        });
        found.reload();
      }}
    >
      <label>Name <input name="name" required autofocus autocomplete="off" /></label>
      <label>Type <input name="type" placeholder="generic, postgres, http, …" autocomplete="off" /></label>
      <label>Description <input name="description" autocomplete="off" /></label>
      <label><span>Playbooks <span class="quiet">(that may use it, such as shop/*; empty: all)</span></span> <input name="playbooks" autocomplete="off" /></label>
      <label>
        <span>Data <span class="quiet">(JSON; it is encrypted, and no page shows it again)</span></span>
        <textarea name="data" rows={6} required spellcheck={false} placeholder='{"user": "…", "password": "…"}' />
      </label>
    </Ask>
  );
  return (
    <>
      {may("secrets.write") && <p><button type="button" onClick={() => showDialog("Credential", put)}>New or replace</button></p>}
      <Listing
        error={found.error}
        rows={found.value?.credentials}
        none={<Empty title="No credential is kept here."><p>Playbooks name them in <code>keychain</code>, and workers get them when they need them:</p><Command>noetl credential set shop token</Command></Empty>}
        label="Credentials"
        keyOf={(one) => one.id}
        columns={[
          { title: "name", class: "mono", cell: (one) => one.name },
          { title: "type", cell: (one) => one.type },
          { title: "description", cell: (one) => one.description },
          { title: "playbooks", named: true, cell: (one) => one.playbooks.join(", ") || <span class="quiet">all</span> },
          { title: "changed", named: true, cell: (one) => <When at={one.updated_at} /> },
          { title: "Delete", silent: true, class: "num", cell: (one) => may("secrets.write") && <button type="button" class="link" aria-label={`Delete ${one.name}`} onClick={() => removeDialog("Delete", one.name, () => call("DELETE /api/credentials/{name}", { path: { name: one.name } }), found.reload)}>delete</button> },
        ]}
      />
    </>
  );
}

function Roles() {
  return (
    <fieldset>
      <legend>Roles</legend>
      {ROLES.map(([role, allows]) => (
        <label class="check"><input type="checkbox" name="roles" value={role} aria-label={role} /> {role} <span class="quiet">{allows}</span></label>
      ))}
      <label><span>Roles of your own <span class="quiet">(forms ask for them: finance, on-call)</span></span> <input name="own" autocomplete="off" /></label>
    </fieldset>
  );
}

function Users() {
  const found = useLoaded("users", () => call("GET /api/access/users", {}));
  const put = (close: () => void) => (
    <Ask
      does="Keep"
      close={close}
      run={async (data) => {
        await call("POST /api/access/users", { body: { name: String(data.get("name")), password: String(data.get("password")), email: String(data.get("email")), roles: rolesOf(data) } });
        found.reload();
      }}
    >
      <label>Name <input name="name" required autofocus autocomplete="off" /></label>
      <label>Password <input name="password" type="password" required minLength={8} autocomplete="new-password" /></label>
      <label>E-mail <input name="email" type="email" /></label>
      <Roles />
      <FirstOne />
    </Ask>
  );
  return (
    <>
      <p><button type="button" onClick={() => showDialog("User", put)}>New or change</button></p>
      <Listing
        error={found.error}
        rows={found.value?.users}
        none={<Empty title="This server has no users: everybody on this machine may do everything."><p>The first one must be an administrator; from then on people sign in.</p><Command>noetl access user add ada --role admin</Command></Empty>}
        label="Users"
        keyOf={(one) => one.name}
        columns={[
          { title: "name", cell: (one) => one.name },
          { title: "roles", named: true, cell: (one) => one.roles.join(", ") || "none" },
          { title: "e-mail", cell: (one) => one.email },
          { title: "since", named: true, cell: (one) => <When at={one.created_at} /> },
          { title: "Delete", silent: true, class: "num", cell: (one) => <button type="button" class="link" aria-label={`Delete ${one.name}`} onClick={() => removeDialog("Delete", one.name, () => call("DELETE /api/access/users/{name}", { path: { name: one.name } }), found.reload)}>delete</button> },
        ]}
      />
    </>
  );
}

/** Said before the first user or token of an open server. */
function FirstOne() {
  return me.value?.kind === "open" ? <p class="paused">From then on everybody must sign in or show a token. Give the first one the role admin.</p> : null;
}

function NewToken({ name, token, close }: { name: string; token: string; close: () => void }) {
  return (
    <>
      <p>{name}, shown only now:</p>
      <div class="command"><code>{token}</code> <Copy text={token} /></div>
      <p class="actions"><button type="button" onClick={close}>Close</button></p>
    </>
  );
}

function Tokens() {
  const found = useLoaded("tokens", () => call("GET /api/access/tokens", {}));
  const put = (close: () => void) => (
    <Ask
      does="Create"
      close={close}
      run={async (data) => {
        const days = Number(data.get("days"));
        const created = await call("POST /api/access/tokens", { body: { name: String(data.get("name")), roles: rolesOf(data), pools: listed(data.get("pools")), expires_in: days ? days * 86400 : null } });
        showDialog("Token", (close) => <NewToken name={created.name} token={created.token} close={() => { close(); found.reload(); }} />);
        return "stay";
      }}
    >
      <label>Name <input name="name" required autofocus autocomplete="off" /></label>
      <label><span>Days <span class="quiet">(empty: for ever)</span></span> <input name="days" type="number" min="1" /></label>
      <Roles />
      <label><span>Pools <span class="quiet">(of a worker; empty: all)</span></span> <input name="pools" autocomplete="off" /></label>
      <FirstOne />
    </Ask>
  );
  return (
    <>
      <p><button type="button" onClick={() => showDialog("Token", put)}>New</button></p>
      <Listing
        error={found.error}
        rows={found.value?.tokens}
        none={<Empty title="No token yet."><p>Workers and scripts show one, in NOETL_TOKEN:</p><Command>noetl access token create ci --role author</Command></Empty>}
        label="Tokens"
        keyOf={(one) => one.name}
        columns={[
          { title: "name", cell: (one) => one.name },
          { title: "roles", named: true, cell: (one) => one.roles.join(", ") || "none" },
          { title: "pools", named: true, cell: (one) => one.pools.join(", ") },
          { title: "created", named: true, cell: (one) => <When at={one.created_at} /> },
          { title: "expires", named: true, cell: (one) => (one.expires_at ? <When at={one.expires_at} /> : <span class="quiet">never</span>) },
          { title: "Revoke", silent: true, class: "num", cell: (one) => <button type="button" class="link" aria-label={`Revoke ${one.name}`} onClick={() => removeDialog("Revoke", one.name, () => call("DELETE /api/access/tokens/{name}", { path: { name: one.name } }), found.reload)}>revoke</button> },
        ]}
      />
    </>
  );
}

function Sessions() {
  const found = useLoaded("sessions", () => call("GET /api/auth/sessions", {}));
  const endOthers = () => call("DELETE /api/auth/sessions", {}).then((told) => { tell(`${told.ended.length} ended.`); found.reload(); }, tellProblem);
  return (
    <>
      <p><button type="button" onClick={endOthers} disabled={(found.value?.sessions.length ?? 0) < 2}>End all others</button></p>
      {found.error && <Trouble problem={found.error} />}
      <Table
        label="Sessions"
        rows={found.value?.sessions ?? []}
        keyOf={(one) => one.session_id}
        columns={[
          { title: "from", class: "mono", cell: (one) => one.client_ip },
          { title: "since", named: true, cell: (one) => <When at={one.created_at} /> },
          { title: "last used", named: true, cell: (one) => <When at={one.last_activity_at} /> },
          { title: "until", named: true, cell: (one) => <When at={one.expires_at} /> },
          { title: "State", silent: true, class: "num", cell: (one) => (one.current ? <strong>this one</strong> : <button type="button" class="link" onClick={() => call("DELETE /api/auth/sessions/{session_id}", { path: { session_id: one.session_id } }).then(found.reload, tellProblem)}>end</button>) },
        ]}
      />
    </>
  );
}

function Audit() {
  const found = useLoaded("audit", () => call("GET /api/access/audit", { query: { limit: 500 } }), 10_000);
  const [text, setText] = useState("");
  const entries = found.value?.entries.filter((one) => `${one.who} ${one.action} ${one.target} ${one.details}`.toLowerCase().includes(text.toLowerCase()));
  return (
    <>
      <p><input type="search" aria-label="Search the audit log" placeholder="who, what or of what" value={text} onInput={(event) => setText(event.currentTarget.value)} /> {entries && <span class="quiet num">{count(entries.length)} of the last {count(found.value!.entries.length)}</span>}</p>
      <Listing
        error={found.error}
        rows={entries}
        none={<Empty title={text ? "No entry matches." : "Nobody has changed anything yet, or looked at a secret."} />}
        label="Audit log"
        columns={[
          { title: "when", cell: (one) => <When at={one.at} /> },
          { title: "who", cell: (one) => one.who || <span class="quiet">anybody</span> },
          { title: "what", cell: (one) => one.action },
          { title: "of", class: "mono long", cell: (one) => one.target },
          { title: "details", class: "mono long", cell: (one) => one.details },
        ]}
      />
    </>
  );
}

/** What is forgotten when, what somebody keeps, what went lately, and what is in the archive. */
function Retention() {
  const found = useLoaded("retention", () => call("GET /api/retention", {}), 30_000);
  const has = found.value?.archive ?? false;
  const archive = useLoaded(`archive ${has}`, () => (has ? call("GET /api/archive", { query: { limit: 100 } }) : Promise.resolve(null)));
  const release = (id: string) => call("DELETE /api/executions/{execution_id}/hold", { path: { execution_id: id } }).then(found.reload, tellProblem);
  const shown = found.value;
  return (
    <>
      {found.error && <Trouble problem={found.error} />}
      {shown && (
        <div class="columns">
          <section>
            <h2>Rules</h2>
            {!shown.keep.length && <p class="quiet">Everything is kept for ever. <code>NOETL_KEEP=90d</code> forgets what ended long ago.</p>}
            <ul class="plain">
              {shown.keep.map((one) => (
                <li><span>{one.executions || "all others"}</span> <span class="space" /> <span class="num">{one.seconds === null ? "for ever" : chosenSpan(one.seconds)}</span></li>
              ))}
            </ul>
            {may("manage") && shown.keep.length > 0 && <p><button type="button" onClick={() => showDialog("Forget now", (close) => <PruneForm close={close} done={found.reload} />)}>Forget now …</button></p>}
          </section>
          <section>
            <h2>Kept by people</h2>
            {!shown.holds.length && <p class="quiet">Nobody keeps an execution against the rules. <em>Keep</em> on its page does.</p>}
            <ul class="plain">
              {shown.holds.map((one) => (
                <li class="why">
                  <ExecutionId id={one.execution_id} />
                  <span class="quiet">{one.who} <When at={one.at} /></span>
                  {may("manage") && <button type="button" class="link" onClick={() => release(one.execution_id)}>release</button>}
                  {one.note && <p>{one.note}</p>}
                </li>
              ))}
            </ul>
          </section>
          <section>
            <h2>Forgotten lately</h2>
            {!shown.forgotten.length && <p class="quiet">Nothing was forgotten.</p>}
            <ul class="plain">
              {shown.forgotten.slice(0, 50).map((one) => (
                <li><span class="num">{one.day}</span> <span class="cut">{one.path}</span> <Status status={one.status} /> <span class="space" /> <span class="num">{count(one.executions)}</span></li>
              ))}
            </ul>
          </section>
          <section>
            <h2>Archive</h2>
            {archive.error && <Trouble problem={archive.error} />}
            {!has && <p class="quiet">What is forgotten is gone. <code>NOETL_ARCHIVE_URL</code> names a folder or a bucket that keeps recordings.</p>}
            {archive.value && !archive.value.recordings.length && <p class="quiet">The archive is empty.</p>}
            <ul class="plain">
              {archive.value?.recordings.map((one) => (
                <li>
                  <a class="cut mono" href={href(`/api/archive/${one.name.split("/").map(encodeURIComponent).join("/")}`)} download>{one.name}</a>
                  <span class="space" />
                  <span class="num quiet">{count(Math.ceil(one.size / 1024))} KB</span> <When at={one.archived_at} />
                </li>
              ))}
            </ul>
          </section>
        </div>
      )}
    </>
  );
}

function PruneForm({ close, done }: { close: () => void; done: () => void }) {
  const dry = useLoaded("prune", () => call("POST /api/retention/prune", { body: { dry_run: true } }));
  if (dry.error) return <Trouble problem={dry.error} />;
  if (!dry.value) return <p class="quiet">Counting …</p>;
  return (
    <Ask
      does={`Forget ${count(dry.value.executions)}`}
      danger
      close={close}
      run={async () => {
        const told = await call("POST /api/retention/prune", { body: { dry_run: false } });
        tell(`${count(told.executions)} executions were forgotten.`);
        done();
      }}
    >
      <p>{count(dry.value.executions)} executions with {count(dry.value.events)} events are older than the rules keep them.</p>
      <ul class="plain">
        {Object.entries(dry.value.by_path).slice(0, 20).map(([name, number]) => <li><span>{name}</span> <span class="space" /> <span class="num">{count(number)}</span></li>)}
      </ul>
    </Ask>
  );
}

function Health() {
  const found = useLoaded("health", () => call("GET /api/health", {}), 5000);
  const queues = useLoaded("queues", () => (may("read") ? call("GET /api/queues", {}) : Promise.resolve(null)), 5000);
  const rotate = () => call("POST /api/keys/rotate", {}).then((told) => tell(`${count(told.rotated)} credentials are under a new key.`), tellProblem);
  const well = found.value?.status === "ok";
  return (
    <>
      {found.error && <Trouble problem={found.error} />}
      {found.value && (
        <dl class="facts">
          <dt>server</dt>
          <dd><Mark status={well ? "done" : "failed"} /> {found.value.status}, version {found.value.version}</dd>
          <dt>database</dt>
          <dd>{found.value.status === "failing" ? <span class="failed">{found.value.reason}</span> : "answers, and stores what is decided"}</dd>
          <dt>NATS</dt>
          <dd class={found.value.nats === "away" ? "paused" : ""}>{found.value.nats === "away" ? "away: everything goes on, only later" : (found.value.nats ?? "not configured")}</dd>
          {queues.value?.queues.map((one) => (
            <>
              <dt>pool {one.pool}</dt>
              <dd>{count(one.workers)} {one.workers === 1 ? "worker" : "workers"}, {count(one.leased)} of {count(one.slots)} slots in use, {commandsWait(one.waiting)}{one.oldest_seconds !== null && <>, the oldest for {took(one.oldest_seconds)}</>}</dd>
            </>
          ))}
          <dt>figures</dt>
          <dd><a href={href("/metrics")} target="_blank" rel="noreferrer">/metrics</a> for Prometheus</dd>
        </dl>
      )}
      {may("secrets.write") && <p><button type="button" onClick={rotate}>Put all credentials under a new key</button></p>}
    </>
  );
}
