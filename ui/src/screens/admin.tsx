// Who may come in, what secrets are kept, who did what, and how the server does.
import { useState } from "preact/hooks";
import { call, may, me } from "../api/client";
import { useLoaded } from "../data";
import { Ask, showDialog } from "../parts/dialog";
import { Copy, Empty, tell, tellProblem, Trouble } from "../parts/notes";
import { Status } from "../parts/status";
import { When } from "../time";
import { ask, asked } from "../url";

const ROLES = ["viewer", "operator", "author", "worker", "admin"];
const PARTS: [name: string, right: string][] = [
  ["credentials", "secrets.list"],
  ["users", "manage"],
  ["tokens", "manage"],
  ["sessions", "self"],
  ["audit", "manage"],
  ["health", "anyone"],
];

export function Admin() {
  const parts = PARTS.filter(([name, right]) => right === "anyone" || (may(right) && (name !== "sessions" || me.value?.kind === "user"))).map(([name]) => name);
  const part = parts.includes(asked("part")) ? asked("part") : parts[0]!;
  return (
    <main class="page" tabIndex={-1}>
      <h1>Admin</h1>
      <div class="tabs" role="tablist" aria-label="Parts">
        {parts.map((one) => (
          <button type="button" role="tab" id={`tab-${one}`} aria-controls="part" aria-selected={one === part} onClick={() => ask({ part: one })}>
            {one}
          </button>
        ))}
      </div>
      <div id="part" role="tabpanel" aria-labelledby={`tab-${part}`} class="part">
        {part === "credentials" && <Credentials />}
        {part === "users" && <Users />}
        {part === "tokens" && <Tokens />}
        {part === "sessions" && <Sessions />}
        {part === "audit" && <Audit />}
        {part === "health" && <Health />}
      </div>
    </main>
  );
}

function remove(what: string, run: () => Promise<unknown>, done: () => void) {
  showDialog(`Delete ${what}?`, (close) => (
    <Ask does="Delete" danger close={close} run={async () => { await run(); done(); }}>
      <p>This cannot be undone.</p>
    </Ask>
  ));
}

