"""How much tests try: a little in `make test`, ten times as much in `make test-long`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

IS_LONG = os.environ.get("EFFORT") == "long"
TIMES = 10 if IS_LONG else 1


def generated(examples: int) -> settings:
    """So many examples, however long each of them takes."""
    return settings(
        max_examples=examples * TIMES, deadline=None, suppress_health_check=list(HealthCheck)
    )


def later(cases: Iterable[Any]) -> list[Any]:
    """Cases for `parametrize` that prove again what others prove: in `make test-long` only."""
    return [pytest.param(case, marks=pytest.mark.long) for case in cases]
