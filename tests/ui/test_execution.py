"""One execution in a real browser: every moment of it, and all that can be done with it."""

from __future__ import annotations

import json
import re
from typing import Any

from playwright.sync_api import expect

from tests.server.processes import Process
from tests.ui.conftest import Stage, Tab, until
from tests.ui.seed import CAUSE, SLOW, register, start

NOBODY = """
workflow:
  - { step: start, spec: { pool: gpu }, tool: { kind: noop } }
"""
LATER = """
workflow:
  - step: start
    tool:
      name: call
      kind: python
      code: "raise RuntimeError('not yet')"
      spec:
        policy:
          rules:
            - when: "{{ outcome.status == 'error' }}"
              then: { do: retry, attempts: 9, delay: 1h }
"""
ROUNDS = """
workflow:
  - step: start
    spec: { eval_mode: on_event }
    case:
      - when: "{{ event.name == 'more' }}"
        then: [{ next: { to: [{ step: start }] } }]
"""
EACH = """
workflow:
  - step: start
    loop: { in: [north, south], iterator: region, spec: { mode: parallel } }
    tool: { kind: playbook, path: shop/orders, args: { region: "{{ iter.region }}" } }
"""
TALKS = """
workflow:
  - step: start
    tool: { kind: python, code: "for i in range(200): print('line', i)" }
"""


def test_the_slider_shows_another_moment_in_every_pane(tab: Tab, stage: Stage):
    page = tab.go(f"/executions/{stage.ids['failed']}?tab=events&at=8")
    tab.says("event 8 of")
    collect = page.get_by_role("treeitem", name="collect")
    expect(collect).to_contain_text("not reached")
    lines = page.locator(".timeline .line")
    expect(lines.filter(has_not_text="not begun")).to_have_count(1)

    page.get_by_role("button", name="end", exact=True).click()

    expect(lines.filter(has_not_text="not begun")).to_have_count(3)
    expect(collect).to_contain_text("done")


def test_keys_work_on_the_slider_and_on_every_keyboard(tab: Tab, stage: Stage):
    """They did nothing after the slider was moved, nor where brackets need a third key."""
    page = tab.go(f"/executions/{stage.ids['failed']}?at=100")
    slider = page.get_by_label("Moment, by event")
    slider.focus()
    page.keyboard.press("[")
    expect(slider).to_have_value("99")
    page.evaluate(
        """() => dispatchEvent(new KeyboardEvent("keydown",
             {key: "]", ctrlKey: true, altKey: true, bubbles: true}))"""
    )
    expect(slider).to_have_value("100")


def test_nothing_moves_under_the_pointer_that_moves_the_slider(tab: Tab, stage: Stage):
    page = tab.go(f"/executions/{stage.ids['failed']}?tab=data")
    page.locator(".timeline .note").wait_for()
    places = "() => ['.slider input', '.graph', '.timeline', '.timeline .line:nth-child(3)'].map(\
        (one) => JSON.stringify(document.querySelector(one).getBoundingClientRect()))"
    before = page.evaluate(places)

    page.get_by_label("Moment, by event").fill("9")
    tab.says("event 9 of")
    tab.settle()

    assert page.evaluate(places) == before
    expect(page.locator(".timeline .cursor").first).to_be_visible()


def test_a_step_that_runs_says_what_it_waits_for(tab: Tab, stage: Stage):
    """Before, both said that they run, and no more."""
    register(stage.server, "wait/nobody", NOBODY)
    register(stage.server, "wait/later", LATER)
    tab.go(f"/executions/{start(stage.server, 'wait/nobody')}")
    tab.says("waits for a worker: none of pool gpu is there")
    tab.go(f"/executions/{start(stage.server, 'wait/later')}")
    tab.says("failed in attempt 1 (RuntimeError: not yet (line 1)); the next one begins at")


def test_a_loop_leads_to_the_executions_that_it_called(tab: Tab, stage: Stage):
    register(stage.server, "shop/each", EACH)
    caller = start(stage.server, "shop/each")
    stage.server.ended(caller)
    page = tab.go(f"/executions/{caller}?step=start")
    group = page.locator(".panel code", has_text="child execution")
    expect(group.get_by_role("link")).to_have_count(1)

    page.get_by_role("link", name="the executions that it called").click()

    tab.says("2 hits")


