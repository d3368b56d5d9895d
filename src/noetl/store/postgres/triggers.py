"""Changes of triggers in PostgreSQL. The promise is written in `noetl.store.triggers`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from noetl.model.triggers import TriggerChange, TriggerMessage, TriggerTime
from noetl.store.database import Transaction
from noetl.store.postgres.database import Undo
from noetl.store.triggers import Triggers, write_row


class PostgresTriggers(Triggers):
    """See `noetl.store.triggers.Triggers`."""

    async def change(self, decided: TriggerChange) -> bool:
        async def write(db: Transaction) -> bool:
            if not await write_change(db, decided):
                raise Undo(False)
            return True

        return await self._database.together(write)


async def write_change(db: Transaction, decided: TriggerChange) -> bool:
    """Write a decision within the open transaction. Returns False if that must be undone: the row
    has moved, or a message is known.
    """
    if decided.row is not None and not await write_row(db, decided.row, gone=decided.gone):
        return False
    if decided.times:
        await db.change("put_trigger_times", times=_plain(decided.times))
    if decided.messages:
        new = await db.change("put_trigger_messages", messages=_plain(decided.messages))
        if new != len(decided.messages):
            return False
    for row in decided.rows:
        await db.change("insert_trigger", **msgspec.structs.asdict(row))
    return True


def _plain(found: Sequence[TriggerTime] | Sequence[TriggerMessage]) -> str:
    # PostgreSQL text cannot contain NUL.
    return msgspec.json.encode(
        [msgspec.structs.replace(one, reason=one.reason.replace("\0", "\ufffd")) for one in found]
    ).decode()
