// Signing in, on servers that have users.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { call, expired, Problem, whoAmI } from "../api/client";
import { Trouble } from "../parts/notes";

export function Login() {
  const [error, setError] = useState<Problem>();
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    // Another tab may have signed in; if the server is away, signing in says so.
    const look = () => void whoAmI().catch(() => undefined);
    addEventListener("focus", look);
    return () => removeEventListener("focus", look);
  }, []);
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
      {expired.value && <p>Your session is over. Sign in to go on; what you typed is still there.</p>}
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

/** Over a page whose session is over: what was typed there stays, and where the focus was, it is again. */
export function SignInAgain() {
  const element = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    const dialog = element.current!;
    dialog.showModal();
    return () => dialog.close();
  }, []);
  // Closed for a moment by Escape, it would leave the next one to what lies below. Older browsers close it all the same.
  return (
    <dialog ref={element} class="whole" aria-label="Sign in" closedby="none" onClose={() => expired.value && element.current?.showModal()}>
      <Login />
    </dialog>
  );
}
