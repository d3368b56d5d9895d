"""Random whole playbooks, with everything that steps can have. Every one of them comes to an end,
if somebody says `go` to what waits.
"""

from __future__ import annotations

import json
import random
from typing import Any, TypeVar

T = TypeVar("T")
Values = dict[str, Any]
FAILED = "{{ outcome.status == 'error' }}"
OUTCOMES: tuple[Values, ...] = (
    *({},) * 6,
    {"fails": 1},
    {"fails": 2},
    {"fails": 99},
    {"breaks": True},
    {"hangs": 1},
)
LARGE = {"flag": True, "text": "{{ 'x' | center(70000) }}"}
"""It is kept beside the log, and templates that read it fetch it."""
VALUES = (
    1,
    LARGE,
    [1, 2],
    {"flag": True},
    {"flag": False},
    "{{ args.a | default(0) }}",
    "{{ workload.n + 1 }}",
    "{{ _prev | default(7) }}",
)
GUARDS = (
    "error",
    "event.name == 'step.failed'",
    "ctx.c | default(0)",
    "event.data.flag | default(0)",
)
FLAGGED = {"type": "object", "required": ["flag"]}


class Maker:
    """A playbook and its sub-playbooks. `steady`: their outcome does not depend on when things
    happen."""

    def __init__(self, seed: int, *, steady: bool = False) -> None:
        self._dice = random.Random(seed)
        self._steady = steady
        self._count = 0
        self.children: list[str] = []
        self.text = json.dumps(self._playbook("fuzz/root", 0), indent=1)

    def _is(self, chance: float) -> bool:
        return self._dice.random() < chance

    def _one(self, *of: T) -> T:
        return self._dice.choice(of)

    def _name(self) -> str:
        self._count += 1
        return f"x{self._count}"

    def _playbook(self, path: str, depth: int) -> Values:
        count = self._dice.randint(1, 3 if depth else 5)
        names = [*(f"s{index}" for index in range(count)), "end"][: count + self._one(0, 1)]
        entries = {"entry": self._entry(path, depth, [])} if self._is(0.3) else {}
        if entries and self._is(0.5):
            entries["outer"] = self._entry(path, depth, ["entry"])
        undo = ["undo", *entries] if self._is(0.25) and not self._steady else []
        steps = [
            self._step(names, index, path, depth, list(entries), undo)
            for index in range(len(names))
        ]
        policy: Values = {}
        spec: Values = {"policy": policy}
        if undo:
            steps.append({"step": "undo", "tool": self._effect() | {"fails": self._one(0, 1, 9)}})
            policy["compensate_on"] = self._one(["failure"], ["failure", "cancel"])
        if self._is(0.1):
            steps.append({"step": "handler", "tool": self._effect()})
            spec["on_failure"] = "handler"
        if self._is(0.1) and not self._steady:
            policy["quotas"] = self._quotas()
        if self._is(0.05):
            spec["result"] = {"schema": FLAGGED}
        if self._is(0.05):
            spec["no_next_is_error"] = True
        return {
            "apiVersion": "noetl.io/v2",
            "kind": "Playbook",
            "metadata": {"name": "made", "path": path},
            "workload": {"n": 3},
            "executor": {"spec": spec},
            "workflow": steps,
            **({"workbook": entries} if entries else {}),
        }

    def _entry(self, path: str, depth: int, inner: list[str]) -> Values:
        loop = {"in": [1, 2], "iterator": "y"}
        tasks = self._pipeline(path, depth, inner)
        return {"tool": tasks, **({"loop": loop} if self._is(0.4) else {})}

    def _quotas(self) -> Values:
        return self._one({"max_calls": 9}, {"max_bytes": 300}, {"max_seconds": 9})

    # --- Tasks ---

    def _effect(self) -> Values:
        made: Values = {"kind": "effect", "value": self._one(*VALUES), **self._one(*OUTCOMES)}
        if self._is(0.5):
            made["takes"] = self._one(0.1, 1, 4)
        if made.get("hangs"):
            made["spec"] = {"timeout": self._one(1, 4)}
        return made

    def _plain(self) -> Values:
        return self._effect() if self._is(0.8) else {"kind": "noop"}

    def _pipeline(self, path: str, depth: int, entries: list[str]) -> list[Values]:
        names = [f"t{index}" for index in range(self._one(1, 1, 2, 3))]
        tasks = [self._task(names, index, path, depth, entries) for index in range(len(names))]
        if self._is(0.15):
            tasks.insert(self._one(0, len(tasks)), self._sugar())
        return tasks

    def _sugar(self) -> Values:
        """Tasks in a branch, or in a circle."""
        name = self._name()
        tasks = [{"name": f"{name}_{index}", **self._plain()} for index in range(self._one(1, 2))]
        counter = f"iter.{name}"
        tasks[0]["set"] = {counter: f"{{{{ ({counter} | default(0)) + 1 }}}}"}
        turns = {"max": self._one(2, 5), "do": tasks}
        branch = {"when": f"{{{{ {self._one(*GUARDS[2:])} }}}}", "do": tasks}
        otherwise = {"else": [{"name": f"{name}_else", **self._plain()}]}
        return self._one(
            {"choose": [branch, otherwise]},
            {"choose": [branch]},
            {"while": {"when": f"{{{{ ({counter} | default(0)) < 2 }}}}", **turns}},
            {"until": {"when": f"{{{{ {counter} >= 2 }}}}", **turns}},
        )

    def _task(
        self, names: list[str], index: int, path: str, depth: int, entries: list[str]
    ) -> Values:
        kind = self._dice.random()
        if kind < 0.1 and depth < 2:
            task: Values = {"kind": "playbook", "path": f"{path}/{self._name()}"}
            self.children.append(json.dumps(self._playbook(task["path"], depth + 1), indent=1))
            if self._is(0.2) and not self._steady:
                task["spec"] = {"timeout": self._one(2, 10)}
            if self._is(0.2):
                task["return_step"] = "s0"
        elif kind < 0.2 and entries:
            task = {"kind": "workbook", "task": self._one(*entries)}
        else:
            task = self._plain()
        task["name"] = names[index]
        if self._is(0.25):
            rules = [self._rule(names, index) for _ in range(self._one(1, 2))]
            if self._is(0.3):
                rules.append({"else": {"then": {"do": self._one("continue", "fail", "break")}}})
            task.setdefault("spec", {})["policy"] = {"rules": rules}
        elif self._is(0.2):
            task["retry"] = self._retry()
        if self._is(0.1) and task["kind"] == "effect":
            bound = self._one({"max_attempts": 3}, {} if self._steady else {"deadline": 25})
            until = self._one("{{ _retry.index >= 1 }}", "{{ _retry.index >= 2 }}")
            task["poll"] = {"until": until, "interval": self._one(0.5, 8), **bound}
        if self._is(0.1):
            policy = task.setdefault("spec", {}).setdefault("policy", {})
            hook = self._one("before", "after", "finally")
            policy[hook] = [{"name": f"{names[index]}_hook", **self._plain()}]
        if self._is(0.15):
            task["set"] = self._one({"ctx.c": "{{ result }}"}, {"iter.k": 1}, {"ctx.d": 1})
        if self._is(0.05):
            task["output"] = {"schema": FLAGGED}
        elif self._is(0.05):
            task["output"] = {"select": ["flag"]}
        return task

    def _delay(self) -> float:
        return self._one(0, 0, 1, 7, 30)

    def _rule(self, names: list[str], index: int) -> Values:
        counter = f"(iter.j{index} | default(0))"
        again = {"do": "retry", "attempts": self._one(2, 3), "delay": self._delay()}
        back = {
            "do": "jump",
            "to": self._one(*names),
            "set_iter": {f"j{index}": f"{{{{ {counter} + 1 }}}}"},
        }
        return self._one(
            {"when": FAILED, "then": again},
            {"when": FAILED, "then": {"do": self._one("continue", "break", "fail")}},
            {"when": f"{{{{ {counter} < 2 }}}}", "then": back},
            {"when": "{{ true }}", "then": {"do": "continue", "set_ctx": {"c": 9}}},
        )

    def _retry(self) -> Any:
        pages = {"next_call": {"value": "{{ _retry.index }}"}, "max_attempts": 5}
        into = self._one("pages", "ctx.pages")
        kept = {"collect": {"path": "data", "into": into, "strategy": "append"}}
        stored = {"sink": {"tool": self._plain()}} if self._is(0.4) else {}
        tries = {"max_attempts": 3, "initial_delay": self._delay()}
        return self._one(
            tries,
            [
                {"when": "{{ error }}", "then": tries},
                {"when": "{{ _retry.index < 2 }}", "then": pages | kept | stored},
            ],
        )

    # --- Steps ---

    def _step(
        self,
        names: list[str],
        index: int,
        path: str,
        depth: int,
        entries: list[str],
        undo: list[str],
    ) -> Values:
        spec: Values = {}
        made: Values = {"step": names[index], "spec": spec, "next": self._next(names, index)}
        kind = self._dice.random()
        if kind < 0.12 and not self._steady:
            self._waits(made, names[index + 1 :])
        elif kind < 0.17:
            pass  # It only routes.
        else:
            made["tool"] = self._pipeline(path, depth, entries)
            if self._is(0.35):
                made["loop"] = self._loop()
            if self._is(0.3) and not ("loop" in made and self._steady):
                made["case"] = self._rules(names[index + 1 :], looped="loop" in made)
                spec["case_mode"] = self._one("exclusive", "inclusive")
                spec["next_policy"] = self._one("end_step", "break_chain", "defer")
                spec["branch_order"] = self._one("source", "priority")
            if self._is(0.1):
                made["sink"] = {"tool": self._plain()}
            if undo and self._is(0.6):
                spec["compensate"] = self._one(*undo)
            if self._is(0.1):
                spec["on_error"] = self._one("ignore", "retry")
            if self._is(0.15) and not self._steady:
                spec["timeout"] = self._one(2, 6, 40, "{{ workload.n * 2 }}")
            if self._is(0.1) and not self._steady:
                life = {"deadline_s": self._one(10, 60, 300)}
                spec.setdefault("policy", {})["lifecycle"] = life
            if self._is(0.1) and not self._steady:
                spec.setdefault("policy", {})["quotas"] = self._quotas()
            if self._is(0.15):
                made["args"] = self._one({"a": 1}, {"a": "{{ ctx.c | default(3) }}"})
                if "loop" in made and self._is(0.5):
                    made["args"] = {"a": "{{ [x, iter.index] }}"}
            if self._is(0.1):
                made["vars"] = {"kept": "{{ result }}"}
        if index and not self._steady and self._is(0.3):
            spec["join"] = self._one("each", "any", "all", {"n": 2})
        if self._is(0.1):
            spec.setdefault("policy", {})["failure"] = {"mode": "best_effort"}
        if self._is(0.1):
            rules: list[Values] = [{"when": "{{ ctx.c | default(0) }}", "then": {"allow": True}}]
            admit: Values = {"rules": rules}
            if self._is(0.5):
                rules.append({"else": {"then": {"allow": True, "set": {"a": "{{ workload.n }}"}}}})
                admit["mode"] = "inclusive"
            spec.setdefault("policy", {})["admit"] = admit
        if self._is(0.15):
            own = f"{{{{ {names[index]} | default(1) }}}}"
            made["set"] = self._one({"ctx.c": own}, {"vars.q": 1})
        return made

    def _loop(self) -> Values:
        items = self._one(
            *([], [1], [1, 2, 3], {"from": 0, "to": 7}, "{{ range(12) | list }}"),
            *({"p": 1, "q": 2}, "{{ s0.results | default([4, 5]) }}"),
        )
        mode, most, keys = self._one("parallel", "sequential"), self._dice.randint(1, 5), 2
        if self._is(0.03):  # More than a segment holds, and many at once: each may take minutes.
            items, mode, most, keys = {"from": 0, "to": 210}, "parallel", 70, 50
        policy: Values = {"reduce": {"c": self._one("append", "count", "last"), "d": "last"}}
        spec: Values = {"mode": mode, "policy": policy}
        if mode == "parallel":
            spec["max_in_flight"] = most
            if self._is(0.3):
                policy["partition"] = {"key": f"{{{{ iter.index % {keys} }}}}"}
            if self._is(0.3):
                spec["batch_size"] = 2
        if self._is(0.5) or (self._steady and mode == "parallel"):
            spec["on_error"] = "continue"
        if self._is(0.15):
            policy["exec"] = "local"
        return {"in": items, "iterator": "x", "spec": spec}

    def _rules(self, later: list[str], *, looped: bool) -> list[Values]:
        found = []
        for _ in range(self._one(1, 2)):
            event = self._one(
                "event.name == 'step.enter'",
                "event.name == 'step.exit'",
                "event.name == 'step.exit' and error",
                "event.name == 'call.done'",
                "event.name == 'call.error' and error",
                *(["event.name == 'loop.done'"] * 2 if looped else []),
            )
            is_call = "call." in event
            actions = [self._action(later, is_call=is_call) for _ in range(self._one(1, 2))]
            rule: Values = {"when": f"{{{{ {event} }}}}", "then": actions}
            if self._is(0.2):
                rule["priority"] = self._one(1, 2)
            if self._is(0.15):
                rule["retry"] = {"max_attempts": 2, "initial_delay": self._delay()}
            found.append(rule)
        if self._is(0.2):
            found.append({"else": {"then": self._action(later, is_call=True)}})
        return found

    def _action(self, later: list[str], *, is_call: bool) -> Values:
        of: list[Values] = [
            {"set": {"ctx.seen": "{{ event.name }}", "own": 1}},
            {"result": {"value": {"flag": True}}},
            {"collect": {"from": "result", "into": self._one("acc", "ctx.acc"), "mode": "append"}},
            {self._name(): {"tool": self._plain(), "retry": {"max_attempts": 2}}},
            {"sink": {"tool": self._plain()}},
            self._one({"fail": "by rule"}, {"skip": True}),
            {"call": {"value": {"flag": True}, "max_calls": self._one(1, 2, 3)}},
        ]
        if is_call:
            of.append({"retry": {"max_attempts": 2, "initial_delay": self._delay()}})
        if later:
            to = self._one(*later)
            of.append({"next": [{"step": to, "args": {"a": 2}}]})
            late = {"spec": {"delay": self._one(1, 30)}} if self._is(0.3) else {}
            of.append({"next": {"to": [f"{{{{ '{to}' }}}}"], "priority": 1, **late}})
        return self._dice.choice(of)

    def _waits(self, made: Values, later: list[str]) -> None:
        """It waits for an answer, a timer, or `go`."""
        spec = made["spec"]
        if self._is(0.3):
            spec["form"] = [{"name": "approved", "type": "boolean", "label": "?"}]
            return
        spec["eval_mode"] = "on_event"
        spec["timers"] = [{"id": "tick", "after": self._one(1, 10, 45)}]
        fired = [self._action(later, is_call=False)]
        goes_on = {"next": self._one(*later)} if later else {"result": {"value": 1}}
        made["case"] = [
            {"when": "{{ event.name == 'timer.fired' }}", "then": fired},
            {"when": "{{ event.name == 'go' }}", "then": [goes_on]},
        ]
        if self._is(0.3):
            made["tool"] = self._plain()

    def _next(self, names: list[str], index: int) -> Values:
        arcs: list[Values] = []
        if index + 1 < len(names):
            arcs.append({"step": names[index + 1]})
        for number in range(self._one(0, 0, 1, 2)):
            to = self._dice.randrange(len(names))
            conditions = [self._one(*GUARDS)] if self._is(0.6) else []
            arc: Values = {"step": names[to]}
            if to <= index:  # Only so often: everything comes to an end.
                counter = f"ctx.k{index}_{number}"
                arc["set"] = {counter: f"{{{{ ({counter} | default(0)) + 1 }}}}"}
                conditions.append(f"({counter} | default(0)) < 2")
            if conditions:
                arc["when"] = "{{ " + " and ".join(conditions) + " }}"
            if self._is(0.3):
                key = {"key": self._one("{{ workload.n }}", "{{ ctx.c | default(0) }}")}
                arc["spec"] = self._one(
                    *({"delay": delay} for delay in (1, 10, 60)),
                    *({"dedupe": key}, {"priority": 5}),
                )
            arcs.insert(self._one(0, len(arcs)), arc)
        mode = "exclusive" if self._steady else self._one("exclusive", "inclusive")
        return {"spec": {"mode": mode}, "arcs": arcs}
