"""Notifications at work: a real receiver and a real mail server are told, once for each window."""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import msgspec
import pytest
from aiohttp import web

from tests.server.processes import Server, serving
from tests.stopwatch import PATIENCE
from tests.tools.services import answering

NUMBERS = itertools.count()
SECRET = "whsec_" + base64.b64encode(b"known to both, and long enough").decode()
WORK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: work, path: t/work, labels: {team: shop}}
workload: {fail: false, kind: a}
workflow:
  - step: start
    tool: {kind: noop}
    next:
      arcs:
        - {step: misspelt, when: "{{ workload.fail and workload.kind == 'b' }}"}
        - {step: broken, when: "{{ workload.fail }}"}
        - {step: end, when: "{{ not workload.fail }}"}
  - step: broken
    tool: {kind: python, code: "raise ValueError('out of paper')"}
  - step: misspelt
    tool: {kind: noop, result: "{{ workload.nothing.at.all }}"}
  - step: end
    tool: {kind: noop}
"""
WAITS = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: waits, path: t/waits}
workflow:
  - step: ask
    spec: {eval_mode: on_event}
    case: [{when: "{{ event.name == 'go' }}", then: {next: end}}]
  - {step: end, tool: {kind: noop}}
"""


class Receiver:
    """What was sent, in order."""

    def __init__(self) -> None:
        self.url = ""
        self.got: list[tuple[dict[str, str], Any]] = []
        self.refuses = 0
        """So many requests are answered with 503 first."""
        self._more = threading.Condition()

    async def take(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        if self.refuses:
            self.refuses -= 1
            return web.Response(status=503)
        with self._more:
            self.got.append(({**headers, "raw": raw.decode()}, json.loads(raw)))
            self._more.notify_all()
        return web.json_response({})

    def wait_for(self, count: int) -> list[tuple[dict[str, str], Any]]:
        with self._more:
            assert self._more.wait_for(lambda: len(self.got) >= count, PATIENCE), self.got
        return self.got


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    with answering(("POST", "/in", found.take)) as url:
        found.url = f"{url}/in"
        yield found


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("dev"), kind="dev") as server:
        for text in (WORK, WAITS):
            server.post("/api/catalog/register", {"content": text})
        yield server


@contextmanager
def rule(server: Server, receiver: Receiver, named: str = "", **spec: Any) -> Iterator[str]:
    """A rule that tells the receiver, for so long; its path."""
    path = named or f"ops/n{next(NUMBERS)}"
    server.post(
        "/api/credentials", {"name": "ops", "data": {"url": receiver.url, "secret": SECRET}}
    )
    target = {
        "playbook": "noetl/notify/webhook",
        "workload": {"credential": "ops", "notification": "{{ notification }}"},
    }
    body = msgspec.json.encode({"path": "t/*", "target": target} | spec).decode()
    head = f"apiVersion: noetl.io/v2\nkind: Notification\nmetadata: {{name: n, path: {path}}}\n"
    server.post("/api/catalog/register", {"content": f"{head}spec: {body}\n"})
    try:
        yield path
    finally:
        server.ask("DELETE", f"/api/notifications/{path}")


def work(server: Server, path: str = "t/work", **workload: Any) -> str:
    started = server.post("/api/execute", {"path": path, "workload": workload})["execution_id"]
    if path == "t/work":
        until(lambda: server.get(f"/api/executions/{started}")["end_time"])
    return str(started)


