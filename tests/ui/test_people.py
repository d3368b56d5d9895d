"""People in a real browser: who they are, what they are offered, and what they may answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.examples.system import temporary_folder
from tests.server.processes import Server, serving
from tests.ui.conftest import PHONE, Tab
from tests.ui.seed import SHORT, register, start


def test_credentials_users_and_tokens_are_made_and_taken_away(browser, tmp_path):
    with serving(tmp_path) as server:
        tab = Tab(browser, server.url)
        page = tab.go("/admin?part=credentials")
        page.get_by_role("button", name="New or replace").click()
        page.get_by_label("Name").fill("warehouse")
        page.get_by_label("Data").fill('{"password": "canary-of-the-dom"}')
        page.get_by_role("button", name="Keep").click()
        page.get_by_role("cell", name="warehouse", exact=True).wait_for()
        page.get_by_role("tab", name="tokens").click()
        page.get_by_role("button", name="New", exact=True).click()
        page.get_by_label("Name").fill("robot")
        page.get_by_label("admin").check()
        page.get_by_label("Roles of your own").fill("finance, on-call")
        page.get_by_role("button", name="Create").click()
        tab.says("robot, shown only now:")
        server.token = page.locator("dialog .command code").inner_text()
        made = server.get("/api/access/tokens")["tokens"]
        assert made[0]["roles"] == ["admin", "finance", "on-call"]
        tab.close()  # with a token somebody is known, and nobody may look any more

        tab = Tab(browser, server.url)
        page = tab.go("/")
        page.get_by_role("button", name="Sign in").wait_for()
        assert "canary" not in page.content()
        tab.close()


PEOPLE = {
    "ann": ["admin"],
    "vic": ["viewer"],
    "fay": ["operator", "finance"],
    "oli": ["operator"],
}
PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One that has users; tests ask it as ann."""
    with temporary_folder() as folder, serving(folder) as found:
        for name, roles in PEOPLE.items():
            body = {"name": name, "password": PASSWORD, "roles": roles}
            found.post("/api/access/users", body)
            if found.token is None:
                login = {"user": name, "password": PASSWORD}
                found.token = found.post("/api/auth/login", login)["token"]
        yield found


def test_people_sign_in_and_are_offered_what_they_may_do(browser, server: Server):
    register(server, "ops/slow", SHORT)
    tab = Tab(browser, server.url)
    page = tab.go("/playbooks/ops/slow")
    for name, offered in (("ann", 1), ("vic", 0)):
        page.get_by_label("Name").fill(name)
        page.get_by_label("Password").fill("wrong one")
        page.get_by_role("button", name="Sign in").click()
        tab.says("the name or the password is wrong")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("heading", name="ops/slow").wait_for()
        tab.settle()
        expect(page.get_by_role("button", name="Start", exact=True)).to_have_count(offered)
        # A name is where people look for their account, not for the way out.
        page.get_by_role("button", name=name, exact=True).click()
        tab.says(f"Signed in as {name}, with the role")
        page.get_by_role("dialog").get_by_role("link", name="Sessions").click()
        page.get_by_text("this one").wait_for()
        page.get_by_role("button", name=name, exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name="Sign out").click()
        page.get_by_role("button", name="Sign in").wait_for()
        tab.go("/playbooks/ops/slow")
    assert all("401" in one for one in tab.troubles)
    tab.close()


def test_a_second_tab_notices_that_somebody_signed_in(browser, server: Server):
    """Each tab asked for the password again."""
    tab = Tab(browser, server.url)
    tab.expected = ("401",)
    other = tab.context.new_page()
    other.goto(f"{server.url}/workers")
    other.get_by_role("button", name="Sign in").wait_for()
    signed_in(tab, "/playbooks", "vic")
    other.evaluate("dispatchEvent(new Event('focus'))")  # as when somebody turns to it
    other.get_by_role("heading", name="Workers").wait_for()
    assert tab.forget() == []
    tab.close()


TYPED = """
executor:
  spec:
    inputs: { key: { type: secret }, doc: { type: file }, sum: { type: number } }
workflow:
  - { step: start, tool: { kind: noop } }
"""


