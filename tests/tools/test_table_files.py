"""Tables and other files among the results: kept in parts, read by the next task as they are."""

from __future__ import annotations

import hashlib
import threading
from decimal import Decimal

import duckdb
import pytest

from noetl.errors import TooLarge
from noetl.tools.files import results as files
from noetl.tools.processes.programs import spawner
from noetl.tools.rules import Rules
from tests.tools.running import KEY, elsewhere, failure, kept, on_bench, ran

MANY = 25_000


def query(kind, rows=MANY):
    """The same rows in each database: a number, a text that needs quoting, a text or NULL."""
    series = {
        "sqlite": f"WITH RECURSIVE s(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM s LIMIT {rows})",
        "duckdb": f"WITH s AS (SELECT range AS n FROM range({rows}))",
        "postgres": f"WITH s AS (SELECT n FROM generate_series(0, {rows} - 1) AS n)",
    }[kind]
    return (
        f"{series} SELECT n AS id, 'a, \"b\"' AS text, "
        "CASE WHEN n = 1 THEN '' WHEN n = 2 THEN NULL ELSE 'x' END AS note FROM s ORDER BY n"
    )


@pytest.fixture(params=["sqlite", "duckdb", "postgres"])
def kind(request):
    return request.param


@pytest.fixture
def config(request, kind):
    return {"auth": request.getfixturevalue("postgres")} if kind == "postgres" else {}


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_query_yields_a_reference_that_the_next_tasks_read_as_a_table(kind, config, form):
    async def work(bench):
        made = await bench.run(kind, {**config, "command": query(kind), "result_as": form})
        assert made.is_ok, made
        totals = await bench.run(
            "duckdb",
            {
                "files": {"t": made.result},
                "command": "SELECT count(*) AS n, sum(id) AS total, count(note) AS notes, "
                "count(*) FILTER (note = '') AS empty, max(text) AS text FROM t",
            },
        )
        page = await bench.run("artifact", {"ref": made.result, "offset": 1, "limit": 2})
        return made.result, totals.result, page.result

    made, totals, page = on_bench(work)

    assert made["row_count"] == MANY
    assert made["columns"] == ["id", "text", "note"]
    assert set(made["_ref"]["schema_hint"]) == {"id", "text", "note"}
    assert made["_ref"]["format"] == form
    assert made["_preview"][1] == {"id": 1, "text": 'a, "b"', "note": ""}
    assert totals["rows"] == [
        {
            "n": MANY,
            "total": MANY * (MANY - 1) // 2,
            "notes": MANY - 1,
            "empty": 1,
            "text": 'a, "b"',
        }
    ]
    assert page == [
        {"id": 1, "text": 'a, "b"', "note": ""},
        {"id": 2, "text": 'a, "b"', "note": None},
    ]


def test_rows_of_a_reference_are_written_to_a_table(kind, config, tmp_path):
    place = config or {"database": str(tmp_path / "t.db")}

    async def work(bench):
        made = await bench.run("duckdb", {"command": query("duckdb"), "result_as": "parquet"})
        await bench.run(
            kind, {**place, "command": "CREATE TABLE t (id int PRIMARY KEY, text text, note text)"}
        )
        for mode in ("insert", "upsert"):
            written = await bench.run(
                kind, {**place, "table": "t", "rows": made.result, "mode": mode, "key": "id"}
            )
            assert written.is_ok, written
        return await bench.run(
            kind, {**place, "command": "SELECT count(*) AS n, max(id) AS most, min(note) FROM t"}
        )

    [row] = on_bench(work).result["rows"]
    assert (row["n"], row["most"]) == (MANY, MANY - 1)


