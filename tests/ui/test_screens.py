"""All screens in a real browser: what each shows, also where there is nothing to show yet."""

from __future__ import annotations

import contextlib
import http.client
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from playwright.sync_api import expect

from tests.server.processes import Server, serving
from tests.stopwatch import PATIENCE
from tests.ui.conftest import PHONE, SIZE, Stage, Tab
from tests.ui.screens import screens
from tests.ui.seed import CAUSE, EDITED, NIGHTLY, SHORT, register, start

FAILS = """
workflow:
  - { step: start, tool: { kind: shell, command: exit 9 } }
"""
FAR = """
workflow:
  - { step: start, spec: { pool: far }, tool: { kind: noop } }
"""


def test_every_screen_shows_its_data(tab: Tab, stage: Stage):
    # Others may have started so much that the one which waits is not among the newest.
    asked = start(stage.server, "ops/invoice")
    stage.server.wait_for(asked, "step.waiting")
    for path, text in screens(stage.ids).values():
        tab.go(path)
        tab.says(text)
    stage.server.post(f"/api/executions/{asked}/cancel")


def test_a_playbook_that_fails_often_is_one_line_of_home(tab: Tab, stage: Stage):
    register(stage.server, "bad/often now", FAILS)
    for _ in range(3):
        stage.server.ended(start(stage.server, "bad/often now"))
    page = tab.go("/")
    line = page.get_by_role("listitem").filter(has_text="bad/often now")
    expect(line).to_have_count(1)
    line.get_by_role("link", name="3×").click()
    tab.says("3 hits")


def test_a_pool_without_a_worker_says_so_and_has_no_empty_table(tab: Tab, stage: Stage):
    register(stage.server, "wait/far", FAR)
    waits = start(stage.server, "wait/far")
    page = tab.go("/workers")
    tab.says("no worker · 1 command waits")
    expect(page.get_by_role("group", name="Workers of far")).to_have_count(0)
    stage.server.post(f"/api/executions/{waits}/cancel")


def test_a_mistyped_address_says_so_and_leads_home(tab: Tab):
    tab.expected = ("404",)
    page = tab.load("/execution/17")
    tab.says("There is no such page")
    page.get_by_role("main").get_by_role("link", name="Home").click()
    tab.says("What needs you")
    tab.load("/executions/100%zz")  # nothing was shown at all
    tab.says("there is no execution 100%zz")
    page.get_by_role("link", name="All executions").click()
    tab.load("/editor?path=none/such")  # it was "Checking …" for ever
    page.get_by_role("link", name="All playbooks").click()


def test_the_palette_leads_anywhere(tab: Tab):
    page = tab.go("/")
    tab.says("What needs you")
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox", name="Where to?")).to_be_focused()
    page.keyboard.type("shop/flaky v")
    page.get_by_role("option", name="shop/flaky").first.wait_for()
    page.keyboard.press("Enter")
    page.wait_for_url("**/playbooks/shop/flaky")


def test_an_execution_is_found_by_the_digits_that_pages_show(tab: Tab, stage: Stage):
    page = tab.go("/")
    tab.says("What needs you")
    page.keyboard.press("g")
    page.get_by_label("Where to?").fill(f"…{stage.ids['failed'][-6:]}")
    page.get_by_text("executions whose id begins or ends so").wait_for()
    page.keyboard.press("Enter")
    page.get_by_role("link", name=f"…{stage.ids['failed'][-6:]}").click()
    tab.says(CAUSE)


def test_what_is_typed_right_after_the_keys_is_in_the_palette(tab: Tab):
    """A key that comes before the next frame would be one of the screen."""
    page = tab.go("/executions")
    focused = page.evaluate("""async () => {
      dispatchEvent(new KeyboardEvent("keydown", {key: "k", ctrlKey: true}));
      for (const _ of "12345") await null;
      return document.activeElement.getAttribute("aria-label");
    }""")
    assert focused == "Where to?"
    page.keyboard.press("Escape")


INSIDE = """(one) => {
  const [own, room] = [one, one.parentElement].map((it) => it.getBoundingClientRect());
  return own.left >= room.left - 1 && own.right <= room.right + 1;
}"""


