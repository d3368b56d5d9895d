"""A real browser in front of a real server with executions worth looking at."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.examples.system import temporary_folder
from tests.server.processes import Server, serving
from tests.stopwatch import PATIENCE
from tests.ui.seed import seeded

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
"""The one without windows does the same with an eighth less work."""
SIZE = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
SECONDS = 60_000
"""How long a page may take on a busy machine."""
FOLLOW = """async (address) => {
  history.pushState(null, "", address);
  dispatchEvent(new PopStateEvent("popstate"));
  for (const _ of "12") await new Promise(requestAnimationFrame);
}"""
"""What a link of the app does; what was there before is gone after a frame."""
FRAMES = """async () => {
  for (const _ of "123") await new Promise(requestAnimationFrame);
  await new Promise((done) => setTimeout(done));
}"""
"""What follows from an answer is drawn, and what is asked for because of that is asked for."""
TIDY = """() => {
  const usual = {"noetl.theme": "system", "noetl.clock": "relative"};
  const isUsual = Object.entries(localStorage).every(([key, value]) => usual[key] === value);
  localStorage.clear();
  sessionStorage.clear();
  return isUsual && !document.querySelector("dialog, .news p");
}"""
"""Forget what the browser remembers; whether the page, too, remembers nothing."""
AS_BEFORE = {"media": "null", "color_scheme": "null", "reduced_motion": "null"}


def until(page: Any, holds: Callable[[], object]) -> None:
    """Wait for what a page causes here: Playwright tells of it only while it is called."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        page.wait_for_timeout(20)


class Stage(NamedTuple):
    """A server, and the ids of its executions by what is worth seeing in them."""

    server: Server
    ids: dict[str, str]


OPEN: list[Tab] = []
"""The tabs of this process, for the report of a test that fails."""


class Tab:
    """A page of the UI; what goes wrong in it is remembered."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.context = browser.new_context(viewport=SIZE, **options)
        self.context.set_default_timeout(SECONDS)
        self.page = self.context.new_page()
        OPEN.append(self)
        self.url = url
        self.troubles: list[str] = []
        self.expected: tuple[str, ...] = ()
        """Statuses of answers that this test provokes. The browser complains about each, sometimes
        only after the page has shown it."""
        self.is_loaded = False
        """A link of the app leads to the next page: it need not be loaded again."""
        self._asked = 0
        self._unanswered: set[Any] = set()
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        self.page.on("dialog", self._dialog)
        self.page.on("request", self._request)
        for ended in ("requestfinished", "requestfailed"):
            self.page.on(ended, lambda one: self._unanswered.discard(one))

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            place = message.location.get("url", "")
            self.troubles.append(f"{message.type}: {message.text} {place}")

    def _dialog(self, dialog: Any) -> None:
        self.troubles.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Any) -> None:
        if "/api/stream" not in request.url:  # which has no end
            self._asked += 1
            self._unanswered.add(request)

    def go(self, path: str) -> Any:
        """Follow a link of the app to that address: a tenth of the work of loading it.

        What is there already is not asked for again, as with any link.
        """
        if not self.is_loaded:
            return self.load(path)
        self.page.evaluate(FOLLOW, self.url + path)
        return self.page

    def load(self, path: str) -> Any:
        """As when the address is typed."""
        self._unanswered.clear()
        self.page.goto(self.url + path)
        self.page.wait_for_selector("main")
        self.is_loaded = True
        return self.page

    def forget(self) -> list[str]:
        """Leave the page as a new one for another test; what went wrong in this one."""
        self.page.unroute_all(behavior="ignoreErrors")
        self.page.set_viewport_size(SIZE)
        self.page.emulate_media(**AS_BEFORE)
        if self.is_loaded:
            self.go("/no/such/page")  # so that no screen remembers anything
            self.settle()
            self.is_loaded = self.page.evaluate(TIDY)
        refusals = [f"responded with a status of {one} " for one in self.expected]
        found = [one for one in self.troubles if not any(said in one for said in refusals)]
        self.troubles, self.expected = [], ()
        return found

    def says(self, text: str) -> None:
        """Wait until that text is seen."""
        self.page.get_by_text(text).first.wait_for(state="visible")

    def settle(self) -> None:
        """Wait until the page has all that it asked for, and has drawn it."""

        def is_quiet() -> bool:
            asked = self._asked
            self.page.evaluate(FRAMES)
            return asked == self._asked and not self._unanswered

        until(self.page, is_quiet)

    def close(self) -> None:
        if self in OPEN:
            OPEN.remove(self)
        self.context.close()


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """Debian's Chromium, one for all files of this folder that a process runs one after the other.

    Not for longer: playwright keeps an event loop running in this thread, and no other test could
    have one of its own.
    """
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium-headless-shell")
    playwright = pytest.importorskip("playwright.sync_api")
    playwright.expect.set_options(timeout=SECONDS)
    with playwright.sync_playwright() as running:
        found = running.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield found
        OPEN.clear()
        found.close()


@pytest.fixture(scope="package")
def stage() -> Iterator[Stage]:
    """An open server with a worker in it, and executions.

    Other files, and in any order, use it too: a test looks for what is its own or was seeded.
    """
    with temporary_folder() as folder, serving(folder, kind="dev") as server:
        yield Stage(server, seeded(server))


@pytest.fixture(scope="package")
def only_tab(browser: Any, stage: Stage) -> Iterator[Tab]:
    """One for all tests: to open another costs more than most of them do in it."""
    opened = Tab(browser, stage.server.url)
    yield opened
    opened.close()


@pytest.fixture
def tab(only_tab: Tab) -> Iterator[Tab]:
    """A page in which nothing may go wrong: no error, no violated policy, no dialog of a script.

    It remembers nothing of the test before.
    """
    yield only_tab
    assert only_tab.forget() == []


@pytest.fixture(autouse=True)
def no_tab_is_left() -> Iterator[None]:
    """Close the tabs of a test's own, also of one that failed."""
    before = [*OPEN]
    yield
    for opened in [one for one in OPEN if one not in before]:
        opened.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[Any]:
    """A test that fails shows what the pages showed: waiting in vain says little."""
    report = yield
    if report.when == "call" and report.failed:
        for tab in OPEN:
            tab.is_loaded = False  # nobody knows in which state it is
            seen = f"{tab.page.url}\n{tab.page.locator('body').inner_text()}"
            report.sections.append(("page", seen))
    return report
