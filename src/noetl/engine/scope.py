"""What templates see: scopes built from state, for the server and for workers alike."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from noetl.engine.program import Program
from noetl.model import refs
from noetl.model.commands import Command
from noetl.model.net import Select, Values
from noetl.model.outcome import TaskError, error_value
from noetl.model.state import ExecutionState, Run, StepResult
from noetl.templates import (
    EventView,
    KeptView,
    LostView,
    OutcomeView,
    Scope,
    SelectedView,
    StepView,
    Tainted,
    ViewsByName,
    view,
)
from noetl.templates.views import ResultView, View

if TYPE_CHECKING:
    from noetl.engine.turn import Turn

ALIASES: dict[str, frozenset[str]] = {
    "step.done": frozenset(
        {"step.exit", "step.finished", "call.done", "StepFinished", "ToolCompleted"}
    ),
    "step.failed": frozenset(
        {"step.exit", "step.finished", "call.error", "StepFailed", "ToolErrored"}
    ),
    "loop.done": frozenset(
        {"step.done", "step.exit", "step.finished", "loop.finished", "call.done", "LoopFinished"}
    ),
    "step.started": frozenset({"step.enter", "StepStarted"}),
    "workflow.started": frozenset({"WorkflowStarted"}),
}
"""What `event.name` equals beside the stored name."""


NO_BODIES: Mapping[str, Any] = {}
"""Of a worker: what its templates read was fetched into its command."""


def result_view(turn: Turn, step: str, result: StepResult) -> View:
    """The result that a step has come to, as the server's templates read it."""
    return step_view(turn.program, step, result, turn.state.seal, turn.bodies)


def step_view(
    program: Program, step: str, result: StepResult, seal: str, bodies: Mapping[str, Any]
) -> View:
    """A step's result as later steps read it. The `seal` is the execution's; `bodies` are the
    large results at hand, by the key of their reference.
    """
    compiled = program.steps.get(step)
    kept = result.references
    kind = compiled.kind if compiled is not None else ""
    selects = compiled.selects if compiled is not None else {}

    def shown(kind: str, name: str, value: Any) -> View | Tainted:
        found = fetched_value(value, seal, bodies)
        if isinstance(found, LostView):
            return found
        stored = kept.get(name) or value
        return kept_view(program.views[kind], found, stored, selects.get(name, ()))

    last = shown(kind, "", result.value)
    assert isinstance(last, View)  # stored results hold no secrets
    if not result.tasks:
        return last
    kinds = {task.name: task.kind for task in compiled.step.tasks} if compiled is not None else {}
    return StepView(
        last,
        {name: shown(kinds.get(name, ""), name, value) for name, value in result.tasks.items()},
    )


def kept_view(
    seen_as: type[ResultView], value: Any, stored: Any, select: tuple[Select, ...] = ()
) -> View | Tainted:
    """The view of a result; `stored` is how it is recorded, perhaps by a reference."""
    shown = view(seen_as, value)
    if not isinstance(shown, View):
        return shown
    if stored is not value and isinstance(stored, dict) and "_ref" in stored:
        shown = KeptView(shown, stored)
    return SelectedView(shown, {one.name: one.path for one in select}) if select else shown


def fetched_value(value: Any, seal: str, bodies: Mapping[str, Any]) -> Any:
    """The value that a reference stands for, if it was fetched; any other value as it is."""
    if not bodies or not refs.holds_reference(value, seal):
        return value
    key = refs.key_of(value, seal)
    if key is not None:
        return bodies.get(key, value)
    results = value["results"]
    if isinstance(results, list):
        found = [bodies.get(refs.key_of(one, seal) or "", one) for one in results]
        lost = next((one for one in found if isinstance(one, LostView)), None)
        return lost or {**value, "results": found}
    whole = bodies.get(refs.key_of(results, seal) or "", results)
    return whole if isinstance(whole, LostView) else {**value, "results": whole}


EMPTY_SCOPE = Scope({})
"""For values without templates, which look nothing up."""


def moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def server_scope(
    turn: Turn,
    step: str,
    *,
    seed: str,
    args: Values,
    names: Mapping[str, object] | None = None,
    own: StepResult | None = None,
) -> Scope:
    """What admission, routing, loops and values after success of this step can see.

    `own` is the result that the step has just come to: under its own name it reads that one, not
    the result of its run before.
    """
    program, state = turn.program, turn.state
    read = program.steps[step].reads
    wanted = state.results if "steps" in read else read & state.results.keys()
    results = {name: state.results[name] for name in wanted}
    if own is not None and not program.steps[step].names_itself:
        results[step] = own
    roots = common_roots(program, turn.execution_id, state, results, turn.bodies)
    roots["args"] = args
    if names:
        roots.update(names)
    return Scope(roots, now=moment(turn.at), seed=seed)


def state_scope(
    state: ExecutionState, execution_id: str, *, at: float, seed: str, args: Values
) -> Scope:
    """The same for a step that `reads_plainly`: it has no use for anything else."""
    roots: dict[str, object] = {
        "workload": state.workload,
        "ctx": state.ctx,
        "vars": state.vars,
        "execution_id": execution_id,
        "job": job_value(execution_id),
        "args": args,
    }
    return Scope(roots, now=moment(at), seed=seed)


def common_roots(
    program: Program,
    execution_id: str,
    shown: ExecutionState | Command,
    results: Mapping[str, StepResult],
    bodies: Mapping[str, Any] = NO_BODIES,
) -> dict[str, object]:
    """The names that exist everywhere. Reserved names win over steps that share them."""
    seal = shown.seal
    views = {step: step_view(program, step, one, seal, bodies) for step, one in results.items()}
    return {
        **views,
        "steps": ViewsByName(views),
        "workload": shown.workload,
        "ctx": shown.ctx,
        "vars": shown.vars,
        "execution_id": execution_id,
        "job": job_value(execution_id),
    }


def job_value(execution_id: str) -> Values:
    """`job`: the execution under the names that playbooks know it by."""
    return dict.fromkeys(("uuid", "execution_id", "id"), execution_id)


class WholeResult(OutcomeView):
    """An outcome as `set` sees it: read whole it is the result, not the envelope."""

    __slots__ = ()

    @property
    def plain(self) -> object:
        found = self.get("result")
        return found.plain if isinstance(found, View) else found


def event_names(
    name: str, step: str, data: Any, error: TaskError | None, shown: object
) -> dict[str, object]:
    """`event` and the names that go with it, at the end of a step."""
    event = {"name": name, **event_value(step, data, error)}
    shown_event = EventView(event, ALIASES.get(name, frozenset()))
    return {"event": shown_event, **result_names(data, error, shown)}


def event_value(step: str, data: Any, error: TaskError | None = None) -> Values:
    """`event` without its name."""
    return {"step": step, "data": data, "payload": data, "error": error_value(error)}


def result_names(data: Any, error: TaskError | None, shown: object) -> dict[str, object]:
    """The result of a step as `shown`, or its error."""
    if error is None:
        return {"result": shown, "response": shown, "this": {"status": "ok", "result": data}}
    plain = error_value(error)
    return {"error": plain, "this": {"status": "error", "error": plain}}


def outcome_names(
    seen_as: type[ResultView], data: Any, error: TaskError | None
) -> dict[str, object]:
    """`outcome` and `output` at the end of a step: the envelope of its result or error."""
    status = "ok" if error is None else "error"
    envelope = {"status": status, "result": data, "error": error_value(error)}
    return dict.fromkeys(("outcome", "output"), OutcomeView(seen_as, envelope))


def local_names(run: Run) -> dict[str, object]:
    """Names of its own that a run's rules have set; its pipeline's are the newer ones."""
    own = run.progress.local if run.progress is not None else {}
    return {**run.local, **own}


def shown_names(turn: Turn, run: Run) -> dict[str, object]:
    """The same, as the server's templates see them: large values where they were fetched."""
    seal, bodies = turn.state.seal, turn.bodies
    return {name: fetched_value(value, seal, bodies) for name, value in local_names(run).items()}
