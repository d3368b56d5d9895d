"""Runs circuits on the local simulator: at once, or as jobs that other tasks query.

A job is stored in files and run by the worker that accepted it. If that worker is gone, the next
worker that is asked about the job runs it again; with a seed the counts are the same.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from noetl.model.outcome import Outcome, failed, ok
from noetl.tools.base import ToolContext
from noetl.tools.failures import Failed, need, require
from noetl.tools.files.results import arriving
from noetl.tools.limits import shortest, to_thread
from noetl.tools.processes.child import Call
from noetl.tools.processes.sandbox import Crashed, SandboxPool
from noetl.tools.quantum import NEEDS, Quantum

LOCAL = ("aer", "local")


async def run(config: Quantum, context: ToolContext) -> Outcome:
    if config.provider not in LOCAL:
        raise Failed(
            "not_found",
            f'This worker knows no provider "{config.provider}" of quantum computers. '
            "`provider: aer` is the simulator; others come as tool kinds of plug-ins.",
        )
    need("quantum", "qiskit", "qiskit_aer")
    require(config, "op", NEEDS)
    # The same for every attempt of one call, so that a repeated submit is the same job.
    text = f"{context.execution_id} {context.action_id}"
    own_id = f"aer-{hashlib.sha256(text.encode()).hexdigest()[:24]}"
    job_id = own_id if config.op == "run" else config.job_id or own_id
    circuit = {
        "circuit": config.circuit,
        "parameters": config.parameters,
        "shots": min(config.shots, config.shots_max or config.shots),
        "seed": config.seed,
        "backend": config.backend,
        "options": config.options,
    }
    match config.op:
        case "run":
            limit = shortest(config.timeout, context.timeout)
            try:
                job = await simulated(context.resources.sandbox, circuit, limit, context.log)
            except TimeoutError:
                told = f"The simulation took longer than {limit:g} s; its process was killed."
                raise Failed("timeout", told) from None
        case "submit":
            job = await _jobs(context).submit(job_id, circuit)
        case _:
            job = await _jobs(context).status(job_id)
    if config.op in ("submit", "status"):
        return ok({"job_id": job_id, "state": job.state})
    if job.state == "ERROR":
        return failed(job.kind, job.message)  # type: ignore[arg-type]  # the simulator's are ours
    if job.counts is None:
        told = f'The job "{job_id}" is {job.state}: ask for `op: status` until it is DONE.'
        raise Failed("client_error", told, code="not_done")
    shots = sum(job.counts.values())
    return ok({"job_id": job_id, "state": job.state, "counts": job.counts, "shots": shots})


def _jobs(context: ToolContext) -> Jobs:
    resources = context.resources
    folder = Path(resources.rules.cache).expanduser() / "quantum"
    return resources.shared("quantum", lambda: Jobs(folder, resources.sandbox))


# --- Jobs --------------------------------------------------------------------------------------

KEPT_SECONDS = 7 * 86400.0
_JOB = re.compile(r"aer-[0-9a-f]{24}")
OWNER = "simulator"
"""Our own code runs in processes that run no one else's."""
CODE = "from noetl.tools.quantum.simulator import simulate\nreturn simulate(**args)\n"


class Job(msgspec.Struct, frozen=True):
    """The state of a job."""

    state: str
    counts: dict[str, int] | None = None
    kind: str = ""
    message: str = ""


async def simulated(
    sandbox: SandboxPool,
    circuit: dict[str, Any],
    timeout: float | None = None,
    log: Callable[[str], None] = lambda text: None,
) -> Job:
    """Run a circuit in a child process. Raises TimeoutError."""
    try:
        call = Call(CODE, "<simulator>", circuit, {})
        answer = await sandbox.call(call, log=log, owner=OWNER, timeout=timeout)
    except Crashed as crash:
        return Job("ERROR", kind="server_error", message=f"The simulation failed. {crash}")
    if answer.problem:
        return Job("ERROR", kind="server_error", message=f"The simulation failed: {answer.message}")
    if "counts" in answer.value:
        return Job("DONE", counts=answer.value["counts"])
    return Job("ERROR", **answer.value)


class Jobs:
    """The jobs of one directory, and those of them that this worker runs."""

    def __init__(self, folder: Path, sandbox: SandboxPool) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._sandbox = sandbox
        self._running: dict[str, asyncio.Task[None]] = {}

    async def submit(self, job_id: str, circuit: dict[str, Any]) -> Job:
        await to_thread(self._forget_old)
        place = self._place(job_id, "job")
        if not place.exists():
            await to_thread(_write, place, circuit)
        return await self.status(job_id)

    async def status(self, job_id: str) -> Job:
        """Its state; a job that no worker runs is started."""
        if not _JOB.fullmatch(job_id) or not self._place(job_id, "job").exists():
            # It was not submitted here, or was deleted long ago.
            raise Failed("not_found", f'There is no job "{job_id}" on this worker.')
        done = self._place(job_id, "done")
        if done.exists():
            return msgspec.json.decode(await to_thread(done.read_bytes), type=Job)
        if job_id in self._running:
            return Job("RUNNING")
        lock = _locked(self._place(job_id, "lock"))
        if lock is None:
            return Job("RUNNING")
        task = self._running[job_id] = asyncio.create_task(self._run(job_id))
        # Also if it is cancelled before it could begin.
        task.add_done_callback(lambda _: self._over(job_id, lock))
        return Job("QUEUED")

    async def _run(self, job_id: str) -> None:
        body = await to_thread(self._place(job_id, "job").read_bytes)
        job = await simulated(self._sandbox, msgspec.json.decode(body))
        await to_thread(_write, self._place(job_id, "done"), job)

    def _over(self, job_id: str, lock: int) -> None:
        os.close(lock)
        self._running.pop(job_id, None)

    def _place(self, job_id: str, what: str) -> Path:
        return self._folder / f"{job_id}.{what}"

    def _forget_old(self) -> None:
        for path in self._folder.glob("aer-*"):
            # Another worker may have renamed or removed it since we listed it.
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < time.time() - KEPT_SECONDS:
                    path.unlink()

    async def close(self) -> None:
        for task in (tasks := list(self._running.values())):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _locked(place: Path) -> int | None:
    """A lock that ends with this process in any case; None if another process has it."""
    lock = os.open(place, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _write(place: Path, value: Any) -> None:
    """Readers see all of it or nothing."""
    with arriving(place) as partial:
        partial.write_bytes(msgspec.json.encode(value))