def until(holds: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def test_a_failure_is_told_once_in_a_window_signed_and_retried(dev: Server, receiver: Receiver):
    receiver.refuses = 1
    with rule(dev, receiver, on="failed", labels={"team": "shop"}) as path:
        failed = work(dev, fail=True)
        [(headers, body)] = receiver.wait_for(1)
        work(dev, fail=True)
        work(dev)

        said = body["data"]
        assert (said["on"], said["path"], said["execution_id"]) == ("failed", "t/work", failed)
        assert "out of paper" in said["text"]
        assert said["step"] == "broken"
        # As an independent receiver would check it (Standard Webhooks).
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.{headers['raw']}"
        key = base64.b64decode(SECRET.removeprefix("whsec_"))
        made = hmac.new(key, signed.encode(), hashlib.sha256).digest()
        assert headers["webhook-signature"] == f"v1,{base64.b64encode(made).decode()}"
        # The second failure is within the window; that it was, is counted.
        until(lambda: 'outcome="repeated"} 1.0' in dev.ask("GET", "/metrics").raw.decode())
        assert len(receiver.got) == 1
        told = dev.get("/api/executions?path=noetl/notify/webhook")["executions"]
        assert len(told) == 1
        shown = dev.get(f"/api/executions/{told[0]['execution_id']}")
        assert shown["actor"]["text"] == f"notification {path}"
        assert SECRET not in json.dumps(shown)


def test_another_kind_of_error_and_another_path_are_told_in_the_same_window(
    dev: Server, receiver: Receiver
):
    dev.post("/api/catalog/register", {"content": WORK.replace("path: t/work", "path: t/other")})
    with rule(dev, receiver, on="failed"):
        work(dev, fail=True)
        receiver.wait_for(1)
        work(dev, fail=True, kind="b")
        receiver.wait_for(2)
        for kind in ("a", "b"):
            work(dev, fail=True, kind=kind)
        work(dev, "t/other", fail=True)
        got = [body["data"] for _, body in receiver.wait_for(3)]

    assert [(one["path"], one["error"]["kind"]) for one in got] == [
        ("t/work", "exception"),
        ("t/work", "schema"),
        ("t/other", "exception"),
    ]


def test_that_it_works_again_is_told_after_a_failure_only(dev: Server, receiver: Receiver):
    with rule(dev, receiver, on=["failed", "recovered"], window="0s"):
        work(dev)
        work(dev, fail=True)
        receiver.wait_for(1)
        work(dev)
        receiver.wait_for(2)
        work(dev)
        work(dev, fail=True)
        got = receiver.wait_for(3)

        assert [body["data"]["on"] for _, body in got] == ["failed", "recovered", "failed"]


def test_a_failure_after_it_worked_again_is_told_in_the_window_of_the_one_before(
    dev: Server, receiver: Receiver
):
    with rule(dev, receiver, on=["failed", "recovered"]):
        for count, fail in enumerate((True, False, True), start=1):
            work(dev, fail=fail)
            receiver.wait_for(count)
        work(dev, fail=True)  # within the window
        work(dev)
        got = receiver.wait_for(4)

    told = [body["data"]["on"] for _, body in got]
    assert told == ["failed", "recovered", "failed", "recovered"]


CALLS = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: calls, path: t/calls}
workflow:
  - step: start
    tool: {kind: playbook, path: t/work, args: {fail: true}}
