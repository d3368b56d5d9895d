"""The process that compiles and evaluates for a server: one job after another, each in a budget.

It reads only its jobs, writes only its answers, and ends with the server.
"""

from __future__ import annotations

import pickle
import resource
import signal
import struct
import sys
from functools import cache
from typing import Any, BinaryIO

import msgspec

from noetl.control.explanation import Inquiry, answered
from noetl.control.preview import Seen, evaluated
from noetl.control.zones import SystemZones
from noetl.dsl.building import Known
from noetl.dsl.triggers import compile_document
from noetl.errors import BudgetExceeded, EvaluationFailed, NoetlError, PlaybookRejected
from noetl.model import net as nets
from noetl.model.net import Limits
from noetl.model.problems import Place, Problem
from noetl.model.rewrites import Rewritten
from noetl.model.triggers import Trigger
from noetl.tools.registry import tools

SIZE = struct.Struct(">I")
"""Before every message."""
COMPUTING_SECONDS = 5
"""Computing seconds of one job; then it is abandoned."""
MEMORY_MAX = 2 * 1024**3
ANSWER_MAX = 64 * 1024 * 1024
TOO_MUCH = " Make it smaller, or do it in a Python task."


class Compile(msgspec.Struct, frozen=True, kw_only=True):
    """A request to compile a text."""

    text: str
    limits: Limits
    known: Known | None = None


class Render(msgspec.Struct, frozen=True, kw_only=True):
    """A request to render a template."""

    template: Any
    seen: Seen


class Rewrite(msgspec.Struct, frozen=True, kw_only=True):
    """A request to rewrite a text: formatted, or in the canonical dialect."""

    text: str
    migrates: bool


Job = Compile | Render | Inquiry | Rewrite


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a job: a net or a trigger with problems, a value as JSON, or an error."""

    net: bytes | None = None
    trigger: Trigger | None = None
    digest: str = ""
    problems: tuple[Problem, ...] = ()
    unresolved: dict[str, Place] = {}
    value: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""
    """The code of the error."""
    message: str = ""


def serve() -> None:
    """Serve jobs until the input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, _give_up)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    while (job := _next(sys.stdin.buffer)) is not None:
        answer = msgspec.json.encode(_made(job))
        if len(answer) > ANSWER_MAX:
            answer = msgspec.json.encode(_refusal(BudgetExceeded("the value is too large.")))
        sys.stdout.buffer.write(SIZE.pack(len(answer)) + answer)
        sys.stdout.buffer.flush()


def _next(jobs: BinaryIO) -> Job | None:
    head = jobs.read(SIZE.size)
    if len(head) < SIZE.size:
        return None
    found: Job = pickle.loads(jobs.read(SIZE.unpack(head)[0]))  # noqa: S301  the server wrote it
    return found


def _give_up(number: int, frame: Any) -> None:
    raise BudgetExceeded(f"stopped after {COMPUTING_SECONDS} seconds of computing." + TOO_MUCH)


def _made(job: Job) -> Made:
    signal.setitimer(signal.ITIMER_PROF, COMPUTING_SECONDS)
    try:
        match job:
            case Compile():
                return _compiled(job)
            case Render():
                return Made(value=_raw(evaluated(job.template, job.seen)))
            case Inquiry():
                return Made(value=_raw(answered(job)))
            case Rewrite():
                return Made(value=_raw(_rewritten(job)))
    except PlaybookRejected as error:
        return Made(error=error.code, problems=error.problems)
    except NoetlError as error:
        return _refusal(error)
    except MemoryError:
        return _refusal(BudgetExceeded("this takes too much memory." + TOO_MUCH))
    except RecursionError:
        return _refusal(EvaluationFailed("this is nested too deeply."))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


@cache
def _tools() -> Any:
    return tools()


def _compiled(job: Compile) -> Made:
    compiled = compile_document(
        job.text, tools=_tools(), limits=job.limits, zones=SystemZones(), known=job.known
    )
    return Made(
        net=nets.encode(compiled.net) if compiled.net is not None else None,
        trigger=compiled.trigger,
        digest=compiled.digest,
        problems=compiled.problems,
        unresolved=dict(compiled.unresolved),
    )


def _rewritten(job: Rewrite) -> Rewritten:
    # Only the process that does it imports these.
    from noetl.rewrite.fmt import format_text
    from noetl.rewrite.migrate import migrate_text

    return migrate_text(job.text, _tools()) if job.migrates else Rewritten(format_text(job.text))


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _refusal(error: NoetlError) -> Made:
    return Made(error=error.code, message=str(error))
