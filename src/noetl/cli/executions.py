"""`noetl executions`: look at what ran and what runs, and act on it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import click

from noetl.cli.calls import PAGE, acts, holding, looks
from noetl.cli.exits import FAILED, INTERRUPTED, OK
from noetl.cli.options import (
    db_option,
    execution_argument,
    json_option,
    labels_of,
    local_settings,
    payload_option,
    set_option,
)
from noetl.cli.output import counted, one_line, print_json, print_line, printable, say

if TYPE_CHECKING:
    from noetl.cli.calls import Api
    from noetl.model.answers import ExecutionSummary, LogEntry, Logs
    from noetl.model.retrospect import ForkPlanDocument
    from noetl.settings import Settings

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


# --- Looking -----------------------------------------------------------------------------------


def _span(context: click.Context, parameter: click.Parameter, since: str | None) -> str | None:
    from noetl.model.duration import seconds

    if since is not None and seconds(since) is None:
        raise click.BadParameter(f'--since is a time span like 1h, 30m or 2d, not "{since}".')
    return since


since_option = click.option(
    "--since", metavar="TIME", callback=_span, help="Only those started since, e.g. 1h, 30m, 2d."
)


class QueryCommand(click.Command):
    """A command that takes a query: terms of it may begin with a minus."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from noetl.model.execution_query import KEYS, LABEL

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


@command.command("list", cls=QueryCommand)
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
    from noetl.api.routes.executions import LIST, Which
    from noetl.cli.views.executions import list_rows, show
    from noetl.model.answers import ExecutionPage
    from noetl.model.execution_query import quoted

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


@command.command("labels")
@click.argument("label", metavar="NAME")
@since_option
@json_option
@looks
async def labels_command(api: Api, label: str, since: str | None, as_json: bool) -> None:
    """The values of a label, and how many executions have each."""
    from noetl.api.routes.executions import LABELS, Labelled

    found = await api.call(LABELS, name=label, query=Labelled(since=since))
    if as_json:
        print_json(found)
        return
    for one in found.values:
        print_line(f"{one.executions:>8}  {one_line(one.value)}")
    if not found.values:
        say(f'no execution has a label "{one_line(label)}"')


@command.command("show")
@execution_argument
@click.option("--critical", is_flag=True, help="The step runs that decided how long it took.")
@json_option
@looks
async def show_command(api: Api, execution: str, critical: bool, as_json: bool) -> None:
    """Steps, result or error, and what failed tasks printed."""
    from noetl import wiring
    from noetl.cli.follow import print_output
    from noetl.cli.views.executions import execution_rows, shortened, show
    from noetl.cli.views.results import print_document
    from noetl.cli.views.source_lines import of_execution

    execution_id = await api.find(execution)
    if critical:
        await _critical(api, execution_id, as_json=as_json)
        return
    document = await api.document(execution_id)
    if as_json:
        await print_document(document, api.body)
        return
    source = await of_execution(api, wiring.compiler(api.settings), document)
    shown = await shortened(source.told(document), api.body)
    show(execution_rows(shown, in_use=api.is_run()))
    if document["status"] == "FAILED":
        await print_output(api, execution_id, source=source)


async def _critical(api: Api, execution_id: str, *, as_json: bool) -> None:
    from noetl.api.routes.comparisons import CRITICAL
    from noetl.cli.views.lines import length

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


@command.command("diff")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@json_option
@looks
async def diff_command(api: Api, first: str, second: str, as_json: bool) -> int:
    """How two executions differ.

    The first difference, all others, and the times of steps side by side. They are aligned by step,
    run, iteration, task and attempt. Exits with 1 if they differ.

    \b
    Examples:
      noetl executions diff 4711 last
      noetl executions diff 4711 4709 --json
    """
    from noetl.api.routes.comparisons import DIFF, Both
    from noetl.cli.views.lines import length

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
        print_line("they did the same and came to the same")
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
    return printable(text if len(text) <= 160 else text[:159] + "…")


