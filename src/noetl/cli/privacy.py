"""Hides the environment and memory of a process from the tasks it runs as the same user.

Tasks get an environment of their own, but the kernel would show them ours: under
`/proc/<pid>/environ` to every process of the same user, and our memory to debuggers. So this module
copies the environment, clears the memory block that it came in, and marks the process as not
inspectable by the same user. The superuser can inspect everything: do not run workers as root.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

SET_DUMPABLE = 4
_BEGIN, _END = 47, 48
"""Indexes of env_start and env_end after the name in /proc/self/stat (proc(5): 50 and 51)."""


def hide_process() -> None:
    """Call this once, before the first task. A system without `/proc` exposes nothing."""
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
