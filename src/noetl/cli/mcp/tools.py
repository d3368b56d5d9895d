"""The tools that `noetl mcp` offers to assistants. Each is a value: a name, the arguments that it
takes, and a function whose docstring tells assistants what it is for.

A tool opens the API as the command of the same purpose does, and closes it: a database is held no
longer than a call, and a server that was restarted meanwhile is reached again.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from noetl import configured
from noetl.api.client import LAST_EVENT
from noetl.api.route import Body
from noetl.api.routes import catalog, executions
from noetl.api.routes.catalog import Version, number_of
from noetl.api.routes.executions import Seq
from noetl.cli.calls import changing, looking
from noetl.cli.mcp.sizes import ANSWER_MAX, excerpt, fitted, page_of, size_of
from noetl.cli.views.executions import ACTIONS, shortened
from noetl.cli.views.lines import failed_iterations, more_about, speaker
from noetl.cli.views.results import value_text
from noetl.cli.views.source_lines import of_execution
from noetl.control.documents import plain
from noetl.errors import NotFound
from noetl.model.answers import Validated
from noetl.model.spelling import did_you_mean
from noetl.model.state import TERMINAL

if TYPE_CHECKING:
    from noetl.cli.calls import Api
    from noetl.model.answers import CatalogResource
    from noetl.settings import Settings

Limit = Annotated[int, msgspec.Meta(ge=1, le=200)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
WAIT_MAX = 50
"""Seconds; many clients give a tool a minute."""
READS: dict[str, bool] = {"readOnlyHint": True, "openWorldHint": False}
ADDS: dict[str, bool] = {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": True}
ENDS: dict[str, bool] = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True}


class Answer(NamedTuple):
    """What a tool returns: data for programs, and a text if people would write it differently."""

    data: dict[str, Any]
    text: str | None = None


@dataclass(frozen=True)
class Tool:
    """A tool as assistants see it."""

    name: str
    takes: type[Body]
    run: Callable[..., Awaitable[Answer]]
    hints: dict[str, bool] = field(default_factory=lambda: READS)

    @property
    def acts(self) -> bool:
        return not self.hints["readOnlyHint"]

    @property
    def says(self) -> str:
        """What assistants read about it: the docstring of its function."""
        return " ".join(inspect.cleandoc(self.run.__doc__ or "").split())


def _followed(data: dict[str, Any], argument: str, begin: object) -> dict[str, Any]:
    """The data, with how to read on: by that argument, which says where the rest begins, if any."""
    if begin is None:
        return data
    return {**data, "next": f"more follow: call again with {argument}={begin}"}


# --- Playbooks ----------------------------------------------------------------------------------


class WhichPlaybooks(Body, frozen=True, kw_only=True):
    """Which playbooks."""

    prefix: str = ""
    """Only paths that begin with this, e.g. `shop/`."""
    kind: str = "Playbook"
    """The kind of document: Playbook, Schedule, Hook, Consumer, Notification or Schema."""
    after: str = ""
    """Only paths after this one: the last path of the previous page."""
    limit: Limit = 50


async def list_playbooks(settings: Settings, asked: WhichPlaybooks) -> Answer:
    """List the registered playbooks by path: the newest version of each, with its description."""
    wanted = catalog.ListCatalog(resource_type=asked.kind, path_prefix=asked.prefix)
    async with looking(settings) as api:
        entries = (await api.call(catalog.LIST, body=wanted)).entries
    rest = sorted((one for one in entries if one.path > asked.after), key=lambda one: one.path)
    limit = min(asked.limit, len(rest))
    shown = [plain(one) for one in rest[:limit]]
    while limit > 1 and size_of(shown) > ANSWER_MAX:
        limit //= 2
        shown = shown[:limit]
    data: dict[str, Any] = {"playbooks": shown, "total": len(entries)}
    after = shown[-1]["path"] if limit < len(rest) else None
    return Answer(fitted(_followed(data, "after", after), "get_playbook reads one."))


class WhichPlaybook(Body, frozen=True, kw_only=True):
    """Which version of which playbook."""

    path: str
    """Its path in the catalog, e.g. `shop/orders`."""
    version: Version = None
    """By default the newest."""
    offset: Offset = 0
    """Begin at this character of its text."""


async def get_playbook(settings: Settings, asked: WhichPlaybook) -> Answer:
    """Read a registered playbook: its YAML text, its own workload, and its inputs as JSON Schema,
    which is what start_execution takes as workload.
    """
    found = await playbook(settings, asked.path, asked.version)
    part = await excerpt(_whole(found.content), asked.offset)
    about = {
        "path": found.path,
        "version": found.version,
        "kind": found.kind,
        "description": found.description,
        "created_at": found.created_at,
        "inputs_schema": found.inputs_schema,
        "workload": found.workload,
    }
    room = fitted(about, "The text of the playbook has the whole.")
    data = {**room, "content": part.text, "offset": asked.offset}
    return Answer(_followed(data, "offset", part.next_offset))


async def _whole(text: str) -> AsyncIterator[str]:
    yield text


async def playbook(settings: Settings, path: str, version: Version = None) -> CatalogResource:
    """A version of a playbook. Raises NotFound."""
    wanted = catalog.Wanted(path=path, version=number_of(version))
    async with looking(settings) as api:
        return await api.call(catalog.RESOURCE, body=wanted)


class Text(Body, frozen=True, kw_only=True):
    """A playbook that need not be registered."""

    content: str
    """The whole YAML text."""


async def validate_playbook(settings: Settings, asked: Text) -> Answer:
    """Check the YAML text of a playbook, schedule, hook or other document, without registering it.
    Reports every problem with its line, column, stable code and what to do about it.
    """
    if configured.is_missing(settings):
        compiled = configured.document_compiler(settings)(asked.content)
        found = Validated(valid=compiled.is_valid, problems=compiled.problems)
    else:
        async with looking(settings) as api:
            found = await api.call(catalog.VALIDATE, body=catalog.Content(content=asked.content))
    said = [str(one) for one in found.problems]
    text = "\n".join(["It is valid." if found.valid else "It is not valid.", *said])
    data = fitted(plain(found), "Mend these problems first, and validate again.")
    return Answer(data, text if len(text) <= ANSWER_MAX else None)


class WhichKind(Body, frozen=True, kw_only=True):
    """Which tool kind."""

    kind: str | None = None
    """E.g. `http`; without it, all kinds are listed."""


async def describe_tool_kinds(settings: Settings, asked: WhichKind) -> Answer:
    """List the kinds of tools that tasks of playbooks may use, or show the fields of one kind, its
    errors and an example in YAML. Read it before you write a task.
    """
    from noetl.cli.tools import as_data
    from noetl.cli.tools import page_of as page_of_kind
    from noetl.tools.registry import kinds

    known = kinds()
    if asked.kind is None:
        kept = ("kind", "summary", "origin", "extra")
        shown = [{name: as_data(one)[name] for name in kept} for one in known.values()]
        return Answer({"kinds": shown, "next": "call again with kind=… for fields and an example"})
    if asked.kind not in known:
        hint = did_you_mean(asked.kind, known)
        raise NotFound(
            f'there is no tool kind "{asked.kind}".{hint} There are: {", ".join(known)}.'
        )
    text = "\n".join(page_of_kind(known[asked.kind]))
    return Answer({**as_data(known[asked.kind]), "page": text}, text)


# --- Executions ---------------------------------------------------------------------------------


class WhichExecutions(Body, frozen=True, kw_only=True):
    """Which executions."""

    query: str = ""
    """Words that must all hold, e.g. `status:failed path:shop/* since:2d took:>5m label.team=sales
    "duplicate key"`; empty: all.
    """
    limit: Limit = 20
    cursor: str | None = None
    """`next_cursor` of the previous page."""


async def list_executions(settings: Settings, asked: WhichExecutions) -> Answer:
    """List executions, newest first: path, status, times, and the step and error to look at
    first.
    """
    query = executions.Which(q=asked.query, limit=asked.limit, cursor=asked.cursor)
    async with looking(settings) as api:
        data = await page_of(api, executions.LIST, query, "get_execution reads one.")
    return Answer(_followed(data, "cursor", data.get("next_cursor")))


class OfExecution(Body, frozen=True, kw_only=True):
    """An execution to read about."""

    execution_id: str
    """Its id, a unique beginning or end of it, or `last`."""


class WhichExecution(OfExecution, frozen=True, kw_only=True):
    """Which execution."""

    wait: Annotated[float, msgspec.Meta(ge=0, le=WAIT_MAX)] = 0.0
    """Seconds to wait for its end, if it has not ended."""


async def get_execution(settings: Settings, asked: WhichExecution) -> Answer:
    """Read one execution: status, workload, ctx, result or error, and every step with its attempts,
    loop and result. A large result is shown by its beginning; get_result reads it whole.
    """
    async with _found(settings, asked.execution_id) as (api, execution_id):
        if asked.wait:
            await _ended(api, execution_id, asked.wait)
        document = await shortened(await api.document(execution_id), api.body)
    return Answer(fitted(_readable(document), "get_result and list_events read the rest."))


def _readable(value: Any) -> Any:
    """The beginnings of large results, which are not JSON, as texts."""
    match value:
        case msgspec.Raw():
            return bytes(value).decode()
        case dict():
            return {name: _readable(one) for name, one in value.items()}
        case list():
            return [_readable(one) for one in value]
        case _:
            return value


async def _ended(api: Api, execution_id: str, seconds: float) -> None:
    """Wait for its end, but not for longer than this."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        wait = min(left, api.patience)
        if (await api.page(execution_id, types=(LAST_EVENT,), limit=1, wait=wait)).events:
            return


