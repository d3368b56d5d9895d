"""One execution in a real browser: every moment of it, and all that can be done with it."""

from __future__ import annotations

import json
import re

from playwright.sync_api import expect

from tests.server.processes import Process
from tests.ui.conftest import Stage, Tab
from tests.ui.seed import CAUSE, register, start


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
    tab.says("asks “Pay 17 to Nordic Paper?”")
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


def test_the_line_of_the_code_that_failed_is_marked(tab: Tab, stage: Stage):
    page = tab.go(f"/executions/{stage.ids['loop']}")
    marked = page.locator(".source .here")
    marked.wait_for()
    number, text = marked.inner_text().split(maxsplit=1)
    assert text.startswith("raise ValueError")
    tab.says(f"line {number} of the playbook")


def test_the_text_of_a_step_says_how_many_lines_are_left(tab: Tab, stage: Stage):
    page = tab.go(f"/executions/{stage.ids['form']}?step=approve")
    page.get_by_role("button", name="1 more line", exact=True).click()
    page.locator(".source", has_text="step: end").wait_for()


def test_an_execution_is_taken_away_as_a_file_and_as_a_test(tab: Tab, stage: Stage):
    page = tab.go(f"/executions/{stage.ids['done']}")
    for name, ending in (("Export", ".noetl"), ("Test", "orders.test.yaml")):
        with page.expect_download() as downloading:
            page.get_by_role("link", name=name, exact=True).click()
        assert downloading.value.suggested_filename.endswith(ending)
        assert downloading.value.path().stat().st_size > 500


def test_a_rule_that_matched_is_named(tab: Tab, stage: Stage):
    page = tab.go(f"/executions/{stage.ids['failed']}?step=load")
    page.get_by_role("button", name="try 1").click()
    tab.says("rule 1 of 2 matched")
    page.get_by_role("button", name="try 3").click()
    tab.says("rule 1 of 2 matched")
    tab.says("its 3 tries are used up")


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


def test_a_large_result_is_read_where_it_stands(tab: Tab, stage: Stage):
    register(stage.server, "shop/large", LARGE)
    large = start(stage.server, "shop/large")
    stage.server.ended(large)
    page = tab.go(f"/executions/{large}?step=start")
    result = page.get_by_role("group", name="result")
    with page.expect_download() as downloading:
        result.get_by_role("link", name="download").click()
    assert downloading.value.path().stat().st_size > 64 * 1024
    result.get_by_role("button", name="show all").click()
    page.get_by_role("cell", name="name 99", exact=True).wait_for(state="attached")

    page = tab.go(f"/executions/{large}?step=each")
    result.get_by_role("button", name="show", exact=True).click()
    page.get_by_text("elements 0 to 99 of 1\u2009000").wait_for()
    result.get_by_role("button", name="next", exact=True).click()
    page.locator(".json-line", has_text='100: "100 north').wait_for()
    with page.expect_download() as downloading:
        result.get_by_role("link", name="download").click()
    assert len(json.loads(downloading.value.path().read_bytes())) == 1000


LARGE = """
workflow:
  - step: start
    tool:
      kind: python
      code: "result = [{'id': i, 'name': f'name {i}'} for i in range(5000)]"
    next: each
  - step: each
    loop:
      in: "{{ range(1000) | list }}"
      iterator: n
      spec: { mode: parallel, max_in_flight: 32 }
    tool: { kind: noop, result: "{{ iter.n }} north WORDS" }
""".replace("WORDS", "south " * 20)


def test_why_a_step_of_it_was_not_reached_is_said_at_the_top(tab: Tab, stage: Stage):
    register(stage.server, "shop/misread", MISREAD)
    misread = start(stage.server, "shop/misread")
    stage.server.ended(misread)
    page = tab.go(f"/executions/{misread}")
    told = page.locator(".headline", has_text="did you mean total?")
    expect(told).to_contain_text("none of start's arcs held: start.totl")
    expect(told.locator("code").first).to_have_text("start.totl")


def test_a_loop_that_went_on_without_an_iteration_says_so_at_the_top(tab: Tab, stage: Stage):
    register(stage.server, "shop/tolerant", TOLERANT)
    tolerant = start(stage.server, "shop/tolerant")
    assert stage.server.ended(tolerant)["status"] == "COMPLETED"
    page = tab.go(f"/executions/{tolerant}")
    told = page.locator(".headline", has_text="1 of 12 iterations failed")
    expect(told).to_contain_text("seven is odd")
    told.get_by_role("button", name="start").click()
    expect(page).to_have_url(re.compile("step=start"))