def test_where_one_is_can_be_read_on_a_phone(tab: Tab, stage: Stage):
    tab.page.set_viewport_size(PHONE)
    page = tab.go("/admin?part=health")
    page.locator(".badge").wait_for()  # a form waits: that takes room from the others
    tab.settle()
    assert page.locator("nav [aria-current]").evaluate(INSIDE)
    assert page.get_by_role("tab", name="health").evaluate(INSIDE)


SIDEWAYS = """() => {
  const text = "pre, .text, .diff, .tabs, .json-table";  // of which a line is a line
  const isWide = (one) => one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 0
    && ["auto", "scroll"].includes(getComputedStyle(one).overflowX) && !one.matches(text);
  const boxes = [...document.querySelectorAll("main, main *")].filter(isWide);
  return [document.documentElement.scrollWidth - innerWidth, ...boxes.map((one) => one.className)];
}"""
LONG_NAME = f"logistics/{'parcels_of_the_whole_region_' * 2}/{'send_all_of_the_day_' * 2}"
FAILS_AT_LENGTH = """
workflow:
  - step: start
    loop: { in: [1, 2], iterator: n }
    tool:
      kind: python
      code: |
        raise ValueError("see https://example.com/" + "a-link-that-does-not-break/" * 6)
"""


def test_nothing_scrolls_sideways_on_a_phone(tab: Tab, stage: Stage):
    stage.server.post("/api/catalog/register", {"content": NIGHTLY})
    stage.server.post("/api/schedules/run", {"path": "shop/nightly"})
    name = {"name": "the_warehouse_of_the_north_to_read", "description": "ask ops for another"}
    stage.server.post("/api/credentials", {**name, "type": "postgres", "data": {"a": "b"}})
    worker = {"worker_id": "ip-10-0-17-4.eu-west-1.compute.internal-4711", "pool": "side"}
    stage.server.post("/api/worker/pool/register", {**worker, "slots": 3})
    register(stage.server, LONG_NAME, FAILS_AT_LENGTH)
    failed = start(stage.server, LONG_NAME)
    stage.server.ended(failed)
    asked = start(stage.server, "ops/invoice")  # among the newest, as the list must show it
    stage.server.wait_for(asked, "step.waiting")
    tab.page.set_viewport_size(PHONE)
    wide = []
    for path, text in (
        *screens(stage.ids).values(),
        ("/schedules/shop/nightly", "What became of the last times"),
        ("/admin?part=credentials", name["name"]),
        ("/workers", worker["worker_id"]),
        (f"/playbooks/{LONG_NAME}", "a-link-that-does-not-break"),
        (f"/executions/{failed}", "next failed"),
        (f"/compare?a={stage.ids['done']}&b={failed}", "First difference"),
    ):
        tab.go(path)
        tab.says(text)
        tab.settle()
        beyond, *boxes = tab.page.evaluate(SIDEWAYS)
        if beyond > 0 or boxes:
            wide.append((path, beyond, boxes))
    stage.server.post(f"/api/executions/{asked}/cancel")
    stage.server.ask("DELETE", f"/api/credentials/{name['name']}")
    stage.server.post("/api/worker/pool/deregister", {"worker_id": worker["worker_id"]})
    assert wide == []


def test_a_question_is_read_whole_on_a_phone(tab: Tab, stage: Stage):
    asks = "Pay it, although the order was for another cost centre and the money was sent before?"
    register(stage.server, "ops/question", QUESTION.replace("ASKS", asks))
    waiting = start(stage.server, "ops/question")
    stage.server.wait_for(waiting, "step.waiting")
    tab.page.set_viewport_size(PHONE)
    cut = "(one) => one.parentElement.scrollWidth > one.parentElement.clientWidth"
    for path in ("/", "/inbox"):
        page = tab.go(path)
        question = page.get_by_text(asks)
        question.wait_for()
        box = question.bounding_box()
        assert box["x"] + box["width"] <= PHONE["width"]
        assert not question.evaluate(cut)
    stage.server.post(f"/api/executions/{waiting}/cancel")


