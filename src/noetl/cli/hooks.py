"""`noetl hooks`: URLs that other systems call to start playbooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from noetl.cli.output import local_time, one_line, print_line, say
from noetl.cli.trigger_documents import Documents, does, print_head

if TYPE_CHECKING:
    from noetl.model.trigger_answers import HookDocument


@click.group()
def command() -> None:
    """Playbooks started by HTTP calls: list, show, delete.

    A hook is a document of `kind: Hook`; `noetl register FILE` activates it. The sender
    calls `POST /hooks/PATH` of a server.

    \b
    Examples:
      noetl hooks list
      noetl hooks show shop/push
    """


documents = Documents(command, "hooks")


documents.add_list(
    "List hooks, and what each does.", lambda one: (f"POST {one.url}", one.verify, f"→ {does(one)}")
)


def _print(one: HookDocument) -> None:
    print_head(one)
    print_line(f"url      POST {one.url}")
    print_line(f"does     {does(one)}")
    print_line(f"verify   {one.verify} {' '.join(one.credentials)}".rstrip())
    for told in one.deliveries:
        words = (local_time(told.time), told.outcome, told.execution_id, one_line(told.reason))
        print_line("  ".join(word for word in words if word))
    for name in one.missing_credentials:
        say(f'the credential "{name}" is missing; `noetl credential set {name}` stores it')


documents.add_show("Show a hook, and the outcome of its deliveries.", _print, "deliveries")
documents.add_delete("Delete it: it accepts no more deliveries.")