def test_a_long_output_leaves_the_result_in_sight(tab: Tab, stage: Stage):
    register(stage.server, "shop/talks", TALKS)
    talked = start(stage.server, "shop/talks")
    stage.server.ended(talked)
    page = tab.go(f"/executions/{talked}?step=start")
    tab.says("line 199")
    assert page.locator(".panel pre", has_text="line 199").bounding_box()["height"] < 400


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


CHOICES = """
workflow:
  - step: start
    spec:
      form:
        - { name: at, type: datetime, default: "2026-03-01T12:30:15Z" }
        - name: how
          type: choice
          options: [{ value: 1, label: by post }, { value: 2, label: by hand }]
        - { name: who, type: choice, options: { ann: Ann of the shop, bob: Bob } }
"""


def test_choices_have_their_labels_and_moments_their_default(tab: Tab, stage: Stage):
    """Labelled choices stood there as JSON, and no answer was accepted; others were a line."""
    register(stage.server, "ops/choices", CHOICES)
    waiting = start(stage.server, "ops/choices")
    page = tab.go(f"/executions/{waiting}")
    page.get_by_role("button", name="Answer", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("how").select_option(label="by hand")
    dialog.get_by_label("who").select_option(label="Ann of the shop")
    dialog.get_by_role("button", name="Answer").click()
    stage.server.ended(waiting)
    answered = stage.server.get(f"/api/executions/{waiting}/state")["steps"][0]["result"]
    assert answered == {"at": "2026-03-01T12:30:15Z", "how": 2, "who": "ann"}
    # At an event before the answer the form waits, but nobody can answer it any more.
    page = tab.go(f"/executions/{waiting}?step=start&tab=step&at=7")
    tab.says("asks “at”")
    expect(page.get_by_role("button", name="Answer", exact=True)).to_have_count(0)


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
        # There is no session that could end, and no server that could have playbooks or workers.
        page.locator("span.who", has_text="recording").wait_for()
        screens = page.get_by_role("navigation", name="Screens").get_by_role("link")
        expect(screens).to_have_text(["Executions"])
        page.get_by_role("link", name="NoETL, home").click()
        page.locator(".execution-row", has_text="shop/orders").wait_for()
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


def test_what_a_fork_does_is_read_whole_also_with_long_names(tab: Tab, stage: Stage):
    """The name ran out of the dialog, and pushed out how many calls are made again."""
    name = "collect_" + "everything_that_was_sold_" * 4
    register(stage.server, "ops/long_names", SLOW.replace("wait", name).replace("echo", "exit 1"))
    failed = start(stage.server, "ops/long_names")
    stage.server.ended(failed)
    page = tab.go(f"/executions/{failed}?at=8")
    page.get_by_role("button", name="Fork here").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="What would happen?").click()
    dialog.get_by_text("1 again").first.wait_for()
    assert dialog.evaluate("(one) => one.scrollWidth <= one.clientWidth")


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


def test_arcs_that_tokens_went_over_are_read_to_the_end(tab: Tab, stage: Stage):
    """Of a long execution the arcs after the first thousand tokens looked as if never taken."""
    asked: list[str] = []

    def one_at_a_time(route: Any) -> None:
        after = int(re.findall("after=([0-9]+)", route.request.url)[0])
        found = stage.server.get(events, type="token.created", after=after, limit=1)
        asked.append(f"{after} {found['more']}")
        route.fulfill(json=found)

    events = f"/api/executions/{stage.ids['done']}/events"
    tab.page.route(f"**{events}?type=token.created*", one_at_a_time)
    tab.go(f"/executions/{stage.ids['done']}?tab=data")
    until(tab.page, lambda: asked and asked[-1].endswith("False"))
    assert len(asked) == len({*asked}) > 3


