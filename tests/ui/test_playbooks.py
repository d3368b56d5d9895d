"""Playbooks in a real browser: started, compared, and written in the editor."""

from __future__ import annotations

import re

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