"""


def test_rules_tell_of_their_paths_and_labels_only_and_of_callers_instead_of_the_called(
    dev: Server, receiver: Receiver
):
    dev.post("/api/catalog/register", {"content": CALLS})
    with (
        rule(dev, receiver, on="failed", labels={"team": "bank"}),
        rule(dev, receiver, on="failed", path="t/other*"),
        rule(dev, receiver, on="failed", path=["t/calls", "t/work"], window="0s") as path,
    ):
        work(dev, fail=True)
        receiver.wait_for(1)
        calls = work(dev, "t/calls")
        got = receiver.wait_for(2)
        until(lambda: dev.get(f"/api/executions/{calls}")["end_time"])
        work(dev, fail=True)  # whatever was to be told before is decided by then
        got = receiver.wait_for(3)

    told = [(body["data"]["path"], body["data"]["rule"]) for _, body in got]
    assert told == [("t/work", path), ("t/calls", path), ("t/work", path)]


def test_a_rule_that_was_deleted_and_registered_again_begins_anew(dev: Server, receiver: Receiver):
    with rule(dev, receiver, on=["failed", "recovered"]) as path:
        work(dev, fail=True)
        receiver.wait_for(1)
    with rule(dev, receiver, named=path, on=["failed", "recovered"]):
        work(dev)  # of no failure that this one knows of
        work(dev, fail=True)
        got = receiver.wait_for(2)

    assert [body["data"]["on"] for _, body in got] == ["failed", "failed"]


def test_what_waits_and_what_is_late_is_told_and_what_has_ended_is_not(
    dev: Server, receiver: Receiver
):
    with rule(dev, receiver, on=["late", "waiting"], late="2s"):
        work(dev)
        waits = work(dev, "t/waits")
        got = receiver.wait_for(2)

        said = {body["data"]["on"]: body["data"] for _, body in got}
        assert said["waiting"]["execution_id"] == said["late"]["execution_id"] == waits
        assert said["waiting"]["step"] == "ask"
        assert said["late"]["text"].startswith("t/waits has not ended after 2 seconds (")
        dev.post(f"/api/executions/{waits}/events", {"name": "go"})


def test_a_missed_time_is_told(dev: Server, receiver: Receiver):
    head = "apiVersion: noetl.io/v2\nkind: Schedule\nmetadata: {name: s, path: t/s}\n"
    text = f"{head}spec: {{playbook: t/none, every: 1s}}\n"
    with rule(dev, receiver, on="missed"):
        dev.post("/api/catalog/register", {"content": text})
        [(_, body)] = receiver.wait_for(1)
        dev.ask("DELETE", "/api/schedules/t/s")

        assert body["data"]["schedule"] == "t/s"
        assert "t/none" in body["data"]["text"]


def test_a_message_that_cannot_be_sent_is_not_told_of_and_a_wrong_one_says_why(
    dev: Server, receiver: Receiver
):
    broken = {"playbook": "t/work", "workload": {"fail": True}}
    with rule(dev, receiver, on="failed", path="t/*", window="0s", target=broken) as path:
        work(dev, fail=True)

        def told() -> list[Any]:
            found = dev.get("/api/executions?path=t/work&status=FAILED")["executions"]
            ids = [one["execution_id"] for one in found]
            shown = [dev.get(f"/api/executions/{one}") for one in ids]
            return [one for one in shown if one["actor"]["text"] == f"notification {path}"]

        until(told)
        work(dev)  # whatever was to be told of is decided by now
        assert len(told()) == 1
    wrong = {"playbook": "t/work", "workload": {"kind": "{{ notification.error.nothing.here }}"}}
    with rule(dev, receiver, on="failed", target=wrong) as path:
        work(dev, fail=True)
        problem = until(lambda: dev.get(f"/api/notifications/{path}")["problem"])
        assert "could not be made" in problem


def sent(server: Server, name: str, workload: dict[str, Any]) -> tuple[Any, int]:
    """The document of a message that was tried to be sent, and how many calls it took."""
    playbook = files("noetl") / "playbooks" / f"{name}.yaml"
    server.post("/api/catalog/register", {"content": playbook.read_text(encoding="utf-8")})
    given = {"path": f"noetl/notify/{name}", "workload": workload}
    execution_id = server.post("/api/execute", given)["execution_id"]
    shown = server.ended(execution_id)
    calls = [one for one in server.events(execution_id) if one["event_type"] == "task.started"]
    return shown, len(calls)


@pytest.mark.parametrize("name", ["email", "slack", "teams", "webhook"])
def test_a_missing_credential_fails_at_once_and_says_what_to_do(dev: Server, name: str):
    shown, calls = sent(dev, name, {"credential": "forgotten"})
    assert calls == 1
    assert shown["status"] == "FAILED"
    assert 'there is no credential "forgotten"' in shown["error"]["message"]
    assert "noetl credential set forgotten" in shown["error"]["message"]


def test_what_a_mail_server_may_yet_take_is_tried_again_and_its_last_word_is_not(dev: Server):
    workload = {"credential": "mail", "to": "ops@example.com", "subject": "s", "text": "t"}
    with receiving_mail("451 come back later") as (login, got):
        dev.post("/api/credentials", {"name": "mail", "data": login})
        shown, calls = sent(dev, "email", workload)
        assert (shown["status"], calls, len(got)) == ("COMPLETED", 2, 1)
    with receiving_mail("550 nobody of that name") as (login, got):
        dev.post("/api/credentials", {"name": "mail", "data": login})
        shown, calls = sent(dev, "email", workload)
        assert (shown["status"], calls, got) == ("FAILED", 1, [])
        assert "nobody of that name" in shown["error"]["message"]


class Mail(socketserver.StreamRequestHandler):
    """As much of SMTP as it takes to receive a message."""

    def handle(self) -> None:
        def say(text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

        say("220 ready")
        while line := self.rfile.readline():
            word = line[:4].decode().upper().strip()
            if word == "RCPT" and self.server.refusals:  # type: ignore[attr-defined]
                say(self.server.refusals.pop())  # type: ignore[attr-defined]
                continue
            if word == "DATA":
                say("354 go on")
                lines = []
                while (line := self.rfile.readline()) != b".\r\n":
                    lines.append(line)
                self.server.got.append(b"".join(lines).decode())  # type: ignore[attr-defined]
            say({"QUIT": "221 bye"}.get(word, "250 fine"))
            if word == "QUIT":
                return


@contextmanager
def receiving_mail(*refusals: str) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """The fields of a credential for a mail server, which refuses so often, and what arrives."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mail) as server:
        server.got = []  # type: ignore[attr-defined]
        server.refusals = list(refusals)  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        login = {"host": "127.0.0.1", "port": server.server_address[1]}
        try:
            yield login | {"tls": "none", "sender": "noetl@example.com"}, server.got  # type: ignore[attr-defined]
        finally:
            server.shutdown()


