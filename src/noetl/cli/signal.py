"""`noetl signal`: send an external event to an execution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from noetl.api.routes.external import SEND_EVENT, SEND_MATCHING, External, WhomToSignal
from noetl.cli import FAILED, OK
from noetl.cli.calls import acts
from noetl.cli.options import executions_beginning_with, json_text, labels_of, pairs_option
from noetl.cli.output import counted, print_line, say
from noetl.model.spelling import did_you_mean

if TYPE_CHECKING:
    from noetl.cli.calls import Api


@click.command()
@click.argument(
    "execution", metavar="[ID]", required=False, shell_complete=executions_beginning_with
)
@click.option(
    "--match", metavar="CONDITION", help="Send it to all waiting executions that match this."
)
@click.option("--path", help="Send it to all waiting executions of this playbook.")
@pairs_option("label", "NAME=VALUE", "Send it to all waiting executions with this label.")
@click.option("--name", default="message.received", show_default=True, help="What happened.")
@click.option("--data", metavar="JSON", help="The data of the event as JSON, or @FILE with JSON.")
@click.option("--step", help="Only for this step; otherwise for every step that waits.")
@click.option("--id", "signal_id", help="An id of your own: sending it again changes nothing.")
@acts
async def command(
    api: Api,
    execution: str | None,
    match: str | None,
    path: str | None,
    labels: tuple[str, ...],
    name: str,
    data: str | None,
    step: str | None,
    signal_id: str | None,
) -> int:
    """Send an event to a waiting execution.

    Steps with `eval_mode: on_event` wait for such events. An event that arrives before its step
    waits is kept until it does. `noetl executions why` shows what an execution waits for.

    Without an ID the event goes to every execution that waits for it at the moment and matches
    --match (a condition on its workload, ctx and labels), --path and --label. If there is none,
    the command says so and exits with 1.

    \b
    Examples:
      noetl signal last --name message.received --data '{"type": "approval"}'
      noetl signal 4711 --name order.shipped --data @shipment.json --id shipment-17
      noetl signal --match "{{ workload.order == 'A-17' }}" --name order.shipped
    """
    given = json_text(data, "--data") if data is not None else None
    if bool(execution) == bool(match or path or labels):
        raise click.UsageError("name the executions: an ID, or one of --match, --path and --label.")
    if execution is None:
        if step is not None:
            raise click.UsageError("--step needs an ID.")
        whom = WhomToSignal(
            name=name,
            data=given,
            match=match or "",
            path=path,
            labels=labels_of(labels),
            event_id=signal_id,
        )
        heard = (await api.call(SEND_MATCHING, body=whom)).execution_ids
        if not heard:
            say(
                f"nobody received {name}: no execution that waits for it at the moment matches."
                " `noetl executions list status:waiting` lists those that wait, and"
                " `noetl executions why ID` says for what."
            )
            return FAILED
        for execution_id in heard:
            print_line(execution_id)
        say(f"{counted(len(heard), 'execution')} received {name}")
        return OK
    execution_id = await api.find(execution)
    await deliver(api, execution_id, name, given, step=step, signal_id=signal_id)
    say(f"execution {execution_id} received {name}{await api.left_to_do(execution_id)}")
    await _tell_if_kept(api, execution_id, name)
    return OK


async def _tell_if_kept(api: Api, execution_id: str, name: str) -> None:
    """Say that no step waits for an event of this name: it may be early, or misspelt."""
    names: dict[str, set[str]] = {"event": set(), "listener": set()}
    for one in await api.why(execution_id):
        names.get(one.waits_for, set[str]()).update(one.events or ())
    if name in names["listener"] and not {name, "*"} & names["event"]:
        hint = did_you_mean(name, names["event"])
        say(f"it is kept, because no step waits for {name} at the moment.{hint}")


async def deliver(
    api: Api,
    execution_id: str,
    name: str,
    data: Any,
    *,
    step: str | None,
    signal_id: str | None = None,
) -> None:
    """Send the event. Repeated sends record it once."""
    import secrets

    event = External(name=name, data=data, step=step, event_id=signal_id or secrets.token_hex(8))
    await api.call(SEND_EVENT, execution_id=execution_id, body=event)
