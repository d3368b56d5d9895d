"""The net as the language page describes it, in the plainest way: no events, no ids, no speed.

Written from the page alone, so that the engine has something to disagree with. It knows tokens,
admission, joins, routing, failure arcs, failure modes, pipelines, quotas and what tasks and
executions promise to yield; calls are answered by the test.

A step is `{tasks, join, mode, arcs, rules, deny, ignore, best_effort, quotas}`, a task `{promises,
retries}`, an arc `{to, when, turns, delay, dedupe, partition}`, an event rule on `step.exit` `{to,
when}`. Keys of tokens are the flag of the step that they come from. What `promises` (a task, or an
execution for its last step) has to raise the flag. `retries` repeats once what is worth it.
`quotas` bound what the calls of a run use together, and those of the execution.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

Steps = dict[str, dict[str, Any]]


class Token(NamedTuple):
    """A token, and every run it descends from."""

    number: int
    step: str
    arc: tuple[str, int] | None
    past: frozenset[tuple[str, int]]
    key: bool | None = None
    """On an arc that partitions its tokens."""


class Used(NamedTuple):
    """What calls have used, or what they may use."""

    calls: float = 0
    bytes: float = 0
    seconds: float = 0

    def plus(self, other: Used) -> Used:
        return Used(*(mine + its for mine, its in zip(self, other, strict=True)))

    def exceeds(self, quotas: Used) -> bool:
        return any(mine > bound for mine, bound in zip(self, quotas, strict=True))


UNBOUNDED = Used(math.inf, math.inf, math.inf)


class Place(NamedTuple):
    """How far a run has come in its pipeline."""

    task: int = 0
    attempt: int = 1


def ruled(spec: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """The ways out that rules are, numbered from -1 down."""
    return [(-1 - index, rule) for index, rule in enumerate(spec["rules"])]


class Reference:
    """One execution of a net."""

    def __init__(self, steps: Steps, *, quotas: Used = UNBOUNDED, promises: bool = False) -> None:
        self.steps = steps
        self.quotas = quotas
        self.promises = promises
        self.used: dict[tuple[str, int], Used] = {}
        """What calls have used, by run."""
        self.places: dict[tuple[str, int], Place] = {}
        """Where runs are in their pipelines."""
        self.failures: list[tuple[str, str]] = []
        """The steps whose runs failed, and with what kind of error."""
        self.last = ""
        """The step that ended last."""
        self.tokens: list[Token] = []
        self.delayed: list[Token] = []
        self.open: dict[tuple[str, int], frozenset[tuple[str, int]]] = {}
        """Runs under way, by step and number, with what they descend from."""
        self.runs: dict[str, int] = dict.fromkeys(steps, 0)
        self.flags: dict[str, bool] = {}
        self.turns: dict[tuple[str, int], int] = {}
        self.carried: set[tuple[str, int, bool]] = set()
        """The keys that arcs with `dedupe` have carried."""
        self.keys: dict[tuple[str, int], bool | None] = {}
        """The partitions of runs."""
        self.arrived = 0
        self.status = "RUNNING"
        self.failing = False
        self._ended: list[tuple[str, frozenset[tuple[str, int]], bool]] = []
        self._reach = {step: self._reachable_from(step) for step in steps}

    def _reachable_from(self, step: str) -> set[str]:
        found: set[str] = set()
        pending = [step]
        while pending:
            spec = self.steps[pending.pop()]
            for way in [*spec["arcs"], *spec["rules"]]:
                if way["to"] not in found:
                    found.add(way["to"])
                    pending.append(way["to"])
        return found

    # --- What happens ---

    def start(self, entry: str) -> None:
        self._place(entry, None, frozenset(), delayed=False)
        self._settle()

    def begin(self, step: str, number: int) -> None:
        """A run makes the next call of its pipeline. One beyond a quota fails it instead."""
        self._use((step, number), Used(calls=1))

    def end(
        self, step: str, number: int, *, error: str, flag: bool, size: int, seconds: float
    ) -> None:
        """The call under way has ended. With that its run says which call is next, if any is."""
        run, spec = (step, number), self.steps[step]
        place = self.places.get(run, Place())
        task, last = spec["tasks"][place.task], len(spec["tasks"]) - 1
        then = None if error or place.task == last else Place(place.task + 1)
        if error and task["retries"] and place.attempt == 1:
            then = Place(place.task, attempt=2)
        if not error and task["promises"] and not flag:
            error, then = "schema", None
        used = Used(calls=then is not None, bytes=0 if error else size, seconds=seconds)
        if not self._use(run, used):
            return
        if then is None:
            self._finish(run, error=error, flag=flag)
        else:
            self.places[run] = then

    def _use(self, run: tuple[str, int], more: Used) -> bool:
        """Count this; whether the run may go on. What uses nothing exceeds nothing."""
        if more == Used():
            return True
        self.used[run] = self.used.get(run, Used()).plus(more)
        own = self.steps[run[0]].get("quotas", UNBOUNDED)
        everything = functools.reduce(Used.plus, self.used.values())
        if self.used[run].exceeds(own) or everything.exceeds(self.quotas):
            self._finish(run, error="quota", flag=False)
            return False
        return True

    def _finish(self, run: tuple[str, int], *, error: str, flag: bool) -> None:
        past = self.open.pop(run)
        self.last = run[0]
        if error:
            self.failures.append((run[0], error))
        else:
            self.flags[run[0]] = flag
        self._ended.append((run[0], past, not error))
        self._settle()

    def wake(self, index: int) -> None:
        """The moment of a delayed token has come."""
        token = self.delayed.pop(index)
        self.tokens = sorted([*self.tokens, token])
        self._settle()

    # --- What follows ---

    def _settle(self) -> None:
        while self.status == "RUNNING":
            if self._ended:
                self._route(*self._ended.pop(0))
            elif self.failing or not (self._fire_one() or self._release()):
                break
        if not (self.tokens or self.delayed or self.open):
            broken = self.promises and not self.flags.get(self.last, False)
            self.status = "FAILED" if self.failing or broken else "COMPLETED"

    def _place(
        self,
        step: str,
        arc: tuple[str, int] | None,
        past: frozenset[Any],
        *,
        delayed: bool,
        key: bool | None = None,
    ) -> None:
        self.arrived += 1
        token = Token(self.arrived, step, arc, past, key)
        (self.delayed if delayed else self.tokens).append(token)

    def _route(self, step: str, past: frozenset[Any], ok: bool) -> None:
        if self.failing:
            return  # nothing new while an execution fails
        spec = self.steps[step]
        if self._follow_a_rule(step, past, ok=ok):
            return
        chosen = []
        for index, arc in enumerate(spec["arcs"]):
            if self._holds(step, index, arc, ok=ok):
                chosen.append((index, arc))
                if spec["mode"] == "exclusive":
                    break
        for index, arc in chosen:
            if arc["turns"]:
                self.turns[step, index] = self.turns.get((step, index), 0) + 1
            flag = self.flags.get(step, False)
            if arc.get("dedupe"):
                if (step, index, flag) in self.carried:
                    continue
                self.carried.add((step, index, flag))
            key = flag if arc.get("partition") else None
            self._place(arc["to"], (step, index), past, delayed=arc["delay"], key=key)
        if not ok and not spec["ignore"] and not chosen:
            self.failing = True
            self.tokens, self.delayed = [], []
            if not spec["best_effort"]:
                self.open, self._ended = {}, []

    def _follow_a_rule(self, step: str, past: frozenset[Any], *, ok: bool) -> bool:
        """The first rule that holds sends the token in place of all arcs, and handles a failure."""
        for index, rule in enumerate(self.steps[step]["rules"]):
            flag = ok and self.steps[step]["tasks"] and self.flags[step]
            if {"always": ok, "flag": flag, "error": not ok}[rule["when"]]:
                self._place(rule["to"], (step, -1 - index), past, delayed=False)
                return True
        return False

    def _holds(self, step: str, index: int, arc: dict[str, Any], *, ok: bool) -> bool:
        if not ok and not self.steps[step]["ignore"] and arc["when"] != "error":
            return False
        if arc["turns"] and self.turns.get((step, index), 0) >= arc["turns"]:
            return False
        flag = self.flags.get(step, False)
        return {
            "always": True,
            "never": False,
            "flag": flag,
            "not flag": not flag,
            "error": not ok,
        }[arc["when"]]

    # --- Joins ---

    def _awaited(self, step: str) -> set[str]:
        """Other steps with something alive from which a token could still come here."""
        alive = {token.step for token in [*self.tokens, *self.delayed]}
        alive |= {name for name, _ in self.open}
        return {other for other in alive if other != step and step in self._reach[other]}

    def _more_may_come(self, step: str) -> bool:
        return bool(self._awaited(step)) or any(token.step == step for token in self.delayed)

    def _fire_one(self) -> bool:
        """Let the oldest token that can go, go, with whoever goes with it."""
        for token in self.tokens:
            step = token.step
            here = [other for other in self.tokens if other.step == step]
            if self._is_late(token):
                self.tokens.remove(token)
                return True
            if not self._is_next(token):
                continue
            here = [other for other in here if not self._is_late(other) and self._is_next(other)]
            group = self._group(step, here, more=self._more_may_come(step))
            if token in group:
                self._run(step, group)
                return True
        return False

    def _is_next(self, token: Token) -> bool:
        """Whether no run and no earlier token of its partition goes before it."""
        if token.key is None:
            return True
        same = (token.step, token.key)
        runs = {(run[0], self.keys[run]) for run in self.open}
        earlier = [(one.step, one.key) for one in self.tokens if one.number < token.number]
        return same not in runs and same not in earlier

    def _is_late(self, token: Token) -> bool:
        """`any` and `{n: k}` have run without it, and it does not come from that run."""
        step = token.step
        absorbs = self.steps[step]["join"] == "any" or isinstance(self.steps[step]["join"], int)
        return absorbs and self.runs[step] > 0 and (step, self.runs[step]) not in token.past

    def _group(self, step: str, here: list[Token], *, more: bool) -> list[Token]:
        join = self.steps[step]["join"]
        if join in ("each", "any"):
            return here[:1]
        if isinstance(join, int):
            return here[:join] if len(here) >= join or not more else []
        if join == "all":
            firsts = {token.arc: token for token in reversed(here)}
            arcs = {
                (name, index)
                for name, spec in self.steps.items()
                for index, arc in [*enumerate(spec["arcs"]), *ruled(spec)]
                if arc["to"] == step
            }
            return list(firsts.values()) if not more or arcs <= firsts.keys() else []
        return [] if more else here

    def _release(self) -> bool:
        """Steps that wait for each other, and for nothing that moves: the oldest goes."""
        moving = {name for name, _ in self.open} | {token.step for token in self.delayed}
        for token in filter(self._is_next, self.tokens):
            step = token.step
            awaited = self._awaited(step)
            if step in {delayed.step for delayed in self.delayed} or awaited & moving:
                continue
            if all(other in self._reach[step] for other in awaited):
                here = [one for one in self.tokens if one.step == step and self._is_next(one)]
                self._run(step, self._group(step, here, more=False))
                return True
        return False

    def _run(self, step: str, group: list[Token]) -> None:
        self.tokens = [token for token in self.tokens if token not in group]
        if self.steps[step]["deny"]:
            return
        self.runs[step] += 1
        run = (step, self.runs[step])
        self.keys[run] = group[0].key
        past = frozenset().union(*(token.past for token in group)) | {run}
        if self.steps[step]["tasks"]:
            self.open[run] = past
        else:
            self.last = step
            self._ended.append((step, past, True))
