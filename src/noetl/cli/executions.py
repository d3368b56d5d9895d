"""`noetl executions`: look at what ran and what runs, and act on it."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from noetl.cli.exits import FAILED, INTERRUPTED, OK
from noetl.cli.options import (
    db_option,
    execution_argument,
    json_option,
    labels_of,
    local_settings,
    payload_option,
    server_option,
    set_option,
    settings_for,
)
from noetl.cli.printing import counted, print_json, print_line, printable, say
from noetl.cli.whoami import local_actor

if TYPE_CHECKING:
    from noetl.api.routes.executions import Fork
    from noetl.model.retrospect import ForkPlanDocument
    from noetl.settings import Settings
    from noetl.store.base import Summary
    from noetl.wiring import System

STATUSES = ("PENDING", "RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED")


@click.group(short_help="Look at executions, and act on them.")
def command() -> None:
    """Look at executions, and act on them.

    An ID may be shortened to a beginning or an end that no other has, or be the word `last`.
    Looking works while another process runs executions; acting reaches that process.

    \b
    Examples:
      noetl executions list --status FAILED --since 1d
      noetl executions show last
      noetl executions why last
      noetl executions cancel 4711 --reason "wrong file"
      noetl executions resume-all
    """


def is_running(settings: Settings) -> bool:
    """Whether somebody could be running executions: a server, or whoever has the database."""
    from noetl import wiring

    return settings.server_url is not None or wiring.is_in_use(settings)


# --- Looking -----------------------------------------------------------------------------------


@command.command("list")
@click.argument("query", nargs=-1)
@click.option(
    "--status",
    type=click.Choice(STATUSES, case_sensitive=False),
    help="Only these. What was interrupted counts as running.",
)
@click.option("--path", help="Only executions of this playbook; * stands for anything.")
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="NAME=VALUE",
    help="Only those with this label, e.g. --label team=sales.",
)
@click.option("--since", metavar="TIME", help="Only those started since, e.g. 1h, 30m, 2d.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@json_option
@db_option
@server_option
def list_command(
    query: tuple[str, ...],
    status: str | None,
    path: str | None,
    labels: tuple[str, ...],
    since: str | None,
    limit: int,
    as_json: bool,
    db: str | None,
    server: str | None,
) -> None:
    """Executions, newest first.

    With a QUERY, those that match it.
    A query has terms that must all hold; a comma means or, a minus before a term not. A word
    without a key is looked for in the path, the error and the id.

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
    from noetl.model.execution_query import quoted

    _begin(since)
    words = [" ".join(query)]
    words += [f"status:{status}"] if status is not None else []
    words += [f"path:{path}" if "*" in path else f"path:{quoted(path)}"] if path is not None else []
    words += [f"since:{since}"] if since is not None else []
    words += [f"label.{name}={quoted(value)}" for name, value in labels_of(labels).items()]
    asyncio.run(_list(settings_for(db, server), " ".join(words).strip(), limit, as_json=as_json))


def _begin(since: str | None) -> float | None:
    from noetl.model.duration import seconds

    span = seconds(since) if since is not None else None
    if since is not None and span is None:
        raise click.BadParameter(f'--since is a time span like 1h, 30m or 2d, not "{since}".')
    return time.time() - span if span is not None else None


async def _list(settings: Settings, query: str, limit: int, *, as_json: bool) -> None:
    from noetl.cli.remote import looking
    from noetl.cli.showing import list_rows, show

    async with looking(settings) as records:
        page = await records.listed(query, limit=limit)
    if as_json:
        print_json(page)
        return
    show(list_rows(page.executions, in_use=is_running(settings)))
    if page.next_cursor is not None:
        say(f"there are more; --limit {limit * 10} shows them")
    if not page.executions:
        say("no executions match")


@command.command("labels")
@click.argument("label", metavar="NAME")
@click.option("--since", metavar="TIME", help="Only executions started since, e.g. 1h, 30m, 2d.")
@json_option
@db_option
@server_option
def labels_command(
    label: str, since: str | None, as_json: bool, db: str | None, server: str | None
) -> None:
    """The values of a label, and how many executions have each."""
    asyncio.run(_labels(settings_for(db, server), label, _begin(since), as_json=as_json))


