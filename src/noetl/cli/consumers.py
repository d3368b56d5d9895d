"""`noetl consumers`: messages that start executions, and the outcome of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from noetl.cli.output import local_time, one_line, print_line, say
from noetl.cli.trigger_documents import Documents, does, print_head, state

if TYPE_CHECKING:
    from noetl.model.trigger_answers import ConsumerDocument, ConsumerItem


@click.group()
def command() -> None:
    """Playbooks started by messages, rows and files: list, pause.

    A consumer is a document of `kind: Consumer`; `noetl register FILE` activates it on the
    servers of the database (`noetl server start`, `noetl dev`).

    \b
    Examples:
      noetl consumers list
      noetl consumers show shop/orders_in
      noetl consumers pause shop/orders_in --reason "the shop is being moved"
    """


documents = Documents(command, "consumers")


def _state(one: ConsumerItem) -> str:
    return state(one, one.problem or ("reading" if one.holder else "no server reads it"))


documents.add_list(
    "List consumers, and what each does.",
    lambda one: (one.source, one_line(_state(one)), f"→ {does(one)}"),
)


def _print(one: ConsumerDocument) -> None:
    print_head(one, _state(one))
    print_line(f"source   {one.source}")
    print_line(f"does     {does(one)}")
    if one.holder:
        print_line(f"read by  {one.holder}")
    print_line(f"running  {len(one.running)} of {one.max_running}")
    for told in one.messages:
        what = told.execution_id or told.reason
        line = f"{local_time(told.time)}  {told.outcome:<8}  {one_line(told.id)}  {one_line(what)}"
        print_line(line.rstrip())
    if not one.messages:
        say("it has taken no message yet")


documents.add_show("Show a consumer, and the outcome of its messages.", _print, "messages")
documents.add_pause("Pause it: it takes no message until it is resumed.")
documents.add_delete("Delete it: it takes no more messages.")
