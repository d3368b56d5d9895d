"""`noetl schedules`: what is started when, what became of each time, and how to change that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from noetl.cli.calls import acts, looks
from noetl.cli.options import json_option
from noetl.cli.output import counted, print_json, print_line, say
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
    from noetl.model.schedule_answers import ScheduleItem, ScheduleTime


@click.group()
def command() -> None:
    """Playbooks started at given times: list, pause, backfill.

    A schedule is a document of `kind: Schedule`; `noetl register FILE` puts it to work on the
    servers of the database (`noetl server start`, `noetl dev`).

    \b
    Examples:
      noetl schedules list
      noetl schedules next shop/nightly --count 10
      noetl schedules pause shop/nightly --reason "stocktaking"
      noetl schedules backfill shop/nightly --from 2026-01-01 --to 2026-01-31 --dry-run
    """


def _when(one: ScheduleItem) -> str:
    if one.every is not None:
        return f"every {one.every:g}s"
    return f"{', '.join(one.cron)} ({one.timezone})"


def _state(one: ScheduleItem) -> str:
    return state(one, f"next {one.next_time}" if one.next_time else "no time to come")


add_list(
    command,
    "schedules",
    "Every schedule, with its next time.",
    lambda one: (_when(one), _state(one), f"→ {one.playbook}"),
)


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
@looks
async def show_command(api: Api, path: str, times: int, as_json: bool) -> None:
    """A schedule, its next times, and its last ones."""
    from noetl.api.routes.schedules import GET, WhichTimes

    found = await api.call(GET, path=path, query=WhichTimes(times=times))
    if as_json:
        print_json(found)
        return
    print_head(found, state(found, found.status))
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
@looks
async def next_command(api: Api, path: str, count: int, as_json: bool) -> None:
    """The next times, in its local time."""
    from noetl.api.routes.schedules import GET, WhichTimes

    found = await api.call(GET, path=path, query=WhichTimes(next=count, times=0))
    if as_json:
        print_json({"path": path, "status": found.status, "times": found.next_times})
        return
    for time in found.next_times:
        print_line(time)
    if found.status == "paused":
        say("it is paused: none of these is started until it is resumed")
    if not found.next_times:
        say("no time is to come")


add_pause(
    command,
    "schedules",
    "Pause it: no time is started until it is resumed.",
    lambda one: f"; its next time is {one.next_time or 'none'}",
)


@command.command("run")
@path_argument
@json_option
@acts
async def run_command(api: Api, path: str, as_json: bool) -> None:
    """Start an execution now, even if it is paused."""
    from noetl.api.routes.schedules import RUN
    from noetl.api.routes.trigger_documents import NamedDocument

    found = await api.call(RUN, body=NamedDocument(path=path))
    if as_json:
        print_json(found)
    else:
        print_line(found.execution_id)
    left = await api.left_to_do(found.execution_id)
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
@click.option("--to", "last", required=True, metavar="MOMENT", help="The last moment, or day.")
@click.option("--dry-run", is_flag=True, help="Start nothing; say what would be.")
@json_option
@acts
async def backfill_command(
    api: Api, path: str, first: str, last: str, dry_run: bool, as_json: bool
) -> None:
    """Start the times of a past period.

    They run one after the other, oldest first; with `overlap: allow_all` all at once. What was
    started before is not started again.
    """
    from noetl.api.routes.schedules import BACKFILL, Backfill

    body = Backfill(path=path, first=first, last=last, dry_run=dry_run)
    found = await api.call(BACKFILL, body=body)
    if as_json:
        print_json(found)
    else:
        for time in found.times:
            print_line(time)
    would = "would be started" if dry_run else "will be started"
    say(f"{counted(len(found.times), 'time')} {would}; {len(found.known)} were before")


add_delete(command, "schedules", "Delete it: nothing is started by it any more.")
