"""S30: no result takes more memory than the operator gives to one, whatever kind it is of."""

from __future__ import annotations

import resource
import sys
from typing import Any

import pytest

from noetl.tools.rules import Rules
from tests.examples.system import playbook
from tests.examples.system import ran as system_ran
from tests.tools.running import failure, on_bench, ran

MEBI = 1024 * 1024
SMALL = Rules(max_response_bytes=4 * MEBI)


def grown(work: Any) -> tuple[Any, int]:
    """What the work yields, and by how many bytes this process grew at its highest."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = work()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found, (after - before) * (1 if sys.platform == "darwin" else 1024)


QUERIES = {
    "duckdb": {"command": "SELECT * FROM range(100000000)"},
    "duckdb texts": {"command": "SELECT repeat('x', 1000) AS t FROM range(10000000)"},
    "sqlite": {
        "auth": {"path": ":memory:"},
        "command": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 100000000)"
        " SELECT i FROM n",
    },
    "sql": {
        "url": "sqlite://",
        "command": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 100000000)"
        " SELECT i FROM n",
    },
}


@pytest.mark.parametrize("name", QUERIES)
def test_s30_rows_are_counted_while_they_are_read(name: str):
    kind = name.split()[0]
    outcome, growth = grown(lambda: ran(kind, QUERIES[name], settings={"rules": SMALL}))

    told = failure(outcome)
    assert told[0] == "client_error"
    assert outcome.error.code == "too_large"
    for part in ("4,194,304", "NOETL_MAX_RESPONSE_BYTES", "LIMIT", "result_as", "transfer"):
        assert part in told[1]
    assert growth < 300 * MEBI


def test_s30_what_fits_is_whole():
    rows = ran(
        "duckdb", {"command": "SELECT range AS n FROM range(10000)"}, settings={"rules": SMALL}
    )

    assert rows.result["row_count"] == 10_000


def test_s30_rows_of_a_table_file_are_counted_too():
    async def work(bench: Any) -> Any:
        query = {"command": "SELECT range AS n FROM range(300000)", "result_as": "parquet"}
        made = await bench.run("duckdb", query)
        whole = await bench.run("artifact", {"ref": made.result})
        part = await bench.run("artifact", {"ref": made.result, "offset": 299_999})
        return whole, part

    whole, part = on_bench(work, rules=SMALL)

    assert failure(whole)[0] == "client_error"
    assert "`offset` and `limit`" in failure(whole)[1]
    assert part.result == [{"n": 299_999}]


@pytest.mark.parametrize(
    "tool",
    [
        "{ kind: python, code: \"result = 'x' * 5_000_000\" }",
        "{ kind: shell, cmd: \"head -c 5000000 /dev/zero | tr '\\\\0' x\" }",
        "{ kind: noop, result: \"{{ 'x' * 700_000 }}{{ 'x' * 700_000 }}\" }",
    ],
    ids=["python", "shell", "noop"],
)
def test_s30_no_result_of_any_kind_is_recorded_that_is_larger(tool: str):
    done = system_ran(playbook(f"- step: start\n  tool: {tool}"), max_response_bytes=MEBI)

    assert done.error["kind"] in ("client_error", "schema"), done.error
    assert "1,048,576" in done.error["message"]
