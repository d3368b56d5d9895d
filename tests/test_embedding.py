"""The public names, and NoETL inside another program."""

import asyncio
import pwd
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import noetl
from noetl.api.openapi import OPENAPI
from noetl.api.routes import executions, health, hooks, playbooks, results, whatif
from noetl.api.routes.credentials import PUT, NewCredential
from noetl.api.routes.executions import WHY, WhichWhy
from noetl.errors import BadSetting, Unreachable
from noetl.model.retrospect import StepWhyDocument
from noetl.tools.failures import Failed
from tests.server.processes import serving
from tests.stopwatch import PATIENCE

ROOT = Path(__file__).parent.parent
COUNTING = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: counting, path: demo/counting}
workload: {numbers: [1, 2, 3]}
workflow:
  - step: count
    loop: {in: "{{ workload.numbers }}", iterator: number}
    tool: {kind: count, number: "{{ iter.number }}"}
    next: end
  - step: end
    tool: {kind: noop}
"""


class Number(msgspec.Struct, forbid_unknown_fields=True):
    number: int


def counter(seen: list[int]) -> noetl.Tool:
    async def count(config: Number, context: noetl.ToolContext) -> noetl.Outcome:
        seen.append(config.number)
        return noetl.ok(config.number * 10)

    return noetl.Tool(kind="count", summary="Counts.", config=Number, run=count)


def test_every_public_name_is_there():
    for name in noetl.__all__:
        assert getattr(noetl, name) is not None
    assert sorted(noetl.__all__) == noetl.__all__ == dir(noetl)


def test_a_name_that_is_not_public_is_missing_as_in_any_module():
    with pytest.raises(AttributeError, match="has no attribute 'Engine'"):
        noetl.Engine  # noqa: B018


def test_to_import_it_imports_nothing_heavy():
    code = "import noetl, sys; print('asyncio' in sys.modules, 'noetl.wiring' in sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert said.stdout == "False False\n"


def test_the_example_does_what_it_shows(tmp_path):
    said = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "embedding.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    lines = said.stdout.splitlines()
    assert lines[-1] == "COMPLETED ['Hello, Ann!', 'Hello, Bob!', 'Hello, Zoe!']"
    assert lines[-2].split() == ["34", "playbook.processed"]
    assert list(tmp_path.iterdir()) == []


def test_a_program_runs_its_own_tool_and_hears_what_happens(tmp_path):
    seen: list[int] = []

    async def work() -> tuple[list[str], str, object]:
        async with noetl.embedded(f"sqlite:///{tmp_path}/a.db", tools=[counter(seen)]) as client:
            kept = await client.register(COUNTING)
            assert (kept.path, kept.version) == ("demo/counting", 1)
            started = await client.start("demo/counting", {"numbers": [4, 5]}, key="one")
            again = await client.start("demo/counting", {"numbers": [4, 5]}, key="one")
            assert again.execution_id == started.execution_id
            types = [event.event_type async for event in client.follow(started.execution_id)]
            ended = await client.wait(started.execution_id)
            return types, ended.status, ended.steps[0].result["results"]

    types, status, results = asyncio.run(work())
    assert (status, results, seen) == ("COMPLETED", [40, 50], [4, 5])
    assert types[0] == "playbook.execution.requested"
    assert types[-1] == "playbook.processed"
    assert types.count("task.done") == 3


KEYED = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: keyed, path: demo/keyed}
keychain: [{name: door, kind: credential}]
workflow:
  - step: start
    tool: {kind: keys, number: 3}
"""


def test_a_tool_may_look_up_one_secret_several_times_at_once(tmp_path):
    async def keys(config: Number, context: noetl.ToolContext) -> noetl.Outcome:
        asked = (context.credential("door") for _ in range(config.number))
        return noetl.ok([fields["user"] for fields in await asyncio.gather(*asked)])

    async def work() -> object:
        tool = noetl.Tool(kind="keys", summary="Looks up.", config=Number, run=keys)
        async with noetl.embedded(f"sqlite:///{tmp_path}/a.db", tools=[tool]) as client:
            await client.call(PUT, body=NewCredential(name="door", data={"user": "ada"}))
            await client.register(KEYED)
            started = await client.start("demo/keyed")
            return (await client.wait(started.execution_id)).result

    assert asyncio.run(work()) == ["ada"] * 3