QUESTION = """
workflow:
  - step: start
    spec:
      eval_mode: on_event
      form: [{ name: approved, type: boolean, label: "ASKS" }]
    case: [{ when: "{{ event.name == 'approval.received' }}", then: { result: { value: 1 } } }]
"""


def test_a_status_has_one_word_everywhere(tab: Tab, stage: Stage):
    page = tab.go(f"/compare?a={stage.ids['done']}&b={stage.ids['failed']}")
    tab.says("in the second")
    differs = page.locator("li", has_text="it is done in the first and failed in the second")
    expect(differs).to_have_count(1)
    assert "COMPLETED" not in page.locator("main").inner_text()
    page = tab.go(f"/executions/{stage.ids['done']}?tab=why")
    tab.says("It has ended: done.")


OVERLAPS = """(json) => {
  const copy = json.querySelector(".json-copy").getBoundingClientRect();
  const text = document.createRange();
  text.selectNodeContents(json.querySelector(".json-text"));
  return [...text.getClientRects()].some((one) => one.right > copy.left);
}"""


def test_a_long_text_is_not_written_over_its_button(tab: Tab, stage: Stage):
    long = start(stage.server, "shop/orders", region="a-very-long-region-name-" * 6)
    stage.server.ended(long)
    tab.page.set_viewport_size(PHONE)
    page = tab.go(f"/executions/{long}?tab=data")
    result = page.locator(".json", has_text="orders of a-very").first
    result.wait_for()
    assert not result.evaluate(OVERLAPS)


def test_the_first_page_shows_whole_errors(tab: Tab, stage: Stage):
    start(stage.server, "shop/orders", region="south")
    page = tab.go("/")
    error = page.locator(".columns p", has_text=CAUSE).first
    error.wait_for()
    cut = "(one) => one.scrollWidth > one.clientWidth || one.scrollHeight > one.clientHeight"
    assert not error.evaluate(cut)


RINGS = """(one) => {
  one.focus({focusVisible: true});
  const box = one.getBoundingClientRect(), style = getComputedStyle(one);
  const out = parseFloat(style.outlineWidth) + parseFloat(style.outlineOffset);
  const room = one.closest("nav, .tabs").getBoundingClientRect();
  return [style.outlineStyle, box.top - out >= room.top, box.bottom + out <= room.bottom];
}"""


def test_the_ring_of_what_has_the_focus_is_seen_whole(tab: Tab, stage: Stage):
    """Bars that scroll cut off what lies outside of them."""
    page = tab.go("/admin")
    page.get_by_role("tab", name="health").wait_for()
    for place in ("nav a", ".tabs button"):
        assert page.locator(place).nth(1).evaluate(RINGS) == ["solid", True, True], place


def test_a_missed_time_says_why_on_the_first_page(tab: Tab, stage: Stage):
    lost = NIGHTLY.replace("shop/nightly", "shop/lost").replace("shop/orders", "shop/gone_away")
    stage.server.post("/api/catalog/register", {"content": lost})
    assert stage.server.ask("POST", "/api/schedules/run", {"path": "shop/lost"}).status == 409
    page = tab.go("/")
    reason = page.get_by_text("it could not be started").first
    reason.wait_for()
    assert not reason.evaluate("(one) => one.scrollWidth > one.clientWidth")
    assert stage.server.ask("DELETE", "/api/schedules/shop/lost").status == 200


def test_a_command_is_copied_also_where_pages_have_no_clipboard(browser, stage: Stage):
    """Over plain HTTP from another machine."""
    tab = Tab(browser, stage.server.url)
    tab.page.add_init_script(
        "Object.defineProperty(Navigator.prototype, 'clipboard', {get: () => undefined})"
    )
    page = tab.go(f"/executions/{stage.ids['done']}")
    page.get_by_role("button", name="Copy the id").click()
    tab.says("Copied.")
    tab.go("/executions")
    page.get_by_role("combobox", name="Query").focus()
    page.keyboard.press("Control+V")
    expect(page.get_by_role("combobox", name="Query")).to_have_value(stage.ids["done"])
    assert tab.troubles == []
    tab.close()


