"""The web UI in a real browser, against a real server: what people see and do there."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.canaries import assert_clean
from tests.effort import later
from tests.server.processes import Process, Server, serving
from tests.stopwatch import PATIENCE
from tests.ui.conftest import SECONDS, Stage, Tab
from tests.ui.pictures import NIGHTLY
from tests.ui.seed import SLOW, XSS, register, start

AXE = gzip.decompress((Path(__file__).parent / "axe.min.js.gz").read_bytes()).decode()
"""axe-core 4.14.0 as Deque publishes it (MPL 2.0): the checks of accessibility."""
CAUSE = 'duplicate key value violates "orders_pkey" (23505)'


def screens(ids: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Every screen: its address, and something that it must show."""
    failed, done = ids["failed"], ids["done"]
    return {
        "home": ("/", "Failed today"),
        "list": ("/executions", "waits for a form"),
        "query": ("/executions?q=status:failed+path:shop/*", CAUSE),
        "failed": (f"/executions/{failed}", CAUSE),
        "events": (f"/executions/{failed}?tab=events", "playbook.execution.requested"),
        "data": (f"/executions/{done}?tab=data", "25 orders of north"),
        "output": (f"/executions/{failed}?tab=output", "INSERT INTO orders"),
        "why": (f"/executions/{ids['form']}?tab=why", "waits for approval.received"),
        "loop": (f"/executions/{ids['loop']}", "row 3 has no city"),
        "playbooks": ("/playbooks", "invoice"),
        "playbook": ("/playbooks/shop/orders", "Write the orders into the warehouse."),
        "versions": ("/playbooks/shop/orders?against=1", "version 1 → 2"),
        "inbox": ("/inbox", "Pay 4200 to Nordic Paper?"),
        "workers": ("/workers", "pool default"),
        "schedules": ("/schedules", "Schedules and triggers"),
        "hooks": ("/schedules?kind=hooks", "Schedules and triggers"),
        "consumers": ("/schedules?kind=consumers", "Schedules and triggers"),
        "notifications": ("/schedules?kind=notifications", "Schedules and triggers"),
        "compare": (f"/compare?a={done}&b={failed}", "First difference"),
        "admin": ("/admin?part=health", "not configured"),
        "audit": ("/admin?part=audit", "execution.start"),
        "retention": ("/admin?part=retention", "Kept by people"),
        "credentials": ("/admin?part=credentials", "New or replace"),
        "users": ("/admin?part=users", "This server has no users"),
        "tokens": ("/admin?part=tokens", "No token yet."),
        "editor": ("/editor?path=ops/invoice", "No problems"),
        "expression": ("/editor?path=shop/orders&part=expression", "Evaluate"),
        "what if": ("/editor?path=shop/orders&part=what+if", "Compare"),
        "tests": ("/editor?path=shop/orders&part=tests", "Make a test of it"),
    }


def test_every_screen_shows_its_data(tab: Tab, stage: Stage):
    for path, text in screens(stage.ids).values():
        tab.go(path)
        tab.says(text)


def test_a_failure_is_one_click_from_the_list(tab: Tab, stage: Stage):
    page = tab.go("/executions?q=status:failed")
    page.get_by_role("link", name=f"…{stage.ids['failed'][-6:]}").click()

    page.locator(".failure .message", has_text=CAUSE).wait_for()
    tab.says("shop/orders v2, line 30")
    page.locator(".attempts button", has_text="try 3").wait_for()


def test_keys_open_no_row_of_the_query_before(tab: Tab):
    page = tab.go("/executions")
    tab.says("ops/invoice")
    held: list[Any] = []
    page.route("**/api/executions?*", lambda route: held.append(route))
    page.keyboard.press("/")
    page.keyboard.type("status:waiting")
    page.keyboard.press("Enter")
    page.wait_for_url("**/executions?q=status%3Awaiting")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    assert page.url.endswith("/executions?q=status%3Awaiting")

    assert held
    page.unroute("**/api/executions?*")  # What was held goes on.
    tab.says("1 hit")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    tab.says("waits for approval.received")


def test_the_list_is_walked_by_keys_and_its_query_stands_in_the_address(tab: Tab):
    page = tab.go("/executions")
    tab.says("ops/invoice")
    page.keyboard.press("/")
    page.keyboard.type("status:wai")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/executions?q=status%3Awaiting")
    tab.says("1 hit")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/executions/*")
    tab.says("waits for approval.received")
    page.go_back()
    page.wait_for_url("**/executions?q=status%3Awaiting")


def test_the_palette_leads_anywhere(tab: Tab):
    page = tab.go("/")
    tab.says("What needs you")
    page.keyboard.press("Control+k")
    page.keyboard.type("shop/flaky v")
    page.get_by_role("option", name="shop/flaky").first.wait_for()
    page.keyboard.press("Enter")
    page.wait_for_url("**/playbooks/shop/flaky")


def test_the_slider_shows_another_moment_in_every_pane(tab: Tab, stage: Stage):
    page = tab.go(f"/executions/{stage.ids['failed']}?tab=events&at=8")
    tab.says("event 8 of")
    collect = page.get_by_role("treeitem", name="collect")
    expect(collect).to_contain_text("not reached")
    expect(page.locator(".timeline .line")).to_have_count(1)

    page.get_by_role("button", name="end", exact=True).click()

    page.locator(".timeline .line").nth(2).wait_for()
    expect(collect).to_contain_text("done")


def test_the_tree_of_steps_is_walked_by_arrows(tab: Tab, stage: Stage):
    page = tab.go(f"/executions/{stage.ids['done']}?tab=data")
    page.get_by_role("treeitem", name="start").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_url("**step=collect**")
    page.keyboard.press("ArrowLeft")
    page.wait_for_url("**step=start**")


def test_a_form_is_answered_and_the_page_follows(tab: Tab, stage: Stage):
    waiting = start(stage.server, "ops/invoice", amount=17)
    page = tab.go(f"/executions/{waiting}")
    tab.says("waits for approval.received")
    page.get_by_role("button", name="Answer", exact=True).click()
    asked = page.get_by_role("group", name="Pay 17 to Nordic Paper?")
    page.get_by_role("dialog").get_by_role("button", name="Answer").click()
    expect(asked.get_by_label("Yes")).to_be_focused()  # nothing is answered by not choosing
    asked.get_by_label("Yes").check()
    page.get_by_role("dialog").get_by_role("button", name="Answer").click()

    page.locator(".title .status", has_text="done").wait_for()
    page.locator(".timeline .line", has_text="pay").wait_for()
    page.get_by_role("treeitem", name="approve").focus()
    page.keyboard.press("Enter")
    tab.says("anybody (the server is open)")


