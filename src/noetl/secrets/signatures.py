"""Whether the sender of a hook delivery knows its secret.

Everything is compared in constant time and over the raw body. The answer is yes or no; the reason
is not revealed. `may_be_genuine` looks at headers alone, so that most of what strangers send is
refused before its body is read.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Iterable, Mapping

from noetl.model.triggers import Verify

_PART = re.compile(rb"\{(body|timestamp|id)\}")
_DIGITS = re.compile(r"[0-9]{1,13}")
MILLISECONDS = 100_000_000_000
"""Larger timestamps count milliseconds."""
SIGNATURES_MAX = 20
"""How many signatures of one delivery are checked: senders that rotate their secrets send two."""
STANDARD_PREFIX = "whsec_"

Headers = Mapping[str, str]


def may_be_genuine(verify: Verify, headers: Headers, secrets: Iterable[str], now: float) -> bool:
    """Whether it may be genuine, by its headers alone. A token is in them, so that is final."""
    if verify.scheme == "none":
        return True
    given = headers.get(verify.header, "")
    if not given:
        return False
    if verify.scheme == "token":
        shown = given[7:] if given[:7].lower() == "bearer " else given
        return any(_equal(shown.strip().encode(), one.encode()) for one in secrets)
    if verify.scheme == "stripe":
        times = _of_stripe(given, "t") or [""]
        return bool(_of_stripe(given, "v1")) and _is_recent(times[0], verify, now)
    if verify.scheme == "hmac" and not given.startswith(verify.prefix):
        return False
    if verify.scheme == "standard-webhooks" and not headers.get(verify.id):
        return False
    return not verify.timestamp or _is_recent(headers.get(verify.timestamp, ""), verify, now)


def is_genuine(
    verify: Verify, headers: Headers, body: bytes, secrets: Iterable[str], now: float
) -> bool:
    """Whether the delivery was signed with one of the secrets, not too long ago."""
    known = [one for one in secrets if one]
    if not may_be_genuine(verify, headers, known, now):
        return False
    if verify.scheme in ("none", "token"):
        return True
    given = headers.get(verify.header, "")
    if verify.scheme == "stripe":
        message = _of_stripe(given, "t")[0].encode() + b"." + body
        shown = [_decoded(one, "hex") for one in _of_stripe(given, "v1")]
        return _any_matches(message, shown, [one.encode() for one in known], "sha256")
    message = _signed(verify, headers, body)
    if verify.scheme == "standard-webhooks":
        several = [one.partition(",") for one in given.split(" ")[:SIGNATURES_MAX]]
        shown = [_decoded(one, "base64") for version, _, one in several if version == "v1"]
        keys = [_decoded(one.removeprefix(STANDARD_PREFIX), "base64") for one in known]
        return _any_matches(message, shown, keys, "sha256")
    shown = [_decoded(given.removeprefix(verify.prefix), verify.encoding)]
    return _any_matches(message, shown, [one.encode() for one in known], verify.algorithm)


def _any_matches(message: bytes, shown: list[bytes], keys: list[bytes], algorithm: str) -> bool:
    found = False
    for key in keys:
        if not key:
            continue
        expected = hmac.digest(key, message, algorithm)
        for one in shown:
            found |= _equal(expected, one)
    return found


def _equal(one: bytes, other: bytes) -> bool:
    return hmac.compare_digest(one, other)


def _signed(verify: Verify, headers: Headers, body: bytes) -> bytes:
    """The bytes that are signed. Braces in a body mean nothing."""
    if verify.signed == "{body}":
        return body
    values = {
        b"body": body,
        b"timestamp": headers.get(verify.timestamp, "").encode("latin-1"),
        b"id": headers.get(verify.id, "").encode("latin-1"),
    }
    parts = _PART.split(verify.signed.encode())
    return b"".join(values[part] if odd % 2 else part for odd, part in enumerate(parts))


def _decoded(written: str, encoding: str) -> bytes:
    """The bytes of a signature or key; empty, which matches nothing, if it is none."""
    try:
        if encoding == "hex":
            return bytes.fromhex(written)
        return base64.b64decode(written, validate=True)
    except (ValueError, binascii.Error):
        return b""


def _of_stripe(header: str, name: str) -> list[str]:
    """The values of that name in `t=…,v1=…,v1=…`."""
    pairs = (part.strip().partition("=") for part in header.split(",")[:SIGNATURES_MAX])
    return [value for given, _, value in pairs if given == name]


def _is_recent(written: str, verify: Verify, now: float) -> bool:
    if not _DIGITS.fullmatch(written):
        return False
    at = float(written)
    if at >= MILLISECONDS:
        at /= 1000
    return abs(now - at) <= verify.tolerance
