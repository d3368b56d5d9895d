"""Keeping and forgetting: whole trees, by rules, and never what is needed."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import psycopg
import pytest

from noetl import wiring
from noetl.api.services import Services
from noetl.control import retention
from noetl.control.recordings import read_bytes, recorded
from noetl.control.retention import Retention
from noetl.errors import Conflict, NotFound
from noetl.model.retention import keep_rules
from noetl.settings import Settings
from noetl.store.archive import Folder
from noetl.store.retention import Hold
from tests.control.servers import servers, working

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\n"
CHILD = (
    HEAD + "metadata: {name: c, path: shop/child}\nworkflow: [{step: start, tool: {kind: noop}}]\n"
)
PARENT = (
    HEAD
    + """metadata: {name: p, path: shop/parent}
workload: {n: 2}
workflow:
  - step: start
    loop: {in: "{{ range(workload.n) | list }}", iterator: i, spec: {mode: parallel}}
    tool: {kind: playbook, path: shop/child}
    next: end
  - step: end
    tool: {kind: noop}
"""
)
FAILING = (
    HEAD
    + """metadata: {name: f, path: bank/failing}
workflow:
  - step: start
    tool: {kind: python, code: "raise ValueError('no')"}
"""
)
WAITING = (
    HEAD
    + """metadata: {name: w, path: shop/waiting}
workflow:
  - step: start
    tool: {kind: python, code: "import time; time.sleep(600)"}
