"""Which templates are allowed, and which names a template can see where it stands.

`IN_SCOPE` is the scope table of the language: which names are reserved, and where each of them
exists. Other names are those of steps and tasks, then of the token's args, ctx, iter and workload.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import takewhile
from typing import NamedTuple, get_args

from noetl.dsl.building import Building, Home, Use, Where
from noetl.dsl.expressions import guarded
from noetl.dsl.grammar import has_template
from noetl.dsl.rules import ANSWER_DATA
from noetl.dsl.walk import bodies
from noetl.model import schemas
from noetl.model.net import (
    CALL_ENDS,
    LOOP_ENDS,
    PLAYBOOK,
    STEP_ENDS,
    STEP_STARTS,
    WORKBOOK,
    Block,
    Collect,
    Net,
    Patch,
    Result,
    Retry,
    Step,
)
from noetl.model.outcome import ErrorKind
from noetl.model.toolshape import Each, ToolShape, Yielded, yielded_by
from noetl.templates import Template
from noetl.templates.analysis import Lookup, Path, path_of
from noetl.templates.views import REFERENCE_KEYS

EVERYWHERE = frozenset({"workload", "ctx", "vars", "steps", "execution_id", "job"})
PIPELINE = frozenset({"iter", "loop", "loop_index", "_prev", "_task", "_attempt", "_retry"})
OUTCOME = frozenset({"outcome", "output"})
ANSWER = frozenset({"response", "error", "result", "this", "event"})
RESERVED = EVERYWHERE | PIPELINE | OUTCOME | ANSWER | frozenset({"args", "keychain"})

_ARGS = frozenset({"args"})
_SECRETS = frozenset({"keychain"})
_PAGES = frozenset({"status_code", "page"})
"""Reserved only where they exist; even there the playbook's own name wins."""
IN_SCOPE: dict[Where, frozenset[str]] = {
    Where.WORKLOAD: frozenset({"workload", "execution_id", "job"}),
    Where.KEYCHAIN: EVERYWHERE | _SECRETS,
    Where.STEP: EVERYWHERE | _ARGS | {"event"},
    Where.LOOP_ARGS: EVERYWHERE | _ARGS | {"event", "iter", "loop", "loop_index"},
    Where.ADMIT: EVERYWHERE | _ARGS | {"event"},
    Where.LOOP: EVERYWHERE | _ARGS | {"event"},
    Where.TASK: EVERYWHERE | _ARGS | PIPELINE | _SECRETS,
    Where.LATER: EVERYWHERE | _ARGS | PIPELINE | _SECRETS | OUTCOME,
    Where.HOOK: EVERYWHERE | _ARGS | PIPELINE | OUTCOME | ANSWER | _SECRETS,
    Where.POLICY: EVERYWHERE | _ARGS | PIPELINE | OUTCOME,
    Where.RETRY: EVERYWHERE | _ARGS | PIPELINE | OUTCOME | ANSWER | _PAGES,
    Where.SINK: EVERYWHERE | _ARGS | PIPELINE | OUTCOME | ANSWER | _PAGES | _SECRETS,
    Where.AFTER: EVERYWHERE | _ARGS | PIPELINE | OUTCOME | ANSWER,
    Where.KEPT: EVERYWHERE | _ARGS | OUTCOME | ANSWER,
    Where.CASE: EVERYWHERE | _ARGS | PIPELINE | OUTCOME | ANSWER,
    Where.CASE_SERVER: EVERYWHERE | _ARGS | OUTCOME | ANSWER,
    Where.CASE_TASK: EVERYWHERE | _ARGS | PIPELINE | OUTCOME | ANSWER | _PAGES | _SECRETS,
    Where.CASE_NEXT: EVERYWHERE | _ARGS | OUTCOME | ANSWER,
    Where.ARC: EVERYWHERE | _ARGS | OUTCOME | ANSWER,
}
_NO_ITERATOR = frozenset(
    {
        *(Where.STEP, Where.ADMIT, Where.LOOP),
        *(Where.KEPT, Where.CASE_SERVER, Where.CASE_NEXT, Where.ARC),
    }
)
"""Where a loop's element does not exist."""
KEYS_SHOWN = 10
"""How many keys a message lists at most."""
_BEFORE_A_CALL = frozenset(
    {Where.STEP, Where.LOOP_ARGS, Where.ADMIT, Where.LOOP, Where.TASK, Where.LATER}
)
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

