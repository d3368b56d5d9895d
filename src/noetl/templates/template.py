"""Compiled templates, as the rest of the code uses them.

`Template` gives a value, `Condition` gives yes or no, `Compiled` gives a whole structure with the
templates in it filled in. All of them are immutable to their users and shared between threads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
from jinja2 import nodes

from noetl.errors import BudgetExceeded, EvaluationFailed
from noetl.templates.analysis import (
    Lookup,
    Path,
    Reads,
    compared_texts,
    paths_as_lists,
    required_texts,
)
from noetl.templates.compiler import Code, compile_tree, source_of
from noetl.templates.errors import TemplateProblem, TemplateRefused, explained, shortened
from noetl.templates.evaluation import Evaluation, Undefined
from noetl.templates.filters import MAKE_TUPLES
from noetl.templates.operators import MOMENTS
from noetl.templates.parser import is_template, parse
from noetl.templates.scope import Scope
from noetl.templates.taint import Tainted
from noetl.templates.views import AliasedName

CACHED_TEMPLATES = 4096
FALSE_TEXTS = frozenset({"", "false", "False", "0", "no", "none", "None"})
"""Texts that make a condition false."""
GUARDS = frozenset({"default", "d", "defined", "undefined"})
"""Filters and tests by which a template says that a name may be missing."""
_BRACKETS = re.compile(r"\['([^']*)'\]")
"""A key in brackets: `ctx['x']` is the path `ctx.x`."""
PATH_SHOWN = 80
BUILDING = (nodes.Mul, nodes.Filter, nodes.Call)
"""Nodes that can make a container in which parts are shared, much larger than it looks."""
PASSING_FILTERS = frozenset({"default", "d", "first", "last"})
NAMES_UNCHECKED = 16
"""A container that is written out cannot be larger than what these many names hold."""


class Template:
    """A text with expressions, compiled. `evaluate` gives its value.

    A text that is just one `{{ expression }}` gives the value of the expression; any other text
    gives text. `reads` are the paths that it may read, `lookups` the same beyond indexes, `filters`
    and `called` what it uses. The code is generated at the first evaluation, because checking a
    playbook evaluates nothing.
    """

    __slots__ = (
        "_careful",
        "_compared",
        "_inline",
        "_makes_plain",
        "_makes_shared",
        "_roots",
        "_tree",
        "called",
        "code",
        "expression",
        "filters",
        "lookups",
        "parts",
        "reads",
        "source",
    )  # fmt: skip

    def __init__(self, source: str, *, inline: bool = True) -> None:
        tree = parse(source)
        self.source: Final = source
        self.parts: Final = _parts(tree)
        self.expression: Final = _only_expression(self.parts)
        found = Reads()
        found.collect(tree, set())
        self.reads: Final[frozenset[Path]] = frozenset(found.paths)
        self.lookups: Final[frozenset[Lookup]] = frozenset(found.lookups)
        self.filters: Final = frozenset(found.filters)
        self.called: Final = frozenset(found.called)
        self._roots = frozenset(path[0] for path in found.paths)
        self._tree = tree
        self._inline = inline
        self._makes_plain = self._makes_shared = False
        self.code: Code | None = None
        self._careful: Code | None = None
        self._compared: tuple[tuple[Path, str], ...] | None = None

    def evaluate(self, scope: Scope, place: str = "") -> object:
        """The value; `Tainted` if a secret was read for it.

        Raises UndefinedValue if it needs something that is missing, BudgetExceeded if it costs too
        much, and EvaluationFailed for every other failure. Messages begin with `place`.
        """
        code = self.code
        if code is None or (scope.tainted and scope.may_taint(self._roots)):
            return self.compute(scope, place, strict=True)
        try:
            return code(scope, place, True)
        except Exception as error:  # noqa: BLE001  each becomes a NoetlError
            raise self.explain(error, place) from None

    def compute(
        self, scope: Scope, place: str, *, strict: bool, missed: list[Undefined] | None = None
    ) -> object:
        """The value. Undefined values raise only if `strict`; `missed` collects them."""
        run = self._begin(scope, place, strict)
        run.missed = missed
        try:
            if run.may_taint or missed is not None:
                code = self._careful or self._compile(inline=False)
            else:
                code = self.code or self._compile(inline=self._inline)
            return code(scope, place, strict, run)
        except Exception as error:  # noqa: BLE001  each becomes a NoetlError
            raise self.explain(error, place) from None

    def _begin(self, scope: Scope, place: str, strict: bool) -> Evaluation:
        may_taint = scope.may_taint(self._roots)
        return Evaluation(scope, strict=strict, may_taint=may_taint, place=place or self.source)

    def _compile(self, *, inline: bool) -> Code:
        tree = self._tree
        makes_tuples = (
            not self.filters.isdisjoint(MAKE_TUPLES)
            or ".items" in self.called
            or tree.find(nodes.Tuple) is not None
        )
        makes_moments = "now" in self.called or "to_datetime" in self.filters
        names = sum(1 for _ in tree.find_all(nodes.Name))
        self._makes_plain = makes_tuples or makes_moments
        self._makes_shared = names > NAMES_UNCHECKED or any(map(_builds, tree.find_all(BUILDING)))
        code = compile_tree(
            tree,
            self.expression,
            begin=self._begin,
            finish=self._finish,
            checks=self._makes_plain or self._makes_shared,
            inline=inline,
        )
        if not inline:
            self._careful = code
        if inline is self._inline:
            self.code = code
        return code

    def _finish(self, run: Evaluation, value: object) -> object:
        """The final value: defined, plain data, no larger than was paid for.

        A time becomes text (RFC 3339), as it will be recorded.
        """
        if type(value) is Undefined:
            value = run.missing(value)
        elif type(value) is AliasedName:
            value = str(value)
        else:
            if self._makes_shared:
                run.walk(value)
            if self._makes_plain:
                value = _plain(value)
        return Tainted(value) if run.tainted else value

    def explain(self, error: Exception, place: str) -> EvaluationFailed:
        """The error with place and expression, without Python's text, which may hold a secret."""
        if isinstance(error, RecursionError):
            error = BudgetExceeded("the data is nested too deeply")
        if not isinstance(error, EvaluationFailed):
            error = EvaluationFailed(f"does not fit the data ({type(error).__name__})")
        return explained(error, self.source, place)

    def undefined(self, scope: Scope) -> dict[str, str]:
        """The lookups that find nothing, each with the name that was probably meant.

        Leaves out names that the template guards (`default`, `is defined`) and lookups that it does
        not reach. For messages only: it evaluates the whole template once more.
        """
        missed: list[Undefined] = []
        # A failure is reported where the value is needed.
        with suppress(EvaluationFailed):
            self.compute(scope, "", strict=False, missed=missed)
        secret = scope.may_taint(self._roots)
        return {
            shortened(one.path, PATH_SHOWN): "" if secret else one.nearest()
            for one in missed
            if not self.may_miss(one.path)
        }

    def may_miss(self, path: str) -> bool:
        """Whether the template guards this path (`default`, `is defined`)."""
        return any(
            _reaches(_BRACKETS.sub(r".\1", source_of(node.node)), path)
            for node in self._tree.find_all((nodes.Filter, nodes.Test))
            if isinstance(node, nodes.Filter | nodes.Test)
            and node.name in GUARDS
            and isinstance(node.node, nodes.Expr)
        )

    def paths_as_lists(self) -> Iterator[Path]:
        """The plain paths whose items it goes over, by a filter or a loop."""
        return paths_as_lists(self._tree)

    def compared_texts(self) -> tuple[tuple[Path, str], ...]:
        """The texts that it compares with values at plain paths."""
        if self._compared is None:
            self._compared = tuple(compared_texts(self._tree))
        return self._compared


