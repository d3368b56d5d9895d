"""Consumers at work on real sources: each message once, whoever reads, fails or takes over."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import nats
import psycopg
import pytest

from noetl.api.services import Services
from noetl.control import consumers
from noetl.control.consumers import CONNECTING, ConsumerState
from noetl.control.sources import Stream
from noetl.model.triggers import TriggerChange, TriggerMessage
from noetl.wiring import keeping_triggers
from tests.control.servers import run, servers
from tests.control.test_schedules import embedded, register, until
from tests.servers import empty_database

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: order, path: t/order}
executor: {spec: {inputs: {order: {type: integer, required: true}}}}
workload: {order: 0}
workflow:
  - step: start
    spec: {eval_mode: on_event}
    case: [{when: "{{ event.name == 'go' }}", then: {result: {from: "{{ workload.order }}"}}}]
"""


def document(source: dict[str, Any], **spec: Any) -> str:
    given: dict[str, Any] = {
        "source": source,
        "target": {"playbook": "t/order", "workload": {"order": "{{ message.body.id }}"}},
    }
    head = "apiVersion: noetl.io/v2\nkind: Consumer\nmetadata: {name: c, path: t/c}\n"
    return f"{head}spec: {msgspec.json.encode(given | spec).decode()}\n"


async def taken(system: Services, count: int) -> list[TriggerMessage]:
    """What became of the messages, oldest first, when there are so many."""

    async def enough() -> Any:
        found = await system.store.messages.of("t/c")
        return found if len(found) >= count else None

    found: list[TriggerMessage] = await until(enough)
    return found[::-1]


async def orders(system: Services) -> list[int]:
    """What the executions were started with, in the order of their numbers."""
    found = []
    for one in await system.store.messages.of("t/c", limit=1000):
        if one.execution_id is not None:
            state = await system.orchestrator.state(one.execution_id)
            assert str(state.actor) == "consumer t/c"
            found.append(state.workload["order"])
    return sorted(found)


async def reading(system: Services) -> None:
    async def reads() -> bool:
        [(_, state)] = await system.consumers.all("", "", 10)
        return bool(state.holder) and not state.problem

    await until(reads)


@asynccontextmanager
async def stream(url: str, name: str) -> AsyncIterator[Any]:
    client = await nats.connect(url)
    try:
        made = client.jetstream()
        await made.add_stream(name=name, subjects=[f"{name}.>"])
        yield made
        await made.delete_stream(name)
    finally:
        await client.close()


def test_each_message_of_a_stream_starts_one_execution(tmp_path: Path, nats_url: str):
    async def story() -> None:
        async with stream(nats_url, "ORDERS") as orders_of, embedded(tmp_path) as system:
            for number in range(3):
                await orders_of.publish("ORDERS.new", b'{"id": %d}' % number)
            source = {"nats": {"url": nats_url, "stream": "ORDERS", "subject": "ORDERS.>"}}
            await register(system, PLAYBOOK)
            await register(system, document(source, when="{{ message.body.id != 1 }}"))
            await orders_of.publish("ORDERS.new", b"no json")
            await orders_of.publish("ORDERS.new", b'{"id": "seven"}')
            await orders_of.publish("ORDERS.new", b'{"id": 5}')
            found = await taken(system, 6)

            assert await orders(system) == [0, 2, 5]
            outcomes = {one.id.rpartition("/")[2]: (one.outcome, one.reason) for one in found}
            assert outcomes["2"] == ("ignored", "`when` does not hold")
            assert outcomes["4"][0] == outcomes["5"][0] == "refused"
            assert "not JSON" in outcomes["4"][1]
            assert "order" in outcomes["5"][1]

            async def acknowledged() -> bool:
                [info] = await orders_of.consumers_info("ORDERS")
                return bool(info.num_ack_pending == 0 and info.num_pending == 0)

            await until(acknowledged)

    run(story)