_ENDED = {
    Where.KEPT: "The tasks are over here: write `set` on the task, where it exists.",
    Where.CASE_SERVER: "No task runs then; a rule for `call.done` sees it.",
}
"""Where names of a pipeline no longer exist, and where they do."""
_OF_A_CALL = {
    "http": "A failed request has its status in `error.status`, an answered one in the result:"
    " `STEP.status_code`.",
    "sh": "A failed command has its exit code in `error.code`, another one in the result:"
    " `STEP.exit_code`.",
    "pg": "A failed statement has its SQLSTATE in `error.code`.",
    "py": "The message of failed code begins with its exception:"
    " `error.message.startswith('ValueError')`.",
    "meta": 'A rule of the task can keep it: `set_ctx: {took: "{{ outcome.meta.duration }}"}`.',
}
"""What the outcome of a call has and that of a step has not, and what an arc reads instead."""
_STATUS = ("ok", "error")
_KINDS = get_args(ErrorKind)
_WORDS: dict[Path, tuple[str, ...]] = {
    **dict.fromkeys((("outcome", "status"), ("output", "status"), ("this", "status")), _STATUS),
    **{(*root, "error", "kind"): _KINDS for root in ((), ("outcome",), ("output",), ("event",))},
}
"""Values that are one of a few words."""
_OF_STEPS = tuple(sorted(STEP_STARTS | CALL_ENDS | STEP_ENDS | LOOP_ENDS))
_HAS_WORDS = frozenset({"outcome", "output", "this", "event", "error"})
_ELSEWHERE = {
    **dict.fromkeys(("null", "Null", "NULL", "nil", "NONE"), "Write `none`: it is no value."),
    "TRUE": "Write `true`.",
    "FALSE": "Write `false`.",
    "undefined": "Write `x is undefined`, or `x | default(…)`.",
    **dict.fromkeys(
        ("inputs", "params", "parameters"), "What a run is given is read as `workload.NAME`."
    ),
    **dict.fromkeys(
        ("outputs", "tasks"), "The result of a step goes by its name: `{{ fetch.x }}`."
    ),
    "item": "In a loop the element has the name that `iterator` gives it.",
    **dict.fromkeys(
        ("env", "envs", "environ"),
        "Templates read no environment variables. Give values in `workload`, and secrets in"
        " `keychain` (`kind: env` reads a variable of the worker).",
    ),
    **dict.fromkeys(("secret", "secrets"), "A secret is declared under `keychain`."),
}
"""Names that other languages and orchestrators have, and what to write here."""


def check_templates(building: Building, net: Net) -> None:
    """Report templates that cannot be compiled, and names and keys that do not exist where a
    template reads them.
    """
    known = _Known(net, building)
    for use in building.uses:
        for code, message in building.expressions.refusal(use.source):
            building.report.add(code, message, use.place)
        template = building.expressions.compiled(use.source)
        if template is None:
            continue
        for path in sorted(template.reads):
            _check_root(building, use, path[0], known, template)
            if path[0] == "keychain":
                _check_secret(building, use, path, known)
        for lookup in sorted(template.lookups, key=repr):
            _check_keys(building, use, lookup, known, template)
        if not _HAS_WORDS.isdisjoint(path[0] for path in template.reads):
            _check_words(building, use, known, template)
        _check_lists(building, use, known, template)


def check_writes(building: Building, net: Net) -> None:
    """Report what `set` writes and nothing can read: mostly a key that lacks its `ctx.`."""
    for body in bodies(net):
        own = body.patch if isinstance(body, Step) else None
        if own is not None:
            for name in (*own.local, *(f"iter.{key}" for key in own.iter)):
                _report_unread(building, own, name, "`set` of a step writes to ctx or vars")
        named = [one for one in building.parts(body).patches if one.local and one is not own]
        read = _read_names(building, body) if named else set()
        for patch in named:
            for name in patch.local.keys() - read:
                why = "it is a name of this step alone, and nothing in the step reads it"
                _report_unread(building, patch, name, why)


def _read_names(building: Building, body: Step | Block) -> set[str]:
    """The first names of what templates of the body read, and of the entries that it may call."""
    return {
        path[0]
        for use in building.uses
        if use.home.block or use.home.name == body.name
        if (template := building.expressions.compiled(use.source)) is not None
        for path in template.reads
    }


def _report_unread(building: Building, patch: Patch, name: str, why: str) -> None:
    building.report.add(
        "unused-key",
        f"`{name}` has no effect: {why}. Write `ctx.{name.removeprefix('iter.')}`.",
        building.at(patch, name),
    )


