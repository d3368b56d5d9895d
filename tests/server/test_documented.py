"""The page about the API lists every route with the right it needs, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from noetl.api.rights import RIGHTS, ROLES
from noetl.api.table import TABLE

ROOT = Path(__file__).parent.parent.parent
_ROW = re.compile(r"^\| (`[A-Z]+ /[^|]*`) \| `([a-z.]+)` \|", re.MULTILINE)
_ROUTE = re.compile(r"`([A-Z]+) (/[^`]*)`")


def documented() -> dict[tuple[str, str], str]:
    page = (ROOT / "docs" / "api.md").read_text()
    return {
        route: right for routes, right in _ROW.findall(page) for route in _ROUTE.findall(routes)
    }


def served() -> dict[tuple[str, str], str]:
    return {(route.method, path): route.right for route in TABLE for path in route.paths}


def test_every_route_is_documented_with_its_right():
    assert documented() == served()


def test_every_role_and_right_is_on_the_page_about_security():
    page = (ROOT / "docs" / "security.md").read_text()

    assert all(f"`{role}`" in page for role in ROLES)
    words = set(re.findall(r"[a-z.]+", page))
    assert words >= RIGHTS - {"anyone", "self"}