"""
)
SOON = keep_rules("1ms")


@asynccontextmanager
async def running(url: str) -> AsyncIterator[Services]:
    settings = Settings.from_environment({"NOETL_DATABASE_URL": url})
    async with wiring.embedded(settings) as system:
        for text in (CHILD, PARENT, FAILING):
            await system.catalog.register(text)
        yield system


async def run(system: Services, path: str, workload: dict[str, object] | None = None) -> str:
    entry = await system.store.catalog.entry(path)
    assert entry is not None
    execution_id = await system.executions.start(
        entry.digest, entry.path, entry.version, workload or {}
    )
    await system.orchestrator.wait_for_end(execution_id)
    return execution_id


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/noetl.db"
    return str(request.getfixturevalue("database_url"))


def test_a_tree_goes_whole_and_what_it_freed_is_counted(url: str):
    async def work() -> None:
        async with running(url) as system:
            retention = Retention(system.store, system.clock, SOON)
            await run(system, "shop/parent")
            await asyncio.sleep(0.01)
            would = await retention.prune(dry_run=True)
            assert (would.trees, would.executions) == (1, 3)
            assert len(await system.store.records.summaries()) == 3

            pruned = await retention.prune()
            assert (pruned.trees, pruned.executions) == (1, 3)
            assert pruned.events == would.events > 30
            assert dict(pruned.by_path) == {"shop/parent": 1}
            assert await system.store.records.summaries() == []
            counts = {one.path: one.executions for one in await system.store.retention.forgotten()}
            assert counts == {"shop/parent": 1, "shop/child": 2}
            assert await system.store.check() == []
            assert (await retention.prune()).trees == 0

    asyncio.run(work())


def test_the_rule_with_the_longest_path_decides(url: str):
    async def work() -> None:
        async with running(url) as system:
            store = system.store
            parent, failed = await run(system, "shop/parent"), await run(system, "bank/failing")
            await run(system, "shop/child")
            await asyncio.sleep(0.01)

            async def left(rules: str) -> set[str]:
                await Retention(store, system.clock, keep_rules(rules)).prune()
                return {row.path for row in await store.records.summaries()}

            everything = {"shop/parent", "shop/child", "bank/failing"}
            assert await left("1h") == everything
            assert await left("failed=1ms, bank/=1h") == everything
            assert await left("1ms, shop/=forever, failed=forever") == everything
            assert await left("shop/c=1ms") == everything, "it called one, and is kept"
            assert {row.execution_id for row in await store.records.summaries()} >= {parent, failed}
            assert len(await store.records.summaries()) == 4, (
                "but the one that nobody called is gone"
            )
            assert await left("1ms, bank/:failed=1h") == {"bank/failing"}
            assert await left("1ms") == set()

    asyncio.run(work())


def test_what_runs_is_held_or_is_stood_on_stays(url: str, tmp_path: Path):
    async def work() -> None:
        async with running(url) as system:
            retention = Retention(system.store, system.clock, SOON)
            await system.catalog.register(WAITING)
            waiting = await system.store.catalog.entry("shop/waiting")
            assert waiting is not None
            live = await system.executions.start(waiting.digest, waiting.path, 1, {})
            held, source = await run(system, "shop/parent"), await run(system, "shop/parent")
            await retention.hold(held, "for the audit", "ann")
            again = await system.executions.rerun(source, step="end")
            await system.orchestrator.wait_for_end(again)
            await retention.hold(again, "", "ann")
            await asyncio.sleep(0.01)

            pruned = await retention.prune()
            assert (pruned.trees, dict(pruned.kept)) == (0, {"held": 2, "reused": 1})
            for execution_id, why in (
                (live, "has not ended"),
                (held, "is held"),
                (source, "a rerun or fork"),
            ):
                with pytest.raises(Conflict, match=why):
                    await retention.delete(execution_id)
            archiving = Retention(system.store, system.clock, SOON, archive=Folder(tmp_path / "a"))
            with pytest.raises(Conflict, match="has not ended"):
                await archiving.archive(live)
            child = (await system.store.retention.tree(held))[0].execution_id
            with pytest.raises(Conflict, match=f"called by {held}"):
                await retention.delete(child)
            with pytest.raises(NotFound):
                await retention.delete("1")

            await retention.release(again)
            assert await retention.delete(again) == 1
            assert await retention.delete(source) == 3
            await retention.hold(child, "a part of it", "ann")
            await retention.release(held)
            assert dict((await retention.prune()).kept) == {"held": 1}
            with pytest.raises(Conflict, match="is held"):
                await retention.delete(held)
            await retention.release(child)
            assert (await retention.prune()).executions == 3
            assert [row.execution_id for row in await system.store.records.summaries()] == [live]
            await system.executions.cancel(live, "done")

    asyncio.run(work())


class Overtaken(Folder):
    """An archive that is slow: meanwhile something else happens."""

    def __init__(self, root: Path, meanwhile: Callable[[], Awaitable[object]]) -> None:
        super().__init__(root)
        self._meanwhile = meanwhile

    async def put(self, name: str, pieces: AsyncIterator[bytes]) -> None:
        await self._meanwhile()
        await super().put(name, pieces)


def test_two_servers_that_archive_and_forget_the_same_do_each_other_no_harm(
    url: str, tmp_path: Path
):
    async def work() -> None:
        async with running(url) as system:
            execution_id = await run(system, "shop/parent")
            await asyncio.sleep(0.01)
            store, clock, root = system.store, system.clock, tmp_path / "archive"
            first = Retention(store, clock, SOON, archive=Folder(root))
            second = Retention(store, clock, SOON, archive=Overtaken(root, first.prune))

            pruned = await second.prune()

            assert (pruned.executions, dict(pruned.kept)) == (0, {})
            assert await store.records.summary(execution_id) is None
            names = [one.name for one in await Folder(root).names("", "", 9)]
            assert len(names) == 3
            for name in names:
                pieces = [piece async for piece in await Folder(root).get(name)]
                assert read_bytes(b"".join(pieces)).head.status == "COMPLETED"

    asyncio.run(work())


@pytest.mark.parametrize("how", ["held", "reused"])
def test_a_tree_that_is_wanted_while_it_is_recorded_stays_whole(url: str, tmp_path: Path, how: str):
    async def work() -> None:
        async with running(url) as system:
            wanted, other = await run(system, "shop/parent"), await run(system, "shop/parent")
            await asyncio.sleep(0.01)
            store, done = system.store, asyncio.Event()

            async def want() -> None:
                if not done.is_set():
                    done.set()
                    if how == "held":
                        await store.retention.hold(Hold(wanted, "for the audit", "ann", 0.0))
                    else:
                        await system.executions.rerun(wanted, step="end")

            slow = Overtaken(tmp_path / "archive", want)
            pruned = await Retention(store, system.clock, SOON, archive=slow).prune()

            assert pruned.kept[how] == 1
            assert len(await store.retention.tree(wanted)) == 3
            assert await store.retention.tree(other) == []

    asyncio.run(work())


def test_what_is_released_while_others_are_recorded_is_recorded_before_it_goes(
    url: str, tmp_path: Path
):
    async def work() -> None:
        async with running(url) as system:
            held, _ = await run(system, "shop/child"), await run(system, "shop/child")
            store, root = system.store, tmp_path / "archive"
            await store.retention.hold(Hold(held, "for the audit", "ann", 0.0))
            await asyncio.sleep(0.01)
            slow = Overtaken(root, lambda: store.retention.release(held))
            pruning = Retention(store, system.clock, SOON, archive=slow)

            assert (await pruning.prune()).kept == {"not archived": 1}
            assert await store.records.summary(held) is not None
            assert (await pruning.prune()).executions == 1
            assert len(await Folder(root).names("", "", 9)) == 2

    asyncio.run(work())


def test_what_the_archive_cannot_have_whole_stays(tmp_path: Path):
    """Its playbook is lost, as in a damaged database: what there is of it is all there is."""
    place = tmp_path / "noetl.db"

    async def work() -> None:
        async with running(f"sqlite:///{place}") as system:
            execution_id = await run(system, "shop/child")
            await asyncio.sleep(0.01)
            with closing(sqlite3.connect(place)) as writer, writer:
                assert writer.execute("DELETE FROM noetl_net").rowcount
            archive = Folder(tmp_path / "archive")
            pruned = await Retention(system.store, system.clock, SOON, archive=archive).prune()

            assert (pruned.executions, dict(pruned.kept)) == (0, {"not archived": 1})
            assert await system.store.records.summary(execution_id) is not None

    asyncio.run(work())


def test_what_stays_hides_nothing_behind_it(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(retention, "PAGE", 1)

    async def work() -> None:
        async with running(url) as system:
            held, *_ = [await run(system, "shop/child") for _ in range(3)]
            await system.store.retention.hold(Hold(held, "for the audit", "ann", 0.0))
            await asyncio.sleep(0.01)

            assert (await Retention(system.store, system.clock, SOON).prune()).executions == 2
            assert [one.execution_id for one in await system.store.records.summaries()] == [held]

    asyncio.run(work())


def test_a_called_execution_that_is_stood_on_keeps_its_caller(url: str):
    async def work() -> None:
        async with running(url) as system:
            caller = await run(system, "shop/parent")
            called = (await system.store.retention.tree(caller))[0].execution_id
            again = await system.executions.rerun(called, step="start")
            await system.orchestrator.wait_for_end(again)
            await system.store.retention.hold(Hold(again, "for the audit", "ann", 0.0))
            await asyncio.sleep(0.01)

            pruned = await Retention(system.store, system.clock, SOON).prune()

            assert (pruned.executions, dict(pruned.kept)) == (0, {"held": 1, "reused": 1})

    asyncio.run(work())


def test_a_server_forgets_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(retention, "FIRST_SECONDS", 0.05)

    async def work() -> None:
        async with running(f"sqlite:///{tmp_path}/noetl.db") as system:
            await run(system, "shop/child")
            forgetting = asyncio.create_task(Retention(system.store, system.clock, SOON).run())
            while await system.store.records.summaries():
                await asyncio.sleep(0.02)
            forgetting.cancel()
            await asyncio.wait([forgetting])

    asyncio.run(work())


def test_what_is_deleted_while_it_is_recorded_makes_no_file_without_its_results(url: str):
    large = "{kind: python, code: 'import random; result = random.randbytes(300_000).hex()'}"
    steps = f"workflow: [{{step: start, tool: {large}, next: end}}, {{step: end, tool: {large}}}]"

    async def work() -> None:
        async with running(url) as system:
            await system.catalog.register(f"{HEAD}metadata: {{name: l, path: large}}\n{steps}\n")
            execution_id = await run(system, "large")
            pieces = await recorded(system.store, execution_id, system.clock.now())
            while len(await anext(pieces)) < 50_000:
                pass  # Not yet the first of the two results.
            await Retention(system.store, system.clock, SOON).delete(execution_id)
            with pytest.raises(NotFound):
                [piece async for piece in pieces]

    asyncio.run(work())


def test_the_disk_stays_flat_under_constant_load(url: str):
    """What is forgotten makes room for what comes: the database stops growing."""
    rounds, warm = 8, 3

    async def work() -> list[int]:
        sizes = []
        async with running(url) as system:
            retention = Retention(system.store, system.clock, SOON)
            for _ in range(rounds):
                await asyncio.gather(
                    *(run(system, "shop/parent", {"n": 20}) for _ in range(5)),
                )
                await asyncio.sleep(0.01)
                assert (await retention.prune()).executions == 105
                sizes.append(await _size(url))
        return sizes

    sizes = asyncio.run(work())
    assert max(sizes[warm:]) <= 1.1 * max(sizes[:warm]), sizes


async def _size(url: str) -> int:
    if url.startswith("sqlite"):
        # Of the database as it stands: the file itself grows when the log is written back.
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as reader:
            return int(reader.execute("PRAGMA page_count").fetchone()[0])
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as db:
        await db.execute("VACUUM")  # as PostgreSQL does by itself, after a while
        found = await db.execute(
            "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class"
            " WHERE relnamespace = 'noetl'::regnamespace AND relkind = 'r'"
        )
        row = await found.fetchone()
        assert row is not None
        return int(row[0])


def test_a_large_tree_goes_in_several_transactions_and_no_execution_is_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def work() -> None:
        async with running(f"sqlite:///{tmp_path}/noetl.db") as system:
            root = await run(system, "shop/parent", {"n": 5})
            store = system.store.retention
            size = {member.execution_id: member.seq for member in await store.tree(root)}
            children = sorted(size.values())[:-1]
            room = sum(children[:2])
            monkeypatch.setattr(retention, "EVENTS_AT_ONCE", room)
            forget, parts = store.forget, []

            async def noted(part: list[str]) -> list[str]:
                parts.append(part)
                return await forget(part)

            monkeypatch.setattr(store, "forget", noted)
            await Retention(system.store, system.clock, SOON).delete(root)

            assert [one for part in parts for one in part] == list(size)
            assert sorted(map(len, parts)) == [1, 1, 2, 2], "the parent has more than is allowed"
            assert all(len(part) == 1 or sum(size[one] for one in part) <= room for part in parts)

    asyncio.run(work())


def test_small_trees_go_in_one_transaction(url: str, monkeypatch: pytest.MonkeyPatch):
    async def work() -> None:
        async with running(url) as system:
            held = await run(system, "shop/parent")
            await system.store.retention.hold(Hold(held, "for the audit", "ann", 0.0))
            for _ in range(4):
                await run(system, "shop/parent")
            await run(system, "shop/child")
            await asyncio.sleep(0.01)
            forget, parts = system.store.retention.forget, []

            async def noted(part: list[str]) -> list[str]:
                parts.append(part)
                return await forget(part)

            monkeypatch.setattr(system.store.retention, "forget", noted)
            pruned = await Retention(system.store, system.clock, SOON).prune()

            assert [len(part) for part in parts] == [13]
            assert (pruned.trees, pruned.executions) == (5, 13)
            assert pruned.kept == {"held": 1}
            assert pruned.by_path == {"shop/parent": 4, "shop/child": 1}

    asyncio.run(work())


def test_a_tree_that_is_held_while_others_go_stays_whole(url: str, monkeypatch: pytest.MonkeyPatch):
    async def work() -> None:
        async with running(url) as system:
            roots = [await run(system, "shop/parent") for _ in range(3)]
            await asyncio.sleep(0.01)
            store = system.store.retention
            tree = await store.tree(roots[0])
            # The first tree has room, and the second only in part.
            room = sum(member.seq for member in tree) + tree[0].seq
            monkeypatch.setattr(retention, "EVENTS_AT_ONCE", room)
            forget = store.forget

            async def then_hold(part: list[str]) -> list[str]:
                gone = await forget(part)
                await store.hold(Hold(roots[1], "for the audit", "ann", 0.0))
                return gone

            monkeypatch.setattr(store, "forget", then_hold)
            pruned = await Retention(system.store, system.clock, SOON).prune()

            assert len(await store.tree(roots[1])) == len(tree)
            assert (pruned.trees, pruned.kept) == (2, {"held": 1})

    asyncio.run(work())


def test_what_one_server_forgot_another_does_not_show_from_memory(database_url: str):
    async def work() -> None:
        async with servers(database_url, 2) as (one, other), working(one, "w"):
            entry, _ = await one.catalog.register(CHILD)
            execution_id = await one.executions.start(entry.digest, entry.path, entry.version, {})
            await one.orchestrator.wait_for_end(execution_id)
            assert (await other.orchestrator.state(execution_id)).is_finished

            assert await Retention(one.store, one.clock, SOON).delete(execution_id) == 1
            with pytest.raises(NotFound):
                await other.orchestrator.state(execution_id)

    asyncio.run(work())
