"""`noetl` that misses a dead server soon, and that may be killed once it has stored the end of an
execution, before it tells anybody (`DIES_AT_THE_END`: `alone` or `beside another`)."""

from __future__ import annotations

import os
import signal

from noetl.cli import main
from noetl.control import traces
from noetl.control.commit_loop import CommitLoop


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    traces.RENEW_SECONDS, traces.GONE_SECONDS = 0.3, 3.0
    dies = os.environ.get("DIES_AT_THE_END")
    if dies == "alone":
        # Nobody misses it while it is there, and what it wrote at first has to be enough.
        traces.RENEW_SECONDS = 3600.0
    if dies:
        CommitLoop._tell_end = die  # type: ignore[method-assign]
    main()
