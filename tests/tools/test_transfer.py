"""Kind transfer, from every end to every other, with real databases, files and a web server."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from types import SimpleNamespace

import duckdb
import msgspec
import psycopg
import pytest
from aiohttp.web import Response, json_response

from noetl.model.ids import derive
from noetl.tools.transfer import ToHttp
from noetl.tools.transfer.targets import Mark, ToService
from tests.tools.running import failure, on_bench, ran
from tests.tools.services import answering

CANARY = "canary-secret"

ROWS = [
    {"id": n, "name": name, "price": n / 4, "ok": n % 2 == 0}
    for n, name in enumerate(["plain", "", None, 'a "quoted", b', "line\nbreak", "\\N", "ü €"])
]
NAMES = ["id", "name", "price", "ok"]


# --- Ends: how to fill a source, how to look into a target ------------------------------------


class End:
    """One kind of end: its config, what is in it."""

    def __init__(self, kind, root, postgres, web):
        self.kind, self.root, self.postgres, self.web = kind, root, postgres, web
        self.path = root / f"{kind}.{'db' if kind in ('sqlite', 'duckdb') else kind}"

    def filled(self):
        """A source with the rows."""
        getattr(self, f"_fill_{self._group()}")()
        return self._place() | ({"table": "t"} if self._group() in TABLES else {})

    def empty(self):
        """A target without rows."""
        table = {"table": "wanted", "create": True, "key": "id"}
        return self._place() | (table if self._group() in TABLES else {})

    def rows(self):
        return getattr(self, f"_rows_{self._group()}")()

    def _group(self):
        return "file" if self.kind in ("csv", "json", "ndjson", "parquet") else self.kind

    def _place(self):
        match self._group():
            case "postgres":
                return {"kind": "postgres", "auth": self.postgres}
            case "http":
                return {"kind": "http", "url": f"{self.web.url}/records"}
            case "file":
                return {"kind": "file", "path": str(self.path)}
        return {"kind": self.kind, "database": str(self.path)}

    def _fill_postgres(self):
        with psycopg.connect(**self.postgres) as connection:
            connection.execute("CREATE TABLE t (id int, name text, price float8, ok boolean)")
            cursor = connection.cursor()
            cursor.executemany(
                "INSERT INTO t VALUES (%s, %s, %s, %s)", [list(row.values()) for row in ROWS]
            )

    def _fill_sqlite(self):
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute("CREATE TABLE t (id int, name text, price real, ok boolean)")
            connection.executemany(
                "INSERT INTO t VALUES (?, ?, ?, ?)", [list(row.values()) for row in ROWS]
            )
            connection.commit()

    def _fill_duckdb(self):
        with closing(duckdb.connect(str(self.path))) as connection:
            connection.execute("CREATE TABLE t (id int, name text, price double, ok boolean)")
            connection.executemany(
                "INSERT INTO t VALUES (?, ?, ?, ?)", [list(row.values()) for row in ROWS]
            )

    def _fill_file(self):
        with closing(duckdb.connect()) as connection:
            connection.execute("CREATE TABLE t (id int, name text, price double, ok boolean)")
            connection.executemany(
                "INSERT INTO t VALUES (?, ?, ?, ?)", [list(row.values()) for row in ROWS]
            )
            how = {
                "csv": "FORMAT csv, HEADER true, FORCE_QUOTE (name)",
                "json": "FORMAT json, ARRAY true",
                "ndjson": "FORMAT json",
                "parquet": "FORMAT parquet",
            }[self.kind]
            connection.execute(f"COPY t TO '{self.path}' ({how})")

    def _fill_http(self):
        self.web.records[:] = ROWS

    def _rows_postgres(self):
        with psycopg.connect(**self.postgres) as connection:
            return connection.execute("SELECT id, name, price, ok FROM wanted").fetchall()

    def _rows_sqlite(self):
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute("SELECT id, name, price, ok FROM wanted").fetchall()

    def _rows_duckdb(self):
        with closing(duckdb.connect(str(self.path))) as connection:
            return connection.execute("SELECT id, name, price, ok FROM wanted").fetchall()

    def _rows_file(self):
        text = self.path.read_bytes()
        if self.kind == "json":
            return [[row.get(name) for name in NAMES] for row in json.loads(text)]
        if self.kind == "ndjson":
            lines = text.decode().strip().split("\n")
            return [[json.loads(line).get(name) for name in NAMES] for line in lines]
        reader = (
            "read_csv(?, allow_quoted_nulls = false)" if self.kind == "csv" else "read_parquet(?)"
        )
        return duckdb.connect().execute(f"SELECT * FROM {reader}", [str(self.path)]).fetchall()

    def _rows_http(self):
        return [[row[name] for name in NAMES] for row in self.web.received]


TABLES = ("postgres", "sqlite", "duckdb")
KINDS = [*TABLES, "csv", "json", "ndjson", "parquet", "http"]


def shown(rows):
    return sorted(
        (row[0], row[1], float(row[2]), bool(row[3]) if row[3] is not None else None)
        for row in rows
    )


def pairs():
    """Every end to every other. From table to table the ways differ; else two of each end show it,
    and the others are for `make test-long`."""
    for number, source in enumerate(KINDS):
        for other, target in enumerate(KINDS):
            is_known = (other - number) % len(KINDS) in (1, 4) or {source, target} <= {*TABLES}
            marks = () if is_known else pytest.mark.long
            yield pytest.param(source, target, marks=marks, id=f"{source}-{target}")


@pytest.mark.parametrize(("source", "target"), list(pairs()))
def test_records_go_from_every_end_to_every_other(source, target, tmp_path, postgres, web):
    (tmp_path / "from").mkdir()
    start = End(source, tmp_path / "from", postgres, web)
    goal = End(target, tmp_path, postgres, web)

    config = {"source": start.filled(), "target": goal.empty(), "batch_size": 3}
    outcome = ran("transfer", config)

    assert outcome.is_ok, outcome
    assert outcome.result == {"records": 7, "batches": 3, "skipped": 0}
    found = shown(goal.rows())
    if source == "csv":
        # Not every CSV file tells NULL from an empty text, so nobody reads it that way.
        found = [(number, name or "", *rest) for number, name, *rest in found]
    wanted = [dict(row, name=row["name"] or "") if source == "csv" else row for row in ROWS]
    assert found == shown([list(row.values()) for row in wanted])


def test_a_mapping_renames_and_leaves_out(tmp_path, postgres, web):
    source = End("duckdb", tmp_path, postgres, web).filled()
    target = {"kind": "file", "path": str(tmp_path / "out.ndjson")}

    ran("transfer", {"source": source, "target": target, "mapping": {"number": "id", "n": "name"}})

    first = json.loads((tmp_path / "out.ndjson").read_text().split("\n")[0])
    assert first == {"number": 0, "n": "plain"}


def test_a_mapping_reads_parts_of_a_web_services_records(tmp_path, web):
    web.records[:] = [{"id": 1, "owner": {"name": "Ada"}}]
    source = {"kind": "http", "url": f"{web.url}/records"}
    target = {"kind": "file", "path": str(tmp_path / "out.json")}

    ran("transfer", {"source": source, "target": target, "mapping": {"who": "owner.name"}})

    assert json.loads((tmp_path / "out.json").read_text()) == [{"who": "Ada"}]


@pytest.mark.parametrize(
    ("paging", "requests"),
    [
        ({"size_param": "size", "size": 3, "more": "more"}, 4),
        ({"size_param": "size", "size": 3}, 4),
        ({"size_param": "size", "size": 5}, 3),
        ({"size_param": "size", "size": 3, "max_pages": 2}, 2),
        ({"param": "after", "next": "next", "size_param": "size", "size": 4}, 3),
        ({"next": "url", "size_param": "size", "size": 4}, 3),
    ],
)
def test_pages_of_a_web_service_are_read_to_the_last(paging, requests, tmp_path, web):
    web.records[:] = [{"id": n} for n in range(10)]
    source = {"kind": "http", "url": f"{web.url}/pages", "records": "data.items", "paging": paging}
    target = {"kind": "sqlite", "database": str(tmp_path / "t.db"), "table": "t", "create": True}

    outcome = ran("transfer", {"source": source, "target": target, "batch_size": 4})

    wanted = 6 if "max_pages" in paging else 10
    assert outcome.is_ok, outcome
    assert outcome.result["records"] == wanted
    assert len(web.seen) == requests


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize(
    ("mode", "names"),
    [
        ("upsert", ["old", "new", "new"]),
        ("ignore", ["old", "old", "new"]),
        ("replace", ["new", "new"]),
    ],
)
def test_records_whose_key_exists(kind, mode, names, tmp_path, postgres, web):
    end = End(kind, tmp_path, postgres, web)
    old = tmp_path / "old.json"
    old.write_text('[{"id": 0, "name": "old"}, {"id": 1, "name": "old"}]')
    new = tmp_path / "new.json"
    new.write_text(
        '[{"id": 1, "name": "lost"}, {"id": 1, "name": "new"}, {"id": 2, "name": "new"}]'
    )
    if mode in ("ignore", "replace"):
        new.write_text('[{"id": 1, "name": "new"}, {"id": 2, "name": "new"}]')

    for path, how in ((old, "insert"), (new, mode)):
        config = {
            "source": {"kind": "file", "path": str(path)},
            "target": end.empty() | {"mode": how},
        }
        outcome = ran("transfer", config, action_id=path.stem)
        assert outcome.is_ok, outcome

    found = ran(
        kind,
        {**({"auth": postgres} if kind == "postgres" else {"database": str(end.path)})}
        | {"command": "SELECT name FROM wanted ORDER BY id"},
    )
    assert [row["name"] for row in found.result["rows"]] == names


@pytest.mark.parametrize("kind", ["postgres", "duckdb", "sqlite"])
def test_a_table_that_is_not_there_is_answered_with_how_to_make_it(kind, tmp_path, postgres):
    (tmp_path / "in.json").write_text('[{"id": 1}]')
    place = {"auth": postgres} if kind == "postgres" else {"database": str(tmp_path / "t.db")}
    source = {"kind": "file", "path": str(tmp_path / "in.json")}

    outcome = ran(
        "transfer", {"source": source, "target": {"kind": kind, **place, "table": "orders"}}
    )

    told = 'target: there is no table "orders". With `create: true` it is made.'
    assert failure(outcome) == ("not_found", told)


def test_values_of_postgres_survive_the_way_to_duckdb_and_back(postgres, tmp_path):
    columns = {
        "id": ("int PRIMARY KEY", "1"),
        "a": ("int[]", "ARRAY[1,NULL,3]"),
        "txt": ("text[]", "ARRAY['a', 'b,\"c']"),
        "j": ("jsonb", """'{"k": [1, null, "ü"]}'"""),
        "n": ("numeric(12,3)", "12.340"),
        "huge": ("numeric", "12345678901234567890123456789.5"),
        "at": ("timestamptz", "'2024-05-06 07:08:09.123456+02'"),
        "ts": ("timestamp", "'1999-12-31 23:59:59.5'"),
        "u": ("uuid", "'8400b7f8-5f0e-4b0c-9c6e-0d5f6b1a2c3d'"),
        "b": ("bytea", r"'\x00ff5c22'"),
        "i": ("interval", "'-1 month 3 days -04:05:06.5'"),
        "d": ("date", "'2024-02-29'"),
        "f": ("float8", "'Infinity'"),
        "r": ("real", "1.1"),
        "nothing": ("text", "NULL"),
    }
    table = ", ".join(f'"{name}" {type_}' for name, (type_, _) in columns.items())
    with psycopg.connect(**postgres) as connection:
        connection.execute(f"CREATE TABLE one ({table})")
        connection.execute(f"CREATE TABLE two ({table})")
        connection.execute(f"INSERT INTO one VALUES ({', '.join(v for _, v in columns.values())})")
    database = {"kind": "duckdb", "database": str(tmp_path / "t.db"), "table": "t"}
    server = {"kind": "postgres", "auth": postgres}

    there = ran(
        "transfer", {"source": server | {"table": "one"}, "target": database | {"create": True}}
    )
    back = ran(
        "transfer",
        {"source": database, "target": server | {"table": "two", "mode": "upsert", "key": "id"}},
    )

    assert (there.error, back.error) == (None, None)
    with psycopg.connect(**postgres) as connection:
        one, two = (connection.execute(f"SELECT * FROM {t}").fetchall() for t in ("one", "two"))
    assert one == two
    with closing(duckdb.connect(str(tmp_path / "t.db"))) as connection:
        types = {row[0]: row[1] for row in connection.execute("DESCRIBE t").fetchall()}
    assert types["b"] == "BLOB"
    assert types["n"] == "DECIMAL(12,3)"
    assert types["j"] == types["a"] == "JSON"
    assert types["at"] == "TIMESTAMP WITH TIME ZONE"


def test_a_long_record_is_a_record(postgres, tmp_path):
    with psycopg.connect(**postgres) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS id, repeat('x', 5000000) AS text")
    target = {"kind": "duckdb", "database": str(tmp_path / "t.db"), "table": "t", "create": True}

    outcome = ran(
        "transfer",
        {"source": {"kind": "postgres", "auth": postgres, "table": "t"}, "target": target},
    )

    assert outcome.is_ok, outcome


def test_params_are_bound(postgres, tmp_path):
    source = {
        "kind": "postgres",
        "auth": postgres,
        "command": "SELECT %(a)s::text AS a, 5 % 3 AS b",
        "params": {"a": "'; DROP TABLE x; --"},
    }
    target = {"kind": "file", "path": str(tmp_path / "o.json")}

    assert ran("transfer", {"source": source, "target": target}).is_ok
    assert json.loads((tmp_path / "o.json").read_text()) == [{"a": "'; DROP TABLE x; --", "b": 2}]


# --- Going on after an interruption ------------------------------------------------------------


@pytest.mark.parametrize("kind", TABLES)
def test_an_interrupted_transfer_goes_on_behind_the_last_batch(kind, tmp_path, postgres, web):
    """The third batch breaks a constraint; then the record is mended and the task tried again."""
    end = End(kind, tmp_path, postgres, web)
    place = {"auth": postgres} if kind == "postgres" else {"database": str(end.path)}
    table = "CREATE TABLE wanted (id int PRIMARY KEY, n int CHECK (n < 100))"
    assert ran(kind, {**place, "command": table}).is_ok
    records = [{"id": n, "n": 1} for n in range(10)]
    path = tmp_path / "records.ndjson"

    def attempt(bad):
        found = [record | ({"n": 100} if bad and record["id"] == 7 else {}) for record in records]
        path.write_text("".join(json.dumps(record) + "\n" for record in found))
        target = end.empty() | {"create": False}
        return ran(
            "transfer",
            {"source": {"kind": "file", "path": str(path)}, "target": target, "batch_size": 3},
        )

    first = attempt(bad=True)
    assert failure(first)[0] == "db_constraint"
    count = {**place, "command": "SELECT count(*) AS n FROM wanted"}
    assert ran(kind, count).result["rows"] == [{"n": 6}]
    second = attempt(bad=False)
    third = attempt(bad=True)

    assert second.result == {"records": 10, "batches": 4, "skipped": 6}
    assert third.result == {"records": 10, "batches": 4, "skipped": 10}
    assert ran(kind, count).result["rows"] == [{"n": 10}]


def test_pages_that_were_written_are_not_asked_for_again(tmp_path, web):
    web.records[:] = [{"id": n} for n in range(10)]
    source = {
        "kind": "http",
        "url": f"{web.url}/pages",
        "records": "data.items",
        "paging": {"size_param": "size", "size": 3, "max_pages": 2},
    }
    target = {"kind": "sqlite", "database": str(tmp_path / "t.db"), "table": "t", "create": True}
    config = {"source": source, "target": target, "batch_size": 3}
    assert ran("transfer", config).result["records"] == 6
    with closing(sqlite3.connect(tmp_path / "t.db")) as connection:
        connection.execute("UPDATE noetl_transfer SET done = 0")
        connection.commit()
    web.seen.clear()

    config["source"] = source | {"paging": {"size_param": "size", "size": 3}}
    outcome = ran("transfer", config)

    assert outcome.result == {"records": 10, "batches": 4, "skipped": 6}
    assert [dict(seen["query"])["page"] for seen in web.seen] == ["3", "4"]


def test_pages_that_may_be_short_are_counted_by_their_records(tmp_path):
    """Some services leave out of a page what the caller may not see, and say that there is more."""
    pages = [[0, 1], [2, 3, 4], [5], [6, 7]]
    broken = [True]

    async def answer(request):
        page = int(request.query["page"])
        if page == 4 and broken:
            return Response(status=503)
        found = [{"id": number} for number in pages[page - 1]]
        return json_response({"items": found, "more": page < len(pages)})

    target = {"kind": "sqlite", "database": str(tmp_path / "t.db"), "table": "t", "create": True}
    with answering(("GET", "/pages", answer)) as url:
        source = {"kind": "http", "url": f"{url}/pages", "records": "items"}
        source["paging"] = {"size_param": "size", "size": 3, "more": "more"}
        config = {"source": source, "target": target, "batch_size": 3}
        assert failure(ran("transfer", config))[0] == "server_error"
        broken.clear()
        outcome = ran("transfer", config)

    assert outcome.result == {"records": 8, "batches": 3, "skipped": 6}
    count = {"database": str(tmp_path / "t.db"), "command": "SELECT id FROM t ORDER BY id"}
    assert ran("sqlite", count).result["rows"] == [{"id": number} for number in range(8)]


@pytest.mark.parametrize("proof", [{"auth": {"type": "bearer", "token": CANARY}}, {"json": CANARY}])
def test_s06_secrets_do_not_follow_the_next_page_to_another_host(proof, tmp_path, web):
    async def answer(request):
        elsewhere = web.url.replace("127.0.0.1", "localhost")
        return json_response({"items": [{"id": 1}], "next": f"{elsewhere}/echo"})

    with answering(("*", "/pages", answer)) as url:
        source = {"kind": "http", "url": f"{url}/pages", "records": "items"}
        source |= {"paging": {"next": "next"}, "method": "POST" if "json" in proof else "GET"}
        target = {"kind": "file", "path": str(tmp_path / "out.json")}
        config = {"source": source | proof, "target": target}
        outcome = ran("transfer", config, is_masked=lambda text: CANARY in text)

    kind, message = failure(outcome)
    assert (kind, CANARY in message) == ("client_error", False)
    assert "http://localhost" in message
    assert web.seen == []


CARRIAGES = [{"a": "x\ry", "b": "c\r\nd"}, {"a": "\r", "b": ""}, {"a": "\\.", "b": None}]


@pytest.mark.parametrize("target", ["sqlite", "duckdb", "json", "parquet"])
def test_texts_with_carriage_returns_arrive(target, tmp_path):
    """DuckDB took one in the first line for the end of lines, and refused the rest."""
    (tmp_path / "in.json").write_text(json.dumps(CARRIAGES))
    place = str(tmp_path / f"out.{target}")
    end: dict[str, object] = {"kind": "file", "path": place}
    if target in ("sqlite", "duckdb"):
        end = {"kind": target, "database": place, "table": "t", "create": True}
    source = {"kind": "file", "path": str(tmp_path / "in.json")}

    outcome = ran("transfer", {"source": source, "target": end})

    assert outcome.is_ok, outcome
    if end["kind"] == "file":
        found = ran("duckdb", {"command": f"SELECT * FROM '{place}'"})
    else:
        found = ran(target, {"database": place, "command": "SELECT * FROM t"})
    assert found.result["rows"] == CARRIAGES


@pytest.mark.parametrize("form", ["json", "ndjson"])
def test_numbers_that_json_cannot_carry_are_text_in_it(form, tmp_path):
    source = {"kind": "duckdb", "database": str(tmp_path / "s.duckdb"), "table": "t"}
    values = "(1.0::DOUBLE), ('nan'), ('-inf'), (NULL)"
    made = f"CREATE TABLE t AS FROM (VALUES {values}) AS t(x)"
    assert ran("duckdb", {"database": source["database"], "command": made}).is_ok
    path = tmp_path / f"out.{form}"

    assert ran("transfer", {"source": source, "target": {"kind": "file", "path": str(path)}}).is_ok

    text = path.read_text()
    lines = [text] if form == "json" else text.splitlines()
    found = [msgspec.json.decode(line) for line in lines]
    assert (found[0] if form == "json" else found) == [
        {"x": 1.0},
        {"x": "nan"},
        {"x": "-inf"},
        {"x": None},
    ]


def test_without_resume_every_attempt_begins_at_the_start(tmp_path, web):
    web.records[:] = ROWS
    target = {"kind": "sqlite", "database": str(tmp_path / "t.db"), "table": "t", "create": True}
    config = {"source": {"kind": "http", "url": f"{web.url}/records"}, "target": target}

    for _ in range(2):
        ran("transfer", config | {"resume": False})

    with closing(sqlite3.connect(tmp_path / "t.db")) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (14,)


def test_a_batch_has_the_same_key_on_every_attempt(tmp_path, postgres, web):
    source = End("sqlite", tmp_path, postgres, web).filled()
    target = {"kind": "http", "url": f"{web.url}/echo", "records": "rows"}
    config = {"source": source, "target": target, "batch_size": 4}

    for _ in range(2):
        assert ran("transfer", config).is_ok

    keys = [seen["headers"]["idempotency-key"] for seen in web.seen]
    assert keys == [derive("action-1", 1), derive("action-1", 2)] * 2
    assert len(json.loads(web.seen[0]["body"])["rows"]) == 4


def test_a_file_is_whole_or_not_there(tmp_path, web):
    web.records[:] = [{"id": 1}, {"id": 2, "more": 1}]
    target = {"kind": "file", "path": str(tmp_path / "deep" / "o.csv")}
    config = {"source": {"kind": "http", "url": f"{web.url}/records"}, "target": target}

    kind, message = failure(ran("transfer", config | {"batch_size": 1}))

    assert (kind, "more" in message) == ("schema", True)
    assert list(tmp_path.glob("**/*csv*")) == []


def test_progress_is_told_while_it_runs(tmp_path, postgres, web):
    source = End("sqlite", tmp_path, postgres, web).filled()
    config = {"source": source, "target": {"kind": "file", "path": str(tmp_path / "o.json")}}

    async def work(bench):
        await bench.run("transfer", config | {"batch_size": 3})
        return bench.log.text()

    assert on_bench(work).splitlines() == [
        "3 records in 1 batches.",
        "6 records in 2 batches.",
        "7 records in 3 batches.",
    ]


def test_objects_of_a_store_are_ends_too(tmp_path):
    (tmp_path / "in.csv").write_text("id,name\n1,one\n2,two\n")
    store = {"kind": "store", "url": f"file://{tmp_path}/objects"}

    there = ran(
        "transfer",
        {
            "source": {"kind": "file", "path": str(tmp_path / "in.csv")},
            "target": store | {"key": "deep/o.parquet"},
        },
    )
    back = ran(
        "transfer",
        {
            "source": store | {"key": "deep/o.parquet"},
            "target": {"kind": "file", "path": str(tmp_path / "out.json")},
        },
    )
    missing = ran(
        "transfer",
        {
            "source": store | {"key": "nowhere.csv"},
            "target": {"kind": "file", "path": str(tmp_path / "out.json")},
        },
    )

    assert (there.error, back.error) == (None, None)
    assert [row["name"] for row in json.loads((tmp_path / "out.json").read_text())] == [
        "one",
        "two",
    ]
    assert failure(missing)[0] == "not_found"


def test_a_web_service_gets_each_batch_that_it_took_once(tmp_path, web):
    """The third batch is refused; the attempt after that begins with it."""
    records = [{"id": n} for n in range(10)]
    (tmp_path / "in.ndjson").write_text("".join(json.dumps(one) + "\n" for one in records))
    source = {"kind": "file", "path": str(tmp_path / "in.ndjson")}
    answers = [200, 200, 503, 200, 200]
    taken: list[list[int]] = []

    async def take(request):
        taken.append([one["id"] for one in await request.json()])
        return Response(status=answers[len(taken) - 1])

    async def work(bench):
        target = {"kind": "http", "url": f"{url}/records"}
        config = {"source": source, "target": target, "batch_size": 3}
        return [await bench.run("transfer", config) for _ in range(3)]

    with answering(("POST", "/records", take)) as url:
        first, second, third = on_bench(work)

    assert failure(first)[0] == "server_error"
    assert second.result == {"records": 10, "batches": 4, "skipped": 6}
    assert third.result == {"records": 10, "batches": 4, "skipped": 10}
    assert taken == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [6, 7, 8], [9]]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 8, 13])
def test_the_last_batch_that_was_noted_is_found_however_many_there_are(count):
    notes = {
        f"batch {n}": msgspec.json.encode(Mark(records=n * 7, batches=n))
        for n in range(1, count + 1)
    }
    end = ToService(ToHttp(url="http://x"), None, None, SimpleNamespace(read=notes.get))

    assert end.mark() == Mark(records=count * 7, batches=count)
