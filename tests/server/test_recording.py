"""An execution as one file: exported by a real server, read back, and shown offline."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
import urllib.error
import urllib.request

import pytest

from noetl.control.recordings import read_bytes
from noetl.errors import BadRequest, Corrupted, NotFound
from tests.canaries import assert_clean
from tests.server.processes import Process, working
from tests.stopwatch import PATIENCE

SECRET = "canary-hunter2-canary"
TEXT = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: recorded, path: tests/recorded}
keychain:
  - {name: shop, kind: static, data: {password: "SECRET"}}
workflow:
  - step: start
    tool: {kind: python, code: "result = {'rows': ['x' * 100] * 3000, 'count': 3000}"}
    next: {arcs: [{step: tell, when: "{{ start.count > 5 }}"}]}
  - step: tell
    tool:
      kind: python
      args: {password: "{{ keychain.shop.password }}"}
      code: "print(password); result = password"
""".replace("SECRET", SECRET)


@pytest.fixture(scope="module")
def exported(dev):
    execution_id = dev.start(TEXT)
    document = dev.ended(execution_id)
    assert document["status"] == "COMPLETED", document["error"]
    reply = dev.ask("GET", f"/api/executions/{execution_id}/export")
    assert reply.status == 200
    return dev, execution_id, document, reply


def test_the_file_has_log_net_graph_and_large_results(exported):
    server, execution_id, _, reply = exported

    recording = read_bytes(reply.raw)

    assert reply.headers["content-disposition"] == f'attachment; filename="{execution_id}.noetl"'
    assert recording.head.status == "COMPLETED"
    assert len(recording.facts) == len(server.events(execution_id)) == recording.head.events
    assert [step.name for step in recording.net.steps] == ["start", "tell"]
    [body] = recording.results.values()
    assert json.loads(body)["count"] == 3000
    assert recording.playbook == TEXT.replace(SECRET, "***")
    lines = gzip.decompress(reply.raw).splitlines()
    assert {next(iter(json.loads(line))) for line in lines} == {
        *("recording", "net", "playbook", "layout", "event", "result", "end")
    }


def test_no_secret_and_no_seal_is_in_it(exported):
    *_, reply = exported
    unpacked = gzip.decompress(reply.raw)

    assert b'"seal"' not in unpacked
    assert_clean((SECRET,), unpacked)


@pytest.mark.parametrize("place", [0.2, 0.5, 0.9])
def test_a_damaged_file_is_refused(exported, place):
    *_, reply = exported
    lines = gzip.decompress(reply.raw).splitlines(keepends=True)
    number = int(len(lines) * place)
    changed = [*lines[:number], lines[number].replace(b"a", b"b"), *lines[number + 1 :]]

    longer = [*lines, lines[number]]

    for broken in (changed, lines[:number], longer):
        with pytest.raises(Corrupted):
            read_bytes(gzip.compress(b"".join(broken)))
    with pytest.raises(Corrupted):
        read_bytes(reply.raw[: int(len(reply.raw) * place)])


def test_what_is_no_recording_or_of_a_later_format_is_refused(exported):
    *_, reply = exported
    lines = gzip.decompress(reply.raw).splitlines(keepends=True)
    head = json.loads(lines[0])
    head["recording"]["version"] = 99
    later = gzip.compress(json.dumps(head).encode() + b"\n")

    for data in (b"hello", gzip.compress(b"{}\n"), gzip.compress(b"[1]\n")):
        with pytest.raises(BadRequest, match="not a recording"):
            read_bytes(data)
    with pytest.raises(BadRequest, match="version 99"):
        read_bytes(later)
    assert read_bytes(io.BytesIO(reply.raw).getvalue()).head.version == 1


def ended(lines: list[bytes]) -> bytes:
    """These lines as a whole file."""
    whole = b"".join(lines)
    end = {"lines": len(lines), "sha256": hashlib.sha256(whole).hexdigest()}
    return gzip.compress(whole + json.dumps({"end": end}).encode() + b"\n")


