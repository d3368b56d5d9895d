"""`noetl consumers`: what messages start executions, and what became of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from noetl.cli.calls import looks
from noetl.cli.options import json_option
from noetl.cli.output import one_line, print_json, print_line, say
from noetl.cli.trigger_documents import (
    add_delete,
    add_list,
    add_pause,
    does,
    path_argument,
    print_head,
    state,
)

if TYPE_CHECKING:
    from noetl.cli.calls import Api
    from noetl.model.consumer_answers import ConsumerItem


@click.group()
def command() -> None:
    """Playbooks started by messages, rows and files: list, pause.

    A consumer is a document of `kind: Consumer`; `noetl register FILE` puts it to work on the
    servers of the database (`noetl server start`, `noetl dev`).

    \b
    Examples:
      noetl consumers list
      noetl consumers show shop/orders_in
      noetl consumers pause shop/orders_in --reason "the shop is being moved"
    """


def _state(one: ConsumerItem) -> str:
    return state(one, one.problem or ("reads" if one.holder else "no server reads it"))


add_list(
    command,
    "consumers",
    "Every consumer, with what it does.",
    lambda one: (one.source, one_line(_state(one)), f"→ {does(one)}"),
)


@command.command("show")
@path_argument
@click.option(
    "--messages",
    type=click.IntRange(0, 1000),
    default=20,
    show_default=True,
    help="How many of the last messages to show.",
)
@json_option
@looks
async def show_command(api: Api, path: str, messages: int, as_json: bool) -> None:
    """A consumer, and what became of its last messages."""
    from noetl.api.routes.consumers import GET, WhichMessages

    found = await api.call(GET, path=path, query=WhichMessages(messages=messages))
    if as_json:
        print_json(found)
        return
    print_head(found, _state(found))
    print_line(f"source   {found.source}")
    print_line(f"does     {does(found)}")
    if found.holder:
        print_line(f"read by  {found.holder}")
    print_line(f"running  {len(found.running)} of {found.max_running}")
    for one in found.messages:
        what = one.execution_id or one.reason
        print_line(f"{one.time}  {one.outcome:<8}  {one_line(one.id)}  {one_line(what)}".rstrip())
    if not found.messages:
        say("no message was taken yet")


add_pause(command, "consumers", "Pause it: no message is taken until it is resumed.")
add_delete(command, "consumers", "Delete it: nothing is taken any more.")
