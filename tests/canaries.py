"""Where a secret might have got to: each form of it, looked for in files and answers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import quote, quote_plus

SHORTEST = 6
"""A shorter piece of base64 may stand anywhere by chance."""


@cache
def forms(secret: str) -> set[bytes]:
    """As it is, and as it travels: in addresses, in JSON, in base64, in hex, in source code."""
    data = secret.encode()
    texts = {
        secret,
        quote(secret),
        quote(secret, safe=""),
        quote_plus(secret),
        quote(secret.encode("latin-1"), safe=""),
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        secret.encode("unicode_escape").decode(),
        data.hex(),
        data.hex().upper(),
    }
    return {text.encode() for text in (*texts, *_inside_base64(data))}


def _inside_base64(data: bytes) -> Iterator[str]:
    """What its base64 has in common whatever stands before and behind it."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for before in range(3):
            one, other = (
                encode(filler * before + data + filler * 3).decode() for filler in (b"\0", b"\xff")
            )
            same = "".join(a if a == b else " " for a, b in zip(one, other, strict=True))
            yield from (piece for piece in same.split() if len(piece) >= SHORTEST)


def leaks(data: bytes, *secrets: str) -> list[str]:
    """The forms of these secrets that stand in there."""
    return [form.decode() for secret in secrets for form in forms(secret) if form in data]


def assert_clean(secrets: tuple[str, ...], *places: Path | str | bytes) -> None:
    """No form of a secret in these texts, nor in any file below these folders."""
    for place in places:
        if isinstance(place, Path):
            for path in place.rglob("*"):
                if path.is_file():
                    assert leaks(path.read_bytes(), *secrets) == [], path
        else:
            data = place.encode("utf-8", "surrogatepass") if isinstance(place, str) else place
            assert leaks(data, *secrets) == [], data[:2000]
