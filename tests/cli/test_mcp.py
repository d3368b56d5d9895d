"""`noetl mcp`: a real process over real pipes, against real servers and databases."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.canaries import forms
from tests.cli.conftest import COMMAND, clean_environment
from tests.examples.system import temporary_folder
from tests.server.conftest import guarding
from tests.server.processes import Server, serving
from tests.stopwatch import PATIENCE

HANDSHAKE = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
STATELESS = "2026-07-28"
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{name: {0}, path: talk/{0}}}\n"
ASIDE = HEAD.replace("talk/", "aside/")
SHOUT = (
    HEAD.format("shout")
    + """\
executor: {spec: {inputs: {word: {type: string, required: true}}}}
workflow:
  - step: start
    tool: {kind: shell, command: echo heard $WORD, env: {WORD: "{{ workload.word }}"}}
    next:
      arcs:
        - {step: loud, when: "{{ workload.word == 'hello' }}"}
        - {step: quiet}
  - step: loud
    tool: {kind: noop, result: "{{ workload.word | upper }}!"}
  - step: quiet
    tool: {kind: noop, result: "{{ workload.word }}…"}
"""
)
FAILS = HEAD.format("fails") + (
    "workflow: [{step: pay, tool: {kind: python, code: \"raise ValueError('no money')\"}}]\n"
)
WAITS = (
    HEAD.format("waits")
    + """\
workflow:
  - step: ask
    spec: {eval_mode: on_event, form: {fields: [{name: approved, type: boolean}]}}
    case:
      - when: "{{ event.name == 'approval.received' }}"
        then: {result: {value: "{{ event.data.approved }}"}}