async def _labels(settings: Settings, label: str, since: float | None, *, as_json: bool) -> None:
    from noetl.cli.printing import one_line
    from noetl.cli.remote import looking

    async with looking(settings) as records:
        found = await records.label_counts(label, since=since)
    if as_json:
        values = [{"value": value, "executions": count} for value, count in found]
        print_json({"label": label, "values": values})
        return
    for value, count in found:
        print_line(f"{count:>8}  {one_line(value)}")
    if not found:
        say(f'no execution has a label "{one_line(label)}"')


@command.command("show")
@execution_argument
@click.option("--critical", is_flag=True, help="The step runs that decided how long it took.")
@json_option
@db_option
@server_option
def show_command(
    execution: str, critical: bool, as_json: bool, db: str | None, server: str | None
) -> None:
    """Steps, result or error, and what failed tasks printed."""
    if critical:
        asyncio.run(_critical(settings_for(db, server), execution, as_json=as_json))
        return
    asyncio.run(_show(settings_for(db, server), execution, as_json=as_json))


async def _critical(settings: Settings, written: str, *, as_json: bool) -> None:
    from noetl.api.routes.comparisons import CRITICAL
    from noetl.cli.acting import calling, find
    from noetl.cli.lines import length

    execution_id = await find(settings, written)
    async with calling(settings) as client:
        found = await client.call(CRITICAL, execution_id=execution_id)
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


async def _show(settings: Settings, written: str, *, as_json: bool) -> None:
    from noetl import wiring
    from noetl.cli.remote import looking
    from noetl.cli.results import print_document
    from noetl.cli.running import print_output
    from noetl.cli.showing import execution_rows, shortened, show
    from noetl.cli.source_lines import of_execution

    async with looking(settings) as records:
        execution_id = await records.find(written)
        document = await records.document(execution_id)
        if as_json:
            await print_document(document, records.body)
            return
        source = await of_execution(records, wiring.compiler(settings), document)
        shown = await shortened(source.told(document), records.body)
        show(execution_rows(shown, in_use=is_running(settings)))
        if document["status"] == "FAILED":
            await print_output(records, execution_id, source=source)


@command.command("diff")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@json_option
@db_option
@server_option
def diff_command(
    first: str, second: str, as_json: bool, db: str | None, server: str | None
) -> None:
    """How two executions differ.

    The first difference, all others, and the times of steps side by side. They are aligned by step,
    run, iteration, task and attempt. Exits with 1 if they differ.
    """
    sys.exit(asyncio.run(_diff(settings_for(db, server), first, second, as_json=as_json)))


async def _diff(settings: Settings, first: str, second: str, *, as_json: bool) -> int:
    from noetl.api.routes.comparisons import DIFF, Both
    from noetl.cli.acting import calling, find
    from noetl.cli.lines import length

    a, b = await find(settings, first), await find(settings, second)
    async with calling(settings) as client:
        found = await client.call(DIFF, query=Both(a=a, b=b))
    if as_json:
        print_json(found)
        return OK if found.same else FAILED
    for number, one in enumerate(found.differences):
        print_line(f"{'first: ' if number == 0 else '       '}{one.text}")
        if one.what in ("workload", "result", "outcome"):
            print_line(f"         A  {short(one.a)}")
            print_line(f"         B  {short(one.b)}")
    if found.same:
        print_line("they did the same and came to the same")
    if found.more:
        say("there are more differences; --json has the first 500")
    for step in found.steps:
        print_line(
            f"{step.step}: {step.runs_a} and {step.runs_b} runs,"
            f" {length(step.seconds_a)} and {length(step.seconds_b)}"
        )
    return OK if found.same else FAILED


def short(value: object) -> str:
    """A value on one line."""
    import json

    text = json.dumps(value, ensure_ascii=False, default=str)
    return printable(text if len(text) <= 160 else text[:159] + "…")


@command.command("result")
@execution_argument
@click.option("--step", help="The result of this step instead of the playbook's.")
@json_option
@db_option
@server_option
def result_command(
    execution: str, step: str | None, as_json: bool, db: str | None, server: str | None
) -> None:
    """The whole value that an execution or a step ended with.

    Text comes as it is, anything else as JSON; with --json text is JSON, too. A value of any size
    is printed; a long list of results is read and printed part by part.
    """
    asyncio.run(_result(settings_for(db, server), execution, step, as_json=as_json))


