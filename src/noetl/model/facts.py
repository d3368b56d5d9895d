"""What all facts have in common."""

from __future__ import annotations

from typing import Literal

import msgspec

from noetl.model.ids import CommandId


class Actor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who caused something from outside."""

    kind: Literal[
        "user",
        "token",
        "open",
        "local",
        "playbook",
        "schedule",
        "hook",
        "consumer",
        "notification",
    ]
    """`open`: anybody on the machine of a server without users; `local`: a command line there."""
    name: str = ""
    """Of a user or token; the account on the machine; the execution that called; the path of a
    document."""

    @property
    def is_document(self) -> bool:
        """Whether it is no one, but a document that starts executions."""
        return self.kind in ("schedule", "hook", "consumer", "notification")

    def __str__(self) -> str:
        if self.kind == "open":
            return "anybody (the server is open)"
        return f"{_KINDS.get(self.kind, self.kind)} {self.name}".rstrip()


class Source(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The file that a playbook was read from, where the catalog does not have its text."""

    name: str
    code_lines: dict[str, int] = {}
    """Task (`step.task`) → the line of the file at which its code begins."""


_KINDS = {"token": "API token", "local": "local user", "playbook": "execution"}


Undefined = dict[str, str]
"""Expressions that conditions looked up and did not find, each with the name that is there and was
probably meant; empty if none is near."""


def sentence(undefined: Undefined) -> str:
    """What is undefined, in words."""
    parts = [
        f"`{path}`" + (f" (did you mean `{meant}`?)" if meant else "")
        for path, meant in undefined.items()
    ]
    verb = "is" if len(parts) == 1 else "are"
    return f"{', '.join(parts)} {verb} undefined."


def near_misses(undefined: Undefined) -> Undefined:
    """Those that look like spelling mistakes: what is merely missing may be meant to be."""
    return {path: meant for path, meant in undefined.items() if meant}


class Fact(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", gc=False
):
    """Something that happened, and when: seconds since 1970, as the recorder's clock had it."""

    at: float


class Reported(Fact, frozen=True, kw_only=True):
    """A fact that a worker's report may bring.

    One fact of each report that leaves its command open says which report that was, so that the
    same report is known when it comes again.
    """

    command_id: CommandId = ""
    report: int = 0
    settled: bool = False
    """The report brought the end of a call or an iteration: its command does get somewhere."""
    recorded_at: float = 0.0
    """When the server took it, by the server's clock; `at` is by the worker's.

    The first fact of a report says it for those that follow it in the same row of the log. Where
    none says it, an earlier version wrote the row.
    """
