"""Commands that act on executions: stop, continue, answer or rerun them."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from noetl import configured
from noetl.api.routes.executions import (
    CANCEL,
    FORK,
    LIST,
    PAUSE,
    RERUN,
    RESUME,
    Cancel,
    Fork,
    Pause,
    Rerun,
    Resume,
    Which,
)
from noetl.cli import INTERRUPTED, OK
from noetl.cli.calls import PAGE, acts, holding
from noetl.cli.follow import follow_quietly, to_end, working_here
from noetl.cli.options import (
    ask,
    db_option,
    execution_argument,
    field_values,
    json_option,
    local_settings,
    pairs_option,
    payload_option,
    set_option,
    values_of,
    workload,
)
from noetl.cli.output import counted, one_line, print_json, print_line, say
from noetl.errors import BadRequest, Conflict, NotFound, SignalRefused
from noetl.model.net import FormField
from noetl.model.spelling import did_you_mean

if TYPE_CHECKING:
    from noetl.cli.calls import Api
    from noetl.model.answers import ExecutionSummary
    from noetl.model.retrospect import ForkPlanDocument
    from noetl.settings import Settings

group = click.Group()


@group.command("cancel")
@execution_argument
@click.option("--reason", default="", help="Why; stored with the execution.")
@acts
async def cancel_command(api: Api, execution_id: str, reason: str) -> None:
    """Cancel an execution, and interrupt its running calls.

    A playbook with `compensate_on: [cancel]` first undoes what was done; cancelling again stops
    that, too.

    \b
    Example:
      noetl executions cancel 4711 --reason "wrong file"
    """
    wish = Cancel(reason=reason or "cancelled by command")
    now = await api.call(CANCEL, execution_id=execution_id, body=wish)
    if now.status == "CANCELLED":
        say(f"execution {execution_id} is cancelled")
        return
    rest = await api.left_to_do(execution_id)
    say(f"execution {execution_id} is being cancelled: it undoes what was done{rest}")


@group.command("pause")
@execution_argument
@click.option("--reason", default="", help="Why; stored with the execution.")
@acts
async def pause_command(api: Api, execution_id: str, reason: str) -> None:
    """Pause an execution: nothing new begins until it is resumed.

    Running calls continue to their end. The command returns once every worker that runs its calls
    has confirmed the pause. Sub-playbooks are executions of their own, and continue.

    \b
    Example:
      noetl executions pause 4711 --reason "the shop is down"
    """
    paused = await api.call(PAUSE, execution_id=execution_id, body=Pause(reason=reason))
    for worker in paused.unconfirmed:
        say(f"worker {worker} has not confirmed the pause; it may still begin something")
    say(f"execution {execution_id} is paused; `noetl executions resume` continues it")


@group.command("answer")
@execution_argument
@click.argument("fields", nargs=-1, metavar="[FIELD=VALUE]...")
@click.option("--step", help="The step to answer, if several wait.")
@pairs_option("set", "FIELD=VALUE", "The same as the argument FIELD=VALUE.")
@acts
async def answer_command(
    api: Api, execution_id: str, fields: tuple[str, ...], step: str | None, sets: tuple[str, ...]
) -> None:
    """Answer the form of a waiting step.

    On a terminal the command asks for each field of the form that no FIELD=VALUE answers.

    \b
    Examples:
      noetl executions answer 380937164380631313
      noetl executions answer 380937164380631313 approved=yes note="looks right"
    """
    from noetl.cli.signal import deliver

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
    say(f'step "{chosen}" of execution {execution_id} received its answer{rest}')


def _chosen(asking: dict[str, Any], step: str | None, execution_id: str) -> str:
    """The step to answer, among those that wait with a form."""
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


@group.command("resume")
@execution_argument
@click.option("--detach", is_flag=True, help="Only end the pause; do not run it here.")
@json_option
@acts
async def resume_command(api: Api, execution_id: str, detach: bool, as_json: bool) -> int:
    """Resume a paused or interrupted execution.

    The process that runs it continues it. If there is none, it runs here, to its end.

    \b
    Example:
      noetl executions resume last
    """
    await api.call(RESUME, execution_id=execution_id, body=Resume())
    if not detach and not api.is_run():
        return await to_end(api, execution_id, as_json=as_json)
    where = "in the process that holds the database"
    if api.settings.server_url is not None:
        where = f"on {api.settings.server_url}"
    elif not api.is_run():
        where = "when a process runs executions of this database"
    say(f"execution {execution_id} continues {where}")
    return OK


@group.command("resume-all")
@db_option
def resume_all_command(db: str | None) -> None:
    """Resume every interrupted execution, and run it to its end.

    Ctrl-C stops this process and leaves the executions as they are. Paused executions stay paused.

    \b
    Example:
      noetl executions resume-all
    """
    try:
        sys.exit(asyncio.run(_resume_all(local_settings(db))))
    except KeyboardInterrupt:
        say("stopped; executions that have not ended can be resumed again")
        sys.exit(INTERRUPTED)


async def _resume_all(settings: Settings) -> int:
    configured.require_database(settings)
    async with holding(settings) as api:
        chosen: list[ExecutionSummary] = []
        active = Which(q="status:active parent:none", limit=PAGE)
        async for page in api.pages(LIST, active):
            for row in page.executions:
                if row.status == "PAUSED":
                    say(f"execution {row.execution_id} of {row.path} is paused and stays so")
                else:
                    chosen.append(row)
        if not chosen:
            say("no execution was interrupted")
            return OK
        say(f"continuing {counted(len(chosen), 'execution')}")
        async with working_here(api, {row.execution_id for row in chosen}):
            watched = [follow_quietly(api, row.execution_id, row.path) for row in chosen]
            return max(await asyncio.gather(*watched))


@group.command("fork")
@execution_argument
@click.option(
    "--at",
    "seq",
    type=click.IntRange(1),
    metavar="SEQ",
    help="Repeat this event and everything after it.",
)
@click.option("--failed", is_flag=True, help="Repeat only the failed iterations of a loop.")
@click.option(
    "--iteration",
    type=click.IntRange(0),
    metavar="N",
    help="Repeat only this iteration of a loop.",
)
@click.option(
    "--step",
    metavar="STEP",
    help="With --failed or --iteration: the step with the loop, if there are several.",
)
@click.option(
    "--version", type=click.IntRange(1), help="Continue with this version of the playbook."
)
@pairs_option("set", "KEY=VALUE", "Write to ctx first, e.g. --set total=3 or --set ctx.order.id=7.")
@click.option("--dry-run", is_flag=True, help="Only print which calls would be reused.")
@json_option
@acts
async def fork_command(
    api: Api,
    execution_id: str,
    seq: int | None,
    failed: bool,
    iteration: int | None,
    step: str | None,
    version: int | None,
    sets: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> int:
    """Start a new execution from an event of another one.

    Everything recorded before the event still counts: none of those calls is made again. `noetl
    executions events ID` lists the numbers of events. In a loop, one iteration or all failed ones
    can be repeated; the others still count.

    \b
    Examples:
      noetl executions fork last --failed --dry-run
      noetl executions fork last --failed --set rate=0.5
      noetl executions fork last --step collect --iteration 17
      noetl executions fork last --at 118 --version 13
    """
    is_loop = failed or iteration is not None
    if failed and iteration is not None:
        raise click.UsageError(
            "--failed repeats all failed iterations, --iteration one: give only one of them."
        )
    if step is not None and (seq is not None or not is_loop):
        raise click.UsageError("--step names the loop for --failed or --iteration, without --at.")
    if seq is None and not is_loop:
        raise click.UsageError(
            "say what to repeat: --at SEQ, an event and everything after it"
            " (`noetl executions events ID` lists them), or --failed, the failed iterations of a"
            " loop."
        )
    ctx = {key.removeprefix("ctx."): value for key, value in values_of(sets)}
    if seq is None:
        seq = await _loop_event(api, execution_id, step, failed=failed)
    wish = Fork(
        seq=seq, iteration=iteration, failed=failed, version=version, ctx=ctx, dry_run=dry_run
    )
    forked = await api.call(FORK, execution_id=execution_id, body=wish)
    plan = forked.plan
    if forked.execution_id is not None:
        reused = counted(plan.reused, "call")
        where = f"a loop of {plan.source}" if is_loop else f"event {plan.seq} of {plan.source}"
        say(f"continues from {where}; {reused} reused")
        return await to_end(api, forked.execution_id, as_json=as_json)
    if as_json:
        print_json(plan)
    else:
        _print_plan(plan)
    return OK


async def _loop_event(api: Api, execution_id: str, step: str | None, *, failed: bool) -> int:
    """An event in the last run of the loop in question. Raises NotFound and BadRequest."""
    from noetl.api.routes.moments import TIMELINE, WhichRuns

    loops: dict[str, int] = {}
    has_failed: dict[str, bool] = {}
    async for page in api.pages(TIMELINE, WhichRuns(buckets=1), execution_id=execution_id):
        for run in page.runs:
            if run.loop is not None:
                loops[run.step] = run.seq
                has_failed[run.step] = run.loop.failed > 0
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
            f"in execution {execution_id} {what}. `noetl executions show {execution_id}` shows what"
            " happened; --at SEQ continues from any event."
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
        f"events 1 to {plan.reused_upto} of {plan.source} count; it continues from"
        f" {', '.join(plan.goes_on) or 'nothing'}"
    )
    print_line(f"{counted(plan.reused, 'call')} reused, {plan.again} repeated:")
    for one in plan.calls:
        which = f" (iterations {', '.join(map(str, one.iterations))})" if one.iterations else ""
        print_line(f"  {one.step}.{one.task}: {one.reused} reused, {one.again} repeated{which}")


@group.command("rerun")
@execution_argument
@click.option(
    "--from", "step", metavar="STEP", help="Start at this step, and keep the results before it."
)
@set_option
@payload_option
@json_option
@acts
async def rerun_command(
    api: Api,
    execution_id: str,
    step: str | None,
    sets: tuple[str, ...],
    payload: str | None,
    as_json: bool,
) -> int:
    """Run the same playbook again, as a new execution.

    It runs here, to its end, or on the server in use, or in the process that holds the database. It
    gets the workload of the old execution, with --set and --payload merged over it. With --from it
    starts at that step, with the data that the old execution had when it last reached it.

    \b
    Examples:
      noetl executions rerun last
      noetl executions rerun 4711 --from load --set days=7
    """
    wish = Rerun(step=step, workload=workload(sets, payload))
    new = await api.call(RERUN, execution_id=execution_id, body=wish)
    return await to_end(api, new.execution_id, as_json=as_json)