async def _result(settings: Settings, written: str, step: str | None, *, as_json: bool) -> None:
    from noetl.cli.remote import looking
    from noetl.cli.results import print_value
    from noetl.errors import NotFound
    from noetl.model.spelling import did_you_mean

    async with looking(settings) as records:
        execution_id = await records.find(written)
        document = await records.document(execution_id)
        found, what = document, f"execution {execution_id}"
        if step is not None:
            steps = {one["step"]: one for one in document["steps"]}
            if step not in steps:
                raise NotFound(
                    f'execution {execution_id} has run no step "{step}".'
                    f"{did_you_mean(step, steps)} It has run: {', '.join(steps) or 'none'}."
                )
            found, what = steps[step], f'step "{step}" of execution {execution_id}'
        if found["result"] is None and found["status"] not in ("COMPLETED", "done"):
            raise NotFound(
                f"{what} has no result: it is {found['status'].lower()}."
                f" `noetl executions show {execution_id}` says more."
            )
        await print_value(found["result"], execution_id, records.body, as_json=as_json)


@command.command("events")
@execution_argument
@click.option("--type", "types", multiple=True, metavar="NAME", help="Only these, e.g. task.done.")
@click.option("--step", help="Only those of this step.")
@click.option("--after", type=click.IntRange(0), default=0, help="Only those after this number.")
@click.option("--limit", type=click.IntRange(1), help="At most so many.")
@json_option
@db_option
@server_option
def events_command(
    execution: str,
    types: tuple[str, ...],
    step: str | None,
    after: int,
    limit: int | None,
    as_json: bool,
    db: str | None,
    server: str | None,
) -> None:
    """Everything that happened to an execution, in order."""
    chosen: dict[str, Any] = {"types": types, "step": step, "after": after}
    asyncio.run(_events(settings_for(db, server), execution, chosen, limit, as_json=as_json))


async def _events(
    settings: Settings, written: str, chosen: dict[str, Any], limit: int | None, *, as_json: bool
) -> None:
    from noetl.cli.lines import event_line
    from noetl.cli.remote import looking
    from noetl.control.documents import event

    async with looking(settings) as records:
        execution_id = await records.find(written)
        wanted = None if limit is None else limit + 1
        found = await records.events(execution_id, limit=wanted, **chosen)
    shown = found if limit is None else found[:limit]
    if as_json:
        last = shown[-1].seq if shown else chosen["after"]
        events = [event(execution_id, row) for row in shown]
        print_json({"events": events, "next_after": last, "more": len(found) > len(shown)})
        return
    for row in shown:
        print_line(event_line(row))


@command.command("logs")
@execution_argument
@click.option("--step", help="Only what this step printed.")
@click.option("--grep", metavar="RE", help="Only lines that this regular expression finds.")
@click.option("--follow", is_flag=True, help="Go on until the execution has ended.")
@json_option
@db_option
@server_option
def logs_command(
    execution: str,
    step: str | None,
    grep: str | None,
    follow: bool,
    as_json: bool,
    db: str | None,
    server: str | None,
) -> None:
    """What its tasks printed, line by line behind the step.

    Of a task that prints very much the beginning and the end are kept. Secrets are masked.
    """
    from noetl.cli.task_output import print_logs

    if follow and as_json:
        raise click.UsageError("--json prints one document, --follow goes on: give one of them.")
    settings = settings_for(db, server)
    chosen = {"step": step, "grep": grep}
    asyncio.run(print_logs(settings, execution, chosen, follow=follow, as_json=as_json))


@command.command("export")
@execution_argument
@click.option("-o", "output", metavar="FILE", help="Default: ID.noetl. - is standard output.")
@db_option
@server_option
def export_command(execution: str, output: str | None, db: str | None, server: str | None) -> None:
    """Write an execution into one file.

    It has the log, the playbook and the results.

    `noetl ui FILE` shows it on any machine, without a server. Secrets are masked as in the log.
    """
    asyncio.run(_export(settings_for(db, server), execution, output))


async def _export(settings: Settings, written: str, output: str | None) -> None:
    from noetl.cli.remote import looking

    async with looking(settings) as records:
        execution_id = await records.find(written)
        pieces = await records.export(execution_id)
        name = output or f"{execution_id}.noetl"
        if name == "-":
            async for piece in pieces:
                sys.stdout.buffer.write(piece)
            return
        try:
            with open(name, "wb") as file:
                async for piece in pieces:
                    file.write(piece)
        except OSError as error:
            raise click.ClickException(f"{name} cannot be written: {error.strerror}.") from None
    say(f"execution {execution_id} is in {name}; `noetl ui {name}` shows it")


