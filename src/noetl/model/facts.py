"""What all facts have in common."""

from __future__ import annotations

from typing import Literal

import msgspec

from noetl.model.ids import CommandId, ExecutionId, StepRunId


class Actor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The actor of an external action."""

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
    """`open`: a caller of a server without users; `local`: a command on the same machine."""
    name: str = ""
    """The name of a user or token, the account on the machine, the calling execution, or the path
    of a document.
    """

    @property
    def is_person(self) -> bool:
        """A person, or a program in their name: nothing that NoETL does by itself."""
        return self.kind in ("user", "token", "open", "local")

    def __str__(self) -> str:
        if self.kind == "open":
            return "anybody (the server is open)"
        return f"{_KINDS.get(self.kind, self.kind)} {self.name}".rstrip()


class Source(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The file that a playbook was read from, if its text is not in the catalog."""

    name: str
    code_lines: dict[str, int] = {}
    """Task (`step.task`) → the line of the file at which its code begins."""


_KINDS = {"token": "API token", "local": "local user", "playbook": "execution"}


Undefined = dict[str, str]
"""Expressions that conditions did not find, each with the name that was probably meant; empty if
none is similar."""


def sentence(undefined: Undefined) -> str:
    """The undefined names, in words."""
    parts = [
        f"`{path}`" + (f" (did you mean `{meant}`?)" if meant else "")
        for path, meant in undefined.items()
    ]
    verb = "is" if len(parts) == 1 else "are"
    return f"{', '.join(parts)} {verb} undefined."


def near_misses(undefined: Undefined) -> Undefined:
    """Those that look like spelling mistakes: a merely missing name may be intended."""
    return {path: meant for path, meant in undefined.items() if meant}


WarnedAbout = Literal["arcs", "guard", "admission", "rules", "policy"]


class Warned(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that probably is a mistake, although nothing failed."""

    about: WarnedAbout
    """Whose conditions found a name undefined, so that none of them held."""
    step: str
    undefined: Undefined
    count: int = 1
    playbook: str = ""
    """Of a called execution: the path of the playbook that has the step."""
    execution_id: ExecutionId = ""
    """The first of the called executions that had it."""
    caller: str = ""
    """The step that called it."""

    @property
    def what(self) -> tuple[object, ...]:
        """Warnings for which this is equal are one."""
        return self.about, self.step, self.undefined, self.playbook, self.caller


class Fact(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", gc=False
):
    """Something that happened, and when: seconds since 1970, as the recorder's clock had it."""

    at: float


class StepFact(Fact, frozen=True, kw_only=True):
    """A fact about a step run."""

    step_run_id: StepRunId
    step: str


class ReportedFact(Fact, frozen=True, kw_only=True):
    """A fact that a worker's report may contain.

    One fact of each report that leaves its command open holds the number of the report, so that a
    repeated report is recognised.
    """

    command_id: CommandId = ""
    report: int = 0
    settled: bool = False
    """The report contains the end of a call or an iteration: its command makes progress."""
    recorded_at: float = 0.0
    """When the server accepted it, by the server's clock; `at` is by the worker's.

    The first fact of a report has it for those that follow in the same row of the log. Rows of
    earlier versions have none.
    """


class ReportedStepFact(ReportedFact, frozen=True, kw_only=True):
    """A fact about a step run that its worker reports."""

    step_run_id: StepRunId
    step: str


class PassFact(ReportedStepFact, frozen=True, kw_only=True):
    """A fact about a pass through the pipeline of a step."""

    iteration: int | None = None
    """In a loop."""
