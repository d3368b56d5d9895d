"""`noetl worker`: a process that leases commands from a server and runs them."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
from typing import TYPE_CHECKING

import click

from noetl import wiring
from noetl.cli.daemons import Daemon, daemons, start, status, stop, tell_ready
from noetl.cli.options import json_option, server_option, settings_for_server
from noetl.cli.output import say
from noetl.cli.privacy import hide_process
from noetl.cli.server import detach_option
from noetl.model.commands import placed
from noetl.model.labels import of_worker

if TYPE_CHECKING:
    from noetl.model.commands import Presence
    from noetl.settings import Settings

GRACE_SECONDS = 30.0


@click.group()
def command() -> None:
    """Start and stop a worker, which runs tasks for a server.

    \b
    Examples:
      noetl worker start --server http://127.0.0.1:8082
      noetl worker start --pool gpu --slots 4 --detach
      noetl worker stop --pool gpu
    """


pool_option = click.option(
    "--pool", default="default", show_default=True, help="The pool whose commands it takes."
)


def _known_kinds(context: click.Context, option: click.Parameter, written: str) -> tuple[str, ...]:
    """An unknown kind would be waited for in vain."""
    from noetl.tools.registry import tools

    wanted = tuple(kind.strip() for kind in written.split(",") if kind.strip())
    unknown = [kind for kind in wanted if kind not in tools()]
    if unknown:
        raise click.BadParameter(
            f"there is no kind {', '.join(unknown)} here; `noetl tools list` lists all."
        )
    return wanted


def _good_labels(
    context: click.Context, option: click.Parameter, written: tuple[str, ...]
) -> dict[str, str]:
    try:
        return of_worker(",".join(written))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@command.command("start")
@pool_option
@click.option(
    "--slots", type=click.IntRange(1, 1000), help="Commands it runs at the same time. [default: 64]"
)
@click.option(
    "--kinds",
    default="",
    callback=_known_kinds,
    help="Comma-separated tool kinds it runs. [default: all]",
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    callback=_good_labels,
    help="A label that steps can require, as name=value. May be repeated.",
)
@click.option("--name", default=None, help="Its name in records; must be unique.")
@click.option(
    "--grace",
    type=click.FloatRange(0),
    default=GRACE_SECONDS,
    show_default=True,
    help="How many seconds running commands may take after SIGTERM before they are handed back.",
)
@server_option
@detach_option
def start_command(
    pool: str,
    slots: int | None,
    kinds: tuple[str, ...],
    labels: dict[str, str],
    name: str | None,
    grace: float,
    server: str | None,
    detach: bool,
) -> None:
    """Run the commands of a server, until SIGTERM or Ctrl-C.

    It then takes no new commands, finishes those it has, and ends. Commands that are not finished
    within --grace seconds are handed back and continue elsewhere.

    \b
    Examples:
      noetl worker start --server http://127.0.0.1:8082
      noetl worker start --pool gpu --slots 4 --label zone=eu --detach
    """
    settings = settings_for_server(server)
    if detach:
        daemon = Daemon(_daemon_name(pool))
        arguments = ["worker", "start", f"--pool={pool}", f"--grace={grace}"]
        arguments += [f"--server={settings.server_url}"]
        arguments += [f"--slots={slots}"] if slots is not None else []
        arguments += [f"--kinds={','.join(kinds)}"] if kinds else []
        arguments += [f"--label={one}={value}" for one, value in labels.items()]
        arguments += [f"--name={name}"] if name is not None else []
        sys.exit(start(daemon, arguments))
    from noetl import logs

    logs.set_up(settings.log)
    hide_process()
    worker_id = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"

    offer = placed(pool, {**of_worker(settings.labels), **labels})
    me = wiring.presence(settings, worker_id, offer, slots or settings.slots)
    asyncio.run(_work(settings, me, grace, kinds))


def _daemon_name(pool: str) -> str:
    return f"worker-{''.join(c if c.isalnum() else '_' for c in pool)}"


@command.command("stop")
@pool_option
def stop_command(pool: str) -> None:
    """Stop the worker in the background, and wait until it has ended.

    \b
    Example:
      noetl worker stop --pool gpu
    """
    sys.exit(stop(Daemon(_daemon_name(pool))))


@command.command("status")
@json_option
def status_command(as_json: bool) -> None:
    """Show which workers run in the background. Exits with 1 if none does.

    \b
    Example:
      noetl worker status
    """
    sys.exit(status(daemons("worker"), as_json=as_json))


async def _work(settings: Settings, me: Presence, grace: float, kinds: tuple[str, ...]) -> None:
    from noetl import serving

    ending = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)

    def ready() -> None:
        where = f"of pool {me.pool} from {settings.server_url} (sandbox: {me.sandbox})"
        say(f"worker {me.worker_id} takes commands {where}")
        tell_ready(me.worker_id, me.sandbox, me.pool.partition(" [")[2].removesuffix("]"))

    await serving.worker(settings, me, ending, kinds=kinds, grace=grace, on_ready=ready)
    say(f"worker {me.worker_id} has ended")
