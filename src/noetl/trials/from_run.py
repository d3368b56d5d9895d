"""Makes a test file from an execution: its stand-ins answer what the tools answered, and it expects
the same way through the playbook. Secrets are not recorded, so they are not in the test.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import yaml

from noetl.control.recordings import Recording
from noetl.errors import BadRequest
from noetl.model.events import (
    ApprovalReceived,
    ExecutionRequested,
    FrameClaimed,
    MessageReceived,
    NextSelected,
    WorkflowFinished,
)
from noetl.model.outcome import DETAILS, Outcome
from noetl.trials.recorded import PURE, calls_of
from noetl.trials.verdict import way_of

TEMPLATE = ("{{", "{%", "{#")
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9./ >-]*[A-Za-z_0-9]|[A-Za-z_]")
_MEANT = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"})


class _Writer(yaml.SafeDumper):
    """Writes texts so that YAML reads them as texts."""


def _text(writer: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    is_word = _WORD.fullmatch(value) is not None and value.lower() not in _MEANT
    style = None if is_word else ("|" if "\n" in value and value.isprintable() else '"')
    return writer.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Writer.add_representer(str, _text)


def written(test: dict[str, Any]) -> str:
    """The test file as text."""
    text: str = yaml.dump(test, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=100)
    return text


async def trial_of(recording: Recording, playbook: str) -> dict[str, Any]:
    """The test file of a run, as plain data; `playbook` is its file, seen from the test.

    Raises BadRequest for an execution that a test cannot repeat.
    """
    facts = recording.facts
    first, last = facts[0], next((f for f in facts if isinstance(f, WorkflowFinished)), None)
    assert isinstance(first, ExecutionRequested)
    if last is None or last.status == "CANCELLED":
        raise BadRequest(
            f"execution {recording.head.execution_id} is {recording.head.status}: a test is made of"
            " one that has ended by itself."
        )
    if any(isinstance(fact, FrameClaimed) for fact in facts):
        raise BadRequest(
            f"execution {recording.head.execution_id} loops over a cursor, and the rows that it"
            " claimed are not recorded."
        )
    if first.rerun_of is not None and first.forked_at is not None:
        raise BadRequest(
            f"execution {recording.head.execution_id} is a fork: what it reused is not in its own"
            f" record. Make the test of {first.rerun_of}, from which it was forked."
        )
    expect: dict[str, Any] = {"status": last.status}
    way = way_of(facts)
    if all(len(fact.targets) == 1 for fact in facts if isinstance(fact, NextSelected)):
        # Else several may have run at once, and their order says nothing.
        expect["steps"] = list(way.steps)
    if way.arcs:
        expect["arcs"] = list(dict.fromkeys(way.arcs))
    if last.status == "COMPLETED" and _is_plain(last.result):
        expect["result"] = last.result
    if last.error is not None:
        expect["error"] = {"kind": last.error.kind}
    test: dict[str, Any] = {
        "name": f"goes as execution {recording.head.execution_id} did",
        "workload": first.payload,
        "stand_ins": await _stand_ins(recording),
        "signals": [
            _signal(fact, first.at)
            for fact in facts
            if isinstance(fact, MessageReceived | ApprovalReceived)
        ],
        "expect": expect,
    }
    return {"playbook": playbook, "tests": [{key: value for key, value in test.items() if value}]}


async def _stand_ins(recording: Recording) -> dict[str, Any]:
    """What each task answered: one answer for all calls, or one for each."""
    kinds = {
        (step.name, task.name): task.kind for step in recording.net.steps for task in step.tasks
    }
    by_task: dict[str, list[dict[str, Any]]] = {}
    for (step, task, iteration), made in (await calls_of(recording)).items():
        if kinds.get((step, task)) in PURE:
            continue
        for call in made:
            answer = _answer(call)
            if iteration is not None:
                answer = {"when": f"{{{{ iteration == {iteration} }}}}", **answer}
            by_task.setdefault(f"{step}.{task}", []).append(answer)
    found: dict[str, Any] = {}
    for name, answers in by_task.items():
        first = answers[0]
        found[name] = answers
        if "when" not in first and all(one == first for one in answers):
            found[name] = first if len(answers) == 1 else {**first, "times": "always"}
    return found


def _answer(outcome: Outcome) -> dict[str, Any]:
    answer = {"result": outcome.result}
    if outcome.error is not None:
        told = msgspec.to_builtins(outcome.error)
        answer = {"error": {key: value for key, value in told.items() if value is not None}}
    if outcome.meta.usage is not None:
        answer["usage"] = outcome.meta.usage
    beside = {name: getattr(outcome, name) for name in DETAILS}
    answer |= {name: value for name, value in beside.items() if value is not None}
    return {name: quoted(value) for name, value in answer.items()}


def quoted(value: Any) -> Any:
    """Data for a place where texts may be templates, to be taken as it is."""
    if isinstance(value, dict):
        return {str(key): quoted(one) for key, one in value.items()}
    if isinstance(value, list):
        return [quoted(one) for one in value]
    if isinstance(value, str) and any(mark in value for mark in TEMPLATE):
        if "endraw" in value or "\r" in value:  # a template reads every line break as `\n`
            return "{{ " + json.dumps(value, ensure_ascii=False) + " }}"
        return "{% raw %}" + value + "{% endraw %}"
    return value


def _signal(fact: MessageReceived | ApprovalReceived, begun: float) -> dict[str, Any]:
    told: dict[str, Any] = {"name": fact.name, "after": round(max(0.0, fact.at - begun), 3)}
    if fact.data is not None:
        told["data"] = fact.data
    if fact.step:
        told["step"] = fact.step
    return told


def _is_plain(value: Any) -> bool:
    """Whether the record holds the value itself, not a reference to it."""
    if isinstance(value, dict):
        return "_ref" not in value and all(_is_plain(one) for one in value.values())
    return not isinstance(value, list) or all(_is_plain(one) for one in value)
