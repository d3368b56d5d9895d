"""The real command in a real process, with and without a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import forked
from tests.stopwatch import PATIENCE

COMMAND = (sys.executable, "-m", "noetl.cli")


class Ran(NamedTuple):
    code: int
    out: str
    err: str


def clean_environment(**more: str) -> dict[str, str]:
    """Ours without what would change the command's behaviour."""
    unwanted = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "PYTHONDONTWRITEBYTECODE")
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("NOETL_", "PYTEST_")) and name not in unwanted
    }
    return ours | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"} | more


@pytest.fixture
def noetl(tmp_path: Path):
    """Run `noetl …` in the test's own directory."""

    def run(*arguments: str, stdin: str | bytes = b"", **environment: str) -> Ran:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        done = forked.run(
            [*COMMAND, *arguments],
            input=given,
            capture_output=True,
            cwd=tmp_path,
            env=clean_environment(**environment),
            timeout=PATIENCE,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture
def on_terminal(tmp_path: Path):
    """Run `noetl …` with its stdout on a terminal; gives everything that was shown there."""

    def run(*arguments: str, columns: int = 100, **environment: str) -> str:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        remarks = tmp_path / "stderr"
        with (
            remarks.open("w") as stderr,
            forked.popen(
                [*COMMAND, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                stderr=stderr,
                cwd=tmp_path,
                env=clean_environment(**environment),
            ),
        ):
            os.close(theirs)
            shown = b"".join(_until_closed(ours))
        os.close(ours)
        assert "Traceback" not in remarks.read_text()
        remarks.unlink()
        return shown.decode().replace("\r\n", "\n")

    return run


def _until_closed(descriptor: int):
    while True:
        try:
            part = os.read(descriptor, 65536)
        except OSError:  # Linux reports the closed other end of a terminal so
            return
        if not part:
            return
        yield part


@pytest.fixture
def uncoloured():
    """Text without colour codes."""
    return lambda text: re.sub(r"\x1b\[[0-9;]*m", "", text)