def test_an_email_is_sent(dev: Server, receiver: Receiver):
    with receiving_mail() as (login, got):
        dev.post("/api/credentials", {"name": "mail", "data": login})
        workload = {
            "credential": "mail",
            "to": ["ops@example.com"],
            "subject": "{{ notification.title }}",
            "text": "{{ notification.text }}",
        }
        target = {"playbook": "noetl/notify/email", "workload": workload}
        with rule(dev, receiver, on="failed", target=target):
            work(dev, fail=True)
            [mail] = until(lambda: got)
    assert "Subject: t/work failed" in mail
    assert "To: ops@example.com" in mail
    assert "out of paper" in mail


@pytest.mark.parametrize("name", ["slack", "teams"])
def test_a_chat_gets_what_its_kind_reads(dev: Server, receiver: Receiver, name: str):
    workload = {
        "credential": "ops",
        "title": "{{ notification.title }}",
        "text": "{{ notification.text }}",
    }
    if name == "slack":
        del workload["title"]
    target = {"playbook": f"noetl/notify/{name}", "workload": workload}
    with rule(dev, receiver, on="failed", target=target):
        work(dev, fail=True)
        [(_, body)] = receiver.wait_for(1)

        assert "out of paper" in json.dumps(body)
        assert sorted(body) == (["text"] if name == "slack" else ["attachments", "type"])


def test_it_is_listed_paused_and_resumed(dev: Server, receiver: Receiver):
    with rule(dev, receiver, on="failed") as path:
        paused = dev.post("/api/notifications/pause", {"path": path, "reason": "moving"})
        assert (paused["status"], paused["reason"]) == ("paused", "moving")
        work(dev, fail=True)
        assert dev.post("/api/notifications/resume", {"path": path})["status"] == "active"
        later = work(dev, fail=True)
        [(_, body)] = receiver.wait_for(1)

        assert body["data"]["execution_id"] == later
        [listed] = dev.get("/api/notifications")["notifications"]
        assert (listed["on"], listed["paths"]) == (["failed"], ["t/*"])