def test_a_running_execution_is_cancelled_and_started_again(tab: Tab, stage: Stage):
    running = start(stage.server, "ops/slow")
    page = tab.go(f"/executions/{running}")
    page.locator(".title .status", has_text="running").wait_for()
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_label("Reason").fill("not needed")
    page.get_by_role("button", name="Cancel it").click()
    page.locator(".title .status", has_text="cancelled").wait_for()

    page.get_by_role("button", name="Rerun", exact=True).click()
    page.get_by_label("Over the old workload").fill('{"seconds": 0}')
    page.get_by_role("dialog").get_by_role("button", name="Rerun").click()

    page.wait_for_url(lambda url: running not in url)
    page.locator(".title .status", has_text="done").wait_for()


def test_an_execution_is_paused_and_goes_on(tab: Tab, stage: Stage):
    running = start(stage.server, "ops/slow")
    page = tab.go(f"/executions/{running}")
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_role("dialog").get_by_label("Reason").fill("the warehouse moves")
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    page.locator(".title .status", has_text="paused").wait_for()
    page.get_by_role("button", name="Resume", exact=True).click()
    page.locator(".title .status", has_text="running").wait_for()
    stage.server.post(f"/api/executions/{running}/cancel")


def test_an_execution_is_run_again_from_a_step_with_the_results_before_it(tab: Tab, stage: Stage):
    page = tab.go(f"/executions/{stage.ids['failed']}?step=load")
    page.get_by_role("button", name="Rerun from here").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("From")).to_have_value("load")
    dialog.get_by_label("Over the old workload").fill('{"region": "east"}')
    dialog.get_by_role("button", name="Rerun").click()
    page.wait_for_url(lambda url: stage.ids["failed"] not in url)
    page.locator(".title .status", has_text="done").wait_for()
    again = page.url.rpartition("/")[2].partition("?")[0]
    begun = [one for one in stage.server.events(again) if one["name"] == "task.started"]
    assert "start" not in {one["step"] for one in begun}, "what was done is not done again"


def test_columns_show_fields_of_the_workload_and_many_are_run_again(tab: Tab, stage: Stage):
    register(stage.server, "ops/again", EDITED)
    for total in (11, 12):
        stage.server.ended(start(stage.server, "ops/again", total=total))
    page = tab.go("/executions?q=path:ops/again")
    tab.says("2 hits")
    page.get_by_role("button", name="Columns").click()
    page.get_by_label("Fields of the workload").fill("total")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("columnheader", name="total").wait_for()
    page.get_by_role("cell", name="12", exact=True).wait_for()
    for _ in range(2):
        page.keyboard.press("j")
        page.keyboard.press("x")
    tab.says("2 selected")
    page.get_by_role("button", name="rerun", exact=True).click()
    page.get_by_role("button", name="rerun 2").click()
    tab.says("4 hits")


