"""The part of the fold that is about event rules: which are being followed, and what they said."""

from __future__ import annotations

from typing import assert_never

import msgspec

from noetl.model.chains import Progress
from noetl.model.rule_events import (
    BranchSuppressed,
    CaseEvaluated,
    CaseProcessed,
    CaseUnmatched,
    ChainRestarted,
    NextEvaluated,
    PollFinished,
    PollIteration,
    PollStarted,
    RetryProcessed,
    RuleEvent,
    SinkProcessed,
    SinkStarted,
    StepPatched,
)
from noetl.model.state import ExecutionState


def fold_rules(state: ExecutionState, fact: RuleEvent) -> None:
    """Fold one fact about event rules, repetitions or sinks."""
    run = state.runs[fact.step_run_id]
    match fact:
        case BranchSuppressed() | RetryProcessed() | SinkStarted():
            pass
        case CaseUnmatched():
            state.warn("rules", fact.step, fact.undefined)
        case PollStarted() | PollIteration() | PollFinished():
            pass
        case CaseEvaluated():
            if fact.chain is not None:
                # A worker follows it; what worked on the run before has been let go.
                run.progress = msgspec.structs.replace(
                    run.progress or Progress(), chain=fact.chain, pending=None
                )
                run.waiting = False
                run.children = {}
        case CaseProcessed():
            if run.progress is not None:
                run.progress = msgspec.structs.replace(run.progress, chain=None)
            # A step that waits for the world goes on waiting.
            run.waiting = run.listens is not None
        case StepPatched():
            run.local = {**run.local, **fact.local}
            if run.progress is not None and fact.local:
                local = {**run.progress.local, **fact.local}
                run.progress = msgspec.structs.replace(run.progress, local=local)
            run.yields = fact.yields or run.yields
        case NextEvaluated():
            run.next = fact
        case ChainRestarted() | SinkProcessed():
            if isinstance(fact, SinkProcessed):
                state.steps[fact.step].attempts += 1
            if fact.iteration is None:
                run.progress = fact.progress
        case _:
            assert_never(fact)
