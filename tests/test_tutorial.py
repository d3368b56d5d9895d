"""The tutorial, followed word by word: its files are written, its commands run, its output is
compared."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import forked
from tests.cli.conftest import COMMAND, clean_environment
from tests.stopwatch import PATIENCE
from tests.tools.services import free_port

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"`([\w.]+\.(?:py|yaml))`")
_PLAIN = re.compile(r"noetl( [\w./:=,-]+)*")
ASKS = ("noetl executions", "curl")
"""Commands that may be given again until what they wait for has happened."""


@pytest.fixture
def place(tmp_path):
    """A clean directory, with `noetl` on the path and nothing of ours in the environment."""
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "noetl").write_text(f'#!/bin/sh\nexec {sys.executable} -m noetl.cli "$@"\n')
    (commands / "noetl").chmod(0o755)
    folder = tmp_path / "empty"
    folder.mkdir()
    environment = clean_environment(XDG_CONFIG_HOME=str(tmp_path / "config"), NO_COLOR="1")
    environment["PATH"] = f"{commands}:{environment['PATH']}"
    begun: list[subprocess.Popen[bytes]] = []

    def run(command: str) -> tuple[int, str]:
        """Run it as a shell would; what ends with & goes on until the test ends."""
        if command.endswith("&"):
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command.removesuffix('&')}"], cwd=folder, env=environment
            )
            begun.append(process)
            return 0, ""
        words = ["bash", "-c", command]
        if _PLAIN.fullmatch(command):
            # A shell would do no more with these words, and a fork need not import anything.
            words = [*COMMAND, *command.split()[1:]]
        done = forked.run(
            words,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE,
        )
        return done.returncode, done.stdout.decode()

    yield folder, run
    for kind in ("worker", "server"):
        run(f"noetl {kind} stop")
    for process in begun:
        process.send_signal(signal.SIGKILL)
        process.wait()


def parts(page: str) -> list[tuple[str, str, str]]:
    """Every block in order: its language, the prose before it, its text."""
    found, end = [], 0
    for block in _FENCE.finditer(page):
        found.append((block[1], page[end : block.start()], block[2]))
        end = block.end()
    return found


def commands(block: str) -> list[tuple[str, str, int]]:
    """The commands of a console block, each with what it prints and how it exits."""
    found = []
    for piece in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = piece.partition("\n")
        code = re.search(r"^\[exit (\d+)\]\n", shown, re.MULTILINE)
        printed = shown if code is None else shown.replace(code[0], "")
        found.append((command, printed, 0 if code is None else int(code[1])))
    return found


def looks_like(shown: str, printed: str) -> bool:
    """Whether it is what the page shows, where `…` stands for anything, also for lines."""
    pattern = re.escape(shown.rstrip("\n")).replace("…", ".*")
    return re.fullmatch(pattern, printed.rstrip("\n"), re.DOTALL) is not None


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the tutorial calls curl")
def test_every_command_of_the_tutorial_does_what_the_page_shows(place):
    folder, run = place
    shop, server = free_port(), free_port()
    page = PAGE.replace("8765", str(shop)).replace("8082", str(server))
    written, ran = "", 0
    for language, prose, text in parts(page):
        if language != "console":
            names = _NAMED.findall(prose)
            # A file is shown whole each time: under a name that the page says, or as it was.
            written = names[-1] if names else "orders.yaml"
            (folder / written).write_text(text)
            continue
        for command, shown, code in commands(text):
            deadline = time.monotonic() + (PATIENCE if command.startswith(ASKS) else 0)
            while True:
                exit_code, printed = run(command)
                if exit_code == code and looks_like(shown, printed):
                    break
                if time.monotonic() > deadline:
                    pytest.fail(
                        f"$ {command}\n[exit {exit_code}]\n{printed}\n--- but shown:\n{shown}"
                    )
                time.sleep(0.2)
            ran += 1
            if command.endswith("&"):
                wait_for_port(shop)

    assert ran >= 25
    assert not os.path.exists(folder / "config"), "commands kept something in the directory"


def test_the_readme_leads_to_the_tutorial():
    assert "](docs/tutorial.md)" in (ROOT / "README.md").read_text()
    assert "](tutorial.md)" in (ROOT / "docs" / "README.md").read_text()