"""
)
LARGE = HEAD.format("large") + (
    "workflow: [{step: make, tool: {kind: python,"
    " code: \"result = [{'number': n, 'text': 'x' * 200} for n in range(600)]\"}}]\n"
)
READING = {
    *("list_playbooks", "get_playbook", "validate_playbook", "describe_tool_kinds"),
    *("list_executions", "get_execution", "explain_execution", "list_events", "get_result"),
    "read_logs",
}
ACTING = {
    *("start_execution", "rerun_execution", "pause_execution", "resume_execution"),
    "cancel_execution",
}


class Assistant:
    """The other side of the protocol."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self._remarks = folder / "mcp.stderr"
        with self._remarks.open("w") as remarks:
            self.process = forked.popen(
                [*COMMAND, "mcp", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=remarks,
                cwd=folder,
                env=clean_environment(**environment),
            )
        self._number = 0
        self.heard = b""

    def send(self, line: bytes) -> None:
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        line = self.process.stdout.readline()
        assert line, self._remarks.read_text()
        self.heard += line
        return json.loads(line)

    def request(self, method: str, **params: Any) -> int:
        """Send a request without waiting for its answer."""
        self._number += 1
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        self.send(json.dumps(message).encode())
        return self._number

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = self.request(method, **params)
        answer = self.hear()
        assert answer["jsonrpc"] == "2.0"
        assert answer["id"] == number, answer
        return dict(answer.get("result", answer.get("error")))

    def tell(self, method: str, **params: Any) -> None:
        self.send(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode())

    def greet(self, version: str = HANDSHAKE[0]) -> dict[str, Any]:
        about = {"name": "tests", "version": "1"}
        found = self.ask("initialize", protocolVersion=version, capabilities={}, clientInfo=about)
        self.tell("notifications/initialized")
        return found

    def call(self, name: str, **arguments: Any) -> Any:
        """The data of a tool that worked."""
        found = self.ask("tools/call", name=name, arguments=arguments)
        assert found["isError"] is False, found
        return found["structuredContent"]

    def text(self, name: str, **arguments: Any) -> str:
        [content] = self.ask("tools/call", name=name, arguments=arguments)["content"]
        return str(content["text"])

    def refusal(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The error of a tool that failed."""
        found = self.ask("tools/call", name=name, arguments=arguments)
        assert found["isError"] is True, found
        error = dict(found["structuredContent"]["error"])
        assert found["content"][0]["text"] == f"{error['message']} [{error['code']}]"
        return error

    def end(self) -> tuple[int, bytes]:
        """Close its input: its exit code, and what it still says."""
        self.process.stdin.close()
        rest = self.process.stdout.read()
        code = self.process.wait(PATIENCE)
        self.process.stdout.close()
        return code, rest

    def remarks(self) -> str:
        return self._remarks.read_text()


@contextmanager
def talking(folder: Path, *arguments: str, **environment: str) -> Iterator[Assistant]:
    assistant = Assistant(folder, *arguments, **environment)
    try:
        yield assistant
    finally:
        if assistant.process.poll() is None:
            code, _ = assistant.end()
            assert code == 0
        assert assistant.remarks() == ""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with temporary_folder() as folder, serving(folder, kind="dev") as found:
        for text in (SHOUT, FAILS, WAITS, LARGE):
            found.post("/api/catalog/register", {"content": text})
        yield found


@pytest.fixture
def assistant(server, tmp_path):
    """One that may only read, after the handshake."""
    with talking(tmp_path, "--server", server.url) as found:
        found.greet()
        yield found


@pytest.fixture
def operator(server, tmp_path):
    """One that may act, after the handshake."""
    with talking(tmp_path, "--server", server.url, "--allow-actions") as found:
        found.greet()
        yield found


def ended(server: Server, text: str, **workload: Any) -> str:
    execution_id = server.start(text, workload)
    server.ended(execution_id)
    return execution_id


# --- The protocol -------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [*HANDSHAKE, "2023-01-01", STATELESS])
def test_the_handshake_agrees_on_a_version(tmp_path, asked):
    with talking(tmp_path) as assistant:
        assert assistant.ask("ping") == {}
        assert assistant.ask("tools/list")["code"] == -32600
        assert assistant.ask("initialize")["code"] == -32602

        found = assistant.greet(asked)

        assert found["protocolVersion"] == (asked if asked in HANDSHAKE else HANDSHAKE[0])
        assert found["serverInfo"]["name"] == "noetl"
        assert found["capabilities"] == {"tools": {}, "resources": {}}
        assert "explain_execution" in found["instructions"]
        assert len(assistant.ask("tools/list")["tools"]) == len(READING)


def test_requests_without_a_handshake_carry_their_version(server, tmp_path):
    key = "io.modelcontextprotocol/"
    meta = {f"{key}protocolVersion": STATELESS, f"{key}clientCapabilities": {}}
    with talking(tmp_path, "--server", server.url) as assistant:
        found = assistant.ask("server/discover", _meta=meta)
        tools = assistant.ask("tools/list", _meta=meta)
        called = assistant.ask(
            "tools/call", _meta=meta, name="list_playbooks", arguments={"prefix": "talk/"}
        )
        missing = assistant.ask("resources/read", _meta=meta, uri="noetl://playbooks/none")
        later = assistant.ask("tools/list", _meta={**meta, f"{key}protocolVersion": "2031-01-01"})
        half = assistant.ask("tools/list", _meta={f"{key}protocolVersion": STATELESS})
        without = assistant.ask("tools/list")

    assert found["supportedVersions"] == [STATELESS, *HANDSHAKE]
    assert found["capabilities"] == {"tools": {}, "resources": {}}
    for one in (found, tools, called):
        assert one["resultType"] == "complete"
        assert one["_meta"][f"{key}serverInfo"]["name"] == "noetl"
    assert (tools["ttlMs"], tools["cacheScope"]) == (0, "private")
    assert called["structuredContent"]["total"] == 4
    assert missing["code"] == -32602
    assert later["code"] == -32022
    assert later["data"] == {"supported": [STATELESS, *HANDSHAKE], "requested": "2031-01-01"}
    assert half["code"] == -32602
    assert without["code"] == -32600


def test_what_is_no_request_gets_an_error_and_the_session_goes_on(assistant):
    def answer(line: bytes) -> tuple[Any, int]:
        assistant.send(line)
        found = assistant.hear()
        return found["id"], found["error"]["code"]

    assert answer(b"{") == (None, -32700)
    assert answer(b'{"jsonrpc": "2.0", "id": 1, "method": "\xff"}') == (None, -32700)
    assert answer(b"17") == (None, -32600)
    assert answer(b'{"id": 5, "method": "ping"}') == (None, -32600)
    assert answer(b'{"jsonrpc": "2.0", "id": null, "method": "ping"}') == (None, -32600)
    assert answer(b'{"jsonrpc": "2.0", "id": 5, "method": 7}') == (5, -32600)
    assert answer(b'{"jsonrpc": "2.0", "id": "a", "method": "ping", "params": [1]}') == (
        "a",
        -32602,
    )
    assert answer(b'{"jsonrpc": "2.0", "id": 6, "method": "prompts/list"}') == (6, -32601)
    assert answer(b"[]") == (None, -32600)
    assert answer(b" " * (16 * 1024 * 1024 + 1)) == (None, -32600)
    assert assistant.ask("tools/call", name="list_playbooks", arguments=[])["code"] == -32602
    assert assistant.ask("tools/call", name="list_playboks")["message"] == (
        'unknown tool: list_playboks. Did you mean "list_playbooks"?'
    )

    assistant.send(b"")
    assistant.send(b'{"jsonrpc": "2.0", "id": 9, "result": {}}')
    assistant.tell("notifications/unknown")
    assert assistant.ask("ping") == {}


def test_a_batch_is_answered_as_a_batch(assistant):
    assistant.send(
        b'[{"jsonrpc": "2.0", "id": "a", "method": "ping"},'
        b' {"jsonrpc": "2.0", "method": "notifications/initialized"},'
        b' {"jsonrpc": "2.0", "id": "b", "method": "nothing"}]'
    )

    one, other = assistant.hear()

    assert one == {"jsonrpc": "2.0", "id": "a", "result": {}}
    assert (other["id"], other["error"]["code"]) == ("b", -32601)


def test_a_cancelled_request_gets_no_answer_and_others_are_answered_meanwhile(server, assistant):
    execution_id = server.start(WAITS)
    server.wait_for(execution_id, "step.waiting")
    arguments = {"execution_id": execution_id, "wait": 3}
    waiting = assistant.request("tools/call", name="get_execution", arguments=arguments)

    assert assistant.ask("ping") == {}
    assistant.tell("notifications/cancelled", requestId=waiting, reason="too slow")
    assistant.tell("notifications/cancelled", requestId=4711)
    assistant.tell("notifications/cancelled", requestId=[])

    assert assistant.ask("ping") == {}
    assert assistant.call("get_execution", execution_id=execution_id)["status"] == "RUNNING"
    assert assistant.end() == (0, b"")


def test_an_id_that_is_none_cancels_nothing(assistant):
    """To Python, true is 1."""
    assistant.send(
        b'[{"jsonrpc": "2.0", "id": 1, "method": "tools/call",'
        b' "params": {"name": "list_playbooks"}},'
        b' {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": true}},'
        b' {"jsonrpc": "2.0", "id": 2, "method": "ping"}]'
    )

    assert [one["id"] for one in assistant.hear()] == [1, 2]


def test_input_that_does_not_wait_is_waited_for(tmp_path):
    """Another process may share it, and have set it so."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        with (tmp_path / "stderr").open("w") as remarks:
            process = forked.popen(
                [*COMMAND, "mcp"],
                stdin=theirs,
                stdout=subprocess.PIPE,
                stderr=remarks,
                cwd=tmp_path,
                env=clean_environment(),
            )
        ours.sendall(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        is_answered = select.select([process.stdout], [], [], PATIENCE)[0]
        answer = process.stdout.readline() if is_answered else b"null"
        ours.shutdown(socket.SHUT_WR)
        code = process.wait(PATIENCE)
        process.stdout.close()

    assert json.loads(answer) == {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert (code, (tmp_path / "stderr").read_text()) == (0, "")


def test_at_the_end_of_input_requests_under_way_are_answered(server, tmp_path):
    with talking(tmp_path, "--server", server.url) as assistant:
        assistant.greet()
        assistant.request("tools/call", name="list_playbooks", arguments={})
        assistant.request("tools/call", name="describe_tool_kinds", arguments={"kind": "http"})

        code, rest = assistant.end()

    answers = [json.loads(line) for line in rest.splitlines()]
    assert code == 0
    assert {one["id"]: one["result"]["isError"] for one in answers} == {2: False, 3: False}


def test_only_messages_go_to_standard_output(tmp_path):
    """Also if a library, or a plug-in, prints."""
    (tmp_path / "sitecustomize.py").write_text("import atexit\natexit.register(print, 'noise')\n")
    assistant = Assistant(tmp_path, PYTHONPATH=os.fspath(tmp_path))
    assistant.greet()

    assert assistant.end() == (0, b"")
    assert assistant.remarks() == "noise\n"


def test_nobody_who_reads_is_no_reason_to_fail(tmp_path):
    with talking(tmp_path) as assistant:
        assistant.greet()
        assistant.process.stdout.close()
        assistant.request("ping")
        assistant.process.stdin.close()

        assert assistant.process.wait(PATIENCE) == 0


# --- Tools --------------------------------------------------------------------------------------


def test_tools_that_change_something_are_there_only_if_they_are_allowed(server, tmp_path):
    def offered(assistant: Assistant) -> dict[str, bool]:
        assistant.greet()
        tools = assistant.ask("tools/list")["tools"]
        for one in tools:
            schema = one["inputSchema"]
            assert schema["type"] == "object"
            assert schema["additionalProperties"] is False
            undescribed = {
                name for name, about in schema["properties"].items() if "description" not in about
            }
            assert undescribed <= {"limit", "labels"}, one["name"]
            assert len(one["description"]) > 20
        return {one["name"]: one["annotations"]["readOnlyHint"] for one in tools}

    with talking(tmp_path, "--server", server.url) as assistant:
        assert offered(assistant) == dict.fromkeys(READING, True)
        before = assistant.call("list_executions", limit=1)
        for name in ACTING:
            refused = assistant.ask("tools/call", name=name, arguments={"path": "talk/fails"})
            assert refused["code"] == -32602
            assert "--allow-actions" in refused["message"]
        assert assistant.call("list_executions", limit=1) == before
    with talking(tmp_path, "--server", server.url, "--allow-actions") as assistant:
        found = offered(assistant)
        assert found == {**dict.fromkeys(READING, True), **dict.fromkeys(ACTING, False)}


def test_playbooks_are_listed_read_and_checked(assistant):
    first = assistant.call("list_playbooks", prefix="talk/", limit=3)
    rest = assistant.call("list_playbooks", prefix="talk/", after="talk/shout")
    read = assistant.call("get_playbook", path="talk/shout")
    valid = assistant.call("validate_playbook", content=SHOUT)
    wrong = assistant.text("validate_playbook", content=SHOUT.replace("noop", "noob"))

    paths = [one["path"] for one in (*first["playbooks"], *rest["playbooks"])]
    assert paths == ["talk/fails", "talk/large", "talk/shout", "talk/waits"]
    assert first["next"] == "more follow: call again with after=talk/shout"
    assert "next" not in rest
    assert read["content"] == SHOUT
    assert read["inputs_schema"]["required"] == ["word"]
    assert valid == {"valid": True, "problems": []}
    assert wrong.startswith("It is not valid.\n13:18: there is no tool kind")
    assert assistant.refusal("get_playbook", path="talk/shuot")["code"] == "not_found"


def test_tool_kinds_are_described(assistant):
    known = assistant.call("describe_tool_kinds")["kinds"]
    page = assistant.text("describe_tool_kinds", kind="http")

    assert "postgres" in {one["kind"] for one in known}
    assert "For example:" in page
    assert (
        'Did you mean "http"?' in assistant.refusal("describe_tool_kinds", kind="htpp")["message"]
    )


def test_an_execution_is_read_event_by_event_and_line_by_line(server, assistant):
    execution_id = ended(server, SHOUT, word="hello")

    listed = assistant.call("list_executions", query="path:talk/shout status:completed", limit=1)
    document = assistant.call("get_execution", execution_id="last")
    first = assistant.call("list_events", execution_id=execution_id, limit=2)
    done = assistant.call("list_events", execution_id=execution_id, types=["task.done"])
    why = assistant.text("explain_execution", execution_id=execution_id, step="quiet")

    assert listed["executions"][0]["execution_id"] == execution_id
    assert document["result"] == "HELLO!"
    assert [one["step"] for one in document["steps"]] == ["start", "loud"]
    assert len(first["events"]) == 2
    assert first["next"] == "more follow: call again with after=2"
    assert {one["event_type"] for one in done["events"]} == {"task.done"}
    assert assistant.text("read_logs", execution_id=execution_id) == "start | heard hello"
    assert assistant.text("read_logs", execution_id=execution_id, grep="nothing") == "no such lines"
    assert assistant.text("get_result", execution_id=execution_id) == "HELLO!"
    assert assistant.text("get_result", execution_id=execution_id, step="start") != "HELLO!"
    assert "quiet" in why
    refused = assistant.refusal("get_result", execution_id=execution_id, step="lout")
    assert 'Did you mean "loud"?' in refused["message"]


def test_a_failure_is_explained_with_its_place(server, assistant):
    execution_id = ended(server, FAILS)

    [content] = assistant.ask(
        "tools/call", name="explain_execution", arguments={"execution_id": execution_id}
    )["content"]
    data = assistant.call("explain_execution", execution_id=execution_id)

    assert content["text"].splitlines() == [
        f"Execution {execution_id} of talk/fails version 1 is FAILED.",
        "It failed in step pay: ValueError: no money (talk/fails version 1:4) (exception)",
    ]
    assert data["failed_steps"][0]["step"] == "pay"
    assert data["waits_for"] == []


def test_what_an_execution_waits_for_is_explained(server, assistant):
    execution_id = server.start(WAITS)
    server.wait_for(execution_id, "step.waiting")

    text = assistant.text("explain_execution", execution_id=execution_id)
    data = assistant.call("explain_execution", execution_id=execution_id)

    [wait] = data["waits_for"]
    assert wait["step"] == "ask"
    assert wait["form"][0]["name"] == "approved"
    assert text.splitlines() == [
        f"Execution {execution_id} of talk/waits version 1 is RUNNING.",
        wait["text"],
    ]


def test_arguments_that_do_not_fit_are_told_to_the_assistant(server, assistant):
    ended(server, FAILS)

    unknown = assistant.refusal("list_executions", limt=3)
    much = assistant.refusal("list_events", execution_id="last", limit=100_000)
    none = assistant.refusal("get_playbook")
    query = assistant.refusal("list_executions", query="status:nonsense")
    moment = assistant.refusal("explain_execution", execution_id="last", seq=3)
    for written in ("", "../catalog", "count", "%2e%2e", "1000000000000000001"):
        assert assistant.refusal("get_execution", execution_id=written)["code"] == "not_found"

    assert unknown["message"] == (
        'the tool list_executions has no key "limt". Did you mean "limit"?'
    )
    assert much["message"] == "the tool list_events, limit: Expected `int` <= 200"
    assert none["message"] == "the tool get_playbook, path: it is missing"
    assert query["code"] == "bad_query"
    assert moment["message"].startswith("`seq` needs a `step`")


def test_long_answers_come_in_parts_that_fit(server, assistant, noetl):
    execution_id = ended(server, LARGE)
    whole = noetl("executions", "result", execution_id, "--server", server.url).out

    parts, offset = [], 0
    while offset is not None:
        data = assistant.call("get_result", execution_id=execution_id, offset=offset)
        parts.append(data["text"])
        offset = int(data["next"].rpartition("=")[2]) if "next" in data else None
    document = assistant.call("get_execution", execution_id=execution_id)
    events = assistant.call("list_events", execution_id=execution_id, limit=200)

    assert len(parts) > 5
    assert "".join(parts) + "\n" == whole
    for found in (document, events, *parts):
        assert len(json.dumps(found)) < 60_000
    assert document["steps"][0]["whole_result"]


def test_what_is_too_long_for_an_answer_is_cut_and_says_so(server, assistant):
    text = ASIDE.format("wordy") + (
        "workload: {words: []}\nworkflow: [{step: start, tool: {kind: noop}}]\n"
    )
    execution_id = ended(server, text, words=["y" * 500 for _ in range(400)])

    document = assistant.call("get_execution", execution_id=execution_id)
    pages, after = 0, 0
    while after is not None:
        page = assistant.call("list_events", execution_id=execution_id, after=after, limit=200)
        assert len(json.dumps(page)) < 60_000
        pages, after = pages + 1, page["next_after"] if page["more"] else None

    assert len(json.dumps(document)) < 60_000
    assert document["cut"].startswith("Long texts and lists are cut.")
    assert document["workload"]["words"][-1] == "… (400 in all)"
    assert document["status"] == "COMPLETED"
    assert pages > 1


def test_many_short_lines_of_output_are_no_longer_an_answer_than_others(server, assistant):
    text = ASIDE.format("chatty") + (
        "workflow: [{step: collect_all_of_the_orders, tool: {kind: python,"
        " code: \"print('\\\\n' * 9000)\"}}]\n"
    )
    execution_id = ended(server, text)

    found = assistant.ask("tools/call", name="read_logs", arguments={"execution_id": execution_id})

    assert "collect_all_of_the_orders" in found["content"][0]["text"]
    assert len(found["content"][0]["text"]) < 60_000


def test_executions_are_started_stopped_and_run_again(server, operator):
    start = {"path": "talk/shout", "workload": {"word": "hi"}, "labels": {"by": "tests"}}
    started = operator.call("start_execution", **start, key="once")
    again = operator.call("start_execution", **start, key="once")
    ran = operator.call("get_execution", execution_id=started["execution_id"], wait=50)
    other = operator.call(
        "rerun_execution", execution_id=started["execution_id"], workload={"word": "hello"}
    )
    rerun = operator.call("get_execution", execution_id=other["execution_id"], wait=50)

    assert again == started | {"status": again["status"]}
    assert (ran["result"], ran["labels"]) == ("hi…", {"by": "tests"})
    assert rerun["result"] == "HELLO!"

    refused = operator.refusal("start_execution", path="talk/shout")
    assert refused["code"] == "bad_inputs"
    assert refused["details"]["problems"]
    assert operator.refusal("start_execution", path="talk/none")["code"] == "not_found"

    waiting = operator.call("start_execution", path="talk/waits")["execution_id"]
    assert operator.call("pause_execution", execution_id=waiting)["status"] == "PAUSED"
    assert operator.call("resume_execution", execution_id=waiting)["status"] == "RUNNING"
    cancelled = operator.call("cancel_execution", execution_id=waiting, reason="enough")
    assert cancelled["status"] == "CANCELLED"
    first, *acts = operator.text("explain_execution", execution_id=waiting).splitlines()
    assert first == f"Execution {waiting} of talk/waits version 1 is CANCELLED."
    assert [line.split()[0] for line in acts] == ["Paused", "Resumed", "Cancelled"]
    assert acts[-1].endswith(" by anybody (the server is open): enough")
    assert operator.refusal("cancel_execution", execution_id=waiting)["code"] == "finished"
    assert operator.refusal("cancel_execution", execution_id="last")["code"] == "not_found"


def test_resources_are_playbooks_executions_and_tool_kinds(server, assistant):
    execution_id = ended(server, SHOUT, word="hello")

    def read(uri: str) -> dict[str, Any]:
        [content] = assistant.ask("resources/read", uri=uri)["contents"]
        assert content["uri"] == uri
        return content

    listed = assistant.ask("resources/list")["resources"]
    templates = assistant.ask("resources/templates/list")["resourceTemplates"]

    assert "noetl://playbooks/talk/shout" in [one["uri"] for one in listed]
    assert len(templates) == 3
    assert read("noetl://playbooks/talk/shout")["text"] == SHOUT
    assert json.loads(read(f"noetl://executions/{execution_id}")["text"])["result"] == "HELLO!"
    assert "For example:" in read("noetl://tools/http")["text"]
    for uri in (
        "noetl://playbooks/none",
        "noetl://executions/1000000000000000001",
        "noetl://x",
        "file:///etc/passwd",
    ):
        refused = assistant.ask("resources/read", uri=uri)
        assert (refused["code"], refused["data"]) == (-32002, {"uri": uri})


def test_a_task_of_kind_mcp_calls_it(server):
    command = json.dumps([*COMMAND, "mcp", "--server", server.url])
    text = ASIDE.format("asks") + (
        "workflow: [{step: ask, tool: {kind: mcp, tool_name: get_playbook,"
        f" args: {{path: talk/shout}}, command: {command}}}}}]\n"
    )

    document = server.ended(server.start(text))

    assert document["error"] is None
    assert document["result"]["data"]["content"] == SHOUT


# --- Whose rights, and where --------------------------------------------------------------------


def test_an_assistant_has_the_rights_of_the_token_and_says_none_of_it(tmp_path):
    with guarding() as guarded:
        server, tokens = guarded.server, guarded.tokens
        server.token = tokens["admin"]
        server.post("/api/catalog/register", {"content": SHOUT})
        url = ("--server", server.url, "--allow-actions")
        start = {"path": "talk/shout", "workload": {"word": "hi"}}
        with talking(tmp_path, *url, NOETL_TOKEN=tokens["viewer"]) as viewer:
            viewer.greet()
            assert viewer.call("list_playbooks")["total"] == 1
            refused = viewer.refusal("start_execution", **start)
            assert refused["code"] == "not_allowed"
        with talking(tmp_path, *url, NOETL_TOKEN=tokens["operator"]) as operator:
            operator.greet()
            execution_id = operator.call("start_execution", **start)["execution_id"]
            found = server.get(f"/api/executions/{execution_id}")
            assert found["actor"]["name"] == "operator"
        with talking(tmp_path, *url) as nobody:
            nobody.greet()
            assert nobody.refusal("list_playbooks")["code"] == "unauthenticated"
        heard = viewer.heard + operator.heard + nobody.heard
        assert not any(token.encode() in heard for token in tokens.values())


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        (("--server", "http://bob:canary-1@127.0.0.1:1,http://ann:canary-2@127.0.0.1:2"), "bob"),
        (("--db", "postgresql://bob:canary-1@127.0.0.1:1/shop"), "a PostgreSQL database"),
    ],
)
def test_a_password_in_an_address_is_not_shown(tmp_path, place, shown):
    with talking(tmp_path, *place) as assistant:
        assert shown in assistant.greet()["instructions"]
        assistant.refusal("list_playbooks")

    assert b"canary-1" not in assistant.heard
    assert b"canary-2" not in assistant.heard


def test_no_tool_shows_a_secret(server, assistant):
    secret = "canary/Zwölf+monkeys-4711"
    server.post("/api/credentials", {"name": "shop", "type": "basic", "data": {"key": secret}})
    text = (
        ASIDE.format("secretive")
        + """\
keychain: [{name: shop, kind: credential, credential: shop}]
workflow:
  - step: start
    tool: {kind: python, args: {key: "{{ keychain.shop.key }}"}, code: "print(key)\\nresult = key"}
    next: end
  - step: end
    tool:
      kind: python
      args: {key: "{{ keychain.shop.key }}"}
      code: "raise ValueError(f'{key} was refused')"
"""
    )
    execution_id = ended(server, text)

    one = {"execution_id": execution_id}
    assistant.call("get_playbook", path="aside/secretive")
    assistant.call("list_executions")
    assistant.call("get_execution", **one)
    assert "was refused" in assistant.text("explain_execution", **one)
    assistant.call("explain_execution", **one, step="end")
    assistant.call("list_events", **one, limit=200)
    assistant.call("get_result", **one, step="start")
    assistant.call("read_logs", **one)
    assistant.ask("resources/read", uri=f"noetl://executions/{execution_id}")

    assert not [form for form in forms(secret) if form in assistant.heard]


def test_it_works_on_a_database_and_beside_the_process_that_holds_it(tmp_path, noetl):
    (tmp_path / "shout.yaml").write_text(SHOUT)
    (tmp_path / "fails.yaml").write_text(FAILS)
    with talking(tmp_path, "--allow-actions") as assistant:
        assistant.greet()
        missing = assistant.refusal("list_playbooks")
        assert "does not exist" in missing["message"]
        assert assistant.call("validate_playbook", content=SHOUT)["valid"] is True
        assert assistant.refusal("start_execution", path="talk/shout")["code"] == "store_error"
        assert not (tmp_path / ".noetl").exists()

        assert noetl("register", "shout.yaml", "fails.yaml").code == 0
        assert noetl("run", "fails.yaml").code == 1
        assert "no money" in assistant.text("explain_execution", execution_id="last")
        start = {"path": "talk/shout", "workload": {"word": "hello"}}
        alone = assistant.call("start_execution", **start)
        assert "executions resume" in alone["note"]
        told = assistant.text("explain_execution", execution_id=alone["execution_id"])
        assert "No process is running it" in told
        assert noetl("executions", "resume", alone["execution_id"]).code == 0
        assert assistant.text("get_result", execution_id=alone["execution_id"]) == "HELLO!"

        with serving(tmp_path, kind="dev"):
            beside = assistant.call("start_execution", **start)
            found = assistant.call("get_execution", execution_id=beside["execution_id"], wait=50)
            assert found["result"] == "HELLO!"
            assert "note" not in beside


def test_actions_that_are_asked_for_at_once_happen_in_their_order(tmp_path, noetl):
    (tmp_path / "shout.yaml").write_text(SHOUT)
    assert noetl("register", "shout.yaml").code == 0
    with talking(tmp_path, "--allow-actions") as assistant:
        assistant.greet()
        for word in "abcdefghijkl":
            start = {"path": "talk/shout", "workload": {"word": word}}
            assistant.request("tools/call", name="start_execution", arguments=start)
        answers = [assistant.hear() for _ in "abcdefghijkl"]
        listed = assistant.call("list_executions")["executions"]

    started = [one["result"]["structuredContent"]["execution_id"] for one in answers]
    assert [one["id"] for one in answers] == [*range(2, 14)]
    assert [one["execution_id"] for one in listed] == started[::-1]


def test_a_server_that_is_gone_is_told_and_one_that_is_back_is_used(tmp_path):
    with serving(tmp_path, kind="dev") as first, talking(tmp_path, "--server", first.url) as one:
        one.greet()
        assert one.call("list_playbooks")["total"] == 0
        first.terminate()
        assert one.refusal("list_playbooks")["code"] == "unreachable"
        with serving(tmp_path, kind="dev", port=first.port):
            assert one.call("list_playbooks")["total"] == 0


def test_every_tool_is_on_its_page():
    page = (Path(__file__).parents[2] / "docs" / "mcp.md").read_text()

    assert [name for name in READING | ACTING if f"`{name}`" not in page] == []
