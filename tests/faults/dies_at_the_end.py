"""`noetl` that misses a dead server soon, and that may be killed once it has stored the end of an
execution, before it tells anybody (`DIES_AT_THE_END`: `alone` or `beside another`)."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

from noetl.cli import main
from noetl.control import traces
from noetl.store.log import Write
from noetl.store.postgres.log import PostgresLog
from noetl.store.sqlite.log import SqliteLog


def die_with_the_end(log: type[SqliteLog] | type[PostgresLog]) -> None:
    commit = log.commit

    async def last(self: Any, writes: Sequence[Write], **options: Any) -> list[str]:
        moved = await commit(self, writes, **options)
        if any(write.summary is not None and write.summary.ended_at for write in writes):
            os.kill(os.getpid(), signal.SIGKILL)
        return moved

    log.commit = last  # type: ignore[method-assign]


if __name__ == "__main__":
    traces.RENEW_SECONDS, traces.GONE_SECONDS = 0.3, 3.0
    dies = os.environ.get("DIES_AT_THE_END")
    if dies == "alone":
        # Nobody misses it while it is there, and what it wrote at first has to be enough.
        traces.RENEW_SECONDS = 3600.0
    if dies:
        die_with_the_end(SqliteLog)
        die_with_the_end(PostgresLog)
    main()
