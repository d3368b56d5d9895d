// Signing in, on servers that have users.
import { useState } from "preact/hooks";
import { call, Problem, whoAmI } from "../api/client";
import { Trouble } from "../parts/notes";

export function Login() {
  const [error, setError] = useState<Problem>();
  const [busy, setBusy] = useState(false);
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const data = new FormData(event.currentTarget as HTMLFormElement);
    setBusy(true);
    try {
      await call("POST /api/auth/login", { body: { user: String(data.get("user")), password: String(data.get("password")) } });
      await whoAmI();
    } catch (problem) {
      setError(problem as Problem);
    } finally {
      setBusy(false);
    }
  };
  return (
    <main class="login" tabIndex={-1}>
      <h1>NoETL</h1>
      <form onSubmit={submit}>
        <label>
          Name
          <input name="user" autocomplete="username" required autofocus />
        </label>
        <label>
          Password
          <input name="password" type="password" autocomplete="current-password" required />
        </label>
        {error && <Trouble problem={error} />}
        <button type="submit" class="primary" disabled={busy}>Sign in</button>
      </form>
      <p class="quiet">
        No account? An administrator makes one: <code>noetl access user add NAME --role viewer</code>
      </p>
    </main>
  );
}