def test_on_paper_a_page_is_whole(tab: Tab, stage: Stage):
    for number in range(40):
        register(stage.server, f"paper/one_{number}", EDITED)
    for path, last in (
        ("/playbooks", "one_9"),
        (f"/executions/{stage.ids['failed']}", "more lines"),
    ):
        page = tab.go(path)
        tab.says(last)
        tab.settle()
        page.emulate_media(media="print")
        height = page.get_by_text(last).first.bounding_box()["y"]
        assert height > SIZE["height"], "this page is longer than the screen"
        assert page.evaluate("document.documentElement.scrollHeight") > height
        assert not page.get_by_role("navigation").is_visible()
        page.emulate_media(media="screen")


def test_bars_and_what_is_chosen_are_seen_in_few_colours(browser, stage: Stage):
    """A background goes where people force their colours, and with it went every bar."""
    tab = Tab(browser, stage.server.url, forced_colors="active", color_scheme="dark")
    page = tab.go(f"/executions/{stage.ids['failed']}")
    page.locator(".timeline .bar.run-failed").first.wait_for()
    colour = "(one, name) => getComputedStyle(one)[name]"
    around = page.locator(".timeline").evaluate(colour, "backgroundColor")
    bar = page.locator(".timeline .bar.run-failed").first
    assert bar.evaluate(colour, "backgroundColor") != around
    chosen, other = page.locator(".tabs button").first, page.locator(".tabs button").nth(1)
    assert chosen.evaluate(colour, "borderBottomColor") != other.evaluate(
        colour, "borderBottomColor"
    )
    assert page.locator(".timeline .line.at").first.evaluate(colour, "outlineStyle") == "solid"
    tab.close()


