"""Which templates are allowed, and which names a template can see where it stands.

`IN_SCOPE` is the scope table of the language: which names are reserved, and where each of them
exists. Other names are those of steps and tasks, then of the token's args, ctx, iter and workload.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple

from noetl.dsl.building import Building, Home, Use, Where
from noetl.dsl.checks import step_graph
from noetl.dsl.expressions import guarded, may_choose
from noetl.dsl.grammar import has_template
from noetl.dsl.rules import ANSWER_DATA
from noetl.dsl.walk import bodies
from noetl.model import schemas
from noetl.model.graph import dominated
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
    Run,
    Step,
)
from noetl.model.outcome import ERROR_KINDS
from noetl.model.signals import APPROVAL, TIMER, TIMER_KEYS
from noetl.model.spelling import is_slip
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
_BEFORE = EVERYWHERE | _ARGS | {"event"}
_TASKS = EVERYWHERE | _ARGS | PIPELINE
_END = EVERYWHERE | _ARGS | OUTCOME | ANSWER
IN_SCOPE: dict[Where, frozenset[str]] = {
    Where.WORKLOAD: frozenset({"workload", "execution_id", "job"}),
    Where.KEYCHAIN: EVERYWHERE | _SECRETS,
    **dict.fromkeys((Where.STEP, Where.ADMIT, Where.LOOP), _BEFORE),
    Where.LOOP_ARGS: _BEFORE | {"iter", "loop", "loop_index"},
    Where.TASK: _TASKS | _SECRETS,
    Where.LATER: _TASKS | _SECRETS | OUTCOME,
    Where.HOOK: _TASKS | _SECRETS | OUTCOME | ANSWER,
    Where.POLICY: _TASKS | OUTCOME,
    Where.RETRY: _TASKS | OUTCOME | ANSWER | _PAGES,
    **dict.fromkeys((Where.SINK, Where.CASE_TASK), _TASKS | OUTCOME | ANSWER | _PAGES | _SECRETS),
    **dict.fromkeys((Where.AFTER, Where.CASE), _TASKS | OUTCOME | ANSWER),
    **dict.fromkeys((Where.KEPT, Where.CASE_SERVER, Where.CASE_NEXT, Where.ARC), _END),
}
_OUTSIDE_TASKS = frozenset(
    {Where.STEP, Where.LOOP_ARGS, Where.ADMIT, Where.LOOP, Where.KEPT, Where.ARC}
)
"""Where the tasks of a step are not known by their own names."""
_NO_ITERATOR = _OUTSIDE_TASKS - {Where.LOOP_ARGS} | {Where.CASE_SERVER, Where.CASE_NEXT}
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
_OF_ANY = ("status", "result", "error", "data")
"""What every outcome has."""
_STATUS = ("ok", "error")
_WORDS: dict[Path, tuple[str, ...]] = {
    **dict.fromkeys((("outcome", "status"), ("output", "status"), ("this", "status")), _STATUS),
    **{
        (*root, "error", "kind"): ERROR_KINDS
        for root in ((), ("outcome",), ("output",), ("event",))
    },
}
"""Values that are one of a few words."""
_OF_STEPS = tuple(sorted(STEP_STARTS | CALL_ENDS | STEP_ENDS | LOOP_ENDS))
_HEARD = (*_OF_STEPS, APPROVAL, "message.received", TIMER)
"""Events of a step that waits, beside those that senders give a name of their own."""
_OF_RULES = (Where.CASE, Where.CASE_SERVER)
_TIMER_IDS = tuple(("event", data, "timer_id") for data in ("data", "payload"))
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
_OF_THE_TOOL = (
    " An input of a task is given to its tool, and templates do not see it: write its value here,"
    " or put it into the `args` of the step; of a workbook entry, beside `tool`."
)
_NOT_GIVEN = " The `args` of the step itself, or of what leads to it, can bring it."


def check_templates(building: Building, net: Net) -> None:
    """Report templates that cannot be compiled, and names and keys that do not exist where a
    template reads them.
    """
    known = _Known(net, building)
    for use in building.uses:
        for code, message in building.expressions.refusal(use.source):
            building.report.add(code, message, use.place)
        template = building.expressions.compiled(use.source)
        if template is not None:
            _Reading(building, known, use, template).check()


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
        for path in building.expressions.reads(use.source)
    }


def _report_unread(building: Building, patch: Patch, name: str, why: str) -> None:
    root, _, key = name.partition(".")
    building.report.add(
        "unused-key",
        f"`{name}` has no effect: {why}. Write `ctx.{key if key and root in RESERVED else name}`.",
        building.at(patch, name),
    )


class _Reading:
    """A template where it stands: the names and keys that it reads, and the words that it compares.

    `guarded` and `may_miss` walk the whole template, so they are called only if something is
    missing.
    """

    def __init__(self, building: Building, known: _Known, use: Use, template: Template) -> None:
        self._building, self._known, self._use, self._template = building, known, use, template
        self._inside = known.inside(use)
        self._iterators = use.home.iterators
        self._suggest = building.report.suggest

    def _report(self, code: str, message: str) -> None:
        self._building.report.add(code, message, self._use.place)

    def check(self) -> None:
        template = self._template
        for path in sorted(template.reads):
            self._check_root(path[0])
            if path[0] == "keychain":
                self._check_secret(path)
            elif not self._use.condition:
                self._check_order(path)
        for lookup in sorted(template.lookups, key=repr):
            self._check_keys(lookup)
        if not _HAS_WORDS.isdisjoint(path[0] for path in template.reads):
            self._check_words()
        self._check_lists()

    # --- Names ---

    def _check_root(self, name: str) -> None:
        where = self._use.where
        if name in RESERVED or (name in _PAGES and name in IN_SCOPE[where]):
            self._check_reserved(name)
        elif name in self._inside.names:
            return
        elif name in self._iterators:
            if where in _NO_ITERATOR:
                self._report(
                    "not-in-scope",
                    f"`{name}` is the loop's element, which does not exist in {where.value}."
                    f" {_ENDED.get(where, _INSTEAD['iter'])}",
                )
        elif name not in guarded(self._template):
            what = f"nothing in this playbook is called `{name}`."
            if name in self._inside.tasks:
                what = f"`{name}` does not exist in {where.value}."
            what += self._known.of_task(self._use.home, name) or self._instead(name)
            self._report("unknown-name", what)

    def _check_reserved(self, name: str) -> None:
        use = self._use
        if name in self._visible:
            if name == "output" and use.where is Where.LATER:
                self._report(
                    "older-form",
                    "`output` in a later task is the outcome of the task before: write `outcome`,"
                    " and `outcome.result` for `output.data`. `noetl migrate` rewrites it.",
                )
            return
        code, why = "not-in-scope", self._why_not_here(name)
        if name in guarded(self._template):
            self._building.absent.setdefault(use.place, set()).add(name)
            code = "guarded-name"
            why += " Here it is undefined. `noetl migrate` takes it out."
        self._report("secret-outside-tool" if name == "keychain" else code, why)

    @property
    def _visible(self) -> frozenset[str]:
        if self._use.home.hands_over:
            return IN_SCOPE[self._use.where] - _SECRETS
        # A workbook entry is called from a pipeline, so its loop sees the caller's iteration.
        if self._use.home.block and self._use.where is Where.LOOP:
            return IN_SCOPE[Where.LOOP] | PIPELINE
        return IN_SCOPE[self._use.where]

    def _instead(self, name: str) -> str:
        if name in self._inside.inputs:
            return _OF_THE_TOOL
        if name in _ELSEWHERE:
            here = f" Here it is `{self._iterators[-1]}`." if self._iterators else ""
            return f" {_ELSEWHERE[name]}{here if name == 'item' else ''}"
        there = [*self._inside.names, *IN_SCOPE[self._use.where], *self._iterators]
        hint = self._suggest(name, there)
        return hint or " Declare it under `workload` if it comes with the request."

    def _why_not_here(self, name: str) -> str:
        where = self._use.where
        if name == "keychain" and self._use.home.hands_over:
            return (
                "a secret is not handed to a playbook or a workbook entry. Declare it under the"
                " `keychain` of that playbook, or read it in the tasks of the entry."
            )
        if name == "keychain":
            return (
                f"a secret is read in {where.value}; secrets are for tool config alone, where they"
                " are resolved at the moment of use and never recorded."
            )
        instead = _INSTEAD.get(name, "")
        if name in PIPELINE and where in _ENDED:
            instead = _ENDED[where]
        if name in ("result", "response") and where in _BEFORE_A_CALL:
            instead = (
                "The result of an earlier step goes by that step's name: `{{ fetch.x }}`; that of"
                " the task before this one is `_prev`."
            )
        return f"`{name}` does not exist in {where.value}. {instead}".rstrip()

    def _check_secret(self, path: Path) -> None:
        declared = self._known.keychain
        if len(path) > 1 and path[1] not in declared:
            self._report(
                "undeclared-keychain",
                f'the keychain has no entry "{path[1]}".'
                + (self._suggest(path[1], declared) or " Declare it under `keychain`."),
            )

    def _check_order(self, path: Path) -> None:
        """Report the result of a step that has not run yet when the template is first evaluated."""
        where = self._use.where
        is_task = where is Where.TASK and self._inside.always_calls
        if not (is_task or where in (Where.STEP, Where.LOOP)):
            return  # The first run may leave it out.
        name, *rest = path
        if name == "steps" and rest:
            name = rest[0]
        elif name == "steps" or name in self._known.not_steps or name in self._inside.hidden:
            return
        reader = self._use.home.name
        if name == reader:
            why = f'the first run of step "{name}" does not have its own result yet'
        elif self._known.comes_first(reader, name):
            why = f'step "{name}" runs after "{reader}": every way to it leads through there'
        else:
            return
        if not may_choose(self._template) and not self._may_miss(path):
            remedy = f"Read it in a later step, or write `{'.'.join(path)} | default(…)`."
            self._report("not-run-yet", f"{why}. {remedy}")

    # --- Keys ---

    def _check_keys(self, lookup: Lookup) -> None:
        """Report a key that is certainly missing when the template runs, or probably misspelt."""
        root, key = lookup[0], lookup[1] if len(lookup) > 1 else None
        if root == "ctx":
            self._check_ctx(key, lookup)
        elif root == "event":
            self._check_event(lookup)
        elif root in ("workload", "args"):
            self._check_declared(lookup)
        elif root in OUTCOME:
            self._check_outcome(key, lookup)
        else:
            self._check_result(lookup)

    def _may_miss(self, lookup: Lookup) -> bool:
        return self._template.may_miss(".".join(map(str, takewhile(bool, lookup))))

    def _absent(self, shape: Yielded, lookup: Lookup, keys: Lookup) -> _Absent | None:
        """The first of the keys that is missing, unless the template provides for that."""
        absent = _absent(shape, keys)
        return None if absent is None or self._may_miss(lookup) else absent

    def _check_outcome(self, key: str | None, lookup: Lookup) -> None:
        """Report a key that the outcome of no call has, or that of a step has not."""
        if key is None or key in _OF_ANY or lookup[0] not in self._visible:
            return
        if self._may_miss(lookup):
            return
        if key not in _OF_A_CALL:
            message = f'`{lookup[0]}` has no "{key}".' + (
                self._suggest(key, (*_OF_ANY, *_OF_A_CALL))
                or f" What the call yielded is in `{lookup[0]}.result`: `{lookup[0]}.result.{key}`."
            )
        elif self._use.where is Where.ARC:
            message = (
                f"`{lookup[0]}` in an arc is that of the step, which has no `{key}`: only status,"
                f" result and error. {_OF_A_CALL[key]}"
            )
        else:
            return
        self._report("undefined-key", message)

    def _check_ctx(self, key: str | None, lookup: Lookup) -> None:
        """Report a key of ctx that nothing writes."""
        known = self._known
        if key is None or key in known.ctx or self._may_miss(lookup):
            return
        if key in self._iterators:
            hint = f" The loop's element is `iter.{key}`."
        elif isinstance(known.workload, Mapping) and key in known.workload:
            hint = f" The workload has it: `workload.{key}`."
        else:
            hint = self._suggest(key, known.ctx) or f" A step does so by `set: {{ctx.{key}: …}}`."
        self._report("undefined-key", f"nothing in this playbook writes `ctx.{key}`.{hint}")

    def _check_event(self, lookup: Lookup) -> None:
        """Report a key that no event has, or that the data of all that a step waits for lacks."""
        step = self._inside.step if self._use.where in _OF_RULES else None
        data = _heard(step) if step is not None else None
        shape = {"name": None, "step": None, "data": data, "payload": data, "error": None}
        absent = self._absent(shape, lookup, lookup[1:])
        if absent is None:
            return
        hint = self._suggest(absent.key, absent.keys)
        if not hint and absent.depth:
            hint = f" It has {', '.join(absent.keys[:KEYS_SHOWN])}."
        elif not hint:
            hint = f" What came with it is in `event.data`: `event.data.{absent.key}`, if it has"
            hint += " that."
        whole = ".".join(map(str, lookup[: absent.depth + 1]))
        self._report("undefined-key", f'`{whole}` has no "{absent.key}".{hint}')

    def _check_declared(self, lookup: Lookup) -> None:
        """A request may bring more than is declared, so of the workload only probable misspellings
        are reported.
        """
        declared = self._known.workload if lookup[0] == "workload" else self._inside.args
        absent = self._absent(declared, lookup, lookup[1:])
        if absent is None:
            return
        hint = self._suggest(absent.key, absent.keys)
        if lookup[0] == "args":
            is_input = absent.key in self._inside.inputs
            hint = _OF_THE_TOOL if is_input else hint or _NOT_GIVEN
        if hint:
            where = ".".join(map(str, lookup[: absent.depth + 1]))
            self._report("undefined-key", f'`{where}` has no "{absent.key}".{hint}')

    def _check_result(self, lookup: Lookup) -> None:
        what, shape, keys = self._result(lookup)
        absent = self._absent(shape, lookup, keys)
        if absent is None or absent.key in REFERENCE_KEYS:
            return
        if absent.rows is not None:
            hint = f" It has rows: write `rows[0].{absent.key}`, or loop over them."
        else:
            hint = f" It has {', '.join(absent.keys[:KEYS_SHOWN])}."
            if shape is OF_A_LOOP and not absent.depth:
                hint = " A loop yields `results`, one for each iteration, `stats` and `errors`."
            hint = self._suggest(absent.key, absent.keys) or hint
        what = f"a row of {what}" if absent.in_row else what
        self._report("undefined-key", f'{what} has no "{absent.key}".{hint}')

    def _result(self, lookup: Lookup) -> tuple[str, Yielded, Lookup]:
        """The result that the template reads, in words; what is known of it; and the keys read."""
        root, *rest = lookup
        yields = self._known.yields
        if root == "steps" and rest and rest[0] in yields:
            root, *rest = rest
        elif root in self._inside.hidden:
            return "", None, ()
        elif root in self._iterators:
            return f"`{root}`", self._element(str(root)), tuple(rest)
        shape = yields.get(str(root))
        if shape is OF_A_LOOP and root == self._use.home.name and self._use.where is not Where.ARC:
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

    def _element(self, iterator: str) -> Yielded:
        """What is known of the element, if the loop goes over the rows of a step."""
        loop = self._inside.step.loop if self._inside.step is not None else None
        if loop is None or loop.iterator != iterator or loop.batch_size is not None:
            return None
        source = loop.items if isinstance(loop.items, str) else ""
        template = self._building.expressions.compiled(source)
        path = path_of(template.expression) if template and template.expression else None
        if path is None or path[0] in self._iterators or path[0] in self._inside.hidden:
            return None
        names = path[1:] if path[0] == "steps" else path
        shape = self._known.yields.get(names[0]) if names else None
        for key in names[1:]:
            shape = shape.get(key) if isinstance(shape, Mapping) else None
        return shape.element if isinstance(shape, Each) else None

    # --- Words and lists ---

    def _is_read(self, name: str) -> bool:
        """Whether the name comes from outside: `{% for %}` and `{% set %}` give names of their
        own.
        """
        return any(path[0] == name for path in self._template.reads)

    def _check_words(self) -> None:
        """Report a comparison with a word that the value never is."""
        for path, text in self._template.compared_texts():
            if not self._is_read(path[0]):
                continue
            words = _WORDS.get(path, ())
            if path == ("event", "name"):
                if not self._hears_only_itself:
                    self._check_heard(text)
                    continue
                words = _OF_STEPS
            elif path in _TIMER_IDS:
                words = self._inside.timers
            if not words or text in words:
                continue
            alike = [one for one in words if one.partition(".")[0] == text.partition(".")[0]]
            few = alike or (words if len(words) <= KEYS_SHOWN else ())
            if few:
                hint = f" It is {' or '.join(few)}."
            elif path == ("event", "name") and (text in _HEARD or not is_slip(text, words)):
                hint = " A step hears other events in `case`, if it waits: `eval_mode: on_event`."
            else:
                hint = self._suggest(text, words) or f" It is one of {', '.join(words)}."
            self._report("never-equal", f'`{".".join(path)}` is never "{text[:60]}" here.{hint}')

    @property
    def _hears_only_itself(self) -> bool:
        """Whether `event` can be only what happened to the step itself."""
        step, where = self._inside.step, self._use.where
        return where is Where.ARC or (
            where in _OF_RULES and step is not None and not step.case.wait
        )

    def _check_heard(self, name: str) -> None:
        """Report the name of an event that a step waits for, where it is probably misspelt: whoever
        sends events names them.
        """
        if name in _HEARD:
            if name == TIMER and self._use.where in _OF_RULES and not self._inside.timers:
                self._report(
                    "never-equal",
                    f'`event.name` is never "{TIMER}" here: the step has no `timers`.',
                )
        elif name in self._inside.timers:
            self._report(
                "never-equal",
                f"a timer comes as \"{TIMER}\": write `event.data.timer_id == '{name}'`.",
            )
        elif is_slip(name, _HEARD):
            self._report(
                "never-equal",
                f'an event comes as "{name}" only if somebody sends it under that name.'
                + self._suggest(name, _HEARD),
            )

    def _check_lists(self) -> None:
        """Report a result whose keys are gone over, where its rows or the like are meant."""
        template, lists = self._template, self._known.lists
        if not any(path[0] == "steps" or lists.get(path[0]) for path in template.reads):
            return  # without a walk through the template
        paths = [path for path in template.paths_as_lists() if self._is_read(path[0])]
        if self._use.where is Where.LOOP and template.expression is not None:
            paths += filter(None, [path_of(template.expression)])
        for path in paths:
            if inner := self._list_in(path):
                whole = ".".join(path)
                self._report(
                    "keys-for-items",
                    f"`{whole}` is a mapping that has its items in `{inner}`; this goes over its"
                    f" keys. Write `{whole}.{inner}`.",
                )

    def _list_in(self, path: Path) -> str:
        """The key under which the result that is at the path has its list; empty if there is none,
        or it is not a whole result.
        """
        root, *rest = path[1:] if path[0] == "steps" and len(path) > 1 else path
        if root in self._inside.hidden or root in self._iterators:
            return ""
        inner = self._known.lists.get(root, "")
        is_whole = all(key == "result" or (key == "data" and inner != "data") for key in rest)
        return inner if is_whole else ""


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
    """The names that a playbook defines, and what is known of the results of its steps."""

    def __init__(self, net: Net, building: Building) -> None:
        self.parts = building.parts
        unset = {one.name: None for one in net.executor.inputs}
        self.workload = yielded_by(unset | net.workload)
        called = building.known.playbooks
        self.yields = {step.name: _yielded(step, building.tools, called) for step in net.steps}
        self.lists = {step.name: _list_in(step, building.tools) for step in net.steps}
        self.keychain = [entry.name for entry in net.keychain]
        self.ctx = _ctx_keys(building, net)
        self.not_steps = set(unset | net.workload) | self.ctx
        self.shared = {step.name for step in net.steps} | self.not_steps
        self.arriving = _arriving_args(building, net)
        calls = [task for task in building.tasks(net) if task.kind == WORKBOOK]
        self.callers = set[str]().union(
            *(task.inputs for task in calls),
            *(step.args for step in net.steps),
            *self.arriving.values(),
        )
        """A workbook entry sees the inputs of the task that calls it, and the args of its step,
        whichever that is.
        """
        self._steps, self._entry = net.steps, net.entry
        self._graph = step_graph(building, net)
        self._bodies: dict[tuple[str, str], Step | Block] = {
            **{(step.name, ""): step for step in net.steps},
            **{("", block.name): block for block in net.workbook},
        }
        self._inside: dict[tuple[str, str, bool], _Inside] = {}

    def inside(self, use: Use) -> _Inside:
        name, block, outside = key = use.home.name, use.home.block, use.where in _OUTSIDE_TASKS
        if key not in self._inside:
            self._inside[key] = _Inside(self, self._bodies.get((name, block)), outside=outside)
        return self._inside[key]

    def of_task(self, home: Home, name: str) -> str:
        """Where other places read the result of a task of that name; empty if none has it."""
        read = self._read_as.get(name, {})
        step = home.name if home.name in read else next(iter(read), None)
        return f' It is a task of step "{step}": its result is `{read[step]}`.' if step else ""

    @cached_property
    def _read_as(self) -> dict[str, dict[str, str]]:
        """By the name of a task and its step: how other places read the task's result."""
        found: dict[str, dict[str, str]] = {}
        for step in self._steps:
            for task in step.tasks if step.loop is None else ():
                is_only = len(step.tasks) == 1
                read = step.name if is_only else f"{step.name}.results.{task.name}"
                found.setdefault(task.name, {})[step.name] = read
        return found

    def comes_first(self, step: str, other: str) -> bool:
        """Whether every way to the other step leads through this one."""
        behind = self._behind
        return step in behind and other in behind and behind[other][-1] in behind[step]

    @cached_property
    def _behind(self) -> dict[str, range]:
        """Which steps each step comes before."""
        graph = self._graph
        return {} if graph is None or self._entry not in graph else dominated(graph, self._entry)


