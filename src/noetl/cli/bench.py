"""`noetl bench`: performance figures of this machine."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from noetl import configured, wiring
from noetl.cli.options import json_option, local_settings
from noetl.cli.output import counted, print_json, print_line, say
from noetl.cli.workloads import MEANINGS, WORKLOADS, figures, machine
from noetl.errors import BadRequest


@click.command()
@click.option(
    "--runs",
    type=click.IntRange(1),
    default=5,
    metavar="N",
    help="Runs of each workload. Default 5.",
)
@click.option("--only", metavar="NAMES", help="Comma-separated workloads, w1 to w7.")
@click.option(
    "--db", metavar="URL", help="The database to measure. Default: a new file, removed afterwards."
)
@json_option
def command(runs: int, only: str | None, db: str | None, as_json: bool) -> None:
    """Measure how fast executions run on this machine.

    The whole system runs in this process, on a new SQLite database in the working directory, and
    flushes every commit: the disk counts as much as the processor. It takes about a minute; run
    nothing else meanwhile. The figures are medians, each with its meaning.

    A database given with --db keeps the executions of the benchmark. Use one that exists only for
    this.

    \b
    Examples:
      noetl bench
      noetl bench --only w1,w3 --runs 3
      noetl bench --db postgresql://noetl@localhost/bench --json
    """
    chosen = _chosen(only)
    document = asyncio.run(_measure(db, runs, chosen))
    if as_json:
        print_json(document)
        return
    for line in _table(document):
        print_line(line)


def _chosen(only: str | None) -> tuple[str, ...]:
    if only is None:
        return tuple(WORKLOADS)
    chosen = tuple(name.strip().lower() for name in only.split(","))
    for name in chosen:
        if name not in WORKLOADS:
            raise click.UsageError(
                f'--only is a comma-separated list of workloads; there is no "{name}".'
                f" They are: {', '.join(WORKLOADS)}."
            )
    return chosen


async def _measure(db: str | None, runs: int, chosen: tuple[str, ...]) -> dict[str, Any]:
    disk = Path.cwd()
    if db is not None:
        db = await _unused(db)
        disk = _disk(db)
    if not os.access(disk, os.W_OK):
        raise BadRequest(
            f"{disk} is not writable. Run the benchmark in a directory on the disk to measure."
        )
    with tempfile.TemporaryDirectory(prefix=".noetl-bench-", dir=disk) as name:
        folder = Path(name)
        url = db or f"sqlite:///{folder / 'bench.db'}"
        found = await figures(folder, url, runs, chosen=chosen, tell=say)
    return {"machine": machine(), "figures": found}


async def _unused(db: str) -> str:
    """The URL of a database, checked to hold no unfinished executions."""
    settings = local_settings(db)
    async with wiring.embedded(settings, work=False) as system:
        others = len(await system.store.records.unfinished())
    if others:
        raise BadRequest(
            f"{counted(others, 'execution')} in that database would run during the measurement."
            " Give --db a database that exists only for this, or omit it."
        )
    return settings.database_url


def _disk(url: str) -> Path:
    """The directory in which a flush is measured: that of the file. A server's disk is out of
    reach.
    """
    return Path.cwd() if configured.is_server(url) else Path(url.removeprefix("sqlite:///")).parent


def _table(document: dict[str, Any]) -> Iterator[str]:
    about = document["machine"]
    yield (
        f"{counted(about['cores'], 'core')} ({about['processor']}), {about['system']},"
        f" Python {about['python']}, SQLite {about['sqlite']}, {about['date']}"
    )
    yield ""
    for name, value in document["figures"].items():
        yield f"{name:27}{value:12,.2f}  {MEANINGS[name]}"