def test_times_and_theme_are_as_people_like_them_and_stay_so(tab: Tab, stage: Stage):
    page = tab.go(f"/executions/{stage.ids['done']}")
    tab.says("ago")
    page.get_by_label("Times").select_option("utc")
    begun = stage.server.get(f"/api/executions/{stage.ids['done']}")["start_time"]
    page.locator(".title time", has_text=begun[11:19]).wait_for()
    page.get_by_label("Theme").select_option("dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.reload()
    page.locator(".title time", has_text=begun[11:19]).wait_for()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
    page.get_by_label("Theme").select_option("light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


def test_a_recording_is_looked_at_offline(browser, stage: Stage, tmp_path):
    exported = stage.server.ask("GET", f"/api/executions/{stage.ids['failed']}/export")
    (tmp_path / "it.noetl").write_bytes(exported.raw)
    offline = Process(tmp_path, "ui", "it.noetl")
    try:
        tab = Tab(browser, offline.said)
        page = tab.go(f"/executions/{stage.ids['failed']}")
        page.locator(".failure .message", has_text=CAUSE).wait_for()
        page.keyboard.press("[")
        page.wait_for_url("**at=*")
        assert page.get_by_role("button", name="Rerun", exact=True).count() == 0
        # There is no session that could end.
        page.locator("span.who", has_text="visitor").wait_for()
        # A recording has the net and not the text of its playbook.
        assert all("/api/catalog/" in one for one in tab.troubles)
        tab.close()
    finally:
        offline.end()


def test_a_playbook_is_started_from_its_page(tab: Tab):
    page = tab.go("/playbooks/shop/orders")
    page.get_by_role("button", name="Start", exact=True).click()
    page.get_by_label("Workload").fill('{"region": "west", "orders": 3}')
    page.get_by_role("dialog").get_by_role("button", name="Start").click()
    page.wait_for_url("**/executions/*")
    page.locator(".title .status", has_text="done").wait_for()


def test_typed_inputs_are_a_form_and_problems_are_said_in_it(tab: Tab, stage: Stage):
    register(stage.server, "ops/typed", TYPED)
    page = tab.go("/playbooks/ops/typed")
    page.get_by_role("button", name="Start", exact=True).click()
    page.get_by_label("amount").fill("7")
    page.get_by_label("region").select_option("south")
    page.get_by_role("dialog").get_by_role("button", name="Start").click()
    page.wait_for_url("**/executions/*")
    page.locator(".title .status", has_text="done").wait_for()
    page.get_by_role("tab", name="data").click()
    page.locator(".json", has_text="7 of south").first.wait_for()


TYPED = """
executor:
  spec:
    inputs:
      amount: { type: integer, required: true, min: 1 }
      region: { type: enum, options: [north, south], default: north }
workflow:
  - step: start
    tool: { kind: noop, result: "{{ workload.amount }} of {{ workload.region }}" }
    next: end
  - step: end
    tool: { kind: noop, result: "{{ start }}" }
"""


def test_all_that_match_are_cancelled_after_it_was_said_how_many(tab: Tab, stage: Stage):
    register(stage.server, "ops/many", SLOW)
    for _ in range(3):
        start(stage.server, "ops/many")
    page = tab.go("/executions?q=path:ops/many")
    tab.says("3 hits")
    page.get_by_role("checkbox").first.check()
    page.get_by_role("button", name="all 3 that match").click()
    page.get_by_role("button", name="cancel", exact=True).click()
    tab.says("3 chosen; for 3 of them it makes sense")
    page.get_by_role("button", name="cancel 3").click()
    tab.says("cancel: 3 of 3.")
    page.locator(".execution-row .status", has_text="cancelled").nth(2).wait_for()


def test_a_view_is_kept_on_the_server(tab: Tab):
    page = tab.go("/executions?q=status:failed path:shop/*")
    page.get_by_label("Saved views").select_option("+")
    page.get_by_label("Name").fill("on-call")
    page.get_by_role("button", name="Keep").click()
    page.get_by_role("option", name="on-call", exact=True).wait_for(state="attached")
    tab.load("/executions")
    page.get_by_label("Saved views").select_option("on-call")
    page.wait_for_url("**q=status%3Afailed**")


def test_a_fork_says_first_what_happens_again(tab: Tab, stage: Stage):
    page = tab.go(f"/executions/{stage.ids['failed']}?at=12")
    page.get_by_role("button", name="Fork here").click()
    page.get_by_role("button", name="What would happen?").click()
    tab.says("1 call is reused")
    page.get_by_role("dialog").get_by_role("button", name="Fork", exact=True).click()
    page.wait_for_url(lambda url: stage.ids["failed"] not in url)
    page.locator(".title .status", has_text="failed").wait_for()


def test_failed_iterations_are_rerun_after_it_was_said_which(tab: Tab, stage: Stage):
    register(stage.server, "shop/rows", ROWS)
    loop = start(stage.server, "shop/rows")
    stage.server.ended(loop)
    page = tab.go(f"/executions/{loop}?step=start")
    tab.says("2 failed")
    page.get_by_role("button", name="Rerun the failed").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Change ctx").fill('{"mended": true}')
    dialog.get_by_role("button", name="What would happen?").click()
    tab.says("8 calls are reused, 2 happen again")
    dialog.get_by_role("button", name="Fork", exact=True).click()
    page.wait_for_url(lambda url: loop not in url)
    page.locator(".title .status", has_text="done").wait_for()
    page.locator(".json-line", has_text="success: 10").first.wait_for()

    page = tab.go(f"/executions/{loop}?step=start")
    page.get_by_role("button", name="Fork iteration 7").click()
    dialog.get_by_role("button", name="What would happen?").click()
    tab.says("9 calls are reused, 1 happens again")
    tab.says("[7]")


ROWS = """
workflow:
  - step: start
    loop:
      in: "{{ range(10) | list }}"
      iterator: n
      spec: { mode: parallel, on_error: continue }
    tool: { kind: noop, result: "{{ 1 if ctx.mended or iter.n not in (3, 7) else 1 / 0 }}" }
"""


def test_an_execution_is_taken_away_as_a_file_and_as_a_test(tab: Tab, stage: Stage):
    page = tab.go(f"/executions/{stage.ids['done']}")
    for name, ending in (("Export", ".noetl"), ("Test", "orders.test.yaml")):
        with page.expect_download() as downloading:
            page.get_by_role("link", name=name, exact=True).click()
        assert downloading.value.suggested_filename.endswith(ending)
        assert downloading.value.path().stat().st_size > 500


def test_two_versions_are_compared_as_graphs(tab: Tab, stage: Stage):
    register(stage.server, "ops/grown", EDITED)
    more = EDITED.replace("- { step: keep }", "- { step: ask }").replace(
        "- { step: keep, tool: { kind: noop } }", "- { step: ask, tool: { kind: noop } }"
    )
    register(stage.server, "ops/grown", more)
    page = tab.go("/playbooks/ops/grown?against=1")
    before = page.get_by_role("region", name="Graph of version 1")
    after = page.get_by_role("region", name="Graph of version 2")
    before.get_by_role("treeitem", name="keep removed").wait_for(state="attached")
    after.get_by_role("treeitem", name="ask added").wait_for(state="attached")
    after.get_by_role("treeitem", name="start changed").wait_for(state="attached")
    after.get_by_role("treeitem", name="pay unchanged").wait_for(state="attached")


def test_a_rule_that_matched_is_named(tab: Tab, stage: Stage):
    page = tab.go(f"/executions/{stage.ids['failed']}?step=load")
    page.get_by_role("button", name="try 1").click()
    tab.says("rule 1 of 2 matched")
    page.get_by_role("button", name="try 3").click()
    tab.says("no rule matched, or its tries are used up")


def test_hooks_are_listed_with_what_keeps_them_from_working(tab: Tab, stage: Stage):
    stage.server.post("/api/catalog/register", {"content": HOOK})
    stage.server.ask("POST", "/hooks/shop/paid", {"id": 1})
    page = tab.go("/schedules?kind=hooks")
    tab.says("takes nothing: no credential shop_secret")
    page.get_by_role("link", name="shop/paid").click()
    tab.says(f"{stage.server.url}/hooks/shop/paid")
    page.get_by_role("cell", name="refused").wait_for()
    tab.says("not genuine")


def test_deliveries_are_listed_with_what_became_of_them(tab: Tab, stage: Stage):
    stage.server.post("/api/catalog/register", {"content": OPEN_HOOK})
    page = tab.go("/schedules/shop/opened?kind=hooks")
    tab.says("Nobody has called yet.")
    for number, action in (("1", "opened"), ("1", "opened"), ("2", "closed")):
        stage.server.ask("POST", "/hooks/shop/opened", {"action": action}, n=number)
    tab.go("/schedules/shop/opened?kind=hooks")
    for outcome in ("started", "repeated", "ignored"):
        page.get_by_role("cell", name=outcome, exact=True).wait_for()
    tab.says("filtered: `when` does not hold")
    page.get_by_role("row", name="repeated").get_by_role("link").click()
    page.wait_for_url("**/executions/*")


OPEN_HOOK = """
apiVersion: noetl.io/v2
kind: Hook
metadata: { name: opened, path: shop/opened }
spec:
  verify: none
  id: "{{ hook.query.n }}"
  when: "{{ hook.body.action == 'opened' }}"
  target: { playbook: shop/orders, workload: { orders: 1 } }
"""


HOOK = """
apiVersion: noetl.io/v2
kind: Hook
metadata: { name: paid, path: shop/paid }
spec:
  verify: { hmac: { secret: shop_secret, header: x-signature } }
  target: { playbook: shop/orders }
"""


def test_consumers_and_notifications_are_listed_and_paused(tab: Tab, stage: Stage):
    for text in (CONSUMER, NOTIFICATION):
        stage.server.post("/api/catalog/register", {"content": text})
    page = tab.go("/schedules?kind=consumers")
    page.get_by_role("link", name="shop/files_in").click()
    tab.says("What became of the last messages")
    page.get_by_role("button", name="Pause").click()
    page.get_by_label("Note").fill("the disk moves")
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    tab.says("the disk moves")
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Pause").wait_for()
    page = tab.go("/schedules?kind=notifications")
    tab.says("failed, late")
    page.get_by_role("button", name="pause").click()
    page.get_by_label("Note").fill("quiet tonight")
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    tab.says("quiet tonight")
    for path in ("consumers/shop/files_in", "notifications/ops/failures"):
        assert stage.server.ask("DELETE", f"/api/{path}").status == 200


CONSUMER = """
apiVersion: noetl.io/v2
kind: Consumer
metadata: { name: files_in, path: shop/files_in }
spec:
  source: { files: { url: "file:///nowhere/at/all" } }
  target: { playbook: shop/orders }
"""
NOTIFICATION = """
apiVersion: noetl.io/v2
kind: Notification
metadata: { name: failures, path: ops/failures }
spec:
  on: [failed, late]
  late: 30m
  target: { playbook: noetl/notify/slack, workload: { credential: chat, text: x } }
"""


def test_a_worker_is_drained(tab: Tab, stage: Stage):
    worker = {"worker_id": "w-17", "pool": "side", "slots": 3}
    stage.server.post("/api/worker/pool/register", worker)
    page = tab.go("/workers")
    page.get_by_role("button", name="Drain w-17").click()
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    tab.says("draining")
    assert stage.server.post("/api/worker/pool/heartbeat", worker)["drain"]
    stage.server.post("/api/worker/pool/deregister", {"worker_id": "w-17"})


def test_output_is_read_on_and_searched(tab: Tab, stage: Stage):
    register(stage.server, "shop/loud", LOUD)
    loud = start(stage.server, "shop/loud")
    stage.server.ended(loud)
    page = tab.go(f"/executions/{loud}?tab=output")
    page.locator(".log-line").nth(499).wait_for(state="attached")
    page.get_by_role("button", name="Show more").click()
    page.locator(".log-line").nth(509).wait_for(state="attached")
    page.get_by_role("button", name="Show more").wait_for(state="detached")
    page.get_by_label("Search the output").fill("row 50[01]$")
    page.keyboard.press("Enter")
    expect(page.locator(".log-line")).to_have_count(2)


LOUD = """
workflow:
  - step: start
    loop:
      in: "{{ range(510) | list }}"
      iterator: n
      spec: { mode: parallel, max_in_flight: 32 }
    tool: { kind: python, code: "print(f'row {n}')", args: { n: "{{ iter.n }}" } }
"""


def test_an_execution_is_kept_and_released(tab: Tab, stage: Stage):
    page = tab.go(f"/executions/{stage.ids['done']}")
    page.get_by_role("button", name="Keep").click()
    page.get_by_label("Note").fill("for the auditors")
    page.get_by_role("button", name="Keep it").click()
    tab.says("It is kept until somebody releases it")
    page = tab.go("/admin?part=retention")
    tab.says("for the auditors")
    page.get_by_role("button", name="release").click()
    tab.says("Nobody keeps an execution against the rules.")


def test_credentials_users_and_tokens_are_made_and_taken_away(browser, tmp_path):
    with serving(tmp_path) as server:
        tab = Tab(browser, server.url)
        page = tab.go("/admin?part=credentials")
        page.get_by_role("button", name="New or replace").click()
        page.get_by_label("Name").fill("warehouse")
        page.get_by_label("Data").fill('{"password": "canary-of-the-dom"}')
        page.get_by_role("button", name="Keep").click()
        page.get_by_role("cell", name="warehouse").wait_for()
        page.get_by_role("tab", name="tokens").click()
        page.get_by_role("button", name="New", exact=True).click()
        page.get_by_label("Name").fill("robot")
        page.get_by_label("admin").check()
        page.get_by_label("Roles of your own").fill("finance, on-call")
        page.get_by_role("button", name="Create").click()
        tab.says("robot, shown only now:")
        server.token = page.locator("dialog .command code").inner_text()
        made = server.get("/api/access/tokens")["tokens"]
        assert made[0]["roles"] == ["admin", "finance", "on-call"]
        tab.close()  # with a token somebody is known, and nobody may look any more

        tab = Tab(browser, server.url)
        page = tab.go("/")
        page.get_by_role("button", name="Sign in").wait_for()
        assert "canary" not in page.content()
        tab.close()


def test_a_schedule_is_paused_with_a_note(tab: Tab, stage: Stage):
    stage.server.post("/api/catalog/register", {"content": NIGHTLY})
    page = tab.go("/schedules")
    page.get_by_role("link", name="shop/nightly").click()
    tab.says("30 4 * * *")
    page.get_by_role("button", name="Pause").click()
    page.get_by_label("Note").fill("the shop moves")
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    tab.says("the shop moves")
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Pause").wait_for()


def test_a_schedule_is_run_now_and_backfilled_after_a_preview(tab: Tab, stage: Stage):
    nightly = NIGHTLY.replace("shop/nightly", "shop/hourly").replace("30 4 * * *", "30 * * * *")
    stage.server.post("/api/catalog/register", {"content": nightly})
    page = tab.go("/schedules/shop/hourly")
    page.get_by_role("button", name="Backfill").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("From").fill("2026-01-01T00:00")
    dialog.get_by_label("To").fill("2026-01-01T03:00")
    dialog.get_by_role("button", name="Preview").click()
    dialog.get_by_text("3 times, from 2026-").wait_for()
    dialog.get_by_role("button", name="Start 3").click()
    tab.says("3 times are started.")
    page.get_by_role("cell", name="backfill").first.wait_for()
    page.get_by_role("button", name="Run now").click()
    page.wait_for_url("**/executions/*")
    page.locator(".title .status", has_text="done").wait_for()
    assert stage.server.ask("DELETE", "/api/schedules/shop/hourly").status == 200


def test_who_calls_a_playbook_is_on_its_page(tab: Tab, stage: Stage):
    register(stage.server, "ops/caller", CALLER)
    page = tab.go("/playbooks/shop/flaky")
    tab.says("called by")
    page.get_by_role("link", name="ops/caller").click()
    page.wait_for_url("**/playbooks/ops/caller")


CALLER = """
workflow:
  - { step: start, tool: { kind: playbook, path: shop/flaky } }
"""


def test_what_no_worker_takes_is_said_on_the_first_page(browser, tmp_path):
    with serving(tmp_path) as server:  # it has no worker
        register(server, "ops/short", SHORT)
        waiting = start(server, "ops/short")
        server.wait_for(waiting, "step.scheduled")
        tab = Tab(browser, server.url)
        page = tab.go("/")
        page.get_by_role("link", name="pool default").click()
        page.wait_for_url("**/workers")
        tab.says("1 command waits")
        assert tab.troubles == []
        tab.close()


def test_an_expression_is_evaluated_as_the_step_sees_it(tab: Tab, stage: Stage):
    page = tab.go(f"/executions/{stage.ids['done']}?step=load")
    page.get_by_label("Expression").fill("workload.orders * 2")
    page.get_by_role("button", name="Evaluate").click()
    page.locator(".json", has_text="50").first.wait_for()


def test_the_editor_completes_explains_and_draws(tab: Tab):
    page = tab.go("/editor?path=shop/orders")
    page.get_by_role("treeitem", name="collect").wait_for(state="attached")
    page.get_by_label("Playbook").click()
    page.keyboard.press("Control+End")
    page.keyboard.insert_text(
        "  - step: more\n    tool: { kind: noop }\n    next:\n      arcs:\n        - step: rep"
    )
    page.keyboard.press("Control+Space")
    page.get_by_role("option", name="report").click()
    page.get_by_role("treeitem", name="more").wait_for(state="attached")
    page.keyboard.press("Control+Home")
    page.locator(".cm-content").get_by_text("iterator").first.hover()
    page.locator(".cm-about").wait_for()
    page.get_by_role("button", name="discard").click()
    page.get_by_role("treeitem", name="more").wait_for(state="detached")


def test_the_editor_formats_migrates_evaluates_and_compares(tab: Tab, stage: Stage):
    register(stage.server, "ops/edited", EDITED)
    for total in (3, 7):
        stage.server.ended(start(stage.server, "ops/edited", total=total))
    page = tab.go("/editor?path=ops/edited")
    page.get_by_role("treeitem", name="pay").wait_for(state="attached")
    text = page.locator(".cm-content")
    page.get_by_role("button", name="Format").click()
    text.get_by_text("metadata: { name: edited, path: ops/edited }").wait_for()
    page.get_by_role("button", name="Migrate").click()
    tab.says("Nothing is left to migrate.")

    page.get_by_role("tab", name="expression").click()
    page.get_by_role("textbox", name="Expression").fill("workload.total * 6")
    page.get_by_role("button", name="Evaluate").click()
    page.locator(".json", has_text="42").wait_for()

    page.get_by_role("tab", name="what if").click()
    page.get_by_role("button", name="Compare").click()
    tab.says("2 the same, 0 different, 0 unknown.")
    text.get_by_text("workload.total > 5").click()
    page.keyboard.press("Home")
    page.keyboard.press("Shift+End")
    page.keyboard.insert_text("- { step: pay, when: '{{ workload.total > 9 }}' }")
    page.get_by_role("button", name="Compare").click()
    tab.says("1 the same, 1 different, 0 unknown.")
    page.locator("li", has_text="after start it goes to keep; recorded: to pay").wait_for()

    page.get_by_role("tab", name="tests").click()
    page.get_by_role("button", name="Make a test of it").click()
    expect(page.get_by_role("textbox", name="Tests")).to_have_value(re.compile("goes as execution"))
    page.get_by_role("button", name="Run the tests").click()
    tab.says("0 passed, 1 failed.")
    page.get_by_role("button", name="discard").click()
    page.get_by_role("button", name="Run the tests").click()
    tab.says("1 passed, 0 failed.")


EDITED = """
workload: {total: 7}
workflow:
  - step: start
    tool: { kind: noop }
    next:
      arcs:
      - { step: pay, when: "{{ workload.total > 5 }}" }
      - { step: keep }
  - { step: pay, tool: { kind: noop } }
  - { step: keep, tool: { kind: noop } }
"""


def test_an_edited_text_is_registered(tab: Tab, stage: Stage):
    register(stage.server, "ops/short", SHORT)
    page = tab.go("/editor?path=ops/short")
    tab.says("No problems")
    page.locator(".cm-content").get_by_text("sleep 2").click(click_count=3)
    page.keyboard.insert_text("    tool: { kind: noop, result: 17 }")
    tab.says("draft, kept in this browser")
    tab.says("No problems")
    page.get_by_role("button", name="Register").click()
    page.wait_for_url("**/playbooks/ops/short")
    tab.says("result: 17")
    tab.load("/editor?path=ops/short")
    tab.says("No problems")
    assert page.get_by_text("draft, kept in this browser").count() == 0


def test_the_editor_shows_problems_as_you_type_and_keeps_a_draft(tab: Tab):
    page = tab.go("/editor?path=ops/invoice")
    tab.says("No problems")
    page.get_by_label("Playbook").click()
    page.keyboard.press("Control+End")
    page.keyboard.insert_text("  - step: more\n    tool: { kind: nop }\n")
    tab.says('Did you mean "noop"?')
    assert page.get_by_role("button", name="Register").is_disabled()

    tab.load("/editor?path=ops/invoice")

    tab.says("draft, kept in this browser")
    page.get_by_role("button", name="discard").click()
    tab.says("No problems")


def test_markup_in_names_results_output_and_errors_is_text(tab: Tab, stage: Stage):
    hostile = stage.ids["hostile"]
    for pane in ("", "?tab=data", "?tab=events", "?tab=output", "?tab=why", "?step=start"):
        page = tab.go(f"/executions/{hostile}{pane}")
        page.wait_for_timeout(300)
        assert page.locator("main img, main script, main [onerror], main [onload]").count() == 0
    page = tab.go(f"/executions/{hostile}?tab=data")
    for word in XSS:
        expect(page.locator("main")).to_contain_text(word)
    tab.go("/executions?q=path:bad/*")
    tab.says("<script>alert(1)</script>")


NAMES = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: { name: %(x)s, path: bad/names, description: %(x)s }
workload: { %(x)s: %(x)s }
workflow:
  - step: start
    desc: %(x)s
    tool: { kind: noop, result: { %(x)s: [%(x)s] } }
    next: { arcs: [{ step: ask, when: "{{ workload is defined }}" }] }
  - step: ask
    desc: %(x)s
    spec:
      eval_mode: on_event
      form: [{ name: a, type: text, label: %(x)s, help: %(x)s }]
    case:
      - when: "{{ event.name == 'approval.received' }}"
        then: [{ next: { to: [{ step: end }] } }]
  - step: end
    tool: { kind: noop }
"""
NAMED_HOOK = """
apiVersion: noetl.io/v2
kind: Hook
metadata: { name: called, path: bad/called, description: %(x)s }
spec:
  verify: none
  target: { playbook: bad/names, workload: { n: "{{ hook.body.word + 1 }}" } }
"""
NAMED_SCHEDULE = """
apiVersion: noetl.io/v2
kind: Schedule
metadata: { name: bad, path: bad/times, description: %(x)s }
spec: { playbook: bad/names, cron: "30 4 * * *" }
"""


def test_markup_in_every_name_note_and_reason_is_text(tab: Tab, stage: Stage):
    word = XSS[0]
    written = {"x": json.dumps(word)}
    server = stage.server
    server.post("/api/catalog/register", {"content": NAMES % written})
    server.post("/api/catalog/register", {"content": NAMED_SCHEDULE % written})
    server.post("/api/catalog/register", {"content": NAMED_HOOK % written})
    server.ask("POST", "/hooks/bad/called", {"word": word})
    server.post("/api/schedules/pause", {"path": "bad/times", "reason": word})
    server.post("/api/credentials", {"name": "bad", "description": word, "data": {"a": "b"}})
    server.ask("PUT", "/api/views/bad", {"q": f'"{word}"', "columns": [word]})
    server.post(f"/api/executions/{stage.ids['done']}/hold", {"note": word})
    form, cancelled = (start(server, "bad/names") for _ in range(2))
    server.wait_for(form, "step.waiting")
    server.post(f"/api/executions/{cancelled}/cancel", {"reason": word})
    step = "ask"
    for path in (
        *("/", "/inbox", "/schedules", "/schedules/bad/times", "/playbooks?q=bad", "/workers"),
        *("/playbooks/bad/names", f"/playbooks/bad/names?step={step}", "/editor?path=bad/names"),
        *(f"/executions?q={quote(word)}&columns={quote(word)}", f"/executions/{form}?step={step}"),
        *(f"/executions/{form}?tab=data", f"/executions/{form}?tab=why"),
        *(f"/executions/{cancelled}?tab=events&at=3", f"/executions/{cancelled}?tab=why"),
        *(f"/compare?a={form}&b={cancelled}", "/admin?part=credentials", "/admin?part=retention"),
        *("/schedules?kind=hooks", "/schedules/bad/called?kind=hooks", "/playbooks"),
        *("/admin?part=audit", f"/executions/{quote(word, safe='')}", f"/playbooks/{quote(word)}"),
    ):
        page = tab.go(path)
        page.wait_for_timeout(300)
        found = page.locator("body :is(img, script, [onerror], [onload], [onmouseover])")
        assert found.count() == 0, path
    server.ask("DELETE", f"/api/executions/{stage.ids['done']}/hold")
    missing = [one for one in tab.troubles if "404" in one]
    tab.troubles = [one for one in tab.troubles if one not in missing]
    assert missing, "an execution and a playbook of such a name are not there"


CANARY = "canary-7f3a-of-the-pages"
SEALED = """
keychain: [{ name: shop, kind: credential, credential: sealed }]
workflow:
  - step: start
    tool:
      kind: shell
      command: "echo token {{ keychain.shop.token }}; exit 1"
    next: end
  - step: end
    tool: { kind: noop }
"""
SHOWN = """() => {
  const texts = [];
  const walk = (root) => {
    texts.push(root.innerHTML ?? "");
    for (const one of root.querySelectorAll("*")) {
      if (one.shadowRoot) walk(one.shadowRoot);
      if ("value" in one) texts.push(String(one.value));
    }
  };
  walk(document.documentElement);
  return texts.join("\\n") + JSON.stringify({...localStorage});
}"""


def test_no_secret_is_in_a_page(tab: Tab, stage: Stage):
    server = stage.server
    server.post("/api/credentials", {"name": "sealed", "data": {"token": CANARY}})
    register(server, "shop/sealed", SEALED)
    failed = start(server, "shop/sealed")
    assert server.ended(failed)["status"] == "FAILED"
    found = ""
    for path in (
        *(f"/executions/{failed}{rest}" for rest in ("", "?tab=events&at=9", "?tab=output")),
        *(f"/executions/{failed}?tab={tab}" for tab in ("data", "why")),
        *("/executions?q=path:shop/sealed", "/admin?part=credentials", "/admin?part=audit", "/"),
    ):
        page = tab.go(path)
        page.wait_for_timeout(400)
        found += page.evaluate(SHOWN)
    assert "token ***" in found or "token [" in found or "exit code 1" in found
    assert_clean((CANARY,), found)


REACHED = """() => {
  const pressed = "a[href], button, input, select, textarea, summary, [tabindex='0']";
  const wanted = [...document.querySelectorAll(pressed)]
    .filter((one) => !one.disabled && one.tabIndex >= 0 && one.checkVisibility());
  wanted.forEach((one, number) => (one.dataset.wanted = number));
  return wanted.length;
}"""


def test_everything_is_reached_by_the_tab_key_and_shows_it(tab: Tab, stage: Stage):
    for path, text in (
        (f"/executions/{stage.ids['failed']}", "config, rendered"),
        ("/playbooks/shop/orders", "Write the orders"),
        ("/admin?part=audit", "execution.start"),
    ):
        page = tab.go(path)
        tab.says(text)
        wanted = page.evaluate(REACHED)
        assert wanted > 10
        reached, bare = set(), []
        for _ in range(wanted + 5):
            page.keyboard.press("Tab")
            number, seen, html = page.evaluate(
                """() => { const one = document.activeElement; const style = getComputedStyle(one);
                return [one.dataset.wanted, style.outlineStyle !== "none", one.outerHTML]; }"""
            )
            reached.add(number)
            if number is not None and not seen:
                bare.append(html[:120])
        assert {str(number) for number in range(wanted)} <= reached, path
        assert bare == []


WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


def violations(page: Any, name: str, inside: str = "html") -> list[str]:
    """What axe finds on a page, or in a part of it: by day, and the colours also by night."""
    if not page.evaluate("'axe' in window"):
        page.add_script_tag(content=AXE)
    found = []
    for theme, kind, rules in (("light", "tag", WCAG), ("dark", "rule", ["color-contrast"])):
        page.emulate_media(color_scheme=theme)
        options = {"resultTypes": ["violations"], "runOnly": {"type": kind, "values": rules}}
        told = page.evaluate(
            "([inside, options]) => axe.run(document.querySelector(inside), options)",
            [inside, options],
        )
        found += [
            f"{name}, {theme}: {one['id']}: {node['html'][:160]} {node['failureSummary'][:300]}"
            for one in told["violations"]
            for node in one["nodes"][:3]
        ]
    return found


MAIN = ("list", "failed", "data", "playbook", "admin", "inbox", "notification")
TRIGGERS = {
    "schedule": ("/schedules/shop/nightly", "Two weeks"),
    "hook": ("/schedules/shop/paid?kind=hooks", "What became of the last deliveries"),
    "consumer": ("/schedules/shop/files_in?kind=consumers", "What became of the last messages"),
    "notification": ("/schedules?kind=notifications", "failed, late"),
}


QUESTION = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: { name: b, path: a/b }
workflow:
  - step: c
    spec: { eval_mode: on_event, form: [{ name: a, type: text }] }
    case: [{ when: "{{ event.name == 'approval.received' }}", then: { result: { value: 1 } } }]
"""


@pytest.mark.parametrize("wanted", [MAIN, *later([()])], ids=["main", "all"])
def test_every_screen_is_accessible(browser, stage: Stage, wanted):
    tab = Tab(browser, stage.server.url, bypass_csp=True)
    found = []
    for text in (NIGHTLY, HOOK, CONSUMER, NOTIFICATION):
        stage.server.post("/api/catalog/register", {"content": text})
    stage.server.ask("POST", "/hooks/shop/paid", {"id": 1})
    # Its link is shorter than what is said behind it: a link in a text must look like one.
    asked = stage.server.start(QUESTION)
    stage.server.wait_for(asked, "step.waiting")
    running = (f"/executions/{stage.ids['running']}?tab=output", "follow")
    shown = screens(stage.ids) | TRIGGERS | {"running": running}
    for name, (path, text) in shown.items():
        if wanted and name not in wanted:
            continue
        tab.go(path)
        tab.says(text)
        found += violations(tab.page, name)
    tab.close()
    stage.server.post(f"/api/executions/{asked}/cancel")
    for kind, path in (("consumers", "shop/files_in"), ("notifications", "ops/failures")):
        stage.server.ask("DELETE", f"/api/{kind}/{path}")
    assert not found, "\n".join(found)


DIALOGS = (
    ("/inbox", "Answer"),
    ("/executions/{failed}", "Rerun"),
    ("/executions/{failed}", "Fork here"),
    ("/schedules/shop/nightly", "Backfill"),
    ("/admin?part=users", "New or change"),
)
"""Between them they have every kind of field."""
LIKE_THEM = (
    ("/playbooks/shop/orders", "Start"),
    ("/executions", "Columns"),
    ("/admin?part=tokens", "New"),
    ("/admin?part=credentials", "New or replace"),
)


@pytest.mark.parametrize("dialogs", [DIALOGS, *later([LIKE_THEM])], ids=["", "like them"])
def test_dialogs_are_accessible(browser, stage: Stage, dialogs):
    stage.server.post("/api/catalog/register", {"content": NIGHTLY})
    tab = Tab(browser, stage.server.url, bypass_csp=True)
    found = []
    for path, button in dialogs:
        page = tab.go(path.format(**stage.ids))
        page.get_by_role("button", name=button, exact=True).first.click()
        page.get_by_role("dialog").wait_for()
        found += violations(page, button, "dialog")
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="detached")
    tab.close()
    assert not found, "\n".join(found)


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


SHORT = """
workflow:
  - step: start
    tool: { kind: shell, command: sleep 2 }
"""
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
    until = time.monotonic() + PATIENCE
    while len(reading) != 1 and time.monotonic() < until:  # one lingers while the next begins
        pages[0].wait_for_timeout(50)
    assert len(reading) == 1
    pages[0].close()  # the one that read for all
    waiting = start(stage.server, "ops/slow")
    pages[1].goto(f"{stage.server.url}/executions/{waiting}")
    pages[1].locator(".title .status", has_text="running").wait_for()
    stage.server.post(f"/api/executions/{waiting}/cancel")
    pages[1].locator(".title .status", has_text="cancelled").wait_for()
    context.close()


def test_people_sign_in_and_are_offered_what_they_may_do(browser, tmp_path):
    with serving(tmp_path) as server:
        people = [("ann", "admin"), ("vic", "viewer")]
        for name, role in people:
            body = {"name": name, "password": "correct horse", "roles": [role]}
            server.post("/api/access/users", body)
            if server.token is None:
                login = {"user": name, "password": "correct horse"}
                server.token = server.post("/api/auth/login", login)["token"]
        register(server, "ops/slow", SHORT)
        tab = Tab(browser, server.url)
        page = tab.go("/playbooks/ops/slow")
        for name, offered in (("ann", 1), ("vic", 0)):
            page.get_by_label("Name").fill(name)
            page.get_by_label("Password").fill("wrong one")
            page.get_by_role("button", name="Sign in").click()
            tab.says("the name or the password is wrong")
            page.get_by_label("Password").fill("correct horse")
            page.get_by_role("button", name="Sign in").click()
            page.get_by_role("heading", name="ops/slow").wait_for()
            expect(page.get_by_role("button", name="Start", exact=True)).to_have_count(offered)
            page.get_by_role("button", name=name, exact=True).click()
            page.get_by_role("button", name="Sign in").wait_for()
            tab.go("/playbooks/ops/slow")
        assert all("401" in one for one in tab.troubles)
        tab.close()


def signed_in(tab: Tab, path: str, name: str) -> None:
    page = tab.go(path)
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill("correct horse")
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name=name, exact=True).wait_for()


