"""How long to wait before the next try."""

from __future__ import annotations

from typing import Any

import pytest

from noetl.engine.pipeline.actions import DELAY_MAX, wait_before
from noetl.model.net import Retry


def waits(backoff: Any, tries: int = 4, **settings: Any) -> list[float]:
    jitter = settings.pop("jitter", False)
    given: dict[str, Any] = {
        "delay": 2.0,
        "max_delay": None,
        "multiplier": 2.0,
        "retry_after": None,
        "seed": "s",
        **settings,
    }
    action = Retry(backoff=backoff, jitter=jitter)
    return [wait_before(action, attempt, **given) for attempt in range(1, tries + 1)]


@pytest.mark.parametrize(
    ("backoff", "settings", "expected"),
    [
        ("none", {}, [0, 0, 0, 0]),
        ("fixed", {}, [2, 2, 2, 2]),
        ("linear", {}, [2, 4, 6, 8]),
        ("exponential", {}, [2, 4, 8, 16]),
        ("exponential", {"multiplier": 3.0}, [2, 6, 18, 54]),
        ("exponential", {"max_delay": 5.0}, [2, 4, 5, 5]),
        ("linear", {"max_delay": 5.0}, [2, 4, 5, 5]),
        ("fixed", {"max_delay": 1.0}, [1, 1, 1, 1]),
        ("exponential", {"delay": 0}, [0, 0, 0, 0]),
        ("none", {"retry_after": 7.0}, [7, 7, 7, 7]),
        ("linear", {"retry_after": 5.0}, [5, 5, 6, 8]),
        ("fixed", {"retry_after": 9.0, "max_delay": 3.0}, [9, 9, 9, 9]),
        ("fixed", {"retry_after": 1e12}, [DELAY_MAX] * 4),
    ],
)
def test_each_backoff_waits_as_the_table_says(
    backoff: str, settings: dict[str, Any], expected: list[float]
) -> None:
    assert waits(backoff, **settings) == expected


@pytest.mark.parametrize("multiplier", [2, 2.0, 1e300, 10**400])
def test_no_exponent_is_too_large_to_be_computed(multiplier: float) -> None:
    assert waits("exponential", 3000, multiplier=multiplier)[-1] == DELAY_MAX


def test_jitter_takes_up_to_half_and_is_the_same_again() -> None:
    first = waits("fixed", 50, jitter=True)

    assert first == waits("fixed", 50, jitter=True)
    assert all(1.0 <= wait <= 2.0 for wait in first)
    assert len(set(first)) > 40
    assert first != waits("fixed", 50, jitter=True, seed="another")
