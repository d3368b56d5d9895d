"""Every command that looks at executions or acts on them, in the same order, on a database that
nobody holds, beside the process that holds it, and on a server: they say the same."""

from __future__ import annotations

import re
import shlex
from contextlib import ExitStack
from difflib import ndiff
from pathlib import Path
from typing import NamedTuple

import pytest

from noetl.cli.commands import COMMANDS
from noetl.cli.executions import command as executions
from tests.faults.runs import Place
from tests.server.processes import serving
from tests.server.test_hooks import ECHO, HOOKS, WAITS, hook
from tests.server.test_schedules import SCHEDULE

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: {0}, path: walk/{0}}}\n"
# It has no task in python: events are compared by their numbers, and whether there is one that says
# that a task has waited for a process (task.waiting) depends on the machine.
SHOUT = (
    HEAD.format("shout")
    + """\
workload: {word: hello}
workflow:
  - step: start
    tool:
      - {name: hear, kind: shell, command: "echo heard {{ workload.word }}"}
      - {name: shout, kind: noop, result: "{{ workload.word | upper }}"}
    next:
      arcs:
        - {step: loud, when: "{{ start == 'HELLO' }}"}
        - {step: quiet}
  - step: loud
    tool: {kind: noop, result: "{{ start }}!"}
  - step: quiet
    tool: {kind: noop, result: "{{ start }}…"}
"""
)
# In python, for its traceback: nothing that is compared of it counts or shows task.waiting.
FAILS = HEAD.format("fails") + (
    "workflow: [{step: start, tool: {kind: python, code: \"raise ValueError('no')\"}}]\n"
)
CONSUMER = """\
apiVersion: noetl.io/v2
kind: Consumer
metadata: {name: files, path: walk/files}
spec:
  source: {files: {url: "file:///tmp", prefix: noetl-none/, every: 1h}}
  target: {playbook: walk/shout}
"""
NOTIFICATION = """\
apiVersion: noetl.io/v2
kind: Notification
metadata: {name: told, path: walk/told}
spec: {on: failed, path: walk/none, target: {playbook: walk/shout}}
"""
WALK = """\
register shout.yaml fails.yaml schedule.yaml hook.yaml echo.yaml waits.yaml
register shout.yaml --json
catalog list
catalog list --prefix walk/s --json
catalog show walk/shout
catalog show walk/shuot
credential set shared token=abc --type bearer
credential list
credential show shared --json
credential delete shared
keys rotate
execute walk/shout --wait
execute walk/shout --wait --set word=hi --label team=sales --json
execute walk/fails --wait
executions follow last
execute walk/none
executions list
executions list path:walk/shout status:completed --limit 1 --json
executions list status:nonsense
executions labels team --json
executions show last
executions show last --json
executions show 1000000000000000001
executions result last --step nothing
executions result {first}
executions result {first} --step start --json
executions events {first} --type step.done
executions events {first} --type step.done --limit 1 --json
executions events {first} --type nonsense
executions logs {first}
executions logs {first} --grep nothing
executions logs {first} --follow
executions follow {first}
executions why {first}
executions why {first} --step loud
executions why {first} --json
executions show {first} --critical
executions diff {first} {second}
executions export {first} -o one.noetl
executions fork {first} --at 8 --dry-run
executions fork {first} --at 8
executions rerun {first} --set word=again
executions hold {first} --note audit
executions holds
executions release {first}
executions prune --keep 30d --dry-run
executions archived
executions delete {second} --yes
test shout.yaml --against {first}
test --from {first} -o made.test.yaml --playbook shout.yaml
schedules list
schedules show walk/s
schedules next walk/s --count 2
schedules pause walk/s --reason stocktaking
schedules list --json
schedules resume walk/s
schedules backfill walk/s --from 2026-01-01 --to 2026-01-03 --dry-run
schedules delete walk/s
schedules show walk/s --json
hooks list
hooks show hooks/github
hooks delete hooks/github
hooks list --json
execute hooks/waits --set order=A --key once --json
executions answer last yes=1
executions pause last --reason lunch
signal last --name other --id one
executions resume last --detach
executions cancel last
executions cancel {first}
executions resume {first} --detach
signal --match "{{{{ workload.word == 'none' }}}}" --name order.shipped
register consumer.yaml
consumers pause walk/files --reason moving
consumers list
consumers show walk/files --json
consumers resume walk/files
consumers delete walk/files
register told.yaml
notifications list
notifications show walk/told --json
notifications delete walk/told
access user list
access token list
"""
FAILING = {
    "signal --match \"{{{{ workload.word == 'none' }}}}\" --name order.shipped": 1,
    "catalog show walk/shuot": 1,
    "execute walk/fails --wait": 1,
    "executions follow last": 1,
    "execute walk/none": 1,
    "executions list status:nonsense": 2,
    "executions show 1000000000000000001": 1,
    "executions result last --step nothing": 1,
    "executions events {first} --type nonsense": 2,
    "executions diff {first} {second}": 1,
    "executions archived": 1,
    "schedules show walk/s --json": 1,
    "executions answer last yes=1": 1,
    "executions cancel {first}": 1,
    "executions resume {first} --detach": 1,
}
"""What is refused, or found to differ, with which exit code."""
ELSEWHERE = {
    *("run", "dev", "server", "worker", "context", "db", "validate", "plan", "ui", "fmt"),
    *("migrate", "lsp", "schema", "settings", "tools", "completion", "bench", "mcp"),
}
"""Commands that work on files, on one machine or on one database by their nature; and `mcp`, which
says the same to assistants (test_mcp)."""


