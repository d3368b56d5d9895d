"""Runs the author's code in a sandbox process and tells its failures apart."""

from __future__ import annotations

import asyncio
import re
from functools import cache
from importlib import metadata
from typing import Any

from noetl.model.outcome import Outcome, failed, ok
from noetl.tools.base import ToolContext
from noetl.tools.python import Python
from noetl.tools.running.limits import shortest
from noetl.tools.running.python_calls import Answer, Crashed
from noetl.tools.running.resources import Refused

CODE_NAME = "<code>"
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^]]*\])?\s*(.*?)\s*$")
_CLAUSE = re.compile(r"(==|!=|<=|>=|<|>|~=)\s*(\d+(?:\.\d+)*)")


async def run(config: Python, context: ToolContext) -> Outcome:
    for requirement in config.libs:
        if lack := lacking(requirement):
            return failed("client_error", lack)
    code, name = config.code, CODE_NAME
    if code is None:
        loaded = await _script(config, context)
        if isinstance(loaded, Outcome):
            return loaded
        code, name = loaded
    limit = shortest(config.timeout, context.timeout)
    try:
        answer = await context.resources.sandbox.call(
            code,
            name=name,
            inputs=context.inputs,
            # Most code does not look at it, and it may be large.
            context=context.context if "context" in code else {},
            log=context.log,
            timeout=limit,
        )
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
    return _outcome(answer)


def _outcome(answer: Answer) -> Outcome:
    if not answer.problem:
        return ok(answer.value)
    if answer.problem == "not_plain":
        return failed("schema", answer.message)
    place = f" (line {answer.line})" if answer.line else ""
    error = failed(
        "parse" if answer.problem == "syntax" else "exception",
        f"{answer.message}{place}",
        details={"traceback": answer.traceback, "line": answer.line},
    ).error
    return Outcome(status="error", error=error, py={"exception_type": answer.exception_type})


async def _script(config: Python, context: ToolContext) -> tuple[str, str] | Outcome:
    assert config.script is not None
    try:
        path = context.resources.path(config.script)
        return await asyncio.to_thread(path.read_text, "utf-8"), str(config.script)
    except Refused as refusal:
        return failed("auth", f"script: {refusal}")
    except FileNotFoundError:
        return failed("not_found", f'The script "{config.script}" does not exist on this worker.')
    except (IsADirectoryError, PermissionError) as error:
        return failed("auth", f'The script "{config.script}" cannot be read: {error.strerror}.')
    except UnicodeDecodeError as error:
        return failed("parse", f'The script "{config.script}" is not UTF-8 text: {error}.')


# --- libs --------------------------------------------------------------------------------------


@cache
def lacking(requirement: str) -> str | None:
    """What is wrong with a requirement like `pandas>=2`; None if it is met."""
    found = _REQUIREMENT.match(requirement)
    if found is None:
        return f'libs: "{requirement}" is not a requirement like "pandas" or "pandas>=2".'
    name, written = found.groups()
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return (
            f'libs: the package "{name}" is not installed on this worker, and this version does '
            f"not install packages. Run `pip install {name}` there."
        )
    for clause in filter(None, (part.strip() for part in written.split(","))):
        parts = _CLAUSE.fullmatch(clause)
        if parts is None:
            return f'libs: "{clause}" in "{requirement}" is not a condition like ">=2.1".'
        if not _holds(parts.group(1), _numbers(version), _numbers(parts.group(2))):
            return f"libs: {name} {version} is installed, but the task needs {requirement}."
    return None


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in release.group().split(".")) if release else ()


def _holds(operator: str, have: tuple[int, ...], want: tuple[int, ...]) -> bool:
    length = max(len(have), len(want))
    filled: list[Any] = [one + (0,) * (length - len(one)) for one in (have, want)]
    low, high = filled
    match operator:
        case "==":
            return bool(low == high)
        case "!=":
            return bool(low != high)
        case "<=":
            return bool(low <= high)
        case ">=":
            return bool(low >= high)
        case "<":
            return bool(low < high)
        case ">":
            return bool(low > high)
        case _:  # ~=
            return bool(low >= high) and have[: len(want) - 1] == want[:-1]
