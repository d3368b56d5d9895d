"""The variables of one pass through a pipeline: what its templates see, what is recorded of them,
and where it stands. A large value is kept apart, and a reference stands for it in the record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Any, NamedTuple

import msgspec

from noetl.engine.evolve import put
from noetl.engine.pipeline.actions import NO_WRITES
from noetl.engine.program import Program
from noetl.engine.scope import WholeResult, common_roots, kept_view, moment
from noetl.errors import TooLarge
from noetl.model import refs
from noetl.model.chains import Chain, Inner, Progress, Tries
from noetl.model.commands import Command
from noetl.model.events import CtxPatched, VarsSet
from noetl.model.ids import derive
from noetl.model.net import Patch, Task, Values
from noetl.model.outcome import DETAILS, ErrorKind, Outcome, TaskError, error_value, ok
from noetl.templates import (
    MASK,
    EventView,
    OutcomeView,
    Scope,
    Tainted,
    ViewsByName,
    mask,
    view,
)
from noetl.templates.views import MISSING, ResultView, View, at_path

Try = tuple[Tries, int, str]
"""One try of a call: the counters with which it begins, its page, and its name (`action_id`)."""
FRESH = Tries()
"""Of a task that has not been called."""
OF_OUTCOMES = frozenset({"outcome", "output", "this", "error", "response", "result"})
"""Names that stand in the scope only while an outcome is looked at."""


class Frame(msgspec.Struct, eq=False):
    """The variables of one run, or of one iteration."""

    program: Program
    command: Command
    ctx: Values
    start: Progress | None = None
    """The position that was recorded, if it does not begin anew."""
    iteration: int | None = None
    iter: Values = {}
    loop: Values | None = None
    args: Values | None = None
    """In place of those of the command."""
    cause: str = ""
    """What its calls are named after: the run, if nothing else is said."""
    given: Values = {}
    """What its only task is called with, beneath the task's own inputs."""
    local: Values = {}
    local_stored: dict[str, tuple[Any, Any]] = {}
    """Large ones of them, with what is recorded in their place."""
    results: Values = {}
    previous: Any = None
    stored: Values = {}
    """The results as events show them: large ones as references."""
    stored_previous: Any = None
    position: int = 0
    task_tries: Tries = FRESH
    """The counters of the task at `position`."""
    jumps: int = 0
    passes: int = 0
    last: tuple[str, Outcome] | None = None
    """The kind of the task before, and its outcome."""
    pending: Outcome | None = None
    inner: Inner | None = None
    """Where the workbook entry stands that its task has called."""
    ctx_writes: Values = {}
    vars_writes: Values = {}
    yields: tuple[Any, ...] = ()
    """What a rule said that the step yields."""
    shown: tuple[str, ...] = ()
    """Names that stand in the scope only while a page is looked at."""
    chain: Chain | None = None
    """Event rules that are being followed; its own counters are in there."""
    names: dict[str, object] = {}
    """What its templates see: all of it once there is a scope, until then what is its own."""
    _covered: dict[str, object] = {}
    """What the step's own result stands in front of while it is looked at."""
    _scope: Scope | None = None

    def __post_init__(self) -> None:
        command, names = self.command, self.names
        self.cause = self.cause or command.step_run_id
        self.local = dict(command.local)
        if self.start is not None:
            self._resume_at(self.start)
        names["args"] = command.args if self.args is None else self.args
        names["iter"] = self.iter
        if self.loop is not None:
            names["loop"] = self.loop
            names["loop_index"] = self.loop["index"]
        names.update(self.local)
        if command.steps:
            self._scope = self._make_scope()

    def _resume_at(self, start: Progress) -> None:
        """Take the position that was recorded."""
        self.cause = start.cause or self.cause
        self.iter |= start.iter
        self.local |= start.local
        self.results, self.stored = dict(start.results), dict(start.results)
        self.previous = self.stored_previous = start.previous
        self.position = start.position
        self.task_tries = Tries(**{key: getattr(start, key) for key in Tries.__struct_fields__})
        self.jumps, self.passes = start.jumps, start.passes
        self.pending = start.pending if start.inner is None else None
        self.inner = _handed_down(start)
        for path, value in start.writes.items():
            put(self.ctx, path, value)
            self.ctx_writes[path] = value
        self.yields = start.yields
        # A copy: the chain goes on here, and the command may be handed out again.
        self.chain = msgspec.structs.replace(start.chain) if start.chain is not None else None

    @property
    def scope(self) -> Scope:
        """What its templates see. Made for the first of them: many tasks have none."""
        if self._scope is None:
            self._scope = self._make_scope()
        return self._scope

    def _make_scope(self) -> Scope:
        command = self.command
        roots = common_roots(self.program, command.execution_id, command, command.steps)
        roots["ctx"] = self.ctx
        roots.update(self.names)
        scope = Scope(roots, now=moment(command.at), seed=command.step_run_id)
        self.names = scope.roots
        return scope

    @property
    def is_tainted(self) -> bool:
        """Whether a secret may stand among what its templates see."""
        return self._scope is not None and bool(self._scope.tainted)

    @property
    def tries(self) -> Tries:
        """The counters of whatever is called next: a task of the pipeline, or of a chain."""
        return self.task_tries if self.chain is None else self.chain.tries

    @tries.setter
    def tries(self, tries: Tries) -> None:
        if self.chain is None:
            self.task_tries = tries
        else:
            self.chain.tries = tries

    @property
    def page(self) -> int:
        """The logical call of the pipeline; a chain's tasks belong to the call they follow."""
        return self.task_tries.page if self.chain is None else self.chain.call.page

    def enter(self, task: Task) -> Try:
        """The try of the task that is about to be made; its names are shown from now on."""
        names, chain = self.names, self.chain
        if chain is None:
            tries = call = self.task_tries
        else:
            tries, call = chain.tries, chain.call
        names["_task"] = task.name
        names["_attempt"] = tries.attempt
        self.show_tries(call)
        return tries, call.page, self.action_id(task, call.page)

    def action_id(self, task: Task, page: int) -> str:
        """The same on every attempt of a logical call, another for every other call."""
        if self.chain is None:
            return derive(self.cause, task.name, page, self.jumps)
        jumps = self.chain.outermost.jumps
        jumps = self.jumps if jumps is None else jumps
        # The same task may stand in several rules, and the same rule may answer several events.
        return derive(self.cause, task.name, page, jumps, *self.chain.place)

    def recall(self, tasks: Mapping[str, Task], values: Values, previous: Any) -> None:
        """What was done before an interruption, with references replaced by what they stand for."""
        self.results = values
        self.previous = previous
        if self.stored_previous is not None:
            self.names["_prev"] = previous
        for name, value in values.items():
            task = tasks.get(name)
            self.names[name] = self._named(task, value, self.stored[name])
            if task is not None and self.stored[name] == self.stored_previous:
                self.last = task.kind, ok(previous)

    def see(self, outer: Frame) -> None:
        """Inside a workbook entry: what the caller's pipeline has and the entry does not hide."""
        roots = self.scope.roots  # with what exists everywhere: an entry does not hide that
        for name in (*outer.results, *outer.local, *outer.iter):
            if name not in ("index", "parent") and name in outer.scope.roots:
                roots.setdefault(name, outer.scope.roots[name])

    def around(self, cause: str) -> Frame:
        """For the hooks of a task: it sees and writes what this one does, on a way of its own."""
        found = copy(self)
        scope = self.scope
        found._scope = Scope(scope.roots, now=scope.now, seed=scope.seed, tainted=scope.tainted)
        found.names = found._scope.roots
        found.cause = cause
        found.position = found.jumps = found.passes = 0
        found.task_tries = FRESH
        found.chain = found.inner = found.pending = None
        # What was done before is in the scope already; these are of the hooks alone.
        found.results, found.stored = {}, {}
        found.previous = found.stored_previous = None
        found.shown = ()
        return found

    def show_last(self) -> None:
        """`outcome` in a later task is that of the task before it."""
        if self.last is None and self.stored_previous is not None:
            self.last = "", ok(self.previous)
        if self.last is not None:
            self.show_outcome(*self.last)
            for name in OF_OUTCOMES - {"outcome", "output"}:
                self.names.pop(name, None)

    def show_tries(self, tries: Tries) -> None:
        """`_retry`: which round this is, and how many calls there have been with this one."""
        self.names["_retry"] = {"index": tries.rounds + 1, "count": tries.calls + 1}

    def show(self, kind: str, outcome: Outcome, *, is_own: bool, whole: bool) -> None:
        """What a task's rules, and then its `set`, see of its outcome; `whole`: only its `set`.

        `is_own`: it is the only task of its step.
        """
        self.show_outcome(kind, outcome, OutcomeView if not whole else WholeResult)
        if is_own:
            self.show_own(outcome)
        self.show_tries(self.tries)

    def show_own(self, outcome: Outcome) -> None:
        """For the rules and `set` of a step's only task: under the step's name stands the result
        that just came, not that of the step's run before.
        """
        name = self.command.step
        if outcome.status != "ok" or self._covered or self.program.steps[name].names_itself:
            return
        roots = self.scope.roots
        own, steps = roots["result"], roots["steps"]
        assert isinstance(steps, ViewsByName)
        self._covered = {"steps": steps, name: roots.get(name, self)}
        roots[name] = own
        roots["steps"] = steps.with_one(name, own)
        self._note_secret(outcome.result, name, "steps")

    def show_outcome(
        self, kind: str, outcome: Outcome, shown_as: type[OutcomeView] = OutcomeView
    ) -> None:
        """`outcome` and what goes with it, for the rules."""
        is_ok = outcome.status == "ok"
        error = None if is_ok else error_value(outcome.error)
        envelope: dict[str, object] = {
            "status": outcome.status,
            "error": error,
            "meta": msgspec.structs.asdict(outcome.meta),
        }
        if is_ok:
            envelope["result"] = outcome.result
            self._note_secret(outcome.result, "outcome", "output", "this", "result", "response")
        for name in DETAILS:
            if (value := getattr(outcome, name)) is not None:
                envelope[name] = value
        seen_as = self.program.views[kind]
        shown = shown_as(seen_as, envelope)
        roots = self.names
        roots["outcome"] = roots["output"] = shown
        roots["this"] = envelope
        roots.pop("error", None)
        roots.pop("response", None)
        roots.pop("result", None)
        if is_ok:
            roots["response"] = roots["result"] = view(seen_as, outcome.result)
        else:
            roots["error"] = error

    def show_result(self, kind: str) -> None:
        """For the task's `set`: `{{ outcome }}` is what it yielded."""
        envelope = self.names["this"]
        assert isinstance(envelope, dict)
        shown = WholeResult(self.program.views[kind], envelope)
        self.names["outcome"] = self.names["output"] = shown

    def leave(self, writes: Patch) -> None:
        """The call is settled: apply what its policy writes, and forget the outcome."""
        if writes is not NO_WRITES or self.is_tainted:
            self.write(writes)
        if "outcome" in self.names:
            self.hide_outcome()

    def hide_outcome(self) -> None:
        for name in self.names.keys() & OF_OUTCOMES:
            del self.names[name]
        for name, before in self._covered.items():
            if before is self:  # there was none
                del self.names[name]
            else:
                self.names[name] = before
        self._covered = {}

    def show_page(self, kind: str, outcome: Outcome) -> None:
        """Names of `retry` and sinks: the page just fetched, and its status."""
        roots = self.names
        status = (outcome.http or {}).get("status")
        if outcome.error is not None and outcome.error.status is not None:
            status = outcome.error.status
        page = view(self.program.views[kind], outcome.result)
        for name, value in (("page", page), ("status_code", status)):
            if name not in roots and value is not None:
                roots[name] = value
                self.shown += (name,)

    def hide_page(self) -> None:
        for name in self.shown:
            del self.names[name]
        self.shown = ()

    def show_event(self, event: Values, aliases: frozenset[str]) -> None:
        self._note_secret(event["data"], "event")
        self.names["event"] = EventView(event, aliases)

    def say_result(self, value: Any) -> None:
        """A rule says what the step yields; what is recorded of a secret is a mask."""
        self.yields = (mask(value) if self.is_tainted else value,)

    @property
    def result(self) -> Any:
        """What the step yields so far, as it is recorded."""
        return self.yields[0] if self.yields else self.stored_previous

    def name_result(self, task: Task, value: Any, stored: Any) -> None:
        """The result of a chain's task: readable by its name, but not what the step yields."""
        name = task.name
        self.results[name] = value
        self.stored[name] = stored
        self._note_secret(value, name)
        self.names[name] = self._named(task, value, stored)

    def restore(self, local: Values) -> None:
        """Forget what a chain wrote to the step's own names."""
        for name in self.local.keys() - local.keys():
            self.names.pop(name, None)
        self.local = dict(local)
        self.names.update(local)

    def recorded_local(self) -> Values:
        """The step's own names as they may be recorded: large values as references."""
        shown: Values = {}
        for name, value in self.local.items():
            kept, reference = self.local_stored.get(name, (None, None))
            shown[name] = reference if kept is value and reference is not None else value
        return self.recorded(shown)

    def recorded(self, values: Values) -> Values:
        """The values as they may be recorded."""
        if not self.is_tainted:
            return values
        masked = mask(values)
        assert isinstance(masked, dict)
        return masked

    def keep(self, task: Task, value: Any, stored: Any) -> None:
        """The result of a task, for the tasks after it and for the record."""
        name = task.name
        self.results[name] = value
        self.previous = value
        self.stored[name] = stored
        self.stored_previous = stored
        self._note_secret(value, name, "_prev")
        self.names[name] = self._named(task, value, stored)
        self.names["_prev"] = value

    def _named(self, task: Task | None, value: Any, stored: Any) -> object:
        """The result of a task as later ones read it."""
        if task is None:
            return kept_view(ResultView, value, stored)
        seen_as = self.program.views[task.kind]
        if stored is value and not task.select:
            return view(seen_as, value)
        return kept_view(seen_as, value, stored, task.select)

    def _note_secret(self, value: Any, *names: str) -> None:
        """Tell the scope under which names a secret stands from now on."""
        if isinstance(value, Tainted):
            self.scope.tainted |= frozenset(names)

    def write(self, patch: Patch) -> None:
        """Apply what a rule or `set` writes, so that later templates see it."""
        tainted, local = self.is_tainted, patch.local
        if patch.vars:
            known = self.scope.roots["vars"]
            assert isinstance(known, dict)
            self.names["vars"] = {**known, **patch.vars}
            self.vars_writes |= self.recorded(patch.vars)
        for path, value in patch.ctx.items():
            put(self.ctx, path, value)
            self.ctx_writes[path] = mask(value) if tainted else value
        for path, value in patch.iter.items():
            put(self.iter, path, value)
        if tainted:
            # A secret may have been written: from here on these count as tainted.
            self.scope.tainted |= {"ctx", "iter", *local}
        for name, value in local.items():
            self.local[name] = value
            self.names[name] = value

    def written(self, at: float) -> Iterator[CtxPatched | VarsSet]:
        """What was written to ctx and vars since the last time."""
        run_id, step = self.command.step_run_id, self.command.step
        about: dict[str, Any] = {"at": at, "step_run_id": run_id, "step": step}
        if self.ctx_writes:
            yield CtxPatched(values=dict(self.ctx_writes), iteration=self.iteration, **about)
            self.ctx_writes.clear()
        if self.vars_writes:
            yield VarsSet(values=dict(self.vars_writes), **about)
            self.vars_writes.clear()

    def progress(self) -> Progress:
        """Its position, for the worker that continues."""
        own = dict(self.iter)
        own.pop("parent", None)
        progress = Progress(
            position=self.position,
            cause="" if self.cause == self.command.step_run_id else self.cause,
            jumps=self.jumps,
            passes=self.passes,
            iter=self.recorded(own) if own else own,
            local=self.recorded_local() if self.local else {},
            results=dict(self.stored),
            previous=self.stored_previous,
            yields=self.yields,
            inner=self.inner,
            # A copy: this one goes on.
            chain=msgspec.structs.replace(self.chain) if self.chain is not None else None,
        )
        if self.task_tries is FRESH:
            return progress
        return msgspec.structs.replace(progress, **msgspec.structs.asdict(self.task_tries))