DIFFERING = (
    (r" on http://[\d.]+:\d+| in the process that holds the database", ""),
    (r"; no process runs it: `[^`]*` continues it", ""),
    (r"noetl: no server runs on this database, [^\n]*\n", ""),
    (r"(?<=continues) when a process runs executions of this database", ""),
    (r"local user \w+|anybody \(the server is open\)", "<somebody>"),
    (r'"kind": "(local|open)",\s*"name": "\w*"', '"who": "<somebody>"'),
    (r'(?<="in_use": )(true|false)', "<whether>"),
    (r'(?<="holder": )"[^"]*"', "<whether>"),
    (r"\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)", "<moment>"),
    (r"(?<=<moment>)  \w*  audit", "  <somebody>  audit"),
    (r"\d\d:\d\d:\d\d(\.\d+)?", "<clock>"),
    (r'\d+\.\d\d s|(?<=_seconds": )[\d.]+', "<span>"),
    (r" +(<span>|<clock>)", r" \1"),
    (r"\b(?:[0-9a-f]{18}|[0-9a-f]{32})\b|(?<=next_cursor\": \")\w+", "<mark>"),
)
"""What differs from one run to the next, or by its nature between the places."""


class Said(NamedTuple):
    code: int
    out: str
    err: str


def plain(text: str, folder: Path, known: dict[str, str]) -> str:
    """Without what differs from one run to the next: ids by order, moments, spans, addresses."""
    for execution_id in re.findall(r"\b\d{15,}\b", text):
        known.setdefault(execution_id, f"<id {len(known) + 1}>")
    for execution_id, name in known.items():
        text = text.replace(execution_id, name)
    text = text.replace(str(folder), "<folder>")
    for found, instead in DIFFERING:
        text = re.sub(found, instead, text)
    return text


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Said]]:
    """What every command said: place → command → said."""
    return {kind: walk(kind, tmp_path_factory.mktemp(kind)) for kind in ("alone", "held", "server")}


def walk(kind: str, folder: Path) -> dict[str, Said]:
    place = Place(folder)
    place.write("shout.yaml", SHOUT)
    place.write("fails.yaml", FAILS)
    place.write("echo.yaml", ECHO)
    place.write("waits.yaml", WAITS)
    place.write("consumer.yaml", CONSUMER)
    place.write("told.yaml", NOTIFICATION)
    place.write("hook.yaml", hook("github", HOOKS["github"]))
    daily = SCHEDULE.replace("every: 1s", 'cron: "30 4 * * *", timezone: Europe/Berlin')
    place.write("schedule.yaml", daily.replace("web/s", "walk/s").replace("web/", "walk/"))
    said: dict[str, Said] = {}
    known: dict[str, str] = {}
    ids: list[str] = []
    with ExitStack() as stack:
        where = ["--db", ".noetl/noetl.db"]
        if kind != "alone":
            server = stack.enter_context(serving(folder, kind="dev"))
            where = where if kind == "held" else ["--server", server.url]
        for line in WALK.splitlines():
            named = dict(zip(("first", "second"), ids, strict=False))
            words = [word.format(**named) for word in shlex.split(line)]
            ran = place.run(*words, *where)
            out, err = (plain(one, folder, known) for one in (ran.stdout, ran.stderr))
            said[line] = Said(ran.returncode, out, err)
            if words[0] == "execute":
                ids += re.findall(r"execution_?(?:id\":)? \"?(\d{15,})", ran.stderr + ran.stdout)[
                    :1
                ]
    return said


def lines(said: Said) -> list[str]:
    return [f"exit code {said.code}", *said.out.splitlines(), *said.err.splitlines()]


@pytest.mark.parametrize("kind", ["held", "server"])
def test_a_command_says_the_same_wherever_executions_are(walked, kind: str):
    differing = [
        "\n".join([line, *ndiff(lines(alone), lines(walked[kind][line]))])
        for line, alone in walked["alone"].items()
        if walked[kind][line] != alone
    ]
    assert not differing, "\n\n".join(differing)
    assert not [said for said in walked[kind].values() if said.err.startswith("Traceback")]


def test_the_walk_shows_the_traceback_of_a_failure_in_python(walked):
    for line in ("execute walk/fails --wait", "executions follow last"):
        assert 'File "walk/fails version 1", line 4, in <module>' in walked["alone"][line].err


def test_the_walk_leaves_no_command_out_and_fails_only_where_it_should(walked):
    failing = {line: said.code for line, said in walked["alone"].items() if said.code}
    assert failing == FAILING
    assert {line.split()[0] for line in WALK.splitlines()} == COMMANDS.keys() - ELSEWHERE
    subcommands = {line.split()[1] for line in WALK.splitlines() if line.startswith("executions ")}
    assert subcommands == set(executions.commands) - {"archive", "resume-all"}
