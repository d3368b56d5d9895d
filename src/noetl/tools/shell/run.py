"""Runs the commands of a shell task in a directory of their own, one after another."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack

from noetl.model.outcome import Outcome, failed
from noetl.tools.base import ToolContext
from noetl.tools.failures import Refused
from noetl.tools.limits import shortest
from noetl.tools.processes.commands import (
    Output,
    ended_badly,
    ended_well,
    environment,
    run_command,
)
from noetl.tools.processes.namespaces import Room
from noetl.tools.processes.programs import task_directory
from noetl.tools.shell import Shell


async def run(config: Shell, context: ToolContext) -> Outcome:
    limit = shortest(config.timeout, context.timeout)
    try:
        variables = environment(config.env, config.env_allow, context.resources.rules.opened)
        with ExitStack() as stack:
            if config.cwd is None:
                directory = stack.enter_context(task_directory())
            else:
                directory = str(context.resources.path(config.cwd))
            room = context.resources.room(context.spec, config.cwd, directory)
            async with asyncio.timeout(limit):
                return await _all(config, context, variables, directory, room)
    except Refused as refusal:
        return failed("auth", str(refusal))
    except TimeoutError:
        return failed(
            "timeout",
            f"The command ran longer than {limit:g} seconds; its process group was killed.",
            retryable=True,
        )


async def _all(
    config: Shell,
    context: ToolContext,
    variables: dict[str, str],
    directory: str,
    room: Room | None,
) -> Outcome:
    limit = context.resources.rules.max_output_bytes
    bounds = context.resources.rules.bounds
    out, err = Output(context.log, limit), Output(context.log, limit)
    code = 0
    for words in _command_lines(config):
        try:
            code = await run_command(
                words, config.stdin, variables, directory, out, err, bounds, room
            )
        except (FileNotFoundError, NotADirectoryError):
            what = f'program "{words[0]}"' if os.path.isdir(directory) else f'cwd "{config.cwd}"'
            return failed("not_found", f"The {what} does not exist on this worker.")
        except PermissionError as error:
            return failed("auth", f'"{words[0]}" may not be run here: {error.strerror}.')
        except ValueError as error:
            return failed("client_error", f"The command cannot be run: {error}.")
        if code not in config.ok_codes:
            return ended_badly("The command", config.retry_codes, code, out, err)
    return ended_well(config.decode, code, out, err)


def _command_lines(config: Shell) -> list[list[str]]:
    if isinstance(config.cmd, tuple):
        return [list(config.cmd)]
    lines = [config.cmd] if config.cmd is not None else []
    return [["/bin/sh", "-c", line] for line in (*lines, *(config.cmds or ()))]
