"""A process that commits round after round and says so, until it is killed.

Round r writes events 2r - 1 and 2r of three executions, a command and a variable, in one commit;
four such groups of executions are written at the same time. Prints `group round` once a commit
has been acknowledged.
"""

from __future__ import annotations

import asyncio
import sys

from noetl.store.sqlite import SqliteStore
from tests.store.making import events, free, summary
from tests.store.making import more as write

GROUPS = 4
MEMBERS = 3


def member(group: int, number: int) -> str:
    return str(1000 + group * 10 + number)


async def rounds_done(store: SqliteStore, execution_id: str) -> int:
    return len(await store.log.events(execution_id, limit=1_000_000)) // 2


async def write_group(store: SqliteStore, group: int) -> None:
    done = await rounds_done(store, member(group, 0))
    while True:
        done += 1
        writes = [
            write(
                2 * done - 2,
                execution_id,
                events=events(2 * done - 1, 2 * done),
                commands=free(f"command {done}", execution_id=execution_id),
                closed=[f"command {done - 1}"],
                vars={"round": b"%d" % done},
                summary=summary(execution_id),
            )
            for execution_id in (member(group, number) for number in range(MEMBERS))
        ]
        moved = await store.log.commit(writes)
        assert moved == []
        print(group, done, flush=True)


async def main(path: str) -> None:
    store = await SqliteStore.open(path)
    print("ready", flush=True)
    await asyncio.gather(*(write_group(store, group) for group in range(GROUPS)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