def _handed_down(progress: Progress) -> Inner | None:
    """What arrived from elsewhere is for the pass that waits, not for the task that called it."""
    inner = progress.inner
    if inner is None or progress.pending is None:
        return inner
    waiting = msgspec.structs.replace(inner.passes[inner.waits], pending=progress.pending)
    return msgspec.structs.replace(inner, passes={**inner.passes, inner.waits: waiting})


# --- Results fit for the record -------------------------------------------------------------------


class Body(NamedTuple):
    """A value to be kept under its key."""

    key: str
    json: bytes


Recorded = tuple[Outcome, Outcome, Body | None]
"""An outcome, how it is recorded, and what has to be kept for that."""


def recorded(
    outcome: Outcome,
    command: Command,
    action_id: str,
    result_max: int,
    hide: Callable[[str], str] | None = None,
    task: Task | None = None,
    seen_as: type[ResultView] = ResultView,
) -> Recorded:
    """The outcome as it may be recorded.

    `hide` masks secrets in the preview, which people read. What the `task` selects of its
    result, `seen_as` its tool declares, stays inline beside the reference. A result that has no
    form in JSON is an error of the task, whatever the tool thought.
    """
    result = outcome.result
    if result is None:
        return outcome, outcome, None
    if isinstance(result, Tainted):
        return outcome, msgspec.structs.replace(outcome, result=MASK), None
    try:
        body = refs.encode(result)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return _refused(
            outcome, "schema", "not_json", f"the result cannot be recorded as JSON: {error}"
        )
    inline_max = refs.INLINE_MAX
    if task is not None:
        inline_max = min(inline_max, task.spec.get("inline_max_bytes", inline_max))
    if len(body) <= inline_max:
        return outcome, outcome, None
    if len(body) > result_max:
        message = (
            f"the result has {len(body):,} bytes, more than the {result_max:,} that this worker"
            " keeps of one (NOETL_MAX_RESPONSE_BYTES). Yield less, or a file (`result_as`,"
            " `download`), or put it away with `kind: store` or `kind: transfer`."
        )
        return _refused(outcome, "client_error", TooLarge.code, message)
    # By its content: the next try of the same call may yield another body.
    key = derive(action_id, hashlib.sha256(body).hexdigest())
    promised = task.schema.label if task is not None and task.schema is not None else ""
    reference = refs.reference(command.execution_id, key, body, result, command.seal, promised)
    if hide is not None:
        reference["_preview"] = hide(reference["_preview"])
    if task is not None and task.select:
        reference = {**_selected(task, seen_as(result)), **reference}
    return outcome, msgspec.structs.replace(outcome, result=reference), Body(key, body)