@asynccontextmanager
async def _found(settings: Settings, written: str) -> AsyncIterator[tuple[Api, str]]:
    """The API for reading, and the whole id of an execution. Raises NotFound."""
    async with looking(settings) as api:
        yield api, await api.find(written)


class WhichReason(OfExecution, frozen=True, kw_only=True):
    """What to explain."""

    step: str | None = None
    """Explain why this step ran, or why it did not, with the values that its guards read."""
    seq: Annotated[int, msgspec.Meta(ge=1, le=2**62)] | None = None
    """With `step`: up to the event with this number, instead of now."""


async def explain_execution(settings: Settings, asked: WhichReason) -> Answer:
    """Explain an execution: why it failed and where, what it waits for (which worker, timer, form,
    event or sub-playbook holds it, since when and until when), which warnings it has, and what to
    do next. With `step`: why that step ran, or why it did not. Ask this first if something is
    wrong.
    """
    async with _found(settings, asked.execution_id) as (api, execution_id):
        query = executions.WhichWhy(step=asked.step, seq=asked.seq)
        why = await api.call(executions.WHY, execution_id=execution_id, query=query)
        document = await api.document(execution_id)
        source = await of_execution(api, configured.compiler(settings), document)
        told = source.told(document)
        is_run = api.is_run()
    kept = ("execution_id", "path", "version", "status", "error", "failed_step", "warnings", "acts")
    data = {name: told[name] for name in kept} | {
        "is_run": is_run,
        "failed_steps": [
            {name: one.get(name) for name in ("step", "status", "attempts", "error", "loop")}
            for one in told["steps"]
            if one["error"] is not None or (one.get("loop") or {}).get("failed")
        ],
        "waits_for": [plain(one) for one in why.waits_for],
    }
    if why.step is not None:
        data["step"] = plain(why.step)
    text = "\n".join(_explained(data))
    data = fitted(data, "get_execution and list_events read more.")
    return Answer(data, text if len(text) <= ANSWER_MAX else None)


