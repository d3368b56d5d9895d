"""/api/language: help for editors: completion, hover, problems with the graph, expressions,
formatting and migration.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal

import msgspec

from noetl.api.route import Body, Caller, Route, Services
from noetl.api.routes.context import Render, render
from noetl.dsl import assist
from noetl.dsl.schema import playbook_schema
from noetl.errors import BadRequest
from noetl.model.language import (
    LanguageDocument,
    RemarkDocument,
)
from noetl.model.net import digest as digest_of
from noetl.tools.registry import tools

TEXT_MAX = 512 * 1024
Position = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]


class Language(Body, frozen=True, kw_only=True):
    """A text being written, and a position in it."""

    content: Annotated[str, msgspec.Meta(max_length=TEXT_MAX)] = ""
    want: Literal["completion", "hover", "problems", "value", "format", "migration"] = "completion"
    line: Position = 1
    column: Position = 1
    """Both count from 1; the column is that of the cursor."""
    expression: str | None = None
    """For `want: value`: a template to evaluate as a step of a recorded execution."""
    execution_id: str | None = None
    step: str | None = None
    iteration: int | None = None
    seq: Annotated[int, msgspec.Meta(ge=1, le=2**62)] | None = None
    """Evaluate after this event; by default after the last one."""


async def language(services: Services, caller: Caller, *, body: Language) -> LanguageDocument:
    """What may be written at a position of a playbook, what is there, or what is wrong with the
    text.

    `problems` come with the graph, if there is one. `value` is the value of an expression in a
    recorded execution; secrets are not in scope. `format` and `migration` return the whole new
    text.
    """
    match body.want:
        case "completion":
            found = assist.offers(body.content, body.line, body.column, _schema())
            return LanguageDocument(completions=found)
        case "hover":
            told = assist.about(body.content, body.line, body.column, _schema())
            return LanguageDocument(hover=told)
        case "problems":
            compiled = await services.evaluator.compiled(body.content, caller.name)
            layout = None
            if compiled.net is not None:
                digest = digest_of(compiled.net)
                layout = await services.catalog.layouts.of(digest, compiled.net)
            return LanguageDocument(problems=list(compiled.problems), layout=layout)
        case "format" | "migration":
            made = await services.evaluator.rewritten(
                body.content, caller.name, migrates=body.want == "migration"
            )
            said = [(one.line, one.message, True) for one in made.changes]
            said += [(one.line, one.message, False) for one in made.remarks]
            remarks = [
                RemarkDocument(line=line, message=message, changed=changed)
                for line, message, changed in sorted(said)
            ]
            return LanguageDocument(text=made.text, remarks=remarks)
        case "value":
            return LanguageDocument(value=await _value(services, caller, body))


async def _value(services: Services, caller: Caller, body: Language) -> Any:
    if body.expression is None or body.execution_id is None:
        raise BadRequest("a value needs an `expression` and the `execution_id` to read from.")
    wish = Render(
        execution_id=body.execution_id,
        step=body.step,
        iteration=body.iteration,
        template=body.expression,
        seq=body.seq,
    )
    return (await render(services, caller, body=wish)).rendered


@cache
def _schema() -> dict[str, Any]:
    return playbook_schema(tools())


LANGUAGE = Route("language.assist", "POST", "/api/language", "read", language, body=Language)