PATIENT = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: patient, path: demo/patient}
workflow:
  - step: start
    tool: {kind: shy, number: 1, spec: {retry: {attempts: 3, delay: 0}}}
"""


ENDLESS: dict[str, object] = {}
ENDLESS["same"] = ENDLESS


def test_a_failure_that_a_tool_of_the_program_raises_is_one_that_it_returns(tmp_path):
    """Also for `spec.retry`, which tries it again."""
    attempts = []

    async def shy(config: Number, context: noetl.ToolContext) -> noetl.Outcome:
        attempts.append(config.number)
        if len(attempts) < 3:
            raise Failed("connection", "Nobody there.")
        return noetl.ok("here")

    async def work() -> str:
        tool = noetl.Tool(kind="shy", summary="Fails twice.", config=Number, run=shy)
        async with noetl.embedded(f"sqlite:///{tmp_path}/a.db", tools=[tool]) as client:
            await client.register(PATIENT)
            started = await client.start("demo/patient")
            return (await client.wait(started.execution_id)).status

    assert asyncio.run(work()) == "COMPLETED"
    assert len(attempts) == 3


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (None, "returned a NoneType, not an Outcome"),
        (noetl.failed("client_eror", "Too odd."), "Invalid enum value 'client_eror'"),
        (noetl.failed("parse", "Too odd.", details=object()), "objects of type object"),
        (noetl.Outcome(status="fine"), "Invalid enum value 'fine'"),
        (noetl.Outcome(status="error"), "it has no `error`"),
        (noetl.failed("parse", "Half \udc80"), "surrogates not allowed): Half \\udc80"),
        (noetl.failed("parse", "Endless.", details=ENDLESS), "recursion depth exceeded"),
        (noetl.ok("fine", http={"headers": {"x": "Half \udc80"}}), "surrogates not allowed"),
        (noetl.ok("fine", py={"made": object()}), "objects of type object"),
    ],
)
def test_an_outcome_that_no_log_can_hold_is_a_failure_that_says_why(returned, told, tmp_path):
    """What reached the log once could not be read from it again."""

    async def odd(config: Number, context: noetl.ToolContext) -> noetl.Outcome:
        return returned

    async def work() -> str:
        tool = noetl.Tool(kind="shy", summary="Is odd.", config=Number, run=odd)
        async with noetl.embedded(f"sqlite:///{tmp_path}/a.db", tools=[tool]) as client:
            await client.register(PATIENT)
            started = await client.start("demo/patient")
            return (await client.wait(started.execution_id)).error

    error = asyncio.run(work())
    assert error.kind == "exception"
    assert "kind shy returned" in error.message
    assert told in error.message


def test_an_exception_whose_text_is_not_valid_ends_its_step_run(tmp_path):
    """Python names files so whose names are not UTF-8. No log can hold such a text."""

    async def lost(config: Number, context: noetl.ToolContext) -> noetl.Outcome:
        raise FileNotFoundError(b"caf\xe9.csv".decode(errors="surrogateescape"))

    async def work() -> str:
        tool = noetl.Tool(kind="shy", summary="Is lost.", config=Number, run=lost)
        async with noetl.embedded(f"sqlite:///{tmp_path}/a.db", tools=[tool]) as client:
            await client.register(PATIENT)
            started = await client.start("demo/patient")
            return (await client.wait(started.execution_id)).error.message

    assert asyncio.run(work()) == "FileNotFoundError: caf\\udce9.csv"


def test_a_fault_of_a_tool_shows_the_lines_of_the_tool(tmp_path):
    async def faulty(config: Number, context: noetl.ToolContext) -> noetl.Outcome:
        return noetl.ok(config.number / 0)

    async def work() -> noetl.Outcome:
        tool = noetl.Tool(kind="shy", summary="Divides.", config=Number, run=faulty)
        async with noetl.embedded(f"sqlite:///{tmp_path}/a.db", tools=[tool]) as client:
            await client.register(PATIENT)
            started = await client.start("demo/patient")
            return (await client.wait(started.execution_id)).error

    error = asyncio.run(work())
    assert error.message == "ZeroDivisionError: division by zero"
    head, place, line, *_, last = error.details["traceback"].splitlines()
    assert head == "Traceback (of the tool):"
    assert place.startswith(f'  File "{__file__}", line ')
    assert place.endswith(", in faulty")
    assert line.strip() == "return noetl.ok(config.number / 0)"
    assert last == error.message


def test_a_tool_that_calls_itself_without_end_is_told_how_often(tmp_path):
    async def endless(config: Number, context: noetl.ToolContext) -> noetl.Outcome:
        return await endless(config, context)

    async def work() -> noetl.Outcome:
        tool = noetl.Tool(kind="shy", summary="Has no end.", config=Number, run=endless)
        async with noetl.embedded(f"sqlite:///{tmp_path}/a.db", tools=[tool]) as client:
            await client.register(PATIENT)
            started = await client.start("demo/patient")
            return (await client.wait(started.execution_id)).error

    shown = asyncio.run(work()).details["traceback"]
    [times] = re.findall(r"Previous line repeated (\d+) more times", shown)
    assert int(times) > 100


@pytest.mark.parametrize(
    ("added", "told"),
    [
        ([], "this worker has no tool kind shy. Install the package that brings it"),
        (
            [noetl.Tool(kind="shy", summary="Does nothing.", config=Number)],
            "kind shy can be checked, but not run: its `Tool` has no `run`.",
        ),
    ],
)
def test_a_worker_that_cannot_run_a_kind_says_what_it_lacks(added, told, tmp_path):
    """The text was registered where the kind can be run."""
    place = f"sqlite:///{tmp_path}/a.db"

    async def shy(config: Number, context: noetl.ToolContext) -> noetl.Outcome:
        return noetl.ok(1)

    async def work() -> noetl.Outcome:
        tool = noetl.Tool(kind="shy", summary="Is here.", config=Number, run=shy)
        async with noetl.embedded(place, tools=[tool]) as client:
            await client.register(PATIENT)
        async with noetl.embedded(place, tools=added) as client:
            started = await client.start("demo/patient")
            return (await client.wait(started.execution_id)).error

    assert asyncio.run(work()).message.startswith(told)


READING = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: reading, path: demo/reading}
workflow:
  - step: read
    tool: {kind: ledger, number: 7}
    next: {arcs: [{step: end, when: "{{ read[0].id == 7 }}"}]}
  - step: end
    tool: {kind: noop}
"""


