"""Triggers: when each is due, and the outcome of each time and each message.

A row belongs to a document, or to one item of it (`key`). A change names the revision that was
read: if the row has moved, nothing is written. The start of an execution can carry such a change
(`Write.trigger`); then both are written, or neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from noetl.model.ids import ExecutionId
from noetl.model.triggers import TriggerChange, TriggerMessage, TriggerRow, TriggerTime
from noetl.store.database import Database, Transaction, Undo

Renewed = Callable[[int, TriggerRow | None], TriggerRow]
"""The row of a registered document, given its catalog version and the previous row."""


class Triggers:
    """Documents that start executions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, path: str, key: str = "") -> TriggerRow | None:
        """One row."""
        return await self._database.row("trigger", TriggerRow, path=path, key=key)

    async def of_kind(
        self, kind: str, *, prefix: str = "", after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> list[TriggerRow]:
        """Rows of a kind by path and key, after `after`."""
        path, key = after
        return await self._database.rows(
            "triggers", TriggerRow, kind=kind, prefix=prefix, path=path, key=key, limit=limit
        )

    async def due(self, *, now: float, limit: int = 100) -> list[TriggerRow]:
        """Rows that are due, earliest first. Changes nothing."""
        return await self._database.rows("due_triggers", TriggerRow, now=now, limit=limit)

    async def next_due(self) -> float | None:
        """When the next row is due."""
        [found] = await self._database.column("next_trigger")
        return None if found is None else float(found)

    async def change(self, decided: TriggerChange) -> bool:
        """Write it. Returns False, and changes nothing, if the row has moved or a message is
        known.
        """

        async def write(db: Transaction) -> bool:
            if not await write_change(db, decided):
                raise Undo(False)
            return True

        return await self._database.together(write)

    async def forget(self, path: str, kind: str) -> None:
        """Remove the rows of that kind which belong to a document; its own row stays."""
        await self._database.change("forget_triggers", path=path, kind=kind)

    async def times(
        self, path: str, *, before: float = float("inf"), limit: int = 100
    ) -> list[TriggerTime]:
        """Outcomes of times before that, newest first."""
        return await self._database.rows(
            "trigger_times", TriggerTime, path=path, before=before, limit=limit
        )

    async def last_times(self, paths: Sequence[str], *, limit: int = 1) -> list[TriggerTime]:
        """The outcomes of the newest times of each of these documents, in any order."""
        return await self._database.rows("last_times", TriggerTime, paths=list(paths), limit=limit)

    async def times_between(self, path: str, first: float, last: float) -> list[TriggerTime]:
        """Outcomes of the times from the first to the last, in order."""
        return await self._database.rows(
            "trigger_times_between", TriggerTime, path=path, first=first, last=last
        )

    async def buffered(self, path: str, *, limit: int = 100) -> list[TriggerTime]:
        """Times that wait for their turn, oldest first."""
        return await self._database.rows("buffered_times", TriggerTime, path=path, limit=limit)


async def write_change(db: Transaction, decided: TriggerChange) -> bool:
    """Write a decision. Returns False if what it wrote must be undone: the row has moved, or a
    message is known.
    """
    if decided.row is not None and not await write_row(db, decided.row, gone=decided.gone):
        return False
    if decided.times:
        await db.change_all("put_trigger_time", [_plain(one) for one in decided.times])
    if decided.messages:
        messages = [_plain(one) for one in decided.messages]
        if await db.change_all("put_trigger_message", messages) != len(messages):
            return False
    if decided.rows:
        await db.change_all("insert_trigger", decided.rows)
    return True


def _plain(told: TriggerTime | TriggerMessage) -> TriggerTime | TriggerMessage:
    # Text of PostgreSQL cannot contain NUL.
    return msgspec.structs.replace(told, reason=told.reason.replace("\0", "\ufffd"))


async def write_row(db: Transaction, row: TriggerRow, *, gone: bool = False) -> bool:
    """Write the row of a decision, or remove it. Returns False if it has moved."""
    name = "delete_trigger" if gone else "update_trigger"
    if row.revision == 0:
        name = "insert_trigger"
    return await db.change(name, **msgspec.structs.asdict(row)) == 1


async def locked_row(db: Transaction, path: str) -> TriggerRow | None:
    """The row of a document, which nobody else changes until the transaction ends."""
    await db.lock("lock_trigger", path=path, key="")
    return await db.row("trigger", TriggerRow, path=path, key="")


class Messages:
    """Messages that start executions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(
        self, path: str, *, before: float = float("inf"), limit: int = 100
    ) -> list[TriggerMessage]:
        """Outcomes of messages before that, newest first."""
        return await self._database.rows(
            "trigger_messages", TriggerMessage, path=path, before=before, limit=limit
        )

    async def known(self, path: str, ids: Sequence[str]) -> set[str]:
        """Those of these messages whose outcome is stored."""
        return set(await self._database.column("known_messages", path=path, ids=list(ids)))

    async def open(self, path: str, *, limit: int = 1000) -> list[ExecutionId]:
        """Executions started by messages that have not ended, oldest first."""
        return await self._database.column("open_messages", path=path, limit=limit)

    async def rename(self, path: str, old: str, new: str, *, limit: int = 1000) -> int:
        """Give messages whose ids begin with `old` ids that begin with `new` instead; one that is
        known under its new id keeps the old. Returns how many got one."""
        behind = old[:-1] + chr(ord(old[-1]) + 1)
        return await self._database.change(
            "rename_messages", path=path, old=old, behind=behind, new=new, limit=limit
        )

    async def forget(self, path: str, ids: Sequence[str]) -> None:
        """These messages can never come again."""
        await self._database.change("forget_messages", path=path, ids=list(ids))

    async def forget_old(self, path: str, *, before: float) -> None:
        """Messages before that can never come again."""
        await self._database.change("forget_old_messages", path=path, before=before)
