"""Every screen and dialog for everybody: by keyboard, and as axe judges it."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from tests.effort import later
from tests.ui.conftest import Stage, Tab
from tests.ui.screens import screens
from tests.ui.seed import CONSUMER, HOOK, NIGHTLY, NOTIFICATION

AXE = gzip.decompress((Path(__file__).parent / "axe.min.js.gz").read_bytes()).decode()
"""axe-core 4.14.0 as Deque publishes it (MPL 2.0): the checks of accessibility."""


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
        tab.settle()
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
        tab.settle()
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