def test_values_survive_the_way_from_postgres_through_parquet_and_back(postgres):
    columns = {
        "a": ("int[]", "ARRAY[1,2]", [1, 2]),
        "j": ("jsonb", """'{"k": [1, null]}'""", {"k": [1, None]}),
        "n": ("numeric(12,3)", "12.340", 12.34),
        "huge": ("numeric", "12345678901234567890123456789.5", "12345678901234567890123456789.5"),
        "at": ("timestamptz", "'2024-05-06 07:08:09.123456+02'", "2024-05-06T05:08:09.123456Z"),
        "u": ("uuid", "'8400b7f8-5f0e-4b0c-9c6e-0d5f6b1a2c3d'", None),
        "b": ("bytea", r"'\x00ff5c'", "AP9c"),
        "i": ("interval", "'-1 month 3 days -04:05:06'", "P-1M3DT-4H-5M-6S"),
        "d": ("date", "'2024-02-29'", "2024-02-29"),
        "t": ("text", "E'line\\nnext \"quoted\", \\\\\\\\N'", None),
    }
    table = ", ".join(f"{name} {type_}" for name, (type_, _, _) in columns.items())
    values = ", ".join(value for _, value, _ in columns.values())

    async def work(bench):
        postgres_task = {"auth": postgres}
        made = await bench.run(
            "postgres",
            {
                **postgres_task,
                "command": f"SET timezone = 'UTC'; CREATE TABLE one ({table}); "
                f"CREATE TABLE two ({table}); INSERT INTO one VALUES ({values}); "
                "SELECT * FROM one",
                "result_as": "parquet",
            },
        )
        assert made.is_ok, made
        written = await bench.run(
            "postgres", {**postgres_task, "table": "two", "rows": made.result}
        )
        assert written.is_ok, written
        return await bench.run(
            "postgres",
            {
                **postgres_task,
                "command": "SET LOCAL timezone = 'UTC'; "
                "SELECT * FROM two; SELECT count(*) AS n FROM one JOIN two USING (a, j, n, huge, "
                '"at", u, b, i, d, t)',
            },
        )

    found = on_bench(work).result

    assert found["rows"] == [{"n": 1}]
    [row] = found["command_1"]["rows"]
    for name, (_, _, wanted) in columns.items():
        if wanted is not None:
            assert row[name] == wanted, name


def test_rows_written_out_are_a_table_for_duckdb():
    outcome = ran(
        "duckdb",
        {"files": {"t": {"rows": [{"a": 1}, {"a": 2}]}}, "command": "SELECT sum(a) AS s FROM t"},
    )

    assert outcome.result["rows"] == [{"s": 3}]


def test_copy_to_the_result_store_and_from_it(postgres):
    async def work(bench):
        task = {"auth": postgres}
        made = "CREATE TABLE one AS SELECT n FROM generate_series(1, 9) n; CREATE TABLE two (n int)"
        await bench.run("postgres", {**task, "command": made})
        out = await bench.run("postgres", {**task, "table": "one", "copy": {}})
        assert (out.result["row_count"], out.result["_ref"]["format"]) == (9, "csv")
        into = await bench.run("postgres", {**task, "table": "two", "copy": {"source": out.result}})
        return into.result["row_count"]

    assert on_bench(work) == 9


def test_python_code_gets_the_path_of_a_file():
    async def work(bench):
        made = await bench.run("duckdb", {"command": "SELECT 42 AS a", "result_as": "parquet"})
        code = "result = [open(table['path'], 'rb').read(4).decode(), table['row_count']]"
        return await bench.run("python", {"code": code}, inputs={"table": made.result})

    assert on_bench(work).result == ["PAR1", 1]


# --- Parts -------------------------------------------------------------------------------------


def test_a_file_is_kept_in_parts_and_read_by_range(monkeypatch, tmp_path):
    monkeypatch.setattr(files, "PART", 1000)
    body = bytes(range(256)) * 20
    path = tmp_path / "f.bin"
    path.write_bytes(body)
    bodies = {}

    async def work(bench):
        shelf = bench.resources.files("7", "seal", "a", *files.in_memory(bodies))
        reference = await shelf.keep(path, form="bytes")
        await shelf.close()
        async with elsewhere(bench) as worker:
            other = worker.resources.files("8", "seal", "b", *files.in_memory(bodies))
            whole = (await other.local(other.find(reference))).read_bytes()
            part = await other.read(other.find(reference), 990, 2010)
            await other.close()
        return reference, whole, part

    reference, whole, part = on_bench(work)
    assert reference["_ref"]["parts"] == len(bodies) == 6
    assert reference["_ref"]["checksum"] == hashlib.sha256(body).hexdigest()
    assert (whole, part) == (body, body[990:2010])


