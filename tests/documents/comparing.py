"""When two ways to write a playbook do the same: their events are equal up to names and ids.

Whole events are compared, field by field, in their order within each step and each iteration; what
belongs to no step (tokens that end, timers) has no order of its own. The tables below are all that
may differ, each entry with its reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from noetl.model.events import Event
from tests.documents.running import place_of, plain

Fact = dict[str, Any]
Course = dict[str, list[Fact]]
"""What happened, by place: a step, an iteration of it, or the execution."""

OF_ANY_RUN = {
    "at": "the time",
    "recorded_at": "the time",
    "seal": "drawn for each execution",
    "started_at": "the time",
    "ended_at": "the time",
    "fires_at": "the time",
    "epoch": "a place in the log, which says how often something was asked in between",
    "worker": "who happened to do it",
    "command_id": "under which command it was done; see OF_THE_HANDING_OUT",
    "report": "in which of its reports the worker told it, which is a matter of time",
    "settled": "whether that report brought the end of a call",
    "told": "how much of the output of a call was in task.log before its end",
}
"""Fields that differ between any two runs of the same text."""
OF_THE_HANDING_OUT = {
    "command.": "how work is cut and handed out depends on how busy the worker is",
    "task.waiting": "told when a call has waited for a while, which depends on the machine",
    "task.log": "lines that a task prints are sent in batches, as they come",
}
"""Events that differ between any two runs of the same text."""
RENAMED = {
    "arc": (
        "a way out is named after the rule (`step#case_0.0.0`) or the arc (`step#0`) that it is"
        " written as; the step that it leaves must be the same"
    ),
}
"""Fields in which names may differ."""
OF_RULES = {
    "case.evaluated": "says which rules answered; what was a rule is an arc now, and next.selected"
    " says which arc was taken",
    "next.evaluated": "the `next` of a rule, which next.selected repeats once it is taken",
}
"""Events of rules that only route, where migrate has made arcs of them."""
CALL_OF_RULES = "call"
"""The stage of a chain, in the progress of a call, that says how far rules have answered it: where
rules are arcs nothing answers it. Chains of other stages (pages, sinks) are not of rules."""
_ID = re.compile(r"\b[0-9a-f]{16,64}\b")


def course(events: Iterable[Event], url: str) -> Course:
    """The events of a run, without what differs between any two runs; `url` is that of the demo
    service, which has another port each time.
    """
    found: Course = {}
    step_of: dict[str, str] = {}
    for event in events:
        fact = _comparable(plain(msgspec.json.decode(msgspec.json.encode(event)), url))
        if not fact["type"].startswith(tuple(OF_THE_HANDING_OUT)):
            found.setdefault(place_of(event, step_of), []).append(fact)
    if rest := found.get("the execution"):
        rest.sort(key=lambda fact: json.dumps(fact, sort_keys=True))
    return found


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _source(part) if key in RENAMED else _comparable(part)
            for key, part in value.items()
            if key not in OF_ANY_RUN
        }
    if isinstance(value, list):
        return [_comparable(part) for part in value]
    return _ID.sub("<id>", value) if isinstance(value, str) else value


def _source(way_out: str) -> str:
    """The step that a way out leaves."""
    return way_out.partition("#")[0]


def with_arcs_for_rules(old: Course, new: Course) -> Course:
    """The old course as it would be with arcs, for the steps that have no rules in the new one."""
    kept = {_step(place) for place, facts in new.items() if any(map(_is_of_rules, facts))}
    return {
        place: facts if _step(place) in kept else _without_rules(facts)
        for place, facts in old.items()
    }


def _step(place: str) -> str:
    return place.partition("[")[0]


def _is_of_rules(fact: Fact) -> bool:
    return fact["type"] in OF_RULES


def _without_rules(facts: list[Fact]) -> list[Fact]:
    return [_without_chain(fact) for fact in facts if not _is_of_rules(fact)]


def _without_chain(fact: Fact) -> Fact:
    progress = fact.get("progress") or {}
    if progress.get("chain", {}).get("stage") != CALL_OF_RULES:
        return fact
    return {**fact, "progress": {key: progress[key] for key in progress if key != "chain"}}