def test_times_and_theme_are_as_people_like_them_and_stay_so(tab: Tab, stage: Stage):
    page = tab.go(f"/executions/{stage.ids['done']}")
    tab.says("ago")
    page.get_by_label("Times").select_option("utc")
    begun = stage.server.get(f"/api/executions/{stage.ids['done']}")["start_time"]
    page.locator(".title time", has_text=begun[11:19]).wait_for()
    page.get_by_label("Theme").select_option("dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.reload()
    page.locator(".title time", has_text=begun[11:19]).wait_for()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
    page.get_by_label("Theme").select_option("light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


def test_an_empty_server_teaches_the_next_command(browser, tmp_path):
    with serving(tmp_path) as server:
        tab = Tab(browser, server.url)
        kinds = [f"/schedules?kind={one}" for one in ("hooks", "consumers", "notifications")]
        for path in ("/", "/executions", "/playbooks", "/workers", "/schedules", *kinds):
            page = tab.go(path)
            page.locator(".command code", has_text="noetl ").first.wait_for()
        assert tab.troubles == []
        tab.close()


def test_what_no_worker_takes_is_said_on_the_first_page(browser, tmp_path):
    with serving(tmp_path) as server:  # it has no worker
        register(server, "ops/short", SHORT)
        waiting = start(server, "ops/short")
        server.wait_for(waiting, "step.scheduled")
        tab = Tab(browser, server.url)
        page = tab.go("/")
        page.get_by_role("link", name="pool default").click()
        page.wait_for_url("**/workers")
        tab.says("1 command waits")
        assert tab.troubles == []
        tab.close()


def test_a_worker_is_drained(tab: Tab, stage: Stage):
    worker = {"worker_id": "w-17", "pool": "side", "slots": 3}
    stage.server.post("/api/worker/pool/register", worker)
    page = tab.go("/workers")
    page.get_by_role("button", name="Drain w-17").click()
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    tab.says("draining")
    assert stage.server.post("/api/worker/pool/heartbeat", worker)["drain"]
    stage.server.post("/api/worker/pool/deregister", {"worker_id": "w-17"})


def test_the_pages_work_below_a_path_of_a_proxy(browser, stage: Stage):
    with_prefix = ThreadingHTTPServer(("127.0.0.1", 0), proxy_of(stage.server))
    threading.Thread(target=with_prefix.serve_forever, daemon=True).start()
    try:
        tab = Tab(browser, f"http://127.0.0.1:{with_prefix.server_port}/tools/noetl")
        page = tab.go(f"/executions/{stage.ids['failed']}?tab=events")
        tab.says("playbook.processed")
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
            line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
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
                # A stream ends with its server, or when nobody reads it.
                with contextlib.suppress(OSError):
                    while piece := answer.read1(65536):
                        self.wfile.write(piece)

        do_GET = do_POST = do_PUT = do_DELETE = forward  # noqa: N815  as the base class calls them

        def log_message(self, *_: object) -> None:
            """Tests are quiet."""

    return Proxy


TOUR = Path(__file__).parent.parent.parent / "docs" / "tour.md"


def test_the_tour_can_be_walked(browser, tmp_path):
    """Step by step as docs/tour.md says, with the buttons and links that it names."""
    steps = re.findall(r"^\d\. (.*)$", TOUR.read_text(), re.MULTILINE)
    named = [label for step in steps for label in re.findall(r"\*\*(.+?)\*\*", step)]
    pressed: list[str] = []
    with serving(tmp_path, kind="dev") as server:
        example = TOUR.parent.parent / "examples" / "approval.yaml"
        server.post("/api/catalog/register", {"content": example.read_text()})
        asked = start(server, "examples/approval")
        server.wait_for(asked, "step.waiting")
        tab = Tab(browser, server.url)
        page = tab.go("/")

        def press(label: str, inside: str = "body", role: str = "button") -> None:
            pressed.append(label)
            page.locator(inside).get_by_role(role, name=label, exact=True).first.click()

        tab.says("What needs you")
        pressed.append("Inbox")
        page.get_by_role("link", name="Inbox").click()
        press("Answer")
        page.get_by_role("dialog").get_by_label("Yes").check()
        press("Answer", "dialog")
        tab.says("No form waits for you.")

        press("Executions", role="link")
        page.get_by_role("link", name=f"…{asked[-6:]}").click()
        page.locator(".title .status", has_text="done").wait_for()
        for _ in range(3):
            page.keyboard.press("[")
        page.wait_for_url("**at=*")
        pressed.append("live")
        press("end")

        press("Playbooks", role="link")
        press("New playbook", role="link")
        tab.says("No problems")
        page.get_by_role("treeitem", name="start").wait_for(state="attached")
        press("Register")

        press("Start")
        press("Start", "dialog")
        page.locator(".title .status", has_text="done").wait_for()
        press("data", role="tab")
        page.locator(".json", has_text="hello world").first.wait_for()
        first = page.url.rpartition("/")[2].partition("?")[0]

        page.get_by_role("link", name="examples/hello").click()
        press("Edit", role="link")
        tab.says("No problems")
        page.locator(".cm-content").get_by_text('"hello {{').click()
        page.keyboard.press("Home")
        page.keyboard.press("Shift+End")
        page.keyboard.insert_text('result: "good day {{ workload.whom }}"')
        tab.says("draft, kept in this browser")
        press("what if", role="tab")
        press("Compare")
        tab.says("1 the same, 0 different")
        press("Register")
        page.get_by_label("compare with").select_option("1")
        page.get_by_role("region", name="Graph of version 1").wait_for()

        press("Start")
        page.get_by_label("Workload").fill('{"whom": {"name": "Ada"}}')
        press("Start", "dialog")
        page.locator(".title .status", has_text="done").wait_for()
        second = page.url.rpartition("/")[2].partition("?")[0]
        tab.go("/executions?q=path:examples/hello")
        for one in (first, second):
            page.get_by_label(f"Select …{one[-6:]}").check()
        press("compare")
        page.get_by_role("heading", name="First difference").wait_for()

        tab.go(f"/executions/{first}?at=6")
        press("Fork here")
        press("What would happen?")
        page.locator("dialog", has_text="reused").wait_for()
        assert tab.troubles == []
        tab.close()
    assert pressed == named
