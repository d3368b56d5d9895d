"""Commands that inspect executions: list them, show what one did, and what it waits for."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from noetl import configured
from noetl.api.routes.executions import (
    EXPORT,
    LABELS,
    LIST,
    LOGS,
    WHY,
    Labelled,
    Which,
    WhichLogs,
    WhichWhy,
)
from noetl.cli import FAILED, OK
from noetl.cli.calls import PAGE, looks
from noetl.cli.files import is_plain, replacing
from noetl.cli.follow import follow, print_output
from noetl.cli.options import execution_argument, json_option, labels_of, pairs_option
from noetl.cli.output import cut, one_line, print_json, print_line, printable, say
from noetl.cli.views.executions import execution_rows, list_rows, shortened
from noetl.cli.views.lines import event_line, length, speaker
from noetl.cli.views.paint import show
from noetl.cli.views.results import print_document, print_value
from noetl.cli.views.source_lines import of_execution
from noetl.control.documents import plain, restored
from noetl.errors import BadRequest
from noetl.model.answers import EventPage, ExecutionPage
from noetl.model.duration import seconds
from noetl.model.execution_query import KEYS, LABEL, STATUSES, quoted
from noetl.model.state import TERMINAL

if TYPE_CHECKING:
    from noetl.cli.calls import Api
    from noetl.model.answers import LogEntry, Logs

group = click.Group()


def _span(context: click.Context, parameter: click.Parameter, since: str | None) -> str | None:
    if since is not None and seconds(since) is None:
        raise click.BadParameter(f'--since is a duration like 1h, 30m or 2d, not "{since}".')
    return since


since_option = click.option(
    "--since",
    metavar="TIME",
    callback=_span,
    help="Only those started since then, e.g. 1h, 30m, 2d.",
)


class QueryCommand(click.Command):
    """A command that takes a query, whose terms may begin with a minus."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        begins = (*(f"-{key}:" for key in KEYS), f"-{LABEL}")
        if "--" not in args and any(word.startswith(begins) for word in args):
            terms = [word for word in args if word.startswith(begins)]
            args = [*(word for word in args if not word.startswith(begins)), "--", *terms]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name.startswith("--"):
                raise
            raise click.UsageError(
                f"there is no option {error.option_name}. Before a word with a minus write --, as"
                " in: noetl executions list -- -timeout",
                ctx,
            ) from None


