"""The list of executions in a real browser: found by query and keys, acted on together."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.ui.conftest import PHONE, SIZE, Stage, Tab, until
from tests.ui.seed import CAUSE, EDITED, SLOW, register, start


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
    page.route("**/api/executions?q=*", lambda route: held.append(route))
    page.keyboard.press("/")
    page.keyboard.type("status:waiting path:ops/invoice")
    page.keyboard.press("Enter")
    until(page, lambda: held)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")

    assert page.locator(".execution-row .status", has_text="failed").count(), "rows of before"
    assert page.evaluate("location.pathname") == "/executions"
    page.unroute("**/api/executions?q=*")  # What was held goes on.
    tab.says("1 hit")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    tab.says("asks “Pay 4200 to Nordic Paper?”")


def test_the_list_is_walked_by_keys_and_its_query_stands_in_the_address(tab: Tab):
    page = tab.go("/executions")
    tab.says("ops/invoice")
    page.keyboard.press("/")
    page.keyboard.type("path:ops/invoice status:wai")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/executions?q=path%3Aops%2Finvoice+status%3Awaiting")
    tab.says("1 hit")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/executions/*")
    tab.says("asks “Pay 4200 to Nordic Paper?”")
    page.go_back()
    page.wait_for_url("**/executions?q=path%3Aops%2Finvoice+status%3Awaiting")
    tab.says("1 hit")


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


def test_who_comes_back_from_an_execution_stands_on_its_row(tab: Tab, stage: Stage):
    register(stage.server, "ops/triage", EDITED)
    first, second = (start(stage.server, "ops/triage") for _ in "12")
    page = tab.go("/executions?q=path:ops/triage")
    tab.says("2 hits")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/executions/{first}")
    page.go_back()
    expect(page.locator(".execution-row.at")).to_contain_text(first[-6:])
    page.get_by_role("link", name=second[-6:]).click()
    page.wait_for_url(f"**/executions/{second}")
    page.go_back()
    expect(page.locator(".execution-row.at")).to_contain_text(second[-6:])


def test_a_row_has_room_for_its_date_and_time(tab: Tab, stage: Stage):
    """The hour was cut off."""
    page = tab.go(f"/executions?q=id:{stage.ids['failed']}")
    page.get_by_title("How times are shown").select_option("utc")
    began = page.locator(".rows-shown [role=cell]", has=page.locator("time"))
    for size in (None, PHONE):
        if size:
            page.set_viewport_size(size)
        expect(began).to_have_text(re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$"))
        assert began.evaluate(FITS)


FITS = "it => it.scrollWidth <= it.clientWidth && it.scrollHeight <= it.clientHeight + 1"


def test_fields_of_the_workload_stand_below_their_names(tab: Tab):
    """In a window of usual width the number of orders stood below `region`."""
    tab.page.set_viewport_size({"width": 1024, "height": 768})
    page = tab.go("/executions?q=path:shop/orders&columns=region,orders")
    head = page.get_by_role("columnheader", name="orders").bounding_box()
    row = page.locator(".rows-shown .execution-row").first.get_by_role("cell").last.bounding_box()
    assert head["x"] == row["x"]
    assert head["x"] + head["width"] <= 1024


LONGEST = """([cells, text]) => {
  const found = [...document.querySelectorAll(cells)];
  for (const one of found) one.textContent = text;
  return found.length > 0 && found.every((one) => one.scrollWidth <= one.clientWidth);
}"""


@pytest.mark.parametrize("size", [SIZE, PHONE], ids=["screen", "phone"])
def test_no_number_or_time_is_cut(tab: Tab, stage: Stage, size: dict[str, int]):
    """Ten minutes had no room on a phone, nor the millionth event anywhere."""
    tab.page.set_viewport_size(size)
    page = tab.go("/executions?q=path:shop/orders")
    page.locator(".rows-shown .execution-row").first.wait_for()
    took = ".rows-shown .execution-row > :nth-child(6)"
    assert page.evaluate(LONGEST, [took, "10 min 00 s"])
    page = tab.go(f"/executions/{stage.ids['loop']}")
    page.locator(".iteration-row").first.wait_for()
    assert page.evaluate(LONGEST, [".iteration-row > :nth-child(3)", "10 min 00 s"])
    assert page.evaluate(LONGEST, [".timeline .line > .num", "10 min 00 s"])
    page = tab.go(f"/executions/{stage.ids['loop']}?tab=events")
    page.locator(".event-row button").first.wait_for()
    assert page.evaluate(LONGEST, [".event-row > :nth-child(1)", "1000000"])
    if size == SIZE:
        assert page.evaluate(LONGEST, [".event-row > :nth-child(2)", "21:45:00.049Z"])


def test_a_column_is_empty_where_the_workload_has_no_such_field(tab: Tab, stage: Stage):
    page = tab.go(f"/executions?q=id:{stage.ids['loop']}&columns=region,bad")
    row = page.locator(".rows-shown .execution-row")
    expect(row.get_by_role("cell").last).to_have_text("[3]")
    expect(row.get_by_role("cell").nth(7)).to_have_text("")


def test_all_that_match_are_cancelled_after_it_was_said_how_many(tab: Tab, stage: Stage):
    register(stage.server, "ops/many", SLOW)
    for _ in range(3):
        start(stage.server, "ops/many")
    page = tab.go("/executions?q=path:ops/many")
    tab.says("3 hits")
    page.get_by_role("checkbox").first.check()
    page.get_by_role("button", name="all 3 that match").click()
    page.get_by_role("button", name="cancel", exact=True).click()
    tab.says("3 of the 3 selected will be cancelled.")
    page.get_by_role("button", name="cancel 3").click()
    tab.says("cancel: 3 of 3.")
    page.locator(".execution-row .status", has_text="cancelled").nth(2).wait_for()


NEVER_BY_ITSELF = """
const wait = window.setTimeout;
window.setTimeout = (run, after = 0, ...more) => (after < 10_000 ? wait(run, after, ...more) : 0);
"""
"""The list also looks every fifteen seconds without having heard anything. Not here."""


def test_hits_and_bars_are_counted_again_when_something_happens(browser, stage: Stage):
    register(stage.server, "ops/counted", EDITED)
    stage.server.ended(start(stage.server, "ops/counted"))
    tab = Tab(browser, stage.server.url)
    tab.page.add_init_script(NEVER_BY_ITSELF)
    page = tab.go("/executions?q=path:ops/counted")
    tab.says("1 hit")
    for _ in range(2):
        start(stage.server, "ops/counted")
    tab.says("3 hits")
    tab.says("3 by time")
    expect(page.locator(".execution-row .id")).to_have_count(3)
    tab.close()


def test_the_row_that_keys_chose_stays_chosen_when_others_come_above_it(tab: Tab, stage: Stage):
    register(stage.server, "ops/above", EDITED)
    first = start(stage.server, "ops/above")
    stage.server.ended(first)
    page = tab.go("/executions?q=path:ops/above")
    tab.says("1 hit")
    page.keyboard.press("j")
    for _ in range(2):
        start(stage.server, "ops/above")
    tab.says("3 hits")
    expect(page.locator(".rows-shown .execution-row.at")).to_contain_text(first[-6:])
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/executions/{first}")


def test_rows_that_somebody_reads_stay_where_they_are_when_others_come(tab: Tab, stage: Stage):
    register(stage.server, "ops/read", EDITED)
    started = [start(stage.server, "ops/read") for _ in range(60)]
    stage.server.ended(started[-1])
    page = tab.go("/executions?q=path:ops/read")
    tab.says("60 hits")
    page.get_by_role("table", name="Executions").evaluate("(one) => (one.scrollTop = 560)")
    row = page.locator(".execution-row", has_text=f"…{started[30][-6:]}")
    before = row.bounding_box()
    for _ in range(12):
        start(stage.server, "ops/read")
    tab.says("72 hits")
    tab.settle()
    assert row.bounding_box()["y"] == before["y"]


def test_rows_are_not_pushed_away_by_pictures_that_come_later(tab: Tab, stage: Stage):
    held: list[Any] = []
    tab.page.route("**/api/executions/histogram?*", lambda route: held.append(route))
    page = tab.load("/executions?q=path:shop/orders")
    row = page.locator(".execution-row", has_text=f"…{stage.ids['failed'][-6:]}")
    before = row.bounding_box()
    until(page, lambda: held)
    page.unroute("**/api/executions/histogram?*")  # What was held goes on.
    tab.says("by time, failed on top")
    assert row.bounding_box() == before


def test_a_click_anywhere_in_a_row_opens_it_but_beside_its_box(tab: Tab, stage: Stage):
    page = tab.go(f"/executions?q={stage.ids['failed']}")
    row = page.locator(".rows-shown .execution-row")
    expect(row).to_have_count(1)
    row.get_by_role("cell").first.click(position={"x": 1, "y": 1})
    assert page.evaluate("location.pathname") == "/executions"
    row.get_by_text("failed", exact=True).click()
    page.wait_for_url(f"**/executions/{stage.ids['failed']}")


def test_a_phone_shows_why_one_failed_below_each_row(tab: Tab, stage: Stage):
    tab.page.set_viewport_size(PHONE)
    page = tab.go("/executions?q=path:shop/orders status:failed")
    row = page.locator(".execution-row", has_text=f"…{stage.ids['failed'][-6:]}")
    why = row.get_by_text(CAUSE).bounding_box()
    status = row.locator(".status").bounding_box()
    whole = row.bounding_box()
    assert status["y"] + status["height"] <= why["y"]
    assert why["y"] + why["height"] <= whole["y"] + whole["height"]
    assert why["x"] + why["width"] <= PHONE["width"]
    name = row.get_by_role("button", name="shop/orders")
    assert not name.evaluate(
        "(one) => one.parentElement.scrollWidth > one.parentElement.clientWidth"
    )
    assert name.bounding_box()["y"] < row.locator(".id").bounding_box()["y"]
    tops = page.locator(".rows-shown .execution-row").evaluate_all(
        "(rows) => rows.map((row) => row.getBoundingClientRect().top)"
    )
    page.get_by_role("checkbox").first.wait_for()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/executions/*")
    assert all(b - a == whole["height"] for a, b in itertools.pairwise(tops)), "one height"


def test_a_query_with_a_mistake_has_no_table(tab: Tab):
    tab.expected = ("400",)
    page = tab.go("/executions?q=took:abc")
    tab.says('takes >5m or <30s, not "abc"')
    tab.settle()
    assert page.get_by_role("columnheader").count() == 0


def test_a_view_is_kept_on_the_server(tab: Tab):
    page = tab.go("/executions?q=status:failed path:shop/*")
    page.get_by_label("Saved views").select_option("+")
    page.get_by_label("Name").fill("team/on-call")
    page.get_by_role("button", name="Keep").click()
    page.get_by_role("option", name="team/on-call", exact=True).wait_for(state="attached")
    tab.load("/executions")
    page.get_by_label("Saved views").select_option("team/on-call")
    page.wait_for_url("**q=status%3Afailed**")
    # It is everybody's: it does not go by one slip.
    page.get_by_label("Saved views").select_option("-")
    page.get_by_role("dialog").get_by_text("It goes for everybody.").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    page.get_by_label("Saved views").select_option("-")
    page.get_by_role("dialog").get_by_role("button", name="Forget").click()
    page.get_by_role("option", name="team/on-call", exact=True).wait_for(state="detached")


def test_the_down_arrow_shows_all_words_of_a_query(tab: Tab):
    page = tab.go("/executions")
    page.get_by_label("Query").focus()
    words = page.get_by_role("listbox", name="Completions").get_by_role("option")
    expect(words).to_have_count(0)
    page.keyboard.press("ArrowDown")
    words.filter(has_text="waits:").click()
    words.filter(has_text="waits:form").click()
    expect(page.get_by_label("Query")).to_have_value("waits:form ")
    expect(words).to_have_count(0)


BACKS_OFF = """
workflow:
  - step: start
    tool:
      name: fetch
      kind: noop
      result: "{{ 1 / 0 }}"
      spec:
        policy:
          rules:
            - when: "{{ outcome.status == 'error' }}"
              then: { do: retry, attempts: 3, delay: 600s }
"""


def test_the_list_and_home_say_that_a_step_backs_off(tab: Tab, stage: Stage):
    """They said `running`, as of a step at work."""
    register(stage.server, "shop/tired", BACKS_OFF)
    tired = start(stage.server, "shop/tired")
    stage.server.wait_for(tired, "timer.set")
    page = tab.go("/executions?q=path:shop/tired")
    row = page.locator(".execution-row", has_text="shop/tired")
    expect(row).to_contain_text("start: backs off")
    expect(row).to_contain_text("running")
    assert stage.server.get("/api/executions/count", q="waits:timer")["count"] == 1
    found = stage.server.get("/api/executions", q="status:waiting")["executions"]
    assert tired not in [one["execution_id"] for one in found], "it goes on by itself"
    tab.go("/")
    tab.says("start: backs off")
    stage.server.post(f"/api/executions/{tired}/cancel")