PAYMENT = """
workflow:
  - step: start
    spec:
      eval_mode: on_event
      form:
        role: finance
        fields: [{ name: approved, type: boolean, label: "Pay it?" }]
    case:
      - when: "{{ event.name == 'approval.received' }}"
        then: { result: { value: 1 } }
"""


def test_a_form_is_shown_to_the_role_that_may_answer_it(browser, tmp_path):
    with serving(tmp_path) as server:
        people = {"ann": ["admin"], "fay": ["operator", "finance"], "oli": ["operator"]}
        for name, roles in people.items():
            body = {"name": name, "password": "correct horse", "roles": roles}
            server.post("/api/access/users", body)
            if server.token is None:
                login = {"user": name, "password": "correct horse"}
                server.token = server.post("/api/auth/login", login)["token"]
        register(server, "ops/payment", PAYMENT)
        waiting = start(server, "ops/payment")
        server.wait_for(waiting, "step.waiting")

        tab = Tab(browser, server.url)
        signed_in(tab, "/inbox", "oli")
        tab.says("No form waits for you.")
        assert tab.page.locator(".badge").count() == 0
        tab.page.get_by_role("tab", name="all").click()
        tab.says("Pay it?")
        tab.says("for the role finance")
        assert tab.page.get_by_role("button", name="Answer").count() == 0
        tab.go(f"/executions/{waiting}?step=start")
        tab.says("for the role finance")
        assert tab.page.get_by_role("button", name="Answer", exact=True).count() == 0
        tab.close()

        tab = Tab(browser, server.url)
        signed_in(tab, "/inbox", "fay")
        expect(tab.page.locator(".badge")).to_have_text("1")
        tab.page.get_by_role("button", name="Answer").click()
        tab.page.get_by_role("dialog").get_by_label("No").check()
        tab.page.get_by_role("dialog").get_by_role("button", name="Answer").click()
        tab.says("No form waits for you.")
        tab.page.locator(".badge").wait_for(state="detached")
        tab.close()
        answered = server.wait_for(waiting, "approval.received")
        assert "fay" in str(answered)
        assert answered["payload"]["data"] == {"approved": False}