# `guarded` and `may_miss` walk the whole template, so they are called only if something is missing.


def _check_root(building: Building, use: Use, name: str, known: _Known, template: Template) -> None:
    if name in RESERVED or (name in _PAGES and name in IN_SCOPE[use.where]):
        if name not in _visible(use):
            is_guarded = name in guarded(template)
            code = "not-in-scope" if not is_guarded else "guarded-name"
            if is_guarded:
                building.absent.setdefault(use.place, set()).add(name)
            building.report.add(
                code if name != "keychain" else "secret-outside-tool",
                _why_not_here(use, name)
                + (" Here it is undefined. `noetl migrate` takes it out." if is_guarded else ""),
                use.place,
            )
        elif name == "output" and use.where is Where.LATER:
            building.report.add(
                "older-form",
                "`output` in a later task is the outcome of the task before: write `outcome`, and"
                " `outcome.result` for `output.data`. `noetl migrate` rewrites it.",
                use.place,
            )
        return
    names = known.names(use.home)
    if name in use.home.iterators and use.where in _NO_ITERATOR and name not in names:
        building.report.add(
            "not-in-scope",
            f"`{name}` is the loop's element, which does not exist in {use.where.value}."
            f" {_ENDED.get(use.where, _INSTEAD['iter'])}",
            use.place,
        )
    elif name not in names and name not in use.home.iterators and name not in guarded(template):
        building.report.add(
            "unknown-name",
            f"nothing in this playbook is called `{name}`." + _instead(building, use, name, names),
            use.place,
        )


def _instead(building: Building, use: Use, name: str, names: Collection[str]) -> str:
    if name in _ELSEWHERE:
        here = f" Here it is `{use.home.iterators[-1]}`." if use.home.iterators else ""
        return f" {_ELSEWHERE[name]}{here if name == 'item' else ''}"
    there = [*names, *IN_SCOPE[use.where], *use.home.iterators]
    hint = building.report.suggest(name, there)
    return hint or " Declare it under `workload` if it comes with the request."


def _visible(use: Use) -> frozenset[str]:
    # A workbook entry is called from a pipeline, so its loop sees the caller's iteration.
    if use.home.block and use.where is Where.LOOP:
        return IN_SCOPE[use.where] | PIPELINE
    return IN_SCOPE[use.where]


def _why_not_here(use: Use, name: str) -> str:
    if name == "keychain":
        return (
            f"a secret is read in {use.where.value}; secrets are for tool config alone, where they"
            " are resolved at the moment of use and never recorded."
        )
    instead = _INSTEAD.get(name, "")
    if name in PIPELINE and use.where in _ENDED:
        instead = _ENDED[use.where]
    if name in ("result", "response") and use.where in _BEFORE_A_CALL:
        instead = (
            "The result of an earlier step goes by that step's name: `{{ fetch.x }}`; that of the"
            " task before this one is `_prev`."
        )
    return f"`{name}` does not exist in {use.where.value}. {instead}".rstrip()


def _check_secret(building: Building, use: Use, path: tuple[str, ...], known: _Known) -> None:
    if len(path) > 1 and path[1] not in known.keychain:
        building.report.add(
            "undeclared-keychain",
            f'the keychain has no entry "{path[1]}".'
            + (building.report.suggest(path[1], known.keychain) or " Declare it under `keychain`."),
            use.place,
        )


def _may_miss(template: Template, lookup: Lookup) -> bool:
    return template.may_miss(".".join(map(str, takewhile(bool, lookup))))