def _explained(data: dict[str, Any]) -> list[str]:
    version = f" version {data['version']}" if data["version"] else ""
    lines = [f"Execution {data['execution_id']} of {data['path']}{version} is {data['status']}."]
    if "step" in data:
        lines.append(data["step"]["text"])
    if data["error"] is not None and data["status"] != "CANCELLED":
        where = f" in step {data['failed_step']}" if data["failed_step"] else ""
        lines.append(f"It failed{where}: {data['error']['message']} ({data['error']['kind']})")
        lines += [f"  {one}" for one in more_about(data["error"])]
    for step in data["failed_steps"]:
        if step["error"] is not None and step["step"] != data["failed_step"]:
            lines.append(f"Step {step['step']} failed: {step['error']['message']}")
        if said := failed_iterations(step):
            lines.append(f"Step {step['step']}: {said}")
    for act in data["acts"]:
        what = ACTIONS.get(act["action"], act["action"]).capitalize()
        who = f" by {act['actor']['text']}" if act["actor"] else ""
        why = f": {act['reason']}" if act["reason"] else ""
        lines.append(f"{what} {act['at']}{who}{why}")
    lines += [f"Warning: {one['message']}" for one in data["warnings"]]
    if data["status"] in TERMINAL:
        return lines
    if not data["is_run"]:
        lines.append(
            "No process is running it: it was interrupted."
            f" `noetl executions resume {data['execution_id']}` continues it."
        )
    return [*lines, *(one["text"] for one in data["waits_for"])]


