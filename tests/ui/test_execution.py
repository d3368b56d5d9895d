"""One execution in a real browser: every moment of it, and all that can be done with it."""

from __future__ import annotations

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
    tab.says("no rule matched, or its tries are used up")


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


def test_an_expression_is_evaluated_as_the_step_sees_it(tab: Tab, stage: Stage):
    page = tab.go(f"/executions/{stage.ids['done']}?step=load")
    page.get_by_label("Expression").fill("workload.orders * 2")
    page.get_by_role("button", name="Evaluate").click()
    page.locator(".json", has_text="50").first.wait_for()