def _check_keys(
    building: Building, use: Use, lookup: Lookup, known: _Known, template: Template
) -> None:
    """Report a key that is certainly missing when the template runs, or probably misspelt."""
    if use.where is Where.ARC and lookup[0] in OUTCOME and lookup[1:2] and lookup[1] in _OF_A_CALL:
        if not _may_miss(template, lookup):
            building.report.add(
                "undefined-key",
                f"`{lookup[0]}` in an arc is that of the step, which has no `{lookup[1]}`: only"
                f" status, result and error. {_OF_A_CALL[str(lookup[1])]}",
                use.place,
            )
        return
    if lookup[0] == "ctx":
        _check_ctx(building, use, lookup, known, template)
        return
    if lookup[0] in ("workload", "args"):
        # A request may bring more than is declared, so only probable misspellings are reported.
        declared = known.workload if lookup[0] == "workload" else known.args(use.home)
        absent = _absent(declared, lookup[1:])
        if absent is None or _may_miss(template, lookup):
            return
        if hint := building.report.suggest(absent.key, absent.keys):
            where = ".".join(map(str, lookup[: absent.depth + 1]))
            message = f'`{where}` has no "{absent.key}".{hint}'
            building.report.add("undefined-key", message, use.place)
        return
    what, shape, rest = known.result(use, lookup)
    absent = _absent(shape, rest)
    if absent is None or absent.key in REFERENCE_KEYS or _may_miss(template, lookup):
        return
    if absent.rows is not None:
        hint = f" It has rows: write `rows[0].{absent.key}`, or loop over them."
    else:
        hint = f" It has {', '.join(absent.keys[:KEYS_SHOWN])}."
        if shape is OF_A_LOOP and not absent.depth:
            hint = " A loop yields `results`, one for each iteration, `stats` and `errors`."
        hint = building.report.suggest(absent.key, absent.keys) or hint
    what = f"a row of {what}" if absent.in_row else what
    building.report.add("undefined-key", f'{what} has no "{absent.key}".{hint}', use.place)


def _is_read(template: Template, name: str) -> bool:
    """Whether the name comes from outside: `{% for %}` and `{% set %}` give names of their own."""
    return any(path[0] == name for path in template.reads)


def _check_words(building: Building, use: Use, known: _Known, template: Template) -> None:
    """Report a comparison with a word that the value never is."""
    for path, text in template.compared_texts():
        if not _is_read(template, path[0]):
            continue
        words = _WORDS.get(path, ())
        if path == ("event", "name") and known.hears_only_itself(use):
            words = _OF_STEPS
        if not words or text in words:
            continue
        alike = [one for one in words if one.partition(".")[0] == text.partition(".")[0]]
        few = alike or (words if len(words) <= KEYS_SHOWN else ())
        hint = f" It is {' or '.join(few)}." if few else building.report.suggest(text, words)
        building.report.add(
            "never-equal", f'`{".".join(path)}` is never "{text[:60]}" here.{hint}', use.place
        )


def _check_ctx(
    building: Building, use: Use, lookup: Lookup, known: _Known, template: Template
) -> None:
    """Report a key of ctx that nothing writes."""
    key = lookup[1] if len(lookup) > 1 else None
    if key is None or key in known.ctx or _may_miss(template, lookup):
        return
    if key in use.home.iterators:
        hint = f" The loop's element is `iter.{key}`."
    elif isinstance(known.workload, Mapping) and key in known.workload:
        hint = f" The workload has it: `workload.{key}`."
    else:
        hint = (
            building.report.suggest(key, known.ctx)
            or f" A step does so by `set: {{ctx.{key}: …}}`."
        )
    building.report.add(
        "undefined-key", f"nothing in this playbook writes `ctx.{key}`.{hint}", use.place
    )


def _check_lists(building: Building, use: Use, known: _Known, template: Template) -> None:
    """Report a result whose keys are gone over, where its rows or the like are meant."""
    if not any(path[0] == "steps" or known.lists.get(path[0]) for path in template.reads):
        return  # without a walk through the template
    paths = [path for path in template.paths_as_lists() if _is_read(template, path[0])]
    if use.where is Where.LOOP and template.expression is not None:
        paths += filter(None, [path_of(template.expression)])
    for path in paths:
        inner = known.list_in(use, path)
        if inner:
            whole = ".".join(path)
            building.report.add(
                "keys-for-items",
                f"`{whole}` is a mapping that has its items in `{inner}`; this goes over its keys."
                f" Write `{whole}.{inner}`.",
                use.place,
            )


class _Absent(NamedTuple):
    """A missing key, and the keys that exist in its place."""

    key: str
    keys: list[str]
    depth: int
    """How many keys of the path exist before it."""
    in_row: bool = False
    rows: Each | None = None
    """Set if the rows have the key, and the template reads it from what holds them."""


def _absent(shape: Yielded, keys: Lookup) -> _Absent | None:
    """The first missing key; None if all exist, or if that is unknown."""
    in_row = False
    for depth, key in enumerate(keys):
        if isinstance(shape, Each) and key is None:
            shape, in_row = shape.element, True
            continue
        if key is None or not shape:
            return None
        if isinstance(shape, Mapping) and key in shape:
            shape = shape[key]
            continue
        rows = shape.get("rows") if isinstance(shape, Mapping) else shape
        if isinstance(rows, Each) and isinstance(rows.element, Mapping) and key in rows.element:
            return _Absent(key, [], depth, rows=rows)
        if not isinstance(shape, Mapping):
            return None
        # Databases differ in the case of column names: `Total` may be `total`.
        is_unsure = in_row and key.lower() in {name.lower() for name in shape}
        return None if is_unsure else _Absent(key, list(shape), depth, in_row)
    return None


