"""Playbooks in a real browser: started, compared, and written in the editor."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import expect

from tests.ui.conftest import Stage, Tab
from tests.ui.seed import EDITED, SHORT, register, start


def test_a_playbook_is_started_from_its_page(tab: Tab):
    page = tab.go("/playbooks/shop/orders")
    page.get_by_role("button", name="Start", exact=True).click()
    page.get_by_label("Workload").fill('{"region": "west", "orders": 3}')
    page.get_by_role("dialog").get_by_role("button", name="Start").click()
    page.wait_for_url("**/executions/*")
    page.locator(".title .status", has_text="done").wait_for()


def test_a_workload_that_is_no_object_is_refused_in_the_dialog(tab: Tab, stage: Stage):
    page = tab.go("/playbooks/shop/orders")
    page.get_by_role("button", name="Start", exact=True).click()
    dialog = page.get_by_role("dialog")
    for typed, told in (("[1]", "must be a JSON object"), ('{"region": ', "is not JSON")):
        dialog.get_by_role("textbox").fill(typed)
        dialog.get_by_role("button", name="Start").click()
        dialog.get_by_text(f"The workload {told}").wait_for()
    dialog.get_by_role("button", name="Close").click()


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


def test_a_choice_that_nobody_made_is_not_sent(tab: Tab, stage: Stage):
    register(stage.server, "shop/choice", CHOICE)
    page = tab.go("/playbooks/shop/choice")
    page.get_by_role("button", name="Start", exact=True).click()
    dialog = page.get_by_role("dialog")
    region = dialog.get_by_label("region")
    expect(region).to_have_value("")
    dialog.get_by_label("names (JSON").fill("[]")
    dialog.get_by_role("button", name="Start", exact=True).click()
    expect(region).to_be_focused()
    region.select_option("south")
    dialog.get_by_role("button", name="Start", exact=True).click()
    page.wait_for_url("**/executions/*")
    tab.says('"south"')


CHOICE = """
executor:
  spec:
    inputs:
      region: { type: enum, options: [north, south], required: true }
      names: { type: list, required: true }
workflow:
  - { step: start, tool: { kind: noop, result: "{{ workload.region }}" } }
"""


SAYS = """
workflow:
  - { step: start, tool: { kind: noop, result: WORD } }
"""


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


def test_executions_of_two_versions_lead_to_what_differs_in_the_text(tab: Tab, stage: Stage):
    """Two checksums said nothing, and of further differences no values were shown."""
    ids = []
    for word in ("early", "late"):
        register(stage.server, "ops/said", SAYS.replace("WORD", word))
        ids.append(start(stage.server, "ops/said"))
        stage.server.ended(ids[-1])
    page = tab.go(f"/compare?a={ids[0]}&b={ids[1]}")
    yields = page.get_by_role("listitem").filter(has_text="start yields something else")
    yields.get_by_text("A and B").click()
    expect(yields).to_contain_text("early")
    expect(yields).to_contain_text("late")
    page.get_by_role("link", name="what differs between the versions").click()
    tab.says("version 1 → 2")


def test_the_tree_of_playbooks_says_how_each_ran_lately(tab: Tab, stage: Stage):
    """It said since when they were registered, and no more."""
    waiting = start(stage.server, "ops/invoice")
    page = tab.go("/playbooks")
    orders = page.get_by_role("listitem").filter(
        has=page.get_by_role("link", name="orders", exact=True)
    )
    expect(orders.get_by_role("link", name=re.compile("^last run of shop.orders:"))).to_be_visible()
    expect(orders.locator(".strip i").first).to_be_visible()
    invoice = page.get_by_role("link", name=re.compile("^last run of ops.invoice:"))
    expect(invoice).to_contain_text("waiting")
    invoice.click()
    page.wait_for_url(f"**/executions/{waiting}")
    stage.server.post(f"/api/executions/{waiting}/cancel")


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


def test_the_editor_knows_no_problems_of_a_text_that_was_not_checked(tab: Tab):
    """It said "No problems" of the text before, and did not look again."""
    tab.expected = (503,)
    page = tab.go("/editor")
    tab.says("No problems")
    page.route("**/api/language", lambda route: route.fulfill(status=503, json={}))
    page.locator(".cm-content").click()
    page.keyboard.type("# ")
    tab.says("Checking …")
    assert page.get_by_role("button", name="Register").is_disabled()
    page.unroute("**/api/language")
    tab.says("No problems")
    assert page.get_by_role("button", name="Register").is_enabled()
    assert page.get_by_role("alert").count() == 0


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


def test_a_large_tree_draws_and_asks_for_what_is_open(tab: Tab, stage: Stage):
    """Of the first five hundred it was said how they ran, of others as if they never had."""
    names = [f"crowd/{number % 9}/one{number}" for number in range(600)]
    entries = [
        {"path": name, "version": 1, "kind": "Playbook", "description": "", "created_at": None}
        for name in [*names, "zoo/last"]
    ]
    page = tab.page
    page.route(
        "**/api/catalog/list", lambda route: route.fulfill(json={"entries": entries, "next": None})
    )
    asked: list[list[str]] = []

    def latest(route: Any) -> None:
        paths = route.request.post_data_json["paths"]
        asked.append(paths)
        run = {"execution_id": "4711", "status": "FAILED", "waits": None}
        run |= {"start_time": "2026-01-01T00:00:00Z", "duration_seconds": 1}
        route.fulfill(json={"playbooks": [{"path": one, "runs": [run]} for one in paths]})

    page.route("**/api/executions/latest", latest)
    tab.go("/playbooks")
    zoo = page.locator("summary", has_text="zoo/")
    zoo.wait_for()
    tab.settle()
    assert page.locator("main li").count() == 0
    assert not asked
    zoo.click()
    expect(page.get_by_role("listitem").filter(has_text="last")).to_contain_text("failed")
    assert asked == [["zoo/last"]]
    page.locator("summary", has_text="crowd/").click()
    page.locator("summary", has_text="0/").click()
    page.locator("summary", has_text="8/").click()
    expect(
        page.get_by_role("link", name=re.compile("^last run of crowd.8.one593:"))
    ).to_be_attached()
    page.get_by_role("link", name="one593", exact=True).scroll_into_view_if_needed()
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight"), (
        "the list scrolls, and not the page below its header"
    )
    page.locator("summary", has_text="crowd/").click()
    page.get_by_label("Search playbooks").fill("one")
    page.locator("summary", has_text="crowd/").click()
    expect(page.locator("main li")).to_have_count(0)
    page.get_by_label("Search playbooks").fill("one59")
    expect(page.locator("main li")).to_have_count(11)


def test_the_editor_is_left_by_keys_and_says_how(tab: Tab):
    """The Tab key indents there: who has no pointer came no further."""
    page = tab.go("/editor?path=ops/invoice")
    tab.says("No problems")
    said = page.locator(".title .leaves")
    expect(said).to_be_hidden()
    page.locator(".cm-content").focus()
    expect(said).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Zoom in")).to_be_focused()


def test_what_was_migrated_is_said_of_the_text_that_was_migrated(tab: Tab):
    page = tab.go("/editor?path=ops/invoice")
    tab.says("No problems")
    page.get_by_role("button", name="Migrate").click()
    said = page.get_by_role("heading", name="migrated, by the lines of the text before")
    said.wait_for()
    page.get_by_role("button", name="discard").click()
    expect(said).to_have_count(0)
