"""kind: llm, against a local server that speaks the OpenAI chat protocol."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.tools.chat_server import Chat
from tests.tools.running import failure, ran
from tests.tools.services import answering, free_port

SCHEMA = {
    "type": "object",
    "properties": {"topic": {"enum": ["billing", "other"]}},
    "required": ["topic"],
}
USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}


@pytest.fixture
def chat():
    chat = Chat()
    with answering(*chat.routes()) as url:
        chat.url = f"{url}/v1"
        chat.base = url
        yield chat


def ask(chat: Chat, **config: Any) -> Any:
    written = {"url": chat.url, "model": "m", "prompt": "hi", **config}
    return ran("llm", written, settings={"credentials": {"key": {"api_key": "canary-key"}}})


def test_a_prompt_is_answered_and_the_tokens_are_counted(chat):
    outcome = ask(chat, system="Be short.", temperature=0, max_tokens=9, options={"user": "u"})

    assert outcome.result == {
        "text": "hello",
        "data": "hello",
        "finish_reason": "stop",
        "tool_calls": [],
        "model": "trial-1",
    }
    assert outcome.meta.usage == USAGE
    assert chat.asked == [
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "Be short."},
                {"role": "user", "content": "hi"},
            ],
            "temperature": 0.0,
            "max_tokens": 9,
            "user": "u",
        }
    ]
    assert "authorization" not in chat.headers[0]


def test_a_conversation_goes_on(chat):
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [{"id": "1"}]},
        {"role": "tool", "content": "b", "tool_call_id": "1"},
    ]
    ask(chat, messages=turns, prompt="c")

    assert chat.asked[0]["messages"] == [*turns, {"role": "user", "content": "c"}]


def test_the_key_is_shown_as_a_token_or_as_the_credential_says(chat):
    ask(chat, auth="key")
    ask(chat, auth={"api_key": "canary-2", "header": "api-key"})

    assert chat.headers[0]["authorization"] == "Bearer canary-key"
    assert chat.headers[1]["api-key"] == "canary-2"


@pytest.mark.parametrize("says", [{"topic": "billing"}, '```json\n{"topic": "billing"}\n```'])
def test_an_answer_that_fulfils_the_schema_is_data(chat, says):
    chat.says = says
    outcome = ask(chat, schema=SCHEMA)

    assert outcome.result["data"] == {"topic": "billing"}
    assert chat.asked[0]["response_format"]["json_schema"]["schema"] == SCHEMA


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ({"topic": "weather"}, "`topic` is not one of"),
        ({}, "the value lacks `topic`"),
        ("sorry", "it is not JSON"),
        ('{"topic": "billing"', "it is not JSON"),
    ],
)
def test_an_answer_that_does_not_is_an_error_worth_another_try(chat, says, words):
    chat.says = says
    outcome = ask(chat, schema=SCHEMA)

    assert failure(outcome)[0] == "schema"
    assert words in failure(outcome)[1]
    assert outcome.error.retryable
    assert outcome.meta.usage == USAGE


def test_an_answer_that_was_cut_off_says_so(chat):
    chat.says, chat.finish = '{"topic": "bil', "length"

    assert "max_tokens" in failure(ask(chat, schema=SCHEMA))[1]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"$ref": "BASE/schema.json"}, "Nothing is fetched"),
        ({"properties": {"topic": {"type": "txt"}}}, "`properties.topic.type`"),
        ({"pattern": r"(a+)\1"}, "RE2"),
        ({"unevaluatedProperties": False}, "additionalProperties"),
    ],
)
def test_a_schema_that_cannot_be_checked_is_refused_before_anybody_is_asked(chat, schema, words):
    written = msgspec.json.decode(msgspec.json.encode(schema).replace(b"BASE", chat.base.encode()))
    outcome = ask(chat, schema=written)

    kind, message = failure(outcome)
    assert kind == "client_error"
    assert "schema itself" in message
    assert words in message
    assert not outcome.error.retryable
    assert chat.asked == []


def test_a_keyword_of_the_endpoint_is_left_to_it(chat):
    chat.says = {"topic": "billing"}
    schema = {**SCHEMA, "propertyOrdering": ["topic"]}
    outcome = ask(chat, schema=schema)

    assert outcome.result["data"] == {"topic": "billing"}
    assert chat.asked[0]["response_format"]["json_schema"]["schema"] == schema


def test_calls_that_the_model_asks_for_are_handed_on(chat):
    chat.calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    chat.finish = "tool_calls"
    outcome = ask(chat, schema=SCHEMA, tools=[{"type": "function", "function": {"name": "f"}}])

    assert outcome.result["tool_calls"] == chat.calls
    assert outcome.result["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (429, "rate_limit", True),
        (401, "auth", False),
        (403, "auth", False),
        (404, "not_found", False),
        (400, "client_error", False),
        (500, "server_error", True),
        (529, "server_error", True),
    ],
)
def test_what_the_endpoint_answers_gets_a_name(chat, status, kind, retryable):
    chat.status = status
    outcome = ask(chat, auth="key")

    assert failure(outcome)[0] == kind
    assert outcome.error.retryable == retryable
    assert "no luck today" in failure(outcome)[1]
    assert outcome.error.retry_after == 7
    assert "canary" not in str(outcome)


@pytest.mark.parametrize("schema", [None, {"type": "string"}])
def test_an_answer_in_parts_is_their_text(chat, schema):
    parts = [{"type": "thinking", "thinking": []}, {"type": "text", "text": '"hi"'}]
    chat.raw = msgspec.json.encode({"choices": [{"message": {"content": parts}}]}).decode()

    result = ask(chat, **({} if schema is None else {"schema": schema})).result

    assert (result["text"], result["data"]) == ('"hi"', '"hi"' if schema is None else "hi")


@pytest.mark.parametrize("schema", [{}, {"schema": {}}])
@pytest.mark.parametrize(
    "raw",
    [
        *("{}", '{"choices": []}', "[]", "not json", '{"choices": [1]}'),
        *('{"choices": [{"message": {"content": 5}}]}',),
        *('{"choices": [{"message": {"content": [5]}}]}',),
    ],
)
def test_an_answer_outside_the_protocol_is_a_parse_error(chat, raw, schema):
    chat.raw = raw

    assert failure(ask(chat, **schema))[0] == "parse"


def test_an_endpoint_that_is_not_there_or_silent_is_named(chat):
    gone = ask(chat, url=f"http://127.0.0.1:{free_port()}/v1")
    silent = ask(chat, url=f"{chat.base}/never", timeout="200ms")

    assert failure(gone)[0] == "connection"
    assert failure(silent)[0] == "timeout"
    assert failure(ask(chat, auth="nobody"))[0] == "auth"
