"""One stream for a whole browser: what it says, how it goes on, and what slow readers are told."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from typing import Any, NamedTuple

import msgspec
import pytest

from noetl import wiring
from noetl.api.stream import PAGE_BYTES
from noetl.settings import Settings
from tests.examples.system import temporary_folder
from tests.server.processes import Server, serving
from tests.server.test_looking import ASKS, REPORT
from tests.servers import unused_database
from tests.stopwatch import PATIENCE


class Message(NamedTuple):
    event: str
    data: Any
    id: str | None


class Stream:
    """The messages of an open stream."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self._answer = answer
        self.position = ""

    def next(self) -> Message:
        event, data, found = "", "", None
        while line := self._answer.readline().decode():
            word, _, rest = line.rstrip("\n").partition(": ")
            if word == "event":
                event = rest
            elif word == "data":
                data = rest
            elif word == "id":
                found = rest
            elif not word and event:
                if found is not None:
                    self.position = found
                return Message(event, json.loads(data), found)
        raise AssertionError("the stream has ended")

    def until(self, event: str, **wanted: Any) -> list[Message]:
        """All up to the first of this name whose data has these values."""
        found = [self.next()]
        while found[-1].event != event or any(
            found[-1].data.get(key) != value for key, value in wanted.items()
        ):
            found.append(self.next())
        return found