def test_a_message_that_cannot_be_taken_yet_waits_and_the_consumer_says_why(
    tmp_path: Path, nats_url: str
):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, document({"nats": {"url": nats_url, "subject": "loose.>"}}))
            await reading(system)
            client = await nats.connect(nats_url)
            await client.publish("loose.a", b'{"id": 1}')
            await client.close()

            async def says() -> str:
                return (await system.consumers.find("t/c"))[1].problem

            assert 'no playbook "t/order"' in await until(says)
            await register(system, PLAYBOOK)
            await taken(system, 1)
            assert await orders(system) == [1]

    run(story)


def test_what_a_database_says_in_several_lines_is_shown_in_one(
    tmp_path: Path, postgres: dict[str, str]
):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await system.keys.put("shop_db", "postgres", dict(postgres))
            source = {"postgres": {"auth": "shop_db", "table": "nothere", "mark": "taken_at"}}
            await register(system, document(source))

            async def says() -> str:
                said = (await system.consumers.find("t/c"))[1].problem
                return said if "nothere" in said else ""

            said = await until(says)
            assert 'relation "nothere" does not exist LINE 1: SELECT' in said
            assert "\n" not in said

    run(story)


def test_rows_are_taken_in_whatever_order_they_are_committed(
    tmp_path: Path, postgres: dict[str, str]
):
    async def story() -> None:
        login = {name: value for name, value in postgres.items() if value}
        async with (
            embedded(tmp_path) as system,
            await psycopg.AsyncConnection.connect(**login, autocommit=True) as db,  # type: ignore[arg-type]
            await psycopg.AsyncConnection.connect(**login) as slow,  # type: ignore[arg-type]
        ):
            await db.execute("DROP TABLE IF EXISTS outbox")
            await db.execute(
                "CREATE TABLE outbox (id int PRIMARY KEY, at date, taken_at timestamptz)"
            )
            await system.keys.put("shop", "postgres", dict(postgres))
            await register(system, PLAYBOOK)
            source = {"auth": "shop", "table": "outbox", "mark": "taken_at", "every": "1h"}
            await register(system, document({"postgres": source | {"channel": "outbox"}}))
            await reading(system)
            await slow.execute("INSERT INTO outbox VALUES (1, '2026-01-31')")
            await db.execute("INSERT INTO outbox VALUES (2, NULL); NOTIFY outbox")
            await taken(system, 1)
            await slow.commit()
            await db.execute("NOTIFY outbox")
            await taken(system, 2)

            assert await orders(system) == [1, 2]

            async def marked() -> bool:
                cursor = await db.execute("SELECT count(*) FROM outbox WHERE taken_at IS NULL")
                return await cursor.fetchone() == (0,)

            await until(marked)
            # A row whose mark was lost comes again, and is known.
            await db.execute("UPDATE outbox SET taken_at = NULL; NOTIFY outbox")
            await until(marked)
            assert await orders(system) == [1, 2]

    run(story)


def test_rows_that_were_taken_hide_none_behind_them(tmp_path: Path, postgres: dict[str, str]):
    async def story() -> None:
        login = {name: value for name, value in postgres.items() if value}
        connecting = psycopg.AsyncConnection.connect(**login, autocommit=True)  # type: ignore[arg-type]
        async with embedded(tmp_path) as system, await connecting as db:
            last = consumers.BATCH + 1
            await db.execute("DROP TABLE IF EXISTS many")
            await db.execute("CREATE TABLE many (id int PRIMARY KEY, taken_at timestamptz)")
            await db.execute("INSERT INTO many SELECT generate_series(1, %s)", [last + 1])
            await system.keys.put("shop", "postgres", dict(postgres))
            await register(system, PLAYBOOK)
            source = {"postgres": {"auth": "shop", "table": "many", "mark": "taken_at"}}
            await register(system, document(source, when=f"{{{{ message.body.id >= {last} }}}}"))
            await until(lambda: system.store.records.summaries())
            await taken(system, 20)
            assert await orders(system) == [last, last + 1]

    run(story)


