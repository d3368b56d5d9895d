"""What all facts have in common, whoever they are about."""

from __future__ import annotations

import msgspec

from noetl.model.ids import CommandId


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
