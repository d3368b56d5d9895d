"""The pages of the web UI: files that `make ui` built from `ui/`, served as they are.

The files are kept compressed and carry the hash of their content in their names, so a browser keeps
them for ever. The page that names them is small and requested each time. It names them relative to
its own address, so it works below any path prefix that a proxy removes.

The pages hold no data, so anyone may load them; what they show comes from the API.
"""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import NamedTuple

import msgspec

ASSETS = Path(__file__).parent / "assets"
PREFIX = "/ui/"
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self' data:; base-uri 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'"
)
FOR_EVER = (b"cache-control", b"public, max-age=31536000, immutable")
ASK_AGAIN = (b"cache-control", b"no-cache")
VARIES = (b"vary", b"Accept-Encoding")
UP = "%UP%"
"""The page's placeholder for the relative path from its address up to the root."""


class Manifest(msgspec.Struct, frozen=True):
    """What `make ui` wrote."""

    source: str
    """The digest of the source that the files were built from."""
    screens: tuple[str, ...]
    """First words of the addresses that lead to the page."""
    files: dict[str, str]
    """Media types by file name."""


class Page(NamedTuple):
    """An answer for a browser."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    template: str
    """What metrics call it."""


class Pages:
    """Answers what a browser asks for before it asks the API."""

    def __init__(self, folder: Path = ASSETS) -> None:
        self._manifest = msgspec.json.decode((folder / "manifest.json").read_bytes(), type=Manifest)
        self._page = (folder / "page.html").read_text()
        # All files are in memory (half a megabyte): installing another version under a running
        # server removes none that its page names.
        self._packed = {
            file: (folder / file).read_bytes()
            for name in self._manifest.files
            for file in (f"{name}.br", f"{name}.gz")
        }

    def find(self, path: str, headers: dict[bytes, bytes]) -> Page | None:
        """The page or the file at that path; None if there is none, and the API is meant."""
        known = headers.get(b"if-none-match", b"")
        if path.startswith(PREFIX):
            name = path.removeprefix(PREFIX)
            if name not in self._manifest.files:
                return None
            return self._asset(name, headers.get(b"accept-encoding", b""), known)
        word, _, rest = path.removeprefix("/").partition("/")
        if word not in self._manifest.screens or (not word and rest):
            return None
        return self._shell(path, known)

    def missing(self, path: str, headers: dict[bytes, bytes]) -> Page | None:
        """For a browser at an address that leads nowhere: the page, which says so. None for other
        clients, and below the API's addresses.
        """
        if path.startswith((PREFIX, "/api/")) or b"text/html" not in headers.get(b"accept", b""):
            return None
        return self._shell(path, b"")._replace(status=404)

    def _shell(self, path: str, known: bytes) -> Page:
        up = "../" * (path.count("/") - 1) or "./"
        body = self._page.replace(UP, up).encode()
        tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'.encode()
        headers = [
            (b"content-type", b"text/html; charset=utf-8"),
            (b"content-security-policy", CSP.encode()),
            (b"referrer-policy", b"same-origin"),
            (b"etag", tag),
            ASK_AGAIN,
        ]
        return _unless_known(Page(200, headers, body, "(page)"), tag, known)

    def _asset(self, name: str, accepted: bytes, known: bytes) -> Page:
        coding = next((one for one in ("br", "gzip") if _takes(accepted, one)), "")
        tag = f'"{name}-{coding or "plain"}"'.encode()
        headers = [
            (b"content-type", self._manifest.files[name].encode()),
            (b"etag", tag),
            FOR_EVER,
            VARIES,
        ]
        if coding:
            headers.append((b"content-encoding", coding.encode()))
        body = self._packed[f"{name}.br" if coding == "br" else f"{name}.gz"]
        if not coding:
            body = gzip.decompress(body)
        return _unless_known(Page(200, headers, body, "(file)"), tag, known)


def _takes(accepted: bytes, coding: str) -> bool:
    """Whether a client that sends this `Accept-Encoding` can read that coding."""
    for one in accepted.decode("latin-1").lower().split(","):
        name, _, weight = one.partition(";")
        if name.strip() == coding:
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def is_known(tag: bytes, known: bytes) -> bool:
    """Whether a client that sends this `If-None-Match` has the content with that tag."""
    tags = [one.strip().removeprefix(b"W/") for one in known.split(b",")]
    return tag in tags or b"*" in tags


def _unless_known(page: Page, tag: bytes, known: bytes) -> Page:
    if is_known(tag, known):
        kept = [one for one in page.headers if one[0] not in (b"content-type", b"content-encoding")]
        return Page(304, kept, b"", page.template)
    return page
