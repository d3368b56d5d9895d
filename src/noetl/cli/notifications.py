"""`noetl notifications`: what is told of executions, and by which playbooks."""

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
    path_argument,
    print_head,
    state,
)

if TYPE_CHECKING:
    from noetl.cli.calls import Api
    from noetl.model.notification_answers import NotificationItem


@click.group()
def command() -> None:
    """Playbooks started when others fail or wait: list, pause.

    A notification is a document of `kind: Notification`; `noetl register FILE` puts it to work on
    the servers of the database (`noetl server start`, `noetl dev`).

    \b
    Examples:
      noetl notifications list
      noetl notifications show ops/failures
      noetl notifications pause ops/failures --reason "the chat is being moved"
    """


def _tells(one: NotificationItem) -> str:
    return f"{', '.join(one.on)} of {', '.join(one.paths) or 'all playbooks'}"


def _state(one: NotificationItem) -> str:
    return state(one, one_line(one.problem) or one.status)


add_list(
    command,
    "notifications",
    "Every notification, with what it tells.",
    lambda one: (_tells(one), _state(one), f"→ {one.playbook}"),
)


@command.command("show")
@path_argument
@json_option
@looks
async def show_command(api: Api, path: str, as_json: bool) -> None:
    """One notification, and what keeps it from telling."""
    from noetl.api.routes.notifications import GET

    one = await api.call(GET, path=path)
    if as_json:
        print_json(one)
        return
    print_head(one, state(one, one.status))
    print_line(f"tells    {_tells(one)}")
    for key, value in one.labels.items():
        print_line(f"label    {key}={value}")
    print_line(f"window   {one.window:g}s")
    print_line(f"starts   {one.playbook}")
    if one.problem:
        say(one.problem)


add_pause(command, "notifications", "Pause it: nothing is told until it is resumed.")
add_delete(command, "notifications", "Delete it: nothing is told any more.")
