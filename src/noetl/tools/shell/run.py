"""Runs the commands of a shell task in a directory of their own, one after another."""

from __future__ import annotations

from noetl.model.outcome import Outcome
from noetl.tools.base import ToolContext
from noetl.tools.failures import within
from noetl.tools.limits import shortest
from noetl.tools.processes.commands import (
    Output,
    ended_badly,
    ended_well,
    environment,
    run_command,
    started,
)
from noetl.tools.shell import Shell


async def run(config: Shell, context: ToolContext) -> Outcome:
    limit, rules = shortest(config.timeout, context.timeout), context.resources.rules
    late, end = "The command ran longer than", "; its process group was killed."
    variables = environment(config.env, config.env_allow, rules.opened)
    out, err = (Output(context.log, rules.max_output_bytes) for _ in range(2))
    code = 0
    with context.resources.workplace(context.spec, config.cwd) as (directory, room):
        async with within(limit, late, end):
            for words in _command_lines(config):
                with started(words[0], directory, config.cwd):
                    code = await run_command(
                        words, config.stdin, variables, directory, out, err, rules.bounds, room
                    )
                if code not in config.ok_codes:
                    return ended_badly(
                        "The command", config.retry_codes, code, out, err, config.cwd
                    )
    return ended_well(config.decode, code, out, err)


def _command_lines(config: Shell) -> list[list[str]]:
    if isinstance(config.cmd, tuple):
        return [list(config.cmd)]
    lines = [config.cmd] if config.cmd is not None else []
    return [["/bin/sh", "-c", line] for line in (*lines, *(config.cmds or ()))]
