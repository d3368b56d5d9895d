"""Why a step ran, or why it did not: told from the log, with guards evaluated once more.

`Witness` is given every fact of an execution up to the moment that is asked about, and keeps what
could be read when each step ended or was entered. `explained` then asks the guards again: templates
are pure and take the time from the fact, so they give what they gave then.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from noetl.engine.entry import args_and_scope, judge_admission
from noetl.engine.evolve import evolve
from noetl.engine.program import ArcProgram, Program
from noetl.engine.routing import ending_scope, judge_arcs
from noetl.engine.turn import Turn
from noetl.errors import EvaluationFailed
from noetl.model.events import (
    Event,
    StepDone,
    StepFailed,
    StepScheduled,
    StepSkipped,
    TokenConsumed,
    TokenCreated,
)
from noetl.model.ids import ExecutionId, StepRunId, TokenId
from noetl.model.retrospect import (
    ConditionDocument,
    PlacedTokenDocument,
    ReadDocument,
    StepWhyDocument,
)
from noetl.model.state import ExecutionState, Run, Token
from noetl.templates import Condition, Scope, compile_text, mask

VALUE_MAX = 1000
"""Bytes of a value that is answered whole."""
TEXT_MAX = 120
DEPTH_MAX = 20
"""Steps that are followed back to the one whose end decided."""
READS_MAX = 20
BEFORE = "in the execution that this one continues"
"""Of a fork, or a rerun from a step: what it took over is not in its log."""


class Ended(msgspec.Struct, kw_only=True):
    """The end of a step run, and what its guards could read."""

    seq: int
    fact: StepDone | StepFailed
    run: Run
    state: ExecutionState


class Entered(msgspec.Struct, kw_only=True):
    """A run that began, or that admission denied."""

    seq: int
    fact: StepScheduled | StepSkipped
    tokens: list[tuple[int, Token]]
    """Each with the event that placed it."""
    sources: dict[TokenId, Ended | None]
    state: ExecutionState
    skipped: str | None = None
    """Why a rule ended the run as skipped."""


class Witness(msgspec.Struct, kw_only=True):
    """What is kept of a log while it is folded, to answer for one step."""

    step: str
    near: frozenset[str]
    """The steps whose ends may decide about it, as `near` finds them."""
    state: ExecutionState = msgspec.field(default_factory=ExecutionState)
    seq: int = 0
    ends: dict[str, Ended] = {}
    """The last end of each of those steps."""
    entered: Entered | None = None
    """The last time that a run of the step began or was denied."""
    _of_run: dict[StepRunId, Ended] = {}
    _placed: dict[TokenId, tuple[int, TokenCreated]] = {}
    _taken: dict[StepRunId, list[tuple[int, Token]]] = {}
    _kept_max: int = 1000

    def see(self, seq: int, fact: Event) -> None:
        """Fold the next fact."""
        self.seq = seq
        match fact:
            case StepDone() | StepFailed() if fact.step in self.near:
                run = self.state.runs[fact.step_run_id]
                evolve(self.state, fact)
                ended = Ended(seq=seq, fact=fact, run=run, state=seen_of(self.state))
                self.ends[fact.step] = self._of_run[fact.step_run_id] = ended
                return
            case TokenCreated(step=self.step):
                self._placed[fact.token_id] = (seq, fact)
            case TokenConsumed() if fact.token_id in self._placed:
                placed, _ = self._placed[fact.token_id]
                taken = self._taken.setdefault(fact.step_run_id, [])
                taken.append((placed, self.state.tokens[fact.token_id]))
            case StepScheduled(step=self.step) | StepSkipped(step=self.step):
                self._enter(seq, fact)
            case _:
                pass
        evolve(self.state, fact)
        self._forget()

    def _enter(self, seq: int, fact: StepScheduled | StepSkipped) -> None:
        tokens = self._taken.get(fact.step_run_id, [])
        if isinstance(fact, StepSkipped) and fact.step_run_id in self.state.runs:
            # A rule ended a run that is known already.
            if self.entered is not None and self.entered.fact.step_run_id == fact.step_run_id:
                self.entered.skipped = fact.reason
            return
        sources: dict[TokenId, Ended | None] = {}
        for _, token in tokens:
            sent = self._placed[token.token_id][1]
            sources[token.token_id] = self._of_run.get(sent.source or "")
        self.entered = Entered(
            seq=seq, fact=fact, tokens=tokens, sources=sources, state=seen_of(self.state)
        )

    def _forget(self) -> None:
        """Keep the ends whose tokens may still arrive at the step, and no others."""
        if len(self._of_run) > self._kept_max:
            needed = {fact.source for _, fact in self._placed.values()}
            recent = {one.fact.step_run_id for one in self.ends.values()}
            self._of_run = {k: v for k, v in self._of_run.items() if k in needed | recent}
            alive = self.state.tokens.keys()
            self._placed = {k: v for k, v in self._placed.items() if k in alive}
            self._taken.clear()
            self._kept_max = max(self._kept_max, 2 * len(self._of_run))


def near(program: Program, step: str) -> frozenset[str]:
    """The steps from which a token may come to it, at most `DEPTH_MAX` steps away."""
    found = last = frozenset({step})
    for _ in range(DEPTH_MAX):
        last = frozenset(
            name
            for name, source in program.steps.items()
            if name not in found and any(way is None or way in last for _, way in source.ways)
        )
        found |= last
    return found


def seen_of(state: ExecutionState) -> ExecutionState:
    """What templates can read of a state, as it is now: the state itself goes on changing."""
    return ExecutionState(
        status=state.status,
        seal=state.seal,
        started_at=state.started_at,
        workload=state.workload,
        ctx=dict(state.ctx),
        vars=dict(state.vars),
        results=dict(state.results),
    )


# --- The answer --------------------------------------------------------------------------------


def explained(
    program: Program, execution_id: ExecutionId, witness: Witness, bodies: Mapping[str, Any]
) -> StepWhyDocument:
    """Why the step ran up to the moment that the witness has seen, or why it did not. `bodies` are
    the large results that its guards read, by the key of their reference.
    """
    return _Inquiry(program, execution_id, witness, bodies).answer()


class _Inquiry(NamedTuple):
    """A question about one step, and all that it takes to answer it."""

    program: Program
    execution_id: ExecutionId
    witness: Witness
    bodies: Mapping[str, Any]

    def answer(self) -> StepWhyDocument:
        witness = self.witness
        entered = witness.entered
        if entered is not None and isinstance(entered.fact, StepScheduled):
            return self._ran(entered, entered.fact)
        if entered is not None:
            return self._denied(entered)
        waiting = [token for token in witness.state.tokens.values() if token.step == witness.step]
        if waiting:
            is_delayed = any(token.ready_at is not None for token in waiting)
            why = "a token waits there until no other can arrive"
            why = "its token is delayed" if is_delayed else why
            return self._document("waiting", f"has not run yet: {why}")
        summary = witness.state.steps.get(witness.step)
        if summary is not None:
            ran = summary.status in ("done", "failed")
            verb, outcome = ("ran", "ran") if ran else (f"was {summary.status}", summary.status)
            return self._document(outcome, f"{verb} {BEFORE}")
        conditions, why = self._not_reached(witness.step, {witness.step})
        return self._document("not_run", f"did not run: {why}", conditions=conditions)

    def _document(self, outcome: Any, text: str, **more: Any) -> StepWhyDocument:
        step = self.witness.step
        return StepWhyDocument(
            step=step,
            at_seq=self.witness.seq,
            outcome=outcome,
            text=f"`{step}` {text}.",
            **more,
        )

    def _ran(self, entered: Entered, fact: StepScheduled) -> StepWhyDocument:
        conditions: list[ConditionDocument] = []
        reasons: list[str] = []
        for _, token in entered.tokens:
            source = entered.sources[token.token_id]
            if source is None:
                reasons.append(f"over {token.arc}" if token.arc else "the execution begins there")
                continue
            name = source.fact.step
            mine = next((one for one in self._judged(source) if one.arc == token.arc), None)
            if mine is None:
                reasons.append(f"token from `{name}`, whose event rules sent it there")
                continue
            conditions.append(mine)
            reasons.append(f"token from `{name}` over arc {_number(token.arc)}{_held(mine)}")
        if fact.handles_failure:
            reasons.append("the execution failed, and this runs when it does")
        if fact.compensates is not None:
            ended = "was cancelled" if self.witness.state.cancelling else "failed"
            reasons.append(f"the execution {ended}, and this undoes what was done")
        admission = self._admission(entered)
        reasons += [f"admitted{_held(one)}" for one in admission if one.verdict == "allow"]
        state = self.witness.state
        outcome = "cancelled" if state.steps[fact.step].status == "cancelled" else "ran"
        if fact.step_run_id in state.runs:
            outcome = "running"
        verb = "runs" if outcome == "running" else "ran"
        if entered.skipped is not None:
            outcome, verb = "skipped", "began"
            reasons.append(f"then it was skipped: {entered.skipped}")
        number = f" (run {fact.number})" if fact.number > 1 else ""
        return self._document(
            outcome,
            f"{verb}{number}: {'; '.join(reasons) or 'it was asked for'}",
            run=fact.number,
            seq=entered.seq,
            tokens=_tokens(entered),
            conditions=conditions + admission,
        )

    def _denied(self, entered: Entered) -> StepWhyDocument:
        admission = self._admission(entered)
        denied = next((one for one in admission if one.verdict == "deny"), None)
        if denied is not None:
            why = f"a rule of admission denied it{_held(denied)}"
        else:
            said = "; ".join(_said(one, "rule") for one in admission)
            why = f"no rule of admission allowed it{': ' + said if said else ''}"
        return self._document(
            "skipped",
            f"was skipped: {why}",
            seq=entered.seq,
            tokens=_tokens(entered),
            conditions=admission,
        )

    def _not_reached(self, step: str, seen: set[str]) -> tuple[list[ConditionDocument], str]:
        """Which guards kept tokens from the step, and the reason in words."""
        program, witness = self.program, self.witness
        sources = [
            name
            for name, source in program.steps.items()
            if any(way is None or way == step for _, way in source.ways)
        ]
        if not sources:
            return [], "no arc leads to it" if step != program.net.entry else "nothing has begun"
        conditions: list[ConditionDocument] = []
        reasons: list[str] = []
        for name in sources:
            ended = witness.ends.get(name)
            if ended is None:
                continue
            asked = self._judged(ended)
            mine = [one for one in asked if one.target == step]
            conditions += mine
            if ended.run.next is not None and not mine:
                reasons.append(f"event rules of `{name}` sent its tokens elsewhere")
            reasons += [_why_not(one, asked, name, step, witness.step) for one in mine]
        if reasons:
            return conditions, "; ".join(reasons)
        state = witness.state
        alive = {run.step for run in state.runs.values()}
        alive |= {token.step for token in state.tokens.values()}
        ahead = [name for name in sources if name in alive]
        if ahead:
            return [], f"`{ahead[0]}` before it has not ended yet"
        ended_here = [name for name in sources if name in witness.ends]
        if ended_here:
            return [], f"`{ended_here[0]}` sent no token there when it ended"
        before = next((name for name in sources if name not in seen), None)
        if before is None or len(seen) >= DEPTH_MAX:
            return [], f"`{sources[0]}` before it did not run"
        summary = state.steps.get(before)
        if summary is not None and summary.status in ("skipped", "cancelled"):
            return [], f"`{before}` before it was {summary.status}"
        if summary is not None:
            return [], f"`{before}` ran {BEFORE}, and no token of it came here"
        conditions, why = self._not_reached(before, {*seen, *sources})
        return conditions, f"`{before}` before it did not run: {why}"

    # --- Asking the guards again ---

    def _turn(self, state: ExecutionState, at: float) -> Turn:
        return Turn(
            state=state,
            program=self.program,
            execution_id=self.execution_id,
            at=at,
            bodies=self.bodies,
        )

    def _judged(self, ended: Ended) -> list[ConditionDocument]:
        """Every arc of a step that ended, in the order in which they were asked."""
        fact = ended.fact
        compiled = self.program.steps[fact.step]
        error = fact.error if isinstance(fact, StepFailed) else None
        failed = error is not None and compiled.step.on_error != "ignore"
        turn = self._turn(ended.state, fact.at)
        turn.ended[fact.step_run_id] = ended.run
        if ended.run.next is not None:
            return []
        try:
            scope = ending_scope(turn, fact, error)
        except EvaluationFailed as failure:
            return [
                _condition(ended, arc, None, "error", error=str(failure)) for arc in compiled.arcs
            ]
        found: list[ConditionDocument] = []
        try:
            for arc, verdict in judge_arcs(compiled, scope, failed=failed):
                seen = scope if verdict in ("fired", "false") else None
                found.append(_condition(ended, arc, seen, verdict))
        except EvaluationFailed as failure:
            broken, *others = compiled.arcs[len(found) :]
            found.append(_condition(ended, broken, scope, "error", error=str(failure)))
            found += [_condition(ended, arc, None, "not_asked") for arc in others]
        return found

    def _admission(self, entered: Entered) -> list[ConditionDocument]:
        """The rules of admission, up to the one that decided; where all have a say, all of them."""
        fact = entered.fact
        compiled = self.program.steps[fact.step]
        found: list[ConditionDocument] = []

        def add(verdict: Any, reads: Iterable[ReadDocument] = (), error: str = "") -> None:
            """What the next rule said."""
            guard = compiled.step.admit[len(found)].when
            found.append(
                ConditionDocument(
                    source=fact.step,
                    target=fact.step,
                    guard=None if guard is None else str(guard),
                    verdict=verdict,
                    seq=entered.seq,
                    reads=list(reads),
                    error=error,
                )
            )

        if not compiled.admit or not entered.tokens:
            return found
        turn = self._turn(entered.state, fact.at)
        tokens = [token for _, token in entered.tokens]
        try:
            _, scope = args_and_scope(turn, compiled, fact.step_run_id, tokens)
            for rule, holds in judge_admission(compiled, scope):
                verdict = ("allow" if rule.allow else "deny") if holds else "false"
                add(verdict, _reads(rule.when, scope) if rule.when is not None else ())
        except EvaluationFailed as failure:
            add("error", error=str(failure))
        return found


def _tokens(entered: Entered) -> list[PlacedTokenDocument]:
    found = []
    for seq, token in entered.tokens:
        source = entered.sources[token.token_id]
        name = source.fact.step if source is not None else ""
        found.append(
            PlacedTokenDocument(token_id=token.token_id, seq=seq, source=name, arc=token.arc)
        )
    return found


def _why_not(
    one: ConditionDocument, asked: list[ConditionDocument], source: str, step: str, about: str
) -> str:
    match one.verdict:
        case "not_asked":
            winner = next((other for other in asked if other.verdict == "fired"), None)
            taken = f"to `{winner.target}`{_held(winner)}" if winner is not None else "before it"
            return f"`{source}` takes one arc, and took the one {taken}"
        case "not_for_failures":
            return f"`{source}` failed, and its arc reads neither `event` nor `error`"
        case "error":
            return f"its guard {_quoted(one.guard)} could not be evaluated: {one.error}"
        case "fired":
            return f"the arc from `{source}` fired, but nothing was started any more"
        case _:
            whose = "its guard" if step == about else f"the guard of its arc from `{source}`"
            return _said(one, whose)


def _said(one: ConditionDocument, whose: str) -> str:
    undefined = [read for read in one.reads if not read.defined]
    if undefined:
        names = ", ".join(
            f"`{read.name}`" + (f" (did you mean `{read.meant}`?)" if read.meant else "")
            for read in undefined
        )
        return f"{whose} {_quoted(one.guard)} read what is undefined: {names}"
    return f"{whose} {_quoted(one.guard)} was false{_values(one)}"


def _held(one: ConditionDocument) -> str:
    if one.guard is None:
        return ""
    return f"; guard {_quoted(one.guard)} was true{_values(one)}"


def _values(one: ConditionDocument) -> str:
    shown = [f"`{read.name}` = {read.text}" for read in one.reads if read.defined]
    return f", {', '.join(shown)}" if shown else ""


def _quoted(guard: str | None) -> str:
    if guard is None:
        return ""
    text = guard.strip()
    if text.startswith("{{") and text.endswith("}}") and text.count("{{") == 1:
        text = text[2:-2].strip()
    return f"`{_short(text)}`"


def _number(arc: str) -> str:
    """Arcs count from 1 for people."""
    _, _, index = arc.rpartition("#")
    return str(int(index) + 1) if index.isdecimal() else arc


def _condition(
    ended: Ended, arc: ArcProgram, scope: Scope | None, verdict: Any, error: str = ""
) -> ConditionDocument:
    guard = arc.arc.when
    reads = list(_reads(arc.guard, scope)) if arc.guard is not None and scope is not None else []
    target = arc.arc.step
    if scope is not None and not arc.step.is_literal:
        try:
            target = str(arc.step.render(scope))
        except EvaluationFailed as failure:
            error = error or str(failure)
    return ConditionDocument(
        source=ended.fact.step,
        target=target,
        arc=arc.label,
        guard=None if guard is None else str(guard),
        verdict=verdict,
        seq=ended.seq,
        reads=reads,
        error=error,
    )


def _reads(condition: Condition, scope: Scope) -> Iterator[ReadDocument]:
    """What the condition read, with the values of then."""
    template = condition.template
    if template is None:
        return
    missing = condition.undefined(scope)
    for name, meant in list(missing.items())[:READS_MAX]:
        yield ReadDocument(name=name, defined=False, meant=meant)
    for path in sorted(template.reads)[:READS_MAX]:
        name = ".".join(path)
        if any(one == name or one.startswith((f"{name}.", f"{name}[")) for one in missing):
            continue  # said already; of a longer path that is missing, the beginning says less
        keys = "".join(f"[{json.dumps(key)}]" for key in path[1:])
        try:
            value = compile_text("{{ " + path[0] + keys + " }}").evaluate(scope)
        except EvaluationFailed:
            yield ReadDocument(name=name, defined=False)
            continue
        yield _read(name, msgspec.to_builtins(mask(value), enc_hook=str))


def _read(name: str, value: Any) -> ReadDocument:
    text = json.dumps(value, ensure_ascii=False, default=str)
    if len(text) <= VALUE_MAX:
        return ReadDocument(name=name, value=value, text=_short(text))
    return ReadDocument(name=name, text=_short(text))


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"
