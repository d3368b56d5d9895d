"""Completion in the shell: real shells ask the real command."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.cli.conftest import clean_environment
from tests.cli.test_run import HELLO
from tests.faults.runs import Place
from tests.server.processes import Server
from tests.stopwatch import PATIENCE


@pytest.fixture
def place(tmp_path):
    found = Place(tmp_path)
    found.write("hello.yaml", HELLO)
    # The scripts call `noetl`, as it is installed.
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "noetl"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m noetl.cli "$@"\n')
    command.chmod(0o755)
    return found


def in_shell(place: Place, shell: str, script: str) -> str:
    environment = clean_environment()
    environment["PATH"] = f"{place.folder / 'bin'}:{environment['PATH']}"
    ran = subprocess.run(
        [shell, "-c", script],
        cwd=place.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def completed(place: Place, *words: str) -> list[str]:
    """What bash offers for the last word."""
    line = " ".join(f"'{word}'" for word in words)
    return in_shell(
        place,
        "bash",
        f"""eval "$(noetl completion bash)"
        COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}
        _noetl_completion noetl '' ''
        printf '%s\\n' "${{COMPREPLY[@]}}" """,
    ).split()


def test_ids_of_executions_are_completed(place):
    ids = []
    for _ in range(2):
        ids.append(place.json("run", "hello.yaml", "--new")["execution_id"])

    assert completed(place, "noetl", "executions", "show", "") == ["last", *reversed(ids)]
    assert completed(place, "noetl", "executions", "logs", ids[0]) == [ids[0]]
    assert completed(place, "noetl", "signal", "la") == ["last"]


def test_without_a_database_nothing_is_offered_and_nothing_is_said(place):
    assert completed(place, "noetl", "executions", "show", "3") == []


def test_ids_on_a_server_are_completed(place, tmp_path):
    server = Server(tmp_path, kind="dev")
    try:
        where = ("--server", server.url)
        ran = place.json("run", "hello.yaml", *where)

        asked = ("noetl", "executions", "show", *where, ran["execution_id"][:5])
        assert completed(place, *asked) == [ran["execution_id"]]
    finally:
        server.end()
    assert completed(place, *asked) == []


def test_tool_kinds_are_completed(place):
    assert completed(place, "noetl", "tools", "show", "sq") == ["sql", "sqlite"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_printed(place, shell):
    ran = place.run("completion", shell)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert f"_NOETL_COMPLETE={shell}_complete" in ran.stdout
    if shutil.which(shell):
        in_shell(place, shell, ran.stdout)


def test_the_shell_is_taken_from_the_environment_or_asked_for(place):
    assert "bash_complete" in place.run("completion", SHELL="/usr/bin/bash").stdout
    ran = place.run("completion", SHELL="/usr/bin/tcsh")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "name your shell: bash, zsh, fish" in ran.stderr
