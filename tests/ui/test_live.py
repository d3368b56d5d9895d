"""Pages follow what runs, over one stream for all tabs of a browser.

What a page did not hear, or could not read, it looks at again: between its first look and the news
lies a moment in which an execution may end. Some tests make that moment long.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.server.processes import Server
from tests.ui.conftest import SECONDS, Stage, Tab, until
from tests.ui.seed import register, start

NEWS_COME = 30_000
"""Pages also look without news, but later than this."""
NEWS_ONLY = """
const setEvery = window.setInterval;
window.setInterval = (run, every, ...more) => (every < 10_000 ? setEvery(run, every, ...more) : 0);
"""
"""A page also looks now and then without having heard anything. Not here."""

ANSWERS_TOO_EARLY = """
const ask = window.fetch;
window.follows = [];
window.fetch = async (url, options) => {
  if (!String(url).includes("/api/stream") || !String(url).includes("execution")) {
    return ask(url, options);
  }
  const pipe = new TransformStream();
  window.follows.push(() => ask(url, options).then((answer) => answer.body.pipeTo(pipe.writable)));
  return new Response(pipe.readable, { headers: { "Content-Type": "text/event-stream" } });
};
"""
"""As a busy server does: the head of a stream comes long before it follows the execution."""


@pytest.fixture
def own_tab(browser: Any, stage: Stage) -> Iterator[Tab]:
    """With a context of its own: what is injected here is not for other tests."""
    opened = Tab(browser, stage.server.url)
    yield opened
    opened.close()


def says(page: Any, status: str) -> None:
    page.locator(".title .status", has_text=status).wait_for()


def answered(stage: Stage, waiting: str) -> None:
    """Somebody answers the form of this execution elsewhere."""
    said = {"name": "approval.received", "step": "approve", "data": {"approved": True}}
    stage.server.post(f"/api/executions/{waiting}/events", said)
    stage.server.ended(waiting)


def test_the_page_survives_a_server_that_is_killed(browser, tmp_path):
    server = Server(tmp_path, kind="dev")
    try:
        go_on = tmp_path / "go_on"
        register(server, "ops/slow", HELD.replace("FILE", str(go_on)))
        running = start(server, "ops/slow")
        server.wait_for(running, "task.started")
        tab = Tab(browser, server.url)
        page = tab.go(f"/executions/{running}")
        page.locator(".title .status", has_text="running").wait_for()
        server.kill()
        page.locator(".banner").wait_for()
        go_on.touch()
        server = Server(tmp_path, kind="dev", port=server.port)
        page.locator(".title .status", has_text="done").wait_for()
        tab.close()
    finally:
        server.end()


HELD = """
workflow:
  - step: start
    tool: { kind: shell, command: "until test -e FILE; do sleep 0.1; done" }
