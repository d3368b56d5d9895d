"""What the compiler asks of templates: are they right, what do they read, what do they mean?"""

from __future__ import annotations

from functools import lru_cache

from jinja2 import nodes

from noetl.templates import (
    EvaluationFailed,
    Scope,
    Template,
    TemplateRefused,
    compile_condition,
    compile_text,
)
from noetl.templates.analysis import Path, path_of

CACHED_MAX = 16_384
GUARDS = frozenset({"default", "d", "defined", "undefined"})

_ANY_ERROR = Scope(
    {"outcome": {"status": "error", "error": {"kind": "unknown"}}, "error": {"kind": "unknown"}}
)


def compiled(source: str) -> Template | None:
    """The template, or None if it is refused; `refusal` says why."""
    try:
        return compile_text(source)
    except TemplateRefused:
        return None


def refusal(source: str) -> tuple[tuple[str, str], ...]:
    """What is wrong with a template, as code and message; empty if nothing is."""
    try:
        compile_text(source)
    except TemplateRefused as refused:
        return tuple((problem.code, problem.message) for problem in refused.problems)
    return ()


def reads(source: str) -> frozenset[Path]:
    """The static paths a template reads; nothing for one that is refused (and reported)."""
    template = compiled(source)
    return template.reads if template is not None else frozenset()


def guarded(template: Template) -> frozenset[str]:
    """Names that the template itself expects to be missing at times."""
    return frozenset(
        path[0]
        for part in template.parts or ()
        for node in [part, *part.find_all((nodes.Filter, nodes.Test))]
        if isinstance(node, nodes.Filter | nodes.Test)
        and node.name in GUARDS
        and (path := path_of(node.node)) is not None
    )


@lru_cache(maxsize=CACHED_MAX)
def event_names(source: str) -> tuple[str, ...] | None:
    """The `event.name`s for which this condition can hold; None where that cannot be told."""
    try:
        names = compile_condition(source).required_texts("event", "name")
    except TemplateRefused:
        return None
    return None if names is None else tuple(sorted(names))


@lru_cache(maxsize=CACHED_MAX)
def holds_for_any_error(source: str) -> bool:
    """Whether the condition holds for an error of which nothing particular is known."""
    try:
        return compile_condition(source).holds(_ANY_ERROR)
    except (TemplateRefused, EvaluationFailed):
        return False