@command.command("result")
@execution_argument
@click.option("--step", help="The result of this step instead of the playbook's.")
@json_option
@looks
async def result_command(api: Api, execution: str, step: str | None, as_json: bool) -> None:
    """The whole value that an execution or a step ended with.

    Text comes as it is, anything else as JSON; with --json text is JSON, too. A value of any size
    is printed; a long list of results is read and printed part by part.

    \b
    Examples:
      noetl executions result last
      noetl executions result last --step collect > collected.json
    """
    from noetl.cli.views.results import print_value
    from noetl.errors import NotFound
    from noetl.model.spelling import did_you_mean

    execution_id = await api.find(execution)
    document = await api.document(execution_id)
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
    await print_value(found["result"], execution_id, api.body, as_json=as_json)


@command.command("events")
@execution_argument
@click.option("--type", "types", multiple=True, metavar="NAME", help="Only these, e.g. task.done.")
@click.option("--step", help="Only those of this step.")
@click.option("--after", type=click.IntRange(0), default=0, help="Only those after this number.")
@click.option("--limit", type=click.IntRange(1), help="At most so many.")
@json_option
@looks
async def events_command(
    api: Api,
    execution: str,
    types: tuple[str, ...],
    step: str | None,
    after: int,
    limit: int | None,
    as_json: bool,
) -> None:
    """Everything that happened to an execution, in order."""
    from noetl.cli.views.lines import event_line
    from noetl.control.documents import restored
    from noetl.model.answers import EventPage

    execution_id = await api.find(execution)
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


@command.command("logs")
@execution_argument
@click.option("--step", help="Only what this step printed.")
@click.option("--grep", metavar="RE", help="Only lines that this regular expression finds.")
@click.option("--follow", is_flag=True, help="Go on until the execution has ended.")
@json_option
@looks
async def logs_command(
    api: Api, execution: str, step: str | None, grep: str | None, follow: bool, as_json: bool
) -> None:
    """What its tasks printed, line by line behind the step.

    Of a task that prints very much the beginning and the end are kept. Secrets are masked.

    \b
    Examples:
      noetl executions logs last --step load --follow
      noetl executions logs last --grep 'timeout|refused'
    """
    from noetl.cli.views.lines import speaker

    if follow and as_json:
        raise click.UsageError("--json prints one document, --follow goes on: give one of them.")
    execution_id = await api.find(execution)
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
    if as_json:
        import msgspec

        assert page is not None
        print_json(msgspec.structs.replace(page, entries=entries))
    elif not printed:
        where = f"step {step} of it" if step else "its tasks"
        what = "no such line" if grep else "nothing"
        say(f"execution {execution_id}: {where} printed {what}")


async def _logs(
    api: Api, execution_id: str, step: str | None, grep: str | None, *, follow: bool
) -> AsyncIterator[Logs]:
    """Page after page; at the end of what there is, with `follow`, the next when it is there."""
    from noetl.api.routes.executions import LOGS, WhichLogs
    from noetl.model.state import TERMINAL

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
                f" `noetl executions resume {execution_id}` goes on with it."
            )
            return
        # Whoever had it may have stored its end just before letting go: one more look tells.
        is_run = api.is_run()
        wait = api.patience if is_run else 0.0


@command.command("export")
@execution_argument
@click.option("-o", "output", metavar="FILE", help="Default: ID.noetl. - is standard output.")
@looks
async def export_command(api: Api, execution: str, output: str | None) -> None:
    """Write an execution into one file.

    It has the log, the playbook and the results.

    `noetl ui FILE` shows it on any machine, without a server. Secrets are masked as in the log.

    \b
    Example:
      noetl executions export 4711 -o 4711.noetl
      noetl ui 4711.noetl
    """
    from noetl.api.routes.executions import EXPORT
    from noetl.errors import BadRequest

    execution_id = await api.find(execution)
    pieces = api.client.pieces(EXPORT, execution_id=execution_id)
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
        raise BadRequest(f"{name} cannot be written: {error.strerror}.") from None
    say(f"execution {execution_id} is in {name}; `noetl ui {name}` shows it")