def test_a_line_that_is_not_what_its_kind_has_is_damage(exported):
    *_, reply = exported
    lines = gzip.decompress(reply.raw).splitlines(keepends=True)

    for odd in (b"[]\n", b'{"event": {"body": {}}}\n', b'{"result": {"body": 1}}\n'):
        with pytest.raises(Corrupted, match="damaged"):
            read_bytes(ended([lines[0], odd]))


def test_a_result_that_was_too_large_for_the_file_is_said_to_be(exported):
    *_, reply = exported
    *lines, _ = gzip.decompress(reply.raw).splitlines(keepends=True)
    [result] = [one for one in lines if one.startswith(b'{"result"')]
    about = {**json.loads(result)["result"], "size": 99}
    del about["body"], about["sha256"]
    lines[lines.index(result)] = json.dumps({"left_out": about}).encode() + b"\n"

    recording = read_bytes(ended(lines))

    with pytest.raises(NotFound, match="too large"):
        asyncio.run(recording.body(about["execution_id"], about["key"]))


def test_it_is_shown_offline_by_the_same_routes_and_nobody_may_act(exported, tmp_path):
    server, execution_id, document, reply = exported
    (tmp_path / "it.noetl").write_bytes(reply.raw)
    offline = Process(tmp_path, "ui", "it.noetl")
    try:

        def get(path: str):
            with urllib.request.urlopen(f"{offline.said}{path}", timeout=PATIENCE) as answer:
                return json.load(answer)

        one = f"/api/executions/{execution_id}"
        shown = get(one)
        # Marks of references, and secrets that the playbook writes out, are not in the file.
        other = {"steps": [], "digest": ""}
        assert {**shown, **other} == {**document, **other}
        assert [one["status"] for one in shown["steps"]] == ["done", "done"]
        events = get(f"{one}/events?limit=500")["events"]
        assert len(events) == len(server.events(execution_id))
        why = get(f"{one}/why?step=tell")
        assert why["step"]["text"].endswith("`start.count` = 3000.")
        body = get(f"/api/results/{execution_id}/{document_key(document)}")
        assert body["count"] == 3000
        act = urllib.request.Request(f"{offline.said}{one}/rerun", b"{}", method="POST")
        act.add_header("Content-Type", "application/json")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(act, timeout=PATIENCE)
        assert refused.value.code == 403
        refused.value.close()
        rebound = urllib.request.Request(f"{offline.said}{one}", headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(rebound, timeout=PATIENCE)
        assert refused.value.code == 403
        refused.value.close()
    finally:
        offline.end()


def document_key(document: dict) -> str:
    start = next(step for step in document["steps"] if step["step"] == "start")
    return start["result"]["_ref"]["key"]


def test_no_answer_about_it_has_a_secret_and_rights_are_asked_for(guarded):
    server, tokens, folder = guarded
    server.token = tokens["admin"]
    with working(folder, server.url, NOETL_TOKEN=tokens["worker"]):
        ids = [server.start(TEXT) for _ in range(2)]
        for execution_id in ids:
            assert server.ended(execution_id)["status"] == "COMPLETED"
    one = f"/api/executions/{ids[0]}"
    asked = [
        ("GET", f"{one}/why?step=tell", None),
        ("GET", f"{one}/critical-path", None),
        ("GET", f"/api/executions/diff?a={ids[0]}&b={ids[1]}", None),
        ("GET", f"{one}/export", None),
        ("POST", "/api/whatif", {"content": TEXT, "executions": ids}),
        (
            "POST",
            "/api/language",
            {"want": "value", "expression": "{{ tell }}", "execution_id": ids[0]},
        ),
    ]
    for method, path, body in asked:
        answer = server.ask(method, path, body, token=tokens["viewer"])
        assert answer.status == 200, (path, answer.raw)
        text = gzip.decompress(answer.raw) if path.endswith("export") else answer.raw
        assert_clean((SECRET,), text)
        assert server.ask(method, path, body, token=tokens["worker"]).status == 403, path
        assert server.ask(method, path, body, token="wrong").status == 401, path
    plan = {"seq": 5, "dry_run": True}
    assert server.ask("POST", f"{one}/fork", plan, token=tokens["viewer"]).status == 403
    answer = server.ask("POST", f"{one}/fork", plan, token=tokens["operator"])
    assert answer.status == 200
    assert_clean((SECRET,), answer.raw)
    server.token = None
