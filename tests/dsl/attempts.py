"""Reading a document in a test: bounded in time, and down to what the tests compare."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from noetl.dsl.nodes import Mapping, plain
from noetl.dsl.read import read
from noetl.dsl.report import Report
from noetl.model.problems import Problem

SECONDS_MAX = 20
"""A document of the largest size takes about 3 s on a slow machine; a quadratic one, minutes."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise AssertionError once so much CPU time is used: a hang must not hang the suite.

    CPU time, because a busy machine makes nothing wrong that was right.
    """

    def too_slow(signum: int, frame: object) -> None:
        raise AssertionError(f"took longer than {seconds} s")

    before = signal.signal(signal.SIGPROF, too_slow)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def attempt(text: str) -> tuple[Mapping | None, tuple[Problem, ...]]:
    report = Report()
    with time_limit(SECONDS_MAX):
        root = read(text, report)
        return root, report.problems(root)


def value_of(text: str) -> object:
    """What `key: <text>` yields, which must be free of problems."""
    root, problems = attempt(f"key: {text}\n")
    assert problems == ()
    return plain(root)["key"]


def refusals(text: str) -> list[tuple[str, int, int]]:
    """Code and place of everything that is wrong. The document must be refused."""
    _, problems = attempt(text)
    assert any(problem.severity == "error" for problem in problems)
    return [(problem.code, problem.line, problem.column) for problem in problems]


def message_of(text: str) -> str:
    _, [problem] = attempt(text)
    return problem.message
