"""Runs the author's code in a sandbox process, and classifies its failures."""

from __future__ import annotations

import asyncio
from pathlib import Path

from noetl.model.outcome import Outcome, failed, ok
from noetl.tools.base import ToolContext
from noetl.tools.failures import Failed, Refused
from noetl.tools.limits import shortest
from noetl.tools.processes.sandbox import Answer, Crashed
from noetl.tools.python import Python, imports_of

CODE_NAME = "<code>"


async def run(config: Python, context: ToolContext) -> Outcome:
    limit = shortest(config.timeout, context.timeout)
    try:
        async with asyncio.timeout(limit):
            packages = None
            if config.libs and isinstance(config.libs, tuple):
                from noetl.tools.python.packages import packages_for

                packages = await packages_for(config.libs, context)
            code, name = config.code, CODE_NAME
            if code is None:
                from noetl.tools.files.scripts import loaded

                assert config.script is not None
                name = config.script
                code = await loaded(name, config.auth, context)
    except Failed as problem:
        return problem.outcome
    except TimeoutError:
        told = f"The code and its packages were not there within {limit:g} seconds."
        return failed("timeout", told, retryable=True)
    lines = context.files.folder / "lines.ndjson" if config.result_as == "ndjson" else None
    sandbox = context.resources.sandbox
    try:
        network = context.resources.network(context.spec)
        inputs, files = await context.files.with_paths(context.inputs, sandbox.inputs_in)
        answer = await sandbox.call(
            code,
            name=name,
            inputs=inputs,
            # Most code does not use it, and it may be large.
            context=context.context if "context" in code else {},
            log=context.log,
            owner=context.playbook,
            packages=packages,
            timeout=limit,
            lines="" if lines is None else str(lines),
            imports=imports_of(config.libs) if isinstance(config.libs, dict) else (),
            network=network,
            files=files,
        )
    except Refused as refusal:
        return failed("auth", str(refusal))
    except TimeoutError:
        return failed(
            "timeout",
            f"The code ran longer than {limit:g} seconds; its process was killed.",
            retryable=True,
        )
    except Crashed as crash:
        return failed("exception", f"{crash} The task's log shows what it printed before.")
    except (OverflowError, TypeError, ValueError) as error:
        return failed("schema", f"The inputs cannot be handed to the code: {error}.")
    if lines is not None and not answer.problem:
        return await _kept(lines, answer, context)
    return _outcome(answer)


async def _kept(lines: Path, answer: Answer, context: ToolContext) -> Outcome:
    """A reference to the file with the code's values, one per line."""
    count = int(answer.value)
    return ok(await context.files.keep(lines, form="ndjson", preview=f"{count} lines", rows=count))


def _outcome(answer: Answer) -> Outcome:
    if not answer.problem:
        return ok(answer.value)
    if answer.problem == "not_plain":
        return failed("schema", answer.message)
    if answer.problem == "no_module":
        told = f"`libs` names what is not there: {answer.message} Install it on the workers."
        return failed("client_error", told)
    place = f" (line {answer.line})" if answer.line else ""
    error = failed(
        "parse" if answer.problem == "syntax" else "exception",
        f"{answer.message}{place}",
        details={"traceback": answer.traceback, "line": answer.line},
    ).error
    return Outcome(status="error", error=error, py={"exception_type": answer.exception_type})
