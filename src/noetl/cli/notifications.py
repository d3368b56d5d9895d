"""`noetl notifications`: playbooks that start when executions fail or wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from noetl.cli.output import one_line, print_line, say
from noetl.cli.trigger_documents import Documents, print_head, state

if TYPE_CHECKING:
    from noetl.model.trigger_answers import NotificationItem


@click.group()
def command() -> None:
    """Playbooks started when others fail or wait: list, pause.

    A notification is a document of `kind: Notification`; `noetl register FILE` activates it on
    the servers of the database (`noetl server start`, `noetl dev`).

    \b
    Examples:
      noetl notifications list
      noetl notifications show ops/failures
      noetl notifications pause ops/failures --reason "the chat is being moved"
    """


documents = Documents(command, "notifications")


def _tells(one: NotificationItem) -> str:
    return f"{', '.join(one.on)} of {', '.join(one.paths) or 'all playbooks'}"


def _state(one: NotificationItem) -> str:
    return state(one, one_line(one.problem) or one.status)


documents.add_list(
    "List notifications, and what each reports.",
    lambda one: (_tells(one), _state(one), f"→ {one.playbook}"),
)


def _print(one: NotificationItem) -> None:
    from noetl.cli.views.description import seconds

    print_head(one, state(one, one.status))
    print_line(f"tells    {_tells(one)}")
    for key, value in one.labels.items():
        print_line(f"label    {key}={value}")
    print_line(f"window   {seconds(one.window)}")
    print_line(f"starts   {one.playbook}")
    if one.problem:
        say(one.problem)


documents.add_show("Show a notification, and its last problem.", _print)
documents.add_pause("Pause it: it notifies no one until it is resumed.")
documents.add_delete("Delete it: it notifies no one any more.")