@contextmanager
def streaming(server: Server, topics: str, last: str | None = None) -> Iterator[Stream]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    headers = {} if last is None else {"Last-Event-ID": last}
    try:
        connection.request("GET", f"/api/stream?topics={topics}", headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        yield Stream(answer)
    finally:
        connection.close()


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    options: dict[str, Any] = {}
    if request.param == "postgres":
        postgres = request.getfixturevalue("postgres_server")
        options["NOETL_DATABASE_URL"] = unused_database(postgres, "topics")
    with temporary_folder() as folder, serving(folder, kind="dev", **options) as found:
        yield found


def test_rows_that_change_and_forms_that_wait_come_over_one_stream(server: Server):
    with streaming(server, "executions,inbox,workers") as stream:
        assert stream.next().event == "position"
        begun = {one.event: one.data for one in [stream.next(), stream.next()]}
        before = begun.get("inbox", {}).get("total", 0)
        execution_id = server.start(ASKS)
        rows: dict[str, Any] = {}
        totals = []
        while rows.get("waits") != "form" or before + 1 not in totals:
            said = stream.next()
            if said.event == "executions":
                for row in said.data["executions"]:
                    if row["execution_id"] == execution_id:
                        rows = row
            if said.event == "inbox":
                totals.append(said.data["total"])
        assert (rows["path"], rows["step"]) == ("desk/approve", "approve")
        server.post(f"/api/executions/{execution_id}/cancel")
        stream.until("inbox", total=before)


def test_a_form_that_comes_where_another_went_is_told_although_as_many_wait(server: Server):
    """The badge of the web UI counts the forms that one person may answer: their number may change
    while that of all forms does not."""
    asks_twice = ASKS.replace("desk/approve", "desk/twice").replace(
        "  - step: end\n",
        "  - step: again\n"
        "    spec: {eval_mode: on_event, form: {role: boss, fields: [{name: sure}]}}\n"
        "    case: [{when: \"{{ event.name == 'approval.received' }}\", then: {next: end}}]\n"
        "  - step: end\n",
    )
    execution_id = server.start(asks_twice.replace("[{step: end}]", "again"))
    server.wait_for(execution_id, "step.waiting")
    with streaming(server, "inbox") as stream:
        # The stream may begin with what an earlier reader was told.
        waiting = len(server.get("/api/inbox")["forms"])
        before = stream.until("inbox", total=waiting)[-1].data
        answer = {"name": "approval.received", "data": {"approved": True}, "step": "approve"}
        server.post(f"/api/executions/{execution_id}/events", answer)
        stream.until("inbox", **before)
    server.post(f"/api/executions/{execution_id}/cancel")


def test_events_of_an_execution_go_on_where_the_stream_broke_off(server: Server):
    execution_id = server.start(ASKS)
    server.wait_for(execution_id, "step.waiting")
    head = len(server.events(execution_id))
    with streaming(server, f"execution:{execution_id}") as stream:
        first = stream.next()
        assert first == Message("position", {execution_id: head}, f"{execution_id}={head}")
    answer = {"name": "approval.received", "data": {"approved": True}, "step": "approve"}
    server.post(f"/api/executions/{execution_id}/events", answer)
    server.ended(execution_id)
    expected = server.events(execution_id)[head:]

    with streaming(server, f"execution:{execution_id}", stream.position) as stream:
        assert stream.next().data == {execution_id: head}
        read = stream.until("position")
        while read[-1].data != {execution_id: len(expected) + head}:  # it may come in parts
            read += stream.until("position")
    assert [one.data for one in read if one.event == "event"] == expected


def test_a_stream_that_goes_on_begins_with_a_look_at_the_list(server: Server):
    with streaming(server, "executions") as stream:
        assert stream.next() == Message("position", {}, "-")

    with streaming(server, "executions,inbox", stream.position) as stream:
        assert stream.next().event == "position"
        assert stream.next() == Message("reset", {"topic": "executions"}, None)


def test_a_reader_holds_one_page_however_many_topics_have_one_for_it(tmp_path):
    """Eight executions whose first events have 200 KB each, all from the beginning."""

    async def work() -> list[bytes]:
        settings = Settings.from_environment({})
        here = msgspec.structs.replace(settings, database_url=f"sqlite:///{tmp_path}/x.db")
        async with wiring.embedded(here, work=False, serves=True) as services:
            entry, _ = await services.catalog.register(ASKS)
            start = services.executions.start
            large = {"text": "x" * 200_000}
            ids = [await start(entry.digest, entry.path, entry.version, large) for _ in range(8)]
            place = dict.fromkeys(ids, 0)
            found: list[bytes] = []
            topics = [f"execution:{one}" for one in ids]
            async with aclosing(services.topics.frames(topics, place)) as frames:
                while not all(b"".join(found).count(one.encode()) > 5 for one in ids):
                    found.append(await anext(frames))
            return found

    sizes = [len(one) for one in asyncio.run(work())]

    assert sum(sizes) > 8 * 200_000
    assert max(sizes) < 3 * PAGE_BYTES


def test_events_come_as_they_happen_and_several_executions_share_a_stream(server: Server):
    both = [server.start(ASKS) for _ in range(2)]
    for one in both:
        server.wait_for(one, "step.waiting")
    heads = {one: len(server.events(one)) for one in both}
    topics = ",".join(f"execution:{one}" for one in both)
    with streaming(server, topics) as stream:
        assert stream.next().data == heads
        for one in both:
            server.post(f"/api/executions/{one}/cancel")
        ended: set[str] = set()
        seqs: dict[str, list[int]] = {one: [] for one in both}
        while ended != set(both):
            said = stream.next()
            if said.event == "event":
                seqs[said.data["execution_id"]].append(said.data["seq"])
                if said.data["name"] == "playbook.processed":
                    ended.add(said.data["execution_id"])
    for one in both:
        last = len(server.events(one))
        assert seqs[one] == list(range(heads[one] + 1, last + 1))


def test_a_topic_or_position_that_is_none_is_refused(server: Server):
    for topics, status in (("", 400), ("executoins", 400), ("execution:77", 404)):
        reply = server.ask("GET", "/api/stream", topics=topics)
        assert reply.status == status, topics
    assert "Did you mean" in server.ask("GET", "/api/stream", topics="executoins").raw.decode()
    wrong = {"Last-Event-ID": "x"}
    assert server.ask("GET", "/api/stream", topics="inbox", headers=wrong).status == 400
    many = ",".join(f"execution:{number}" for number in range(51))
    assert server.ask("GET", "/api/stream", topics=many).status == 400


def test_a_reader_far_behind_is_told_to_look_again(server: Server):
    loop = REPORT.replace("shop/report", "shop/long").replace(
        "{step: start, tool",
        '{step: start, loop: {in: "{{ range(4000) | list }}", iterator: n,'
        " spec: {mode: parallel}}, tool",
    )
    execution_id = server.start(loop)
    server.ended(execution_id)
    head = server.get(f"/api/executions/{execution_id}/state")["last_seq"]
    assert head > 5000

    with streaming(server, f"execution:{execution_id}", f"{execution_id}=1") as stream:
        stream.next()
        [reset] = stream.until("reset")

    assert reset.data == {"topic": f"execution:{execution_id}", "seq": head}


def test_a_server_that_drains_ends_its_streams():
    with (
        temporary_folder() as folder,
        serving(folder, kind="dev") as server,
        streaming(server, "executions,workers") as stream,
    ):
        stream.next()
        assert server.terminate() == 0
        with pytest.raises((AssertionError, http.client.IncompleteRead, ConnectionError)):
            stream.until("never")
