"""The verdict on a test: every difference between what it expects and what happened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from noetl.model.duration import seconds
from noetl.model.events import Event, NextSelected, StepScheduled, StepSkipped
from noetl.model.net import Net
from noetl.model.retrospect import TestDifference as Difference
from noetl.trials.files import ARROW, Expect, PlaybookTrials, Trial
from noetl.trials.playbooks import target
from noetl.trials.world import Story, Surroundings, run_trial

NOTHING = "nothing"
"""Shown in place of a missing value."""


class Verdict(NamedTuple):
    """A test that was run: what happened, and what is not as expected."""

    name: str
    story: Story
    differences: list[Difference]

    @property
    def passed(self) -> bool:
        return not self.differences and not self.story.complaints

    def as_data(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "passed": self.passed,
            "status": self.story.execution["status"],
            "elapsed_seconds": round(self.story.elapsed, 3),
            **way_of(self.story.facts)._asdict(),
            "complaints": list(self.story.complaints),
            "differences": self.differences,
        }


async def judge(loaded: PlaybookTrials, trial: Trial, around: Surroundings) -> Verdict:
    """Run one test of a file."""
    story = await run_trial(loaded.file.whole(trial), loaded.playbooks, around)
    found = differences(trial.expect or Expect(), story, loaded.playbooks.nets)
    return Verdict(trial.name, story, found)


class Way(NamedTuple):
    """How an execution went through its playbook."""

    steps: Sequence[str]
    """Every run of a step, in order; a compensation by a workbook entry has the entry's name."""
    arcs: Sequence[str]


def way_of(facts: Sequence[Event]) -> Way:
    """The steps that ran and the arcs that were taken."""
    skipped = {fact.step_run_id for fact in facts if isinstance(fact, StepSkipped)}
    steps = [
        fact.block or fact.step
        for fact in facts
        if isinstance(fact, StepScheduled) and fact.step_run_id not in skipped
    ]
    arcs = [
        f"{fact.step} {ARROW} {there}"
        for fact in facts
        if isinstance(fact, NextSelected)
        for there in fact.targets
    ]
    return Way(steps, arcs)


def differences(expect: Expect, story: Story, nets: Sequence[Net]) -> list[Difference]:
    """Everything that is not as expected; nothing if the test was interrupted."""
    if story.complaints:
        return []
    way = way_of(story.facts)
    return [
        *_ending(expect, story),
        *_steps(expect, way),
        *_arcs(expect, way),
        *_values(expect, story),
        *_calls(expect, story, nets),
        *_elapsed(expect, story),
    ]


def _ending(expect: Expect, story: Story) -> Iterator[Difference]:
    found = story.execution
    status = expect.status or ("FAILED" if expect.error is not None else "COMPLETED")
    if found["status"] != status:
        yield Difference("status", status, found["status"])
        if found["error"] is not None and expect.error is None:
            yield Difference("error", NOTHING, found["error"])
    if expect.error is not None:
        wanted, error = dict(expect.error), found["error"] or {}
        message = wanted.pop("message", None)
        if message is not None and str(message) not in error.get("message", ""):
            yield Difference("error.message", f"… {message} …", error.get("message", NOTHING))
        yield from unlike(wanted, error, "error")


def _steps(expect: Expect, way: Way) -> Iterator[Difference]:
    if expect.steps is None:
        return
    rest = list(way.steps)
    for part in expect.steps:
        wanted = [part] if isinstance(part, str) else part
        taken, rest = rest[: len(wanted)], rest[len(wanted) :]
        if sorted(taken) != sorted(wanted):
            yield Difference("steps", expect.steps, list(way.steps))
            return
    if rest:
        yield Difference("steps", expect.steps, list(way.steps))


def _arcs(expect: Expect, way: Way) -> Iterator[Difference]:
    taken = list(dict.fromkeys(way.arcs))
    for arc in expect.arcs or ():
        if _arc(arc) not in taken:
            yield Difference("arcs", _arc(arc), taken)
    for unwanted in expect.never or ():
        happened = taken if ARROW in unwanted else way.steps
        if _arc(unwanted) in happened:
            yield Difference(f"never {_arc(unwanted)}", NOTHING, "it happened")


def _arc(written: str) -> str:
    return f" {ARROW} ".join(name.strip() for name in written.split(ARROW))


def _values(expect: Expect, story: Story) -> Iterator[Difference]:
    found = story.execution
    yield from unlike(expect.ctx or {}, found["ctx"], "ctx")
    if expect.result is not msgspec.UNSET:
        yield from unlike(expect.result, found["result"], "result")
    results = {step["step"]: step["result"] for step in found["steps"]}
    yield from unlike(expect.results or {}, results, "results")


def _calls(expect: Expect, story: Story, nets: Sequence[Net]) -> Iterator[Difference]:
    for name, count in (expect.calls or {}).items():
        found = story.calls[target(name, nets)]
        if found != count:
            yield Difference(f"calls.{name}", count, found)


def _elapsed(expect: Expect, story: Story) -> Iterator[Difference]:
    if expect.elapsed is None:
        return
    wanted = seconds(expect.elapsed) or 0.0
    if abs(wanted - story.elapsed) >= 1.0:
        yield Difference("elapsed", f"{wanted:g} s", f"{story.elapsed:g} s")


def unlike(expected: Any, found: Any, place: str) -> Iterator[Difference]:
    """Where these differ. Of a mapping only the keys that are expected count."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key, value in expected.items():
            below = f"{place}.{key}"
            if key in found:
                yield from unlike(value, found[key], below)
            else:
                yield Difference(below, value, NOTHING)
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from unlike(one, other, f"{place}[{number}]")
    elif expected != found or isinstance(expected, bool) != isinstance(found, bool):
        yield Difference(place, expected, found)