@command.command("follow")
@execution_argument
@db_option
@server_option
def follow_command(execution: str, db: str | None, server: str | None) -> None:
    """Watch an execution until it has ended.

    Another process or a server runs it. Exits as `noetl run` would.
    """
    from noetl.cli.following import follow

    sys.exit(asyncio.run(follow(settings_for(db, server), execution)))


@command.command("why")
@execution_argument
@click.option("--step", metavar="STEP", help="Why this step ran, or why it did not.")
@click.option("--at", "seq", type=click.IntRange(1), metavar="SEQ", help="As it was at this event.")
@json_option
@db_option
@server_option
def why_command(
    execution: str,
    step: str | None,
    seq: int | None,
    as_json: bool,
    db: str | None,
    server: str | None,
) -> None:
    """What an unfinished execution waits for, or why a step ran.

    Which lease, timer, sub-playbook, token or event it is, who has it, and until when. With --step
    the guards that decided are evaluated again on what they could read then, and the answer says
    what they read.
    """
    settings = settings_for(db, server)
    if step is not None:
        asyncio.run(_why_step(settings, execution, step, seq, as_json=as_json))
        return
    if seq is not None:
        raise click.UsageError("--at goes with --step: why that step ran, or not, up to then.")
    asyncio.run(_why(settings, execution, as_json=as_json))


async def _why_step(
    settings: Settings, written: str, step: str, seq: int | None, *, as_json: bool
) -> None:
    from noetl.api.routes.executions import WHY, WhichWhy
    from noetl.cli.acting import calling, find

    execution_id = await find(settings, written)
    async with calling(settings) as client:
        found = await client.call(
            WHY, execution_id=execution_id, query=WhichWhy(step=step, seq=seq)
        )
    assert found.step is not None
    if as_json:
        print_json(found.step)
    else:
        print_line(found.step.text)


async def _why(settings: Settings, written: str, *, as_json: bool) -> None:
    from noetl.cli.remote import looking

    async with looking(settings) as records:
        execution_id = await records.find(written)
        state = await records.state(execution_id)
        reasons = await records.why(execution_id)
    in_use = is_running(settings)
    if as_json:
        status = {"execution_id": execution_id, "status": state.status, "in_use": in_use}
        print_json({**status, "waits_for": reasons})
        return
    if state.is_finished:
        print_line(f"it waits for nothing: it has ended ({state.status})")
    elif not in_use:
        print_line(
            "no process is running it: it was interrupted."
            f" `noetl executions resume {execution_id}` goes on with it."
        )
    for reason in reasons:
        print_line(reason.text)


# --- Acting ------------------------------------------------------------------------------------


@command.command("cancel")
@execution_argument
@click.option("--reason", default="", help="Why; kept with the execution.")
@db_option
@server_option
def cancel_command(execution: str, reason: str, db: str | None, server: str | None) -> None:
    """Stop an execution for good. What it runs just now is interrupted.

    A playbook with `compensate_on: [cancel]` undoes what is done first; cancelling again stops
    that, too.
    """
    say(asyncio.run(_cancel(settings_for(db, server), execution, reason)))


async def _cancel(settings: Settings, written: str, reason: str) -> str:
    from noetl.api.routes.executions import CANCEL, Cancel
    from noetl.cli.acting import calling, find
    from noetl.cli.signal import left_to_do

    execution_id = await find(settings, written)
    wish = Cancel(reason=reason or "cancelled by command")
    async with calling(settings) as client:
        now = await client.call(CANCEL, execution_id=execution_id, body=wish)
    if now.status == "CANCELLED":
        return f"execution {execution_id} is cancelled"
    rest = await left_to_do(settings, execution_id)
    return f"execution {execution_id} is being cancelled: it undoes what is done{rest}"


@command.command("pause")
@execution_argument
@click.option("--reason", default="", help="Why; kept with the execution.")
@db_option
@server_option
def pause_command(execution: str, reason: str, db: str | None, server: str | None) -> None:
    """Begin nothing new in an execution until it is resumed.

    Calls that run just now end. The command comes back when every worker that has work of it has
    confirmed that. Sub-playbooks are executions of their own, and go on.
    """
    execution_id = asyncio.run(_pause(settings_for(db, server), execution, reason))
    say(f"execution {execution_id} is paused; `noetl executions resume` lets it go on")