READERS = {
    "artifact": {"ref": "FILE"},
    "sqlite": {"command": "CREATE TABLE t (a)", "table": "t", "rows": "FILE"},
    "http": {"method": "POST", "url": "http://127.0.0.1:9/", "body": "FILE"},
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("harm", ["changed", "gone"])
def test_a_file_that_is_not_what_was_written_is_not_handed_out(harm, reader, tmp_path):
    async def work(bench):
        made = await bench.run("duckdb", {"command": "SELECT 1 AS a", "result_as": "parquet"})
        if harm == "gone":
            bench.bodies.clear()
        else:
            bench.bodies = {key: body + b"!" for key, body in bench.bodies.items()}
        async with elsewhere(bench) as other:
            config = {
                name: made.result if value == "FILE" else value
                for name, value in READERS[reader].items()
            }
            return await other.run(reader, config)

    kind, message = failure(on_bench(work))
    assert kind == {"changed": "parse", "gone": "not_found"}[harm]
    assert "execution 1" in message


def test_files_larger_than_the_operator_allows_are_refused():
    rules = Rules(max_file_bytes=100)
    outcome = ran(
        "duckdb",
        {"command": "SELECT 1 AS a", "result_as": "parquet"},
        settings={"rules": rules},
    )

    assert failure(outcome)[0] == "client_error"
    assert "NOETL_MAX_FILE_BYTES" in failure(outcome)[1]
    assert TooLarge.code == "too_large"


def test_the_worker_forgets_the_files_it_used_least(tmp_path):
    async def work(bench):
        cache = bench.resources.shared("files", lambda: files.FileCache(25))
        for name in "abc":
            (tmp_path / name).write_bytes(b"0123456789")
            cache.add(name, tmp_path / name)
            cache.lend("a", tmp_path / f"a beside {name}")
        return [cache.lend(name, tmp_path / f"lent {name}") for name in "abc"]

    assert on_bench(work) == [True, False, True]


def test_a_file_that_two_attempts_keep_at_once_stays_as_its_readers_have_it(tmp_path):
    """Both have read the same reference, and so keep the same file."""
    for name in ("first", "second"):
        (tmp_path / name).write_text(name)

    class First(type(tmp_path)):
        def stat(self, **how):
            second.start()  # when the first has its name, and before the cache knows it
            second.join(0.1)
            return super().stat(**how)

    async def work(bench):
        cache.add("same", First(tmp_path / "first"))
        second.join()
        await cache.close()

    cache = files.FileCache()
    second = threading.Thread(target=cache.add, args=("same", tmp_path / "second"))
    on_bench(work)
    assert (tmp_path / "first").read_text() == "first"


def test_nothing_is_left_lying_about(tmp_path, monkeypatch):
    spawner().close()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def work(bench):
        await bench.run("duckdb", {"command": "SELECT 1 AS a", "result_as": "parquet"})
        [root] = tmp_path.glob("noetl-*/*")
        return sorted(len(path.name) for path in root.iterdir())

    assert on_bench(work) == [64]
    assert list(tmp_path.glob("noetl-*/*")) == []
    spawner().close()
    assert list(tmp_path.iterdir()) == []


# --- artifact ----------------------------------------------------------------------------------


VALUE = {"rows": [{"id": n} for n in range(10)], "name": "x"}


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({}, VALUE),
        ({"path": "rows.3.id"}, 3),
        ({"path": "rows", "offset": 8}, [{"id": 8}, {"id": 9}]),
        ({"path": "rows", "limit": 1}, [{"id": 0}]),
        ({"path": "name"}, "x"),
    ],
)
@pytest.mark.parametrize("ref", [KEY, kept(VALUE)["_ref"], kept(VALUE)])
def test_artifact_reads_a_result_or_a_part_of_it(config, wanted, ref):
    outcome = ran("artifact", {"ref": ref, **config}, settings={"results": {KEY: VALUE}})

    assert outcome.result == wanted


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"ref": {"size": 3}}, "client_error"),
        ({"ref": KEY, "path": "rows.99"}, "not_found"),
        ({"ref": KEY, "path": "nothing"}, "not_found"),
        ({"ref": KEY, "limit": 3}, "client_error"),
        ({"ref": KEY[::-1]}, "not_found"),
        ({"ref": "elsewhere"}, "client_error"),
        ({"ref": {"_ref": {**kept(VALUE)["_ref"], "key": "00c0ffee"}}}, "client_error"),
    ],
)
def test_artifact_says_what_is_wrong(config, kind):
    outcome = ran("artifact", config, settings={"results": {KEY: VALUE}})

    assert failure(outcome)[0] == kind


def test_a_decimal_keeps_its_digits_in_parquet():
    async def work(bench):
        made = await bench.run(
            "duckdb", {"command": "SELECT 1.10::DECIMAL(10,2) AS d", "result_as": "parquet"}
        )
        [path] = bench.resources.shared("files", lambda: None).root.iterdir()
        return made.result, duckdb.sql(f"SELECT d FROM read_parquet('{path}')").fetchall()

    made, row = on_bench(work)
    assert row == [(Decimal("1.10"),)]
    assert made["_ref"]["schema_hint"] == {"d": "DECIMAL(10,2)"}