@command.command("follow")
@execution_argument
@looks
async def follow_command(api: Api, execution: str) -> int:
    """Watch an execution until it has ended.

    Another process or a server runs it. Exits as `noetl run` would.
    """
    from noetl.cli.follow import follow

    return await follow(api, await api.find(execution))


@command.command("why")
@execution_argument
@click.option("--step", metavar="STEP", help="Why this step ran, or why it did not.")
@click.option("--at", "seq", type=click.IntRange(1), metavar="SEQ", help="As it was at this event.")
@json_option
@looks
async def why_command(
    api: Api, execution: str, step: str | None, seq: int | None, as_json: bool
) -> None:
    """What an unfinished execution waits for, or why a step ran.

    Which lease, timer, sub-playbook, token or event it is, who has it, and until when. With --step
    the guards that decided are evaluated again on what they could read then, and the answer says
    what they read.

    \b
    Examples:
      noetl executions why last
      noetl executions why last --step refund
      noetl executions why last --step refund --at 118
    """
    from noetl.api.routes.executions import WHY, WhichWhy
    from noetl.control.documents import plain
    from noetl.model.state import TERMINAL

    if step is None and seq is not None:
        raise click.UsageError("--at goes with --step: why that step ran, or not, up to then.")
    execution_id = await api.find(execution)
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
            f" `noetl executions resume {execution_id}` goes on with it."
        )
    for reason in found.waits_for:
        print_line(reason.text)


# --- Acting ------------------------------------------------------------------------------------


@command.command("cancel")
@execution_argument
@click.option("--reason", default="", help="Why; kept with the execution.")
@acts
async def cancel_command(api: Api, execution: str, reason: str) -> None:
    """Stop an execution for good. What it runs just now is interrupted.

    A playbook with `compensate_on: [cancel]` undoes what is done first; cancelling again stops
    that, too.
    """
    from noetl.api.routes.executions import CANCEL, Cancel

    execution_id = await api.find(execution)
    wish = Cancel(reason=reason or "cancelled by command")
    now = await api.call(CANCEL, execution_id=execution_id, body=wish)
    if now.status == "CANCELLED":
        say(f"execution {execution_id} is cancelled")
        return
    rest = await api.left_to_do(execution_id)
    say(f"execution {execution_id} is being cancelled: it undoes what is done{rest}")


@command.command("pause")
@execution_argument
@click.option("--reason", default="", help="Why; kept with the execution.")
@acts
async def pause_command(api: Api, execution: str, reason: str) -> None:
    """Begin nothing new in an execution until it is resumed.

    Calls that run just now end. The command comes back when every worker that has work of it has
    confirmed that. Sub-playbooks are executions of their own, and go on.
    """
    from noetl.api.routes.executions import PAUSE, Pause

    execution_id = await api.find(execution)
    paused = await api.call(PAUSE, execution_id=execution_id, body=Pause(reason=reason))
    for worker in paused.unconfirmed:
        say(f"worker {worker} has not confirmed the pause; it may begin something yet")
    say(f"execution {execution_id} is paused; `noetl executions resume` lets it go on")


@command.command("answer")
@execution_argument
@click.argument("fields", nargs=-1, metavar="[FIELD=VALUE]...")
@click.option("--step", help="Which step, if several wait for an answer.")
@click.option(
    "--set", "sets", multiple=True, metavar="FIELD=VALUE", help="The same as FIELD=VALUE."
)
@acts
async def answer_command(
    api: Api, execution: str, fields: tuple[str, ...], step: str | None, sets: tuple[str, ...]
) -> None:
    """Answer what a waiting step asks.

    On a terminal the fields of its form are asked for one by one, unless FIELD=VALUE answers
    them.

    \b
    Examples:
      noetl executions answer 380937164380631313
      noetl executions answer 380937164380631313 approved=yes note="looks right"
    """
    import msgspec

    from noetl.cli.signal import deliver
    from noetl.cli.values import ask, field_values
    from noetl.model.net import FormField

    execution_id = await api.find(execution)
    waiting = {
        one["step"]: msgspec.convert(one.get("waiting", {}).get("form", ()), tuple[FormField, ...])
        for one in (await api.document(execution_id))["steps"]
    }
    asking = {name: form for name, form in waiting.items() if form}
    chosen = _chosen(asking, step, execution_id)
    values = field_values(asking[chosen], (*fields, *sets))
    if not values and sys.stdin.isatty():
        say(f'step "{one_line(chosen)}" asks:')
        values = {field.name: ask(field) for field in asking[chosen]}
    await deliver(api, execution_id, "approval.received", values, step=chosen)
    rest = await api.left_to_do(execution_id)
    say(f'step "{chosen}" of execution {execution_id} has its answer{rest}')


