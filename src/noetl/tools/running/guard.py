"""Ends what we started when we cannot: after a `kill -9` of this very process.

A small shell waits at the end of a pipe that only this process holds open. It is told which
process groups run for us. When the pipe closes we are gone, and it kills what is left of them.
"""

from __future__ import annotations

import atexit
import os
import subprocess
from functools import cache

_SCRIPT = """
trap '' HUP INT TERM
groups=' '
while read -r what group; do
  case $what in
    +) groups="$groups$group " ;;
    -) groups="${groups%% $group *} ${groups#* $group }" ;;
  esac
done
for group in $groups; do kill -s KILL -- "-$group" 2>/dev/null; done
"""


class Guard:
    """The groups that must not outlive us."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._shell: subprocess.Popen[bytes] | None = None

    def watch(self, group: int) -> None:
        """This group runs for us; its leader was started in a session of its own."""
        self._groups.add(group)
        self._tell(f"+ {group}\n")

    def forget(self, group: int) -> None:
        """It has ended. Its number may soon be somebody else's."""
        if group in self._groups:
            self._groups.remove(group)
            self._tell(f"- {group}\n")

    def close(self) -> None:
        """Nobody is left to be watched."""
        if self._shell is not None:
            assert self._shell.stdin is not None
            self._shell.stdin.close()
            self._shell.wait()
            self._shell = None

    def _tell(self, line: str) -> None:
        if os.name == "nt":
            return  # there are no process groups of this kind
        if self._shell is None:
            self._start()
            return
        try:
            self._send(line)
        except BrokenPipeError:
            # Somebody killed it: another one takes over.
            self._shell.wait()
            self._start()

    def _send(self, line: str) -> None:
        assert self._shell is not None
        assert self._shell.stdin is not None
        self._shell.stdin.write(line.encode())

    def _start(self) -> None:
        self._shell = subprocess.Popen(  # noqa: S603 - our own program
            ["/bin/sh", "-c", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={},
            cwd="/",
            # A signal to our own group is not for it: it is there for what comes after.
            start_new_session=True,
        )
        self._send("".join(f"+ {group}\n" for group in sorted(self._groups)))


@cache
def guard() -> Guard:
    """The one guard of this process."""
    made = Guard()
    atexit.register(made.close)
    return made
