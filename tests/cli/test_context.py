"""Names for servers: kept, chosen, forgotten, and readable by nobody else."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path

import pytest

from tests.cli.test_run import Terminal
from tests.faults.runs import COMMAND, Place, environment
from tests.stopwatch import PATIENCE

PROD = "https://noetl.example.com"


class Home(Place):
    """A directory with a configuration of its own."""

    def context(self, *arguments: str, code: int = 0) -> str:
        ran = self.run("context", *arguments, XDG_CONFIG_HOME=str(self.folder))
        assert ran.returncode == code, ran.stderr
        return ran.stdout + ran.stderr


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_a_server_has_a_name_until_it_is_forgotten(home: Home):
    home.context("add", "prod", PROD)
    home.context("add", "test", "http://127.0.0.1:8082")
    home.context("use", "prod")

    assert home.context("current").strip() == PROD
    assert "commands use the database in this directory" in home.context("remove", "prod")
    assert "no server" in home.context("current", code=1)
    assert [one["name"] for one in json.loads(home.context("list", "--json"))["contexts"]] == [
        "test"
    ]


def test_forgetting_another_server_leaves_the_one_in_use(home: Home):
    home.context("add", "prod", PROD)
    home.context("add", "test", "http://127.0.0.1:8082")
    home.context("use", "prod")
    home.context("remove", "test")

    assert home.context("current").strip() == PROD


@pytest.mark.parametrize("verb", ["use", "remove"])
def test_a_name_that_nobody_has_is_refused_with_a_guess(home: Home, verb: str):
    home.context("add", "prod", PROD)

    assert 'Did you mean "prod"?' in home.context(verb, "prdo", code=2)


def test_the_file_is_for_its_owner_only(home: Home):
    home.context("add", "prod", PROD)

    mode = (home.folder / "noetl" / "contexts.json").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


@pytest.mark.parametrize("given", ["", "\n", "   \n"])
def test_a_token_that_is_empty_is_refused_and_nothing_is_saved(home: Home, given: str):
    ran = subprocess.run(
        [*COMMAND, "context", "add", "prod", PROD, "--token"],
        cwd=home.folder,
        env=environment(XDG_CONFIG_HOME=str(home.folder)),
        input=given,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )

    assert (ran.returncode, "no token on standard input" in ran.stderr) == (2, True)
    assert json.loads(home.context("list", "--json"))["contexts"] == []


def test_a_token_of_blanks_on_a_terminal_is_refused_and_nothing_is_saved(home: Home):
    command = ("context", "add", "prod", PROD, "--token")
    terminal = Terminal(home, *command, XDG_CONFIG_HOME=str(home.folder))

    terminal.until("token: ")
    terminal.type("   \n")

    assert terminal.ended() == 2
    assert json.loads(home.context("list", "--json"))["contexts"] == []
