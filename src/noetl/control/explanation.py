"""Why a step ran or did not: reads the log; guards are evaluated in another process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from noetl.control.history import facts
from noetl.control.live import fetched
from noetl.control.records import row_of
from noetl.engine.explanation import Witness, explained, near
from noetl.engine.program import Program
from noetl.errors import NotFound
from noetl.model import net as nets
from noetl.model import refs
from noetl.model.ids import ExecutionId
from noetl.model.retrospect import StepWhyDocument
from noetl.model.spelling import no_such_step
from noetl.templates.views import LOOP, ResultView

if TYPE_CHECKING:
    from noetl.control.programs import Programs
    from noetl.store.bodies import Bodies
    from noetl.store.log import Log
    from noetl.store.records import Records


class Inquiry(msgspec.Struct, frozen=True, kw_only=True):
    """A question with all that is needed to answer it, in a form that another process can take."""

    execution_id: ExecutionId
    net: bytes
    digest: str
    witness: Witness
    bodies: dict[str, Any]
    """Large results that guards may read, by the key of their reference."""
    views: dict[str, type[ResultView]]
    """How guards read results, by tool kind: the other process may not know all kinds."""


async def inquiry(
    log: Log,
    records: Records,
    bodies: Bodies,
    programs: Programs,
    execution_id: ExecutionId,
    *,
    step: str,
    seq: int | None,
) -> Inquiry:
    """What is to be asked about a step, at an event or now. Raises NotFound."""
    summary = await row_of(records, execution_id)
    program = await programs.by_digest(summary.digest)
    if step not in program.steps:
        raise NotFound(no_such_step(step, program.steps, summary.path))
    witness = Witness(step=step, near=near(program, step))
    async for number, fact in facts(log, execution_id, upto=seq):
        witness.see(number, fact)
    kinds = {task.kind for step in program.net.steps for task in step.tasks}
    return Inquiry(
        execution_id=execution_id,
        net=nets.encode(program.net),
        digest=program.digest,
        witness=witness,
        bodies=await _bodies(bodies, program, execution_id, witness),
        views={kind: program.views[kind] for kind in ("", LOOP, *kinds)},
    )


def answered(asked: Inquiry) -> StepWhyDocument:
    """The answer. Evaluates guards of the playbook: not on the loop of a server."""
    program = Program(nets.decode(asked.net), asked.digest, asked.views)
    return explained(program, asked.execution_id, asked.witness, asked.bodies)


async def _bodies(
    bodies: Bodies, program: Program, execution_id: ExecutionId, witness: Witness
) -> dict[str, Any]:
    """Large results that the guards read, each as it was at that moment."""
    found: dict[str, Any] = {}
    entered = witness.entered
    sources = entered.sources.values() if entered is not None else ()
    scopes = [(one.fact.step, one.state) for one in (*witness.ends.values(), *sources) if one]
    for step, state in scopes + ([(witness.step, entered.state)] if entered is not None else []):
        reads = program.steps[step].reads
        wanted = state.results if "steps" in reads else (reads | {step}) & state.results.keys()
        for name in wanted:
            result = state.results[name]
            held = [
                reference
                for value in (result.value, *result.tasks.values())
                for reference in refs.held_by(value, state.seal)
                if refs.key_of(reference, state.seal) not in found
            ]
            found |= await fetched(bodies, execution_id, state.seal, held)
    return found
