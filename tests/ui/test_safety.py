"""What others wrote stays text in a real browser, and no secret gets there."""

from __future__ import annotations

import json
from urllib.parse import quote

from playwright.sync_api import expect

from tests.canaries import assert_clean
from tests.ui.conftest import Stage, Tab, until
from tests.ui.seed import XSS, register, start


def test_markup_in_names_results_output_and_errors_is_text(tab: Tab, stage: Stage):
    hostile = stage.ids["hostile"]
    for pane in ("", "?tab=data", "?tab=events", "?tab=output", "?tab=why", "?step=start"):
        page = tab.go(f"/executions/{hostile}{pane}")
        tab.settle()
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
        tab.settle()
        found = page.locator("body :is(img, script, [onerror], [onload], [onmouseover])")
        assert found.count() == 0, path
    server.ask("DELETE", f"/api/executions/{stage.ids['done']}/hold")
    # An execution and a playbook of such a name are not there.
    tab.expected = ("404",)
    until(page, lambda: any("404" in one for one in tab.troubles))


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
        *(f"/executions/{failed}?tab={pane}" for pane in ("data", "why")),
        *("/executions?q=path:shop/sealed", "/admin?part=credentials", "/admin?part=audit", "/"),
    ):
        page = tab.go(path)
        tab.settle()
        found += page.evaluate(SHOWN)
    assert "token ***" in found or "token [" in found or "exit code 1" in found
    assert_clean((CANARY,), found)
