"""Prints executions: the list, one of them, and what it waits for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from noetl.cli.output import as_text, cut, local_time, one_line
from noetl.cli.views.lines import clock_time, failed_iterations, length, more_about, step_time
from noetl.cli.views.paint import Drawn, Span
from noetl.cli.views.results import Get, beginning
from noetl.cli.views.source_lines import AT_END
from noetl.model import refs
from noetl.model.answers import ExecutionSummary, WaitDocument
from noetl.model.duration import timestamp

ROLES = {
    "COMPLETED": "good",
    "FAILED": "error",
    "CANCELLED": "quiet",
    "done": "",
    "failed": "error",
    "running": "kind",
}
ACTIONS = {
    "playbook.paused": "paused",
    "playbook.resumed": "resumed",
    "playbook.cancelled": "cancelled",
    "approval.received": "approval",
    "message.received": "message",
    "vars.set": "variables",
}
WAITS = {"form": "waits for a form", "event": "waits for an event", "timer": "backs off"}
VALUE_MAX = 500


def list_rows(found: list[ExecutionSummary], *, in_use: bool) -> Iterator[Drawn]:
    """One line for each execution, newest first."""
    width = max((len(row.path) for row in found), default=0)
    now = time.time()
    for row in found:
        status = status_word(row.status, in_use=in_use)
        begun = timestamp(row.start_time or "") or 0.0
        yield Drawn(
            "",
            "    ",
            (
                Span(f"{row.execution_id:<19}"),
                Span(f" {status:<11}", ROLES.get(row.status, "kind")),
                Span(f"  {row.path:<{width}}", "step"),
                Span(f"  {clock_time(begun):<8}", "quiet"),
                Span(f"  {length(_took(row, now)):>9}", "quiet"),
                Span(_remark(row), "error" if row.error else "quiet"),
            ),
        )


def status_word(status: str, *, in_use: bool) -> str:
    """The status; for an execution that should be running while no process holds the database, that
    it was interrupted.
    """
    if status in ("PENDING", "RUNNING") and not in_use:
        return "interrupted"
    return status.lower()


def _took(row: ExecutionSummary, now: float) -> float:
    if row.duration_seconds is not None:
        return row.duration_seconds
    return max(now - (timestamp(row.start_time or "") or now), 0.0)


def _remark(row: ExecutionSummary) -> str:
    if row.error:
        where = f"{row.step}: " if row.step else ""
        # The line of the code says nothing without its file, which `show` looks up.
        error = AT_END.sub("", one_line(row.error)).rstrip()
        return f"  {where}{error[:100]}"
    if row.waits is not None:
        return f"  {row.step}: {WAITS[row.waits]}"
    parts = []
    if row.current_steps:
        parts.append(f"in {', '.join(row.current_steps)}")
    if row.parent_execution_id is not None:
        parts.append(f"called by {row.parent_execution_id}")
    return f"  {'; '.join(parts)}" if parts else ""


async def shortened(document: dict[str, Any], get: Get) -> dict[str, Any]:
    """The document with the beginning of each large result instead of its reference."""
    owner = document["execution_id"]
    how = f"`noetl executions result {owner}"
    short = {**document, "result": await beginning(document["result"], owner, get)}
    if refs.holds_reference(document["result"], refs.UNSEALED):
        short["whole_result"] = f"{how}` prints it whole"
    short["steps"] = []
    for step in document["steps"]:
        shown = {**step, "result": await beginning(step["result"], owner, get)}
        if refs.holds_reference(step["result"], refs.UNSEALED):
            shown["whole_result"] = f"{how} --step {step['step']}` prints it whole"
        short["steps"].append(shown)
    return short


def execution_rows(
    document: dict[str, Any], waits: Sequence[WaitDocument], *, in_use: bool
) -> Iterator[Drawn]:
    """The details of one execution, from its `shortened` document and what it waits for."""
    yield _fact("execution", document["execution_id"])
    version = f"  version {document['version']}" if document["version"] else ""
    yield _fact("playbook", f"{document['path']}{version}", "step")
    status = document["status"]
    yield _fact("status", status_word(status, in_use=in_use), ROLES.get(status, "kind"))
    if document["parent_execution_id"] is not None:
        yield _fact("called by", document["parent_execution_id"])
    if document.get("labels"):
        named = [f"{name}={one_line(value)}" for name, value in document["labels"].items()]
        yield _fact("labels", ", ".join(named))
    by = f" by {document['actor']['text']}" if document.get("actor") else ""
    yield _fact("started", f"{local_time(document['start_time'])}{by}")
    for act in document.get("acts", ()):
        what = ACTIONS.get(act["action"], act["action"])
        why = f": {one_line(act['reason'])}" if act["reason"] else ""
        yield _fact(what, f"{local_time(act['at'])} by {act['actor']['text']}{why}")
    if document["end_time"] is not None:
        yield _fact(
            "ended", f"{local_time(document['end_time'])}, {length(document['duration_seconds'])}"
        )
    for name in ("workload", "ctx", "vars"):
        if document[name]:
            yield _fact(name, _value(document[name]))
    yield Drawn("", "")
    width = max((len(step["step"]) for step in document["steps"]), default=0)
    for step in document["steps"]:
        yield from _step_rows(step, width)
        for one in waits:
            if one.waits_for == "place" and one.step == step["step"]:
                since = clock_time(timestamp(one.since or ""))
                told = f"task {one.task} waits for {one.what} since {since}"
                yield Drawn("    ", "    ", (Span(told, "kind"),))
    yield Drawn("", "")
    for warning in document.get("warnings", ()):
        often = f" ({warning['count']} times)" if warning["count"] > 1 else ""
        yield _fact("warning", f"{one_line(warning['message'])}{often}", "warning")
    if document["error"] is not None:
        where = f" in step {document['failed_step']}" if document["failed_step"] else ""
        error = document["error"]
        yield _fact("error", f"{one_line(error['message'])} ({error['kind']}{where})", "error")
    elif status == "COMPLETED":
        yield _fact("result", _value(document["result"]))
        if "whole_result" in document:
            yield _fact("", document["whole_result"], "quiet")


def _step_rows(step: dict[str, Any], width: int) -> Iterator[Drawn]:
    parts = [took] if (took := step_time(step)) else []
    own = step["runs"] - step.get("undoes", 0)
    if own > 1:
        parts.append(f"{own} runs")
    if step.get("undone", 0) > 1:
        parts.append(f"{step['undone']} of them undone")
    if step.get("undoes") and not own:
        parts.append("undoes other steps")
    if step["attempts"] > 1:
        parts.append(f"{step['attempts']} calls")
    if "loop" in step:
        loop = step["loop"]
        parts.append(f"{loop['done']} of {loop['total']} iterations")
    status = "undone" if step.get("undone") and step["status"] == "done" else step["status"]
    yield Drawn(
        "",
        "    ",
        (
            Span(f"{step['step']:<{width}}", "step"),
            Span(f"  {status:<9}", ROLES.get(step["status"], "quiet")),
            Span(f"  {', '.join(parts)}" if parts else "", "quiet"),
        ),
    )
    if failed := failed_iterations(step):
        yield Drawn("    ", "    ", (Span(failed, "error"),))
    if step.get("unmatched"):
        yield Drawn(
            "    ", "    ", (Span("none of its arcs held; its branch ended here", "quiet"),)
        )
    if step["error"] is not None:
        yield Drawn("    ", "    ", (Span(one_line(step["error"]["message"]), "error"),))
        for line in more_about(step["error"]):
            yield Drawn("      ", "      ", (Span(line, "quiet"),))
    elif "waiting" in step:
        yield from _waiting_rows(step["waiting"])
    elif step["result"] not in (None, {}, []):
        yield Drawn("    ", "    ", (Span(_value(step["result"]), "quiet"),))
        if "whole_result" in step:
            yield Drawn("    ", "    ", (Span(step["whole_result"], "quiet"),))


def _waiting_rows(waiting: dict[str, Any]) -> Iterator[Drawn]:
    """What it waits for, and its form."""
    from noetl.control.documents import event_words

    what = event_words(waiting["events"])
    until = (
        f" until {clock_time(timestamp(waiting['until']))}" if waiting["until"] is not None else ""
    )
    yield Drawn("    ", "    ", (Span(f"waits for {what}{until}", "kind"),))
    for field in waiting["form"]:
        told = {name: field[name] for name in ("default", "options") if name in field}
        shown = f"  {_value(told)}" if told else ""
        must = "" if field["required"] else ", may be left out"
        yield Drawn(
            "      ",
            "      ",
            (
                Span(f"{field['name']} ({field['type']}{must})", "word"),
                Span(f"  {one_line(field['label'])}{shown}", "quiet"),
            ),
        )


def _fact(name: str, text: str, role: str = "") -> Drawn:
    return Drawn("", f"{'':11}", (Span(f"{name:<11}", "word"), Span(text, role)))


def _value(value: Any) -> str:
    return cut(one_line(as_text(value)), VALUE_MAX)