def _refused(outcome: Outcome, kind: ErrorKind, code: str, message: str) -> Recorded:
    wrong = TaskError(kind=kind, code=code, message=message)
    bad = msgspec.structs.replace(outcome, status="error", result=None, error=wrong)
    return bad, bad, None


def large_names(frame: Frame) -> Iterator[Body]:
    """The step's own large names (what rules collected), to be kept by reference, too.

    Where a secret may be among them they stay in the progress, masked.
    """
    if frame.is_tainted:
        return
    command = frame.command
    for name, value in list(frame.local.items()):
        known, _ = frame.local_stored.get(name, (None, None))
        if known is value or not isinstance(value, list | dict | str):
            continue
        body = refs.encode(value)
        if len(body) > refs.INLINE_MAX:
            key = derive(frame.cause, "name", name, hashlib.sha256(body).hexdigest())
            yield Body(key, body)
            reference = refs.reference(command.execution_id, key, body, value, command.seal)
            frame.local_stored[name] = (value, reference)


def _selected(task: Task, shown: View) -> Values:
    """The fields of a large result that stay inline, as far as there is room for them."""
    found: Values = {}
    room = refs.INLINE_MAX
    for one in task.select:
        value = at_path(shown, one.path)
        if value is MISSING:
            continue
        value = value.plain if isinstance(value, View) else value
        room -= refs.weight(value)
        if room < 0:
            break
        found[one.name] = value
    return found
