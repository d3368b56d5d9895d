"""The expression language: compile once, evaluate bounded, on plain data only.

`compile_text(source).evaluate(scope)` gives a value, `compile_condition(source).holds(scope)` gives
yes or no, `compile_value(structure).render(scope)` fills in all templates of a structure. What was
computed from a secret comes back `Tainted`: `reveal` it to the tool, `mask` it to everyone else.
"""

from noetl.templates.errors import TemplateRefused
from noetl.templates.parser import is_template
from noetl.templates.scope import Limits, Scope
from noetl.templates.taint import MASK, Tainted, mask, reveal
from noetl.templates.template import (
    Compiled,
    Condition,
    Template,
    compile_condition,
    compile_text,
    compile_value,
    undefined_in,
)
from noetl.templates.views import (
    EventView,
    KeptView,
    LostView,
    OutcomeView,
    SelectedView,
    StepView,
    Views,
    ViewsByName,
    view,
)

__all__ = [
    "MASK",
    "Compiled",
    "Condition",
    "EventView",
    "KeptView",
    "Limits",
    "LostView",
    "OutcomeView",
    "Scope",
    "SelectedView",
    "StepView",
    "Tainted",
    "Template",
    "TemplateRefused",
    "Views",
    "ViewsByName",
    "compile_condition",
    "compile_text",
    "compile_value",
    "is_template",
    "mask",
    "reveal",
    "undefined_in",
    "view",
]
