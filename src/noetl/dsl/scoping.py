"""Which names a template can see where it stands, and complaints about those it cannot.

The table is the language's scope table: what is reserved, and where each reserved name exists.
Other names are looked up in the token's args, ctx, iter and workload, after steps and tasks.
"""

from __future__ import annotations

from collections.abc import Iterator

from noetl.dsl.building import Building, Home, Use, Where
from noetl.dsl.expressions import guarded
from noetl.dsl.grammar import has_template
from noetl.dsl.walk import all_actions, all_tasks, bodies, patches, ways_out
from noetl.model.net import Block, Collect, Net, Step
from noetl.templates import view
from noetl.templates.views import MISSING, lookup

EVERYWHERE = frozenset({"workload", "ctx", "vars", "steps", "execution_id", "job"})
PIPELINE = frozenset({"iter", "loop", "loop_index", "_prev", "_task", "_attempt", "_retry"})
OUTCOME = frozenset({"outcome", "output"})
ANSWER = frozenset({"response", "error", "result", "this", "event"})
RESERVED = (
    EVERYWHERE
    | PIPELINE
    | OUTCOME
    | ANSWER
    | frozenset({"args", "keychain", "status_code", "page"})
)
"""`status_code` and `page` are reserved only where they exist."""

_ARGS = frozenset({"args"})
_SECRETS = frozenset({"keychain"})
_PAGES = frozenset({"status_code", "page"})
"""Reserved only where they exist."""
IN_SCOPE: dict[Where, frozenset[str]] = {
    Where.WORKLOAD: frozenset({"workload", "execution_id", "job"}),
    Where.KEYCHAIN: EVERYWHERE | _SECRETS,
    Where.STEP: EVERYWHERE | _ARGS | {"event"},
    Where.LOOP_ARGS: EVERYWHERE | _ARGS | {"event", "iter", "loop", "loop_index"},
    Where.ADMIT: EVERYWHERE | _ARGS | {"event"},
    Where.LOOP: EVERYWHERE | _ARGS | {"event"},
    Where.TASK: EVERYWHERE | _ARGS | PIPELINE | _SECRETS | {"output"},
    Where.HOOK: EVERYWHERE | _ARGS | PIPELINE | OUTCOME | ANSWER | _SECRETS,
    Where.POLICY: EVERYWHERE | _ARGS | PIPELINE | OUTCOME,
    Where.RETRY: EVERYWHERE | _ARGS | PIPELINE | OUTCOME | ANSWER | _PAGES,
    Where.SINK: EVERYWHERE | _ARGS | PIPELINE | OUTCOME | ANSWER | _PAGES | _SECRETS,
    Where.AFTER: EVERYWHERE | _ARGS | PIPELINE | OUTCOME | ANSWER,
    Where.CASE: EVERYWHERE | _ARGS | PIPELINE | OUTCOME | ANSWER,
    Where.CASE_TASK: EVERYWHERE | _ARGS | PIPELINE | OUTCOME | ANSWER | _PAGES | _SECRETS,
    Where.CASE_NEXT: EVERYWHERE | _ARGS | OUTCOME | ANSWER,
    Where.ARC: EVERYWHERE | _ARGS | OUTCOME | ANSWER,
}
_NO_ITERATOR = frozenset({Where.CASE_NEXT, Where.ARC, Where.STEP, Where.ADMIT, Where.LOOP})
_INSTEAD = {
    "iter": "Iterations are over here; read the step's result instead, or write to ctx.",
    "outcome": "Read `event.error`, `error` or the step's result instead.",
    "output": "Read `event.error`, `error` or the step's result instead.",
    "result": "Read `outcome.result` instead.",
    "response": "Read `outcome.result` instead.",
    "error": "A policy rule reads `outcome.error`; to hand the error of an earlier step on, let the"
    ' arc carry it: `args: {why: "{{ error.message }}"}`.',
    "event": "Read `outcome` instead.",
}


def check_names(building: Building, net: Net) -> None:
    """Every name a template reads exists where it stands."""
    known = _Known(net)
    for use in building.uses:
        template = building.expressions.compiled(use.source)
        if template is None:
            continue
        for path in sorted(template.reads):
            _check_root(building, use, path[0], known, path[0] in guarded(template))
            if path[0] == "keychain":
                _check_secret(building, use, path, known)
            elif not template.may_miss(".".join(path)):
                _check_keys(building, use, path, known)


def _check_root(building: Building, use: Use, name: str, known: _Known, guarded: bool) -> None:
    if name in RESERVED or (name in _PAGES and name in IN_SCOPE[use.where]):
        if name not in _visible(use):
            code = "not-in-scope" if not guarded else "unknown-name"
            building.report.add(
                code if name != "keychain" else "secret-outside-tool",
                _elsewhere(use, name) + (" Here it is undefined." if guarded else ""),
                use.place,
            )
        elif name == "output" and use.where is Where.TASK:
            building.report.add(
                "older-form",
                "`output` in a task is the outcome of the task before: write `_prev`, or the"
                " name of that task. `noetl migrate` rewrites it.",
                use.place,
            )
        return
    names = known.names(use.home)
    if name in use.home.iterators and use.where in _NO_ITERATOR and name not in names:
        building.report.add(
            "not-in-scope",
            f"`{name}` is the loop's element, which does not exist in {use.where.value}."
            f" {_INSTEAD['iter']}",
            use.place,
        )
    elif name not in names and name not in use.home.iterators and not guarded:
        building.report.add(
            "unknown-name",
            f"nothing in this playbook is called `{name}`."
            + (
                building.report.suggest(name, [*names, *IN_SCOPE[use.where], *use.home.iterators])
                or " Declare it under `workload` if it comes with the request."
            ),
            use.place,
        )


