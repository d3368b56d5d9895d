"""How much tests try: a little in `make test`, ten times as much in `make test-long`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hypothesis import settings

IS_LONG = os.environ.get("EFFORT") == "long"
TIMES = 10 if IS_LONG else 1


def generated(examples: int, long: int | None = None) -> settings:
    """So many examples, however long each of them takes; `long` of them in `make test-long`."""
    # Half a second for whoever asks only how much to try.
    from hypothesis import HealthCheck, settings

    count = long if IS_LONG and long is not None else examples * TIMES
    return settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))


def later(cases: Iterable[Any]) -> list[Any]:
    """Cases for `parametrize` that prove again what others prove: in `make test-long` only."""
    return [pytest.param(case, marks=pytest.mark.long) for case in cases]
