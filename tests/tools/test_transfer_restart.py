"""Kind transfer into files and objects: it goes on behind the last batch, and nobody sees half."""

from __future__ import annotations

import asyncio
import fcntl
import gzip
import json
import os
import sqlite3
import threading
from contextlib import closing, contextmanager

import duckdb
import psycopg
import pytest
from aiohttp import web

from noetl.tools.rules import Rules
from noetl.tools.transfer.files import ABANDONED_SECONDS
from tests.faults.runs import Place, kill
from tests.tools.running import failure, on_bench, ran
from tests.tools.services import answering

SIZE = 100
"""Records of a page, and of a batch."""
PAGES = 8
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: copy, path: faults/copy}
workload: {source: "", target: ""}
workflow:
  - step: start
    tool:
      kind: transfer
      source:
        kind: http
        url: "{{ workload.source }}/pages"
        paging: {size_param: size, size: 100}
      target: {kind: file, path: "{{ workload.target }}"}
      batch_size: 100
"""


def record(number):
    """The type of `odd` is known only when most of them have been read."""
    odd = number if number < 650 else f"line\nbreak {number}"
    return {"id": number, "name": f'ü "{number}"', "part": number / 4, "odd": odd, "doc": [number]}


class Pages:
    """A web service with pages of records that may fall silent, or fail, at one of them."""

    def __init__(self):
        self.asked = []
        self.silent_at = self.failing_at = None
        self.reached = threading.Event()

    async def answer(self, request):
        page = int(request.query["page"])
        self.asked.append(page)
        if page == self.silent_at:
            self.reached.set()
            await asyncio.Event().wait()
        if page == self.failing_at:
            return web.Response(status=503)
        first = (page - 1) * SIZE
        count = SIZE if page <= PAGES else 0
        return web.json_response([record(first + n) for n in range(count)])


@contextmanager
def paged():
    pages = Pages()
    with answering(("GET", "/pages", pages.answer)) as url:
        paging = {"size_param": "size", "size": SIZE}
        yield pages, {"kind": "http", "url": f"{url}/pages", "paging": paging}


def uninterrupted(source, path):
    config = {"source": source, "target": {"kind": "file", "path": str(path)}, "batch_size": SIZE}
    assert ran("transfer", config).is_ok
    return path.read_bytes()


@pytest.mark.parametrize("form", ["csv", "ndjson", "json", "parquet"])
def test_t01_a_killed_transfer_into_a_file_goes_on_behind_the_last_batch(form, tmp_path):
    place, target = Place(tmp_path), tmp_path / f"o.{form}"
    place.write("copy.yaml", PLAYBOOK)
    with paged() as (pages, source):
        words = ("run", "copy.yaml", "--set", f"source={source['url'].removesuffix('/pages')}")
        words = (*words, "--set", f"target={target}")
        pages.silent_at = 6
        process = place.start(*words)
        assert pages.reached.wait(60)
        kill(process)

        assert pages.asked == [1, 2, 3, 4, 5, 6]
        assert not target.exists()
        pages.silent_at = None
        pages.asked.clear()
        again = place.run(*words, "--resume")

        assert again.returncode == 0, again.stderr
        assert pages.asked == [6, 7, 8, 9]
        whole = uninterrupted(source, tmp_path / f"whole.{form}")
    assert target.read_bytes() == whole
    with closing(duckdb.connect()) as connection:
        rows = connection.execute(f"SELECT id FROM '{target}'").fetchall()
    assert [number for (number,) in rows] == list(range(SIZE * PAGES))
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {".noetl", "copy.yaml", target.name, f"whole.{form}"}


# --- In this process ---------------------------------------------------------------------------


@pytest.fixture
def interrupted(tmp_path):
    """The service, and a transfer to `o.csv` whose first attempt has failed at the third page."""
    config = {"target": {"kind": "file", "path": str(tmp_path / "o.csv")}, "batch_size": SIZE}
    with paged() as (pages, source):
        pages.failing_at = 3
        config["source"] = source
        first = ran("transfer", config)
        assert failure(first)[0] == "server_error"
        pages.failing_at = None
        pages.asked.clear()
        yield pages, config


def part_of(folder):
    [part] = folder.glob(".noetl-*.part")
    return part


def check(config, outcome, tmp_path, *, skipped):
    assert outcome.result == {"records": SIZE * PAGES, "batches": PAGES, "skipped": skipped}
    whole = uninterrupted(config["source"], tmp_path / "whole.csv")
    assert (tmp_path / "o.csv").read_bytes() == whole


def test_another_attempt_goes_on_and_leaves_only_the_file(interrupted, tmp_path):
    pages, config = interrupted
    assert part_of(tmp_path).is_dir()

    outcome = ran("transfer", config)

    assert pages.asked == [3, 4, 5, 6, 7, 8, 9]
    check(config, outcome, tmp_path, skipped=2 * SIZE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o.csv", "whole.csv"]


def test_another_machine_which_has_no_part_begins_anew(interrupted, tmp_path):
    pages, config = interrupted
    part_of(tmp_path).rename(tmp_path / "elsewhere")

    outcome = ran("transfer", config)

    assert pages.asked[0] == 1
    check(config, outcome, tmp_path, skipped=0)


@pytest.mark.parametrize(
    ("lines", "marks", "kept"),
    [
        (b"half a batch", b"", 2),
        (b"", b'{"records": 300, "bat', 2),
        (b"", b'{"records": 300}\n', 2),
        (None, b"", 0),
    ],
    ids=["lines", "mark", "strange mark", "lost lines"],
)
def test_what_a_crash_cut_off_is_not_taken_up(lines, marks, kept, interrupted, tmp_path):
    pages, config = interrupted
    part = part_of(tmp_path)
    if lines is None:
        (part / "lines").unlink()
    else:
        with (part / "lines").open("ab") as file:
            file.write(lines)
    with (part / "marks").open("ab") as file:
        file.write(marks)

    outcome = ran("transfer", config)

    assert pages.asked[0] == kept + 1
    check(config, outcome, tmp_path, skipped=kept * SIZE)


def test_an_attempt_that_is_still_alive_is_left_alone(interrupted, tmp_path):
    _, config = interrupted
    part = part_of(tmp_path)
    with (part / "marks").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        outcome = ran("transfer", config)

        check(config, outcome, tmp_path, skipped=0)
        assert [part] == list(tmp_path.glob(".noetl-*.part"))


def test_a_failure_that_is_final_leaves_nothing(interrupted, tmp_path):
    _, config = interrupted
    wrong = config["source"] | {"url": config["source"]["url"] + "/nowhere"}

    assert failure(ran("transfer", config | {"source": wrong}))[0] == "not_found"
    assert list(tmp_path.iterdir()) == []


def test_what_was_given_up_long_ago_is_removed_by_the_next_transfer(interrupted, tmp_path):
    _, config = interrupted
    part = part_of(tmp_path)
    marks = part / "marks"
    recent = marks.stat().st_mtime
    target = {"kind": "file", "path": str(tmp_path / "other.json")}

    assert ran("transfer", config | {"target": target}).is_ok
    assert part.exists()
    os.utime(marks, (recent, recent - ABANDONED_SECONDS - 60))
    assert ran("transfer", config | {"target": target}).is_ok
    assert not part.exists()


def test_without_resume_nothing_is_taken_up_and_nothing_left(tmp_path):
    config = {"target": {"kind": "file", "path": str(tmp_path / "o.csv")}, "batch_size": SIZE}
    with paged() as (pages, source):
        config |= {"source": source, "resume": False}
        pages.failing_at = 3
        assert failure(ran("transfer", config))[0] == "server_error"
        assert list(tmp_path.iterdir()) == []
        pages.failing_at = None

        check(config, ran("transfer", config), tmp_path, skipped=0)


def test_a_file_that_is_there_already_is_not_written_again(tmp_path):
    path = tmp_path / "o.csv"
    with paged() as (pages, source):
        config = {"source": source, "target": {"kind": "file", "path": str(path)}}

        async def work(bench):
            first = await bench.run("transfer", config)
            pages.asked.clear()
            second = await bench.run("transfer", config)
            asked = list(pages.asked)
            path.unlink()
            return first, second, asked, await bench.run("transfer", config)

        first, second, asked, third = on_bench(work)

    assert (second.result["skipped"], asked) == (first.result["records"], [])
    assert (third.result["skipped"], path.exists()) == (0, True)
    assert list(tmp_path.iterdir()) == [path]


def test_while_a_file_is_made_the_old_one_stays(tmp_path):
    path = tmp_path / "o.csv"
    path.write_text("old")
    config = {"target": {"kind": "file", "path": str(path)}, "batch_size": SIZE}
    with paged() as (pages, source):
        pages.failing_at = 3
        ran("transfer", config | {"source": source})

    assert path.read_text() == "old"


def test_an_object_goes_on_behind_the_last_batch(tmp_path):
    rules = {"rules": Rules(cache=str(tmp_path / "cache"))}
    store = {"kind": "store", "url": f"file://{tmp_path}/objects", "key": "deep/o.ndjson"}
    config = {"target": store, "batch_size": SIZE}
    with paged() as (pages, source):
        config["source"] = source
        pages.failing_at = 4
        assert failure(ran("transfer", config, settings=rules))[0] == "server_error"
        assert not (tmp_path / "objects" / "deep").exists()
        pages.failing_at = None
        pages.asked.clear()

        outcome = ran("transfer", config, settings=rules)

    assert pages.asked[0] == 4
    assert outcome.result["skipped"] == 3 * SIZE
    lines = (tmp_path / "objects" / "deep" / "o.ndjson").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == list(range(SIZE * PAGES))
    assert list((tmp_path / "cache" / "transfers").iterdir()) == []


def test_a_file_is_packed_if_its_name_says_so(tmp_path):
    with paged() as (_, source):
        target = {"kind": "file", "path": str(tmp_path / "o.csv.gz")}
        assert ran("transfer", {"source": source, "target": target}).is_ok
        plain = uninterrupted(source, tmp_path / "o.csv")

    assert gzip.decompress((tmp_path / "o.csv.gz").read_bytes()) == plain


@pytest.mark.parametrize("kind", ["postgres", "duckdb", "sqlite"])
def test_rows_of_a_query_are_taken_up_behind_those_that_were_written(kind, postgres, tmp_path):
    source = {"kind": kind, "command": "SELECT id FROM t ORDER BY id"}
    if kind == "postgres":
        source["auth"] = postgres
        with psycopg.connect(**postgres) as connection:
            connection.execute("CREATE TABLE t AS SELECT generate_series(0, 9) AS id")
    else:
        source["database"] = str(tmp_path / "from.db")
        connect = {"duckdb": duckdb.connect, "sqlite": sqlite3.connect}[kind]
        with closing(connect(source["database"])) as connection:
            connection.execute("CREATE TABLE t (id INTEGER)")
            connection.executemany("INSERT INTO t VALUES (?)", [(n,) for n in range(10)])
            connection.commit()
    target = {"kind": "sqlite", "database": str(tmp_path / "to.db"), "table": "wanted"}
    config = {"source": source, "target": target, "batch_size": 3}
    with closing(sqlite3.connect(tmp_path / "to.db")) as connection:
        connection.execute("CREATE TABLE wanted (id INTEGER PRIMARY KEY)")
        connection.execute("INSERT INTO wanted VALUES (7)")
        connection.commit()
        assert failure(ran("transfer", config))[0] == "db_constraint"
        connection.execute("DELETE FROM wanted WHERE id = 7")
        connection.commit()

        assert ran("transfer", config).result == {"records": 10, "batches": 4, "skipped": 6}
        found = connection.execute("SELECT id FROM wanted ORDER BY id").fetchall()
    assert [number for (number,) in found] == list(range(10))