class _Inside:
    """What templates of one step or workbook entry see; those at the root have none."""

    def __init__(self, known: _Known, body: Step | Block | None, *, outside: bool) -> None:
        self._known, self._body, self._outside = known, body, outside
        self.step = body if isinstance(body, Step) else None
        self.tasks = {task.name for task in known.parts(body).tasks} if body is not None else set()
        """The tasks, by which their results go among them."""

    @cached_property
    def names(self) -> set[str]:
        return self._known.shared | self.hidden

    @cached_property
    def hidden(self) -> set[str]:
        """Local names, which hide steps of the same name."""
        return {*self._local(), *(() if self._outside else self.tasks)}

    def _local(self) -> Iterator[str]:
        body = self._body
        if body is None:
            return
        parts = self._known.parts(body)
        for patch in parts.patches:
            yield from patch.iter
            yield from patch.local
        yield from (action.into for action in parts.actions if isinstance(action, Collect))
        if isinstance(body, Step):
            yield from body.args
            yield from self._known.arriving[body.name]
        else:
            yield from body.inputs
            yield from self._known.callers

    @cached_property
    def args(self) -> Yielded:
        """What can be there: of a step its own and those that tokens bring, of a workbook entry
        those of every step and caller, too.
        """
        known, body = self._known, self._body
        if isinstance(body, Step):
            return dict.fromkeys(["_tokens", *body.args, *sorted(known.arriving[body.name])])
        if body is None:
            return None
        return dict.fromkeys(["_tokens", *body.inputs, *sorted(known.callers)])

    @cached_property
    def inputs(self) -> set[str]:
        """What tasks give to their tools."""
        body = self._body
        tasks = self._known.parts(body).tasks if body is not None else ()
        return {name for task in tasks for name in task.inputs}

    @property
    def always_calls(self) -> bool:
        """Whether each run of the step renders its first task: a branch may not be taken, and a
        loop may be empty.
        """
        step = self.step
        return step is not None and not step.loop and not any(one.origin for one in step.tasks[:1])

    @property
    def timers(self) -> tuple[str, ...]:
        """The ids of the step's timers."""
        return tuple(one.id for one in self.step.timers) if self.step is not None else ()


