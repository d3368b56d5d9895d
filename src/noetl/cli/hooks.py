"""`noetl hooks`: what others may call, and what that does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from noetl.cli.calls import looks
from noetl.cli.options import json_option
from noetl.cli.output import one_line, print_json, print_line, say
from noetl.cli.trigger_documents import add_delete, add_list, does, path_argument, print_head

if TYPE_CHECKING:
    from noetl.cli.calls import Api


@click.group()
def command() -> None:
    """Playbooks started by HTTP calls: list, show, delete.

    A hook is a document of `kind: Hook`; `noetl register FILE` puts it to work. Whoever it is for
    calls `POST /hooks/PATH` of a server.

    \b
    Examples:
      noetl hooks list
      noetl hooks show shop/push
    """


add_list(
    command,
    "hooks",
    "Every hook, with what it does.",
    lambda one: (f"POST {one.url}", one.verify, f"→ {does(one)}"),
)


@command.command("show")
@path_argument
@json_option
@looks
async def show_command(api: Api, path: str, as_json: bool) -> None:
    """A hook, and what became of its last deliveries."""
    from noetl.api.routes.hooks import GET

    one = await api.call(GET, path=path)
    if as_json:
        print_json(one)
        return
    print_head(one)
    print_line(f"url      POST {one.url}")
    print_line(f"does     {does(one)}")
    print_line(f"verify   {one.verify} {' '.join(one.credentials)}".rstrip())
    for told in one.deliveries:
        words = (told.time, told.outcome, told.execution_id, one_line(told.reason))
        print_line("  ".join(word for word in words if word))
    for name in one.missing_credentials:
        say(f'the credential "{name}" is not there; `noetl credential set {name}` makes it')


add_delete(command, "hooks", "Delete it: nothing is taken any more.")
