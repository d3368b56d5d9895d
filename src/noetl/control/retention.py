"""Keeping and forgetting: executions that ended long enough ago are removed, tree by tree.

A tree is an execution without a caller, with all executions that it called. It is removed as a
whole, and only if all of it has ended, no part of it is on hold, and no execution outside of it
reads its results. Small trees go together, large ones in several transactions, called executions
first: an interrupted server leaves whole executions behind, and the next round goes on. Any server
may do it.

Where the store keeps log and results by day, a day of which everything may go is dropped whole,
which costs next to nothing. So that days become whole, a server waits a little longer (`LINGER`)
before it removes single trees of a day: what is held, or ran for days, keeps only itself.

With an archive a recording of each is there before it goes; while that cannot be written, it stays.
What outlives them: how many there were by day, path and status, the audit log, and the times of
schedules.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime

import msgspec

from noetl.control.clock import Clock
from noetl.control.recordings import recorded
from noetl.control.records import no_execution, row_of
from noetl.errors import Conflict, NoetlError, NotFound, StoreError
from noetl.model.ids import ExecutionId
from noetl.model.retention import Keep
from noetl.store.archive import SUFFIX, Archive
from noetl.store.base import Store
from noetl.store.retention import Ended, Hold, Member

logger = logging.getLogger(__name__)

FIRST_SECONDS, EVERY_SECONDS = 60.0, 600.0
"""When a server looks for the first time, and how often from then on."""
EVENTS_AT_ONCE = 20_000
"""About so many events go in one transaction; an execution is never split."""
PAUSE_SECONDS = 0.05
"""Between transactions: what runs comes first."""
PAGE = 200
TREES_AT_ONCE = 20
"""Trees are looked at and removed together: one by one takes ten times as long. Not too many: each
may have a hundred thousand executions."""
LINGER_PART, LINGER_SECONDS = 0.1, 2 * 86400.0
"""How much longer than its retention time a tree may stay until its day is dropped: as a part of
that time, and at most."""


class Pruned(msgspec.Struct, kw_only=True):
    """What was removed, or would be."""

    trees: int = 0
    executions: int = 0
    events: int = 0
    by_path: Counter[str] = msgspec.field(default_factory=Counter)
    kept: Counter[str] = msgspec.field(default_factory=Counter)
    """Trees whose time was over, by what keeps them: `running`, `held`, `reused` or
    `not archived`."""


class Retention:
    """Decides what goes, and lets it go."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        keep: Keep,
        on_gone: Callable[[ExecutionId], None] | None = None,
        archive: Archive | None = None,
    ) -> None:
        """`on_gone` hears of each execution that is removed: some may be in memory."""
        self._store = store
        self._clock = clock
        self.keep = keep
        self._on_gone = on_gone
        self._archive = archive

    async def run(self) -> None:
        """Forget what is over, again and again, for ever."""
        pause = FIRST_SECONDS
        while True:
            await self._clock.sleep(pause)
            pause = EVERY_SECONDS
            try:
                pruned = await self.prune(lazily=True)
            except NoetlError as error:
                logger.warning("nothing can be forgotten just now: %s", error)
                continue
            if pruned.executions:
                logger.info("forgot %d executions in %d trees", pruned.executions, pruned.trees)

    async def prune(
        self, keep: Keep | None = None, *, dry_run: bool = False, lazily: bool = False
    ) -> Pruned:
        """Remove every tree whose time is over, by these rules or those of this installation.

        `lazily` leaves those that will soon go with their day.
        """
        pruned = Pruned()
        rules = keep or self.keep
        by_day = None
        if self._archive is None and self._store.retention.has_spans:
            by_day = rules.longest
        if by_day is not None and not dry_run:
            await self._drop_days(self._clock.now() - by_day, pruned)
        lingers = 0.0
        if by_day is not None and lazily:
            lingers = min(LINGER_PART * by_day, LINGER_SECONDS)
        async for roots in self._over(rules, lingers):
            await self._prune(roots, pruned, dry_run)
        if pruned.trees and not dry_run:
            await self._store.retention.forget_files()
        return pruned

    async def _prune(self, roots: Sequence[Ended], pruned: Pruned, dry_run: bool) -> None:
        """Remove those of these trees that may go: several in one transaction, or one."""
        trees = await self._store.retention.trees([root.execution_id for root in roots])
        events = sum(member.seq for tree in trees.values() for member in tree)
        if len(roots) > 1 and events > EVENTS_AT_ONCE and not dry_run:
            # Between two transactions something may come to stand on the trees of the second.
            half = len(roots) // 2
            await self._prune(roots[:half], pruned, dry_run)
            await self._prune(roots[half:], pruned, dry_run)
            return
        archived: set[ExecutionId] | None = None
        if self._archive is not None and not dry_run:
            archived = set()
            for root_id, tree in trees.items():
                if kept_by(tree) is None and await self._is_archived(self._archive, tree):
                    archived.add(root_id)
            # That took long, and meanwhile what keeps them may have come or gone.
            trees = await self._store.retention.trees(list(trees))
        going: list[Member] = []
        for root_id, tree in trees.items():
            reason = kept_by(tree)
            if reason is None and archived is not None and root_id not in archived:
                reason = "not archived"
            if reason is None:
                going += tree
            else:
                pruned.kept[reason] += 1
        gone = going if dry_run else await self._remove(going)
        ids = {member.execution_id for member in gone}
        removed = [root for root in roots if root.execution_id in ids]
        pruned.trees += len(removed)
        pruned.executions += len(gone)
        pruned.events += sum(member.seq for member in gone)
        pruned.by_path.update(root.path for root in removed)

    async def _drop_days(self, before: float, pruned: Pruned) -> None:
        """Remove the days of which every execution ended before this moment and may go."""
        store = self._store.retention
        for span in await store.spans(before=before, now=self._clock.now()):
            while gone := await store.forget_span(span):
                for one in gone:
                    pruned.executions += 1
                    pruned.trees += one.is_root
                    pruned.events += one.seq
                    if one.is_root:
                        pruned.by_path[one.path] += 1
                    if self._on_gone is not None:
                        self._on_gone(one.execution_id)
                await self._clock.sleep(PAUSE_SECONDS)

    async def _is_archived(self, archive: Archive, tree: Sequence[Member]) -> bool:
        """Record what is about to go; whether that is safely done."""
        try:
            for member in tree:
                await self._put(archive, member.execution_id)
        except (StoreError, NotFound) as error:
            logger.warning("an execution that cannot be archived is kept: %s", error)
            return False
        return True

    async def archive(self, execution_id: ExecutionId) -> list[str]:
        """Record an execution, with all that it called, in the archive; under which names."""
        archive = self.require_archive()
        tree = await self._store.retention.tree(execution_id)
        if not tree:
            raise no_execution(execution_id)
        if not all(member.has_ended for member in tree):
            raise Conflict(f"execution {execution_id} {_WHY['running']}")
        return [await self._put(archive, member.execution_id) for member in tree]

    @property
    def has_archive(self) -> bool:
        return self._archive is not None

    def require_archive(self) -> Archive:
        if self._archive is None:
            raise Conflict("there is no archive. Name a folder or a bucket with NOETL_ARCHIVE_URL.")
        return self._archive

    async def _put(self, archive: Archive, execution_id: ExecutionId) -> str:
        summary = await self._store.records.summary(execution_id)
        if summary is None:
            return ""  # Another server was faster, and archived it before.
        day = datetime.fromtimestamp(summary.requested_at, UTC).date().isoformat()
        name = f"{summary.path}/{day}/{execution_id}{SUFFIX}"
        try:
            await archive.put(name, await recorded(self._store, execution_id, self._clock.now()))
        except NotFound:
            if await self._store.records.summary(execution_id) is not None:
                raise
        return name

    async def delete(self, execution_id: ExecutionId) -> int:
        """Remove an execution with all that it called, whatever its age. Raises NotFound, and
        Conflict for what must stay.
        """
        summary = await row_of(self._store.records, execution_id)
        if summary.parent_execution_id is not None:
            raise Conflict(
                f"execution {execution_id} was called by {summary.parent_execution_id}, and is"
                " kept as long as that one. Delete that one."
            )
        tree = await self._store.retention.tree(execution_id)
        reason = kept_by(tree)
        if reason is not None:
            raise Conflict(f"execution {execution_id} {_WHY[reason]}")
        gone = await self._remove(tree)
        await self._store.retention.forget_files()
        return len(gone)

    async def hold(self, execution_id: ExecutionId, note: str, who: str) -> Hold:
        """Keep it until it is released, whatever its age. Without a note, one that it has stays."""
        wanted = Hold(execution_id, note, who, self._clock.now())
        if not await self._store.retention.hold(wanted):
            raise no_execution(execution_id)
        held = await self._store.retention.holds()
        return next((one for one in held if one.execution_id == execution_id), wanted)

    async def release(self, execution_id: ExecutionId) -> None:
        if not await self._store.retention.release(execution_id):
            raise NotFound(f"execution {execution_id} is not held.")

    async def _over(self, keep: Keep, lingers: float) -> AsyncIterator[list[Ended]]:
        """Executions that nobody called and whose time is over, a few at a time, oldest first under
        each rule; under the longest rule for so many seconds."""
        now = self._clock.now()
        for rule in keep.rules:
            if rule.seconds is None:
                continue
            before = now - rule.seconds
            if rule.seconds == keep.longest:
                before -= lingers
            last: Ended | None = None
            while page := await self._store.retention.ended(
                before=before, prefix=rule.prefix, after=last, limit=PAGE
            ):
                over = [one for one in page if keep.rule_for(one.path, one.status) is rule]
                for first in range(0, len(over), TREES_AT_ONCE):
                    yield over[first : first + TREES_AT_ONCE]
                last = page[-1]

    async def _remove(self, members: Sequence[Member]) -> list[Member]:
        """Remove them, in the order given. Returns which were removed."""
        gone: set[ExecutionId] = set()
        for part in _parts(members):
            if gone:
                await self._clock.sleep(PAUSE_SECONDS)
            gone.update(await self._store.retention.forget(part))
            if self._on_gone is not None:
                for execution_id in part:
                    self._on_gone(execution_id)
        return [member for member in members if member.execution_id in gone]


_WHY = {
    "running": "has not ended, or something that it called has not. Cancel it first.",
    "held": "is held. Release it first: `noetl executions release`.",
    "reused": "has results that a rerun or fork of it stands on. Delete that one first.",
}


def kept_by(tree: Sequence[Member]) -> str | None:
    """Why a tree must stay, whatever its age; None if it may go."""
    if not all(member.has_ended for member in tree):
        return "running"
    if any(member.is_held for member in tree):
        return "held"
    if any(member.is_reused for member in tree):
        return "reused"
    return None


def _parts(members: Sequence[Member]) -> list[list[ExecutionId]]:
    """The executions to remove in one transaction each, in the order given."""
    parts: list[list[ExecutionId]] = []
    room = 0
    for member in members:
        if member.seq > room:
            parts.append([])
            room = max(EVENTS_AT_ONCE, member.seq)
        parts[-1].append(member.execution_id)
        room -= member.seq
    return parts
