"""The services that the examples of the documents talk to, on this machine.

`README.md` beside this file lists the requests and their answers. Each instance remembers what it
was asked, and begins anew: what fails at first (`/flaky`, `/status`) does so for every run.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

PAGES = 3
FAILURES_FIRST = 2

Answer = tuple[int, Any]


class Asked(NamedTuple):
    """One request: method, path with its query, the decoded body, and its idempotency key."""

    method: str
    path: str
    body: Any
    key: str | None


class Services:
    """What is behind the address, and what has been asked of it."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def answer(self, method: str, target: str, body: Any, key: str | None = None) -> Answer:
        """The answer to one request. Requests are counted by path."""
        parts = urlsplit(target)
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        with self._lock:
            self.asked.append(Asked(method, target, body, key))
            self._counts[parts.path] += 1
            count = self._counts[parts.path]
        return self._of(parts.path, query, count)

    def _of(self, path: str, query: dict[str, str], count: int) -> Answer:
        match path:
            case "/items":
                return 200, _items(int(query.get("page", 1)), int(query.get("pageSize", 10)))
            case "/pages":
                page = int(query.get("page", 1))
                return 200, {"items": [page], "page": page, "has_more": page < PAGES}
            case "/flaky":
                return (503, {"sorry": count}) if count <= FAILURES_FIRST else (200, {"try": count})
            case "/busy":
                return (429, {"sorry": count}) if count < FAILURES_FIRST else (200, {"try": count})
            case "/status":
                return 200, {"status": "pending" if count <= FAILURES_FIRST else "ready"}
            case "/missing":
                return 404, {"missing": True}
            case _:
                return 200, {"path": path, **query}


def _items(page: int, size: int) -> dict[str, Any]:
    paging = {"hasMore": page < PAGES, "page": page, "pageSize": size}
    return {"data": [{"id": page * 10 + number} for number in range(2)], "paging": paging}


class _Handler(BaseHTTPRequestHandler):
    services: Services

    def _serve(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(raw) if raw else None
        key = self.headers.get("Idempotency-Key")
        status, answer = self.services.answer(self.command, self.path, body, key)
        encoded = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if status == 429:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    do_GET = do_POST = do_PUT = _serve  # noqa: N815  the library's names

    def log_message(self, *_: object) -> None:
        """Requests are in `asked`; nothing needs to be printed."""


@contextmanager
def serving(services: Services) -> Iterator[str]:
    """The address at which these services answer, for as long as the body lasts."""
    handler = type("Handler", (_Handler,), {"services": services})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
