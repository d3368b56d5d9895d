"""What the compiler needs to know of templates: whether they are valid, and what they read."""

from __future__ import annotations

from jinja2 import nodes

from noetl.errors import EvaluationFailed
from noetl.templates import Scope, Template, TemplateRefused, compile_condition, compile_text
from noetl.templates.analysis import Path, path_of
from noetl.templates.template import GUARDS

REFUSED_MAX = 256 * 1024
"""After refused templates of this many characters, the rest of a document is not checked."""

_FAILED = {"status": "error", "error": {"kind": "unknown"}}
_ERROR = {"outcome": _FAILED, "output": _FAILED, "error": _FAILED["error"]}
_ANY_ERROR = Scope(_ERROR)


class Expressions:
    """The templates of one document, each compiled once."""

    def __init__(self) -> None:
        self._known: dict[str, Template | tuple[tuple[str, str], ...]] = {}
        self._refused = 0

    def _attempt(self, source: str) -> Template | tuple[tuple[str, str], ...]:
        found = self._known.get(source)
        if found is None:
            found = self._known[source] = self._compile(source)
        return found

    def _compile(self, source: str) -> Template | tuple[tuple[str, str], ...]:
        if self._refused > REFUSED_MAX:
            return ()  # the document is refused already; checking more would only take time
        try:
            return compile_text(source)
        except TemplateRefused as refused:
            self._refused += len(source)
            return tuple((problem.code, problem.message) for problem in refused.problems)

    def compiled(self, source: str) -> Template | None:
        """The template, or None if it is refused; `refusal` says why."""
        found = self._attempt(source)
        return found if isinstance(found, Template) else None

    def refusal(self, source: str) -> tuple[tuple[str, str], ...]:
        """What is wrong with a template, as code and message; empty if nothing is."""
        found = self._attempt(source)
        return found if isinstance(found, tuple) else ()

    def reads(self, source: str) -> frozenset[Path]:
        """The static paths that a template reads; none for one that is refused (and reported)."""
        template = self.compiled(source)
        return template.reads if template is not None else frozenset()

    def event_names(self, source: str) -> tuple[str, ...] | None:
        """The `event.name`s for which this condition can hold; None if unknown."""
        if self.compiled(source) is None:
            return None
        names = compile_condition(source).required_texts("event", "name")
        return None if names is None else tuple(sorted(names))

    def is_put_together(self, source: str) -> bool:
        """Whether it puts texts and values together, as in `{{ a }} and {{ b }}`.

        Its value is a text then, and as a condition true whatever the values are.
        """
        template = self.compiled(source)
        return template is not None and template.parts is not None and template.expression is None

    def holds_for_any_error(self, source: str) -> bool:
        """Whether the condition holds for an error of which nothing more is known."""
        template = self.compiled(source)
        if template is None or _asks_for_more(template.expression):
            return False
        try:
            return compile_condition(source).holds(_ANY_ERROR)
        except EvaluationFailed:
            return False


def _asks_for_more(expression: nodes.Expr | None) -> bool:
    """Whether one side of an `and` compares something that not every error has.

    `outcome.status == 'error' and outcome.http.status in [429, 503]` is the usual rule. It is told
    apart here, because to evaluate a condition once costs more than all else that is done with it.
    """
    if isinstance(expression, nodes.And):
        return _asks_for_more(expression.left) or _asks_for_more(expression.right)
    if not isinstance(expression, nodes.Compare) or expression.ops[0].op not in ("eq", "in"):
        return False
    path = path_of(expression.expr)
    return path is not None and path[0] in _ERROR and not _has(_ERROR, path)


def _has(value: object, path: Path) -> bool:
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return False
        value = value[key]
    return True


def guarded(template: Template) -> frozenset[str]:
    """Names that the template guards against being missing."""
    return frozenset(
        path[0]
        for part in template.parts or ()
        for node in [part, *part.find_all((nodes.Filter, nodes.Test))]
        if isinstance(node, nodes.Filter | nodes.Test)
        and node.name in GUARDS
        and node.node is not None
        and (path := path_of(node.node)) is not None
    )


def may_choose(template: Template) -> bool:
    """Whether a part of the template may be left out when it is evaluated."""
    choices = (nodes.CondExpr, nodes.And, nodes.Or)
    return template.parts is None or any(
        isinstance(part, choices) or any(part.find_all(choices)) for part in template.parts
    )
