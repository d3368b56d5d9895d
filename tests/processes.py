"""Tests in several processes that share one collection: `pytest --processes 5`.

Thousands of tests take seconds to import and to collect. That happens once; then the process forks,
and each fork takes one file after the other, so that what a file shares is made once. A fork tells
what begins and how it ended, and the first process reports it, as if it had run the test itself.
"""

from __future__ import annotations

import itertools
import os
import pickle
import struct
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import pytest

from tests.effort import IS_LONG
from tests.forked import end, share

NUMBER = struct.Struct("i")
NUMBERS_MAX = 16_000
"""As many as a pipe takes before anybody reads."""
PACKAGE_SHARES = 2
MANY = 100
"""Among so many files are some that start commands in each process."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--processes", type=int, default=1, help="run tests in so many processes, a file in each"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    options = session.config.option
    if options.processes < 2 or options.collectonly or session.testsfailed:
        return None
    shares = _shares(session.items)
    waiting = _numbers(len(shares))
    if len(shares) > MANY:
        share()
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    forks: dict[Connection, Fork] = {}
    for number in range(min(options.processes, len(shares))):
        ours, theirs = Pipe(duplex=False)
        pid = os.fork()
        if not pid:
            ours.close()
            _run(session, number, _drawn(shares, waiting), theirs)
        theirs.close()
        forks[ours] = Fork(pid)
    try:
        _report(session, forks, waiting)
    finally:
        for line, fork in forks.items():
            line.close()
            fork.wait()
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    return True


def _shares(items: list[pytest.Item]) -> list[list[pytest.Item]]:
    """What one process takes at once: a file, or a function where one alone may take minutes.

    A package has fixtures for all its files, made anew by each process that runs one of them: two
    processes share its files out.
    """
    files: dict[Any, dict[Any, int]] = {}
    shares: dict[Any, list[pytest.Item]] = {}
    for item in items:
        package = item.getparent(pytest.Package)
        if IS_LONG or package is None:
            share = item.path, getattr(item, "originalname", item.name) if IS_LONG else ""
        else:
            among = files.setdefault(package.path, {})
            share = package.path, among.setdefault(item.path, len(among)) % PACKAGE_SHARES
        shares.setdefault(share, []).append(item)
    return [*shares.values()]


def _numbers(count: int) -> int:
    """A pipe that holds the numbers of all shares: each is read once, by whoever comes first."""
    assert count < NUMBERS_MAX
    reading, writing = os.pipe()
    for number in range(count):
        os.write(writing, NUMBER.pack(number))
    os.close(writing)
    return reading


def _drawn(shares: list[list[pytest.Item]], waiting: int) -> Iterator[pytest.Item]:
    while said := os.read(waiting, NUMBER.size):
        yield from shares[NUMBER.unpack(said)[0]]


# --- In a fork ---------------------------------------------------------------------------------


def _run(
    session: pytest.Session, number: int, items: Iterator[pytest.Item], line: Connection
) -> None:
    """Run what is drawn, then end this process."""
    config = session.config
    _become_one_of_several(config, number)
    config.pluginmanager.register(_Telling(config, line))
    code = 1
    try:
        try:
            for item, following in itertools.pairwise(itertools.chain(items, [None])):
                assert item is not None
                config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.shouldfail or session.shouldstop:
                    break
        finally:
            session._setupstate.teardown_exact(None)
        config._ensure_unconfigure()
        line.send_bytes(b"")
        code = 0
    except KeyboardInterrupt:
        pass  # The first process was interrupted, too, and says so.
    except BaseException:  # noqa: BLE001 - the interpreter shows it, whatever it is
        sys.excepthook(*sys.exc_info())
    end(code)


def _become_one_of_several(config: pytest.Config, number: int) -> None:
    config.workerinput = {"workerid": f"process-{number}"}  # type: ignore[attr-defined]
    plugins = config.pluginmanager
    # Its file would be shared: what tests print goes to one of this process.
    capture: Any = plugins.get_plugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    # The first process says how tests went. A test that hangs is shown from here.
    terminal: Any = plugins.unregister(name="terminalreporter")
    plugins.register(_Writer(terminal._tw), "terminalreporter")
    factory: Any = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = factory.getbasetemp() / f"process-{number}"
    factory._basetemp.mkdir(mode=0o700)


class _Writer:
    def __init__(self, writer: Any) -> None:
        self._tw = writer


class _Telling:
    """Tells the first process what begins and how it ended."""

    def __init__(self, config: pytest.Config, line: Connection) -> None:
        self._config = config
        self._line = line
        self._reports: list[Any] = []

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        self._line.send_bytes(pickle.dumps((nodeid, location, None)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        made = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._reports.append(made)

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        self._line.send_bytes(pickle.dumps((nodeid, location, self._reports)))
        self._reports = []


# --- In the first process ----------------------------------------------------------------------


class Fork:
    """One of the processes, as the first one sees it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.runs: tuple[str, Any] = "between two tests", ("", None, "")
        """The test that began last, and where it is."""

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def _report(session: pytest.Session, forks: dict[Connection, Fork], waiting: int) -> None:
    hook = session.config.hook
    while forks:
        for line in wait(list(forks)):
            assert isinstance(line, Connection)
            fork = forks[line]
            try:
                said = line.recv_bytes()
            except EOFError:
                del forks[line]
                hook.pytest_runtest_logreport(report=_ended_early(fork))
                continue
            if not said:
                fork.wait()
                del forks[line]
                continue
            nodeid, location, reports = pickle.loads(said)
            if reports is None:
                fork.runs = nodeid, location
                hook.pytest_runtest_logstart(nodeid=nodeid, location=location)
                continue
            for report in reports:
                made = hook.pytest_report_from_serializable(config=session.config, data=report)
                hook.pytest_runtest_logreport(report=made)
            hook.pytest_runtest_logfinish(nodeid=nodeid, location=location)
        if session.shouldfail:
            while os.read(waiting, NUMBER.size * NUMBERS_MAX):  # No process begins another file.
                pass


def _ended_early(fork: Fork) -> pytest.TestReport:
    nodeid, location = fork.runs
    return pytest.TestReport(
        nodeid=nodeid,
        location=location,
        keywords={},
        outcome="failed",
        longrepr=f"The process ended ({fork.wait()}). This is the test that it began last; what it "
        "said of its end is printed above. The tests that follow in the file were not run.",
        when="call",
    )