class WhichEvents(OfExecution, frozen=True, kw_only=True):
    """Which events."""

    after: Seq = 0
    """Only events after this number."""
    limit: Limit = 50
    types: tuple[str, ...] = ()
    """Only events of these types, e.g. `task.done`."""
    step: str | None = None
    """Only events of this step."""


async def list_events(settings: Settings, asked: WhichEvents) -> Answer:
    """List the recorded events of an execution in order: everything that happened to it, with
    times, attempts, outcomes and errors.
    """
    query = executions.WhichEvents(
        after=asked.after, limit=asked.limit, type=asked.types, step=asked.step
    )
    async with _found(settings, asked.execution_id) as (api, execution_id):
        whole = "get_result reads results whole."
        data = await page_of(api, executions.EVENTS, query, whole, execution_id=execution_id)
    return Answer(_followed(data, "after", data["next_after"] if data.get("more") else None))


class WhichResult(OfExecution, frozen=True, kw_only=True):
    """Which result."""

    step: str | None = None
    """The result of this step instead of the playbook's."""
    offset: Offset = 0
    """Begin at this character of its text."""


async def get_result(settings: Settings, asked: WhichResult) -> Answer:
    """Read the whole result of an execution, or of one of its steps: text as it is, anything else
    as JSON. A long one comes in parts.
    """
    async with _found(settings, asked.execution_id) as (api, execution_id):
        result = await api.result(execution_id, asked.step)
        part = await excerpt(value_text(result, execution_id, api.body), asked.offset)
    data: dict[str, Any] = {"execution_id": execution_id, "step": asked.step}
    data |= {"offset": asked.offset, "text": part.text}
    data = _followed(data, "offset", part.next_offset)
    rest = f"\n\n({data['next']})" if "next" in data else ""
    return Answer(data, part.text + rest)


class WhichLogs(OfExecution, frozen=True, kw_only=True):
    """Which lines."""

    step: str | None = None
    """Only what this step printed."""
    grep: str | None = None
    """Only lines that match this regular expression (RE2)."""
    after: Seq = 0
    """Only what was printed after the event with this number."""
    limit: Limit = 50


async def read_logs(settings: Settings, asked: WhichLogs) -> Answer:
    """Read what the tasks of an execution printed, in order, each line with its step and task."""
    query = executions.WhichLogs(
        step=asked.step, grep=asked.grep, after=asked.after, limit=asked.limit
    )
    async with _found(settings, asked.execution_id) as (api, execution_id):
        whole = "`noetl executions logs` prints them whole."
        data = await page_of(api, executions.LOGS, query, whole, execution_id=execution_id)
    data = _followed(data, "after", data["next_after"] if data.get("more") else None)
    lines = [
        f"{speaker(one['step'], one['task'], one['iteration'])} | {line}"
        for one in data["entries"]
        for line in one["text"].splitlines()
    ]
    rest = [f"({data['next']})"] if "next" in data else []
    text = "\n".join([*(lines or ["no such lines"]), *rest])
    # Each line has its step before it: many short ones are longer so than as data.
    return Answer(data, text if len(text) <= ANSWER_MAX else None)


# --- Actions ------------------------------------------------------------------------------------


