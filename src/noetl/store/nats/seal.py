"""What we write to NATS is signed; what others write there is not believed.

The signature is the last field of a JSON object, so that what is written stays readable. It says
who wrote something, not when: what is put back by somebody is as true as it was, no truer.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence

_FIELD, _END = b',"seal":"', b'"}'
_SUFFIX = len(_FIELD) + 2 * hashlib.sha256().digest_size + len(_END)


class Seal:
    """Signs with the first key, believes any of them: keys are rotated while servers run."""

    def __init__(self, keys: Callable[[], Sequence[bytes]], purpose: str) -> None:
        self._keys = keys
        self._purpose = purpose.encode()

    def closed(self, body: bytes) -> bytes:
        """A JSON object that has at least one field, with a signature as its last."""
        return body[:-1] + _FIELD + self._signature(self._keys()[0], body) + _END

    def opened(self, sealed: bytes) -> bytes | None:
        """The object as it was signed; None if none of our keys signed it."""
        body, suffix = sealed[:-_SUFFIX] + b"}", sealed[-_SUFFIX:]
        for key in self._keys():
            expected = _FIELD + self._signature(key, body) + _END
            if hmac.compare_digest(suffix, expected):
                return body
        return None

    def _signature(self, key: bytes, body: bytes) -> bytes:
        own = hmac.digest(key, b"noetl-seal:" + self._purpose, "sha256")
        return hmac.digest(own, body, "sha256").hex().encode()
