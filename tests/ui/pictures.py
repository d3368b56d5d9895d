"""Makes the pictures of the documentation: `make pictures`.

A server in a temporary folder, a few executions, and Debian's Chromium. The pictures are of one
size and one theme, so that a change of the pages is seen in the change of a picture.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.examples.system import temporary_folder
from tests.server.processes import Server, serving
from tests.ui.conftest import CHROMIUM
from tests.ui.seed import INVOICE, NIGHTLY, register, seeded

TARGET = Path(__file__).parent.parent.parent / "docs" / "pictures"
SIZE = {"width": 1280, "height": 720}
BOOK = """  - step: book
    desc: Write it into the books.
    tool: { kind: noop, result: booked }
    next: end
"""


def views(ids: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Address and a text to wait for, by the name of the picture."""
    return {
        "home": ("/", "Failed today"),
        "executions": ("/executions", "waits for a form"),
        "execution": (f"/executions/{ids['failed']}", "config, rendered"),
        "loop": (f"/executions/{ids['loop']}", "row 3 has no city"),
        "playbook": ("/playbooks/shop/orders", "Write the orders"),
        "editor": ("/editor?path=ops/invoice", "No problems"),
        "versions": ("/playbooks/ops/invoice?against=1", "added"),
    }


def take(server: Server, browser: Any) -> None:
    ids = seeded(server, rounds=6, hostile=False)
    server.post("/api/catalog/register", {"content": NIGHTLY})
    register(server, "ops/invoice", INVOICE.replace("next: end", "next: book", 1) + BOOK)
    TARGET.mkdir(exist_ok=True)
    page = browser.new_context(viewport=SIZE, color_scheme="light").new_page()
    for name, (path, text) in views(ids).items():
        page.goto(server.url + path)
        page.get_by_text(text).first.wait_for()
        page.wait_for_timeout(500)  # for what is drawn in the next frame
        page.screenshot(path=TARGET / f"{name}.png")
        print(TARGET / f"{name}.png")


def main() -> int:
    if CHROMIUM is None:
        print("Chromium is not installed: apt-get install chromium-headless-shell", file=sys.stderr)
        return 2
    from playwright.sync_api import sync_playwright

    with (
        temporary_folder() as folder,
        serving(folder, kind="dev") as server,
        sync_playwright() as running,
    ):
        browser = running.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        take(server, browser)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
