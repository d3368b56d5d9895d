"""Quotas of runs and executions: counted from what is recorded, once, whoever made the calls."""

from __future__ import annotations

from typing import Any

from noetl.dsl.compile import compile_text
from noetl.model.commands import Command
from noetl.model.events import Event, QuotaUsed, StepFailed, TaskDone, TaskStarted
from noetl.model.inputs import Reported
from noetl.model.net import Quotas
from noetl.model.outcome import Meta, ok
from noetl.settings import Settings
from noetl.tools.registry import tools
from tests.engine.playing import HEAD, Play, play

LOOP = """
executor: {{spec: {{policy: {{quotas: {{{all}}}}}}}}}
workflow:
- step: start
  loop:
    in: [0, 1, 2, 3, 4, 5]
    iterator: x
    spec: {{mode: parallel, max_in_flight: 2, on_error: continue}}
  spec: {{policy: {{quotas: {{{step}}}}}}}
  tool: {{kind: noop}}
  next: {{arcs: [{{step: again, when: "{{{{ event.error.kind == 'quota' }}}}"}}]}}
- step: again
  tool: {{kind: noop}}
"""


def bounded(step: str = "", all: str = "") -> Play:  # noqa: A002
    return play(LOOP.format(step=step, all=all))


def begun(played: Play, command: Command, iteration: int | None = None) -> Event:
    names: dict[str, Any] = {"step_run_id": command.step_run_id, "step": command.step}
    return TaskStarted(at=played.at, task="t", iteration=iteration, **names)


def ended(
    played: Play, command: Command, result: Any = None, seconds: float = 0, **more: Any
) -> Event:
    names: dict[str, Any] = {"step_run_id": command.step_run_id, "step": command.step}
    outcome = ok(result, meta=Meta(duration=seconds))
    return TaskDone(at=played.at, task="t", outcome=outcome, **names, **more)


def failures(played: Play) -> list[tuple[str, Any]]:
    return [(fact.error.kind, fact.error.code) for fact in played.events(StepFailed)]


def test_calls_of_all_commands_of_a_run_count_and_the_one_beyond_ends_it():
    played = bounded("max_calls: 3")
    one, two = played.open.values()
    played.report(one, begun(played, one, 0))
    played.report(two, begun(played, two, 3))
    played.lapse(one)
    one = next(command for command in played.open.values() if command is not two)
    again = played.report(one, begun(played, one, 0))
    assert played.state.runs[one.step_run_id].used.calls == 3

    played.happen(Reported, report=again)
    assert played.state.runs[one.step_run_id].used.calls == 3, "a report counts once"
    played.report(two, begun(played, two, 4))

    assert failures(played) == [("quota", "max_calls")]
    assert set(played.closed) == {one.command_id, two.command_id}, "both workers must stop"
    assert played.steps == ["again"], "an arc that reads the error handles it"


def test_bytes_and_seconds_are_added_up_and_more_than_the_bound_is_too_much():
    played = bounded("max_bytes: 100")
    one, two = played.open.values()
    played.report(one, ended(played, one, "x" * 48, iteration=0))
    played.report(two, ended(played, two, "x" * 48, iteration=3))
    assert failures(played) == []
    played.report(two, ended(played, two, 1, iteration=4))
    assert failures(played) == [("quota", "max_bytes")]

    played = bounded("max_seconds: 1.5")
    one, _ = played.open.values()
    played.report(one, ended(played, one, seconds=1.0, iteration=0))
    played.report(one, ended(played, one, seconds=0.6, iteration=1))
    assert failures(played) == [("quota", "max_seconds")]


def test_an_execution_counts_all_its_runs():
    played = bounded(all="max_calls: 2")
    one, _ = played.open.values()
    played.report(one, begun(played, one, 0), begun(played, one, 1))
    assert failures(played) == []
    played.report(one, begun(played, one, 2))
    assert failures(played) == [("quota", "max_calls")]

    command = played["again"]
    played.report(command, begun(played, command))

    assert failures(played) == [("quota", "max_calls")] * 2, "the quota stays used up"
    assert played.status == "FAILED"


SAGA = """
executor: {spec: {policy: {quotas: {max_calls: 1}}}}
workflow:
- step: start
  spec: {compensate: undo}
  tool: {kind: noop}
  next: end
- step: end
  tool: {kind: noop}
- step: undo
  tool: {kind: noop}
  next: end
"""


def test_what_undoes_an_execution_may_call_although_its_quota_is_used_up():
    played = play(SAGA)
    first = played["start"]
    played.report(first, begun(played, first))
    played.done(first)
    last = played["end"]
    played.report(last, begun(played, last))

    undo = played["undo"]
    played.report(undo, begun(played, undo))
    played.done(undo)

    assert played.status == "FAILED"
    assert played.state.steps["undo"].status == "done"


def test_nothing_is_counted_where_there_is_no_quota():
    played = bounded()
    one, _ = played.open.values()
    played.report(one, begun(played, one, 0), ended(played, one, "x", 1.0, iteration=0))

    assert played.events(QuotaUsed) == []


def test_the_bound_of_the_operator_counts_if_it_is_less() -> None:
    settings = Settings.from_environment({"NOETL_QUOTAS": "calls=5,seconds=60"})
    written = HEAD + LOOP.format(step="", all="max_calls: 9, max_seconds: 7")

    net = compile_text(written, tools=tools(), limits=settings.limits).unwrap()

    assert net.executor.limits.quotas == Quotas(max_calls=5, max_seconds=7)
