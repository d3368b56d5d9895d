"""What all facts have in common, whoever they are about."""

from __future__ import annotations

import msgspec

from noetl.model.ids import CommandId

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