def test_the_pages_work_below_a_path_of_a_proxy(browser, stage: Stage):
    with_prefix = ThreadingHTTPServer(("127.0.0.1", 0), proxy_of(stage.server))
    threading.Thread(target=with_prefix.serve_forever, daemon=True).start()
    try:
        tab = Tab(browser, f"http://127.0.0.1:{with_prefix.server_port}/tools/noetl")
        page = tab.go(f"/executions/{stage.ids['failed']}?tab=events")
        tab.says("playbook.execution.requested")
        page.get_by_role("link", name="Playbooks").click()
        page.wait_for_url("**/tools/noetl/playbooks")
        tab.says("invoice")
        page.reload()
        tab.says("invoice")
        assert tab.troubles == []
        tab.close()
    finally:
        with_prefix.shutdown()
        with_prefix.server_close()


def proxy_of(server: Server) -> type[BaseHTTPRequestHandler]:
    """A proxy that takes `/tools/noetl` away from each address, and leaves the host as it is."""

    class Proxy(BaseHTTPRequestHandler):
        def forward(self) -> None:
            line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
            size = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(size) if size else None
            line.request(
                self.command, self.path.removeprefix("/tools/noetl"), body, dict(self.headers)
            )
            with contextlib.closing(line), line.getresponse() as answer:
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection"):
                        self.send_header(name, value)
                self.end_headers()
                # A stream ends with its server, or when nobody reads it.
                with contextlib.suppress(OSError):
                    while piece := answer.read1(65536):
                        self.wfile.write(piece)

        do_GET = do_POST = do_PUT = do_DELETE = forward  # noqa: N815  as the base class calls them

        def log_message(self, *_: object) -> None:
            """Tests are quiet."""

    return Proxy