def _chosen(asking: dict[str, Any], step: str | None, execution_id: str) -> str:
    """Which step is answered, of those that wait with a form."""
    from noetl.errors import Conflict, SignalRefused

    if step is not None and step in asking:
        return step
    if not asking or step is not None:
        what = f'step "{step}"' if step is not None else f"execution {execution_id}"
        raise Conflict(
            f"{what} does not wait for an answer. `noetl executions why {execution_id}` shows what"
            " it waits for."
        )
    if len(asking) > 1:
        raise SignalRefused(
            f"several steps wait for an answer: {', '.join(asking)}. Choose one with --step."
        )
    return next(iter(asking))


@command.command("resume")
@execution_argument
@click.option("--detach", is_flag=True, help="Only lift the pause; do not run it here.")
@json_option
@acts
async def resume_command(api: Api, execution: str, detach: bool, as_json: bool) -> int:
    """Let a paused or interrupted execution go on.

    If a process is running it, that process goes on with it. Otherwise it runs here, to its end.
    """
    from noetl.api.routes.executions import RESUME, Resume
    from noetl.cli.follow import to_end

    execution_id = await api.find(execution)
    await api.call(RESUME, execution_id=execution_id, body=Resume())
    if not detach and not api.is_run():
        return await to_end(api, execution_id, as_json=as_json)
    where = "in the process that has the database"
    if api.settings.server_url is not None:
        where = f"on {api.settings.server_url}"
    elif not api.is_run():
        where = "when something runs next"
    say(f"execution {execution_id} goes on {where}")
    return OK


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
    from noetl.api.routes.executions import LIST, Which
    from noetl.cli.follow import follow_quietly, working_here

    async with holding(settings) as api:
        chosen: list[ExecutionSummary] = []
        cursor: str | None = ""
        while cursor is not None:
            query = Which(q="status:active parent:none", cursor=cursor or None, limit=PAGE)
            page = await api.call(LIST, query=query)
            for row in page.executions:
                if row.status == "PAUSED":
                    say(f"execution {row.execution_id} of {row.path} is paused and stays so")
                else:
                    chosen.append(row)
            cursor = page.next_cursor
        if not chosen:
            say("no execution was interrupted")
            return OK
        say(f"going on with {counted(len(chosen), 'execution')}")
        async with working_here(api, {row.execution_id for row in chosen}):
            watched = [follow_quietly(api, row.execution_id, row.path) for row in chosen]
            return max(await asyncio.gather(*watched))


