"""Processes and their descendants, as the system shows them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress


def kill_all(pid: int) -> None:
    """Kill the group that `pid` leads and every descendant of it."""
    found = descendants(pid)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for child in found:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(child, signal.SIGKILL)


def ending(code: int) -> str:
    """How a process ended, in words, from `Popen.returncode`."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    return f"was killed by signal {-code} ({name})"


def descendants(pid: int, *, deep: bool = True) -> list[int]:
    """Its children, and with `deep` their descendants. Empty if the system does not show them."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if name.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                # pid (name, which may contain anything) state ppid …
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found = list(children.get(pid, []))
    for child in found if deep else ():
        # The list grows while it is read: children of children are appended.
        found += children.get(child, [])
    return found
