"""Calls a language model over the OpenAI chat protocol, and checks the form of its answer."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from noetl.model.outcome import Meta, Outcome, TaskError
from noetl.model.schemas import compiled, place_in, problems
from noetl.tools.base import ToolContext
from noetl.tools.credentials import bearer, fields_of
from noetl.tools.failures import Failed
from noetl.tools.llm import Llm
from noetl.tools.plain_data import NotPlain, plain, read_json
from noetl.tools.web.service import ask

_FENCED = re.compile(r"\s*```(?:json)?\s*\n(.*?)\n\s*```\s*", re.DOTALL)
"""Models often wrap JSON in a code block."""


async def run(config: Llm, context: ToolContext) -> Outcome:
    if (wrong := next(problems(config.schema or {}, extended=True), None)) is not None:
        place, told = wrong
        raise Failed("client_error", f"The schema itself cannot be used: {place_in(place)}: {told}")
    fields = await fields_of(config.auth, context)
    answer = await ask(
        context,
        "POST",
        f"{config.url.rstrip('/')}/chat/completions",
        json=_body(config),
        headers={**bearer(fields), **config.headers},
        timeout=config.timeout,
    )
    return _outcome(config, answer.data)


def _body(config: Llm) -> dict[str, Any]:
    messages = [
        {name: value for name, value in written.items() if value not in (None, [], ())}
        for written in msgspec.to_builtins(config.messages or ())
    ]
    if config.prompt is not None:
        messages.append({"role": "user", "content": config.prompt})
    if config.system is not None:
        messages.insert(0, {"role": "system", "content": config.system})
    wanted: dict[str, Any] = {
        "model": config.model,
        "messages": messages,
        "temperature": config.temperature,
        "top_p": config.top_p,
        "max_tokens": config.max_tokens,
        "stop": config.stop,
        "seed": config.seed,
        "tools": config.tools or None,
    }
    if config.schema is not None:
        form = {"name": "answer", "schema": config.schema}
        wanted["response_format"] = {"type": "json_schema", "json_schema": form}
    return {name: value for name, value in wanted.items() if value is not None} | config.options


def _outcome(config: Llm, body: Any) -> Outcome:
    try:
        choice = body["choices"][0]
        said = choice["message"]
        text = said.get("content") or said.get("refusal") or ""
        usage = plain(body.get("usage"))
        calls = plain(said.get("tool_calls") or [])
        # Some models answer in parts, such as their thoughts and a text.
        parts = text if isinstance(text, list) else [{"text": text}]
        text = "".join(part.get("text") or "" for part in parts)
    except (KeyError, IndexError, TypeError, AttributeError, NotPlain):
        raise Failed("parse", f"The answer of {config.url} is not a chat completion.") from None
    meta = Meta(usage=usage)
    data: Any = text
    if config.schema is not None and not calls:
        data, lack = _conforming(text, config.schema)
        if lack is not None:
            is_cut = choice.get("finish_reason") == "length"
            cut = " It was cut off: raise `max_tokens`." if is_cut else ""
            error = TaskError(
                kind="schema",
                message=f"The answer does not fulfil `schema`: {lack}{cut}",
                retryable=True,
                details={"text": text[:2000]},
            )
            return Outcome(status="error", error=error, meta=meta)
    result = {
        "text": text,
        "data": data,
        "finish_reason": choice.get("finish_reason"),
        "tool_calls": calls,
        "model": body.get("model", config.model),
    }
    return Outcome(status="ok", result=result, meta=meta)


def _conforming(text: str, schema: dict[str, Any]) -> tuple[Any, str | None]:
    """The value in the text, and what is wrong with it, if anything."""
    fenced = _FENCED.fullmatch(text)
    try:
        value = plain(read_json(fenced.group(1) if fenced else text))
    except (msgspec.DecodeError, NotPlain) as error:
        return None, f"it is not JSON ({error})."
    return value, compiled(schema).wrong(value)