@command.command("fork")
@execution_argument
@click.option(
    "--at",
    "seq",
    type=click.IntRange(1),
    metavar="SEQ",
    help="The event that is to happen again, with all that follows.",
)
@click.option("--failed", is_flag=True, help="Only the failed iterations of a loop happen again.")
@click.option(
    "--iteration",
    type=click.IntRange(0),
    metavar="N",
    help="Only this iteration of a loop happens again.",
)
@click.option(
    "--step",
    metavar="STEP",
    help="With --failed or --iteration: the step with the loop, if there are several.",
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
@acts
async def fork_command(
    api: Api,
    execution: str,
    seq: int | None,
    failed: bool,
    iteration: int | None,
    step: str | None,
    version: int | None,
    sets: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> int:
    """A new execution that goes on from an event of another.

    What was recorded before the event counts: none of those calls is made again. `noetl executions
    events ID` shows the numbers. Of a loop, one iteration or all that failed can be repeated; the
    others count.

    \b
    Examples:
      noetl executions fork last --failed --dry-run
      noetl executions fork last --failed --set rate=0.5
      noetl executions fork last --step collect --iteration 17
      noetl executions fork last --at 118 --version 13
    """
    from noetl.api.routes.executions import FORK, Fork
    from noetl.cli.follow import to_end
    from noetl.cli.values import pairs

    is_loop = failed or iteration is not None
    if failed and iteration is not None:
        raise click.UsageError("--failed repeats all that failed, --iteration one: give one.")
    if step is not None and (seq is not None or not is_loop):
        raise click.UsageError("--step names the loop for --failed or --iteration, without --at.")
    if seq is None and not is_loop:
        raise click.UsageError(
            "say what is to happen again: --at SEQ, an event and all that follows"
            " (`noetl executions events ID` lists them), or --failed, the failed iterations of a"
            " loop."
        )
    ctx = {key.removeprefix("ctx."): value for key, value in pairs(sets)}
    source = await api.find(execution)
    if seq is None:
        seq = await _loop_event(api, source, step, failed=failed)
    wish = Fork(
        seq=seq, iteration=iteration, failed=failed, version=version, ctx=ctx, dry_run=dry_run
    )
    forked = await api.call(FORK, execution_id=source, body=wish)
    plan = forked.plan
    if forked.execution_id is not None:
        reused = counted(plan.reused, "call")
        where = f"a loop of {plan.source}" if is_loop else f"event {plan.seq} of {plan.source}"
        say(f"goes on from {where}; {reused} reused")
        return await to_end(api, forked.execution_id, as_json=as_json)
    if as_json:
        print_json(plan)
    else:
        _print_plan(plan)
    return OK


async def _loop_event(api: Api, execution_id: str, step: str | None, *, failed: bool) -> int:
    """An event of the last run of the loop that is meant. Raises NotFound and BadRequest."""
    from noetl.api.routes.moments import TIMELINE, WhichRuns
    from noetl.errors import BadRequest, NotFound
    from noetl.model.spelling import did_you_mean

    loops: dict[str, int] = {}
    has_failed: dict[str, bool] = {}
    query = WhichRuns(buckets=1)
    while True:
        page = await api.call(TIMELINE, execution_id=execution_id, query=query)
        for run in page.runs:
            if run.loop is not None:
                loops[run.step] = run.seq
                has_failed[run.step] = run.loop.failed > 0
        if not page.more:
            break
        query = WhichRuns(buckets=1, after=page.next_after)
    if step is not None:
        if step not in loops:
            hint = did_you_mean(step, loops)
            known = f" Its loops: {', '.join(loops)}." if loops and not hint else ""
            raise NotFound(
                f'execution {execution_id} has run no loop of step "{step}".{hint}{known}'
            )
        return loops[step]
    chosen = [name for name in loops if has_failed[name]] if failed else list(loops)
    if not chosen:
        what = "no iteration of a loop has failed" if failed else "no loop has run"
        raise NotFound(
            f"in execution {execution_id} {what}. `noetl executions show {execution_id}` says what"
            " happened; --at SEQ goes on from any event."
        )
    if len(chosen) > 1:
        what = "loops have failed iterations" if failed else "loops have run"
        raise BadRequest(
            f"several {what} in execution {execution_id}: {', '.join(chosen)}. Choose one with"
            " --step."
        )
    return loops[chosen[0]]


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
@acts
async def rerun_command(
    api: Api,
    execution: str,
    step: str | None,
    sets: tuple[str, ...],
    payload: str | None,
    as_json: bool,
) -> int:
    """Run the same playbook again, as a new execution.

    It runs here and to its end, or on the server in use, or in the process that has the database.
    It gets the workload of the old one, with --set and --payload over it. With --from it starts at
    that step, with everything that was there when the old one last came to it.
    """
    from noetl.api.routes.executions import RERUN, Rerun
    from noetl.cli.follow import to_end
    from noetl.cli.values import workload

    wish = Rerun(step=step, workload=workload(sets, payload))
    old = await api.find(execution)
    new = await api.call(RERUN, execution_id=old, body=wish)
    return await to_end(api, new.execution_id, as_json=as_json)


# --- Keeping and forgetting --------------------------------------------------------------------


@command.command("delete")
@execution_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@acts
async def delete_command(api: Api, execution: str, yes: bool) -> None:
    """Remove an execution for good.

    It must have ended, and all that it called goes with it. Its log, results and variables go
    with it; the audit log keeps who did that.
    """
    from noetl.api.routes.retention import DELETE

    execution_id = await api.find(execution)
    if not yes:
        click.confirm(f"Remove execution {execution_id} for good?", abort=True, err=True)
    gone = await api.call(DELETE, execution_id=execution_id)
    say(f"{counted(gone.executions, 'execution')} removed")


@command.command("prune")
@click.option("--keep", metavar="RULES", help="Instead of NOETL_KEEP: 90d,shop/=30d,failed=180d")
@click.option("--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
@json_option
@acts
async def prune_command(api: Api, keep: str | None, dry_run: bool, as_json: bool) -> None:
    """Remove executions that ended long enough ago.

    Each goes with all that it called. Servers do this by themselves where NOETL_KEEP says how
    long executions are kept. What has not
    ended, is held, or has results that a rerun stands on, stays.

    \b
    Examples:
      noetl executions prune --keep 30d --dry-run
      noetl executions prune --keep 90d,shop/=7d,failed=180d
    """
    from noetl.api.routes.retention import PRUNE, SHOW, Prune

    if keep is None and not (await api.call(SHOW)).keep:
        raise click.UsageError(
            "nothing says how long executions are kept. Say it with --keep 90d, or set"
            " NOETL_KEEP where the server runs."
        )
    pruned = await api.call(PRUNE, body=Prune(keep=keep, dry_run=dry_run))
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
@acts
async def hold_command(api: Api, execution: str, note: str) -> None:
    """Keep an execution until it is released."""
    from noetl.api.routes.retention import HOLD, HoldIt

    execution_id = await api.find(execution)
    await api.call(HOLD, execution_id=execution_id, body=HoldIt(note=note))
    say(f"execution {execution_id} is kept until it is released")


@command.command("release")
@execution_argument
@acts
async def release_command(api: Api, execution: str) -> None:
    """Hold an execution no longer."""
    from noetl.api.routes.retention import RELEASE

    execution_id = await api.find(execution)
    await api.call(RELEASE, execution_id=execution_id)
    say(f"execution {execution_id} is not held any more")


@command.command("holds")
@json_option
@looks
async def holds_command(api: Api, as_json: bool) -> None:
    """List what is held, by whom and why."""
    from noetl.api.routes.retention import SHOW

    held = (await api.call(SHOW)).holds
    if as_json:
        print_json({"holds": held})
        return
    if not held:
        say("nothing is held")
    for one in held:
        print_line(f"{one.execution_id}  {one.at}  {one.who}  {one.note}")


@command.command("archive")
@execution_argument
@acts
async def archive_command(api: Api, execution: str) -> None:
    """Record an execution in the archive.

    It must have ended, and all that it called is recorded with it. NOETL_ARCHIVE_URL says where
    that is. The execution is kept; `noetl ui` opens a recording.
    """
    from noetl.api.routes.retention import ARCHIVE

    execution_id = await api.find(execution)
    for name in (await api.call(ARCHIVE, execution_id=execution_id)).names:
        print_line(name)


@command.command("archived")
@click.argument("prefix", default="")
@json_option
@looks
async def archived_command(api: Api, prefix: str, as_json: bool) -> None:
    """List the recordings in the archive.

    With PREFIX, those whose names begin with it.
    """
    from noetl.api.routes.retention import ARCHIVED, WhichArchived

    found = []
    after: str | None = ""
    while after is not None:
        query = WhichArchived(prefix=prefix, after=after, limit=PAGE)
        page = await api.call(ARCHIVED, query=query)
        found += page.recordings
        after = page.next_after
    if as_json:
        print_json({"recordings": found})
        return
    if not found:
        say("the archive has no such recordings")
    for one in found:
        print_line(f"{one.archived_at}  {one.size:>12,}  {one.name}")