def test_rows_of_another_database_are_not_taken_for_those_of_the_first(
    tmp_path: Path, postgres: dict[str, str], postgres_server: Any
):
    """Also those that were taken by a release whose ids named only the table."""
    empty_database(postgres_server, "elsewhere")
    elsewhere = {**postgres, "dbname": "elsewhere"}

    async def marked(login: dict[str, str]) -> bool:
        async with await psycopg.AsyncConnection.connect(**login) as db:  # type: ignore[arg-type]
            cursor = await db.execute("SELECT count(*) FROM outbox WHERE taken_at IS NULL")
            return await cursor.fetchone() == (0,)

    async def story() -> None:
        for login, keys in ((postgres, (1, 2)), (elsewhere, (2,))):
            async with await psycopg.AsyncConnection.connect(**login) as db:  # type: ignore[arg-type]
                await db.execute("DROP TABLE IF EXISTS outbox")
                await db.execute("CREATE TABLE outbox (id int PRIMARY KEY, taken_at timestamptz)")
                for key in keys:
                    await db.execute("INSERT INTO outbox VALUES (%s)", [key])
        async with embedded(tmp_path) as system:
            await register(system, PLAYBOOK)
            before = TriggerMessage(path="t/c", id="outbox/1", at=time.time(), outcome="started")
            await system.store.triggers.change(TriggerChange(messages=(before,)))
            source = {"auth": "shop", "table": "outbox", "mark": "taken_at", "every": "100ms"}
            for which, login, expected in (
                ("one", postgres, [2]),
                ("shop", elsewhere, [2, 2]),
                ("again", postgres, [2, 2]),
            ):
                await system.keys.put(which, "postgres", dict(login))
                await register(system, document({"postgres": source | {"auth": which}}))
                await until(partial(marked, login))
                assert await orders(system) == expected
                async with await psycopg.AsyncConnection.connect(**postgres) as db:  # type: ignore[arg-type]
                    await db.execute("UPDATE outbox SET taken_at = NULL")

    run(story)


def test_messages_that_wait_for_their_playbook_are_taken_when_it_is_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("one")
    monkeypatch.setattr(consumers, "PAUSE_SECONDS", 3600.0)
    source = {"files": {"url": f"file://{tmp_path}/in", "pattern": "*.csv", "every": "100ms"}}
    target = {"playbook": "t/order", "workload": {"order": "{{ message.body.size }}"}}

    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, document(source, target=target))

            async def waits() -> bool:
                return "t/order" in (await system.consumers.find("t/c"))[1].problem

            await until(waits)
            await register(system, PLAYBOOK)
            await taken(system, 1)

    run(story)