def test_why_a_step_ran_is_told_also_of_results_of_a_tool_of_the_program(tmp_path):
    """Guards are evaluated again in another process, which does not know the tool."""

    async def rows(config: Number, context: noetl.ToolContext) -> noetl.Outcome:
        return noetl.ok({"rows": [{"id": config.number}]})

    ledger = noetl.Tool(kind="ledger", summary="Rows.", config=Number, run=rows, view="rows")

    async def work() -> StepWhyDocument:
        async with noetl.embedded(f"sqlite:///{tmp_path}/a.db", tools=[ledger]) as client:
            await client.register(READING)
            started = await client.start("demo/reading")
            await client.wait(started.execution_id)
            asked = WhichWhy(step="end")
            found = await client.call(WHY, execution_id=started.execution_id, query=asked)
            assert found.step is not None
            return found.step

    told = asyncio.run(work())
    assert told.outcome == "ran"
    assert [one.verdict for one in told.conditions] == ["fired"]


LARGE = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: large, path: demo/large}
workflow:
  - step: make
    tool: {kind: python, code: "result = {'text': 'x' * 200_000}"}
"""
HOOK = """
apiVersion: noetl.io/v2
kind: Hook
metadata: {name: hook, path: demo/hook}
spec: {verify: none, target: {playbook: demo/large}}
"""


async def files_and_texts(client: noetl.Client) -> list[object]:
    """The answers of routes that do not answer with a struct, as a program reads them."""
    await client.register(LARGE)
    await client.register(HOOK)
    started = await client.start("demo/large")
    execution_id = started.execution_id
    ended = await client.wait(execution_id)
    key = ended.result["_ref"]["key"]
    net = await client.call(playbooks.NET, digest=ended.digest)
    described = await client.call(OPENAPI)
    delivered = await client.call(
        hooks.DELIVER, path="demo/hook", body=b"{}", headers={"Content-Type": "application/json"}
    )
    return [
        (await client.call(executions.EXPORT, execution_id=execution_id))[:2],
        (await client.call(whatif.TEST_OF, execution_id=execution_id)).splitlines()[0],
        len((await client.call(results.GET, execution_id=execution_id, key=key))["text"]),
        (await client.call(health.METRICS)).splitlines()[0],
        msgspec.json.decode(described)["openapi"],
        net["path"],
        delivered.status,
        "event: playbook.processed"
        in await client.call(executions.STREAM, execution_id=execution_id),
    ]


def test_files_and_texts_are_the_same_from_this_process_and_from_a_server(tmp_path):
    async def here() -> list[object]:
        async with noetl.embedded(f"sqlite:///{tmp_path}/a.db") as client:
            return await files_and_texts(client)

    async def there(url: str) -> list[object]:
        async with noetl.Client([url]) as client:
            return await files_and_texts(client)

    with serving(tmp_path, kind="dev") as server:
        found = asyncio.run(there(server.url))
    assert found[0] == b"\x1f\x8b"
    assert found[2] == 200_000
    assert found[-2:] == ["started", True]
    assert asyncio.run(here()) == found


def test_a_client_in_this_process_has_no_server_to_ask(tmp_path):
    async def work() -> None:
        async with noetl.embedded(f"sqlite:///{tmp_path}/a.db") as client:
            await client.get("/api/health")

    with pytest.raises(Unreachable, match="in its own process"):
        asyncio.run(work())


def test_a_program_may_run_under_an_account_without_a_name(tmp_path, monkeypatch):
    """As in a container whose user id is chosen when it starts."""

    def nobody(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)

    async def main():
        async with noetl.embedded(f"sqlite:///{tmp_path}/here.db", slots=1) as client:
            return await client.call(executions.LIST, query=executions.Which())

    assert asyncio.run(main()).executions == []


def test_what_was_started_goes_on_when_the_program_starts_again(tmp_path):
    database = f"sqlite:///{tmp_path}/a.db"
    seen: list[int] = []
    begun = asyncio.Event()

    async def endless(config: Number, context: noetl.ToolContext) -> noetl.Outcome:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    stuck = noetl.Tool(kind="count", summary="Never ends.", config=Number, run=endless)

    async def work() -> str:
        async with noetl.embedded(database, tools=[stuck]) as client:
            await client.register(COUNTING)
            started = await client.start("demo/counting")
            await asyncio.wait_for(begun.wait(), PATIENCE)
        async with noetl.embedded(database, tools=[counter(seen)]) as client:
            ended = await asyncio.wait_for(client.wait(started.execution_id), PATIENCE)
            return ended.status

    assert asyncio.run(work()) == "COMPLETED"
    assert seen == [1, 2, 3]


def test_problems_of_a_playbook_come_as_an_error_that_lists_them(tmp_path):
    async def work() -> None:
        async with noetl.embedded(f"sqlite:///{tmp_path}/a.db") as client:
            await client.register(COUNTING)

    with pytest.raises(noetl.PlaybookRejected, match=r'no tool kind "count"'):
        asyncio.run(work())


def test_a_tool_may_not_take_the_name_of_another(tmp_path):
    async def nothing(config: Number, context: noetl.ToolContext) -> noetl.Outcome:
        return noetl.ok()

    http = noetl.Tool(kind="http", summary="Pretends.", config=Number, run=nothing)

    async def work() -> None:
        async with noetl.embedded(f"sqlite:///{tmp_path}/a.db", tools=[http]):
            raise AssertionError

    with pytest.raises(noetl.NoetlError, match='kind "http", which exists already'):
        asyncio.run(work())


def test_a_program_that_names_a_database_of_another_kind_is_told_and_no_file_is_made(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)

    async def work() -> None:
        async with noetl.embedded("mysql://user@host/orders"):
            raise AssertionError("it was opened")

    with pytest.raises(BadSetting, match="SQLite or PostgreSQL, not mysql"):
        asyncio.run(work())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("slots", [0, -1])
def test_a_program_without_slots_is_told_instead_of_waiting_for_ever(slots, tmp_path):
    async def open_it() -> None:
        async with noetl.embedded(f"sqlite:///{tmp_path}/it.db", slots=slots):
            raise AssertionError("no task could run")

    with pytest.raises(BadSetting, match=f"slots is {slots}"):
        asyncio.run(open_it())
