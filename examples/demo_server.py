"""A small shop, travel agency and job queue on this machine, for the examples to talk to.

    python examples/demo_server.py                     serves http://127.0.0.1:8765 until Ctrl-C
    python examples/demo_server.py COMMAND ARGUMENT…   serves while the command runs

In arguments `{url}` stands for the server's address. Its answers depend only on what was asked
before, so that a run can be repeated: the first question for every third page is refused with 429,
a job is done when it has been asked about three times, no car is ever free in Atlantis.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

PORT = 8765
CITIES = ("Oslo", "Lisbon", " nairobi", "LIMA", "Kyoto ")
ORDERS = 250
STOCK = {"hotels": 120, "rooms": 430}
HOTELS = {"Oslo": ("fjord", "north"), "Lisbon": ("tejo",)}
ROOMS = {"fjord": 5, "north": 2, "tejo": 3}
DEGREES = {"Oslo": 4.5, "Lisbon": 21.0, "Nairobi": 24.5}
RATES = {"EUR": 1, "NOK": 11.5, "USD": 1.1}
ASKS_UNTIL_DONE = 3
DEMO_TOKEN = "demo-token-47110815"  # noqa: S105 - it opens nothing but this toy
FLIGHTS_TOKEN = "flights-token-47110815"  # noqa: S105 - nor does this


class Question(NamedTuple):
    """One request, and what the way to its answer needs of it."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    words: tuple[str, ...] = ()

    def number(self, name: str, default: int) -> int:
        return int(self.query.get(name, default))


class Refusal(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}


