"""Runs circuits on the local simulator: at once, or as jobs that other tasks ask about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from noetl.model.outcome import Outcome, failed, ok
from noetl.tools.base import ToolContext
from noetl.tools.extras import lacking
from noetl.tools.quantum import Quantum
from noetl.tools.quantum.jobs import Job, Jobs, NoSuchJob, job_id_of, simulated
from noetl.tools.running.limits import shortest

LOCAL = ("aer", "local")


async def run(config: Quantum, context: ToolContext) -> Outcome:
    if config.provider not in LOCAL:
        return failed(
            "not_found",
            f'This worker knows no provider "{config.provider}" of quantum computers. '
            "`provider: aer` is the simulator; others come as tool kinds of plug-ins.",
        )
    if lack := lacking("quantum", "qiskit", "qiskit_aer"):
        return lack
    needs = "circuit" if config.op in ("submit", "run") else "job_id"
    if getattr(config, needs) is None:
        return failed("client_error", f"`op: {config.op}` needs `{needs}`.")
    if config.op == "run":
        return await _run(config, context)
    jobs = _jobs(context)
    job_id = config.job_id or job_id_of(context.execution_id, context.action_id)
    try:
        if config.op == "submit":
            job = await jobs.submit(job_id, _circuit(config))
        else:
            job = await jobs.status(job_id)
    except NoSuchJob:
        return failed("not_found", f'There is no job "{job_id}" on this worker.')
    if config.op == "results":
        return _results(job_id, job)
    return ok({"job_id": job_id, "state": job.state})


def _jobs(context: ToolContext) -> Jobs:
    resources = context.resources
    folder = Path(resources.rules.cache).expanduser() / "quantum"
    return resources.shared("quantum", lambda: Jobs(folder, resources.sandbox))


def _circuit(config: Quantum) -> dict[str, Any]:
    return {
        "circuit": config.circuit,
        "parameters": config.parameters,
        "shots": config.shots,
        "seed": config.seed,
        "backend": config.backend,
        "options": config.options,
    }


async def _run(config: Quantum, context: ToolContext) -> Outcome:
    limit = shortest(config.timeout, context.timeout)
    try:
        job = await simulated(context.resources.sandbox, _circuit(config), limit, context.log)
    except TimeoutError:
        told = f"The simulation took longer than {limit:g} seconds; its process was killed."
        return failed("timeout", told, retryable=True)
    return _results(job_id_of(context.execution_id, context.action_id), job)


def _results(job_id: str, job: Job) -> Outcome:
    if job.state == "ERROR":
        return failed(job.kind, job.message)  # type: ignore[arg-type]  # the simulator's are ours
    if job.counts is None:
        told = f'The job "{job_id}" is {job.state}: ask for `op: status` until it is DONE.'
        return failed("client_error", told, code="not_done")
    shots = sum(job.counts.values())
    return ok({"job_id": job_id, "state": job.state, "counts": job.counts, "shots": shots})