def test_an_empty_server_teaches_the_next_command(browser, tmp_path):
    with serving(tmp_path) as server:
        tab = Tab(browser, server.url)
        kinds = [f"/schedules?kind={one}" for one in ("hooks", "consumers", "notifications")]
        for path in ("/", "/executions", "/playbooks", "/workers", "/schedules", *kinds):
            page = tab.go(path)
            page.locator(".command code", has_text="noetl ").first.wait_for()
        assert tab.troubles == []
        tab.close()


TOUR = Path(__file__).parent.parent.parent / "docs" / "tour.md"


def test_the_tour_can_be_walked(browser, tmp_path):
    """Step by step as docs/tour.md says, with the buttons and links that it names."""
    steps = re.findall(r"^\d\. (.*)$", TOUR.read_text(), re.MULTILINE)
    named = [label for step in steps for label in re.findall(r"\*\*(.+?)\*\*", step)]
    pressed: list[str] = []
    with serving(tmp_path, kind="dev") as server:
        example = TOUR.parent.parent / "examples" / "approval.yaml"
        server.post("/api/catalog/register", {"content": example.read_text()})
        asked = start(server, "examples/approval")
        server.wait_for(asked, "step.waiting")
        tab = Tab(browser, server.url)
        page = tab.go("/")

        def press(label: str, inside: str = "body", role: str = "button") -> None:
            pressed.append(label)
            page.locator(inside).get_by_role(role, name=label, exact=True).first.click()

        tab.says("What needs you")
        pressed.append("Inbox")
        page.get_by_role("link", name="Inbox").click()
        press("Answer")
        page.get_by_role("dialog").get_by_label("Yes").check()
        press("Answer", "dialog")
        tab.says("No form waits for you.")

        press("Executions", role="link")
        page.get_by_role("link", name=f"…{asked[-6:]}").click()
        page.locator(".title .status", has_text="done").wait_for()
        for _ in range(3):
            page.keyboard.press("[")
        page.wait_for_url("**at=*")
        pressed.append("live")
        press("end")

        press("Playbooks", role="link")
        press("New playbook", role="link")
        tab.says("No problems")
        page.get_by_role("treeitem", name="start").wait_for(state="attached")
        press("Register")

        press("Start")
        press("Start", "dialog")
        page.locator(".title .status", has_text="done").wait_for()
        press("data", role="tab")
        page.locator(".json", has_text="hello world").first.wait_for()
        first = page.url.rpartition("/")[2].partition("?")[0]

        page.get_by_role("link", name="examples/hello").click()
        press("Edit", role="link")
        tab.says("No problems")
        page.locator(".cm-content").get_by_text('"hello {{').click()
        page.keyboard.press("Home")
        page.keyboard.press("Shift+End")
        page.keyboard.insert_text('result: "good day {{ workload.whom }}"')
        tab.says("draft, kept in this browser")
        press("what if", role="tab")
        press("Compare")
        tab.says("1 the same, 0 different")
        press("Register")
        page.get_by_label("compare with").select_option("1")
        page.get_by_role("region", name="Graph of version 1").wait_for()

        press("Start")
        page.get_by_label("Workload").fill('{"whom": {"name": "Ada"}}')
        press("Start", "dialog")
        page.locator(".title .status", has_text="done").wait_for()
        second = page.url.rpartition("/")[2].partition("?")[0]
        tab.go("/executions?q=path:examples/hello")
        for one in (first, second):
            page.get_by_label(f"Select …{one[-6:]}").check()
        press("compare")
        page.get_by_role("heading", name="First difference").wait_for()

        tab.go(f"/executions/{first}?at=6")
        press("Fork here")
        press("What would happen?")
        page.locator("dialog", has_text="reused").wait_for()
        assert tab.troubles == []
        tab.close()
    assert pressed == named