@group.command("list", cls=QueryCommand)
@click.argument("query", nargs=-1)
@click.option(
    "--status",
    type=click.Choice(STATUSES, case_sensitive=False),
    help="Only these. Interrupted executions count as running.",
)
@click.option("--path", help="Only executions of this playbook; * matches anything.")
@pairs_option("label", "NAME=VALUE", "Only those with this label, e.g. --label team=sales.")
@since_option
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@json_option
@looks
async def list_command(
    api: Api,
    query: tuple[str, ...],
    status: str | None,
    path: str | None,
    labels: tuple[str, ...],
    since: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List executions, newest first.

    A QUERY selects them by terms that must all hold. A comma means or; a minus before a term
    negates it. A word without a key is searched for in the path, the error and the id.

    \b
      status:failed,paused   also waiting, active, ended
      path:shop/*            took:>5m         since:2d      until:2026-01-31
      version:>3             step:load        error:"duplicate key"
      parent:ID              parent:none      id:4711       label.team=x

    \b
    Examples:
      noetl executions list 'status:failed took:>5m'
      noetl executions list 'path:shop/* -status:completed since:2d'
    """
    words = [" ".join(query)]
    words += [f"status:{status}"] if status is not None else []
    words += [f"path:{path}" if "*" in path else f"path:{quoted(path)}"] if path is not None else []
    words += [f"since:{since}"] if since is not None else []
    words += [f"label.{name}={quoted(value)}" for name, value in labels_of(labels).items()]
    wanted = " ".join(words).strip()
    page = await api.call(LIST, query=Which(q=wanted, limit=min(limit, PAGE)))
    found = page.executions
    while page.next_cursor is not None and len(found) < limit:
        room = min(limit - len(found), PAGE)
        page = await api.call(LIST, query=Which(q=wanted, cursor=page.next_cursor, limit=room))
        found += page.executions
    cursor = page.next_cursor
    if as_json:
        print_json(ExecutionPage(executions=found, next_cursor=cursor))
        return
    show(list_rows(found, in_use=api.is_run()))
    if cursor is not None:
        say(f"there are more; --limit {limit * 10} shows them")
    if not found:
        say("no executions match")


@group.command("labels")
@click.argument("label", metavar="NAME")
@since_option
@json_option
@looks
async def labels_command(api: Api, label: str, since: str | None, as_json: bool) -> None:
    """Count executions by the value of a label.

    \b
    Example:
      noetl executions labels team --since 7d
    """
    found = await api.call(LABELS, name=label, query=Labelled(since=since))
    if as_json:
        print_json(found)
        return
    for one in found.values:
        print_line(f"{one.executions:>8}  {one_line(one.value)}")
    if not found.values:
        say(f'no execution has a label "{one_line(label)}"')


@group.command("show")
@execution_argument
@click.option(
    "--critical", is_flag=True, help="Show the step runs that determined its duration instead."
)
@json_option
@looks
async def show_command(api: Api, execution_id: str, critical: bool, as_json: bool) -> None:
    """Show steps, result or error, and what failed tasks printed.

    \b
    Examples:
      noetl executions show last
      noetl executions show 4711 --critical
    """
    if critical:
        await _critical(api, execution_id, as_json=as_json)
        return
    document = await api.document(execution_id)
    if as_json:
        await print_document(document, api.body)
        return
    source = await of_execution(api, configured.compiler(api.settings), document)
    shown = await shortened(source.told(document), api.body)
    waits = [] if document["end_time"] is not None else await api.why(execution_id)
    show(execution_rows(shown, waits, in_use=api.is_run()))
    if document["status"] == "FAILED":
        await print_output(api, execution_id, source=source)


async def _critical(api: Api, execution_id: str, *, as_json: bool) -> None:
    from noetl.api.routes.moments import CRITICAL

    found = await api.call(CRITICAL, execution_id=execution_id)
    if as_json:
        print_json(found)
        return
    for run in found.runs:
        spent = ", ".join(f"{kind} {length(seconds)}" for kind, seconds in run.by_kind.items())
        number = f" (run {run.run})" if run.run > 1 else ""
        waited = f"after {length(run.before)}, " if run.before >= 0.001 else ""
        print_line(f"{run.step}{number}: {waited}{length(run.seconds)}: {spent or 'no work'}")
    spent = ", ".join(f"{kind} {length(seconds)}" for kind, seconds in found.by_kind.items())
    print_line(f"{length(found.seconds)} in all: {spent}")


@group.command("diff")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@json_option
@looks
async def diff_command(api: Api, first: str, second: str, as_json: bool) -> int:
    """Compare two executions.

    Prints the first difference, all others, and the times of steps side by side. Step runs are
    aligned by step, run, iteration, task and attempt. Exits with 1 if they differ.

    \b
    Examples:
      noetl executions diff 4711 last
      noetl executions diff 4711 4709 --json
    """
    from noetl.api.routes.moments import DIFF, Both

    both = Both(a=await api.find(first), b=await api.find(second))
    found = await api.call(DIFF, query=both)
    if as_json:
        print_json(found)
        return OK if found.same else FAILED
    for number, one in enumerate(found.differences):
        print_line(f"{'first: ' if number == 0 else '       '}{one.text}")
        if one.what in ("workload", "result", "outcome"):
            print_line(f"         A  {_short(one.a)}")
            print_line(f"         B  {_short(one.b)}")
    if found.same:
        print_line("they did the same, with the same results")
    if found.more:
        say("there are more differences; --json has the first 500")
    for step in found.steps:
        print_line(
            f"{step.step}: {step.runs_a} and {step.runs_b} runs,"
            f" {length(step.seconds_a)} and {length(step.seconds_b)}"
        )
    return OK if found.same else FAILED


def _short(value: object) -> str:
    """A value on one line."""
    import json

    text = json.dumps(value, ensure_ascii=False, default=str)
    return printable(cut(text, 160))


@group.command("result")
@execution_argument
@click.option("--step", help="The result of this step instead of the playbook's.")
@json_option
@looks
async def result_command(api: Api, execution_id: str, step: str | None, as_json: bool) -> None:
    """Print the whole result of an execution or a step.

    Text is printed as it is, anything else as JSON; with --json text is JSON, too. A long list of
    results is read and printed part by part, so its size does not matter.

    \b
    Examples:
      noetl executions result last
      noetl executions result last --step collect > collected.json
    """
    result = await api.result(execution_id, step)
    await print_value(result, execution_id, api.body, as_json=as_json)


@group.command("events")
@execution_argument
@click.option(
    "--type",
    "types",
    multiple=True,
    metavar="NAME",
    help="Only events of this type, e.g. task.done.",
)
@click.option("--step", help="Only events of this step.")
@click.option("--after", type=click.IntRange(0), default=0, help="Only events after this number.")
@click.option("--limit", type=click.IntRange(1), help="At most this many.")
@json_option
@looks
async def events_command(
    api: Api,
    execution_id: str,
    types: tuple[str, ...],
    step: str | None,
    after: int,
    limit: int | None,
    as_json: bool,
) -> None:
    """List all events of an execution, in order.

    \b
    Examples:
      noetl executions events last
      noetl executions events last --step load --type task.done --json
    """
    kept, shown, more = [], 0, True
    while more and (limit is None or shown < limit):
        room = PAGE if limit is None else min(PAGE, limit - shown)
        page = await api.page(execution_id, after=after, types=types, step=step, limit=room)
        after, more = page.next_after, page.more
        shown += len(page.events)
        if as_json:
            kept += page.events
            continue
        for event in page.events:
            print_line(event_line(restored(event)))
    if as_json:
        print_json(EventPage(events=kept, next_after=after, more=more))


@group.command("logs")
@execution_argument
@click.option("--step", help="Only what this step printed.")
@click.option("--grep", metavar="RE", help="Only lines that match this regular expression.")
@click.option("--follow", is_flag=True, help="Keep printing until the execution ends.")
@json_option
@looks
async def logs_command(
    api: Api, execution_id: str, step: str | None, grep: str | None, follow: bool, as_json: bool
) -> int:
    """Print the output of its tasks, each line with its step.

    If a task prints very much, only the beginning and the end are kept. Secrets are masked. With
    --follow it exits with 1 if the execution is interrupted.

    \b
    Examples:
      noetl executions logs last --step load --follow
      noetl executions logs last --grep 'timeout|refused'
    """
    if follow and as_json:
        raise click.UsageError(
            "--json prints one document, --follow keeps printing: give only one of them."
        )
    entries: list[LogEntry] = []
    page: Logs | None = None
    printed = False
    async for page in _logs(api, execution_id, step, grep, follow=follow):
        if as_json:
            entries += page.entries
            continue
        for entry in page.entries:
            printed = True
            for line in entry.text.splitlines():
                shown = printable(line) if sys.stdout.isatty() else line
                print_line(f"{speaker(entry.step, entry.task, entry.iteration)} | {shown}")
    assert page is not None
    if as_json:
        print_json(msgspec.structs.replace(page, entries=entries))
    elif not printed:
        where = f"step {step} of it" if step else "its tasks"
        what = "no such line" if grep else "nothing"
        say(f"execution {execution_id}: {where} printed {what}")
    return FAILED if follow and page.status not in TERMINAL else OK


async def _logs(
    api: Api, execution_id: str, step: str | None, grep: str | None, *, follow: bool
) -> AsyncIterator[Logs]:
    """Page after page; with `follow`, waits for the next one at the end."""
    after, wait, is_run = 0, 0.0, True
    while True:
        query = WhichLogs(step=step, grep=grep, after=after, limit=PAGE, wait=wait)
        page = await api.call(LOGS, execution_id=execution_id, query=query)
        yield page
        after, wait = page.next_after, 0.0
        if page.more:
            continue
        if not follow or page.status in TERMINAL:
            return
        if not is_run:
            say(
                f"no process is running execution {execution_id}: it was interrupted."
                f" `noetl executions resume {execution_id}` continues it."
            )
            return
        # The process may have stored the end just before it released the database: look once more.
        is_run = api.is_run()
        wait = api.patience if is_run else 0.0


@group.command("export")
@execution_argument
@click.option("-o", "output", metavar="FILE", help="Default: ID.noetl; - is standard output.")
@looks
async def export_command(api: Api, execution_id: str, output: str | None) -> None:
    """Write an execution to one file.

    It holds the log, the playbook and the results. `noetl ui FILE` shows it on any machine, without
    a server. Secrets are masked as in the log.

    \b
    Example:
      noetl executions export 4711 -o 4711.noetl
      noetl ui 4711.noetl
    """
    pieces = api.client.pieces(EXPORT, execution_id=execution_id)
    name = output or f"{execution_id}.noetl"
    if name == "-":
        async for piece in pieces:
            sys.stdout.buffer.write(piece)
        return
    path = Path(name)
    try:
        # A file is whole or as it was; a pipe or a device takes what comes.
        with replacing(path) if is_plain(path) else path.open("wb") as file:
            async for piece in pieces:
                file.write(piece)
    except OSError as error:
        raise BadRequest(f"{name} cannot be written: {error.strerror}.") from None
    say(f"execution {execution_id} is in {name}; `noetl ui {name}` shows it")


@group.command("follow")
@execution_argument
@looks
async def follow_command(api: Api, execution_id: str) -> int:
    """Watch an execution until it ends.

    Another process or a server runs it. Exits like `noetl run`.

    \b
    Example:
      noetl executions follow last
    """
    return await follow(api, execution_id)


@group.command("why")
@execution_argument
@click.option("--step", metavar="STEP", help="Why this step ran, or why it did not.")
@click.option(
    "--at", "seq", type=click.IntRange(1), metavar="SEQ", help="At this event, instead of now."
)
@json_option
@looks
async def why_command(
    api: Api, execution_id: str, step: str | None, seq: int | None, as_json: bool
) -> None:
    """Show what an execution waits for, or why a step ran.

    Names the lease, timer, sub-playbook, token or event it waits for, who holds it, and until when.
    With --step the guards that decided are evaluated again on the data of that moment, and the
    answer shows the values they read.

    \b
    Examples:
      noetl executions why last
      noetl executions why last --step refund
      noetl executions why last --step refund --at 118
    """
    if step is None and seq is not None:
        raise click.UsageError(
            "--at needs --step: it explains why that step ran, or did not, up to that event."
        )
    query = WhichWhy(step=step, seq=seq)
    found = await api.call(WHY, execution_id=execution_id, query=query)
    in_use = api.is_run()
    if found.step is not None:
        if as_json:
            print_json(found.step)
        else:
            print_line(found.step.text)
        return
    if as_json:
        waits = [plain(one) for one in found.waits_for]
        status = {"execution_id": execution_id, "status": found.status, "in_use": in_use}
        print_json({**status, "waits_for": waits})
        return
    if found.status in TERMINAL:
        print_line(f"it waits for nothing: it has ended ({found.status})")
    elif not in_use:
        print_line(
            "no process is running it: it was interrupted."
            f" `noetl executions resume {execution_id}` continues it."
        )
    for reason in found.waits_for:
        # Where no process is, a lease holds nobody: it is taken over at once.
        if in_use or reason.waits_for != "lease":
            print_line(reason.text)
