"""A real browser in front of a real server with executions worth looking at."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.examples.system import temporary_folder
from tests.server.processes import Server, serving
from tests.ui.seed import seeded

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
"""The one without windows does the same with an eighth less work."""
SIZE = {"width": 1280, "height": 800}
SECONDS = 60_000
"""How long a page may take on a busy machine."""
FOLLOW = """async (address) => {
  history.pushState(null, "", address);
  dispatchEvent(new PopStateEvent("popstate"));
  for (const _ of "12") await new Promise(requestAnimationFrame);
}"""
"""What a link of the app does; what was there before is gone after a frame."""


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
        self._is_loaded = False
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        self.page.on("dialog", self._dialog)

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            place = message.location.get("url", "")
            self.troubles.append(f"{message.type}: {message.text} {place}")

    def _dialog(self, dialog: Any) -> None:
        self.troubles.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def go(self, path: str) -> Any:
        """Follow a link of the app to that address: a tenth of the work of loading it."""
        if not self._is_loaded:
            return self.load(path)
        self.page.evaluate(FOLLOW, self.url + path)
        return self.page

    def load(self, path: str) -> Any:
        """As when the address is typed."""
        self.page.goto(self.url + path)
        self.page.wait_for_selector("main")
        self._is_loaded = True
        return self.page

    def forget(self) -> list[str]:
        """Let another test begin; what went wrong in this one."""
        self._is_loaded = False
        # Playwright tells of events only while it is called: what came late is heard now.
        self.page.evaluate("localStorage.clear()")
        found, self.troubles = self.troubles, []
        return found

    def says(self, text: str) -> None:
        """Wait until that text is seen."""
        self.page.get_by_text(text).first.wait_for(state="visible")

    def close(self) -> None:
        if self in OPEN:
            OPEN.remove(self)
        self.context.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium. Not for longer than these tests: playwright keeps an event loop running in
    this thread, and no other test could have one of its own.
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


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """An open server with a worker in it, and executions."""
    with temporary_folder() as folder, serving(folder, kind="dev") as server:
        yield Stage(server, seeded(server))


@pytest.fixture(scope="module")
def only_tab(browser: Any, stage: Stage) -> Iterator[Tab]:
    """One for all tests of a module: to open another costs more than most of them do in it."""
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[Any]:
    """A test that fails shows what the pages showed: waiting in vain says little."""
    report = yield
    if report.when == "call" and report.failed:
        for tab in OPEN:
            seen = f"{tab.page.url}\n{tab.page.locator('body').inner_text()}"
            report.sections.append(("page", seen))
    return report
