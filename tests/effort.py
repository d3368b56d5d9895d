"""How much tests try: a little in `make test`, ten times as much in `make test-long`."""

from __future__ import annotations

import os
import random
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


def sample(count: int, cases: Iterable[Any]) -> list[Any]:
    """Cases for `parametrize`: always the same `count` of them in `make test`, all in the long one.

    For families whose members go through the same code in other words. What stands for a behaviour
    of its own is not sampled.
    """
    found = list(cases)
    kept = set(random.Random(0).sample(range(len(found)), min(count, len(found))))
    return [
        case if number in kept else pytest.param(case, marks=pytest.mark.long)
        for number, case in enumerate(found)
    ]