class Start(Body, frozen=True, kw_only=True):
    """What to start."""

    path: str
    """The playbook's path in the catalog."""
    version: Version = None
    """By default the newest."""
    workload: dict[str, Any] = msgspec.field(default_factory=dict)
    """Merged over the playbook's own; get_playbook shows both that and the inputs."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    key: str | None = None
    """A key of your own: calls with the same key start one execution."""


async def start_execution(settings: Settings, asked: Start) -> Answer:
    """Start an execution of a registered playbook. It answers with its id at once; get_execution
    with `wait` waits for the end.
    """
    async with changing(settings) as api:
        started = await api.client.start(
            asked.path,
            asked.workload,
            version=number_of(asked.version),
            labels=asked.labels,
            key=asked.key,
        )
        return await _acted(api, plain(started))


class OneExecution(Body, frozen=True, kw_only=True):
    """An execution to act on."""

    execution_id: str
    """Its whole id."""


class OneReason(OneExecution, frozen=True, kw_only=True):
    """An execution to act on, and why."""

    reason: str = ""
    """Why; stored with the execution."""


async def cancel_execution(settings: Settings, asked: OneReason) -> Answer:
    """Stop an execution, and the executions that it called, for good. Running calls are
    interrupted.
    """
    wish = executions.Cancel(reason=asked.reason or "cancelled by an assistant")
    async with changing(settings) as api:
        now = await api.call(executions.CANCEL, execution_id=asked.execution_id, body=wish)
        return await _acted(api, plain(now))


async def pause_execution(settings: Settings, asked: OneReason) -> Answer:
    """Pause an execution: nothing new begins until it is resumed. Running calls continue."""
    async with changing(settings) as api:
        wish = executions.Pause(reason=asked.reason)
        paused = await api.call(executions.PAUSE, execution_id=asked.execution_id, body=wish)
        return Answer(plain(paused))


async def resume_execution(settings: Settings, asked: OneExecution) -> Answer:
    """Let a paused execution continue."""
    async with changing(settings) as api:
        wish = executions.Resume()
        now = await api.call(executions.RESUME, execution_id=asked.execution_id, body=wish)
        return await _acted(api, plain(now))


class Again(OneExecution, frozen=True, kw_only=True, rename={"step": "from"}):
    """What to run again."""

    step: str | None = None
    """Begin at this step, with what was recorded before it; by default at the beginning."""
    workload: dict[str, Any] | None = None
    """Merged over the old workload."""


async def rerun_execution(settings: Settings, asked: Again) -> Answer:
    """Run the playbook of an execution again, as a new execution with the old workload. With `from`
    it begins at that step, and what was recorded before it is not done again.
    """
    wish = executions.Rerun(step=asked.step, workload=asked.workload)
    async with changing(settings) as api:
        started = await api.call(executions.RERUN, execution_id=asked.execution_id, body=wish)
        return await _acted(api, plain(started))


async def _acted(api: Api, data: dict[str, Any]) -> Answer:
    """The answer of an action, with what people must do for the execution to continue."""
    rest = await api.left_to_do(data["execution_id"])
    return Answer({**data, "note": rest.removeprefix("; ")} if rest else data)


TOOLS = (
    Tool("list_playbooks", WhichPlaybooks, list_playbooks),
    Tool("get_playbook", WhichPlaybook, get_playbook),
    Tool("validate_playbook", Text, validate_playbook),
    Tool("describe_tool_kinds", WhichKind, describe_tool_kinds),
    Tool("list_executions", WhichExecutions, list_executions),
    Tool("get_execution", WhichExecution, get_execution),
    Tool("explain_execution", WhichReason, explain_execution),
    Tool("list_events", WhichEvents, list_events),
    Tool("get_result", WhichResult, get_result),
    Tool("read_logs", WhichLogs, read_logs),
    Tool("start_execution", Start, start_execution, ADDS),
    Tool("rerun_execution", Again, rerun_execution, ADDS),
    Tool("pause_execution", OneReason, pause_execution, ADDS),
    Tool("resume_execution", OneExecution, resume_execution, ADDS),
    Tool("cancel_execution", OneReason, cancel_execution, ENDS),
)
