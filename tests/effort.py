"""How much tests generate: a little in `make test`, ten times as much in `make test-long`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

TIMES = 10 if os.environ.get("EFFORT") == "long" else 1


def generated(examples: int) -> settings:
    """So many examples, however long each of them takes."""
    return settings(
        max_examples=examples * TIMES, deadline=None, suppress_health_check=list(HealthCheck)
    )
