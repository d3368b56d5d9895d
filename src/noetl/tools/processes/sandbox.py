"""The messages between a worker and the processes that run Python code for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec


class Call(msgspec.Struct, frozen=True, array_like=True):
    """Run this code with these inputs."""

    code: str
    name: str
    """The file name in tracebacks."""
    inputs: Any
    context: Any
    lines: str = ""
    """A file to write the values to, as one line of JSON each; the answer is then their number."""
    imports: tuple[str, ...] = ()
    """Statements that bind modules before the code runs."""


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The result of a call: a value, or why there is none."""

    value: Any = None
    problem: str = ""
    """Empty; or `raised`, `syntax`, `not_plain`."""
    exception_type: str = ""
    message: str = ""
    traceback: str = ""
    line: int = 0
    spoiled: bool = False
    """The process cannot take another call: threads or children are left, or it grew."""


class Crashed(Exception):
    """The process ended instead of answering; the text says how."""


class Sandbox(Protocol):
    """Processes that run Python code, one call at a time each."""

    async def call(
        self,
        code: str,
        *,
        name: str,
        inputs: Mapping[str, Any],
        context: Mapping[str, Any],
        log: Callable[[str], None],
        owner: str = "",
        packages: str | None = None,
        timeout: float | None = None,
        lines: str = "",
        imports: tuple[str, ...] = (),
        network: bool = False,
        files: tuple[Path, ...] = (),
    ) -> Answer:
        """Run the code in a process that serves `owner` only, with `packages` before all others.

        If processes see only files of their own, `files` are visible under `inputs_in`, and the
        code has a network only with `network`.

        The timeout begins when the code does. Raises TimeoutError or Crashed; then, as when
        cancelled, its process is dead before this returns.
        """

    @property
    def inputs_in(self) -> str | None:
        """The directory in which code finds its files; None: at their paths on the worker."""

    async def close(self) -> None:
        """End every process."""
