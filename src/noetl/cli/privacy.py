"""Hides what a process that runs tasks was given: the programs of tasks belong to the same user.

Their own environment is made for them, but the system shows them ours: under `/proc/<pid>/environ`
to everyone of our user, and our memory to debuggers. So the block of memory that the environment
came in is emptied, after a copy of it was made for ourselves, and the process is marked as one
that nobody of the same user may look into. What the superuser runs can look everywhere: run
workers as somebody else.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

SET_DUMPABLE = 4
_BEGIN, _END = 47, 48
"""Places of env_start and env_end behind the name in /proc/self/stat (proc(5): 50 and 51)."""


def hide_process() -> None:
    """To be called once, before the first task. Where there is no `/proc` nothing is shown."""
    if sys.platform != "linux":
        return
    _empty_environment_block()
    ctypes.CDLL(None).prctl(SET_DUMPABLE, 0, 0, 0, 0)


def _empty_environment_block() -> None:
    numbers = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(numbers[_BEGIN]), int(numbers[_END])
    ours = dict(os.environb)
    for name in ours:
        os.unsetenv(name)
    ctypes.memset(begin, 0, end - begin)
    for name, value in ours.items():
        os.putenv(name, value)
