"""`noetl schedules`: what is started when, what became of each time, and how to change that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click
import msgspec

from noetl.cli.options import db_option, json_option, server_option, settings_for
from noetl.cli.printing import counted, one_line, print_json, print_line, say

if TYPE_CHECKING:
    from noetl.model.schedule_answers import ScheduleDocument, ScheduleItem, ScheduleTime
    from noetl.settings import Settings

PAGE = 500


@click.group(short_help="Look at what is started when, and change it.")
def command() -> None:
    """Look at what is started when, and change it.

    A schedule is a document of `kind: Schedule`; `noetl register FILE` puts it to work on the
    servers of the database (`noetl server start`, `noetl dev`).

    \b
    Examples:
      noetl schedules list
      noetl schedules next shop/nightly --count 10
      noetl schedules pause shop/nightly --reason "stocktaking"
      noetl schedules backfill shop/nightly --from 2026-01-01 --to 2026-01-31 --dry-run
    """


path_argument = click.argument("path")


def _call(
    settings: Settings, name: str, *, body: Any = None, query: Any = None, path: str | None = None
) -> Any:
    """Call a route of schedules, wherever they are kept."""
    from noetl.api.routes import schedules
    from noetl.cli.acting import calling

    async def call() -> Any:
        async with calling(settings) as client:
            route = getattr(schedules, name)
            if path is None:
                return await client.call(route, body=body, query=query)
            return await client.call(route, body=body, query=query, path=path)

    return asyncio.run(call())


@command.command("list")
@click.option("--prefix", default="", help="Only paths that begin so.")
@json_option
@db_option
@server_option
def list_command(prefix: str, as_json: bool, db: str | None, server: str | None) -> None:
    """Every schedule, with its next time."""
    from noetl.api.routes.schedules import WhichSchedules

    settings = settings_for(db, server)
    found: list[ScheduleItem] = []
    after: str | None = ""
    while after is not None:
        query = WhichSchedules(prefix=prefix, after=after, limit=PAGE)
        page = _call(settings, "LIST", query=query)
        found += page.schedules
        after = page.next_after
    if as_json:
        print_json({"schedules": msgspec.to_builtins(found)})
        return
    width = max((len(one.path) for one in found), default=0)
    for one in found:
        state = f"next {one.next_time}" if one.next_time else "no time to come"
        if one.status == "paused":
            state = f"paused: {one.reason}" if one.reason else "paused"
        print_line(f"{one.path:<{width}}  {_when(one)}  {state}  → {one.playbook}")
    if not found:
        say("no schedule is registered; `noetl register FILE` does that")


def _when(one: ScheduleItem) -> str:
    if one.every is not None:
        return f"every {one.every:g}s"
    return f"{', '.join(one.cron)} ({one.timezone})"


@command.command("show")
@path_argument
@click.option(
    "--times",
    type=click.IntRange(0, 1000),
    default=20,
    show_default=True,
    help="How many of the last times to show.",
)
@json_option
@db_option
@server_option
def show_command(path: str, times: int, as_json: bool, db: str | None, server: str | None) -> None:
    """A schedule, its next times, and its last ones."""
    from noetl.api.routes.schedules import WhichTimes

    found: ScheduleDocument = _call(
        settings_for(db, server), "GET", path=path, query=WhichTimes(times=times)
    )
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    print_line(
        f"{found.path} version {found.version}, {found.status}"
        + (f": {found.reason}" if found.reason else "")
    )
    if found.description:
        print_line(one_line(found.description))
    print_line(
        f"starts   {found.playbook}"
        + (f" version {found.playbook_version}" if found.playbook_version else "")
    )
    print_line(f"when     {_when(found)}")
    print_line(f"overlap  {found.overlap}")
    for execution_id in found.running:
        print_line(f"running  {execution_id}")
    for time in found.next_times:
        print_line(f"next     {time}")
    for one in found.times:
        print_line(_told(one))


def _told(one: ScheduleTime) -> str:
    what = one.execution_id or one.reason
    origin = "" if one.origin == "schedule" else f" ({one.origin})"
    return f"{one.time}  {one.outcome:<8}{origin}  {what}".rstrip()


@command.command("next")
@path_argument
@click.option(
    "--count", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many times."
)
@json_option
@db_option
@server_option
def next_command(path: str, count: int, as_json: bool, db: str | None, server: str | None) -> None:
    """The next times, in its local time."""
    from noetl.api.routes.schedules import WhichTimes

    query = WhichTimes(next=count, times=0)
    found: ScheduleDocument = _call(settings_for(db, server), "GET", path=path, query=query)
    if as_json:
        print_json({"path": path, "status": found.status, "times": found.next_times})
        return
    for time in found.next_times:
        print_line(time)
    if found.status == "paused":
        say("it is paused: none of these is started until it is resumed")
    if not found.next_times:
        say("no time is to come")


@command.command("pause")
@path_argument
@click.option("--reason", default="", help="Why; `list` and `show` say it.")
@db_option
@server_option
def pause_command(path: str, reason: str, db: str | None, server: str | None) -> None:
    """Start no time of it until it is resumed."""
    from noetl.api.routes.schedules import PauseSchedule

    _call(settings_for(db, server), "PAUSE", body=PauseSchedule(path=path, reason=reason))
    say(f"{path} is paused; `noetl schedules resume {path}` lets it go on")


@command.command("resume")
@path_argument
@db_option
@server_option
def resume_command(path: str, db: str | None, server: str | None) -> None:
    """Go on from now on."""
    from noetl.api.routes.schedules import NamedSchedule

    found = _call(settings_for(db, server), "RESUME", body=NamedSchedule(path=path))
    say(f"{path} goes on; its next time is {found.next_time or 'none'}")


@command.command("run")
@path_argument
@json_option
@db_option
@server_option
def run_command(path: str, as_json: bool, db: str | None, server: str | None) -> None:
    """Start an execution now, whatever a pause says."""
    from noetl.api.routes.schedules import NamedSchedule
    from noetl.cli.signal import left_to_do

    settings = settings_for(db, server)
    found = _call(settings, "RUN", body=NamedSchedule(path=path))
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        print_line(found.execution_id)
    left = asyncio.run(left_to_do(settings, found.execution_id))
    say(f"{path} started execution {found.execution_id}{left}")


@command.command("backfill")
@path_argument
@click.option(
    "--from",
    "first",
    required=True,
    metavar="MOMENT",
    help="The first moment: a day, or a moment in the schedule's local time.",
)
@click.option("--to", "last", required=True, metavar="MOMENT", help="The last moment.")
@click.option("--dry-run", is_flag=True, help="Start nothing; say what would be.")
@json_option
@db_option
@server_option
def backfill_command(
    path: str,
    first: str,
    last: str,
    dry_run: bool,
    as_json: bool,
    db: str | None,
    server: str | None,
) -> None:
    """Start the times of a span that has passed.

    They run one after the other, oldest first; with `overlap: allow_all` all at once. What was
    started before is not started again.
    """
    from noetl.api.routes.schedules import Backfill

    body = Backfill(path=path, first=first, last=last, dry_run=dry_run)
    found = _call(settings_for(db, server), "BACKFILL", body=body)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        for time in found.times:
            print_line(time)
    would = "would be started" if dry_run else "will be started"
    say(f"{counted(len(found.times), 'time')} {would}; {len(found.known)} were before")


@command.command("delete")
@path_argument
@db_option
@server_option
def delete_command(path: str, db: str | None, server: str | None) -> None:
    """Start nothing of it any more."""
    _call(settings_for(db, server), "DELETE", path=path)
    say(f"{path} is deleted; `noetl register` brings it back")