def test_messages_at_one_server_hear_of_a_playbook_that_another_registers(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("one")
    monkeypatch.setattr(consumers, "PAUSE_SECONDS", 3600.0)
    source = {"files": {"url": f"file://{tmp_path}/in", "pattern": "*.csv", "every": "100ms"}}
    target = {"playbook": "t/order", "workload": {"order": "{{ message.body.size }}"}}

    async def story() -> None:
        files = {"NOETL_FILES": str(tmp_path)}
        async with servers(database_url, 2, **files) as (reads, other), keeping_triggers(reads):
            await register(reads, document(source, target=target))

            async def waits() -> bool:
                return "t/order" in (await reads.consumers.find("t/c"))[1].problem

            await until(waits)
            await register(other, PLAYBOOK)
            await taken(reads, 1)

    run(story)


def test_a_source_that_waits_for_its_credential_is_read_when_another_server_stores_it(
    database_url: str, postgres: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(consumers, "PAUSE_SECONDS", 3600.0)

    async def story() -> None:
        async with (
            servers(database_url, 2) as (reads, other),
            keeping_triggers(reads),
            await psycopg.AsyncConnection.connect(**postgres, autocommit=True) as db,  # type: ignore[arg-type]
        ):
            await register(reads, PLAYBOOK)
            await register(reads, document({"postgres": {"auth": "late", "channel": "orders"}}))

            async def waits() -> bool:
                return "late" in (await reads.consumers.find("t/c"))[1].problem

            await until(waits)
            await other.keys.put("late", "postgres", dict(postgres))
            await reading(reads)
            await db.execute("NOTIFY orders, '{\"id\": 7}'")
            await taken(reads, 1)

    run(story)


def test_what_is_sent_to_a_channel_is_a_message(tmp_path: Path, postgres: dict[str, str]):
    async def story() -> None:
        login = {name: value for name, value in postgres.items() if value}
        async with (
            embedded(tmp_path) as system,
            await psycopg.AsyncConnection.connect(**login, autocommit=True) as db,  # type: ignore[arg-type]
        ):
            await system.keys.put("shop", "postgres", dict(postgres))
            await register(system, PLAYBOOK)
            await register(system, document({"postgres": {"auth": "shop", "channel": "orders"}}))
            await reading(system)
            for number in range(3):
                await db.execute("SELECT pg_notify('orders', %s)", [f'{{"id": {number}}}'])
            await taken(system, 3)
            assert await orders(system) == [0, 1, 2]

    run(story)


def test_new_and_changed_files_are_messages_and_known_ones_are_not(
    tmp_path: Path,
):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "1.csv").write_text("one")
    (folder / "other.txt").write_text("not ours")
    source = {"files": {"url": f"file://{folder}", "pattern": "*.csv", "every": "100ms"}}
    target = {"playbook": "t/order", "workload": {"order": "{{ message.body.size }}"}}

    async def first() -> None:
        async with embedded(tmp_path) as system:
            await register(system, PLAYBOOK)
            await register(system, document(source, target=target))
            await taken(system, 1)
            (folder / "2.csv").write_text("two22")
            await taken(system, 2)

    async def second() -> None:
        async with embedded(tmp_path) as system:
            (folder / "1.csv").write_text("another")
            (folder / "2.csv").unlink()

            async def changed() -> bool:
                return await orders(system) == [7]

            await until(changed)  # of what is not there any more nothing is known any more
            assert await system.store.records.count() == 3

    run(first)
    run(second)


def test_no_more_files_than_may_run_are_taken_and_only_those_below_the_prefix(tmp_path: Path):
    folder = tmp_path / "in"
    folder.mkdir()
    for size, name in enumerate(("b", "a1", "a2", "a3")):
        (folder / name).write_text("x" * size)
    source = {"files": {"url": f"file://{tmp_path}", "prefix": "in/a", "every": "100ms"}}
    target = {"playbook": "t/order", "workload": {"order": "{{ message.body.size }}"}}

    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, PLAYBOOK)
            await register(system, document(source, target=target, max_running=2))

            async def full() -> bool:
                return "2 executions" in (await system.consumers.find("t/c"))[1].problem

            await until(full)
            running = await system.store.messages.open("t/c")
            assert len(running) == 2
            await system.executions.signal(running[0], "go")
            await taken(system, 3)
            assert await orders(system) == [1, 2, 3]

    run(story)


def test_a_file_is_taken_when_it_is_written_and_not_before(tmp_path: Path):
    folder = tmp_path / "in"
    folder.mkdir()
    file = folder / "slow.csv"
    source = {"files": {"url": f"file://{folder}", "every": "100ms"}}
    target = {"playbook": "t/order", "workload": {"order": "{{ message.body.size }}"}}

    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, PLAYBOOK)
            await register(system, document(source, target=target))
            await reading(system)
            written, ends = 0, system.clock.now() + 1.0
            while system.clock.now() < ends:  # ten looks: each finds it longer than the one before
                with file.open("a") as writer:
                    written += writer.write("line")
                await asyncio.sleep(0.005)
            await taken(system, 1)
            assert await orders(system) == [written]

    run(story)


def test_files_are_known_for_longer_than_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """They are listed again and again, so what became of them is not forgotten with the years."""
    monkeypatch.setattr(consumers, "KEPT_SECONDS", 0.0)
    folder = tmp_path / "in"
    folder.mkdir()
    source = {"files": {"url": f"file://{folder}", "every": "100ms"}}
    target = {"playbook": "t/order", "workload": {"order": "{{ message.body.size }}"}}

    async def story() -> None:
        for size in (1, 2):
            async with embedded(tmp_path) as system:
                if size == 1:
                    await register(system, PLAYBOOK)
                    await register(system, document(source, target=target))
                (folder / f"{size}").write_text("x" * size)
                await taken(system, size)

    run(story)


