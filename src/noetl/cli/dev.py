"""`noetl dev`: a server with a worker in it, for one machine."""

from __future__ import annotations

import click

from noetl.cli.options import db_option, local_settings
from noetl.cli.server import host_option, port_option, run


@click.command(short_help="Run a server with a worker in it, in this process.")
@host_option
@port_option
@db_option
def command(host: str, port: int, db: str | None) -> None:
    """Run a server with a worker in it, in this process.

    \b
    Example:
      noetl dev
      noetl execute shop/orders --server http://127.0.0.1:8082 --wait
    """
    run(local_settings(db), host, port, work=True)