async def _pause(settings: Settings, written: str, reason: str) -> str:
    from noetl.api.routes.executions import PAUSE, Pause
    from noetl.cli.acting import calling, find

    execution_id = await find(settings, written)
    async with calling(settings) as client:
        paused = await client.call(PAUSE, execution_id=execution_id, body=Pause(reason=reason))
    for worker in paused.unconfirmed:
        say(f"worker {worker} has not confirmed the pause; it may begin something yet")
    return execution_id


@command.command("answer")
@execution_argument
@click.argument("fields", nargs=-1, metavar="[FIELD=VALUE]...")
@click.option("--step", help="Which step, if several wait for an answer.")
@click.option(
    "--set", "sets", multiple=True, metavar="FIELD=VALUE", help="The same as FIELD=VALUE."
)
@db_option
@server_option
def answer_command(
    execution: str,
    fields: tuple[str, ...],
    step: str | None,
    sets: tuple[str, ...],
    db: str | None,
    server: str | None,
) -> None:
    """Answer what a waiting step asks.

    On a terminal the fields of its form are asked for one by one, unless FIELD=VALUE answers
    them.

    \b
    Examples:
      noetl executions answer 380937164380631313
      noetl executions answer 380937164380631313 approved=yes note="looks right"
    """
    from noetl.cli.answer import answer

    asyncio.run(answer(settings_for(db, server), execution, step, (*fields, *sets)))


@command.command("resume")
@execution_argument
@click.option("--detach", is_flag=True, help="Only lift the pause; do not run it here.")
@json_option
@db_option
@server_option
def resume_command(
    execution: str, detach: bool, as_json: bool, db: str | None, server: str | None
) -> None:
    """Let a paused or interrupted execution go on.

    If a process is running it, that process goes on with it. Otherwise it runs here, to its end.
    """
    sys.exit(
        asyncio.run(_resume(settings_for(db, server), execution, detach=detach, as_json=as_json))
    )


async def _resume(settings: Settings, written: str, *, detach: bool, as_json: bool) -> int:
    from noetl import wiring
    from noetl.api.routes.executions import RESUME
    from noetl.cli.acting import calling, find
    from noetl.cli.running import run_to_end, working_here

    execution_id = await find(settings, written)
    if detach or is_running(settings):
        async with calling(settings) as client:
            await client.call(RESUME, execution_id=execution_id)
        where = "in the process that has the database"
        if settings.server_url is not None:
            where = f"on {settings.server_url}"
        elif detach:
            where = "when something runs next"
        say(f"execution {execution_id} goes on {where}")
        return OK
    async with wiring.embedded(settings, work=False) as system:
        await system.executions.resume(execution_id, actor=local_actor())
        root = await _root(system, execution_id)
        async with working_here(system, settings, {root}):
            return await run_to_end(system, execution_id, as_json=as_json)


async def _root(system: System, execution_id: str) -> str:
    """The execution that people started, of which this one is a part."""
    row = await system.store.summary(execution_id)
    while row is not None and row.parent_execution_id is not None:
        execution_id = row.parent_execution_id
        row = await system.store.summary(execution_id)
    return execution_id


@command.command("resume-all")
@db_option
def resume_all_command(db: str | None) -> None:
    """Go on with every interrupted execution, to its end.

    Ctrl-C stops this process and leaves them as they are. Paused executions stay paused.
    """
    try:
        sys.exit(asyncio.run(_resume_all(local_settings(db))))
    except KeyboardInterrupt:
        say("stopped; what has not ended can be resumed again")
        sys.exit(INTERRUPTED)


async def _resume_all(settings: Settings) -> int:
    from noetl import wiring
    from noetl.cli.running import working_here

    async with wiring.embedded(settings, work=False) as system:
        rows = [await system.store.summary(found) for found in await system.store.unfinished()]
        started = [row for row in rows if row is not None and row.parent_execution_id is None]
        chosen = [row for row in started if row.status != "PAUSED"]
        for row in started:
            if row.status == "PAUSED":
                say(f"execution {row.execution_id} of {row.path} is paused and stays so")
        if not chosen:
            say("no execution was interrupted")
            return OK
        say(f"going on with {counted(len(chosen), 'execution')}")
        async with working_here(system, settings, {row.execution_id for row in chosen}):
            codes = await asyncio.gather(*(_watch(system, row) for row in chosen))
    return max(codes)


