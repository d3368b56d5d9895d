"""The machine of a step run, driven without any I/O: the test is the worker, the engine the server.

What a call comes to is a function of its task, page and try, so that two ways through the same run
can be compared whatever interrupts them.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from noetl.engine.pipeline.machine import (
    Call,
    CallEnded,
    Cancelled,
    ChildAsked,
    Do,
    End,
    Entered,
    Fetch,
    Fetched,
    Flush,
    Happened,
    Keep,
    Kept,
    Say,
    Suspend,
    Wait,
    Woken,
)
from noetl.model import refs
from noetl.model.chains import Inner, Progress
from noetl.model.commands import ChildRequest
from noetl.model.events import TaskDone
from noetl.model.outcome import Outcome, failed, ok
from tests.effort import generated
from tests.engine.playing import Play, machine_of

POLICY = """
- step: start
  tool:
  - name: first
    kind: shell
    cmd: "{{ ctx.n | default(0) }}"
    spec:
      policy:
        rules:
        - {when: "{{ outcome.status == 'error' }}", then: {do: retry, attempts: 2, delay: 1}}
        - {when: "{{ outcome.result > 3 }}", then: {do: break, set_ctx: {end: first}}}
        - else: {then: {do: continue, set_ctx: {n: "{{ outcome.result }}"}}}
  - name: second
    kind: shell
    cmd: "{{ first }}"
    spec:
      policy:
        rules:
        - {when: "{{ outcome.status == 'error' }}", then: {do: retry, delay: 60}}
        - {when: "{{ outcome.result > 3 and ctx.n < 3 }}", then: {do: jump, to: first}}
        - {when: "{{ outcome.result == 9 }}", then: {do: fail, error: {message: nine}}}
    set: {ctx.last: "{{ outcome }}", iter.seen: "{{ _attempt }}"}
  next: end
"""
HOOKS = """
- step: start
  tool:
  - name: work
    kind: shell
    cmd: x
    spec:
      policy:
        before: [{name: lock, kind: shell, cmd: x, retry: {max_attempts: 2, initial_delay: 0.1}}]
        after: [{name: tell, kind: shell, cmd: "{{ outcome.result }}"}]
        finally: [{name: unlock, kind: shell, cmd: x, set: {ctx.unlocked: "{{ output }}"}}]
        rules: [{when: "{{ error is defined }}", then: {do: retry, attempts: 3, delay: 0}}]
  - {name: more, kind: shell, cmd: "{{ work }}"}
  next: end
"""
PAGES = """
- step: start
  tool: {kind: shell, cmd: x}
  retry:
  - {when: "{{ error is defined }}", then: {max_attempts: 3, initial_delay: 30}}
  - when: "{{ result < 5 }}"
    then:
      max_attempts: 4
      next_call: {cmd: "{{ _retry.index }}"}
      collect: {strategy: append, path: "", into: pages}
      sink: {tool: {kind: shell, cmd: "{{ result }}"}}
  vars: {pages: "{{ pages | default([]) }}"}
  next: end
"""
RULES = """
- step: start
  spec: {case_mode: inclusive}
  tool: {kind: shell, cmd: x}
  case:
  - when: "{{ event.name == 'call.error' }}"
    then: {retry: {max_attempts: 2, initial_delay: 0.5}}
  - when: "{{ event.name == 'call.done' and result < 6 }}"
    retry: {scope: chain, max_attempts: 2, backoff: {type: fixed, delay_seconds: 20}}
    then:
    - look: {tool: {kind: shell, cmd: "{{ result }}"}}
    - collect: {from: look.result, into: looks}
    - set: {ctx.looked: "{{ looks }}", vars.rounds: "{{ vars.rounds | default(0) + 1 }}"}
  - when: "{{ event.name == 'call.done' and result > 7 }}"
    then:
    - result: {value: "{{ [result, looks | default([])] }}"}
    - next: end
  sink: {tool: {kind: shell, cmd: "{{ result }}"}}
  next: end