def test_where_tokens_went_round_and_round_the_way_out_is_read(tab: Tab, stage: Stage):
    """It looked as if nobody had left: the second thousand brought nothing new."""
    asked: list[int] = []

    def long_ago(route: Any) -> None:
        found = route.fetch().json()
        route.fulfill(json={**found, "last_seq": 90_000})

    def round_and_round(route: Any) -> None:
        after = int(re.findall("after=([0-9]+)", route.request.url)[0])
        asked.append(after)
        more = after < 89_000
        token = {**found["events"][0], "seq": after + 1_000}
        route.fulfill(json={**found, "events": [token], "next_after": after + 1_000, "more": more})

    execution = f"/api/executions/{stage.ids['done']}"
    found = stage.server.get(f"{execution}/events", type="token.created", limit=1)
    tab.page.route(f"**{execution}/state*", long_ago)
    tab.page.route(f"**{execution}/events?type=token.created*", round_and_round)
    tab.go(f"/executions/{stage.ids['done']}?tab=data")
    until(tab.page, lambda: asked and asked[-1] >= 89_000)
    assert asked == [0, 1_000, 89_000]


def test_output_is_that_of_a_step_or_of_all(tab: Tab, stage: Stage):
    """With a step chosen there was no way to see what the others said."""
    page = tab.go(f"/executions/{stage.ids['failed']}?tab=output&step=load")
    tab.says("INSERT INTO orders")
    others = page.get_by_text("region south: 25 orders")
    expect(others).to_have_count(0)
    page.get_by_label("only load").uncheck()
    expect(others).to_be_visible()


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


def test_the_events_stand_where_the_slider_stands(tab: Tab, stage: Stage):
    """They began with the first event although everything else showed the last."""
    page = tab.go(f"/executions/{stage.ids['failed']}?tab=events")
    last = page.locator(".event-row.at")
    expect(last).to_contain_text("playbook.processed")
    expect(last).to_be_in_viewport()
    expect(page.get_by_role("group", name=re.compile(r"^Event \d+$"))).to_contain_text("FAILED")
    expect(last).to_be_in_viewport(ratio=1)


def test_the_events_of_a_running_execution_are_followed_unless_somebody_scrolled_away(
    tab: Tab, stage: Stage
):
    register(stage.server, "ops/rounds", ROUNDS)
    running = start(stage.server, "ops/rounds")
    page = tab.go(f"/executions/{running}?tab=events")
    table = page.get_by_role("table", name="Events")
    answer = {"name": "more", "step": "start"}
    stage.server.wait_for(running, "step.waiting")

    def grown() -> int:
        return int(table.get_attribute("aria-rowcount"))

    for _ in range(6):
        before = grown()
        stage.server.post(f"/api/executions/{running}/events", answer)
        until(page, lambda before=before: grown() > before)
        tab.settle()
    expect(page.locator(f".event-row[aria-rowindex='{grown()}']")).to_be_in_viewport()
    table.evaluate("(box) => (box.scrollTop = 0)")
    before = grown()
    stage.server.post(f"/api/executions/{running}/events", answer)
    until(page, lambda: grown() > before)
    tab.settle()
    expect(page.locator(".event-row[aria-rowindex='1']")).to_be_in_viewport()


def test_of_two_selected_executions_the_older_is_compared_with_the_newer(tab: Tab, stage: Stage):
    page = tab.go("/executions?q=path:shop/orders")
    rows = page.locator(".rows-shown .execution-row")
    rows.nth(1).wait_for()
    newest_first = [rows.nth(one).locator(".id a").get_attribute("title") for one in (0, 1)]
    for box in rows.get_by_role("checkbox").all()[:2]:
        box.check()
    page.get_by_role("button", name="compare").click()
    page.wait_for_url(f"**/compare?a={newest_first[1]}&b={newest_first[0]}")


def test_two_selected_executions_are_compared_also_when_one_has_left_the_list(
    tab: Tab, stage: Stage
):
    """What was asked for was the comparison with `undefined`."""
    register(stage.server, "ops/leaving", SLOW)
    older, newer = (start(stage.server, "ops/leaving") for _ in "12")
    page = tab.go("/executions?q=path:ops/leaving+status:running")
    boxes = page.locator(".rows-shown").get_by_role("checkbox")
    expect(boxes).to_have_count(2)
    for box in boxes.all():
        box.check()
    stage.server.post(f"/api/executions/{older}/cancel")
    expect(boxes).to_have_count(1)
    page.get_by_role("button", name="compare").click()
    page.wait_for_url(f"**/compare?a={older}&b={newer}")
    stage.server.post(f"/api/executions/{newer}/cancel")


