"""The web UI in a real browser, against a real server: what people see and do there."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.server.processes import Server, serving
from tests.ui.conftest import Stage, Tab
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
        "schedules": ("/schedules", "Nothing is scheduled."),
        "compare": (f"/compare?a={done}&b={failed}", "First difference"),
        "admin": ("/admin?part=health", "not configured"),
        "editor": ("/editor?path=ops/invoice", "No problems"),
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
    assert "not reached" in (collect.text_content() or "")
    assert page.locator(".timeline .line").count() == 1

    page.get_by_role("button", name="end", exact=True).click()

    page.locator(".timeline .line").nth(2).wait_for()
    assert "done" in (collect.text_content() or "")


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
    page.get_by_label("Pay 17 to Nordic Paper?").check()
    page.get_by_role("dialog").get_by_role("button", name="Answer").click()

    page.locator(".title .status", has_text="done").wait_for()
    page.locator(".timeline .line", has_text="pay").wait_for()


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
    page.wait_for_timeout(100)
    page.locator(".execution-row .status", has_text="cancelled").nth(2).wait_for()


def test_a_view_is_kept_on_the_server(tab: Tab):
    page = tab.go("/executions?q=status:failed path:shop/*")
    page.get_by_label("Saved views").select_option("+")
    page.get_by_label("Name").fill("on-call")
    page.get_by_role("button", name="Keep").click()
    page.get_by_role("option", name="on-call", exact=True).wait_for(state="attached")
    tab.go("/executions")
    page.get_by_label("Saved views").select_option("on-call")
    page.wait_for_url("**q=status%3Afailed**")


def test_a_fork_says_first_what_happens_again(tab: Tab, stage: Stage):
    page = tab.go(f"/executions/{stage.ids['failed']}?at=12")
    page.get_by_role("button", name="Fork here").click()
    page.get_by_role("button", name="What would happen?").click()
    tab.says("1 calls are reused")
    page.get_by_role("dialog").get_by_role("button", name="Fork", exact=True).click()
    page.wait_for_url(lambda url: stage.ids["failed"] not in url)
    page.locator(".title .status", has_text="failed").wait_for()


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


def test_an_expression_is_evaluated_as_the_step_sees_it(tab: Tab, stage: Stage):
    page = tab.go(f"/executions/{stage.ids['done']}?step=load")
    page.get_by_label("Expression").fill("workload.orders * 2")
    page.get_by_role("button", name="Evaluate").click()
    page.locator(".json", has_text="50").first.wait_for()


def test_the_editor_shows_problems_as_you_type_and_keeps_a_draft(tab: Tab):
    page = tab.go("/editor?path=ops/invoice")
    tab.says("No problems")
    page.get_by_label("Playbook").click()
    page.keyboard.press("Control+End")
    page.keyboard.insert_text("  - step: more\n    tool: { kind: nop }\n")
    tab.says('Did you mean "noop"?')
    assert page.get_by_role("button", name="Register").is_disabled()

    tab.go("/editor?path=ops/invoice")

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
        assert word in (page.locator("main").text_content() or "")
    tab.go("/executions?q=path:bad/*")
    tab.says("<script>alert(1)</script>")


WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


MAIN = ("list", "failed", "data", "playbook", "admin", "inbox")


@pytest.mark.parametrize(
    ("theme", "wanted"),
    [
        ("light", MAIN),
        ("dark", MAIN[:2]),
        pytest.param("light", (), marks=pytest.mark.long),
        pytest.param("dark", (), marks=pytest.mark.long),
    ],
)
def test_every_screen_is_accessible(browser, stage: Stage, theme, wanted):
    tab = Tab(browser, stage.server.url, color_scheme=theme, bypass_csp=True)
    found = []
    rules = ["color-contrast"] if theme == "dark" else WCAG
    kind = "rule" if theme == "dark" else "tag"
    for name, (path, text) in screens(stage.ids).items():
        if wanted and name not in wanted:
            continue
        tab.go(path)
        tab.says(text)
        tab.page.add_script_tag(content=AXE)
        options = {"resultTypes": ["violations"], "runOnly": {"type": kind, "values": rules}}
        told = tab.page.evaluate("options => axe.run(document, options)", options)
        found += [
            f"{name}: {one['id']}: {node['html'][:160]} {node['failureSummary'][:300]}"
            for one in told["violations"]
            for node in one["nodes"][:3]
        ]
    tab.close()
    assert not found, "\n".join(found)


def test_the_page_survives_a_server_that_is_killed(browser, tmp_path):
    server = Server(tmp_path, kind="dev")
    try:
        register(server, "ops/slow", SHORT)
        running = start(server, "ops/slow")
        server.wait_for(running, "task.started")
        tab = Tab(browser, server.url)
        page = tab.go(f"/executions/{running}")
        page.locator(".title .status", has_text="running").wait_for()
        server.kill()
        page.locator(".banner").wait_for(timeout=30_000)
        server = Server(tmp_path, kind="dev", port=server.port)
        page.locator(".title .status", has_text="done").wait_for(timeout=45_000)
        tab.close()
    finally:
        server.end()


SHORT = """
workflow:
  - step: start
    tool: { kind: shell, command: sleep 2 }