"""
POLLED = """
- step: start
  tool:
    kind: shell
    cmd: x
    poll: {until: "{{ result > 6 }}", interval: 2s, max_attempts: 4}
    set: {ctx.found: "{{ output }}"}
  case:
  - when: "{{ event.name == 'step.exit' }}"
    then:
    - note: {tool: {kind: shell, cmd: "{{ result }}"}}
    - set: {ctx.noted: "{{ note.result }}"}
  next: end
"""
CHILD = """
- step: start
  tool:
  - {name: call, kind: playbook, path: some/where, args: {n: "{{ ctx.n | default(1) }}"}}
  - {name: work, kind: shell, cmd: "{{ call }}", set: {ctx.sum: "{{ output }}"}}
  next: end
"""
TEXTS = {
    name: f"workflow:{text}- {{step: end, tool: {{kind: noop}}}}\n"
    for name, text in {
        "policy": POLICY,
        "hooks": HOOKS,
        "pages": PAGES,
        "rules": RULES,
        "polled": POLLED,
        "child": CHILD,
    }.items()
}
OUTCOMES = [
    *(ok(number) for number in range(10)),
    failed("connection", "no answer"),
    ok("x" * 70_000),
]
SOME_OUTCOMES = st.lists(st.sampled_from(OUTCOMES), min_size=1, max_size=6)


class World:
    """What calls come to, and which were made."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        self._outcomes = outcomes
        self.bodies: dict[str, bytes] = {}
        self.calls: list[tuple[str, int, int, int]] = []

    def performed(self, do: Do) -> Happened:
        match do:
            case Call(program=program, frame=frame):
                # Not by its id: what the server heard is named by its place in the log, in which
                # a lost worker stands, too.
                call = (program.task.name, frame.page, frame.jumps, frame.tries.attempt)
                self.calls.append(call)
                number = crc32(repr(call).encode())
                return CallEnded(self._outcomes[number % len(self._outcomes)])
            case Wait():
                return Woken()
            case Keep(body=body):
                self.bodies[body.key] = body.json
                return Kept()
            case Fetch(value=value):
                about = refs.about(value, "sealed")
                assert about is not None
                return Fetched(refs.decode(self.bodies[about.key]))
        raise AssertionError(f"{do} is not for the world to perform")


def played(
    text: str, outcomes: list[Outcome], dies: frozenset[int] = frozenset()
) -> tuple[Play, World]:
    """An execution to its end; the worker dies after the inputs with these numbers."""
    play, world = Play(text).start(), World(outcomes)
    number = 0
    for _ in range(300):
        if play.status in ("COMPLETED", "FAILED"):
            return play, world
        if not play.open:
            if play.children:
                play.end_child(next(iter(play.children)), result=2)
            else:
                play.fire()
            continue
        command = next(iter(play.open.values()))
        machine, held = machine_of(play, command), []
        happened: Happened = Entered()
        while True:
            facts: list[Any] = []
            *said, last = machine.on(happened, play.at)
            for do in said:
                if isinstance(do, Say):
                    if do.held:
                        held.append(do.fact)
                        continue
                    if getattr(do.fact, "progress", None) is not None:
                        facts += held
                        held = []
                    facts.append(do.fact)
                else:
                    assert isinstance(do, Flush)
            if isinstance(last, End):
                play.report(command, *facts, *held, ending=last.ending, closes=True)
                break
            if isinstance(last, Suspend):
                waits = (last.suspension,)
                play.report(command, *facts, *held, suspensions=waits, closes=True)
                break
            if facts:
                play.report(command, *facts)
            number += 1
            if number in dies:
                play.lapse(command)
                break
            happened = world.performed(last)
    raise AssertionError("it does not end")


