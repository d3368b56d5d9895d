"""Ending processes of ours for good: the whole group, and those that left it but are its children.

Whoever starts a process here starts it in a session of its own.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


def kill_all(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to the group that `pid` leads and to every descendant of it."""
    descendants = _descendants(pid)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
    for child in descendants:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(child, number)


def ending(code: int) -> str:
    """How a process ended, in words, from what `Popen.returncode` says."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    return f"was killed by signal {-code} ({name})"


def _descendants(pid: int) -> list[int]:
    """Where the system shows its processes as files; elsewhere the group must do."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # pid (name, which may hold anything) state ppid …
            parent = int(entry.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.parent.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found.append(child)
            waiting.append(child)
    return found
