"""A Model Context Protocol server that we start: one JSON message per line of its two pipes."""

from __future__ import annotations

import asyncio
import codecs
import os
import tempfile
from contextlib import ExitStack
from typing import Any

import msgspec

from noetl.model.outcome import failed
from noetl.tools.base import ToolContext
from noetl.tools.failures import Failed, failed_with
from noetl.tools.mcp import Mcp
from noetl.tools.mcp.run import result_of
from noetl.tools.plain_data import read_json
from noetl.tools.processes.commands import environment
from noetl.tools.resources import Refused, Rules
from noetl.tools.running.namespaces import Room
from noetl.tools.running.processes import ending
from noetl.tools.running.spawning import Program
from noetl.tools.web.service import fields_of

NO_SUCH_METHOD = -32601


class StdioLine:
    """A process of its own session, killed with all it started when the call is over."""

    def __init__(self, program: Program, stack: ExitStack, context: ToolContext) -> None:
        self._program = program
        self._stack = stack
        self._number = 0
        self._listening = asyncio.create_task(self._hear(context))

    @classmethod
    async def open(cls, config: Mcp, context: ToolContext) -> StdioLine:
        assert config.command is not None
        fields = await fields_of(config.auth, context)
        secrets = {name: value for name, value in fields.items() if isinstance(value, str)}
        variables = environment({**secrets, **config.env})
        stack = ExitStack()
        try:
            if config.cwd is None:
                fresh = tempfile.TemporaryDirectory(prefix="noetl-", ignore_cleanup_errors=True)
                directory = stack.enter_context(fresh)
            else:
                directory = str(context.resources.path(config.cwd))
            try:
                room = context.resources.room(context.spec, config.cwd, directory)
            except Refused as refusal:
                raise Failed("auth", str(refusal)) from None
            program = await _started(config, variables, directory, context.resources.rules, room)
            return cls(program, stack, context)
        except BaseException:
            stack.close()
            raise

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        await self._send({"id": self._number, "method": method, "params": params})
        while True:
            message = await self._message()
            if "method" in message:
                await self._heard(message)
            elif message.get("id") == self._number:
                return result_of(message)

    async def tell(self, method: str) -> None:
        await self._send({"method": method})

    async def close(self) -> None:
        try:
            await self._program.close()
        finally:
            self._listening.cancel()
            await asyncio.wait([self._listening])
            self._stack.close()

    # --- Messages ---

    async def _send(self, message: dict[str, Any]) -> None:
        assert self._program.stdin is not None
        try:
            self._program.stdin.write(msgspec.json.encode({"jsonrpc": "2.0", **message}) + b"\n")
            await self._program.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise failed_with(await self._ended()) from None

    async def _message(self) -> dict[str, Any]:
        """The next message. What is none is passed over: programs greet, too."""
        while True:
            try:
                line = await self._program.stdout.readline()
            except ValueError:
                told = "The server's answer is longer than this worker reads."
                raise Failed("parse", told) from None
            if not line:
                raise failed_with(await self._ended())
            try:
                found = read_json(line)
            except msgspec.DecodeError:
                continue
            if isinstance(found, dict):
                return found

    async def _heard(self, message: dict[str, Any]) -> None:
        """Answer what the server asks of us: we are there, and can do nothing else for it."""
        if "id" not in message:
            return
        if message["method"] == "ping":
            await self._send({"id": message["id"], "result": {}})
            return
        refusal = {"code": NO_SUCH_METHOD, "message": "not supported"}
        await self._send({"id": message["id"], "error": refusal})

    async def _ended(self) -> Any:
        code = await self._program.ended()
        return failed(
            "connection", f"The server {ending(code)} before it answered.", retryable=True
        )

    async def _hear(self, context: ToolContext) -> None:
        """What it writes to its standard error goes to the task's log."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while data := await self._program.stderr.read(64 * 1024):
            context.log(decoder.decode(data))


async def _started(
    config: Mcp, variables: dict[str, str], directory: str, rules: Rules, room: Room | None
) -> Program:
    assert config.command is not None
    try:
        return await Program.start(
            list(config.command),
            variables,
            directory,
            rules.bounds,
            writes=True,
            room=room,
            line_max=rules.max_output_bytes,
        )
    except (FileNotFoundError, NotADirectoryError):
        is_there = os.path.isdir(directory)
        what = f'program "{config.command[0]}"' if is_there else f'cwd "{config.cwd}"'
        problem = failed("not_found", f"The {what} does not exist on this worker.")
    except PermissionError as error:
        told = f'"{config.command[0]}" may not be run here: {error.strerror}.'
        problem = failed("auth", told)
    except ValueError as error:
        problem = failed("client_error", f"The command cannot be run: {error}.")
    raise failed_with(problem)