def test_what_a_process_that_was_killed_read_is_read_on_at_once(tmp_path: Path):
    (tmp_path / "in").mkdir()
    source = {"files": {"url": f"file://{tmp_path}/in", "pattern": "*.csv", "every": "100ms"}}
    target = {"playbook": "t/order", "workload": {"order": "{{ message.body.size }}"}}

    def left(state: ConsumerState) -> ConsumerState:
        """As a process leaves it that says nothing when it ends."""
        return msgspec.structs.replace(state, holder="gone", until=time.time() + 3600)

    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, PLAYBOOK)
            await register(system, document(source, target=target))
            await reading(system)
        async with embedded(tmp_path, keeps=False) as system:
            await system.consumers.change("t/c", left)
        (tmp_path / "in" / "1.csv").write_text("one")
        async with embedded(tmp_path) as system:
            await taken(system, 1)
            assert await orders(system) == [3]

    run(story)


def test_a_consumer_that_is_stopped_while_it_acknowledges_does_stop():
    class Client:
        """Loses a cancellation that comes together with the answer, as the library's may."""

        def __init__(self) -> None:
            self.asked = asyncio.Event()

        async def flush(self) -> None:
            self.asked.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async def story() -> None:
        client = Client()
        telling = asyncio.create_task(Stream(client, None, "ORDERS").done([]))
        await client.asked.wait()
        telling.cancel()
        await asyncio.wait([telling])
        assert telling.cancelled()

    run(story)


def test_no_more_run_than_may_and_the_next_follow_also_after_a_restart(
    tmp_path: Path, nats_url: str
):
    async def full(system: Services) -> bool:
        said = (await system.consumers.find("t/c"))[1].problem
        return said.startswith("messages wait: 2 executions") and "max_running" in said

    async def reads_again(system: Services) -> bool:
        return (await system.consumers.find("t/c"))[1].problem == ""

    async def story() -> None:
        async with stream(nats_url, "MANY") as many:
            async with embedded(tmp_path) as system:
                for number in range(5):
                    await many.publish("MANY.a", b'{"id": %d}' % number)
                await register(system, PLAYBOOK)
                source = {"nats": {"url": nats_url, "stream": "MANY", "subject": "MANY.>"}}
                await register(system, document(source, max_running=2))
                await taken(system, 2)
            async with embedded(tmp_path) as system:
                for count, ending in ((2, 1), (3, 2)):
                    await taken(system, count)
                    await until(lambda: full(system))
                    running = await system.store.messages.open("t/c")
                    assert len(running) == 2
                    for execution_id in running[:ending]:
                        await system.executions.signal(execution_id, "go")
                        await system.executions.wait(execution_id)
                await taken(system, 5)
                assert await orders(system) == [0, 1, 2, 3, 4]
                await until(lambda: reads_again(system))

    run(story)


def test_a_paused_consumer_takes_nothing_and_a_new_version_holds_at_once(
    tmp_path: Path, nats_url: str
):
    async def story() -> None:
        async with stream(nats_url, "PAUSED") as paused, embedded(tmp_path) as system:
            await register(system, PLAYBOOK)
            source = {"nats": {"url": nats_url, "stream": "PAUSED", "subject": "PAUSED.>"}}
            await register(system, document(source))
            await reading(system)
            await system.consumers.pause("t/c", "stocktaking")

            async def released() -> bool:
                return (await system.consumers.find("t/c"))[1].holder == ""

            await until(released)
            await paused.publish("PAUSED.a", b'{"id": 1}')
            doubled = {"playbook": "t/order", "workload": {"order": "{{ message.body.id * 2 }}"}}
            await register(system, document(source, target=doubled))
            assert (await system.consumers.find("t/c"))[1].reason == "stocktaking"
            assert await system.store.messages.of("t/c") == []
            await system.consumers.resume("t/c")
            await taken(system, 1)
            assert await orders(system) == [2]

    run(story)