"""


def test_seven_tabs_follow_over_one_stream(browser, stage: Stage):
    """A browser opens six connections to one server: seven streams would block all else."""
    context = browser.new_context(viewport={"width": 800, "height": 600})
    context.set_default_timeout(SECONDS)
    running = [start(stage.server, "ops/slow") for _ in range(7)]
    pages = []
    reading: set[object] = set()
    context.on("request", lambda one: "/api/stream" in one.url and reading.add(one))
    context.on("requestfailed", lambda one: reading.discard(one))
    context.on("requestfinished", lambda one: reading.discard(one))
    for execution_id in running:
        page = context.new_page()
        page.goto(f"{stage.server.url}/executions/{execution_id}")
        page.locator(".title .status", has_text="running").wait_for()
        pages.append(page)
    for execution_id in running:
        stage.server.post(f"/api/executions/{execution_id}/cancel")
    for page in pages:
        page.locator(".title .status", has_text="cancelled").wait_for()
    until(pages[0], lambda: len(reading) == 1)  # one lingers while the next begins
    pages[0].close()  # the one that read for all
    waiting = start(stage.server, "ops/slow")
    pages[1].goto(f"{stage.server.url}/executions/{waiting}")
    pages[1].locator(".title .status", has_text="running").wait_for()
    stage.server.post(f"/api/executions/{waiting}/cancel")
    pages[1].locator(".title .status", has_text="cancelled").wait_for()
    context.close()


@pytest.mark.parametrize("how", ["refused", "lost"])
def test_what_could_not_be_read_is_asked_for_again(own_tab: Tab, stage: Stage, how: str):
    troubled: list[str] = []

    def trouble_first(route: Any) -> None:
        if len(troubled) == 2:
            route.continue_()
            return
        troubled.append(route.request.url)
        if how == "refused":
            said = {"error": {"code": "internal", "message": "Internal error.", "details": None}}
            route.fulfill(status=500, json=said)
        else:
            route.abort()

    own_tab.page.route("**/state", trouble_first)
    page = own_tab.go(f"/executions/{stage.ids['done']}")
    page.locator(".trouble").wait_for()

    says(page, "done")

    assert len(troubled) == 2


def test_the_end_is_seen_although_the_stream_opened_before_it_followed(own_tab: Tab, stage: Stage):
    page = own_tab.page
    page.add_init_script(NEWS_ONLY + ANSWERS_TOO_EARLY)
    running = start(stage.server, "ops/slow")
    own_tab.go(f"/executions/{running}")
    says(page, "running")
    until(page, lambda: page.evaluate("window.follows.length"))
    page.wait_for_timeout(1000)  # whatever it does because the stream has opened, it did
    stage.server.post(f"/api/executions/{running}/cancel")
    page.evaluate("for (const follow of window.follows) void follow().catch(() => undefined)")

    says(page, "cancelled")


def test_the_end_is_seen_although_another_tab_had_heard_of_it_before(own_tab: Tab, stage: Stage):
    """The other one reads for both, and has read about this execution all the time."""
    running = start(stage.server, "ops/slow")
    stage.server.wait_for(running, "task.log")  # nothing more happens until it is cancelled
    other = own_tab.page
    other.add_init_script(NEWS_ONLY)
    first: list[str] = []

    def as_first(route: Any) -> None:
        if not first:
            first.append(route.fetch().text())
        route.fulfill(body=first[0], content_type="application/json")

    other.route("**/state", as_first)  # it does not get to know of the end, and follows on
    read: list[str] = []
    other.on("response", lambda one: f"topics=execution%3A{running}" in one.url and read.append(""))
    own_tab.go(f"/executions/{running}")
    says(other, "running")
    until(other, lambda: read)
    other.wait_for_timeout(1000)  # whatever it does because the stream has opened, it did
    page = own_tab.context.new_page()
    page.add_init_script(NEWS_ONLY)
    looks: list[tuple[Any, Any]] = []

    def first_late(route: Any) -> None:
        if looks:
            route.continue_()
        else:
            looks.append((route, route.fetch()))

    page.route("**/state", first_late)
    page.goto(f"{stage.server.url}/executions/{running}")
    until(page, lambda: looks)
    with other.expect_request("**/state"):
        stage.server.post(f"/api/executions/{running}/cancel")
    [(route, answer)] = looks
    assert answer.json()["status"] == "RUNNING"
    route.fulfill(response=answer)

    says(page, "cancelled")


def test_a_tab_that_comes_or_goes_makes_no_other_look_again(own_tab: Tab, stage: Stage):
    """Whoever reads for all tabs has heard of their topics all the time."""
    context = own_tab.context
    running = [start(stage.server, "ops/slow") for _ in range(3)]
    for execution_id in running:  # nothing more happens until they are cancelled
        stage.server.wait_for(execution_id, "task.log")
    opened: list[str] = []
    context.on("response", lambda one: "/api/stream" in one.url and opened.append(one.url))

    def follows(execution_id: str) -> Any:
        page = context.new_page()
        page.add_init_script(NEWS_ONLY)
        page.goto(f"{stage.server.url}/executions/{execution_id}")
        says(page, "running")
        until(page, lambda: any(execution_id in url for url in opened))
        page.wait_for_timeout(1000)  # whatever it does because the stream has opened, it did
        return page

    first = follows(running[0])
    looks: list[str] = []
    first.on("request", lambda one: one.url.endswith("/state") and looks.append(one.url))
    others = [follows(execution_id) for execution_id in running[1:]]
    streams = len(opened)
    again = context.new_page()
    again.goto(f"{stage.server.url}/executions/{running[0]}")
    says(again, "running")
    for page in (again, *others):
        page.wait_for_timeout(1000)
        page.close()
    first.wait_for_timeout(1000)

    assert looks == []
    assert len(opened) == streams
    stage.server.post(f"/api/executions/{running[0]}/cancel")
    says(first, "cancelled")
    assert looks
    for execution_id in running[1:]:
        stage.server.post(f"/api/executions/{execution_id}/cancel")


def test_the_timeline_of_what_has_ended_is_whole(own_tab: Tab, stage: Stage):
    """The last look at the timeline may be answered before the end is stored, and the look at the
    state after it: then nobody tells of the end any more."""
    page = own_tab.page
    page.add_init_script(NEWS_ONLY)
    waiting = start(stage.server, "ops/invoice")
    stage.server.wait_for(waiting, "step.waiting")
    old: list[str] = []
    late: list[tuple[Any, Any]] = []
    is_told: list[bool] = []

    def timeline(route: Any) -> None:
        if is_told:
            route.continue_()
        else:
            old.append(route.fetch().text())
            route.fulfill(body=old[0], content_type="application/json")

    def state(route: Any) -> None:
        answer = route.fetch()
        if not late and answer.json()["status"] == "COMPLETED":
            late.append((route, answer))
        else:
            route.fulfill(response=answer)

    page.route("**/timeline", timeline)
    page.route("**/state", state)
    own_tab.go(f"/executions/{waiting}")
    page.locator(".timeline .line", has_text="approve").wait_for()
    answered(stage, waiting)
    # Nobody tells of more than this look has seen, and the page was shown an older one.
    until(page, lambda: late and json.loads(old[-1])["seq"] >= late[0][1].json()["last_seq"])
    [(route, answer)] = late
    is_told.append(True)
    route.fulfill(response=answer)

    says(page, "done")
    page.locator(".timeline .line", has_text="pay").wait_for()


def test_iterations_that_somebody_scrolled_to_stay_while_the_loop_runs(
    own_tab: Tab, stage: Stage, tmp_path
):
    register(stage.server, "shop/gated", GATED)
    gated = start(stage.server, "shop/gated", folder=str(tmp_path))
    page = own_tab.go(f"/executions/{gated}?step=start")
    page.get_by_role("heading", name="300 done").wait_for()
    rows = page.get_by_role("table", name="Iterations")
    expect(rows).to_have_attribute("aria-rowcount", "200")
    rows.evaluate("(one) => (one.scrollTop = one.scrollHeight)")
    expect(rows).to_have_attribute("aria-rowcount", re.compile("3.."))
    rows.evaluate("(one) => (one.scrollTop = 7200)")
    before = rows.evaluate("(one) => one.scrollTop")
    (tmp_path / "300").touch()
    page.get_by_role("heading", name="301 done").wait_for()
    own_tab.settle()
    assert rows.evaluate("(one) => one.scrollTop") == before
    stage.server.post(f"/api/executions/{gated}/cancel")


GATED = """
workload: { folder: "" }
workflow:
  - step: start
    loop:
      in: "{{ range(310) | list }}"
      iterator: n
      spec: { mode: parallel, max_in_flight: 4 }
    tool:
      kind: python
      code: |
        import os, time
        while n >= 300 and not os.path.exists(f"{folder}/{n}"):
            time.sleep(0.05)
      args: { n: "{{ iter.n }}", folder: "{{ workload.folder }}" }