def test_what_a_step_waits_for_has_the_time_as_people_chose_it(tab: Tab, stage: Stage):
    """It stood there as programs write it, with its T and Z."""
    register(stage.server, "wait/again", LATER)
    waiting = start(stage.server, "wait/again")
    page = tab.go(f"/executions/{waiting}?tab=why")
    said = page.get_by_role("listitem").filter(has_text="the next one begins at")
    expect(said).to_contain_text(re.compile(r"begins at (\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d \(in "))


NUMBERS = """
workflow:
  - step: start
    tool:
      { kind: noop, result: { id: 9007199254740993, rows: [{ n: -9007199254740995 }, { n: 1 }] } }
"""


def test_a_number_that_a_browser_would_round_is_shown_and_sent_exactly(tab: Tab, stage: Stage):
    register(stage.server, "shop/numbers", NUMBERS)
    page = tab.go("/playbooks/shop/numbers")
    page.get_by_role("button", name="Start").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Workload").fill('{"order": 9007199254740997}')
    dialog.get_by_role("button", name="Start").click()
    page.wait_for_url("**/executions/*")
    page.get_by_role("tab", name="data").click()
    for number in ("9007199254740993", "-9007199254740995", "9007199254740997"):
        tab.says(number)


def test_what_an_expression_gives_is_seen_also_at_the_end_of_the_pane(tab: Tab, stage: Stage):
    tab.expected = (422,)
    page = tab.go(f"/executions/{stage.ids['failed']}?step=load")
    page.set_viewport_size({"width": 1280, "height": 500})
    box = page.get_by_role("textbox", name="Expression")
    box.fill("workload.region + '!'")
    box.press("Enter")
    expect(page.get_by_text("south!")).to_be_in_viewport()
    box.fill("workload.region | nosuch")
    box.press("Enter")
    expect(page.get_by_role("alert")).to_be_in_viewport()


UNLIKE = """
workflow:
  - step: start
    loop:
      in: "{{ range(12) | list }}"
      iterator: n
      spec: { mode: sequential, on_error: continue }
    tool:
      kind: python
      code: |
        if n % 2:
            raise ValueError(f"row {n} has no city")
      args: { n: "{{ iter.n }}" }
"""


def test_errors_of_a_loop_that_differ_in_numbers_are_one_line(tab: Tab, stage: Stage):
    register(stage.server, "shop/unlike", UNLIKE)
    loop = start(stage.server, "shop/unlike")
    stage.server.ended(loop)
    page = tab.go(f"/executions/{loop}?step=start")
    expect(page.locator("#pane ul.plain > li", has_text="no city")).to_have_text(
        "6×ValueError: row 1 has no city (line 2) and 5 alike but for numbers"
    )


MANY_LOOPS = (
    """
workflow:
"""
    + "".join(
        f"""
  - step: s{number}
    loop:
      in: "{{{{ range(20) | list }}}}"
      iterator: n
      spec: {{ mode: parallel, on_error: continue }}
    tool:
      kind: python
      code: "raise ValueError('abcdefghijklmnopqrstuvwxyz'[n] * 3)"
      args: {{ n: "{{{{ iter.n }}}}" }}
    next: s{number + 1}
"""
        for number in range(12)
    ).replace("step: s0\n", "step: start\n")
    + """
  - { step: s12, tool: { kind: noop } }
"""
)


