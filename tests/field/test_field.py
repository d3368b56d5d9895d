"""Playbooks as people wrote them for older dialects: each runs as it stands, embedded on SQLite and
by a server with two workers on PostgreSQL, and what `noetl migrate` makes of it runs the same.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from noetl.dsl import compile_text
from noetl.dsl.older import OLDER
from noetl.model.events import FrameClaimed
from tests.canaries import assert_clean
from tests.documents.comparing import Course, course, with_arcs_for_rules
from tests.field import runs
from tests.field.runs import FOLDER, NAMES, PARTS, TOOLS, Embedded, Expected, Ran
from tests.field.service import SECRETS, Service, credentials
from tests.server.processes import Server, serving, working
from tests.servers import url_of
from tests.tools.services import nats_server

DRAWN = {
    "revision": "NATS numbers what it keeps",
    "digest": "of the net",
    "version": "of the playbook in the catalog: each text is registered anew",
    "poll_began": "the time",
    "size": "of a reference, whose result says how long a service took to answer",
    "_preview": "the beginning of such a result, headers with the date among it",
}
"""Fields that differ between two runs here, each with its reason."""
OF_COUNTING = {"progress", "page", "number", "epoch", "directive", "delay"}
"""Fields that say how often something was asked so far, or that it will be asked again."""


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service().serving() as found:
        yield found


@pytest.fixture(scope="module")
def nats() -> Iterator[str]:
    """A NATS server with the bucket that playbooks expect there."""

    async def make_bucket(url: str) -> None:
        import nats

        client = await nats.connect(url)
        await client.jetstream().create_key_value(bucket="field_sessions")
        await client.close()

    with nats_server() as url:
        asyncio.run(make_bucket(url))
        yield url


@pytest.fixture(scope="module")
def database(postgres_server: Any) -> dict[str, Any]:
    """The database that playbooks write to."""
    with psycopg.connect(url_of(postgres_server, "postgres"), autocommit=True) as db:
        for name in ("field", "field_noetl"):
            db.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            db.execute(f"CREATE DATABASE {name}")
    return {"host": str(postgres_server.pgdata), "user": "postgres", "dbname": "field"}


@pytest.fixture(scope="module")
def here(database: dict[str, Any], service: Service) -> Iterator[Embedded]:
    with runs.embedded() as found:
        found.keep(credentials(service.url, database))
        for path in PARTS:
            found.register(path.read_text())
        yield found
        assert_clean(SECRETS, found.bench.folder)


@pytest.fixture(scope="module")
def server(
    postgres_server: Any,
    database: dict[str, Any],
    service: Service,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("field")
    (folder / "scripts").symlink_to(FOLDER / "scripts")
    with ExitStack() as stack:
        store = {"NOETL_DATABASE_URL": url_of(postgres_server, "field_noetl")}
        found = stack.enter_context(serving(folder, **store))
        for _ in range(2):
            stack.enter_context(working(folder, found.url, "--slots", "8"))
        for name, (kind, data) in credentials(service.url, database).items():
            found.post("/api/credentials", {"name": name, "type": kind, "data": data})
        for path in PARTS:
            found.post("/api/catalog/register", {"content": path.read_text()})
        yield found
        assert_clean(SECRETS, folder)


@pytest.fixture
def workload(
    service: Service,
    nats: str,
    database: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, Any]:
    """What a run is started with; nothing is left of the run before."""
    monkeypatch.chdir(FOLDER)
    with psycopg.connect(**database) as connection:
        connection.execute("DROP SCHEMA IF EXISTS auth CASCADE")
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    service.reset()
    folder = tmp_path / "place"
    folder.mkdir()
    return {"api": service.url, "nats": nats, "folder": str(folder)}


def check(ran: Ran, wanted: Expected, database: dict[str, Any]) -> None:
    """It ended as expected, wrote what was expected, in the order expected."""
    document = ran.document
    error = document["error"] or {}
    assert document["status"] == wanted.status, error
    assert runs.part(document["result"], wanted.result) == wanted.result
    assert runs.part(error, wanted.error) == wanted.error
    for step, result in wanted.results.items():
        assert runs.part(ran.results[step], result) == result, step
    for query, rows in wanted.rows.items():
        assert runs.in_database(database, query) == rows, query
    assert runs.story(ran.events, wanted) == wanted.events
    for step, lines in wanted.any_order.items():
        assert runs.turns(ran.events, step, wanted) == Counter(lines), step


def test_there_are_at_least_forty_and_each_says_what_is_expected() -> None:
    assert len(NAMES) >= 40
    for name in NAMES:
        assert runs.expected(name).events


@pytest.mark.parametrize("name", NAMES)
def test_a_playbook_of_the_field_runs_embedded_as_it_is_and_migrated(
    name: str, here: Embedded, workload: dict[str, Any], database: dict[str, Any], service: Service
) -> None:
    wanted = runs.expected(name)
    as_it_is = here.run(runs.written(name), workload)
    check(as_it_is, wanted, database)

    as_before(workload, database, service)
    migrated = here.run(runs.migrated(name), workload)
    check(migrated, wanted, database)
    old, new = course_of(as_it_is, wanted, service), course_of(migrated, wanted, service)
    assert new == with_arcs_for_rules(old, new)


REWRITTEN_WRONGLY = {
    "a longer wait": ("errors_retry", "delay: 0.01", "delay: 0.02"),
    "one try less": ("errors_retry", "attempts: 3", "attempts: 2"),
    "another default": ("python_inputs", "{{ 'nothing' }}", "{{ 'none' }}"),
    "another value for ctx": ("user_upsert", "many.row_count", "many.row_count + 1"),
    "another arg of an arc": ("errors_retry", "outcome.error.code", "outcome.error.kind"),
}
"""Mistakes that `noetl migrate` could make: the text it writes, and what it would write instead."""


@pytest.mark.parametrize("mistake", REWRITTEN_WRONGLY)
def test_a_rewriting_that_changed_what_happens_would_be_seen(
    mistake: str,
    here: Embedded,
    workload: dict[str, Any],
    database: dict[str, Any],
    service: Service,
) -> None:
    name, right, wrong = REWRITTEN_WRONGLY[mistake]
    wanted, text = runs.expected(name), runs.migrated(name)
    assert right in text
    as_it_is = here.run(runs.written(name), workload)
    as_before(workload, database, service)
    migrated = here.run(text.replace(right, wrong), workload)

    old, new = course_of(as_it_is, wanted, service), course_of(migrated, wanted, service)
    assert new != with_arcs_for_rules(old, new)


def as_before(workload: dict[str, Any], database: dict[str, Any], service: Service) -> None:
    """Nothing is left of what a run wrote."""
    with psycopg.connect(**database) as connection:
        connection.execute("DROP SCHEMA IF EXISTS auth CASCADE")
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    service.reset()
    shutil.rmtree(workload["folder"])
    Path(workload["folder"]).mkdir()


def course_of(ran: Ran, wanted: Expected, service: Service) -> Course:
    """Every event of a run with all it says, up to ids, times and what services draw; of lines that
    repeat as often as it takes (how often a job is asked about), one of each.
    """
    found = same(course(ran.facts, service.url))
    claimed = {fact.step for fact in ran.facts if isinstance(fact, FrameClaimed)}
    for step in claimed:
        # Frames that claim at once share the rows out by chance: which iteration has which row,
        # and which of them is reported first.
        own = [key for key in found if key.startswith(f"{step}[")]
        stories = [_unnumbered(found.pop(key)) for key in own]
        found[f"{step}[*]"] = [fact for story in sorted(stories, key=str) for fact in story]
    for step in {line.split()[1] for line in wanted.repeats} & found.keys():
        uncounted = [
            {key: part for key, part in fact.items() if key not in OF_COUNTING}
            for fact in (map(_unsized, found[step]) if step in claimed else found[step])
        ]
        once = [fact for n, fact in enumerate(uncounted) if fact not in uncounted[:n]]
        found[step] = sorted(once, key=str) if step in claimed else once
    return found


def _unsized(fact: dict[str, Any]) -> dict[str, Any]:
    """How many rows a frame got is chance: two that claim at once lock the last rows one by one,
    and may share four of them out as one and three. Whether it got any is not.
    """
    if fact["type"] == "loop.frame.claimed":
        return {**fact, "iterations": fact.get("iterations", 0) > 0}
    if fact["type"] == "task.done" and fact["task"] == "claim":
        outcome = fact["outcome"]
        return {**fact, "outcome": {**outcome, "result": outcome["result"]["rows"] > 0}}
    return fact


def _unnumbered(story: list[Any]) -> Any:
    """What happened in one iteration, whichever it was."""
    return [{key: part for key, part in fact.items() if key != "iteration"} for fact in story]


def same(value: Any) -> Any:
    """The value without what is new in every run."""
    match value:
        case dict() as found:
            return {key: same(one) for key, one in found.items() if key not in DRAWN}
        case list() as found:
            return [same(one) for one in found]
        case str() as text:
            return re.sub(r"\bnoetl-test-\w+", "…", text)
        case other:
            return other


@pytest.mark.parametrize("name", NAMES)
def test_a_playbook_of_the_field_runs_on_a_server_with_two_workers(
    name: str, server: Server, workload: dict[str, Any], database: dict[str, Any]
) -> None:
    check(runs.served(server, runs.written(name), workload), runs.expected(name), database)


@pytest.mark.parametrize("path", [*sorted(FOLDER.glob("*.yaml")), *PARTS], ids=lambda p: p.stem)
def test_migrate_leaves_nothing_to_warn_of_and_only_older_forms_were(path: Path) -> None:
    if path.name.endswith(runs.EXPECT):
        return
    before = compile_text(path.read_text(), tools=TOOLS)
    text = runs.migrate_text(path.read_text(), TOOLS).text
    after = compile_text(text, tools=TOOLS)

    assert {problem.code for problem in before.problems} <= OLDER | {"root-hoisted"}
    assert after.net is not None
    assert after.problems == ()
    assert runs.migrate_text(text, TOOLS).text == text


FORMS: dict[str, tuple[str, ...]] = {
    "python `libs: {alias: module}`": (
        r"libs: \{\}",
        r"libs: \{\w+: \w+",
        r"\{from: \w+, import: \w+\}",
    ),
    "task `timeout`, `timeout_seconds`": (
        r"kind: python\n(?:.*\n)*?    timeout: \d",
        r"timeout_seconds: \d",
    ),
    "tool config inside a task's `spec`": (
        r"spec:\n +(endpoint|url|cmd|commands): ",
        r"spec:\n +headers:",
        r"spec: \{url: ",
    ),
    "`set_ctx` and `set_iter`": (r"\n  set_ctx:", r"\n    set_ctx:", r" set_iter: \{"),
    "`assert`": (r"assert: \{expects: \[", r"assert:\n +expects: \["),
    "`pool` of a SQL task": (r"pool: \{name: \w+, min_size.*max_waiting.*max_lifetime.*max_idle",),
    "`output` of a step": (
        r"\n  output:\n    select:",
        r"\n  result:\n    output_select:",
        r"inline_max_bytes: \d",
        r"store: kv",
        r"preview_max_bytes: ",
        r"scope: execution",
        r"output_select: \{",
    ),
    "`script: {uri, source}`": (
        r"uri: \S+\.sql\n +source: \{type: file\}",
        r"type: inline",
        r"script: \S+\.sql",
        r"uri: \S+\.py\n +source: \{type: file, region",
    ),
    "artifact": (r"action: get\n +result_ref: ", r"args: \{uri: "),
    "cursor `frame`": (
        *(rf"\n +{key}: " for key in ("max_seconds", "max_bytes", "heartbeat_seconds")),
        *(r"verify_ipc: ", r"retry_mode: ", r"__frame_max_rows"),
    ),
    "`on_no_match`": (r"on_no_match: quiet", r"on_no_match: complete"),
    "transfer": (r"source:\n +type: http", r"target: \{type: postgres.*mapping: "),
    "rule `set: [{name, value}]`": (r"set:\n +- name: ", r"set: \[\{name: "),
    "sink `kind: event_log`": (r"kind: event_log",),
    "SQL `statement`": (r"statement: ",),
    "SQL `data` with `table`": (r"table: \w+\n    data: \{", r"data:\n    - \{", r'data: "\{\{'),
    "SQL `auth: {type, credential}`": (r"auth: \{type: postgres, credential: ",),
    "rule `retry: {args | params}`": (r"retry:\n +params:", r"retry:\n +args:"),
    "`| tojson` for a json column": (
        r"params:(?:.|\n)*?\| tojson \}\}",
        r"data: \{.*\| tojson \}\}",
    ),
    "`collect … into` a key of ctx": (r"set_ctx:\n +all_items(?:.|\n)*into: all_items",),
    "playbook `task`": (r"kind: playbook\n +path: \S+\n +task: ",),
    "an empty `step: end`": (r"- step: end\n(\Z|  desc: .*\n\Z|- |workbook)",),
    "further `metadata` keys": (r"metadata:\n(  .*\n)*  (author|category|compliance|team): ",),
    "keychain `map`": (r"kind: static\n  map: ", r"kind: secret_manager(?:.|\n)*?\n  map:"),
    "oauth2 entry": (
        r"kind: oauth2\n  endpoint: (?:.|\n)*method: POST(?:.|\n)*auto_renew: true(?:.|\n)*"
        r"grant_type: client_credentials(?:.|\n)*client_id: (?:.|\n)*scope: ",
    ),
    "retries": (r"retry_on: \[", r"retry_on_status: \[", r"backoff: 0", r"backoff_seconds: "),
    "a guarded reserved name": (r"outcome\.status \| default", r"response is defined"),
    "executor": (
        r"executor:\n(  .*\n)*  version: ",
        r"requires:(?:.|\n)*?features: ",
        r"tools: \[",
        r"timeout_s: ",
        r"preserve_order: true",
    ),
    "rules": (r"then:\n +- step: ", r"else: null\n +then:", r'"\{\{ output\.data'),
    "`_store` of a reference": (r"\._store \}\}",),
}
"""The forms of older dialects, row by row, and how they are recognised in the texts."""


@pytest.mark.parametrize("form", FORMS)
def test_the_playbooks_use_every_form_of_the_table(form: str) -> None:
    texts = [path.read_text() for path in [*map(_path, NAMES), *PARTS]]

    for pattern in FORMS[form]:
        assert any(re.search(pattern, text) for text in texts), pattern


def _path(name: str) -> Path:
    return FOLDER / f"{name}.yaml"
