"""Runs the author's code in a sandbox process, and classifies its failures."""

from __future__ import annotations

import re

from noetl.model.outcome import Outcome, TaskError, failed, ok
from noetl.tools.base import ToolContext
from noetl.tools.failures import Failed, within
from noetl.tools.limits import shortest
from noetl.tools.processes.child import Answer, Call
from noetl.tools.processes.sandbox import Crashed
from noetl.tools.python import Python, imports_of

CODE_NAME = "<code>"


async def run(config: Python, context: ToolContext) -> Outcome:
    limit = shortest(config.timeout, context.timeout)
    packages, code, name = None, config.code, CODE_NAME
    if code is None or config.libs:
        async with within(limit, "The code and its packages were not there within"):
            if config.libs and isinstance(config.libs, tuple):
                from noetl.tools.python.packages import packages_for

                packages = await packages_for(config.libs, context)
            if code is None:
                from noetl.tools.files.scripts import loaded

                assert config.script is not None
                name = config.script
                code = await loaded(name, config.auth, context)
    lines = context.files.folder / "lines.ndjson" if config.result_as == "ndjson" else None
    sandbox = context.resources.sandbox
    try:
        network = context.resources.network(context.spec)
        inputs, files = await context.files.with_paths(context.inputs, sandbox.inputs_in)
        # Most code does not use the context, and it may be large.
        around = context.context if "context" in code else {}
        imports = imports_of(config.libs) if isinstance(config.libs, dict) else ()
        answer = await sandbox.call(
            Call(code, name, inputs, around, "" if lines is None else str(lines), imports),
            log=context.log,
            owner=context.playbook,
            packages=packages,
            timeout=limit,
            network=network,
            files=files,
        )
    except TimeoutError:
        told = f"The code ran longer than {limit:g} s; its process was killed."
        raise Failed("timeout", told) from None
    except Crashed as crash:
        raise Failed("exception", f"{crash} The task's log shows what it printed before.") from None
    except (OverflowError, TypeError, ValueError) as error:
        raise Failed("schema", f"The inputs cannot be handed to the code: {error}.") from None
    if answer.problem:
        return _failure(answer)
    if lines is None:
        return ok(answer.value)
    # A reference to the file with the code's values, one per line.
    count = int(answer.value)
    return ok(await context.files.keep(lines, form="ndjson", preview=f"{count} lines", rows=count))


_UNKNOWN = re.compile(r"NameError: name '(\w+)' is not defined")


def _remedy(answer: Answer) -> str:
    """What to do about a name that the code does not know: it sees inputs alone."""
    unknown = _UNKNOWN.match(answer.message)
    return f". Code reads what `args` names: `args: {{{unknown[1]}: …}}`" if unknown else ""


def _failure(answer: Answer) -> Outcome:
    if answer.problem == "not_plain":
        return failed("schema", answer.message)
    if answer.problem == "no_module":
        told = f"`libs` names what is not there: {answer.message} Install it on the workers."
        return failed("client_error", told)
    place = f" (line {answer.line})" if answer.line else ""
    error = TaskError(
        kind="parse" if answer.problem == "syntax" else "exception",
        message=f"{answer.message}{place}{_remedy(answer)}",
        details={"traceback": answer.traceback, "line": answer.line},
    )
    return Outcome(status="error", error=error, py={"exception_type": answer.exception_type})