class _Known:
    """The names that a playbook defines, as each of its steps sees them."""

    def __init__(self, net: Net, building: Building) -> None:
        self._parts = building.parts
        unset = {one.name: None for one in net.executor.inputs}
        self.workload = yielded_by(unset | net.workload)
        called = building.known.playbooks
        self._yields = {step.name: _yielded(step, building.tools, called) for step in net.steps}
        self.lists = {step.name: _list_in(step, building.tools) for step in net.steps}
        self._expressions = building.expressions
        self.keychain = [entry.name for entry in net.keychain]
        self.ctx = _ctx_keys(building, net)
        self._shared = {step.name for step in net.steps} | set(unset | net.workload) | self.ctx
        self._arriving = _arriving_args(building, net)
        self._bodies: dict[tuple[str, str], Step | Block] = {
            **{(step.name, ""): step for step in net.steps},
            **{("", block.name): block for block in net.workbook},
        }
        self._names: dict[tuple[str, str], set[str]] = {}
        self._hidden: dict[tuple[str, str], set[str]] = {}
        self._args: dict[tuple[str, str], Yielded] = {}
        self._callers = {
            name for body in bodies(net) for task in self._parts(body).tasks for name in task.inputs
        }
        """A workbook entry sees the inputs of the task that calls it, whichever that is."""

    def names(self, home: Home) -> set[str]:
        key = (home.name, home.block)
        if key not in self._names:
            self._names[key] = self._shared | self.hidden(home)
        return self._names[key]

    def args(self, home: Home) -> Yielded:
        """What is declared as args of a step, or as inputs of a workbook entry."""
        key = (home.name, home.block)
        body = self._bodies.get(key)
        if not isinstance(body, Step):
            return None
        if key not in self._args:
            arriving = self._arriving.get(body.name, set())
            inputs = [name for task in self._parts(body).tasks for name in task.inputs]
            self._args[key] = dict.fromkeys([*body.args, *sorted(arriving), *inputs])
        return self._args[key]

    def result(self, use: Use, lookup: Lookup) -> tuple[str, Yielded, Lookup]:
        """The result that a template reads, in words; what is known of it; and the keys read."""
        root, *rest = lookup
        local = root in self.hidden(use.home)
        if root == "steps" and rest and rest[0] in self._yields:
            root, *rest = rest
        elif local:
            return "", None, ()
        elif root in use.home.iterators:
            return f"`{root}`", self._element(use.home, str(root)), tuple(rest)
        shape = self._yields.get(str(root))
        if shape is OF_A_LOOP and root == use.home.name and use.where is not Where.ARC:
            return "", None, ()  # in the rules of its task it is what the iteration yielded
        if not isinstance(shape, Mapping):
            return "", None, ()
        # Views read results in the same way: `data` and `result` are the result itself unless it
        # has such a key, and a number is the index of a row.
        while rest and rest[0] in ("data", "result") and rest[0] not in shape:
            rest = rest[1:]
        if rest and rest[0] is None and isinstance(shape.get("rows"), Each):
            rest = ["rows", *rest]
        return f'the result of step "{root}"', shape, tuple(rest)

    def list_in(self, use: Use, path: Path) -> str:
        """The key under which the result that is at the path has its list; empty if there is none,
        or it is not a whole result."""
        root, *rest = path[1:] if path[0] == "steps" and len(path) > 1 else path
        if root in self.hidden(use.home) or root in use.home.iterators:
            return ""
        inner = self.lists.get(root, "")
        is_whole = all(key == "result" or (key == "data" and inner != "data") for key in rest)
        return inner if is_whole else ""

    def hears_only_itself(self, use: Use) -> bool:
        """Whether `event` can be only what happened to the step itself."""
        if use.where is Where.ARC:
            return True
        body = self._bodies.get((use.home.name, use.home.block))
        of_rules = use.where in (Where.CASE, Where.CASE_SERVER)
        return of_rules and isinstance(body, Step) and not body.case.wait

    def _element(self, home: Home, iterator: str) -> Yielded:
        """What is known of the element, if the loop goes over the rows of a step."""
        body = self._bodies.get((home.name, home.block))
        loop = body.loop if isinstance(body, Step) else None
        if loop is None or loop.iterator != iterator or loop.batch_size is not None:
            return None
        template = self._expressions.compiled(loop.items) if isinstance(loop.items, str) else None
        path = path_of(template.expression) if template and template.expression else None
        if path is None or path[0] in home.iterators or path[0] in self.hidden(home):
            return None
        names = path[1:] if path[0] == "steps" else path
        shape = self._yields.get(names[0]) if names else None
        for key in names[1:]:
            shape = shape.get(key) if isinstance(shape, Mapping) else None
        return shape.element if isinstance(shape, Each) else None

    def hidden(self, home: Home) -> set[str]:
        """Local names, which hide steps of the same name."""
        key = (home.name, home.block)
        if key not in self._hidden:
            self._hidden[key] = set(self._local(key))
        return self._hidden[key]

    def _local(self, key: tuple[str, str]) -> Iterator[str]:
        body = self._bodies.get(key)
        if body is None:
            return
        parts = self._parts(body)
        for task in parts.tasks:
            yield task.name
            yield from task.inputs
        for patch in parts.patches:
            yield from patch.iter
            yield from patch.local
        yield from (action.into for action in parts.actions if isinstance(action, Collect))
        if isinstance(body, Step):
            yield from body.args
            yield from self._arriving.get(body.name, ())
        else:
            yield from body.inputs
            yield from self._callers


