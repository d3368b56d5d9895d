"""How long to wait before trying again. Jitter is derived, not drawn: replay agrees."""

from __future__ import annotations

from hashlib import blake2b

from noetl.model.net import Retry

DELAY_MAX = 7 * 24 * 3600.0
"""Nobody waits longer than a week by accident of arithmetic."""


def wait_before(
    action: Retry,
    attempt: int,
    *,
    delay: float,
    max_delay: float | None,
    multiplier: float,
    retry_after: float | None,
    seed: str,
) -> float:
    """Seconds to wait after failed try number `attempt`.

    What the other side asks for (`Retry-After`) is the least we wait.
    """
    match action.backoff:
        case "none":
            waited = 0.0
        case "linear":
            waited = delay * attempt
        case "exponential":
            waited = _grown(delay, multiplier, attempt - 1)
        case _:
            waited = delay
    if max_delay is not None:
        waited = min(waited, max_delay)
    if action.jitter:
        waited *= 0.5 + 0.5 * _fraction(seed, attempt)
    return min(max(waited, retry_after or 0.0), DELAY_MAX)


def _grown(delay: float, multiplier: float, times: int) -> float:
    try:
        return min(delay * float(multiplier) ** times, DELAY_MAX)
    except OverflowError:
        return DELAY_MAX


def _fraction(seed: str, attempt: int) -> float:
    digest = blake2b(f"{seed}\x1f{attempt}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") / 2**32