function Credentials() {
  const found = useLoaded("credentials", () => call("GET /api/credentials", {}));
  const put = (close: () => void) => (
    <Ask
      does="Keep"
      close={close}
      run={async (data) => {
        await call("POST /api/credentials", {
          body: { name: String(data.get("name")), type: String(data.get("type")) || "generic", description: String(data.get("description")), data: JSON.parse(String(data.get("data"))) },
        });
        found.reload();
      }}
    >
      <label>Name <input name="name" required autofocus autocomplete="off" /></label>
      <label>Type <input name="type" placeholder="generic, postgres, http, …" autocomplete="off" /></label>
      <label>Description <input name="description" autocomplete="off" /></label>
      <label>
        <span>Data <span class="quiet">(JSON; it is encrypted, and no page shows it again)</span></span>
        <textarea name="data" rows={6} required spellcheck={false} placeholder='{"user": "…", "password": "…"}' />
      </label>
    </Ask>
  );
  return (
    <>
      {may("secrets.write") && <p><button type="button" onClick={() => showDialog("Credential", put)}>New or replace</button></p>}
      {found.error && <Trouble problem={found.error} />}
      {found.value && !found.value.credentials.length && <Empty title="No credential is kept here."><p>Playbooks name them in <code>keychain</code>; see docs/keychain.md.</p></Empty>}
      {found.value && found.value.credentials.length > 0 && (
        <div class="tablebox" tabIndex={0} role="group" aria-label="Credentials">
          <table>
            <thead><tr><th scope="col">name</th><th scope="col">type</th><th scope="col">description</th><th scope="col">playbooks</th><th scope="col">changed</th><th scope="col"><span class="hidden">Delete</span></th></tr></thead>
            <tbody>
              {found.value.credentials.map((one) => (
                <tr key={one.id}>
                  <td class="mono">{one.name}</td>
                  <td>{one.type}</td>
                  <td>{one.description}</td>
                  <td>{one.playbooks.join(", ") || <span class="quiet">all</span>}</td>
                  <td><When at={one.updated_at} /></td>
                  <td class="num">{may("secrets.write") && <button type="button" class="link" onClick={() => remove(one.name, () => call("DELETE /api/credentials/{name}", { path: { name: one.name } }), found.reload)}>delete</button>}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}

function Roles() {
  return (
    <fieldset>
      <legend>Roles</legend>
      {ROLES.map((role) => (
        <label class="check"><input type="checkbox" name="roles" value={role} /> {role}</label>
      ))}
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
        await call("POST /api/access/users", { body: { name: String(data.get("name")), password: String(data.get("password")), email: String(data.get("email")), roles: data.getAll("roles").map(String) } });
        found.reload();
      }}
    >
      <label>Name <input name="name" required autofocus autocomplete="off" /></label>
      <label>Password <input name="password" type="password" required minLength={8} autocomplete="new-password" /></label>
      <label>E-mail <input name="email" type="email" /></label>
      <Roles />
    </Ask>
  );
  return (
    <>
      <p><button type="button" onClick={() => showDialog("User", put)}>New or change</button></p>
      {found.error && <Trouble problem={found.error} />}
      {found.value && !found.value.users.length && <Empty title="This server has no users: everybody on this machine may do everything."><p>The first one must be an administrator; from then on people sign in.</p></Empty>}
      {found.value && found.value.users.length > 0 && (
        <div class="tablebox" tabIndex={0} role="group" aria-label="Users">
          <table>
            <thead><tr><th scope="col">name</th><th scope="col">roles</th><th scope="col">e-mail</th><th scope="col">since</th><th scope="col"><span class="hidden">Delete</span></th></tr></thead>
            <tbody>
              {found.value.users.map((one) => (
                <tr key={one.name}>
                  <td>{one.name}</td>
                  <td>{one.roles.join(", ")}</td>
                  <td>{one.email}</td>
                  <td><When at={one.created_at} /></td>
                  <td class="num"><button type="button" class="link" onClick={() => remove(one.name, () => call("DELETE /api/access/users/{name}", { path: { name: one.name } }), found.reload)}>delete</button></td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}

function Tokens() {
  const found = useLoaded("tokens", () => call("GET /api/access/tokens", {}));
  const [made, setMade] = useState<{ name: string; token: string } | null>(null);
  const put = (close: () => void) => (
    <Ask
      does="Create"
      close={close}
      run={async (data) => {
        const days = Number(data.get("days"));
        const created = await call("POST /api/access/tokens", { body: { name: String(data.get("name")), roles: data.getAll("roles").map(String), expires_in: days ? days * 86400 : null } });
        setMade({ name: created.name, token: created.token });
        found.reload();
      }}
    >
      <label>Name <input name="name" required autofocus autocomplete="off" /></label>
      <label><span>Days <span class="quiet">(empty: for ever)</span></span> <input name="days" type="number" min="1" /></label>
      <Roles />
    </Ask>
  );
  return (
    <>
      <p><button type="button" onClick={() => showDialog("Token", put)}>New</button></p>
      {made && (
        <div class="command">
          <span>{made.name}, shown only now:</span> <code>{made.token}</code> <Copy text={made.token} />
        </div>
      )}
      {found.error && <Trouble problem={found.error} />}
      {found.value && !found.value.tokens.length && <Empty title="No token yet."><p>Workers and scripts show one: NOETL_TOKEN.</p></Empty>}
      {found.value && found.value.tokens.length > 0 && (
        <div class="tablebox" tabIndex={0} role="group" aria-label="Tokens">
          <table>
            <thead><tr><th scope="col">name</th><th scope="col">roles</th><th scope="col">pools</th><th scope="col">created</th><th scope="col">expires</th><th scope="col"><span class="hidden">Revoke</span></th></tr></thead>
            <tbody>
              {found.value.tokens.map((one) => (
                <tr key={one.name}>
                  <td>{one.name}</td>
                  <td>{one.roles.join(", ")}</td>
                  <td>{one.pools.join(", ")}</td>
                  <td><When at={one.created_at} /></td>
                  <td><When at={one.expires_at} /></td>
                  <td class="num"><button type="button" class="link" onClick={() => remove(one.name, () => call("DELETE /api/access/tokens/{name}", { path: { name: one.name } }), found.reload)}>revoke</button></td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}

function Sessions() {
  const found = useLoaded("sessions", () => call("GET /api/auth/sessions", {}));
  const endOthers = () => call("DELETE /api/auth/sessions", {}).then((told) => { tell(`${told.ended.length} ended.`); found.reload(); }, tellProblem);
  return (
    <>
      <p><button type="button" onClick={endOthers}>End all others</button></p>
      {found.error && <Trouble problem={found.error} />}
      <div class="tablebox" tabIndex={0} role="group" aria-label="Sessions">
        <table>
          <thead><tr><th scope="col">from</th><th scope="col">since</th><th scope="col">last used</th><th scope="col">until</th><th scope="col"><span class="hidden">State</span></th></tr></thead>
          <tbody>
            {found.value?.sessions.map((one) => (
              <tr key={one.session_id}>
                <td class="mono">{one.client_ip}</td>
                <td><When at={one.created_at} /></td>
                <td><When at={one.last_activity_at} /></td>
                <td><When at={one.expires_at} /></td>
                <td>{one.current ? <strong>this one</strong> : ""}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

function Audit() {
  const found = useLoaded("audit", () => call("GET /api/access/audit", { query: { limit: 500 } }), 10_000);
  return (
    <>
      {found.error && <Trouble problem={found.error} />}
      {found.value && !found.value.entries.length && <Empty title="Nobody has looked at or changed anything that is noted here." />}
      <div class="tablebox" tabIndex={0} role="group" aria-label="Audit log">
        <table>
          <thead><tr><th scope="col">when</th><th scope="col">who</th><th scope="col">what</th><th scope="col">of</th><th scope="col">details</th></tr></thead>
          <tbody>
            {found.value?.entries.map((one) => (
              <tr>
                <td><When at={one.at} /></td>
                <td>{one.who}</td>
                <td>{one.action}</td>
                <td class="mono">{one.target}</td>
                <td class="mono">{one.details}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

function Health() {
  const found = useLoaded("health", () => call("GET /api/health", {}), 5000);
  return (
    <>
      {found.error && <Trouble problem={found.error} />}
      {found.value && (
        <dl class="facts">
          <dt>server</dt>
          <dd><Status status={found.value.status === "ok" ? "done" : "failed"} /> {found.value.status} {found.value.reason}</dd>
          <dt>version</dt>
          <dd>{found.value.version}</dd>
          <dt>NATS</dt>
          <dd>{found.value.nats ?? "not configured"}</dd>
        </dl>
      )}
    </>
  );
}
