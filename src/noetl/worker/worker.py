"""The worker: takes commands, runs them in its slots, keeps its leases, and drains when told.

Cancellation interrupts running work; a lost lease does, too, because its reports would be refused.
Whatever goes wrong in here, every command ends with exactly one last report, or with a lapsed lease
whose work another worker takes over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from noetl.engine.program import Program
from noetl.errors import LeaseLost, NoetlError
from noetl.model.commands import Ending, Lease
from noetl.model.events import CommandPaused
from noetl.model.ids import CommandId
from noetl.model.outcome import TaskError
from noetl.secrets.keychain import Sources
from noetl.tools.base import Tool
from noetl.tools.resources import ToolResources
from noetl.worker.calls import Caller
from noetl.worker.control import Control
from noetl.worker.driver import Driver
from noetl.worker.reporter import Pulse, Reporter
from noetl.worker.spans import Spans

logger = logging.getLogger(__name__)

LEASE_WAIT = 10.0
RETRY_PAUSE = 0.2
PROGRAMS_MAX = 200
PAUSED_MAX = 10_000


class Worker:
    """A number of slots that run commands."""

    def __init__(
        self,
        control: Control,
        tools: Mapping[str, Tool],
        resources: ToolResources,
        *,
        worker_id: str,
        pool: str = "default",
        slots: int = 64,
        renew_every: float = 10.0,
        now: Callable[[], float],
        sources: Sources | None = None,
        spans: Spans | None = None,
    ) -> None:
        self._control = control
        self._caller = Caller(control, tools, resources, now, sources or Sources())
        self._spans = spans
        """None: nothing is traced here."""
        self.worker_id = worker_id
        self.pool = pool
        self.slots = slots
        self._renew_every = renew_every
        self._now = now
        self._running: dict[CommandId, tuple[Lease, asyncio.Task[None]]] = {}
        self._programs: dict[str, Program] = {}
        self._closing: set[CommandId] = set()
        """Commands whose last report is on its way. They are not interrupted any more: the answer
        may bring the next command."""
        self._reporters: dict[CommandId, Reporter] = {}
        self._paused: dict[CommandId, None] = {}
        """Commands under which nothing more is to begin."""
        self._pulse = Pulse()
        self._room = asyncio.Event()
        self._caller.rates.has_room = lambda: self._free() > 0
        self._caller.rates.on_idle = self._room.set
        self._draining = False
        self._taking: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Work until cancelled or drained."""
        async with asyncio.TaskGroup() as group:
            helpers = [
                group.create_task(self._keep_leases()),
                group.create_task(self._obey()),
            ]
            self._taking = group.create_task(self._take_commands(group))
            try:
                await asyncio.wait([self._taking])
                while self._running:
                    await asyncio.wait([task for _, task in self._running.values()])
            except asyncio.CancelledError:
                self._draining = True  # A slot that is not interrupted takes nothing more.
                self._taking.cancel()
                await self.stop()
                raise
            finally:
                for helper in helpers:
                    helper.cancel()

    def drain(self) -> None:
        """Take nothing new; `run` ends when what is running has."""
        self._draining = True
        if self._taking is not None:
            self._taking.cancel()

    async def _take_commands(self, group: asyncio.TaskGroup) -> None:
        while not self._draining:
            # Commands whose moment under a rate has come go before new ones.
            free = self._free() - self._caller.rates.coming
            if free <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            try:
                leases = await self._control.lease(
                    self.worker_id, pool=self.pool, want=free, wait=LEASE_WAIT
                )
            except NoetlError as error:
                logger.warning("no commands could be leased: %s", error)
                await asyncio.sleep(RETRY_PAUSE)
                continue
            for lease in leases:
                self._begin(lease, group)

    def _free(self) -> int:
        """Slots without work; a command that waits for its moment under a rate needs none."""
        return self.slots - len(self._running) + self._caller.rates.idle

    def _begin(self, lease: Lease, group: asyncio.TaskGroup) -> None:
        task = group.create_task(self._work(lease))
        command_id = lease.command.command_id
        self._running[command_id] = (lease, task)

        def free(ended: asyncio.Task[None]) -> None:
            # One that was stopped before it began has not freed its slot itself.
            if command_id in self._running and self._running[command_id][1] is ended:
                del self._running[command_id]
                self._room.set()

        task.add_done_callback(free)

    async def stop(self) -> None:
        """Stop what is running, each once: a second time would cut short its cleaning up. Other
        workers continue it after what was recorded.
        """
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            if not task.cancelling():
                task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _work(self, lease: Lease | None) -> None:
        """One command after the other: the answer to a last report brings the next."""
        task = asyncio.current_task()
        assert task is not None
        while lease is not None:
            command_id = lease.command.command_id
            self._running[command_id] = (lease, task)
            try:
                following = await self._run_one(lease)
            except asyncio.CancelledError:
                following = None
                # We interrupted this command alone, or the worker is ending.
                if task.cancelling() and task.uncancel():
                    raise
            finally:
                self._running.pop(command_id, None)
                self._room.set()
                if self._caller.rates.coming:
                    self._caller.rates.free()
            lease = following

    async def _run_one(self, lease: Lease) -> Lease | None:
        command_id = lease.command.command_id
        reporter = Reporter(
            self._control,
            lease,
            self.pool,
            self.worker_id,
            self._pulse,
            lambda: self._interrupt({command_id}),
        )
        self._reporters[command_id] = reporter
        try:
            ending = await self._ending(lease, reporter)
            self._closing.add(command_id)
            answer = await reporter.close(ending, want=0 if self._draining else 1)
        except LeaseLost:
            logger.info("a lease was lost", extra={"command_id": command_id})
            return None
        except NoetlError as error:
            # No server accepted its end. The lease lapses, and another worker repeats what is not
            # recorded.
            logger.warning("no report was taken: %s", error, extra={"command_id": command_id})
            return None
        except Exception:
            logger.exception("no report was taken", extra={"command_id": command_id})
            return None
        finally:
            self._closing.discard(command_id)
            self._reporters.pop(command_id, None)
            self._paused.pop(command_id, None)
            if not reporter.is_closed:
                reporter.abandon()
        return answer.leases[0] if answer.leases else None

    async def _ending(self, lease: Lease, reporter: Reporter) -> Ending | None:
        try:
            digest = lease.command.digest
            program = self._programs.get(digest)
            if program is None:
                program = self._programs[digest] = await self._control.program(digest)
                if len(self._programs) > PROGRAMS_MAX:
                    self._programs.pop(next(iter(self._programs)))
            driver = Driver(lease.command, program, self._caller, reporter, self._paused)
            if self._spans is None:
                return await driver.run()
            return await self._spans.run(driver)
        except LeaseLost:
            raise
        except Exception as error:
            # No tool or rule foresaw this. The run still gets exactly one last report.
            logger.exception("a step run failed unexpectedly", extra={"step": lease.command.step})
            message = f"the worker failed: {type(error).__name__}: {error}"
            return Ending(error=TaskError(kind="exception", code="worker", message=message))

    async def _keep_leases(self) -> None:
        while True:
            await asyncio.sleep(self._renew_every)
            tokens = {command_id: lease.token for command_id, (lease, _) in self._running.items()}
            if tokens:
                try:
                    self._interrupt(await self._control.renew(tokens))
                except NoetlError as error:
                    logger.warning("leases could not be renewed; the next try is soon: %s", error)

    async def _obey(self) -> None:
        while True:
            orders = await self._control.orders(self.worker_id)
            self._interrupt(orders.stop)
            self._pause(orders.pause)

    def _pause(self, command_ids: set[CommandId]) -> None:
        """Begin nothing more under these, and say so; what is running ends.

        An unknown one may be on its way to us, and is given back when it arrives.
        """
        for command_id in command_ids:
            is_new = command_id not in self._paused
            self._paused[command_id] = None
            if len(self._paused) > PAUSED_MAX:
                self._paused.pop(next(iter(self._paused)))
            reporter = self._reporters.get(command_id)
            if is_new and reporter is not None and command_id not in self._closing:
                command = self._running[command_id][0].command
                fact = CommandPaused(
                    at=self._now(),
                    step_run_id=command.step_run_id,
                    step=command.step,
                    held=command_id,
                )
                reporter.say(fact)
                reporter.flush_soon()

    def _interrupt(self, command_ids: set[CommandId]) -> None:
        for command_id in command_ids:
            found = self._running.get(command_id)
            # Once: a second time would cut short its cleaning up.
            if found is not None and command_id not in self._closing and not found[1].cancelling():
                found[1].cancel()
