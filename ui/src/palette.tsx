// Go anywhere by typing: screens, playbooks, executions by id, and what can be changed at once.
import { useEffect, useState } from "preact/hooks";
import { call, isRecording, me, signOut } from "./api/client";
import type { CatalogItem, ExecutionSummary } from "./api/types";
import { showDialog } from "./parts/dialog";
import { tellProblem } from "./parts/notes";
import { Mark } from "./parts/status";
import { clock, CLOCKS, theme, THEMES } from "./prefs";
import { moment } from "./time";
import { go, path } from "./url";

interface Choice {
  title: string;
  hint: string;
  status?: string;
  run: () => void;
}

const FIXED: Choice[] = [
  { title: "Home", hint: "what needs you", run: () => go("/") },
  { title: "Executions", hint: "screen", run: () => go("/executions") },
  { title: "Failed executions", hint: "status:failed since:1d", run: () => go(`/executions?q=${encodeURIComponent("status:failed since:1d")}`) },
  { title: "Playbooks", hint: "screen", run: () => go("/playbooks") },
  { title: "Inbox", hint: "forms that wait for people", run: () => go("/inbox") },
  { title: "Schedules", hint: "times, calendar, backfill", run: () => go("/schedules") },
  { title: "Hooks", hint: "addresses that others call", run: () => go("/schedules?kind=hooks") },
  { title: "Notifications", hint: "what is told, and by which playbooks", run: () => go("/schedules?kind=notifications") },
  { title: "Consumers", hint: "messages, rows and files that are fetched", run: () => go("/schedules?kind=consumers") },
  { title: "Workers", hint: "pools, queues", run: () => go("/workers") },
  { title: "Compare", hint: "two executions", run: () => go("/compare") },
  { title: "New playbook", hint: "editor", run: () => go("/editor") },
  { title: "Admin", hint: "credentials, users, tokens, audit, health", run: () => go("/admin") },
  ...THEMES.map((one) => ({ title: `Theme: ${one === "system" ? "as the system" : one}`, hint: "", run: () => (theme.value = one) })),
  ...CLOCKS.map((one) => ({ title: `Times: ${one === "utc" ? "UTC" : one}`, hint: "", run: () => (clock.value = one) })),
];
/** What there is of a recording, and preferences. */
const READS = /^(Executions|Theme|Times)/;
/** Pages show the last six of them. */
const ID_DIGITS = 15;
/** Of what matches; with nothing typed all screens and preferences are there. */
const SHOWN = 12;

function matches(text: string, wanted: string): boolean {
  const low = text.toLowerCase();
  return wanted.toLowerCase().split(/\s+/).every((word) => low.includes(word));
}

function Palette({ close }: { close: () => void }) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const [playbooks, setPlaybooks] = useState<CatalogItem[]>([]);
  const [executions, setExecutions] = useState<ExecutionSummary[]>([]);
  useEffect(() => {
    call("POST /api/catalog/list", { body: {} }).then((found) => setPlaybooks(found.entries), tellProblem);
    call("GET /api/executions", { query: { limit: 50 } }).then((found) => setExecutions(found.executions), tellProblem);
  }, []);
  const own: Choice[] = [
    ...FIXED.filter((one) => !isRecording() || READS.test(one.title)),
    ...(me.value?.kind === "user" ? [{ title: "Sign out", hint: me.value.name, run: () => void signOut().then(() => go("/"), tellProblem) }] : []),
  ];
  const id = /^…?(\d{4,})$/.exec(text.trim())?.[1];
  const choices: Choice[] = [
    ...(!id ? [] : id.length < ID_DIGITS ? [{ title: `…${id}`, hint: "executions whose id begins or ends so", run: () => go(`/executions?q=id:${id}`) }] : [{ title: id, hint: "open this execution", run: () => go(path("executions", id)) }]),
    ...own,
    ...playbooks.map((one) => ({ title: one.path, hint: `${one.kind.toLowerCase()}, version ${one.version}`, run: () => go(path("playbooks", one.path)) })),
    ...executions.map((one) => ({
      title: `${one.path} …${one.execution_id.slice(-6)}`,
      hint: one.start_time ? moment(one.start_time) : "",
      status: one.status,
      run: () => go(path("executions", one.execution_id)),
    })),
  ]
    .filter((one) => !text || matches(`${one.title} ${one.hint}`, text))
    .slice(0, text ? SHOWN : own.length);
  const take = (choice: Choice | undefined) => {
    if (!choice) return;
    close();
    choice.run();
  };
  return (
    <div class="palette">
      <input
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-activedescendant={choices[at] ? `palette-${at}` : undefined}
        aria-label="Where to?"
        placeholder="screen, playbook, execution, id …"
        autofocus
        value={text}
        onInput={(event) => { setText(event.currentTarget.value); setAt(0); }}
        onKeyDown={(event) => {
          if (event.key === "ArrowDown") setAt(Math.min(at + 1, choices.length - 1));
          else if (event.key === "ArrowUp") setAt(Math.max(at - 1, 0));
          else if (event.key === "Enter") take(choices[at]);
          else return;
          event.preventDefault();
        }}
      />
      <ul role="listbox" id="palette-list" aria-label="Places">
        {choices.map((one, number) => (
          <li role="option" id={`palette-${number}`} aria-selected={number === at} ref={(element) => { if (number === at) element?.scrollIntoView({ block: "nearest" }); }} onClick={() => take(one)} onMouseMove={() => setAt(number)}>
            {one.status && <Mark status={one.status} />}
            <span>{one.title}</span>
            <span class="quiet">{one.hint}</span>
          </li>
        ))}
      </ul>
      {!choices.length && <p class="quiet">Nothing is called so.</p>}
    </div>
  );
}

export function openPalette(): void {
  showDialog("Go to", (close) => <Palette close={close} />, true);
}
