"""Compiled templates: what the rest of the house holds in its hands.

`Template` gives a value, `Condition` gives yes or no, `Compiled` gives a whole structure with the
templates in it filled in. All are immutable to their users and shared between threads; each picks
the fast path by itself once it has been used a few times.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Final

import msgspec
from jinja2 import nodes

from noetl.templates.analysis import Lookup, Path, Reads, required_texts, targets
from noetl.templates.checks import problems_of
from noetl.templates.errors import (
    BudgetExceeded,
    EvaluationFailed,
    TemplateRefused,
    explained,
    shortened,
)
from noetl.templates.evaluation import Evaluation, Undefined
from noetl.templates.expressions import Run, compile_plain, source_of
from noetl.templates.fast import BAIL, FALSE_TEXTS, Fast, compile_fast
from noetl.templates.filters import MAKE_TUPLES
from noetl.templates.operators import MOMENTS
from noetl.templates.parse import is_template, parse
from noetl.templates.scope import Scope
from noetl.templates.statements import compile_text_body
from noetl.templates.taint import Tainted
from noetl.templates.views import AliasedName

CACHED_TEMPLATES = 4096
USES_BEFORE_FAST = 3
"""Making the function costs about as much as fifty evaluations on the general path."""
BUILDING = (nodes.Mul, nodes.Add, nodes.List, nodes.Dict, nodes.Tuple, nodes.Filter, nodes.Call)
"""Nodes that can make a container in which parts are shared, larger than it looks."""
GUARDS = frozenset({"default", "d", "defined", "undefined"})
"""Filters and tests by which a template says that a name may be missing."""
PATH_SHOWN = 80
PASSING_FILTERS = frozenset({"default", "d", "first", "last"})


class Template:
    """A text with expressions, compiled. `evaluate` gives its value.

    A text that is one `{{ expression }}` and nothing else gives what the expression gives; any
    other text gives text. `reads` are the paths it may read, `lookups` the same on beyond indexes,
    `filters` and `called` what it uses.
    """

    __slots__ = (
        "_fast", "_makes_moments", "_makes_shared", "_makes_tuples", "_roots", "_run", "_tree",
        "_uses", "called", "expression", "filters", "lookups", "parts", "reads", "source",
    )  # fmt: skip

    def __init__(self, source: str) -> None:
        tree = parse(source)
        problems = problems_of(tree, source)
        if problems:
            raise TemplateRefused(problems)
        self.source: Final = source
        self.expression: Final = _only_expression(tree)
        self.parts: Final = _parts(tree)
        found = Reads()
        found.collect(tree, set())
        self.reads: Final[frozenset[Path]] = frozenset(found.paths)
        self.lookups: Final[frozenset[Lookup]] = frozenset(found.lookups)
        self.filters: Final = frozenset(found.filters)
        self.called: Final = frozenset(found.called)
        self._roots = frozenset(path[0] for path in found.paths)
        self._tree = tree
        self._run: Run | None = None
        self._makes_tuples = self._makes_shared = self._makes_moments = True
        self._fast: Fast | None = None
        self._uses = 0

    def _prepared(self) -> Run:
        """Made for the first evaluation: checking a playbook evaluates nothing."""
        if self._run is None:
            tree = self._tree
            self._makes_tuples = (
                not self.filters.isdisjoint(MAKE_TUPLES)
                or ".items" in self.called
                or tree.find(nodes.Tuple) is not None
            )
            self._makes_moments = "now" in self.called or "to_datetime" in self.filters
            self._makes_shared = any(_builds(node) for node in tree.find_all(BUILDING))
            self._run = self._compile(tree)
        return self._run

    def _compile(self, tree: nodes.Template) -> Run:
        if self.expression is not None:
            return compile_plain(self.expression, frozenset())
        bound = {name for node in tree.find_all(BINDING) for name in _bound_by(node)}
        write = compile_text_body(tree.body, frozenset(bound))

        def written(run: Evaluation) -> object:
            out: list[str] = []
            write(run, out)
            return "".join(out)

        return written

    def evaluate(self, scope: Scope, place: str = "") -> object:
        """The value; `Tainted` if a secret was read for it.

        Raises UndefinedValue if it needs something that is not there, BudgetExceeded if it costs
        too much, EvaluationFailed for everything else that does not work out. `place` says in
        messages where the template stands.
        """
        if self._fast is not None and not (scope.tainted and scope.may_taint(self._roots)):
            value = _tried(self._fast, scope)
            if value is not BAIL:
                return value
        return self.evaluate_generally(scope, place)

    def evaluate_generally(self, scope: Scope, place: str = "") -> object:
        """The same as `evaluate`, without the fast path."""
        if self._uses < USES_BEFORE_FAST:
            self._uses += 1
            if self._uses == USES_BEFORE_FAST:
                self._fast = self.fast_function(strict=True)
        return self._measured(scope, place, strict=True)

    def fast_function(self, *, strict: bool) -> Fast | None:
        if self.parts is None:
            return None
        native = self.expression is not None
        return compile_fast(self.parts, native=native, strict=strict)

    def undefined(self, scope: Scope) -> dict[str, str]:
        """What the expression looks up and does not find, with the name that was probably meant.

        Names that it expects to be missing at times (`default`, `is defined`) are left out, and so
        is what it does not get to. For messages: it evaluates the whole template once more.
        """
        missed: list[Undefined] = []
        # That it cannot be evaluated is reported by whoever wants its value.
        with suppress(EvaluationFailed):
            self._measured(scope, "", strict=False, missed=missed)
        secret = scope.may_taint(self._roots)
        return {
            shortened(one.path, PATH_SHOWN): "" if secret else one.nearest()
            for one in missed
            if not self.may_miss(one.path)
        }

    def may_miss(self, path: str) -> bool:
        """Whether the template says that this may be missing (`default`, `is defined`)."""
        return any(
            _reaches(source_of(node.node), path)
            for node in self._tree.find_all((nodes.Filter, nodes.Test))
            if isinstance(node, nodes.Filter | nodes.Test)
            and node.name in GUARDS
            and isinstance(node.node, nodes.Expr)
        )

    def _measured(
        self,
        scope: Scope,
        place: str,
        *,
        strict: bool,
        missed: list[Undefined] | None = None,
    ) -> object:
        """Evaluate on the general path; whatever goes wrong becomes one of our errors."""
        run = Evaluation(
            scope,
            strict=strict,
            may_taint=scope.may_taint(self._roots),
            place=place or self.source,
        )
        run.missed = missed
        try:
            value = self._finished(run, self._prepared()(run))
        except EvaluationFailed as error:
            raise explained(error, self.source, place) from None
        except RecursionError:
            cause: EvaluationFailed = BudgetExceeded("the data is nested too deeply")
            raise explained(cause, self.source, place) from None
        except Exception as error:  # noqa: BLE001  reported below; its own text may hold a secret
            cause = EvaluationFailed(f"does not fit the data ({type(error).__name__})")
            raise explained(cause, self.source, place) from None
        return Tainted(value) if run.tainted else value

    def _finished(self, run: Evaluation, value: object) -> object:
        """The value as it leaves us: defined, plain data, no larger than paid for.

        A time leaves as text (RFC 3339), which is what the record of it will say.
        """
        if type(value) is Undefined:
            return run.missing(value)
        if type(value) is AliasedName:
            return str(value)
        if self._makes_shared:
            run.walk(value)
        return _plain(value) if self._makes_tuples or self._makes_moments else value


def _reaches(guard: str, path: str) -> bool:
    """Whether the guarded expression is this path, or leads through it."""
    return guard == path or guard.startswith((f"{path}.", f"{path}["))


BINDING = (nodes.For, nodes.Assign, nodes.AssignBlock, nodes.With)


def _bound_by(node: nodes.Node) -> list[str]:
    if isinstance(node, nodes.With):
        return [name for target in node.targets for name in targets(target)]
    assert isinstance(node, nodes.For | nodes.Assign | nodes.AssignBlock)
    return [*targets(node.target), *(["loop"] if isinstance(node, nodes.For) else [])]


def _builds(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Filter):
        return node.name not in PASSING_FILTERS
    if isinstance(node, nodes.List | nodes.Dict):
        return bool(node.items)
    return True


def _parts(tree: nodes.Template) -> list[nodes.Node] | None:
    """The texts and expressions of a template without statements."""
    parts: list[nodes.Node] = []
    for node in tree.body:
        if not isinstance(node, nodes.Output):
            return None
        parts.extend(node.nodes)
    expression = _only_expression(tree)
    return parts if expression is None else [expression]


def _only_expression(tree: nodes.Template) -> nodes.Expr | None:
    """The expression of a template that is nothing else; whitespace around it does not count."""
    parts: list[nodes.Expr] = []
    for node in tree.body:
        if not isinstance(node, nodes.Output):
            return None
        parts.extend(node.nodes)
    told = [part for part in parts if not isinstance(part, nodes.TemplateData) or part.data.strip()]
    if len(told) != 1 or isinstance(told[0], nodes.TemplateData):
        return None
    return told[0]


def _tried(fast: Fast, scope: Scope) -> object:
    try:
        return fast(scope)
    except Exception:  # noqa: BLE001  the general path does it again and reports what is wrong
        return BAIL


def _plain(value: object) -> object:
    """Lists for tuples, text for times."""
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return msgspec.to_builtins(value) if isinstance(value, MOMENTS) else value


@lru_cache(maxsize=CACHED_TEMPLATES)
def compile_text(source: str) -> Template:
    """Compile a text; the same text gives the same template. Raises TemplateRefused."""
    return Template(source)


class Condition:
    """A template, or a plain value, asked for yes or no. What is undefined counts as no."""

    __slots__ = ("_fast", "_uses", "constant", "reads", "source", "template")

    def __init__(self, source: object) -> None:
        self.source: Final = source
        self.template: Final = (
            compile_text(source) if isinstance(source, str) and is_template(source) else None
        )
        self.constant: Final = holds(source) if self.template is None else None
        self.reads: Final[frozenset[Path]] = self.template.reads if self.template else frozenset()
        self._fast: Fast | None = None
        self._uses = 0

    def holds(self, scope: Scope, place: str = "") -> bool:
        """Whether it holds. Raises as `Template.evaluate` does, but not for undefined."""
        if self.template is None:
            return self.constant is True
        if self._fast is not None and not (scope.tainted and scope.may_taint(self.template._roots)):
            value = _tried(self._fast, scope)
            if value is not BAIL:
                return value is True
        return self.holds_generally(scope, place)

    def holds_generally(self, scope: Scope, place: str = "") -> bool:
        """The same as `holds`, without the fast path."""
        if self.template is None:
            return self.constant is True
        if self._uses < USES_BEFORE_FAST:
            self._uses += 1
            if self._uses == USES_BEFORE_FAST:
                self._fast = self.template.fast_function(strict=False)
        value = self.template._measured(scope, place, strict=False)
        return holds(value._value if isinstance(value, Tainted) else value)

    def undefined(self, scope: Scope) -> dict[str, str]:
        """What it looks up and does not find: see `Template.undefined`."""
        return self.template.undefined(scope) if self.template is not None else {}

    def required_texts(self, *path: str) -> frozenset[str] | None:
        """The texts one of which the value at the path must equal for this to hold.

        None: it can hold whatever that value is. For `event.name` this tells which events a
        condition is about.
        """
        if self.template is None:
            return None if self.constant else frozenset()
        if self.template.expression is None:
            return None
        return required_texts(self.template.expression, path)


def holds(value: object) -> bool:
    """What a condition makes of a value: text by its meaning, everything else by truth."""
    if isinstance(value, str):
        return value.strip() not in FALSE_TEXTS
    return bool(value)


def compile_condition(source: object) -> Condition:
    """Compile what stands where a condition is wanted: a template, or a native YAML value."""
    return _condition(source) if isinstance(source, str) else Condition(source)


@lru_cache(maxsize=CACHED_TEMPLATES)
def _condition(source: str) -> Condition:
    return Condition(source)
