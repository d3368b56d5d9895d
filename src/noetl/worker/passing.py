"""One pass through a pipeline: task after task, and after each call the rules that answer it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from noetl.engine.cases import SINK, CaseProgram
from noetl.engine.pipeline import TaskProgram
from noetl.model.chains import SERVER_STAGES, Chain, Tries
from noetl.model.commands import Ending, Suspension
from noetl.model.outcome import TaskError, ok
from noetl.worker.allowances import jumps_of
from noetl.worker.chains import answer, follow, leaving, page_chain, say_evaluated
from noetl.worker.frame import FRESH, Frame
from noetl.worker.settling import Settled, report, say_processed, settle, write

if TYPE_CHECKING:
    from noetl.worker.runner import Runner


class Passage(msgspec.Struct, kw_only=True):
    """A frame on its way through tasks."""

    runner: Runner
    tasks: tuple[TaskProgram, ...]
    frame: Frame
    case: CaseProgram | None = None
    """Rules that answer the calls; a workbook entry has none."""
    top: bool = False
    """Not in a loop."""
    inside: bool = False
    """Of a workbook entry, which can only wait where it is."""
    stored: bool = False
    """The step's sink has run for this pass."""
    left: bool = False
    """The rules for the end of this iteration have been followed."""

    def is_only(self, program: TaskProgram) -> bool:
        """Whether this is the only task of the step: what it yields, the step yields."""
        return not self.inside and len(self.tasks) == 1 and self.tasks[0] is program


async def go(passage: Passage) -> Ending | Suspension:
    """Run tasks until the pipeline ends or has to wait for long."""
    frame = passage.frame
    if frame.local or frame.stored or frame.stored_previous is not None:
        await _recall(passage)
    ended: Ending | Suspension | None = None
    while ended is None:
        if frame.chain is not None:
            stage = frame.chain.stage
            passage.stored = passage.stored or stage == "sink"
            passage.left = passage.left or stage == "iteration"
            ended = await follow(passage)
            if isinstance(ended, Ending) and stage in SERVER_STAGES:
                return ended
        elif frame.position < len(passage.tasks):
            ended = await _task(passage, passage.tasks[frame.position])
        else:
            ended = Ending(result=frame.result)
        if isinstance(ended, Ending) and _is_to_be_stored(passage, ended):
            frame.position = len(passage.tasks)
            frame.chain = _sink_chain(frame, ended)
            ended = None
        elif isinstance(ended, Ending) and (chain := _leaving(passage, ended)) is not None:
            frame.position = len(passage.tasks)
            frame.chain = chain
            ended = None
    return _with_tasks(passage, ended) if isinstance(ended, Ending) else ended


def _is_to_be_stored(passage: Passage, ended: Ending) -> bool:
    """Whether the step's own sink has yet to run: after each success, however it came about."""
    case = passage.case
    if case is None or passage.stored or SINK not in case.by_label:
        return False
    return ended.error is None and ended.skipped is None


def _leaving(passage: Passage, ended: Ending) -> Chain | None:
    """The rules that answer the end of an iteration: its `step.exit`, once."""
    case = passage.case
    if case is None or passage.left or passage.frame.iteration is None or passage.inside:
        return None
    if ended.skipped is not None or ended.next is not None:
        return None
    passage.left = True
    return leaving(passage, case, ended)


def _sink_chain(frame: Frame, ended: Ending) -> Chain:
    routes = (ended.next,) if ended.next is not None else ()
    return Chain(
        stage="sink",
        event="step.done",
        rules=(SINK,),
        outcome=ok(ended.result),
        call=Tries(),
        routes=routes,
        losers=ended.suppressed,
        position=frame.position,
    )


async def _task(passage: Passage, program: TaskProgram) -> Ending | Suspension | None:
    frame = passage.frame
    if program.reads_output:
        frame.show_last()
    settled = await settle(passage, program)
    if not isinstance(settled, Settled):
        return settled
    frame.last = program.task.kind, settled.outcome
    chain = None
    if settled.directive.rule:
        chain = page_chain(passage, program, settled)
    elif passage.case is not None:
        chain = answer(passage, passage.case, program, settled)
    write(frame, settled)
    ended = _move(passage, program, settled) if not settled.directive.rule else None
    if chain is not None:
        chain.fails = ended.error if ended is not None else None
        frame.chain = chain
    report(passage, program, settled)
    if chain is None:
        say_processed(passage, program.task.name, settled.outcome, settled.tries)
    if passage.case is not None and chain is not None and chain.stage == "call":
        say_evaluated(passage, passage.case, chain)
    return ended if chain is None else None


def _move(passage: Passage, program: TaskProgram, settled: Settled) -> Ending | None:
    """Go where the directive says; an ending if there is nowhere to go."""
    frame, directive = passage.frame, settled.directive
    if settled.outcome.is_ok:
        frame.keep(program.task, settled.outcome.result, settled.stored.result)
    frame.tries = FRESH
    match directive.kind:
        case "jump":
            return _jump(passage, program, directive.to)
        case "break":
            frame.position = len(passage.tasks)
            return Ending(result=frame.result)
        case "fail":
            return Ending(error=directive.error or TaskError(kind="unknown", message="failed"))
        case _:
            frame.position += 1
    return None


def _jump(passage: Passage, program: TaskProgram, to: str) -> Ending | None:
    frame = passage.frame
    target = next(i for i, one in enumerate(passage.tasks) if one.task.name == to)
    frame.jumps += 1
    limit = jumps_of(program, frame) if target <= frame.position else None
    if limit is not None and frame.jumps > limit:
        message = f'task "{program.task.name}" jumped more than {limit} times (`max_jumps`)'
        return Ending(error=TaskError(kind="client_error", code="jumps", message=message))
    frame.position = target
    return None


def _with_tasks(passage: Passage, ended: Ending) -> Ending:
    """Of several tasks, the step also yields the result of each."""
    if ended.error is not None or len(passage.tasks) < 2:
        return ended
    return msgspec.structs.replace(ended, tasks=dict(passage.frame.stored))


async def _recall(passage: Passage) -> None:
    """After an interruption: the results of the tasks that were done before it."""
    frame, real = passage.frame, passage.runner.bodies.real
    for name, value in frame.local.items():
        frame.local[name] = frame.names[name] = await real(value)
    if not frame.stored and frame.stored_previous is None:
        return
    tasks = {program.task.name: program.task for program in passage.tasks}
    if passage.case is not None:
        tasks |= passage.case.tasks
    values = {name: await real(stored) for name, stored in frame.stored.items()}
    frame.recall(tasks, values, await real(frame.stored_previous))
