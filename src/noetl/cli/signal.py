"""`noetl signal`: tell an execution that something happened outside."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from noetl.cli.completion import executions_beginning_with
from noetl.cli.options import db_option, server_option, settings_for
from noetl.cli.payload import json_text
from noetl.cli.printing import counted, print_line, say

if TYPE_CHECKING:
    from noetl.api.routes.external import WhomToSignal
    from noetl.settings import Settings


@click.command(short_help="Send an event to an execution that waits for it.")
@click.argument(
    "execution", metavar="[ID]", required=False, shell_complete=executions_beginning_with
)
@click.option("--match", metavar="CONDITION", help="To all that wait for it and match this.")
@click.option("--path", help="To all of this playbook that wait for it.")
@click.option(
    "--label", "labels", multiple=True, metavar="NAME=VALUE", help="To all that have this label."
)
@click.option("--name", default="message.received", show_default=True, help="What happened.")
@click.option("--data", metavar="JSON", help="What is to be known about it, or @FILE with JSON.")
@click.option("--step", help="Only for this step; otherwise for every step that waits.")
@click.option("--id", "signal_id", help="Your own id for it: the same again changes nothing.")
@db_option
@server_option
def command(
    execution: str | None,
    match: str | None,
    path: str | None,
    labels: tuple[str, ...],
    name: str,
    data: str | None,
    step: str | None,
    signal_id: str | None,
    db: str | None,
    server: str | None,
) -> None:
    """Send an event to an execution that waits for it.

    Steps with `eval_mode: on_event` wait for events like this. One that comes before its step
    waits is kept until it does. `noetl executions why` shows what an execution waits for.

    Without an ID it goes to every execution that waits for it by now: those for which --match
    holds, a condition on their workload, ctx and labels; of --path; with --label.

    \b
    Examples:
      noetl signal last --name message.received --data '{"type": "approval"}'
      noetl signal 4711 --name order.shipped --data @shipment.json --id shipment-17
      noetl signal --match "{{ workload.order == 'A-17' }}" --name order.shipped
    """
    settings = settings_for(db, server)
    given = json_text(data, "--data") if data is not None else None
    chosen = match or path or labels
    if bool(execution) == bool(chosen):
        raise click.UsageError("say which: an ID, or one of --match, --path and --label.")
    if execution is not None and not chosen:
        asyncio.run(_signal(settings, execution, name, given, step, signal_id))
        return
    if step is not None:
        raise click.UsageError("--step goes with an ID.")
    from noetl.api.routes.external import WhomToSignal

    body = WhomToSignal(
        name=name,
        data=given,
        match=match or "",
        path=path,
        labels=dict(_label(one) for one in labels),
        event_id=signal_id,
    )
    asyncio.run(_signal_matching(settings, body))


def _label(written: str) -> tuple[str, str]:
    name, found, value = written.partition("=")
    if not found:
        raise click.UsageError(f'--label is NAME=VALUE, not "{written}".')
    return name, value


async def _signal_matching(settings: Settings, body: WhomToSignal) -> None:
    from noetl.api.routes.external import SEND_MATCHING
    from noetl.cli.acting import calling

    async with calling(settings) as client:
        heard = await client.call(SEND_MATCHING, body=body)
    for execution_id in heard.execution_ids:
        print_line(execution_id)
    say(f"{counted(len(heard.execution_ids), 'execution')} heard {body.name}")


async def _signal(
    settings: Settings,
    written: str,
    name: str,
    data: Any,
    step: str | None,
    signal_id: str | None,
) -> None:
    from noetl.cli.acting import find

    execution_id = await find(settings, written)
    await deliver(settings, execution_id, name, data, step=step, signal_id=signal_id)
    say(f"execution {execution_id} has heard {name}{await left_to_do(settings, execution_id)}")
    await _tell_if_kept(settings, execution_id, name)


async def _tell_if_kept(settings: Settings, execution_id: str, name: str) -> None:
    """Say that no step waits for an event of this name: it may be early, or misspelt."""
    from noetl.cli.remote import looking
    from noetl.model.spelling import did_you_mean

    async with looking(settings) as records:
        waits = await records.why(execution_id)
    names: dict[str, set[str]] = {"event": set(), "listener": set()}
    for one in waits:
        names.get(one.waits_for, set[str]()).update(one.events or ())
    if name in names["listener"] and not {name, "*"} & names["event"]:
        hint = did_you_mean(name, names["event"])
        say(f"it is kept, because no step waits for {name} just now.{hint}")


async def deliver(
    settings: Settings,
    execution_id: str,
    name: str,
    data: Any,
    *,
    step: str | None,
    signal_id: str | None = None,
) -> None:
    """Have the event recorded, by whoever has the database. Asking twice records it once."""
    import secrets

    from noetl.api.routes.external import SEND_EVENT, External
    from noetl.cli.acting import calling

    event = External(name=name, data=data, step=step, event_id=signal_id or secrets.token_hex(8))
    async with calling(settings) as client:
        await client.call(SEND_EVENT, execution_id=execution_id, body=event)


async def left_to_do(settings: Settings, execution_id: str) -> str:
    """What people have to do for the execution to go on, if anything."""
    if settings.server_url is not None:
        return ""
    from noetl import wiring

    async with wiring.looking(settings) as store:
        row = await store.summary(execution_id)
    if row is None or row.ended_at is not None:
        return ""
    if row.status == "PAUSED":
        return f"; it is paused, and `noetl executions resume {execution_id}` lets it go on"
    if not wiring.is_in_use(settings):
        return f"; no process runs it: `noetl executions resume {execution_id}` goes on with it"
    return ""
