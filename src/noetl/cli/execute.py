"""`noetl execute`: start a registered playbook, on a server or on a database."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from noetl.api.routes.executions import START, StartExecution
from noetl.cli import OK, WRONG
from noetl.cli.calls import adds_on_server, changing
from noetl.cli.follow import to_end
from noetl.cli.options import (
    json_option,
    label_option,
    labels_of,
    payload_option,
    say_bad_inputs,
    set_option,
    with_inputs,
    workload,
)
from noetl.cli.output import print_json, print_line, say
from noetl.cli.run import point_out_misspelt, registered
from noetl.errors import BadInputs

if TYPE_CHECKING:
    from noetl.settings import Settings


@click.command()
@click.argument("path")
@click.option("--version", type=click.IntRange(1), help="Default: the newest.")
@set_option
@payload_option
@label_option
@click.option("--wait", is_flag=True, help="Follow it to its end, and exit like `noetl run`.")
@click.option("--key", help="A key of your own: starting again with it starts nothing new.")
@json_option
@adds_on_server
async def command(
    settings: Settings,
    path: str,
    version: int | None,
    sets: tuple[str, ...],
    payload: str | None,
    labels: tuple[str, ...],
    wait: bool,
    key: str | None,
    as_json: bool,
) -> int:
    """Start a registered playbook on a server.

    It prints the id of the execution; with --wait, its result. With --db the process that holds
    that database starts it, or this one.

    \b
    Examples:
      noetl execute shop/orders --set days=3
      noetl execute shop/orders --version 2 --wait
    """
    given, named = workload(sets, payload), labels_of(labels)
    async with changing(settings) as api:  # a new database has no playbook to start
        if given or sys.stdin.isatty():
            chosen = await registered(api, path, version)
            point_out_misspelt(given, chosen.workload, chosen.inputs)
            given = with_inputs(given, sets, chosen.inputs, chosen.workload)
        body = StartExecution(path=path, version=version, workload=given, labels=named)
        headers = {} if key is None else {"Idempotency-Key": key}
        try:
            started = await api.call(START, body=body, headers=headers)
        except BadInputs as error:
            say_bad_inputs(error)
            return WRONG
        execution_id = started.execution_id
        if wait:
            return await to_end(api, execution_id, as_json=as_json)
        if as_json:
            print_json(started)
            return OK
        print_line(execution_id)
        if not api.is_run():
            say(f"{started.path} is started{await api.left_to_do(execution_id)}")
            return OK
        is_server = settings.server_url is not None
        here = "in the process that holds the database, as long as that runs"
        where = f"on {api.client.url}" if is_server else here
        say(f"{started.path} runs {where}; `noetl executions follow {execution_id}` shows it")
        return OK