"""


def test_eight_tabs_follow_over_one_stream(browser, stage: Stage):
    """A browser opens six connections to one server: eight streams would block all else."""
    context = browser.new_context(viewport={"width": 800, "height": 600})
    running = [start(stage.server, "ops/slow") for _ in range(8)]
    pages = []
    for execution_id in running:
        page = context.new_page()
        page.goto(f"{stage.server.url}/executions/{execution_id}")
        page.locator(".title .status", has_text="running").wait_for(timeout=20_000)
        pages.append(page)
    for execution_id in running:
        stage.server.post(f"/api/executions/{execution_id}/cancel")
    for page in pages:
        page.locator(".title .status", has_text="cancelled").wait_for(timeout=20_000)
    pages[0].close()  # the one that read for all
    waiting = start(stage.server, "ops/slow")
    pages[1].goto(f"{stage.server.url}/executions/{waiting}")
    pages[1].locator(".title .status", has_text="running").wait_for(timeout=20_000)
    stage.server.post(f"/api/executions/{waiting}/cancel")
    pages[1].locator(".title .status", has_text="cancelled").wait_for(timeout=20_000)
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
            assert page.get_by_role("button", name="Start", exact=True).count() == offered
            page.get_by_role("button", name=name, exact=True).click()
            page.get_by_role("button", name="Sign in").wait_for()
            tab.go("/playbooks/ops/slow")
        assert all("401" in one for one in tab.troubles)
        tab.close()


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
            line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=2)
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
                # A stream ends when it says nothing for a while, or when nobody reads it.
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
        for path in ("/", "/executions", "/playbooks", "/workers", "/schedules"):
            page = tab.go(path)
            page.locator(".command code", has_text="noetl ").first.wait_for()
        assert tab.troubles == []
        tab.close()


def test_a_large_graph_is_painted_and_panned_quickly(browser, stage: Stage):
    steps = 2000
    lines = ["", "workflow:"]
    for number in range(steps):
        lines.append(f"  - step: s{number}")
        lines.append("    tool: { kind: noop }")
        following = [n for n in (2 * number + 1, 2 * number + 2) if n < steps]
        if following:
            arcs = ", ".join(f"{{ step: s{one} }}" for one in following)
            lines.append(f"    next: {{ arcs: [{arcs}] }}")
    text = "\n".join(lines).replace("step: s0", "step: start", 1)
    register(stage.server, "big/graph", text)
    tab = Tab(browser, stage.server.url)
    page = tab.go("/playbooks/big/graph")
    page.get_by_role("button", name="fit").click()
    page.wait_for_timeout(500)
    frames = page.evaluate(PAN)
    tab.close()
    assert tab.troubles == []
    assert frames["nodes"] < 2 * steps, "the graph must not be made of elements"
    assert frames["slowest"] < 500


PAN = """async () => {
  const canvas = document.querySelector(".graph canvas");
  const box = canvas.getBoundingClientRect();
  const at = (type, x) => canvas.dispatchEvent(new PointerEvent(type, {
    clientX: box.left + x, clientY: box.top + 60, pointerId: 1, bubbles: true}));
  canvas.setPointerCapture = () => {};
  at("pointerdown", 100);
  let slowest = 0;
  for (let step = 0; step < 30; step++) {
    const begun = performance.now();
    at("pointermove", 100 + step * 5);
    await new Promise(requestAnimationFrame);
    slowest = Math.max(slowest, performance.now() - begun);
  }
  at("pointerup", 250);
  return {slowest, nodes: document.querySelectorAll("*").length};
}"""
