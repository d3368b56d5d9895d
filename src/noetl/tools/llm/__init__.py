"""kind: llm. A chat completion from any endpoint that speaks the OpenAI protocol."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from noetl.tools.base import (
    Count,
    Credential,
    Duration,
    Name,
    Options,
    Tool,
    ToolConfig,
    about,
    run_of,
)
from noetl.tools.web.request import SERVICE_ERRORS

Temperature = Annotated[float, msgspec.Meta(ge=0, le=2)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class Message(Options, frozen=True, kw_only=True):
    """One turn of the conversation."""

    role: Annotated[
        Literal["system", "developer", "user", "assistant", "tool"], about("Who speaks.")
    ]
    content: Annotated[
        str | tuple[dict[str, Any], ...] | None, about("What is said: text, or parts of it.")
    ] = None
    tool_calls: Annotated[
        tuple[dict[str, Any], ...], about("Calls the assistant asked for in this turn.")
    ] = ()
    tool_call_id: Annotated[str | None, about("The call a `tool` turn answers.")] = None


class Llm(ToolConfig, frozen=True, kw_only=True):
    """What a playbook writes under `kind: llm`."""

    model: Annotated[Name | None, about("Model to ask.")] = None
    prompt: Annotated[str | None, about("What to ask, as one user message.")] = None
    messages: Annotated[
        tuple[Message, ...] | None, about("The conversation so far, instead of `prompt`.")
    ] = None
    system: Annotated[str | None, about("Instructions put before the conversation.")] = None
    schema: Annotated[
        dict[str, Any] | None,
        about("JSON Schema the answer must fulfil; `data` is then the parsed value."),
    ] = None
    url: Annotated[Name, about("Base address of the endpoint.")] = "https://api.openai.com/v1"
    auth: Annotated[Credential | None, about("Credential that holds the API key.")] = None
    headers: Annotated[dict[str, str], about("Further request headers.")] = {}
    temperature: Annotated[Temperature | None, about("How freely it words the answer.")] = None
    top_p: Annotated[Share | None, about("Share of likely words to choose from.")] = None
    max_tokens: Annotated[Count | None, about("Length of the answer at most.")] = None
    stop: Annotated[str | tuple[str, ...] | None, about("Texts at which the answer ends.")] = None
    seed: Annotated[int | None, about("Same seed, same answer, where the model can.")] = None
    tools: Annotated[
        tuple[dict[str, Any], ...], about("Functions the model may ask to call, as the API has it.")
    ] = ()
    options: Annotated[dict[str, Any], about("Further fields for the request's body.")] = {}
    timeout: Annotated[Duration, about("How long to wait for the answer.")] = 120


EXAMPLE = """\
- step: classify
  tool:
    kind: llm
    url: http://localhost:11434/v1
    model: llama3.2
    system: You sort customer letters.
    prompt: "{{ workload.letter }}"
    schema:
      type: object
      properties:
        topic: { enum: [billing, delivery, other] }
      required: [topic]
    temperature: 0
"""

TOOL = Tool(
    kind="llm",
    example=EXAMPLE,
    summary="Asks a language model.",
    config=Llm,
    run=run_of("noetl.tools.llm.run"),
    errors=(*SERVICE_ERRORS, "schema"),
    aliases={"credential": "auth"},
    needs=(("model",), ("prompt", "messages")),
)