class Demo:
    """All that the server remembers."""

    def __init__(self, *, retry_after: int = 1) -> None:
        self.retry_after = retry_after
        self.asked: list[Question] = []
        self.bookings: dict[str, Any] = {}
        self._refused: set[tuple[str, int]] = set()
        self._jobs: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def answer(self, question: Question) -> Any:
        with self._lock:
            self.asked.append(question)
        for method, pattern, make in ROUTES:
            found = re.fullmatch(pattern, question.path)
            if found and method == question.method:
                return make(self, question._replace(words=tuple(map(unquote, found.groups()))))
        raise Refusal(404, f"there is nothing at {question.path}")

    # --- The shop: lists in pages ---

    def orders(self, question: Question) -> Any:
        page, size = question.number("page", 1), question.number("size", 100)
        self._be_busy("/orders", page)
        numbers = range((page - 1) * size + 1, min(page * size, ORDERS) + 1)
        return {
            "orders": [
                {"id": n, "city": CITIES[n % 5], "cents": 0 if n % 50 == 0 else 100 + n}
                for n in numbers
            ],
            "page": page,
            "has_more": page * size < ORDERS,
        }

    def stock(self, question: Question) -> Any:
        name = question.words[0]
        page, size = question.number("page", 1), question.number("pageSize", 50)
        if name not in STOCK:
            raise Refusal(404, f"there is no list of {name}")
        self._be_busy(f"/stock/{name}", page)
        numbers = range((page - 1) * size, min(page * size, STOCK[name]))
        return {
            "items": [{"item_id": f"{name}-{n}", "place": n} for n in numbers],
            "paging": {"page": page, "hasMore": page * size < STOCK[name]},
        }

    def _be_busy(self, name: str, page: int) -> None:
        with self._lock:
            is_first = (name, page) not in self._refused
            self._refused.add((name, page))
        if page % 3 == 0 and is_first:
            raise Refusal(429, "one moment, please", {"Retry-After": str(self.retry_after)})

    # --- Small services ---

    def weather(self, question: Question) -> Any:
        city = question.query["city"]
        if city not in DEGREES:
            raise Refusal(404, f"nobody measures in {city}")
        return {"city": city, "current": {"temperature": DEGREES[city]}}

    def rates(self, question: Question) -> Any:
        if question.words[0] != "today":
            raise Refusal(503, "the rates are not to be had here")
        return {"base": "EUR", "rates": RATES}

    def slow(self, question: Question) -> Any:
        time.sleep(float(question.query.get("seconds", "1")))
        return {"slept": question.query.get("seconds", "1")}

    def customers(self, question: Question) -> Any:
        self._want_token(question, DEMO_TOKEN)
        return {"customers": [{"id": 1, "name": "Ada"}, {"id": 2, "name": "Grace"}]}

    # --- The travel agency ---

    def hotels(self, question: Question) -> Any:
        return {"items": [{"id": name} for name in HOTELS.get(question.words[0], ())]}

    def rooms(self, question: Question) -> Any:
        page, size, hotel = question.number("page", 1), 2, question.words[0]
        numbers = range((page - 1) * size + 1, min(page * size, ROOMS[hotel]) + 1)
        return {
            "rooms": [f"{question.query['city']}/{hotel}/{n}" for n in numbers],
            "has_more": page * size < ROOMS[hotel],
        }

    def book(self, question: Question) -> Any:
        kind = question.words[0]
        if kind == "cars" and question.body.get("city") == "Atlantis":
            raise Refusal(409, "no car is free in Atlantis")
        with self._lock:
            # The same key again is the same booking: a repeated call books once.
            booking = f"{kind}-{question.headers['idempotency-key'][:8]}"
            self.bookings[booking] = question.body
        return {"booking": booking}

    def cancel(self, question: Question) -> Any:
        with self._lock:
            return {"cancelled": self.bookings.pop(question.words[1], None) is not None}

    # --- A language model and the API of an airline system ---

    def chat(self, question: Question) -> Any:
        self._want_token(question, DEMO_TOKEN)
        system, user = (message["content"] for message in question.body["messages"])
        if "JSON" not in system:
            offers = json.loads(user)
            said = f"There are {len(offers)} offers from {offers[0]['price']['total']} EUR."
        else:
            places, date = re.findall(r"\b[A-Z]{3}\b", user), re.search(r"\d{4}-\d\d-\d\d", user)
            names = ("originLocationCode", "destinationLocationCode")
            query: dict[str, Any] = dict(zip(names, places, strict=False))
            if date is not None:
                query |= {"departureDate": date[0], "adults": 2 if "2 adults" in user else 1}
            said = json.dumps(query)
        return {
            "choices": [{"index": 0, "message": {"role": "assistant", "content": said}}],
            "usage": {"prompt_tokens": len(user.split()), "completion_tokens": len(said.split())},
        }

    def token(self, question: Question) -> Any:
        if question.body.get("client_secret") != DEMO_TOKEN:
            raise Refusal(401, "nobody knows this client")
        return {"access_token": FLIGHTS_TOKEN, "token_type": "Bearer", "expires_in": 1799}

    def flights(self, question: Question) -> Any:
        self._want_token(question, FLIGHTS_TOKEN)
        adults = question.number("adults", 1)
        offers = [{"id": str(n), "price": {"total": 100 * n * adults}} for n in range(1, 4)]
        return {"meta": {"count": len(offers)}, "data": offers}

    def _want_token(self, question: Question, token: str) -> None:
        if question.headers.get("authorization") != f"Bearer {token}":
            raise Refusal(401, "show me a token")

    # --- The job queue ---

    def submit(self, question: Question) -> Any:
        with self._lock:
            job = f"job-{len(self._jobs) + 1}"
            self._jobs[job] = {"asked": 0, "input": question.body}
        return {"id": job}

    def job(self, question: Question) -> Any:
        with self._lock:
            job = self._jobs[question.words[0]]
            job["asked"] += 1
            return {"state": "done" if job["asked"] >= ASKS_UNTIL_DONE else "running"}

    def output(self, question: Question) -> Any:
        rows = self._jobs[question.words[0]]["input"]["rows"]
        return {"rows": rows, "sum": rows * (rows + 1) // 2}


ROUTES: tuple[tuple[str, str, Callable[[Demo, Question], Any]], ...] = (
    ("GET", r"/orders", Demo.orders),
    ("GET", r"/stock/(\w+)", Demo.stock),
    ("GET", r"/weather", Demo.weather),
    ("GET", r"/rates/(\w+)", Demo.rates),
    ("GET", r"/slow", Demo.slow),
    ("GET", r"/customers", Demo.customers),
    ("GET", r"/cities/(\w+)/hotels", Demo.hotels),
    ("GET", r"/hotels/(\w+)/rooms", Demo.rooms),
    ("POST", r"/bookings/(\w+)", Demo.book),
    ("DELETE", r"/bookings/(\w+)/([\w-]+)", Demo.cancel),
    ("POST", r"/jobs", Demo.submit),
    ("GET", r"/jobs/([\w-]+)", Demo.job),
    ("GET", r"/jobs/([\w-]+)/output", Demo.output),
    ("POST", r"/v1/chat/completions", Demo.chat),
    ("POST", r"/v1/security/oauth2/token", Demo.token),
    ("GET", r"/v2/shopping/flight-offers", Demo.flights),
)


class Handler(BaseHTTPRequestHandler):
    """HTTP in front of the demo."""

    protocol_version = "HTTP/1.1"
    demo: Demo

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        text = self.rfile.read(length)
        question = Question(
            method=self.command,
            path=parts.path,
            query=dict(parse_qsl(parts.query)),
            headers={name.lower(): value for name, value in self.headers.items()},
            body=self._body(text),
        )
        try:
            self._send(200, self.demo.answer(question), {})
        except Refusal as refusal:
            self._send(refusal.status, {"error": str(refusal)}, refusal.headers)

    def _body(self, text: bytes) -> Any:
        if "form" in self.headers.get("Content-Type", ""):
            return dict(parse_qsl(text.decode()))
        return json.loads(text) if text else None

    def do_POST(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        self.do_GET()

    def _send(self, status: int, value: Any, headers: dict[str, str]) -> None:
        body = json.dumps(value).encode()
        try:
            self.send_response(status)
            for name, text in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, text)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # who asked has stopped waiting

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base names it
        """Nothing: what was asked stands in `Demo.asked`."""


class Server(ThreadingHTTPServer):
    """Answers each connection in a thread of its own."""

    daemon_threads = True
    request_queue_size = 128


@contextmanager
def serving(demo: Demo | None = None, port: int = 0) -> Iterator[str]:
    """Serve on this machine while the body runs; the address."""
    handler = type("DemoHandler", (Handler,), {"demo": demo or Demo()})
    server = Server(("127.0.0.1", port), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def main(words: list[str]) -> int:
    """Serve while the command runs, or until Ctrl-C."""
    with serving(port=0 if words else PORT) as url:
        if words:
            return subprocess.call([word.replace("{url}", url) for word in words])  # noqa: S603
        sys.stderr.write(f"serving {url}, Ctrl-C to stop\n")
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            sys.stderr.write("\n")
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
