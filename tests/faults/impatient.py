"""`noetl` with short leases: tests need not wait half a minute for the work of a dead worker."""

from __future__ import annotations

from noetl import serving
from noetl.cli import main
from noetl.control.orchestrator import Orchestrator
from noetl.worker import worker

LEASE_SECONDS = 4.0


def shorten(function: object, **defaults: float) -> None:
    """Other defaults for named arguments."""
    function.__kwdefaults__.update(defaults)  # type: ignore[attr-defined]


if __name__ == "__main__":
    shorten(Orchestrator.__init__, lease_seconds=LEASE_SECONDS)
    shorten(worker.Worker.__init__, renew_every=LEASE_SECONDS / 4)
    # As with those that users have: whoever is frozen no longer asks for work when its leases
    # lapse, and is not given what it has just lost.
    worker.LEASE_WAIT = LEASE_SECONDS / 3
    serving.RETURN_SECONDS = LEASE_SECONDS
    main()