OF_A_LOOP: Mapping[str, Yielded] = {
    "results": None,
    "stats": dict.fromkeys(("total", "success", "failed")),
    "errors": None,
}


def _yielded(step: Step, tools: Mapping[str, ToolShape], called: Mapping[str, Net]) -> Yielded:
    """What is known of a step's result: what its only task, its loop or its form declares."""
    if step.form and [rule.actions for rule in step.rules] == [(Result(value=ANSWER_DATA),)]:
        return {one.name: None for one in step.form}
    if step.rules:
        return None
    if step.loop is not None:
        return OF_A_LOOP
    if len(step.tasks) != 1 or step.sink is not None:
        return None
    [task] = step.tasks
    schema = task.schema
    if task.kind == PLAYBOOK and schema is None and "return_step" not in task.config:
        playbook = called.get(str(task.config.get("path")))
        schema = playbook.executor.result if playbook is not None else None
    tool = tools.get(task.kind)
    is_plain = task.kind != WORKBOOK and (tool is None or tool.view == "plain")
    if schema is not None and is_plain and not task.select:
        return schemas.yielded(schema.schema)
    retries = [action for rule in task.retries for action in rule.actions]
    has_pages = any(not isinstance(one, Retry) or one.overrides for one in retries)
    if tool is None or tool.yields is None or task.rules or task.select or has_pages:
        return None
    return tool.yields(task.config)


def _list_in(step: Step, tools: Mapping[str, ToolShape]) -> str:
    """The key under which the result of a step has its list, if it certainly is such a mapping."""
    if step.rules:
        return ""
    if step.loop is not None:
        return "results"
    if len(step.tasks) != 1 or "result_as" in step.tasks[0].config:
        return ""
    tool = tools.get(step.tasks[0].kind)
    return {"rows": "rows", "answer": "data"}.get(tool.view, "") if tool is not None else ""


def _ctx_keys(building: Building, net: Net) -> set[str]:
    """The keys of ctx that something in the playbook writes."""
    found: set[str] = set()
    for body in bodies(net):
        parts = building.parts(body)
        for patch in parts.patches:
            found.update(patch.ctx)
        if body.loop is not None:
            found.update(body.loop.reduce)
        collected = [action.into for action in parts.actions if isinstance(action, Collect)]
        found.update(into[4:] for into in collected if into.startswith("ctx."))
    for step in net.steps:
        for arc in step.router.arcs:
            if arc.patch is not None:
                found.update(arc.patch.ctx)
    return {key.partition(".")[0] for key in found}


def _arriving_args(building: Building, net: Net) -> dict[str, set[str]]:
    """For each step the args that tokens may bring."""
    found: dict[str, set[str]] = {step.name: set() for step in net.steps}
    for step in net.steps:
        for way in building.parts(step).ways_out:
            names = list(found) if has_template(way.step) else [way.step]
            for name in names:
                found.get(name, set()).update(way.args)
    return found
