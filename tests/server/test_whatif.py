"""An edited playbook over recorded executions, over HTTP and from the command line."""

from __future__ import annotations

import asyncio
import os
import tracemalloc
from pathlib import Path

import msgspec
import pytest

from noetl import wiring
from noetl.api.routes import whatif
from noetl.api.simulation import WAITING_MAX, Simulator
from noetl.dsl import compile_text
from noetl.errors import BudgetExceeded, TooLarge, TooMany
from noetl.settings import Settings
from noetl.tools.registry import tools

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\n"
TEXT = """
metadata: {name: whatif, path: tests/whatif}
workload: {folder: "", total: 7}
workflow:
  - step: start
    tool: {kind: shell, command: "echo x >> {{ workload.folder }}/calls; echo {{ workload.total }}"}
    next: {arcs: [{step: check, set: {ctx.total: "{{ start.stdout | int }}"}}]}
  - step: check
    tool: {kind: noop}
    next:
      arcs:
        - {step: pay, when: "{{ ctx.total > 5 }}"}
        - {step: keep}
  - {step: pay, tool: {kind: shell, command: "echo x >> {{ workload.folder }}/calls"}}
  - {step: keep, tool: {kind: noop}}
"""


@pytest.fixture(scope="module")
def runs(dev, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whatif")
    ids = []
    for total in (3, 7, 20):
        ids.append(dev.start(HEAD + TEXT, {"folder": str(folder), "total": total}))
        assert dev.ended(ids[-1])["status"] == "COMPLETED"
    return dev, ids, folder


def calls(folder: Path) -> int:
    return len((folder / "calls").read_text().splitlines())


def test_the_same_playbook_goes_the_same_way_and_calls_nothing(runs):
    server, ids, folder = runs
    before = calls(folder)

    found = server.post("/api/whatif", {"content": HEAD + TEXT})
    known = server.post("/api/whatif", {"path": "tests/whatif", "executions": ids[:1]})

    assert {one["execution_id"] for one in found["executions"]} == set(ids)
    assert (found["same"], found["different"], found["unknown"]) == (3, 0, 0)
    assert known["same"] == 1
    assert calls(folder) == before


def test_an_edited_guard_says_which_would_have_gone_another_way_and_where(runs):
    server, ids, folder = runs
    before = calls(folder)
    edited = HEAD + TEXT.replace("ctx.total > 5", "ctx.total > 10")

    found = server.post("/api/whatif", {"content": edited, "executions": ids})

    verdicts = {one["execution_id"]: one for one in found["executions"]}
    assert [verdicts[one]["verdict"] for one in ids] == ["same", "different", "same"]
    where = verdicts[ids[1]]["where"]
    assert (where["step"], where["recorded"], where["now"]) == ("check", ["pay"], ["keep"])
    assert verdicts[ids[1]]["text"] == "after `check` it goes to `keep`; recorded: to `pay`"
    assert calls(folder) == before


def test_a_call_that_was_never_made_is_not_made_now(runs):
    server, ids, folder = runs
    before = calls(folder)
    edited = HEAD + TEXT.replace(
        "{step: keep, tool: {kind: noop}}",
        "{step: keep, tool: [{keep_task: {kind: noop}}, {tell: {kind: shell, command: 'exit 1'}}]}",
    )

    found = server.post("/api/whatif", {"content": edited, "executions": ids[:1]})

    [one] = found["executions"]
    assert one["verdict"] == "unknown"
    assert "keep.tell, for which nothing is recorded" in one["text"]
    assert calls(folder) == before


def test_executions_are_chosen_by_query_and_number(runs):
    server, *_ = runs

    two = server.post("/api/whatif", {"content": HEAD + TEXT, "last": 2})
    none = server.post("/api/whatif", {"content": HEAD + TEXT, "query": "path:tests/nothing"})

    assert len(two["executions"]) == 2
    assert none["executions"] == []


def test_wrong_questions_are_refused(runs):
    server, ids, _ = runs

    for body, status in [
        ({}, 400),
        ({"content": HEAD + TEXT, "path": "tests/whatif"}, 400),
        ({"content": "no: playbook"}, 422),
        ({"path": "tests/unknown"}, 404),
        ({"content": HEAD + TEXT, "executions": ["1"]}, 404),
        ({"content": HEAD + TEXT, "executions": ids, "query": "x"}, 400),
        ({"content": HEAD + TEXT, "last": 1000}, 400),
    ]:
        assert server.ask("POST", "/api/whatif", body).status == status, body


def test_a_test_is_made_of_a_run_and_passes_without_calling_anything(runs):
    server, ids, folder = runs
    before = calls(folder)

    made = server.ask("GET", f"/api/executions/{ids[1]}/test")
    told = server.post("/api/tests", {"content": HEAD + TEXT, "tests": made.raw.decode()})
    edited = HEAD + TEXT.replace("ctx.total > 5", "ctx.total > 10")
    broken = server.post("/api/tests", {"content": edited, "tests": made.raw.decode()})

    assert made.headers["content-disposition"] == 'attachment; filename="whatif.test.yaml"'
    assert (told["passed"], told["failed"], told["problems"]) == (1, 0, [])
    assert told["tests"][0]["steps"] == ["start", "check", "pay"]
    assert (broken["passed"], broken["failed"]) == (0, 1)
    assert broken["tests"][0]["differences"][0]["found"] == ["start", "check", "keep"]
    assert calls(folder) == before


def test_tests_on_a_server_run_no_code(runs, tmp_path):
    server, _, _ = runs
    text = f"""
metadata: {{name: code, path: tests/code}}
workflow:
  - step: start
    tool: {{kind: python, code: "open('{tmp_path}/ran', 'w').close()"}}
"""
    tests = "playbook: code.yaml\ntests:\n  - name: runs\n"

    told = server.post("/api/tests", {"content": HEAD + text, "tests": tests})
    wrong = server.post("/api/tests", {"content": HEAD + text, "tests": tests + "    nme: x\n"})

    assert told["failed"] == 1
    assert "start.start_task needs a stand-in" in told["tests"][0]["complaints"][0]
    assert not (tmp_path / "ran").exists()
    assert wrong["tests"] == []
    assert "nme" in wrong["problems"][0]["message"]


def test_no_test_is_made_of_a_run_that_has_not_ended(runs):
    server, _, _ = runs
    waits = "metadata: {name: w, path: tests/w}\nworkflow:\n  - step: start\n" + (
        "    spec: {eval_mode: on_event, form: [{name: a, type: text}]}\n"
        "    case:\n      - when: \"{{ event.name == 'approval.received' }}\"\n"
        "        then: [{next: {to: [{step: end}]}}]\n  - {step: end, tool: {kind: noop}}\n"
    )
    execution_id = server.start(HEAD + waits)

    refused = server.ask("GET", f"/api/executions/{execution_id}/test")

    assert refused.status == 400
    assert "RUNNING" in refused.raw.decode()


def test_who_waits_for_a_comparison_holds_no_recordings(tmp_path):
    """Recordings are read when it is their turn; whoever is one too many is refused before."""

    async def work() -> None:
        simulator, begun, go_on = Simulator(), [], asyncio.Event()

        async def ask(number: int) -> None:
            async with simulator.turn():
                begun.append(number)
                await go_on.wait()
                raise TooLarge("as large as can be")

        asked = [asyncio.create_task(ask(number)) for number in range(WAITING_MAX + 1)]
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert [type(one.exception()) for one in done] == [TooMany]
        assert begun == [0]
        go_on.set()
        await asyncio.wait(asked)
        assert begun == list(range(WAITING_MAX))

    asyncio.run(work())


def test_recordings_are_held_once_while_they_are_compared():
    size = 8_000_000

    async def work() -> None:
        net = compile_text(HEAD + TEXT, tools=tools()).unwrap()
        tracemalloc.start()
        try:
            with pytest.raises(BudgetExceeded):  # It cannot be read.
                await Simulator().compared(net, [os.urandom(size)])
            # While it is sent: the job, and the rest that the pipe has no room for.
            assert tracemalloc.get_traced_memory()[1] < 2.9 * size
        finally:
            tracemalloc.stop()

    asyncio.run(work())


def test_a_recording_that_is_too_large_is_not_read_to_its_end(tmp_path, monkeypatch):
    async def work() -> None:
        settings = Settings.from_environment({})
        here = msgspec.structs.replace(settings, database_url=f"sqlite:///{tmp_path}/x.db")
        async with wiring.embedded(here, work=False, serves=True) as services:
            entry, _ = await services.catalog.register(HEAD + TEXT)
            started = await services.executions.start(entry.digest, entry.path, entry.version, {})
            client = wiring.here(services).client
            question = whatif.WhatIf(content=HEAD + TEXT, executions=[started])
            assert (await client.call(whatif.WHATIF, body=question)).same == 1
            monkeypatch.setattr(whatif, "BYTES_MAX", 100)
            with pytest.raises(TooLarge, match="Choose fewer"):
                await client.call(whatif.WHATIF, body=question)

    asyncio.run(work())
