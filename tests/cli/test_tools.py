"""noetl tools: what there is, what a kind takes, and a package of one's own that works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from noetl.cli.newtool import files_of
from noetl.cli.tools import page_of
from noetl.tools.base import Tool
from noetl.tools.registry import BUILT_IN, Known, tools
from tests.cli.conftest import COMMAND, clean_environment


def test_every_kind_is_listed_with_its_summary(noetl):
    listed = noetl("tools", "list")
    as_json = json.loads(noetl("tools", "list", "--json").out)["tools"]

    assert listed.code == 0
    for tool in (tools()[kind] for kind in BUILT_IN):
        assert f"{tool.kind} " in listed.out
        assert tool.summary in listed.out
    assert {one["kind"] for one in as_json} == set(BUILT_IN)
    assert {one["origin"] for one in as_json} == {"NoETL itself"}


@pytest.mark.parametrize("kind", ["quantum", "http", "transfer", "noop"])
def test_a_kind_is_shown_field_by_field(noetl, kind):
    tool = tools()[kind]
    shown = noetl("tools", "show", kind)
    schema = json.loads(noetl("tools", "show", kind, "--json").out)["schema"]

    assert shown.code == 0
    for name, field in schema["$defs"][tool.config.__name__]["properties"].items():
        assert f"  {name}" in shown.out
        assert field["description"] in shown.out


def test_a_kind_that_does_not_exist_is_answered_with_the_nearest(noetl):
    answer = noetl("tools", "show", "htp")

    assert answer.code == 1
    assert 'Did you mean "http"?' in answer.err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("http", "already"),
        ("Weather", "cannot name"),
        ("../x", "cannot name"),
        ("my-tool", "cannot name"),
    ],
)
def test_a_name_that_will_not_do_is_refused(noetl, tmp_path, name, message):
    answer = noetl("tools", "new", name, "--into", str(tmp_path / "new"))

    assert answer.code == 2
    assert message in answer.err
    assert not (tmp_path / "new").exists()


def test_nothing_is_overwritten(noetl, tmp_path):
    assert noetl("tools", "new", "weather", "--into", str(tmp_path)).code == 0
    module = tmp_path / "noetl-weather" / "src" / "noetl_weather" / "__init__.py"
    module.write_text("# mine")

    assert noetl("tools", "new", "weather", "--into", str(tmp_path)).code == 2
    assert module.read_text() == "# mine"


def test_no_word_of_the_pattern_is_left_in_a_new_package():
    for text in files_of("two_words").values():
        for word in ("NAME", "DASHED", "CLASS", "VERSION"):
            assert word not in text
    assert "class TwoWords(" in files_of("two_words")["src/noetl_two_words/__init__.py"]


def test_a_new_package_installs_keeps_the_contract_and_runs(noetl, tmp_path):
    made = noetl("tools", "new", "weather_report", "--into", str(tmp_path))
    package, site = tmp_path / "noetl-weather-report", tmp_path / "site"
    environment = clean_environment(PYTHONPATH=str(site), PYTHONDONTWRITEBYTECODE="1")

    def run(*words: str, cwd: Path = package) -> str:
        done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site), ".")
    tested = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    listed = run(*COMMAND, "tools", "list")
    result = run(*COMMAND, "run", "example.yaml", "--json", "--set", "whom=moon")

    assert made.code == 0
    assert "9 passed" in tested
    assert 'plug-in "weather_report" of noetl-weather-report' in listed
    assert json.loads(result)["result"]["said"] == "hello moon"
    assert os.listdir(site)


def test_the_page_of_a_kind_of_a_plug_in_needs_no_help_for_its_fields():
    class Terse(msgspec.Struct):
        number: int = 1

    page = page_of(Known(Tool(kind="terse", summary="Says little.", config=Terse), "a package"))
    assert "  number: whole number (default 1)" in page


def test_the_page_of_a_kind_shows_the_keys_of_mappings_and_defaults_as_yaml(noetl):
    transfer, http = noetl("tools", "show", "transfer").out, noetl("tools", "show", "http").out

    assert "      {kind: sqlite, auth, table, mode, key, create, database}\n" in transfer
    assert "      {type: basic, credential, username, password}\n" in http
    assert "follow_redirects: true or false (default true)" in http
    assert "ok_codes: list (default [0])" in noetl("tools", "show", "shell").out