async def _watch(system: System, row: Summary) -> int:
    from noetl.cli.lines import Telling
    from noetl.cli.source_lines import Locator
    from noetl.control.records import Records

    name = f"{row.path} {row.execution_id}"
    locator = Locator(Records(system.store), system.catalog.check)
    telling = Telling(row.execution_id, locator)
    async for events in system.executions.follow(row.execution_id, after=await _seq(system, row)):
        for event in events:
            line = await telling.line(event)
            if line is not None:
                say(f"{name}: {line}")
    document = await system.executions.wait(row.execution_id)
    document = (await locator.source(document)).told(document)
    error = f": {document['error']['message']}" if document["error"] else ""
    say(f"{name}: {document['status'].lower()}{error}")
    return OK if document["status"] == "COMPLETED" else FAILED


async def _seq(system: System, row: Summary) -> int:
    return (await system.orchestrator.state(row.execution_id)).seq


@command.command("fork")
@execution_argument
@click.option(
    "--at",
    "seq",
    type=click.IntRange(1),
    required=True,
    metavar="SEQ",
    help="The event that is to happen again, with all that follows.",
)
@click.option(
    "--iteration",
    type=click.IntRange(0),
    metavar="N",
    help="Only this iteration of the loop that the event belongs to.",
)
@click.option("--version", type=click.IntRange(1), help="Go on with this version of the playbook.")
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Write to ctx first: --set total=3 or --set ctx.order.id=7.",
)
@click.option("--dry-run", is_flag=True, help="Only say which calls would be reused.")
@json_option
@db_option
@server_option
def fork_command(
    execution: str,
    seq: int,
    iteration: int | None,
    version: int | None,
    sets: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    db: str | None,
    server: str | None,
) -> None:
    """A new execution that goes on from an event of another.

    What was recorded before the event counts: none of those calls is made again. `noetl executions
    events ID` shows the numbers.

    \b
    Examples:
      noetl executions fork last --at 118 --dry-run
      noetl executions fork last --at 118 --version 13
      noetl executions fork last --at 204 --iteration 17 --set rate=0.5
    """
    from noetl.api.routes.executions import Fork
    from noetl.cli.payload import pairs

    ctx = {key.removeprefix("ctx."): value for key, value in pairs(sets)}
    wish = Fork(seq=seq, iteration=iteration, version=version, ctx=ctx, dry_run=dry_run)
    sys.exit(asyncio.run(_fork(settings_for(db, server), execution, wish, as_json=as_json)))


async def _fork(settings: Settings, written: str, wish: Fork, *, as_json: bool) -> int:
    from noetl import wiring
    from noetl.api.routes.catalog import number_of
    from noetl.api.routes.executions import FORK
    from noetl.cli.acting import calling, find
    from noetl.cli.following import follow
    from noetl.cli.remote import connected
    from noetl.cli.remote_running import to_end
    from noetl.cli.running import run_to_end, working_here
    from noetl.control.forking import Wish

    source = await find(settings, written)
    if wish.dry_run:
        async with calling(settings) as client:
            plan = (await client.call(FORK, execution_id=source, body=wish)).plan
        if as_json:
            print_json(plan)
        else:
            _print_plan(plan)
        return OK
    if settings.server_url is not None:
        async with connected(settings) as client:
            forked = await client.call(FORK, execution_id=source, body=wish)
            assert forked.execution_id is not None
            _say_forked(forked.plan)
            return await to_end(settings, client, forked.execution_id, as_json=as_json)
    if is_running(settings):
        async with calling(settings) as client:
            forked = await client.call(FORK, execution_id=source, body=wish)
        assert forked.execution_id is not None
        _say_forked(forked.plan)
        return await follow(settings, forked.execution_id)
    async with wiring.embedded(settings, work=False) as system:
        version = number_of(wish.version)
        asked = Wish(seq=wish.seq, iteration=wish.iteration, version=version, ctx=wish.ctx or {})
        new, plan = await system.executions.fork(source, asked, actor=local_actor())
        _say_forked(plan)
        async with working_here(system, settings, {new}):
            return await run_to_end(system, new, as_json=as_json)


