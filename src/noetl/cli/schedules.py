"""`noetl schedules`: when playbooks start, and the outcome of each time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from noetl.api.routes.schedules import BACKFILL, GET, RUN, Backfill, WhichTimes
from noetl.api.routes.trigger_documents import NamedDocument
from noetl.cli.calls import acts, looks
from noetl.cli.options import json_option
from noetl.cli.output import counted, local_time, print_json, print_line, say
from noetl.cli.trigger_documents import Documents, path_argument, print_head, state

if TYPE_CHECKING:
    from noetl.cli.calls import Api
    from noetl.model.trigger_answers import ScheduleDocument, ScheduleItem, ScheduleTime


@click.group()
def command() -> None:
    """Playbooks started at given times: list, pause, backfill.

    A schedule is a document of `kind: Schedule`; `noetl register FILE` activates it on the
    servers of the database (`noetl server start`, `noetl dev`).

    \b
    Examples:
      noetl schedules list
      noetl schedules next shop/nightly --count 10
      noetl schedules pause shop/nightly --reason "stocktaking"
      noetl schedules backfill shop/nightly --from 2026-01-01 --to 2026-01-31 --dry-run
    """


documents = Documents(command, "schedules")


def _when(one: ScheduleItem) -> str:
    from noetl.cli.views.description import seconds

    if one.every is not None:
        offset = f", offset {seconds(one.offset)}" if one.offset else ""
        return f"every {seconds(one.every)}{offset}"
    return f"{', '.join(one.cron)} ({one.timezone})"


def _state(one: ScheduleItem) -> str:
    return state(one, f"next {_next(one)}" if one.next_time else "no more times")


def _next(one: ScheduleItem) -> str:
    return local_time(one.next_time, one.timezone)


documents.add_list(
    "List schedules, each with its next time.",
    lambda one: (_when(one), _state(one), f"→ {one.playbook}"),
)


def _print(one: ScheduleDocument) -> None:
    print_head(one, state(one, one.status))
    print_line(
        f"starts   {one.playbook}"
        + (f" version {one.playbook_version}" if one.playbook_version else "")
    )
    print_line(f"when     {_when(one)}")
    print_line(f"overlap  {one.overlap}")
    for execution_id in one.running:
        print_line(f"running  {execution_id}")
    for time in one.next_times:
        print_line(f"next     {time}")
    for told in one.times:
        print_line(_told(told, one.timezone))


documents.add_show("Show a schedule, its next and its last times.", _print, "times")


def _told(one: ScheduleTime, zone: str) -> str:
    what = one.execution_id or one.reason
    origin = "" if one.origin == "schedule" else f" ({one.origin})"
    return f"{local_time(one.time, zone)}  {one.outcome:<8}{origin}  {what}".rstrip()


@command.command("next")
@path_argument
@click.option(
    "--count", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many times."
)
@json_option
@looks
async def next_command(api: Api, path: str, count: int, as_json: bool) -> None:
    """Print the next times, in its time zone.

    \b
    Example:
      noetl schedules next shop/nightly --count 10
    """
    found = await api.call(GET, path=path, query=WhichTimes(next=count, times=0))
    if as_json:
        print_json({"path": path, "status": found.status, "times": found.next_times})
        return
    for time in found.next_times:
        print_line(time)
    if found.status == "paused":
        say("it is paused: none of these starts until it is resumed")
    if not found.next_times:
        say("it has no more times")


documents.add_pause(
    "Pause it: it starts nothing until it is resumed.",
    lambda one: f"; its next time is {_next(one) if one.next_time else 'none'}",
)


@command.command("run")
@path_argument
@json_option
@acts
async def run_command(api: Api, path: str, as_json: bool) -> None:
    """Start an execution now, even if it is paused.

    \b
    Example:
      noetl schedules run shop/nightly
    """
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
    help="The first day, or moment in the schedule's time zone.",
)
@click.option("--to", "last", required=True, metavar="MOMENT", help="The last day or moment.")
@click.option("--dry-run", is_flag=True, help="Start nothing; print what would be started.")
@json_option
@acts
async def backfill_command(
    api: Api, path: str, first: str, last: str, dry_run: bool, as_json: bool
) -> None:
    """Start the times of a past period.

    They run one after the other, oldest first; with `overlap: allow_all` all at once. A time
    that was started before is not started again.

    \b
    Example:
      noetl schedules backfill shop/nightly --from 2026-01-01 --to 2026-01-31 --dry-run
    """
    body = Backfill(path=path, first=first, last=last, dry_run=dry_run)
    found = await api.call(BACKFILL, body=body)
    if as_json:
        print_json(found)
    else:
        for time in found.times:
            print_line(time)
    would = "would be started" if dry_run else "will be started"
    say(f"{counted(len(found.times), 'time')} {would}; {len(found.known)} were started before")


documents.add_delete("Delete it: it starts nothing any more.")
