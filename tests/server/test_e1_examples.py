"""E1: every example, embedded, and on a server with two worker processes, on PostgreSQL (and, in
`make test-long`, on SQLite): the same end, and the same events up to ids, times and who ran what.

S6: no secret that an example uses stays anywhere, whichever way it runs."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
import yaml

from tests.canaries import assert_clean
from tests.effort import IS_LONG, later
from tests.examples.services import put_docker
from tests.examples.system import EXAMPLES, ROOT
from tests.server.example_runs import NAMES, SECRETS, WORKLOADS, Ran, prepared, told
from tests.server.processes import Server, serving, working
from tests.servers import url_of
from tests.tools.canary_system import NOT_OF_EACH, answers, answers_about

RACES = {"first_answer", "order_feed", "quantum_sweep", "timeouts", "work_queue"}
"""Here the clock decides which calls are made, in either way of running; the end is the same."""
APPENDING = {"order_feed"}
"""Runs of a step that go on at once append to a list, each when it ends."""
FAILING = {"on_failure"}
PROGRESS = re.compile(r"(?m)^[\d,]+ records in [\d,]+ batches\.\n?")
"""How far a copy is, which is said as often as there is time for."""
LABELLED = {"NOETL_LABELS": "gpu=a100"}
"""What one of the examples asks for."""
DELIVERY = re.compile(r"command\.|quota\.used|task\.waiting")
"""Who was given what, in which pieces, and who waited for a place longer than a second, is what
differs between one process and three."""


@pytest.fixture(scope="module")
def servers(
    postgres_server: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Server]]:
    """By store: a server and two workers that see what a command in the project would see."""
    with psycopg.connect(url_of(postgres_server, "postgres"), autocommit=True) as db:
        db.execute("DROP DATABASE IF EXISTS e1 WITH (FORCE)")
        db.execute("CREATE DATABASE e1")
    stores: dict[str, dict[str, str]] = {
        "postgres": {"NOETL_DATABASE_URL": url_of(postgres_server, "e1")}
    }
    if IS_LONG:
        stores["sqlite"] = {}
    with ExitStack() as stack:
        found = {}
        for store, settings in stores.items():
            folder = tmp_path_factory.mktemp(store)
            (folder / "examples").symlink_to(ROOT / "examples")
            put_docker(folder / "bin")
            path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
            found[store] = stack.enter_context(serving(folder, **settings))
            for _ in range(2):
                worker = working(folder, found[store].url, "--slots", "8", PATH=path, **LABELLED)
                stack.enter_context(worker)
        yield found
        for server in found.values():
            assert_clean(SECRETS, server.log.parent, *answers_about(server))
        assert_clean(SECRETS, *rows_of(stores["postgres"]["NOETL_DATABASE_URL"]))


def rows_of(database_url: str) -> Iterator[str]:
    """Every row of every table of a database, as text."""
    tables = "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relnamespace IN "
    ours = "(SELECT oid FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema)')"
    with psycopg.connect(database_url) as db:
        for (table,) in db.execute(tables + ours).fetchall():
            for (row,) in db.execute(f"SELECT t::text FROM {table} AS t"):
                yield row


# --- What is the same --------------------------------------------------------------------------


def the_end(name: str, document: dict[str, Any]) -> Any:
    """How it ended, for whoever asks; without calls that were made or not by chance."""
    left_out = {"progress"}
    steps = document["steps"]
    if name in RACES:
        steps = [{key: step[key] for key in ("step", "status", "runs")} for step in steps]
    if name in APPENDING:
        steps = [{key: step[key] for key in ("step", "runs")} for step in steps]
        document = {key: in_order(value) for key, value in document.items()}
    return told({**{k: v for k, v in document.items() if k not in left_out}, "steps": steps})


def in_order(value: Any) -> Any:
    """The value with its lists in an order of their own."""
    match value:
        case dict():
            return {key: in_order(one) for key, one in value.items()}
        case list():
            return sorted(map(in_order, value), key=msgspec.json.encode)
    return value


def story(events: list[dict[str, Any]]) -> Counter[str]:
    """What happened, however often; parallel branches may take turns in any order.

    What a task printed is compared as it is kept: whether a short one showed some of it before its
    end, and in which pieces, is a matter of time.
    """
    found: Counter[str] = Counter()
    for event in events:
        if event["name"] == "task.log" or DELIVERY.match(event["name"]):
            continue
        where = (event["step"], event["iteration"], event["attempt"])
        printed = PROGRESS.sub("", event["payload"].get("log") or "")
        line = (event["name"], where, told(event["payload"]), told(printed))
        found[msgspec.json.encode(line, order="sorted").decode()] += 1
    return found


@pytest.mark.parametrize("name", NAMES)
def test_e1_an_example_runs_the_same_embedded_and_on_servers(
    name: str,
    servers: dict[str, Server],
    tmp_path: Path,
    postgres: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    put_docker(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    folder = tmp_path / "place"
    runs: dict[str, Ran] = {}
    for place in ("embedded", *servers):
        # Each run finds what the first one found.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        with psycopg.connect(**postgres) as connection:
            connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        with prepared(name, folder, postgres) as example:
            is_here = place == "embedded"
            runs[place] = example.embedded() if is_here else example.served(servers[place])
        known = ["shop", "vault"]
        told: Iterable[bytes] = ()
        if not is_here and (IS_LONG or example.may_use_secrets()):
            told = answers(servers[place], runs[place].document, known, NOT_OF_EACH)
        assert_clean(SECRETS, folder, *told)

    here = runs.pop("embedded")
    ended = "FAILED" if name in FAILING else "COMPLETED"
    assert here.document["status"] == ended, here.document["error"]
    for place, there in runs.items():
        assert the_end(name, there.document) == the_end(name, here.document), place
        if name not in RACES:
            assert story(there.events) - story(here.events) == Counter(), place
            assert story(here.events) - story(there.events) == Counter(), place


WRITING = sorted(name for name, given in WORKLOADS.items() if "{folder}" in str(given))


def test_places_where_examples_write_are_those_where_git_does_not_look():
    places = [
        str(yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())["workload"][key])
        for name in WRITING
        for key, value in WORKLOADS[name].items()
        if "{folder}" in str(value)
    ]

    assert [place for place in places if not re.match(r"(\w+:///?)?(/tmp/|\.noetl)", place)] == []


RUN_THERE = ("csv_to_sqlite",)


@pytest.mark.parametrize(
    "name",
    [*RUN_THERE, *later(one for one in WRITING if one not in (*RUN_THERE, "attached_databases"))],
)
def test_an_example_writes_where_git_does_not_look(name, tmp_path, monkeypatch):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / ".noetl").mkdir()
    monkeypatch.chdir(tmp_path)

    with prepared(name, tmp_path, {}) as example:
        theirs = {
            key: value for key, value in example.workload.items() if str(tmp_path) not in str(value)
        }
        ran = example._replace(workload=theirs).embedded()

    assert ran.document["status"] == "COMPLETED", ran.document["error"]
    assert {path.name for path in tmp_path.iterdir()} == {"examples", ".noetl"}
    assert ".noetl/" in (ROOT / ".gitignore").read_text().splitlines()