def _say_forked(plan: ForkPlanDocument) -> None:
    say(f"goes on from event {plan.seq} of {plan.source}; {counted(plan.reused, 'call')} reused")


def _print_plan(plan: ForkPlanDocument) -> None:
    print_line(
        f"events 1 to {plan.reused_upto} of {plan.source} count; it goes on from"
        f" {', '.join(plan.goes_on) or 'nothing'}"
    )
    print_line(f"{counted(plan.reused, 'call')} reused, {plan.again} of the record again:")
    for one in plan.calls:
        which = f" (iterations {', '.join(map(str, one.iterations))})" if one.iterations else ""
        print_line(f"  {one.step}.{one.task}: {one.reused} reused, {one.again} again{which}")


@command.command("rerun")
@execution_argument
@click.option("--from", "step", metavar="STEP", help="Keep the results before this step.")
@set_option
@payload_option
@json_option
@db_option
@server_option
def rerun_command(
    execution: str,
    step: str | None,
    sets: tuple[str, ...],
    payload: str | None,
    as_json: bool,
    db: str | None,
    server: str | None,
) -> None:
    """Run the same playbook again, as a new execution.

    It runs here and to its end, or on the server in use. It gets the workload of the old one, with
    --set and --payload over it. With --from it starts at that step, with everything that was there
    when the old one last came to it.
    """
    from noetl.cli.payload import workload

    given = workload(sets, payload)
    sys.exit(asyncio.run(_rerun(settings_for(db, server), execution, step, given, as_json=as_json)))


async def _rerun(
    settings: Settings, written: str, step: str | None, given: dict[str, Any], *, as_json: bool
) -> int:
    from noetl import wiring
    from noetl.cli.acting import find
    from noetl.cli.running import run_to_end, working_here

    old = await find(settings, written)
    if settings.server_url is not None:
        from noetl.cli.remote_running import rerun_there

        return await rerun_there(settings, old, step, given, as_json=as_json)
    async with wiring.embedded(settings, work=False) as system:
        new = await system.executions.rerun(old, step=step, workload=given, actor=local_actor())
        async with working_here(system, settings, {new}):
            return await run_to_end(system, new, as_json=as_json)


# --- Keeping and forgetting --------------------------------------------------------------------


@command.command("delete")
@execution_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@db_option
@server_option
def delete_command(execution: str, yes: bool, db: str | None, server: str | None) -> None:
    """Remove an execution for good.

    It must have ended, and all that it called goes with it. Its log, results and variables go
    with it; the audit log keeps who did that.
    """
    asyncio.run(_delete(settings_for(db, server), execution, yes=yes))


async def _delete(settings: Settings, written: str, *, yes: bool) -> None:
    from noetl.api.routes.retention import DELETE
    from noetl.cli.acting import calling, find

    execution_id = await find(settings, written)
    if not yes:
        click.confirm(f"Remove execution {execution_id} for good?", abort=True, err=True)
    async with calling(settings) as client:
        gone = await client.call(DELETE, execution_id=execution_id)
    say(f"{counted(gone.executions, 'execution')} removed")