def test_however_much_went_wrong_the_panes_have_their_room(tab: Tab, stage: Stage):
    """Twelve loops had twelve lines at the top, and each kind of error one above the iterations."""
    register(stage.server, "ops/loops", MANY_LOOPS)
    ended = start(stage.server, "ops/loops")
    stage.server.ended(ended)
    page = tab.go(f"/executions/{ended}?step=start")
    page.get_by_text("12 more errors").wait_for()
    expect(page.locator(".headline")).to_have_count(12)
    assert page.locator(".panes").bounding_box()["height"] > 500
    expect(page.get_by_role("table", name="Iterations")).to_be_in_viewport()
    page.get_by_text("12 more errors").click()
    expect(page.get_by_text("ttt").first).to_be_visible()


def test_a_loop_says_how_far_it_had_come_at_the_moment(tab: Tab, stage: Stage):
    loop = stage.ids["done"]
    events = stage.server.get(f"/api/executions/{loop}/events", limit=1000)["events"]
    first = next(one["seq"] for one in events if one["name"] == "loop.iteration.done")
    page = tab.go(f"/executions/{loop}?step=collect&at={first}")
    expect(page.locator("#pane h3", has_text="iterations")).to_have_text(
        "25 iterations: 1 done, 24 left"
    )
    took = page.locator("#pane .row").first.locator("span.quiet")
    expect(took).to_have_text(re.compile(r"^\d+ ms$"))
    page.keyboard.press("l")
    expect(page.locator("#pane h3", has_text="iterations")).to_have_text("25 iterations: 25 done")


def test_what_somebody_cancelled_did_not_fail(tab: Tab, stage: Stage):
    register(stage.server, "ops/stopped", SLOW)
    stopped = start(stage.server, "ops/stopped")
    page = tab.go(f"/executions/{stopped}")
    page.get_by_role("button", name="Cancel", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("wrong day")
    dialog.get_by_role("button", name="Cancel it").click()
    expect(page.locator(".headline", has_text="wrong day")).to_contain_text("cancelled")
    page.get_by_role("tab", name="why").click()
    expect(page.get_by_role("listitem").filter(has_text="wrong day")).to_contain_text("cancelled")


def test_the_answer_to_an_earlier_question_does_not_come_after_the_last_one(tab: Tab, stage: Stage):
    page = tab.go(f"/executions/{stage.ids['done']}?step=load")
    box = page.get_by_role("textbox", name="Expression")
    held: list[Any] = []
    page.route("**/api/context/render", lambda route: held.append(route), times=1)
    box.fill("'first'")
    box.press("Enter")
    until(page, lambda: held)
    box.fill("'second'")
    box.press("Enter")
    tab.says('"second"')
    with page.expect_response("**/api/context/render"):
        held[0].continue_()
    tab.settle()
    assert page.get_by_text('"first"').count() == 0


MANY = """
workflow:
  - step: start
    loop: { in: "{{ range(1500) | list }}", iterator: n, spec: { mode: parallel } }
    tool: { kind: noop, result: "{{ iter.n }}" }
"""


def test_events_of_a_name_stand_where_the_slider_stands(tab: Tab, stage: Stage):
    """Of more than a thousand the last one read was marked, far from the moment."""
    register(stage.server, "ops/many", MANY)
    many = start(stage.server, "ops/many")
    stage.server.ended(many)
    done = [one for one in stage.server.events(many) if one["name"] == "loop.iteration.done"]
    near = done[1200]
    page = tab.go(f"/executions/{many}?tab=events&at={near['seq']}")
    only = page.get_by_label("Only events of this name")
    only.fill("loop.iteration.done")
    only.press("Enter")
    marked = page.locator(".event-row.at")
    expect(marked).to_contain_text(str(near["seq"]))
    expect(marked).to_contain_text("loop.iteration.done")
    expect(marked).to_be_in_viewport(ratio=1)
    # Of a moment between two the events after it are seen.
    between = next(seq for seq in range(done[1100]["seq"], 1 << 20) if seq + 1 == done[1101]["seq"])
    page = tab.go(f"/executions/{many}?tab=events&at={between}")
    expect(page.get_by_role("cell", name=str(between + 1))).to_be_in_viewport(ratio=1)
    page.get_by_role("slider", name="Moment, by event").fill(str(done[5]["seq"]))
    expect(marked).to_contain_text(str(done[5]["seq"]))
    expect(marked).to_be_in_viewport(ratio=1)
