"""Hooks over HTTP: who is let in, what a delivery does, that a repeat does nothing."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.examples.system import temporary_folder
from tests.faults.cluster import until
from tests.secrets.test_signatures import STANDARD_SECRET, mac, signed
from tests.server.conftest import Guarded
from tests.server.processes import Reply, Server, serving

ECHO = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: echo, path: hooks/echo}
workload: {said: null}
workflow: [{step: start, tool: {kind: noop, result: "{{ workload.said }}"}}]
"""
WAITS = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: waits, path: hooks/waits}
workload: {order: ""}
workflow:
  - step: start
    spec: {eval_mode: on_event}
    case:
      - when: "{{ event.name == 'order.shipped' }}"
        then: {result: {value: "{{ event.data }}"}}
"""
SECRET = "a secret that both know"


def hook(name: str, spec: str) -> str:
    head = "apiVersion: noetl.io/v2\nkind: Hook\n"
    return f"{head}metadata: {{name: {name}, path: hooks/{name}}}\nspec: {spec}\n"


STARTS = "target: {playbook: hooks/echo, workload: {said: '{{ hook.body }}'}}"
HOOKS = {
    "github": f"{{verify: {{github: {{secret: shared}}}}, {STARTS}}}",
    "slack": f"{{verify: {{slack: {{secret: shared}}}}, {STARTS}}}",
    "stripe": f"{{verify: {{stripe: {{secret: shared}}}}, {STARTS}}}",
    "standard-webhooks": f"{{verify: {{standard-webhooks: {{secret: standard}}}}, {STARTS}}}",
    "own": "{verify: {hmac: {secret: [older, shared], header: X-Sign, algorithm: sha512,"
    " encoding: base64, prefix: 's=', signed: '{id}:{timestamp}:{body}', timestamp: X-Time,"
    f" id: X-Id}}}}, {STARTS}}}",
    "token": f"{{verify: {{token: {{secret: shared}}}}, {STARTS}}}",
    "anybody": f"{{verify: none, id: '{{{{ hook.query.id }}}}', {STARTS}}}",
    "filtered": "{verify: none, when: \"{{ hook.body.action == 'opened' }}\","
    " target: {playbook: hooks/echo}}",
    "waited": f"{{verify: none, wait: 20s, {STARTS}}}",
    "shipped": "{verify: none, id: '{{ hook.body.id }}', target: {signal: order.shipped,"
    " match: '{{ workload.order == hook.body.order }}', playbook: hooks/waits}}",
    "labelled": "{verify: none, target: {signal: order.shipped,"
    " labels: {order: '{{ hook.body.order }}'}, data: {by: label}}}",
    "debounced": "{verify: none, debounce: {key: '{{ hook.body.branch }}', wait: 700ms,"
    f" max_wait: 5s}}, {STARTS}}}",
    "lost": "{verify: none, target: {playbook: hooks/nowhere}}",
    "without": f"{{verify: {{github: {{secret: never-set}}}}, {STARTS}}}",
}


@pytest.fixture(scope="module")
def hooks() -> Iterator[Server]:
    """A server with a worker and all of them."""
    with temporary_folder() as folder, serving(folder, kind="dev") as server:
        for name, secret in (
            ("shared", SECRET),
            ("older", "an older one"),
            ("standard", STANDARD_SECRET),
        ):
            server.post("/api/credentials", {"name": name, "data": {"secret": secret}})
        for text in (ECHO, WAITS, *(hook(name, spec) for name, spec in HOOKS.items())):
            server.post("/api/catalog/register", {"content": text})
        yield server


def call(
    server: Server, name: str, body: Any, headers: dict[str, str] | None = None, query: str = ""
) -> Reply:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return server.ask("POST", f"/hooks/hooks/{name}{query}", raw=raw, headers=headers or {})


def genuine(
    name: str, body: bytes, *, at: float | None = None, number: str = "1"
) -> dict[str, str]:
    headers = signed(name, body, time.time() if at is None else at)
    return headers | ({"X-GitHub-Delivery": f"delivery-{number}"} if name == "github" else {})


VERIFIED = ("github", "slack", "stripe", "standard-webhooks", "own", "token")


@pytest.mark.parametrize("name", VERIFIED)
def test_a_genuine_delivery_starts_an_execution_and_a_repeat_is_the_same(hooks: Server, name: str):
    body = json.dumps({"id": f"evt_{name}", "event_id": f"Ev{name}", "of": name}).encode()
    headers = genuine(name, body)
    first = call(hooks, name, body, headers)
    assert (first.status, first.json["status"]) == (202, "started")
    ended = hooks.ended(first.json["execution_id"])
    assert (ended["status"], ended["result"]) == ("COMPLETED", json.loads(body))
    assert ended["actor"]["text"] == f"hook hooks/{name}"

    again = call(hooks, name, body, headers)
    assert again.status == 202
    if name != "token":  # which names no delivery
        assert again.json["execution_id"] == first.json["execution_id"]
        assert again.json["status"] == "repeated"


@pytest.mark.parametrize("name", VERIFIED)
def test_what_is_not_genuine_is_refused_with_one_sentence(hooks: Server, name: str):
    body = b'{"id": "evt_x"}'
    headers = genuine(name, body)
    wrong = headers | signed(name, body, time.time(), secret="another")
    bad: list[tuple[bytes, dict[str, str]]] = [(body, {}), (body, wrong)]
    if name != "token":
        bad += [(body[:-1], headers), (body + b" ", headers)]
    if name not in ("token", "github"):
        bad.append((body, genuine(name, body, at=time.time() - 400)))
        bad.append((body, genuine(name, body, at=time.time() + 400)))
    answers = [call(hooks, name, *one) for one in bad]

    assert {one.status for one in answers} == {401}
    assert {one.json["error"]["message"] for one in answers} == {"this delivery is not accepted."}
    log = hooks.get("/api/access/audit", limit=500)["entries"]
    assert ("hook.refused", f"hooks/{name}") in {(one["action"], one["target"]) for one in log}
    assert SECRET not in str(log)
    assert (
        'noetl_hook_deliveries_total{outcome="refused"}'
        in hooks.ask("GET", "/metrics").raw.decode()
    )


@pytest.mark.parametrize("header", ["Authorization", "X-Door"])
def test_a_secret_is_in_no_event_and_in_no_answer(hooks: Server, header: str):
    body = b'{"secretly": 1}'
    headers = {header: SECRET, "Cookie": f"a={SECRET}", "X-Other": "seen"}
    verify = f"{{token: {{secret: shared, header: {header}}}}}"
    spec = f"{{verify: {verify}, target: {{playbook: hooks/echo}}}}"
    hooks.post("/api/catalog/register", {"content": hook("whole", spec)})
    started = call(hooks, "whole", body, headers).json["execution_id"]
    ended = hooks.ended(started)

    assert ended["workload"]["hook"]["body"] == {"secretly": 1}
    assert ended["workload"]["hook"]["headers"]["x-other"] == "seen"
    assert SECRET not in str(ended) + str(hooks.events(started))
    assert SECRET not in str(hooks.get("/api/hooks/hooks/whole"))


def test_a_hook_shows_how_it_verifies_in_the_word_of_its_document(hooks: Server):
    ways = ("github", "slack", "stripe", "standard-webhooks", "token")
    shown = {one["path"]: one["verify"] for one in hooks.get("/api/hooks")["hooks"]}

    assert {name: shown[f"hooks/{name}"] for name in ways} == {name: name for name in ways}
    assert (shown["hooks/own"], shown["hooks/anybody"]) == ("hmac", "none")


def test_a_credential_that_is_not_there_lets_nobody_in(hooks: Server):
    body = b"{}"

    assert (
        call(
            hooks, "without", body, {"X-Hub-Signature-256": f"sha256={mac(b'', body).hex()}"}
        ).status
        == 401
    )
    assert hooks.get("/api/hooks/hooks/without")["missing_credentials"] == ["never-set"]


def test_a_changed_credential_counts_from_the_next_delivery_on(hooks: Server):
    spec = "{verify: {token: {secret: door, header: X-Door}}, target: {playbook: hooks/echo}}"
    hooks.post("/api/catalog/register", {"content": hook("door", spec)})

    def answered(secret: str) -> int:
        return call(hooks, "door", b"{}", {"X-Door": secret}).status

    assert answered("first") == 401
    for new, old in (("first", "second"), ("second", "first")):
        hooks.post("/api/credentials", {"name": "door", "data": {"secret": new}})
        assert (answered(new), answered(old)) == (202, 401)
    hooks.ask("DELETE", "/api/credentials/door")
    assert answered("second") == 401


def test_bodies_that_are_no_json_arrive_as_text_and_forms_as_forms(hooks: Server):
    text = call(hooks, "anybody", b"plain \xff text", {"Content-Type": "text/plain"})
    assert hooks.ended(text.json["execution_id"])["result"] == "plain \ufffd text"
    spec = "{verify: none, target: {playbook: hooks/echo, workload: {said: '{{ hook.form.b }}'}}}"
    hooks.post("/api/catalog/register", {"content": hook("forms", spec)})
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    sent = call(hooks, "forms", b"a=1&b=two+words", form)
    assert hooks.ended(sent.json["execution_id"])["result"] == "two words"


@pytest.mark.parametrize(
    ("media", "body", "is_refused"),
    [
        ("application/json", b'{"action": "opened", "a": ["x\\u0000"]}', True),
        ("application/json", b'{"action": "opened", "a": "\\\\u0000 %00"}', False),
        ("text/plain", b"x\0y", True),
        ("text/plain", b"\\u0000 %00", False),
        ("application/x-www-form-urlencoded", b"a=x%00", True),
        ("application/x-www-form-urlencoded", b"a=x%2500", False),
    ],
)
def test_a_delivery_that_holds_nul_does_not_fit(
    hooks: Server, media: str, body: bytes, is_refused: bool
):
    answer = call(hooks, "anybody", body, {"Content-Type": media})
    assert answer.status == (422 if is_refused else 202)


def test_json_that_curl_calls_a_form_is_json(hooks: Server):
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert call(hooks, "filtered", b'{"action": "closed"}', form).json["status"] == "ignored"
    assert call(hooks, "filtered", b' {"action": "opened"}', form).json["status"] == "started"


def test_what_the_filter_leaves_out_is_answered_and_dropped(hooks: Server):
    assert call(hooks, "filtered", {"action": "closed"}).json["status"] == "ignored"
    assert call(hooks, "filtered", b"not json").json["status"] == "ignored"
    assert call(hooks, "filtered", {"action": "opened"}).json["status"] == "started"


def test_the_answer_waits_for_the_result_if_it_is_to(hooks: Server):
    answer = call(hooks, "waited", {"n": 5})

    assert answer.status == 200
    assert (answer.json["result"], answer.json["execution_status"]) == ({"n": 5}, "COMPLETED")


def test_a_delivery_wakes_the_execution_of_its_business_key(hooks: Server):
    waiting = {order: hooks.start(WAITS, {"order": order}) for order in ("A-1", "A-2", "A-3")}
    for one in waiting.values():
        hooks.wait_for(one, "step.waiting")
    body = {"id": "s-1", "order": "A-2", "by": "post"}
    answer = call(hooks, "shipped", body).json
    assert (answer["status"], answer["execution_ids"]) == ("signalled", [waiting["A-2"]])
    assert hooks.ended(waiting["A-2"])["result"]["by"] == "post"
    assert call(hooks, "shipped", body).json["status"] == "unmatched"
    assert hooks.get(f"/api/executions/{waiting['A-1']}/status")["status"] == "RUNNING"

    matched = {"name": "order.shipped", "match": "{{ workload.order in ['A-1', 'A-3'] }}"}
    heard = hooks.post("/api/signals", matched | {"data": {"by": "ship"}, "event_id": "s-2"})
    assert sorted(heard["execution_ids"]) == sorted([waiting["A-1"], waiting["A-3"]])
    assert hooks.ended(waiting["A-3"])["result"]["by"] == "ship"


def test_a_business_key_may_be_a_label(hooks: Server):
    started = {"path": "hooks/waits", "labels": {"order": "L-1"}}
    one = hooks.post("/api/execute", started)["execution_id"]
    hooks.wait_for(one, "step.waiting")

    assert call(hooks, "labelled", {"order": "L-2"}).json["status"] == "unmatched"
    assert call(hooks, "labelled", {"order": "L-1"}).json["execution_ids"] == [one]
    assert hooks.ended(one)["result"]["by"] == "label"


def test_who_signals_all_says_which_or_is_refused(hooks: Server):
    for body, status in (
        ({"name": "go"}, 400),
        ({"name": "go", "match": "{{ broken"}, 400),
        ({"name": "step.done", "path": "hooks/waits"}, 200),
    ):
        assert hooks.ask("POST", "/api/signals", body).status == status


def test_deliveries_that_follow_each_other_closely_are_one_start_with_the_last(hooks: Server):
    for number in range(4):
        answer = call(hooks, "debounced", {"branch": "main", "n": number})
        assert (answer.status, answer.json["status"]) == (202, "debounced")
    call(hooks, "debounced", {"branch": "other", "n": 9})

    def started() -> list[dict[str, Any]]:
        found = hooks.get("/api/executions", path="hooks/echo", limit=200)["executions"]
        shown = [hooks.get(f"/api/executions/{one['execution_id']}") for one in found]
        return [one for one in shown if (one["actor"] or {}).get("name") == "hooks/debounced"]

    until(lambda: len(started()) >= 2, "both keys start")
    said = [one["workload"]["said"] for one in started()]
    assert sorted(said, key=str) == [{"branch": "main", "n": 3}, {"branch": "other", "n": 9}]
    listed = hooks.get("/api/hooks/hooks/debounced")["deliveries"]
    assert sorted(one["outcome"] for one in listed) == ["debounced"] * 5 + ["started"] * 2


def test_our_own_fault_is_a_503_that_says_no_more(hooks: Server):
    answer = call(hooks, "lost", {})

    assert (answer.status, answer.code) == (503, "hook_failed")
    assert answer.headers["retry-after"] == "10"
    assert "nowhere" not in answer.raw.decode()


def test_a_delivery_that_does_not_fit_is_a_422_that_says_no_more(hooks: Server):
    spec = "{verify: none, target: {playbook: hooks/echo, workload: {said: '{{ hook.body.a.b }}'}}}"
    hooks.post("/api/catalog/register", {"content": hook("picky", spec)})
    answer = call(hooks, "picky", {})

    assert (answer.status, answer.code) == (422, "hook_failed")
    assert "hook.body" not in answer.raw.decode()


@pytest.mark.parametrize("body", [b'{"a": ', b"\xff\xfe", b""])
def test_a_body_that_is_said_to_be_json_and_is_not_is_the_reason_that_is_told(
    hooks: Server, body: bytes
):
    spec = "{verify: none, target: {playbook: hooks/echo, workload: {said: '{{ hook.body.a }}'}}}"
    name = f"torn{len(body)}"
    hooks.post("/api/catalog/register", {"content": hook(name, spec)})
    answer = call(hooks, name, body, {"Content-Type": "application/json"})

    def reasons() -> list[str]:
        shown = hooks.get(f"/api/hooks/hooks/{name}?deliveries=10")["deliveries"]
        return [one["reason"] for one in shown]

    assert answer.status == 422
    until(reasons, "the delivery is noted")
    [reason] = reasons()
    assert reason.startswith("its body is said to be application/json and is not: ")


def test_what_is_no_hook_is_not_found(hooks: Server):
    assert call(hooks, "nothing", {}).status == 404
    assert hooks.ask("GET", "/hooks/hooks/github").status == 405
    hooks.post("/api/catalog/register", {"content": hook("short", HOOKS["waited"])})
    assert call(hooks, "short", {}).status == 200
    assert hooks.ask("DELETE", "/api/hooks/hooks/short").status == 200
    assert call(hooks, "short", {}).status == 404


def test_slack_is_told_that_the_address_is_ours(hooks: Server):
    body = b'{"type": "url_verification", "challenge": "3eZbrw1a"}'

    assert call(hooks, "slack", body, genuine("slack", body)).json == {"challenge": "3eZbrw1a"}
    assert call(hooks, "slack", body, {}).status == 401


def test_a_server_with_users_lets_deliveries_in_without_an_account(guarded: Guarded):
    server, tokens = guarded.server, guarded.tokens
    for text in (ECHO, hook("anybody", HOOKS["anybody"])):
        server.post("/api/catalog/register", {"content": text}, token=tokens["author"])
    sent = server.ask("POST", "/hooks/hooks/anybody", {"a": 1}, token="")

    assert sent.status == 202
    assert server.ask("GET", "/api/hooks", token="").status == 401
    assert server.ask("POST", "/hooks/../api/execute", {"path": "x"}, token="").status in (401, 404)
    body = {"content": hook("mine", HOOKS["anybody"])}
    refused = server.ask("POST", "/api/catalog/register", body, token=tokens["operator"])
    assert refused.status == 403
    log = server.ask("GET", "/api/access/audit", token=tokens["admin"]).json["entries"]
    found = {(one["who"], one["action"]) for one in log}
    assert {
        ("API token author", "hook.register"),
        ("hook hooks/anybody", "execution.start"),
    } <= found


@pytest.mark.parametrize("count", [150, pytest.param(500, marks=pytest.mark.long)])
def test_of_many_deliveries_half_of_which_are_repeats_each_starts_once(hooks: Server, count: int):
    """Sent at once by several senders, each delivery twice."""
    numbers = [number for number in range(count) for _ in range(2)]

    def send(number: int) -> tuple[int, str]:
        answer = call(hooks, "anybody", {"n": number}, query=f"?id=many-{count}-{number}")
        assert answer.status == 202, answer.raw
        return number, answer.json["execution_id"]

    with ThreadPoolExecutor(8) as senders:
        found = list(senders.map(send, numbers))
    by_number = {number: {one for n, one in found if n == number} for number in range(count)}
    assert all(len(ids) == 1 for ids in by_number.values())
    assert len(set().union(*by_number.values())) == count


def listed(server: Server, name: str, count: int) -> list[dict[str, Any]]:
    """Deliveries of a hook, newest first, when there are so many."""

    def shown() -> list[dict[str, Any]]:
        found = server.get(f"/api/hooks/hooks/{name}", deliveries=500)["deliveries"]
        return found if len(found) >= count else []

    until(shown, "the deliveries are not listed")
    return shown()


def test_it_is_listed_what_became_of_each_delivery(hooks: Server):
    hooks.post("/api/catalog/register", {"content": hook("listed", LISTED)})
    opened = {"action": "opened", "who": {"name": "ada"}}
    sent = [opened, opened, {"action": "closed"}, {"action": "opened"}]
    queries = ["?id=1", "?id=1", "?id=3", "?id=4"]

    answers = [
        call(hooks, "listed", body, query=query) for body, query in zip(sent, queries, strict=True)
    ]
    found = listed(hooks, "listed", 4)[::-1]

    assert [one["outcome"] for one in found] == ["started", "repeated", "ignored", "failed"]
    execution_id = answers[0].json["execution_id"]
    assert [one["execution_id"] for one in found] == [execution_id, execution_id, None, None]
    assert found[3]["reason"], "people who look are told why"
    assert found[3]["reason"] not in answers[3].raw.decode(), "its sender is not"


LISTED = (
    "{verify: none, id: '{{ hook.query.id }}', when: \"{{ hook.body.action == 'opened' }}\","
    " target: {playbook: hooks/echo, workload: {said: '{{ hook.body.who.name }}'}}}"
)


def test_refused_deliveries_are_counted_and_not_explained(hooks: Server):
    before = len(hooks.get("/api/hooks/hooks/slack", deliveries=500)["deliveries"])
    for number in range(20):
        refused = call(hooks, "slack", {"n": number})
        assert refused.status == 401
        assert refused.json["error"]["message"] == "this delivery is not accepted."

    found = listed(hooks, "slack", before + 1)[: -before or None]

    assert {one["outcome"] for one in found} == {"refused"}
    assert len(found) <= 2, "strangers write few rows, however often they call"
    assert {one["execution_id"] for one in found} == {None}


def test_refusing_strangers_costs_less_than_taking_a_delivery(hooks: Server):
    """They meet no database: neither for the hook and its secret, nor, mostly, for the audit."""

    def seconds(headers: dict[str, str], status: int) -> float:
        """Of the server's processor, so that it does not matter what else runs."""
        connection = http.client.HTTPConnection("127.0.0.1", hooks.port)
        body = b'{"ref": "x"}'
        begun = hooks.cpu_seconds()
        for number in range(200):
            connection.request(
                "POST", "/hooks/hooks/github", body, headers | {"X-GitHub-Delivery": f"q{number}"}
            )
            answer = connection.getresponse()
            answer.read()
            assert answer.status == status
        connection.close()
        return hooks.cpu_seconds() - begun

    made = mac(SECRET.encode(), b'{"ref": "x"}').hex()
    good = {"X-Hub-Signature-256": f"sha256={made}"}
    seconds({"X-Hub-Signature-256": "sha256=00"}, 401)  # what the audit log takes of a minute
    refused = seconds({"X-Hub-Signature-256": "sha256=00"}, 401)
    taken = seconds(good, 202)
    assert refused < taken