@pytest.mark.parametrize("name", TEXTS)
@generated(20)
@example(outcomes=[OUTCOMES[10]], dies=frozenset({6}))
@example(outcomes=[OUTCOMES[3]], dies=frozenset({3}))
@given(outcomes=SOME_OUTCOMES, dies=st.frozensets(st.integers(1, 30), max_size=4))
def test_a_run_comes_to_the_same_wherever_its_workers_die(name, outcomes, dies):
    """Whoever goes on from the recorded progress goes on as if nothing had happened, and makes no
    call again whose end was recorded.
    """
    straight, _ = played(TEXTS[name], outcomes)
    broken, _ = played(TEXTS[name], outcomes, dies)

    assert broken.state.status == straight.state.status
    assert broken.state.ctx == straight.state.ctx
    assert broken.state.vars == straight.state.vars
    assert {k: v.value for k, v in broken.state.results.items()} == {
        k: v.value for k, v in straight.state.results.items()
    }
    assert calls_of(broken) == calls_of(straight)


def calls_of(play: Play) -> list[tuple[str, int, int, str]]:
    """The calls that count, in order. Hooks are a part of the try that they stand around."""
    hooked = ("lock", "unlock", "tell")
    done = [fact for fact in play.events(TaskDone) if fact.task not in hooked]
    return [(fact.task, fact.page, fact.attempt, fact.directive) for fact in done]


ANYTHING = st.one_of(
    st.sampled_from([Entered(), Woken(), Kept(), Cancelled()]),
    st.builds(CallEnded, st.sampled_from([*OUTCOMES, ok({"a": {"b": object}}), ok(float("nan"))])),
    st.builds(Fetched, st.sampled_from([None, 1, [1], {}])),
    st.just(ChildAsked(ChildRequest(path="x"), Inner(waits=0, passes={0: Progress(position=0)}))),
)


@pytest.mark.parametrize("name", TEXTS)
@generated(25)
@given(inputs=st.lists(ANYTHING, max_size=30))
def test_no_input_makes_it_raise_and_one_that_answers_nothing_changes_nothing(name, inputs):
    play = Play(TEXTS[name]).start()
    machine = machine_of(play, next(iter(play.open.values())))
    expected: tuple[type, ...] = (Entered,)

    for happened in inputs:
        doing = machine.on(happened, 1.0)
        if type(happened) not in expected and not (expected and type(happened) is Cancelled):
            assert doing == []
            continue
        assert all(isinstance(do, Say | Flush) for do in doing[:-1])
        assert isinstance(doing[-1], Call | Wait | Fetch | Keep | Suspend | End)
        expected = type(doing[-1]).answers


@pytest.mark.parametrize("name", TEXTS)
@generated(25)
@given(outcomes=SOME_OUTCOMES, after=st.integers(0, 12))
def test_cancelled_it_ends_behind_the_finally_hooks_of_what_had_begun(name, outcomes, after):
    play, world = Play(TEXTS[name]).start(), World(outcomes)
    machine = machine_of(play, next(iter(play.open.values())))
    doing = machine.on(Entered(), 1.0)
    for _ in range(after):
        if isinstance(doing[-1], End | Suspend):
            return
        doing = machine.on(world.performed(doing[-1]), 1.0)
    last = doing[-1]
    if isinstance(last, End | Suspend):
        return
    under_way = last.program.task.name if isinstance(last, Call) else ""

    doing = machine.on(Cancelled(), 2.0)
    called: list[str] = []
    while isinstance(doing[-1], Call | Wait | Fetch | Keep):
        if isinstance(doing[-1], Call):
            called.append(doing[-1].program.task.name)
        doing = machine.on(world.performed(doing[-1]), 2.0)

    assert isinstance(doing[-1], End | Suspend)
    assert set(called) <= {"unlock"}
    if name == "hooks" and under_way in ("lock", "work", "tell"):
        assert called
        assert isinstance(doing[-1], End)
    assert machine.on(Cancelled(), 3.0) == []


@generated(5)
@given(outcomes=SOME_OUTCOMES)
def test_the_same_inputs_give_the_same_continuation(outcomes):
    for text in TEXTS.values():
        (one, first), (two, second) = played(text, outcomes), played(text, outcomes)

        assert one.history == two.history
        assert first.calls == second.calls