@command.command("prune")
@click.option("--keep", metavar="RULES", help="Instead of NOETL_KEEP: 90d,shop/=30d,failed=180d")
@click.option("--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
@json_option
@db_option
@server_option
def prune_command(
    keep: str | None, dry_run: bool, as_json: bool, db: str | None, server: str | None
) -> None:
    """Remove executions that ended long enough ago.

    Each goes with all that it called. Servers do this by themselves where NOETL_KEEP says how
    long executions are kept. What has not
    ended, is held, or has results that a rerun stands on, stays.

    \b
    Examples:
      noetl executions prune --keep 30d --dry-run
      noetl executions prune --keep 90d,shop/=7d,failed=180d
    """
    asyncio.run(_prune(settings_for(db, server), keep, dry_run=dry_run, as_json=as_json))


async def _prune(settings: Settings, keep: str | None, *, dry_run: bool, as_json: bool) -> None:
    from noetl.api.routes.retention import PRUNE, SHOW, Prune
    from noetl.cli.acting import calling

    async with calling(settings) as client:
        if keep is None and not (await client.call(SHOW)).keep:
            raise click.UsageError(
                "nothing says how long executions are kept. Say it with --keep 90d, or set"
                " NOETL_KEEP where the server runs."
            )
        pruned = await client.call(PRUNE, body=Prune(keep=keep, dry_run=dry_run))
    if as_json:
        print_json(pruned)
        return
    would = "would be removed" if dry_run else "removed"
    events = f"{pruned.events:,} events"
    print_line(f"{counted(pruned.executions, 'execution')} {would}, with {events}")
    for path, count in pruned.by_path.items():
        print_line(f"  {count:>7,}  {path}")
    for reason, count in pruned.kept.items():
        print_line(f"{counted(count, 'execution')} kept beyond that: {reason}")


@command.command("hold")
@execution_argument
@click.option("--note", default="", help="Why; shown by `noetl executions holds`.")
@db_option
@server_option
def hold_command(execution: str, note: str, db: str | None, server: str | None) -> None:
    """Keep an execution until it is released."""
    execution_id = asyncio.run(_hold(settings_for(db, server), execution, note))
    say(f"execution {execution_id} is kept until it is released")


async def _hold(settings: Settings, written: str, note: str) -> str:
    from noetl.api.routes.retention import HOLD, HoldIt
    from noetl.cli.acting import calling, find

    execution_id = await find(settings, written)
    async with calling(settings) as client:
        await client.call(HOLD, execution_id=execution_id, body=HoldIt(note=note))
    return execution_id


@command.command("release")
@execution_argument
@db_option
@server_option
def release_command(execution: str, db: str | None, server: str | None) -> None:
    """Hold an execution no longer."""
    execution_id = asyncio.run(_release(settings_for(db, server), execution))
    say(f"execution {execution_id} is not held any more")


async def _release(settings: Settings, written: str) -> str:
    from noetl.api.routes.retention import RELEASE
    from noetl.cli.acting import calling, find

    execution_id = await find(settings, written)
    async with calling(settings) as client:
        await client.call(RELEASE, execution_id=execution_id)
    return execution_id


@command.command("holds")
@json_option
@db_option
@server_option
def holds_command(as_json: bool, db: str | None, server: str | None) -> None:
    """List what is held, by whom and why."""
    asyncio.run(_holds(settings_for(db, server), as_json=as_json))


async def _holds(settings: Settings, *, as_json: bool) -> None:
    from noetl.api.routes.retention import SHOW
    from noetl.cli.acting import calling

    async with calling(settings) as client:
        held = (await client.call(SHOW)).holds
    if as_json:
        print_json({"holds": held})
        return
    if not held:
        say("nothing is held")
    for one in held:
        print_line(f"{one.execution_id}  {one.at}  {one.who}  {one.note}")


@command.command("archive")
@execution_argument
@db_option
@server_option
def archive_command(execution: str, db: str | None, server: str | None) -> None:
    """Record an execution in the archive.

    It must have ended, and all that it called is recorded with it. NOETL_ARCHIVE_URL says where
    that is. The execution is kept; `noetl ui` opens a recording.
    """
    for name in asyncio.run(_archive(settings_for(db, server), execution)):
        print_line(name)


async def _archive(settings: Settings, written: str) -> list[str]:
    from noetl.api.routes.retention import ARCHIVE
    from noetl.cli.acting import calling, find

    execution_id = await find(settings, written)
    async with calling(settings) as client:
        return (await client.call(ARCHIVE, execution_id=execution_id)).names


@command.command("archived")
@click.argument("prefix", default="")
@json_option
@db_option
@server_option
def archived_command(prefix: str, as_json: bool, db: str | None, server: str | None) -> None:
    """List the recordings in the archive.

    With PREFIX, those whose names begin with it.
    """
    asyncio.run(_archived(settings_for(db, server), prefix, as_json=as_json))


async def _archived(settings: Settings, prefix: str, *, as_json: bool) -> None:
    from noetl.api.routes.retention import ARCHIVED, WhichArchived
    from noetl.cli.acting import calling

    found, after = [], ""
    async with calling(settings) as client:
        while True:
            query = WhichArchived(prefix=prefix, after=after, limit=1000)
            page = await client.call(ARCHIVED, query=query)
            found += page.recordings
            if page.next_after is None:
                break
            after = page.next_after
    if as_json:
        print_json({"recordings": found})
        return
    if not found:
        say("the archive has no such recordings")
    for one in found:
        print_line(f"{one.archived_at}  {one.size:>12,}  {one.name}")