def test_a_new_version_takes_the_place_of_the_one_that_reads(tmp_path: Path):
    folder = tmp_path / "in"
    folder.mkdir()
    source = {"files": {"url": f"file://{folder}", "every": "100ms"}}
    old, new = (
        {"playbook": "t/order", "workload": {"order": f"{{{{ {sign}message.body.size }}}}"}}
        for sign in ("", "-")
    )

    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, PLAYBOOK)
            await register(system, document(source, target=old))
            await reading(system)
            await register(system, document(source, target=new))
            size = 0
            while min(await orders(system), default=0) >= 0:
                size += 1
                (folder / f"{size}").write_text("x" * size)
                await taken(system, size)
            for longer in range(size + 1, size + 13):
                (folder / f"{longer}").write_text("x" * longer)
                await taken(system, longer)
            assert (await orders(system))[:13] == [-one for one in range(size + 12, size - 1, -1)]

    run(story)


def test_a_stream_that_is_made_again_has_other_messages(tmp_path: Path, nats_url: str):
    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, PLAYBOOK)
            source = {"nats": {"url": nats_url, "stream": "AGAIN", "subject": "AGAIN.>"}}
            for number in (1, 2):
                async with stream(nats_url, "AGAIN") as again:
                    await again.publish("AGAIN.a", b'{"id": %d}' % number)
                    if number == 1:
                        await register(system, document(source))
                    await taken(system, number)
            assert await orders(system) == [1, 2]

    run(story)


def test_a_paused_consumer_no_longer_says_that_its_source_is_being_reached(tmp_path: Path):
    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"nats://127.0.0.1:{silent.getsockname()[1]}"
            async with embedded(tmp_path) as system:
                await register(system, PLAYBOOK)
                source = {"nats": {"url": url, "stream": "NONE", "subject": "NONE.>"}}
                await register(system, document(source))

                async def tries() -> bool:
                    return (await system.consumers.find("t/c"))[1].problem != ""

                await until(tries)
                assert (await system.consumers.pause("t/c")).problem != CONNECTING

    run(story)


def test_the_log_says_once_that_a_source_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(consumers, "PAUSE_SECONDS", 0.05)
    callers = 0

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal callers
        callers += 1
        writer.close()

    async def called() -> bool:
        return callers >= 4

    async def story() -> None:
        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
            url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with embedded(tmp_path) as system:
                await register(system, PLAYBOOK)
                source = {"nats": {"url": url, "stream": "NONE", "subject": "NONE.>"}}
                await register(system, document(source))
                await until(called)

    run(story)

    said = [one for one in caplog.records if "cannot read its source" in one.getMessage()]
    assert len(said) == 1


def test_another_server_takes_over_and_two_that_read_start_nothing_twice(
    database_url: str, nats_url: str, monkeypatch: pytest.MonkeyPatch
):
    # The first does not notice that it is not the reader any more, as if it had been frozen.
    monkeypatch.setattr(consumers, "RENEW_SECONDS", 3600.0)
    monkeypatch.setattr(consumers, "LEASE_SECONDS", 3600.0)

    async def story() -> None:
        async with stream(nats_url, "SHARED") as shared, servers(database_url, 2) as (one, two):
            source = {"nats": {"url": nats_url, "stream": "SHARED", "subject": "SHARED.>"}}
            async with AsyncExitStack() as later:
                async with keeping_triggers(one):
                    await register(one, PLAYBOOK)
                    await register(one, document(source))
                    await shared.publish("SHARED.a", b'{"id": 1}')
                    await taken(one, 1)
                    first = await reader(one)
                    await two.consumers.take_over()
                    await later.enter_async_context(keeping_triggers(two))
                    while await reader(two) in ("", first):
                        await asyncio.sleep(0.02)
                    for number in range(2, 30):
                        await shared.publish("SHARED.a", b'{"id": %d}' % number)
                    await taken(one, 29)
                await shared.publish("SHARED.a", b'{"id": 30}')
                await taken(two, 30)
                assert await orders(two) == list(range(1, 31))

    run(story)


async def reader(system: Services) -> str:
    """The server that reads the source, as the row of the consumer has it."""
    return (await system.consumers.find("t/c"))[1].holder