TOLERANT = """
workflow:
  - step: start
    loop: { in: "{{ range(12) | list }}", iterator: n, spec: { on_error: continue } }
    tool:
      kind: python
      args: { n: "{{ iter.n }}" }
      code: |
        if n == 7:
            raise ValueError("seven is odd")
        result = n
"""


def test_a_branch_that_ended_because_no_arc_held_is_told_at_the_top(tab: Tab, stage: Stage):
    register(stage.server, "shop/small", SMALL)
    small = start(stage.server, "shop/small")
    stage.server.ended(small)
    page = tab.go(f"/executions/{small}")
    told = page.locator(".headline", has_text="none of its arcs held")
    expect(told.get_by_role("button", name="start")).to_be_visible()


SMALL = """
workflow:
  - step: start
    tool: { kind: noop, result: { total: 1 } }
    next: { arcs: [{ step: end, when: "{{ start.total > 5 }}" }] }
  - { step: end, tool: { kind: noop } }
"""

MISREAD = """
workflow:
  - step: start
    tool: { kind: noop, result: { total: 17 } }
    next: { arcs: [{ step: refund, when: "{{ start.totl > 20 }}" }] }
  - { step: refund, tool: { kind: noop } }
"""


def test_from_a_playbook_that_called_others_to_the_one_that_failed_is_one_click(
    tab: Tab, stage: Stage
):
    for name, called in (("outer", "middle"), ("middle", "inner")):
        register(stage.server, f"calls/{name}", CALLS.replace("CALLED", called))
    register(stage.server, "calls/inner", FAILS)
    outer = start(stage.server, "calls/outer")
    stage.server.ended(outer)
    page = tab.go(f"/executions/{outer}")
    headline = page.locator(".headline")
    expect(headline).to_contain_text("ended with exit code 9")
    called = page.locator(".panel li", has_text="calls/middle")
    expect(called.locator(".status")).to_have_text("failed")
    headline.get_by_role("link").click()
    page.get_by_role("heading", name="calls/inner").wait_for()
    # What others passed on is nothing that somebody has to look into.
    tab.go("/")
    page.get_by_role("link", name="calls/outer").first.wait_for()
    assert page.get_by_role("link", name="calls/inner").count() == 0


CALLS = "workflow: [{ step: start, tool: { kind: playbook, path: calls/CALLED } }]"
FAILS = "workflow: [{ step: start, tool: { kind: shell, command: exit 9 } }]"


def test_a_long_error_does_not_push_out_of_sight_what_follows_it(tab: Tab, stage: Stage):
    register(stage.server, "shop/lengthy", LENGTHY)
    lengthy = start(stage.server, "shop/lengthy")
    stage.server.ended(lengthy)
    page = tab.go(f"/executions/{lengthy}")
    message = page.locator(".failure .message")
    message.get_by_role("button", name="more characters").wait_for()
    assert page.locator(".headline").bounding_box()["height"] < 90
    expect(page.get_by_role("heading", name="config, rendered")).to_be_in_viewport()
    assert "reason 199" not in message.inner_text()
    message.get_by_role("button").click()
    expect(message).to_contain_text("reason 199")
    # Names that are cut off are read by pointing at them.
    page.get_by_title(LONG_STEP, exact=True).first.wait_for()


LONG_STEP = "a_step_whose_name_somebody_made_of_the_names_of_a_table_and_of_all_its_columns"
LENGTHY = f"""
workflow:
  - step: {LONG_STEP}
    tool:
      kind: python
      code: |
        raise ValueError("\\n".join(f"reason {{i}}" for i in range(200)))
"""


def test_results_are_seen_without_opening_each(tab: Tab, stage: Stage):
    register(stage.server, "shop/brief", BRIEF)
    brief = start(stage.server, "shop/brief")
    stage.server.ended(brief)
    page = tab.go(f"/executions/{brief}?tab=data")
    page.locator("summary", has_text='start "seventeen"').wait_for()
    assert page.get_by_text("No data").count() == 0


BRIEF = """
workflow:
  - { step: start, tool: { kind: noop, result: seventeen }, next: end }
  - { step: end, tool: { kind: noop } }
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


def test_an_expression_is_evaluated_as_the_step_sees_it(tab: Tab, stage: Stage):
    page = tab.go(f"/executions/{stage.ids['done']}?step=load")
    page.get_by_label("Expression").fill("workload.orders * 2")
    page.get_by_role("button", name="Evaluate").click()
    page.locator(".json", has_text="50").first.wait_for()
