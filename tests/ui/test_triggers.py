"""Schedules, hooks, consumers and notifications in a real browser."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.ui.conftest import PHONE, Stage, Tab, until
from tests.ui.seed import CONSUMER, HOOK, NIGHTLY, NOTIFICATION, register


def noted(tab: Tab, stage: Stage, path: str, *outcomes: str) -> None:
    """Wait until that is known of deliveries: senders do not wait for it, and pages look rarely."""

    def is_there() -> bool:
        found = stage.server.get(f"/api/hooks/{path}", deliveries=100)["deliveries"]
        return {one["outcome"] for one in found} >= set(outcomes)

    until(tab.page, is_there)


def test_hooks_are_listed_with_what_keeps_them_from_working(tab: Tab, stage: Stage):
    stage.server.post("/api/catalog/register", {"content": HOOK})
    stage.server.ask("POST", "/hooks/shop/paid", {"id": 1})
    noted(tab, stage, "shop/paid", "refused")
    page = tab.go("/schedules?kind=hooks")
    tab.says("takes nothing: no credential shop_secret")
    page.get_by_role("link", name="shop/paid").click()
    tab.says(f"{stage.server.url}/hooks/shop/paid")
    page.get_by_role("cell", name="refused").first.wait_for()
    tab.says("not genuine")


def test_deliveries_are_listed_with_what_became_of_them(tab: Tab, stage: Stage):
    stage.server.post("/api/catalog/register", {"content": OPEN_HOOK})
    page = tab.go("/schedules/shop/opened?kind=hooks")
    tab.says("Nobody has called yet.")
    for number, action in (("1", "opened"), ("1", "opened"), ("2", "closed")):
        stage.server.ask("POST", "/hooks/shop/opened", {"action": action}, n=number)
    outcomes = ("started", "repeated", "ignored")
    noted(tab, stage, "shop/opened", *outcomes)
    tab.load("/schedules/shop/opened?kind=hooks")
    for outcome in outcomes:
        page.get_by_role("cell", name=outcome, exact=True).wait_for()
    tab.says("filtered: `when` does not hold")
    page.get_by_role("row", name="repeated").get_by_role("link").click()
    page.wait_for_url("**/executions/*")


def test_a_phone_shows_why_a_delivery_was_refused(tab: Tab, stage: Stage):
    stage.server.post("/api/catalog/register", {"content": HOOK})
    stage.server.ask("POST", "/hooks/shop/paid", {"id": 1})
    noted(tab, stage, "shop/paid", "refused")
    tab.page.set_viewport_size(PHONE)
    page = tab.go("/schedules/shop/paid?kind=hooks")
    why = page.get_by_text("not genuine").first.bounding_box()
    assert why["x"] + why["width"] <= PHONE["width"]


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


def test_a_schedule_leads_to_its_text_which_is_no_playbook_to_start(tab: Tab, stage: Stage):
    """Nothing led to where its times are changed, and that page offered to start it."""
    stage.server.post("/api/catalog/register", {"content": NIGHTLY})
    page = tab.go("/schedules/shop/nightly")
    page.get_by_role("link", name="shop/nightly").click()
    tab.says("kind: Schedule")
    expect(page.get_by_role("button", name="Start", exact=True)).to_have_count(0)
    page.get_by_role("link", name="Edit").click()
    tab.says("No problems")


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


def test_the_calendar_has_every_time_of_a_week_in_the_zone_of_the_schedule(tab: Tab, stage: Stage):
    often = NIGHTLY.replace("shop/nightly", "shop/often").replace(
        'cron: "30 4 * * *"', "every: 15m"
    )
    local = NIGHTLY.replace("shop/nightly", "shop/local").replace(
        '"30 4 * * *"', '"30 4 * * *", timezone: Asia/Tokyo'
    )
    for content in (often, local):
        stage.server.post("/api/catalog/register", {"content": content})
    page = tab.go("/schedules/shop/often")
    days = page.locator(".calendar li")
    expect(days.nth(9)).to_contain_text("96 times")
    expect(days.nth(13)).to_contain_text("96 times")
    assert "started" not in days.nth(9).inner_text()
    page = tab.go("/schedules/shop/local")
    tab.says("in Asia/Tokyo")
    expect(page.locator(".calendar li").nth(9)).to_contain_text("04:30")
    for path in ("shop/often", "shop/local"):
        assert stage.server.ask("DELETE", f"/api/schedules/{path}").status == 200


def test_a_schedule_is_run_now_and_backfilled_after_a_preview(tab: Tab, stage: Stage):
    nightly = NIGHTLY.replace("shop/nightly", "shop/hourly").replace("30 4 * * *", "30 * * * *")
    stage.server.post("/api/catalog/register", {"content": nightly})
    page = tab.go("/schedules/shop/hourly")
    page.get_by_role("button", name="Backfill").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("From").fill("2026-01-01T00:00")
    dialog.get_by_label("To").fill("2026-01-01T03:00")
    dialog.get_by_role("button", name="Preview").click()
    dialog.get_by_text("3 times are due: 2026-").wait_for()
    dialog.get_by_role("button", name="Start 3").click()
    tab.says("3 times are started.")
    page.get_by_role("cell", name="backfill").first.wait_for()
    page.get_by_role("button", name="Run now").click()
    page.wait_for_url("**/executions/*")
    page.locator(".title .status", has_text="done").wait_for()
    assert stage.server.ask("DELETE", "/api/schedules/shop/hourly").status == 200


FAILING = """
workflow:
  - { step: start, tool: { kind: shell, command: exit 9 } }
"""


def test_a_time_of_a_schedule_says_how_its_execution_ended(tab: Tab, stage: Stage):
    """`started` alone looked as if all were well."""
    register(stage.server, "shop/failing", FAILING)
    daily = NIGHTLY.replace("shop/nightly", "shop/unlucky").replace("shop/orders", "shop/failing")
    stage.server.post("/api/catalog/register", {"content": daily})
    run = stage.server.post("/api/schedules/run", {"path": "shop/unlucky"})["execution_id"]
    stage.server.ended(run)
    page = tab.go("/schedules/shop/unlucky")
    expect(page.get_by_role("row", name=run[-6:])).to_contain_text("failed")
    assert stage.server.ask("DELETE", "/api/schedules/shop/unlucky").status == 200


def test_the_list_of_schedules_says_what_became_of_the_last_time_of_each(tab: Tab, stage: Stage):
    """Which of them had failed at night nobody saw without opening each."""
    register(stage.server, "shop/failing", FAILING)
    for name in ("last_failed", "never_ran"):
        text = NIGHTLY.replace("shop/nightly", f"shop/{name}")
        text = text.replace("shop/orders", "shop/failing")
        stage.server.post("/api/catalog/register", {"content": text})
    run = stage.server.post("/api/schedules/run", {"path": "shop/last_failed"})["execution_id"]
    stage.server.ended(run)
    page = tab.go("/schedules")
    failed = page.get_by_role("row", name="shop/last_failed")
    expect(page.get_by_role("row", name="shop/never_ran")).to_contain_text("not yet")
    failed.get_by_role("link", name="failed", exact=True).click()
    page.wait_for_url(f"**/executions/{run}")
    for name in ("last_failed", "never_ran"):
        assert stage.server.ask("DELETE", f"/api/schedules/shop/{name}").status == 200