def test_a_form_says_that_a_secret_is_asked_for_by_its_name(browser, server: Server):
    register(server, "ops/typed", TYPED)
    tab = Tab(browser, server.url)
    tab.expected = ("401",)
    signed_in(tab, "/playbooks/ops/typed", "ann")
    tab.page.get_by_role("button", name="Start", exact=True).click()
    expect(tab.page.get_by_label("key (the name of a stored credential)")).to_be_visible()
    expect(tab.page.get_by_label("doc (a path or an address)")).to_be_visible()
    sum_field = tab.page.get_by_label("sum").bounding_box()
    assert sum_field["width"] > 120  # an amount is read whole
    assert tab.forget() == []
    tab.close()


def test_a_phone_signs_out_and_chooses_its_theme(browser, server: Server):
    tab = Tab(browser, server.url)
    tab.expected = ("401",)
    signed_in(tab, "/login", "vic")
    expect(tab.page.get_by_text("There is no such page")).to_have_count(0)
    tab.page.set_viewport_size(PHONE)
    for choice in ("Theme: dark", "Sign out"):
        tab.page.get_by_role("button", name="Go anywhere").click()
        tab.page.get_by_role("option", name=choice).click()
    tab.page.get_by_role("button", name="Sign in").wait_for()
    assert tab.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert tab.forget() == []
    tab.close()


def signed_in(tab: Tab, path: str, name: str) -> None:
    page = tab.go(path)
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name=name, exact=True).wait_for()


def test_users_tokens_and_sessions_are_read_whole_on_a_phone(browser, server: Server):
    name = "worker-of-the-warehouse-in-the-north"
    server.post("/api/access/tokens", {"name": name, "roles": ["worker"], "pools": ["gpu"]})
    tab = Tab(browser, server.url)
    tab.expected = ("401",)
    signed_in(tab, "/admin?part=users", "ann")
    tab.page.set_viewport_size(PHONE)
    for part, shown, action in (
        ("users", "operator, finance", "Delete fay"),
        ("tokens", "gpu", f"Revoke {name}"),
        ("sessions", "127.0.0.1", ""),
    ):
        page = tab.go(f"/admin?part={part}")
        page.get_by_role("cell", name=shown).first.wait_for()
        box = page.locator(".tablebox")
        assert box.evaluate("(one) => one.scrollWidth <= one.clientWidth"), part
        if action:
            place = page.get_by_role("button", name=action).bounding_box()
            assert place["x"] + place["width"] <= PHONE["width"]
    assert tab.forget() == []
    server.ask("DELETE", f"/api/access/tokens/{name}")
    tab.close()


PAYMENT = """
workflow:
  - step: start
    spec:
      eval_mode: on_event
      form:
        role: finance
        fields: [{ name: approved, type: boolean, label: "Pay it?" }]
    case:
      - when: "{{ event.name == 'approval.received' }}"
        then: { result: { value: 1 } }
"""


def test_a_form_is_shown_to_the_role_that_may_answer_it(browser, server: Server):
    register(server, "ops/payment", PAYMENT)
    waiting = start(server, "ops/payment")
    server.wait_for(waiting, "step.waiting")

    tab = Tab(browser, server.url)
    signed_in(tab, "/inbox", "oli")
    tab.says("No form waits for you.")
    tab.settle()
    assert tab.page.locator(".badge").count() == 0
    tab.page.get_by_role("tab", name="all").click()
    tab.says("Pay it?")
    tab.says("for the role finance")
    assert tab.page.get_by_role("button", name="Answer").count() == 0
    tab.go(f"/executions/{waiting}?step=start")
    tab.says("for the role finance")
    tab.settle()
    assert tab.page.get_by_role("button", name="Answer", exact=True).count() == 0
    tab.close()

    tab = Tab(browser, server.url)
    signed_in(tab, "/inbox", "fay")
    expect(tab.page.locator(".badge")).to_have_text("1")
    tab.page.get_by_role("button", name="Answer").click()
    tab.page.get_by_role("dialog").get_by_label("No").check()
    tab.page.get_by_role("dialog").get_by_role("button", name="Answer").click()
    tab.says("No form waits for you.")
    tab.page.locator(".badge").wait_for(state="detached")
    tab.close()
    answered = server.wait_for(waiting, "approval.received")
    assert "fay" in str(answered)
    assert answered["payload"]["data"] == {"approved": False}


