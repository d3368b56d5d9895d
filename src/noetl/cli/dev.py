"""`noetl dev`: a server with a worker and the web UI in it, for one machine."""

from __future__ import annotations

import click

from noetl.cli.options import db_option, local_settings
from noetl.cli.server import host_option, port_option, run


@click.command()
@host_option
@port_option
@db_option
@click.option("--no-open", is_flag=True, help="Do not open the web UI in a browser.")
def command(host: str, port: int, db: str | None, no_open: bool) -> None:
    """Run a server, a worker and the web UI in one process.

    In a terminal it opens the web UI in the browser, if there is one.

    \b
    Example:
      noetl dev
      noetl execute shop/orders --server http://127.0.0.1:8082 --wait
    """
    run(local_settings(db), host, port, work=True, opens=not no_open)
