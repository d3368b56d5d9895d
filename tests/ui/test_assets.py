"""What `make ui` built: it belongs to the source beside it, it is small, and the wheel has it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from noetl.ui import ASSETS

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "ui"
GENERATED = "src/api/types.ts"
KB = 1024
FIRST_LOAD_MAX, ALL_MAX, EDITOR_MAX = 80 * KB, 150 * KB, 150 * KB
"""The budgets of the web UI, gzip."""


def manifest() -> dict[str, object]:
    return dict(json.loads((ASSETS / "manifest.json").read_bytes()))


def size(name: str) -> int:
    return (ASSETS / f"{name}.gz").stat().st_size


def test_the_built_files_belong_to_the_source():
    files = [path for path in (SOURCE / "src").rglob("*") if path.is_file()]
    files += [SOURCE / name for name in ("build.mjs", "package-lock.json", "page.html")]
    named = {path.relative_to(SOURCE).as_posix(): path for path in files}
    digest = hashlib.sha256()
    for name in sorted(named.keys() - {GENERATED}):
        digest.update(f"{name}\0".encode() + named[name].read_bytes() + b"\0")

    assert manifest()["source"] == digest.hexdigest(), (
        "ui/ has changed since its files were built: run `make ui` and commit src/noetl/ui/assets"
    )


def test_the_types_of_the_api_are_current():
    spec = importlib.util.spec_from_file_location("api_types", SOURCE / "api_types.py")
    assert spec is not None
    assert spec.loader is not None
    api_types = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(api_types)

    assert (SOURCE / GENERATED).read_text() == api_types.content(), (
        "the API has changed: run `.venv/bin/python ui/api_types.py` and commit what it wrote"
    )


def test_every_built_file_is_there_and_no_other():
    files = manifest()["files"]
    assert isinstance(files, dict)
    expected = {f"{name}.{coding}" for name in files for coding in ("gz", "br")}

    found = {path.name for path in ASSETS.iterdir()}

    assert found == expected | {"manifest.json", "page.html"}


def test_the_page_loads_little():
    page = (ASSETS / "page.html").read_text()
    first = re.findall(r"%UP%ui/([\w.-]+)", page)

    assert len(page) + sum(map(size, first)) <= FIRST_LOAD_MAX


def test_the_editor_comes_apart_and_all_else_is_small():
    files = manifest()["files"]
    assert isinstance(files, dict)
    editor = [name for name in files if name.startswith("codemirror-")]

    assert editor
    assert sum(map(size, editor)) <= EDITOR_MAX
    assert sum(map(size, files.keys() - set(editor))) <= ALL_MAX


def test_nothing_in_the_source_makes_markup_of_text():
    forbidden = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(")
    sources = [*(SOURCE / "src").rglob("*.ts"), *(SOURCE / "src").rglob("*.tsx")]

    assert len(sources) > 20
    assert not [path.name for path in sources if forbidden.search(path.read_text())]


def test_the_lock_file_names_no_registry():
    assert "resolved" not in (SOURCE / "package-lock.json").read_text()


def test_the_lock_file_has_the_packages_of_every_platform():
    """Else `npm ci` refuses it, and the unit tests of the web UI run nowhere."""
    packages = json.loads((SOURCE / "package-lock.json").read_bytes())["packages"]
    known = {name.rpartition("node_modules/")[2] for name in packages}
    optional = {
        (name, wanted)
        for name, one in packages.items()
        for wanted in one.get("optionalDependencies", {})
    }

    assert len(optional) > 50
    assert not [f"{name}: {wanted}" for name, wanted in optional if wanted not in known]


@pytest.mark.parametrize("name", ["page.html", "manifest.json"])
def test_the_wheel_has_the_pages(name):
    builder = WheelBuilder(str(ROOT))
    packed = {found.distribution_path for found in builder.recurse_included_files()}

    assert f"noetl/ui/assets/{name}" in packed
    assert any(re.search(r"noetl/ui/assets/app-\w+\.js\.br$", path) for path in packed)