def _reaches(guard: str, path: str) -> bool:
    """Whether the guarded expression is this path, or begins with it."""
    return guard == path or guard.startswith((f"{path}.", f"{path}["))


def _builds(node: nodes.Node) -> bool:
    return not isinstance(node, nodes.Filter) or node.name not in PASSING_FILTERS


def _parts(tree: nodes.Template) -> list[nodes.Expr] | None:
    """The texts and expressions of a template without statements.

    Whitespace around a single expression is left out.
    """
    parts: list[nodes.Expr] = []
    for node in tree.body:
        if not isinstance(node, nodes.Output):
            return None
        parts.extend(node.nodes)
    bare = [part for part in parts if not isinstance(part, nodes.TemplateData) or part.data.strip()]
    return bare if _only_expression(bare) is not None else parts


def _only_expression(parts: list[nodes.Expr] | None) -> nodes.Expr | None:
    """The expression of a template that consists of one expression."""
    if parts is None or len(parts) != 1 or isinstance(parts[0], nodes.TemplateData):
        return None
    return parts[0]


def _plain(value: object) -> object:
    """The value with lists for tuples and texts for times."""
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return msgspec.to_builtins(value) if isinstance(value, MOMENTS) else value


@lru_cache(maxsize=CACHED_TEMPLATES)
def compile_text(source: str) -> Template:
    """Compile a text; the same text gives the same template. Raises TemplateRefused."""
    return Template(source)


# --- Conditions ----------------------------------------------------------------------------------