OF_A_LOOP: Mapping[str, Yielded] = {
    "results": None,
    "stats": dict.fromkeys(("total", "success", "failed")),
    "errors": None,
}


def _yielded(step: Step, tools: Mapping[str, ToolShape], called: Mapping[str, Net]) -> Yielded:
    """What is known of a step's result: what its only task, its loop or its form declares."""
    if step.rules:
        actions = [one for rule in step.rules for one in rule.actions]
        results = [one for one in actions if isinstance(one, Result)]
        is_event = all(one.value == ANSWER_DATA for one in results) if results else not step.tasks
        return _heard(step) if is_event and not any(isinstance(x, Run) for x in actions) else None
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


def _heard(step: Step) -> Yielded:
    """What the data of events has for which a step waits, if only answers and timers are such."""
    names: set[str] = set()
    for rule in step.rules:
        if rule.events is None:
            return None
        names.update(rule.events)
    if not step.case.wait or names - {APPROVAL, TIMER} or (APPROVAL in names and not step.form):
        return None
    of_timers = TIMER_KEYS if TIMER in names else ()
    return dict.fromkeys([*(one.name for one in step.form), *of_timers])


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
    found = {step.name: {key for rule in step.admit for key in rule.args} for step in net.steps}
    if net.executor.on_failure in found:
        found[net.executor.on_failure] |= {"error", "failed_step"}
    for step in net.steps:
        if step.compensate is not None:
            found.setdefault(step.compensate, set()).update(("step", "result"))
        for way in building.parts(step).ways_out:
            names = list(found) if has_template(way.step) else [way.step]
            for name in names:
                found.get(name, set()).update(way.args)
    return found
