"""`noetl execute`: start a registered playbook on a server."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click

from noetl.cli.options import (
    json_option,
    label_option,
    labels_of,
    payload_option,
    server_option,
    set_option,
    settings_for_server,
)


@click.command(short_help="Start a playbook on a server.")
@click.argument("path")
@click.option("--version", type=click.IntRange(1), help="By default the newest.")
@set_option
@payload_option
@label_option
@click.option("--wait", is_flag=True, help="Follow it to its end, and exit as `run` would.")
@click.option("--key", help="Your own name for this start: the same again starts nothing new.")
@json_option
@server_option
def command(
    path: str,
    version: int | None,
    sets: tuple[str, ...],
    payload: str | None,
    labels: tuple[str, ...],
    wait: bool,
    key: str | None,
    as_json: bool,
    server: str | None,
) -> None:
    """Start a playbook on a server.

    The id of the execution goes to stdout; with --wait, its result.

    \b
    Examples:
      noetl execute shop/orders --set days=3
      noetl execute shop/orders --version 2 --wait
    """
    from noetl.cli.payload import workload
    from noetl.cli.run_there import execute_there

    request: dict[str, Any] = {"path": path, "workload": workload(sets, payload)}
    if labels:
        request["labels"] = labels_of(labels)
    if version is not None:
        request["version"] = version
    settings = settings_for_server(server)
    sys.exit(
        asyncio.run(execute_there(settings, request, sets, wait=wait, as_json=as_json, key=key))
    )