PLAIN = """
executor:
  spec:
    inputs: { doc: { type: string } }
workflow:
  - { step: start, tool: { kind: noop } }
"""


def test_nothing_typed_is_lost_when_a_session_ends(browser, server: Server):
    """Dialogs were emptied, and the editor came back at its first line."""
    register(server, "ops/plain", PLAIN)
    tab = Tab(browser, server.url)
    tab.expected = ("401",)
    signed_in(tab, "/playbooks/ops/plain", "ann")
    page = tab.page
    page.get_by_role("button", name="Start", exact=True).click()
    dialog = page.get_by_role("dialog", name="Start")
    dialog.get_by_label("doc").fill("/what/somebody/typed")
    tab.context.clear_cookies()
    dialog.get_by_role("button", name="Start", exact=True).click()
    tab.says("what you typed is still there")
    for _ in "12":
        page.keyboard.press("Escape")
    again(tab)
    expect(dialog.get_by_label("doc")).to_have_value("/what/somebody/typed")
    dialog.get_by_role("button", name="Start", exact=True).click()
    page.wait_for_url("**/executions/*")

    tab.go("/editor?path=ops/plain")
    tab.says("No problems")
    page.locator(".cm-content").click()
    page.keyboard.press("Control+End")
    page.keyboard.type("# first")
    tab.context.clear_cookies()
    page.keyboard.type(", second")
    tab.says("what you typed is still there")
    again(tab)
    page.keyboard.type(", third")
    expect(page.locator(".cm-content")).to_contain_text("# first, second, third")
    page.get_by_role("button", name="discard").click()
    assert tab.forget() == []
    tab.close()


def test_who_leaves_after_their_session_ended_is_not_asked_to_go_on(browser, server: Server):
    tab = Tab(browser, server.url)
    tab.expected = ("401",)
    signed_in(tab, "/editor", "ann")
    tab.page.locator(".cm-content").wait_for()
    tab.page.get_by_role("button", name="ann", exact=True).click()
    tab.context.clear_cookies()
    tab.page.get_by_role("dialog").get_by_role("button", name="Sign out").click()
    tab.page.get_by_role("button", name="Sign in").wait_for()
    expect(tab.page.get_by_text("what you typed is still there")).to_have_count(0)
    expect(tab.page.locator(".cm-content")).to_have_count(0)
    assert tab.forget() == []
    tab.close()


def again(tab: Tab) -> None:
    """Whose session ended signs in, at the place where they were."""
    expect(tab.page.get_by_label("Name", exact=True)).to_be_focused()
    tab.page.keyboard.type("ann")
    tab.page.get_by_label("Password").fill(PASSWORD)
    tab.page.get_by_role("button", name="Sign in").click()
    tab.page.get_by_role("button", name="Sign in").wait_for(state="detached")


def test_who_signs_in_after_somebody_else_finds_nothing_of_theirs(browser, server: Server):
    register(server, "ops/plain", PLAIN)
    tab = Tab(browser, server.url)
    tab.expected = ("401",)
    signed_in(tab, "/playbooks/ops/plain", "ann")
    tab.page.get_by_role("button", name="Start", exact=True).click()
    tab.page.get_by_label("doc").fill("of ann")
    tab.context.clear_cookies()
    tab.page.get_by_role("dialog").get_by_role("button", name="Start", exact=True).click()
    tab.says("what you typed is still there")
    tab.page.get_by_label("Name", exact=True).fill("oli")
    tab.page.get_by_label("Password").fill(PASSWORD)
    tab.page.get_by_role("button", name="Sign in").click()
    tab.page.get_by_role("button", name="oli", exact=True).wait_for()
    expect(tab.page.get_by_role("dialog")).to_have_count(0)
    assert tab.forget() == []
    tab.close()