def _visible(use: Use) -> frozenset[str]:
    """A workbook entry is called from a pipeline, so its loop can see the caller's iteration."""
    if use.home.block and use.where is Where.LOOP:
        return IN_SCOPE[use.where] | PIPELINE
    return IN_SCOPE[use.where]


def _elsewhere(use: Use, name: str) -> str:
    if name == "keychain":
        return (
            f"a secret is read in {use.where.value}; secrets are for tool config alone, where they"
            " are resolved at the moment of use and never recorded."
        )
    instead = _INSTEAD.get(name, "")
    return f"`{name}` does not exist in {use.where.value}. {instead}".rstrip()


def _check_secret(building: Building, use: Use, path: tuple[str, ...], known: _Known) -> None:
    if len(path) > 1 and path[1] not in known.keychain:
        building.report.add(
            "undeclared-keychain",
            f'the keychain has no entry "{path[1]}".'
            + (building.report.suggest(path[1], known.keychain) or " Declare it under `keychain`."),
            use.place,
        )


def _check_keys(building: Building, use: Use, path: tuple[str, ...], known: _Known) -> None:
    """A key that is certainly, or by its spelling most likely, not there when this is read."""
    if path[0] == "workload":
        # A request may bring more than the playbook declares, so only near misses are reported.
        missing = _missing_key(known.workload, path, 1)
        if missing is not None and (hint := building.report.suggest(*missing)):
            where = ".".join(path[: path.index(missing[0], 1)])
            message = f'`{where}` has no "{missing[0]}".{hint}'
            building.report.add("undefined-key", message, use.place)
        return
    start = 2 if path[0] == "steps" else 1
    step = path[start - 1] if len(path) >= start else ""
    if step not in known.literals or len(path) <= start:
        return
    if step in use.home.iterators or (step in known.hidden(use.home) and start == 1):
        return
    if lookup(view("noop", known.literals[step]), path[start]) is not MISSING:
        return
    missing = _missing_key(known.literals[step], path, start)
    if missing is not None:
        hint = building.report.suggest(*missing) or f" It yields {', '.join(missing[1])}."
        message = f'the result of step "{step}" has no "{missing[0]}".{hint}'
        building.report.add("undefined-key", message, use.place)


def _missing_key(value: object, path: tuple[str, ...], start: int) -> tuple[str, list[str]] | None:
    """The first key of the path that is not there, and those that are; None if that is unknown."""
    for key in path[start:]:
        if not isinstance(value, dict) or not value:
            return None
        if key not in value:
            return key, list(value)
        value = value[key]
    return None


class _Known:
    """The names a playbook defines, for each of its steps."""

    def __init__(self, net: Net) -> None:
        self.workload = net.workload
        self.literals = {step.name: found for step in net.steps if (found := _literal(step))}
        """Results of steps of which the keys are known: those that are written down."""
        self.keychain = [entry.name for entry in net.keychain]
        self._shared = {step.name for step in net.steps} | set(net.workload) | _ctx_keys(net)
        self._arriving = _arriving_args(net)
        self._bodies: dict[tuple[str, str], Step | Block] = {
            **{(step.name, ""): step for step in net.steps},
            **{("", block.name): block for block in net.workbook},
        }
        self._names: dict[tuple[str, str], set[str]] = {}
        # A workbook entry sees the names of whichever task calls it.
        self._callers = set().union(
            *(set(task.inputs) for body in self._bodies.values() for task in all_tasks(body)), set()
        )

    def names(self, home: Home) -> set[str]:
        key = (home.name, home.block)
        if key not in self._names:
            self._names[key] = self._shared | set(self._local(key))
        return self._names[key]

    def hidden(self, home: Home) -> set[str]:
        """Names that mean something else here than the step of that name."""
        return set(self._local((home.name, home.block)))

    def _local(self, key: tuple[str, str]) -> Iterator[str]:
        body = self._bodies.get(key)
        if body is None:
            return
        for task in all_tasks(body):
            yield task.name
            yield from task.inputs
        for patch in patches(body):
            yield from patch.iter
            yield from patch.local
        yield from (action.into for action in all_actions(body) if isinstance(action, Collect))
        if isinstance(body, Step):
            yield from body.args
            yield from self._arriving.get(body.name, ())
        else:
            yield from body.inputs
            yield from self._callers


def _literal(step: Step) -> dict[str, object]:
    """What the step yields, if it is a mapping written down in the playbook; else nothing."""
    if len(step.tasks) != 1 or step.loop is not None or step.rules or step.sink is not None:
        return {}
    [task] = step.tasks
    found = task.config.get("result") if task.kind == "noop" and not task.rules else None
    return found if isinstance(found, dict) else {}


def _ctx_keys(net: Net) -> set[str]:
    keys: set[str] = set()
    for body in bodies(net):
        for patch in patches(body):
            keys.update(key.partition(".")[0] for key in patch.ctx)
        if body.loop is not None:
            keys.update(body.loop.reduce)
    for step in net.steps:
        for arc in step.router.arcs:
            if arc.patch is not None:
                keys.update(arc.patch.ctx)
    return keys


def _arriving_args(net: Net) -> dict[str, set[str]]:
    """For each step the args that some token brings."""
    found: dict[str, set[str]] = {step.name: set() for step in net.steps}
    for step in net.steps:
        for way in ways_out(step):
            names = list(found) if has_template(way.step) else [way.step]
            for name in names:
                found.get(name, set()).update(way.args)
    return found
