"""`noetl executions answer`: a person answers the form of a waiting step."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from noetl.cli.printing import one_line, say
from noetl.errors import Conflict, SignalRefused

if TYPE_CHECKING:
    from noetl.model.net import FormField
    from noetl.settings import Settings

Form = list[dict[str, Any]]


async def answer(settings: Settings, written: str, step: str | None, sets: tuple[str, ...]) -> None:
    """Answer the form that a step waits with: by what is given, or by asking on the terminal."""
    from noetl.cli.acting import find
    from noetl.cli.signal import deliver, left_to_do

    execution_id = await find(settings, written)
    asking = await _asking(settings, execution_id)
    chosen = _chosen(asking, step, execution_id)
    values = _given(asking[chosen], sets)
    if not sets and sys.stdin.isatty():
        values = _asked(chosen, asking[chosen])
    await deliver(settings, execution_id, "approval.received", values, step=chosen)
    rest = await left_to_do(settings, execution_id)
    say(f'step "{chosen}" of execution {execution_id} has its answer{rest}')


async def _asking(settings: Settings, execution_id: str) -> dict[str, Form]:
    """The steps that wait with a form."""
    from noetl.cli.remote import looking

    async with looking(settings) as records:
        document = await records.document(execution_id)
    steps = {step["step"]: step.get("waiting", {}).get("form") for step in document["steps"]}
    return {step: form for step, form in steps.items() if form}


def _chosen(asking: dict[str, Form], step: str | None, execution_id: str) -> str:
    if step is not None and step in asking:
        return step
    if not asking or step is not None:
        what = f'step "{step}"' if step is not None else f"execution {execution_id}"
        raise Conflict(
            f"{what} does not wait for an answer. `noetl executions why {execution_id}` shows what"
            " it waits for."
        )
    if len(asking) > 1:
        raise SignalRefused(
            f"several steps wait for an answer: {', '.join(asking)}. Choose one with --step."
        )
    return next(iter(asking))


def _given(form: Form, sets: tuple[str, ...]) -> dict[str, Any]:
    """`field=value`: texts, which the field's type makes what they are; JSON for json."""
    from noetl.cli.payload import json_text

    types = {field["name"]: field["type"] for field in form}
    values: dict[str, Any] = {}
    for item in sets:
        name, equals, text = item.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f'"{item}" is not FIELD=VALUE, e.g. approved=yes.')
        name = name.strip()
        is_json = types.get(name) == "json"
        values[name] = json_text(text, f"the value of {name}") if is_json else text
    return values


# --- On a terminal -----------------------------------------------------------------------------


def _asked(step: str, form: Form) -> dict[str, Any]:
    """Put every question; an answer that does not fit is asked for again at once."""
    say(f'step "{one_line(step)}" asks:')
    import msgspec

    from noetl.model.net import FormField

    return {field["name"]: ask(msgspec.convert(field, FormField)) for field in form}


def ask(question: FormField) -> Any:
    """Put one question until the answer fits."""
    import msgspec

    from noetl.model.fields import Unfit, fitted, wanted

    if question.help:
        click.echo(f"  {one_line(question.help)}", err=True)
    label = one_line(question.label or question.name)
    while True:
        text = click.prompt(
            f"  {label} ({one_line(wanted(question))})",
            default="" if question.default is None else _text(question.default),
            show_default=question.default is not None,
            err=True,
        )
        try:
            given: Any = text
            if question.type == "json" and text:
                given = msgspec.json.decode(text)
            return fitted(question, given)
        except (Unfit, msgspec.DecodeError) as error:
            click.echo(f"  it {one_line(str(error))}", err=True)


def _text(value: Any) -> str:
    import msgspec

    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