"""
"""From iteration 300 on each waits for a file of its number."""


def test_a_form_that_is_answered_while_forms_are_counted_is_not_counted(own_tab: Tab, stage: Stage):
    waiting = start(stage.server, "ops/invoice")
    stage.server.wait_for(waiting, "step.waiting")
    late: list[tuple[Any, Any]] = []
    later = threading.Event()

    def first_late(route: Any) -> None:
        answer = route.fetch()
        if late:
            later.set()
            route.fulfill(response=answer)
        else:
            late.append((route, answer))

    page = own_tab.page
    page.route("**/api/inbox?*", first_late)
    own_tab.go("/executions")
    until(page, lambda: late)
    answered(stage, waiting)
    page.wait_for_timeout(3000)  # The news comes while the first answer is under way.
    assert not later.is_set(), "one question at a time"
    [(route, answer)] = late
    route.fulfill(response=answer)
    counted = len(answer.json()["forms"]) - 1
    left = page.locator(".badge", has_text=str(counted) if counted else re.compile("."))
    left.wait_for(state="visible" if counted else "detached", timeout=NEWS_COME)


def test_a_hook_shows_what_it_started_as_soon_as_it_has(own_tab: Tab, stage: Stage):
    """Its page looks every ten seconds anyway: so long nobody has to wait."""
    stage.server.post("/api/catalog/register", {"content": CALLED})
    page = own_tab.page
    asked: list[float] = []
    page.on("request", lambda one: "/api/hooks/" in one.url and asked.append(time.monotonic()))
    own_tab.go("/schedules/shop/called?kind=hooks")
    own_tab.says("Nobody has called yet.")
    for _ in range(3):
        own_tab.settle()
        page.wait_for_timeout(500)
    asked.clear()
    called = time.monotonic()
    stage.server.ask("POST", "/hooks/shop/called", {})
    until(page, lambda: asked)
    assert asked[0] - called < SOON
    page.get_by_role("cell", name="started").wait_for()


SOON = 6
"""Seconds until a page has heard of something: less than one that only looks would take."""
CALLED = """
apiVersion: noetl.io/v2
kind: Hook
metadata: { name: called, path: shop/called }
spec: { verify: none, target: { playbook: shop/orders, workload: { orders: 1 } } }
"""


def test_a_page_opened_while_the_server_is_away_loads_when_it_is_back(own_tab: Tab, stage: Stage):
    page = own_tab.page
    away = "**/api/auth/me"
    page.route(away, lambda route: route.abort())
    own_tab.expected = ("net::",)
    page.goto(f"{stage.server.url}/playbooks")
    own_tab.says("The server does not answer.")
    page.unroute(away)
    own_tab.says("invoice")


def test_an_action_whose_answer_is_lost_says_that_nobody_knows_whether_it_was_done(
    own_tab: Tab, stage: Stage
):
    """It said that the page would try again by itself."""
    page = own_tab.go(f"/executions/{stage.ids['done']}")
    page.route("**/rerun", lambda route: route.abort())
    own_tab.expected = ("net::",)
    page.get_by_role("button", name="Rerun", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Rerun", exact=True).click()
    dialog.get_by_text("Nobody knows whether this was done").wait_for()


def test_what_takes_long_to_read_is_not_read_all_the_time(own_tab: Tab, stage: Stage):
    """With news four times per second a long log was read without a rest, for one page."""
    register(stage.server, "shop/chatty", CHATTY)
    chatty = start(stage.server, "shop/chatty")
    page = own_tab.page
    asked: list[float] = []

    def timeline(route: Any) -> None:
        asked.append(time.monotonic())
        page.wait_for_timeout(LONG)
        route.continue_()

    page.route("**/timeline", timeline)
    own_tab.go(f"/executions/{chatty}")
    moment = page.locator(".slider .moment")
    heard = set()
    until(page, lambda: (heard.add(moment.inner_text()), len(heard) > 12)[1])
    stage.server.post(f"/api/executions/{chatty}/cancel")
    says(page, "cancelled")

    page.unroute_all(behavior="wait")
    pauses = [later - before for before, later in itertools.pairwise(asked)]
    assert min(pauses[:-1], default=LONG) > 3 * LONG / 1000  # the last look is the one at the end


def test_why_a_loop_runs_is_read_once_while_it_does(own_tab: Tab, stage: Stage):
    """The whole log was read for each iteration that began, as often as there was news."""
    register(stage.server, "shop/chatty", CHATTY)
    chatty = start(stage.server, "shop/chatty")
    asked: list[str] = []
    own_tab.page.on("request", lambda one: "/why?step" in one.url and asked.append(one.url))
    page = own_tab.go(f"/executions/{chatty}?step=start")
    moment = page.locator(".slider .moment")
    heard = set()
    until(page, lambda: (heard.add(moment.inner_text()), len(heard) > 6)[1])
    page.locator(".waits").first.wait_for()
    assert len(asked) == 1
    stage.server.post(f"/api/executions/{chatty}/cancel")
    says(page, "cancelled")


LONG = 400
CHATTY = """
workflow:
  - step: start
    loop: { in: "{{ range(2000) | list }}", iterator: n, spec: { mode: sequential } }
    tool: { kind: shell, command: "sleep 0.2" }
"""


def test_a_page_says_that_the_server_has_another_version(browser, tmp_path):
    """An old page went on asking a new server until something failed."""
    server = Server(tmp_path, kind="dev")
    try:
        tab = Tab(browser, server.url)
        page = tab.go("/workers")
        tab.says("pool default")
        server.kill()
        page.locator(".banner", has_text="does not answer").wait_for()
        page.route(
            f"{server.url}/", lambda route: route.fulfill(body=OTHER, content_type="text/html")
        )
        server = Server(tmp_path, kind="dev", port=server.port)
        page.locator(".banner", has_text="another version").wait_for()
        page.get_by_role("button", name="Load the page again").click()
        tab.says("pool default")
        tab.close()
    finally:
        server.end()


OTHER = '<script type="module" src="./ui/app-OTHER.js"></script>'
