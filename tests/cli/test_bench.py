"""`noetl bench`: figures of every workload, with what they mean. Their size is nobody's promise."""

from __future__ import annotations

import asyncio
import json
import platform
import sys
import sysconfig
from pathlib import Path

import pytest

from noetl import wiring
from noetl.cli.workloads import HELLO, MEANINGS, WORKLOADS, Sizes, figures
from noetl.settings import Settings

TINY = Sizes(steps=2, iterations=5, executions=2, alone=2, calls=2, long_loop=20)
ALWAYS = {"flush_ms", "memory_idle_mb", "memory_after_mb"}


def test_every_workload_yields_its_figures_and_every_figure_has_a_meaning(tmp_path: Path):
    told: list[str] = []
    url = f"sqlite:///{tmp_path / 'bench.db'}"

    found = asyncio.run(figures(tmp_path, url, 1, sizes=TINY, tell=told.append))

    assert set(found) == set(MEANINGS)
    assert all(isinstance(value, float) for value in found.values())
    assert all(found[name] > 0 for name in found if name != "w7_memory_growth_mb")
    assert [line[:2] for line in told] == list(WORKLOADS)


def test_the_table_has_the_machine_and_the_chosen_figures_and_leaves_nothing_behind(
    noetl, tmp_path
):
    ran = noetl("bench", "--only", "w4", "--runs", "1")

    assert ran.code == 0, ran.err
    about, empty, *lines = ran.out.splitlines()
    assert f"Python {platform.python_version()}" in about
    options = sysconfig.get_config_var("CONFIG_ARGS") or ""
    is_slow = "--enable-optimizations" not in options and sys.base_prefix != "/usr"
    assert ("built without optimizations" in about) == is_slow
    assert "SQLite" in about
    assert empty == ""
    assert {line.split()[0] for line in lines} == ALWAYS | {"w4_p50_ms", "w4_p95_ms"}
    assert all(line.endswith(MEANINGS[line.split()[0]]) for line in lines)
    assert ran.err == f"noetl: w4: {WORKLOADS['w4'].about} …\n"
    assert list(tmp_path.iterdir()) == []


def test_as_json_it_is_one_document_and_a_server_in_the_environment_is_left_alone(noetl):
    ran = noetl(
        "bench", "--only", "w5", "--runs", "1", "--json", NOETL_SERVER_URL="http://127.0.0.1:9"
    )

    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert set(document) == {"machine", "figures"}
    assert set(document["figures"]) == ALWAYS | {"w5_cold_start_s"}


def test_a_database_that_is_given_keeps_what_was_run(noetl, tmp_path):
    ran = noetl("bench", "--only", "w4", "--runs", "1", "--db", "mine.db")
    listed = noetl("executions", "list", "--db", "mine.db", "--json")

    assert ran.code == 0, ran.err
    assert {row["path"] for row in json.loads(listed.out)["executions"]} == {"bench/bench"}


def test_a_database_in_which_something_would_go_on_is_refused(noetl, tmp_path):
    asyncio.run(start_without_a_worker(f"sqlite:///{tmp_path / 'mine.db'}"))

    ran = noetl("bench", "--db", "mine.db")

    assert (ran.code, ran.out) == (2, "")
    assert "1 execution in that database would run during the measurement" in ran.err


async def start_without_a_worker(url: str) -> None:
    settings = Settings.from_environment({"NOETL_DATABASE_URL": url})
    async with wiring.embedded(settings, work=False) as system:
        compiled = system.catalog.check(HELLO)
        net = compiled.unwrap()
        await system.orchestrator.programs.keep(net, compiled.digest)
        await system.executions.start(compiled.digest, net.path, None, {})


@pytest.mark.parametrize("only", ["w8", "w1,,w2", "", "w1 w2"])
def test_a_workload_that_does_not_exist_is_refused_with_those_that_do(noetl, only):
    ran = noetl("bench", "--only", only)

    assert (ran.code, ran.out) == (2, "")
    assert "They are: w1, w2, w3, w4, w5, w6, w7." in ran.err
