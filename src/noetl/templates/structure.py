"""Templates inside structures: a mapping or list as it stands in a playbook, to be filled in.

Parts without a template stay the objects they are and cost nothing. Keys are never templates.
"""

from __future__ import annotations

from typing import Final

from noetl.templates.analysis import Path
from noetl.templates.errors import TemplateProblem, TemplateRefused
from noetl.templates.parse import is_template
from noetl.templates.scope import Scope
from noetl.templates.template import Template, compile_text


class Compiled:
    """A structure with templates at some of its leaves."""

    __slots__ = ("_plan", "is_literal", "reads", "source", "templates")

    def __init__(self, source: object, plan: _Plan | None) -> None:
        self.source: Final = source
        self._plan = plan
        self.is_literal: Final = plan is None
        self.templates: Final = tuple(plan.templates()) if plan else ()
        self.reads: Final[frozenset[Path]] = frozenset().union(
            *(template.reads for template in self.templates)
        )

    def render(self, scope: Scope, place: str = "") -> object:
        """The structure with every template replaced by its value.

        Secrets are `Tainted` leaves: `reveal` or `mask` the result. Without a template in it the
        structure itself is given back. Errors name the place within the structure.
        """
        return self.source if self._plan is None else self._plan.render(scope, place)


class _Plan:
    """How to make one part of the structure anew."""

    __slots__ = ()

    def render(self, scope: Scope, place: str) -> object:
        raise NotImplementedError

    def templates(self) -> list[Template]:
        raise NotImplementedError


class _Leaf(_Plan):
    __slots__ = ("_template",)

    def __init__(self, template: Template) -> None:
        self._template = template

    def render(self, scope: Scope, place: str) -> object:
        return self._template.evaluate(scope, place)

    def templates(self) -> list[Template]:
        return [self._template]


class _Branch(_Plan):
    """A mapping or list some of whose parts change; the others are taken over."""

    __slots__ = ("_changing", "_source")

    def __init__(
        self, source: dict[object, object] | list[object], changing: dict[object, _Plan]
    ) -> None:
        self._source = source
        self._changing = changing

    def render(self, scope: Scope, place: str) -> object:
        made = self._source.copy()
        for key, plan in self._changing.items():
            made[key] = plan.render(scope, _below(place, key))  # type: ignore[call-overload]
        return made

    def templates(self) -> list[Template]:
        return [each for plan in self._changing.values() for each in plan.templates()]


def _below(place: str, key: object) -> str:
    if isinstance(key, int):
        return f"{place}[{key}]"
    return f"{place}.{key}" if place else str(key)


def compile_value(value: object) -> Compiled:
    """Compile whatever stands where a value is wanted.

    Raises TemplateRefused with the problems of all its leaves, each with its path.
    """
    problems: list[TemplateProblem] = []
    plan = _plan(value, (), problems)
    if problems:
        raise TemplateRefused(tuple(problems))
    return Compiled(value, plan)


def _plan(
    value: object, path: tuple[str | int, ...], problems: list[TemplateProblem]
) -> _Plan | None:
    if isinstance(value, str):
        return _leaf(value, path, problems) if is_template(value) else None
    if not isinstance(value, dict | list):
        return None
    changing: dict[object, _Plan] = {}
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        plan = _plan(part, (*path, key if isinstance(key, int) else str(key)), problems)
        if plan is not None:
            changing[key] = plan
    return _Branch(value, changing) if changing else None


def _leaf(text: str, path: tuple[str | int, ...], problems: list[TemplateProblem]) -> _Plan | None:
    try:
        return _Leaf(compile_text(text))
    except TemplateRefused as refusal:
        for problem in refusal.problems:
            problems.append(
                TemplateProblem(
                    problem.code,
                    problem.message,
                    problem.offset_line,
                    problem.offset_column,
                    path,
                )
            )
        return None
