"""What is said between a worker and the processes that run Python code for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec


class Call(msgspec.Struct, frozen=True, array_like=True):
    """Run this code with these inputs."""

    code: str
    name: str
    """Stands for the file's name in tracebacks."""
    inputs: Any
    context: Any
    lines: str = ""
    """A file to write the values to, one line of JSON each; the answer is then their number."""
    imports: tuple[str, ...] = ()
    """Statements that bind modules before the code runs, in lines of their own."""


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What came of it: a value, or the reason why there is none."""

    value: Any = None
    problem: str = ""
    """Empty; or `raised`, `syntax`, `not_plain`."""
    exception_type: str = ""
    message: str = ""
    traceback: str = ""
    line: int = 0
    spoiled: bool = False
    """The process is not fit for another call: threads or children are left, or it grew."""


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

        Where processes see files of their own only, `files` are shown to it under `inputs_in`,
        and it reaches a network only with `network`.

        The timeout begins when the code does. Raises TimeoutError or Crashed; then, as when
        cancelled, its process is dead before this returns.
        """

    @property
    def inputs_in(self) -> str | None:
        """The directory that code finds its files in; None: wherever the worker has them."""

    async def close(self) -> None:
        """End every process."""
