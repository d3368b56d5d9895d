// The frame: header, navigation, what is signed in, and the screen that the address names.
import type { Signal } from "@preact/signals";
import type { ComponentType } from "preact";
import { useEffect } from "preact/hooks";
import { expired, isRecording, may, me, reachable, signOut, whoAmI } from "./api/client";
import { useLoaded } from "./data";
import { keysNow, useKeys } from "./keys";
import { Dialogs, showDialog } from "./parts/dialog";
import { NewsList, tellProblem, Trouble } from "./parts/notes";
import { openPalette } from "./palette";
import { clock, CLOCKS, theme, THEMES } from "./prefs";
import { go, href, place, words } from "./url";
import { updated } from "./update";
import { Admin } from "./screens/admin";
import { Compare } from "./screens/compare";
import { Editor } from "./screens/editor";
import { Execution } from "./screens/execution";
import { Executions } from "./screens/executions";
import { Home } from "./screens/home";
import { Inbox, useInboxCount } from "./screens/inbox";
import { Login, SignInAgain } from "./screens/login";
import { Playbook } from "./screens/playbook";
import { Playbooks } from "./screens/playbooks";
import { Schedule, Schedules } from "./screens/schedules";
import { Workers } from "./screens/workers";

const NAVIGATION: [word: string, title: string][] = [
  ["executions", "Executions"],
  ["playbooks", "Playbooks"],
  ["inbox", "Inbox"],
  ["schedules", "Schedules"],
  ["workers", "Workers"],
  ["admin", "Admin"],
];

function screenOf(parts: string[]): [screen: ComponentType, title: string] {
  const [first, second] = parts;
  if (first === undefined || first === "login") return isRecording() ? [Executions, "Recording"] : [Home, "Home"];
  if (first === "executions") return second ? [Execution, `Execution …${second.slice(-6)}`] : [Executions, "Executions"];
  if (first === "playbooks") return second ? [Playbook, parts.slice(1).join("/")] : [Playbooks, "Playbooks"];
  if (first === "inbox") return [Inbox, "Inbox"];
  if (first === "schedules") return second ? [Schedule, parts.slice(1).join("/")] : [Schedules, "Schedules"];
  if (first === "workers") return [Workers, "Workers"];
  if (first === "compare") return [Compare, "Compare"];
  if (first === "editor") return [Editor, "Editor"];
  if (first === "admin") return [Admin, "Admin"];
  return [Missing, "Not found"];
}

function Missing() {
  return (
    <main class="page">
      <h1>There is no such page</h1>
      <p>
        <a href={href("/")}>Home</a> shows what needs you.
      </p>
    </main>
  );
}

export function App() {
  const { error } = useLoaded("me", whoAmI);
  useKeys([
    { key: "?", says: "this help", run: showHelp },
    { key: "mod+k", says: "go anywhere", run: openPalette },
    { key: "g", says: "go anywhere", run: openPalette },
  ]);
  const [Screen, title] = screenOf(words.value);
  const who = me.value;
  useEffect(() => {
    document.title = who === null || expired.value ? "Sign in · NoETL" : `${title} · NoETL`;
  }, [title, who, expired.value]);
  if (error && who === undefined) {
    return (
      <main class="page">
        <Trouble problem={error} />
        <button onClick={() => location.reload()}>Try again</button>
      </main>
    );
  }
  if (who === undefined) return null;
  if (who === null) return <><Login /><Dialogs /></>;
  return (
    <>
      <a class="skip" href="#content" onClick={(event) => { event.preventDefault(); document.querySelector<HTMLElement>("main")?.focus(); }}>
        Skip to the content
      </a>
      <Header />
      {!reachable.value && (
        <p class="banner" role="alert">
          The server does not answer. What is shown may be old; the page tries again by itself.
        </p>
      )}
      {updated.value && (
        <p class="banner" role="status">
          The server has another version now. <button type="button" class="link" onClick={() => location.reload()}>Load the page again</button> when nothing typed here is left to keep.
        </p>
      )}
      <Screen key={place.value.path} />
      <Dialogs />
      <NewsList />
      {expired.value && <SignInAgain />}
    </>
  );
}

function offers(word: string): boolean {
  if (isRecording()) return word === "executions";
  return word !== "admin" || may("manage") || may("secrets.list");
}

function Header() {
  const here = words.value[0];
  const waiting = useInboxCount();
  useEffect(() => document.querySelector(".header [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }), [here, waiting]);
  return (
    <header class="header">
      <a class="brand" href={href("/")} aria-label="NoETL, home">
        <svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
          <path d="M4 12V4l8 8V4" />
        </svg>
        NoETL
      </a>
      <nav aria-label="Screens">
        {NAVIGATION.filter(([word]) => offers(word)).map(([word, title]) => (
          <a href={href(`/${word}`)} aria-current={here === word ? "page" : undefined}>
            {title}
            {word === "inbox" && waiting && <span class="badge">{waiting}</span>}
          </a>
        ))}
      </nav>
      <span class="space" />
      <button type="button" class="bare" onClick={openPalette} title="Go anywhere (⌘K or Ctrl-K)">
        <kbd>⌘K</kbd>
        <span class="phone" aria-hidden="true">⋯</span>
        <span class="hidden">Go anywhere</span>
      </button>
      <Preference name="Times" says="How times are shown" of={clock} values={CLOCKS} />
      <Preference name="Theme" says="Theme" of={theme} values={THEMES} />
      <Caller />
    </header>
  );
}

function Preference<T extends string>({ name, says, of, values }: { name: string; says: string; of: Signal<T>; values: readonly T[] }) {
  return (
    <label>
      <span class="hidden">{name}</span>
      <select value={of.value} onChange={(event) => (of.value = event.currentTarget.value as T)} title={says}>
        {values.map((one) => <option value={one}>{one === "utc" ? "UTC" : one}</option>)}
      </select>
    </label>
  );
}

const NOT_SIGNED_IN: Record<string, string> = {
  open: "This server has no users: everybody on this machine may do everything.",
  visitor: "This is a recording: everything can be read, nothing can be changed.",
};

function Caller() {
  const who = me.value!;
  if (who.kind !== "user") {
    return (
      <span class="quiet who" title={NOT_SIGNED_IN[who.kind] ?? who.name}>
        {isRecording() ? "recording" : who.name || "no sign-in"}
      </span>
    );
  }
  return (
    <button type="button" class="bare who" title={`Signed in as ${who.name} (${who.roles.join(", ")})`} onClick={showAccount}>
      {who.display_name || who.name}
    </button>
  );
}

function showAccount() {
  const who = me.value!;
  showDialog(who.display_name || who.name, (close) => (
    <>
      <p>Signed in as {who.name}, with the {who.roles.length === 1 ? "role" : "roles"} {who.roles.join(", ")}.</p>
      <p class="actions">
        <button type="button" class="primary" onClick={() => { close(); signOut().then(() => go("/"), tellProblem); }}>Sign out</button>
        <a class="button" href={href("/admin?part=sessions")} onClick={close}>Sessions</a>
        <button type="button" onClick={close}>Close</button>
      </p>
    </>
  ));
}

function showHelp() {
  const keys = keysNow();
  showDialog("Keys", (close) => (
    <>
      <dl class="keys">
        {keys.map((one) => (
          <>
            <dt>
              <kbd>{one.key.replace("mod+", "⌘ ").replace("Arrow", "")}</kbd>
            </dt>
            <dd>{one.says}</dd>
          </>
        ))}
      </dl>
      <p class="actions">
        <button type="button" onClick={close}>Close</button>
      </p>
    </>
  ));
}