class Condition:
    """A template or plain value that is true or false. An undefined value is false."""

    __slots__ = ("constant", "reads", "source", "template")

    def __init__(self, source: object, template: Template | None = None) -> None:
        self.source: Final = source
        if template is None and isinstance(source, str) and is_template(source):
            template = compile_text(source)
        self.template: Final = template
        self.constant: Final = holds(source) if template is None else None
        self.reads: Final[frozenset[Path]] = template.reads if template else frozenset()

    def holds(self, scope: Scope, place: str = "") -> bool:
        """Whether it holds. Raises as `Template.evaluate` does, except UndefinedValue."""
        template = self.template
        if template is None:
            return self.constant is True
        code = template.code
        if code is None or scope.tainted:
            value = template.compute(scope, place, strict=False)
        else:
            try:
                value = code(scope, place, False)
            except Exception as error:  # noqa: BLE001  each becomes a NoetlError
                raise template.explain(error, place) from None
        if value is True or value is False:
            return value
        return holds(value._value if isinstance(value, Tainted) else value)

    def undefined(self, scope: Scope) -> dict[str, str]:
        """The lookups that find nothing: see `Template.undefined`."""
        return self.template.undefined(scope) if self.template is not None else {}

    def required_texts(self, *path: str) -> frozenset[str] | None:
        """The condition holds only if the value at the path equals one of these texts.

        None: it may hold for any value. For `event.name` these are the events that a condition is
        about.
        """
        if self.template is None:
            return None if self.constant else frozenset()
        if self.template.expression is None:
            return None
        return required_texts(self.template.expression, path)


def undefined_in(conditions: Iterable[Condition | None], scope: Scope) -> dict[str, str]:
    """The lookups of all of them that find nothing."""
    found: dict[str, str] = {}
    for one in conditions:
        found |= one.undefined(scope) if one is not None else {}
    return found


def holds(value: object) -> bool:
    """The truth of a value in a condition: texts such as "false" and "0" are false."""
    if isinstance(value, str):
        return value.strip() not in FALSE_TEXTS
    return bool(value)


def compile_condition(source: object) -> Condition:
    """Compile a condition: a template, or a plain YAML value."""
    return _condition(source) if isinstance(source, str) else Condition(source)


@lru_cache(maxsize=CACHED_TEMPLATES)
def _condition(source: str) -> Condition:
    return Condition(source)


# --- Structures ----------------------------------------------------------------------------------


class Compiled:
    """A mapping or list as it stands in a playbook, with templates at some of its leaves.

    Parts without a template are the same objects in every result. Keys are never templates.
    """

    __slots__ = ("_plan", "is_literal", "reads", "source", "templates")

    def __init__(self, source: object, plan: _Plan | None) -> None:
        self.source: Final = source
        self._plan = plan
        self.is_literal: Final = plan is None
        self.templates: Final = tuple(_templates_of(plan)) if plan is not None else ()
        self.reads: Final[frozenset[Path]] = frozenset().union(
            *(template.reads for template in self.templates)
        )

    def render(self, scope: Scope, place: str = "") -> object:
        """The structure with every template replaced by its value.

        Secrets are `Tainted` leaves: `reveal` or `mask` the result. A structure without templates
        is returned itself. Errors name the place within the structure.
        """
        return self.source if self._plan is None else _render(self._plan, scope, place)


class _Branch(NamedTuple):
    """A mapping or list of which some parts change; the others are shared."""

    source: dict[object, object] | list[object]
    changing: dict[object, _Plan]


_Plan = Template | _Branch


def _render(plan: _Plan, scope: Scope, place: str) -> object:
    if isinstance(plan, Template):
        return plan.evaluate(scope, place)
    made = plan.source.copy()
    for key, part in plan.changing.items():
        made[key] = _render(part, scope, _below(place, key))  # type: ignore[call-overload]
    return made


def _templates_of(plan: _Plan) -> list[Template]:
    if isinstance(plan, Template):
        return [plan]
    return [each for part in plan.changing.values() for each in _templates_of(part)]


def _below(place: str, key: object) -> str:
    if isinstance(key, int):
        return f"{place}[{key}]"
    return f"{place}.{key}" if place else str(key)


def compile_value(value: object) -> Compiled:
    """Compile a value that may contain templates.

    Raises TemplateRefused with the problems of all its leaves.
    """
    problems: list[TemplateProblem] = []
    plan = _plan_of(value, problems)
    if problems:
        raise TemplateRefused(tuple(problems))
    return Compiled(value, plan)


def _plan_of(value: object, problems: list[TemplateProblem]) -> _Plan | None:
    if isinstance(value, str) and is_template(value):
        try:
            return compile_text(value)
        except TemplateRefused as refusal:
            problems += refusal.problems
            return None
    if not isinstance(value, dict | list):
        return None
    changing: dict[object, _Plan] = {}
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        plan = _plan_of(part, problems)
        if plan is not None:
            changing[key] = plan
    return _Branch(value, changing) if changing else None
