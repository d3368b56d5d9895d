"""One pass through a pipeline: what its templates see, and where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.engine.evolve import put
from noetl.engine.program import Program
from noetl.engine.scope import common_roots, error_value, moment
from noetl.model.commands import Command
from noetl.model.events import Progress
from noetl.model.net import Values
from noetl.model.outcome import Outcome
from noetl.templates import OutcomeView, Scope, Tainted, mask, view
from noetl.templates.views import View


class WholeResult(OutcomeView):
    """An outcome as a task's `set` sees it: read whole it is the result, not the envelope."""

    __slots__ = ()

    @property
    def plain(self) -> object:
        found = self.get("result")
        return found.plain if isinstance(found, View) else found


class Frame:
    """The variables of one run, or of one iteration."""

    __slots__ = (
        "attempt",
        "cause",
        "command",
        "ctx",
        "ctx_writes",
        "given",
        "iter",
        "iteration",
        "jumps",
        "local",
        "overrides",
        "page",
        "pending",
        "position",
        "previous",
        "program",
        "results",
        "scope",
        "stored",
        "stored_previous",
    )

    def __init__(
        self,
        program: Program,
        command: Command,
        ctx: Values,
        *,
        iteration: int | None = None,
        iter_values: Values | None = None,
        loop: Values | None = None,
        progress: Progress | None = None,
        args: Values | None = None,
        cause: str | None = None,
    ) -> None:
        self.program = program
        self.cause = cause or command.step_run_id
        """What its calls are named after."""
        self.command = command
        self.ctx = ctx
        self.ctx_writes: Values = {}
        self.given: Values = {}
        """What its only task is called with, beneath the task's own inputs."""
        self.iteration = iteration
        start = progress or Progress()
        self.iter: Values = {**(iter_values or {}), **start.iter}
        self.local: Values = dict(start.local)
        self.results: Values = dict(start.results)
        self.previous: Any = start.previous
        self.stored: Values = dict(start.results)
        """The results as events show them: large ones as references."""
        self.stored_previous: Any = start.previous
        self.position = start.position
        self.attempt = start.attempt
        self.page = start.page
        self.jumps = start.jumps
        self.pending = start.pending
        self.overrides: Values = {}
        roots = common_roots(
            program, command.execution_id, command.workload, ctx, command.vars, command.steps
        )
        roots["args"] = command.args if args is None else args
        roots["iter"] = self.iter
        if loop is not None:
            roots["loop"] = loop
            roots["loop_index"] = loop["index"]
        for name, value in self.local.items():
            roots[name] = value
        self.scope = Scope(roots, now=moment(command.at), seed=command.step_run_id)

    def recall(self, kinds: Mapping[str, str], values: Values, previous: Any) -> None:
        """What was done before an interruption, with references replaced by what they stand for."""
        self.results = values
        self.previous = previous
        if self.stored_previous is not None:
            self.scope.roots["_prev"] = previous
        for name, value in values.items():
            self.scope.roots[name] = view(kinds.get(name, ""), value)

    def see(self, outer: Frame) -> None:
        """Inside a workbook entry: what the caller's pipeline has and the entry does not hide."""
        roots = self.scope.roots
        for name in (*outer.results, *outer.local, *outer.iter):
            if name not in ("index", "parent") and name in outer.scope.roots:
                roots.setdefault(name, outer.scope.roots[name])

    def enter(self, task: str) -> None:
        """Names that belong to the task about to run."""
        roots = self.scope.roots
        roots["_task"] = task
        roots["_attempt"] = self.attempt
        roots["_retry"] = {"index": self.attempt, "count": self.attempt}

    def show_outcome(self, kind: str, outcome: Outcome) -> None:
        """`outcome` and what goes with it, for the rules."""
        envelope: dict[str, object] = {
            "status": outcome.status,
            "error": error_value(outcome.error),
            "meta": {"attempt": outcome.meta.attempt, "duration": outcome.meta.duration},
        }
        if outcome.is_ok:
            envelope["result"] = outcome.result
            self._note_secret(outcome.result, "outcome", "output", "this", "result", "response")
        for name in ("http", "pg", "py", "sh"):
            found = getattr(outcome, name)
            if found is not None:
                envelope[name] = found
        shown = OutcomeView(kind, envelope)
        roots = self.scope.roots
        roots["outcome"] = roots["output"] = shown
        roots["this"] = envelope
        roots.pop("error", None)
        roots.pop("response", None)
        roots.pop("result", None)
        if outcome.is_ok:
            roots["response"] = roots["result"] = view(kind, outcome.result)
        else:
            roots["error"] = envelope["error"]

    def show_result(self, kind: str) -> None:
        """For the task's `set`: `{{ outcome }}` is what it yielded."""
        envelope = self.scope.roots["this"]
        assert isinstance(envelope, dict)
        shown = WholeResult(kind, envelope)
        self.scope.roots["outcome"] = self.scope.roots["output"] = shown

    def hide_outcome(self) -> None:
        for name in ("outcome", "output", "this", "error", "response", "result"):
            self.scope.roots.pop(name, None)

    def keep(self, name: str, kind: str, value: Any, stored: Any) -> None:
        """The result of a task, for the tasks after it and for the record."""
        self.results[name] = value
        self.previous = value
        self.stored[name] = stored
        self.stored_previous = stored
        self._note_secret(value, name, "_prev")
        self.scope.roots[name] = view(kind, value)
        self.scope.roots["_prev"] = value

    def _note_secret(self, value: Any, *names: str) -> None:
        """Tell the scope under which names a secret stands from now on."""
        if isinstance(value, Tainted):
            self.scope.tainted |= frozenset(names)

    def write(self, ctx: Values, iteration: Values, local: Values) -> None:
        """Apply what a rule or `set` writes, so that later templates see it."""
        for path, value in ctx.items():
            put(self.ctx, path, value)
            self.ctx_writes[path] = mask(value) if self.scope.tainted else value
        for path, value in iteration.items():
            put(self.iter, path, value)
        if self.scope.tainted:
            # A secret may have been written; from here on these are looked at as if.
            self.scope.tainted |= {"ctx", "iter", *local}
        for name, value in local.items():
            self.local[name] = value
            self.scope.roots[name] = value

    def progress(self) -> Progress:
        """Where it stands, for whoever goes on."""
        own = {key: value for key, value in self.iter.items() if key != "parent"}
        secretive = bool(self.scope.tainted)
        return Progress(
            position=self.position,
            attempt=self.attempt,
            page=self.page,
            jumps=self.jumps,
            iter=_masked(own) if secretive else own,
            local=_masked(self.local) if secretive else dict(self.local),
            results=dict(self.stored),
            previous=self.stored_previous,
        )


def _masked(values: Values) -> Values:
    """The values as they may be recorded."""
    shown = mask(values)
    assert isinstance(shown, dict)
    return shown
