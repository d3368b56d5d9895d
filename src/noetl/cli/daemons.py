"""Servers and workers in the background: pid files and logs under `.noetl/`."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, NamedTuple

from noetl.cli import FAILED, OK
from noetl.cli.output import print_json, print_line, say

FOLDER = Path(".noetl")
LOOK_SECONDS = 0.05
QUIET_SECONDS = 3.0
START_SECONDS = 45.0
"""How long to wait until it is ready. A worker without a server keeps trying after that."""
LINES_SHOWN = 5
STOP_SECONDS = 60.0
READY_FD = "_NOETL_READY_FD"


class Daemon(NamedTuple):
    """A named background process."""

    name: str

    @property
    def pid_file(self) -> Path:
        return FOLDER / f"{self.name}.pid"

    @property
    def ready_file(self) -> Path:
        return FOLDER / f"{self.name}.ready"

    @property
    def log_file(self) -> Path:
        return FOLDER / f"{self.name}.log"

    def pid(self) -> int | None:
        """Its process id while it runs."""
        try:
            pid = int(self.pid_file.read_text().strip())
        except (OSError, ValueError):
            return None
        return pid if _is_ours(pid) else None

    def reported(self) -> tuple[str, str, str]:
        """What it reported when it was ready: the URL of a server or the name of a worker; of a
        worker also how it isolates the code and programs of tasks, and its labels.
        """
        try:
            lines = self.ready_file.read_text().splitlines()
        except OSError:
            lines = []
        ready, sandbox, labels = (*lines, "", "", "")[:3]
        return ready, sandbox, labels

    def forget(self) -> None:
        """Delete the files of a process that no longer runs."""
        self.pid_file.unlink(missing_ok=True)
        self.ready_file.unlink(missing_ok=True)


def _is_ours(pid: int) -> bool:
    """Whether that process runs and is one of ours: the pid may have been reused."""
    try:
        os.kill(pid, 0)
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc/self").exists()  # without /proc, the signal has to be enough
    except OSError:
        return False
    return b"noetl" in command  # Of one that has ended and still is a child, it is empty.


def start(daemon: Daemon, arguments: list[str]) -> int:
    """Start it in the background and wait until it reports that it is ready."""
    pid = daemon.pid()
    if pid is not None:
        kind, _, pool = daemon.name.partition("-")
        stop_it = f"noetl {kind} stop" + (f" --pool {pool}" if pool else "")
        say(f"{daemon.name} is already running (pid {pid}); `{stop_it}` stops it")
        return FAILED
    FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
    daemon.forget()
    read_end, write_end = os.pipe()
    with _private(daemon.log_file, "ab") as log:
        said_before = log.tell()
        process = subprocess.Popen(  # noqa: S603  our own command, with our own arguments
            [sys.executable, "-m", "noetl.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[write_end],
            env={**os.environ, READY_FD: str(write_end)},
        )
    os.close(write_end)
    # Written now, so that it can be stopped while it starts.
    with _private(daemon.pid_file, "wb") as file:
        file.write(f"{process.pid}\n".encode())
    with os.fdopen(read_end, "rb") as ready:
        is_decided, _, _ = select.select([ready], [], [], QUIET_SECONDS)
        if not is_decided:
            say(f"waiting until {daemon.name} is ready; its log is {daemon.log_file}")
            is_decided, _, _ = select.select([ready], [], [], START_SECONDS)
        # A few lines when it is ready; end of file without any if it could not start.
        lines = ready.read().decode().splitlines() if is_decided else ["it is not ready yet"]
    if not lines:
        process.wait()
        daemon.forget()
        say(f"{daemon.name} did not start; see {daemon.log_file}:")
        _show_log(daemon, said_before)
        return FAILED
    if is_decided:
        with _private(daemon.ready_file, "wb") as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
    say(f"{daemon.name} is running (pid {process.pid}): {lines[0]}")
    say(f"its log is {daemon.log_file}")
    if not is_decided:
        _show_log(daemon, said_before)
    return OK


def _private(path: Path, mode: str) -> IO[bytes]:
    """A file that only the user can read, also if others could read it before."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW, 0o600)

    file: IO[bytes] = open(path, mode, opener=opener)  # noqa: SIM115  whoever asked closes it
    os.fchmod(file.fileno(), 0o600)
    return file


def _show_log(daemon: Daemon, since: int) -> None:
    """Print the last lines of its log."""
    with daemon.log_file.open("rb") as log:
        log.seek(since)
        for line in log.read().decode(errors="replace").splitlines()[-LINES_SHOWN:]:
            say(f"  {line}")


def tell_ready(text: str, *more: str) -> None:
    """Report to the process that started us in the background that we are ready; see `Daemon`."""
    number = os.environ.pop(READY_FD, None)
    if number is not None:
        with os.fdopen(int(number), "wb") as pipe:
            pipe.write("".join(f"{line}\n" for line in (text, *more)).encode())


def stop(daemon: Daemon) -> int:
    """Ask it to end, and wait until it has."""
    pid = daemon.pid()
    if pid is None:
        say(f"no {daemon.name} was started in the background from this directory")
        daemon.forget()
        return OK
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while daemon.pid() == pid:
        if time.monotonic() > deadline:
            say(f"{daemon.name} (pid {pid}) is still busy; it ends when its work has")
            return FAILED
        time.sleep(LOOK_SECONDS)
    daemon.forget()
    say(f"{daemon.name} has ended")
    return OK


def status(daemons: list[Daemon], *, as_json: bool) -> int:
    """Print which of them run. Exit code 1 if none does."""
    found = [(daemon, daemon.pid(), *daemon.reported()) for daemon in daemons]
    running = [one for one in found if one[1] is not None]
    if as_json:
        print_json(
            {
                "running": [
                    {"name": one.name, "pid": pid, "ready": ready}
                    | ({"sandbox": sandbox} if sandbox else {})
                    | ({"labels": labels.split(",")} if labels else {})
                    for one, pid, ready, sandbox, labels in running
                ]
            }
        )
    else:
        width = max((len(one.name) for one, *_ in running), default=0)
        for one, pid, ready, sandbox, labels in running:
            parts = [f"running, pid {pid}", ready]
            parts += [f"sandbox: {sandbox}"] if sandbox else []
            parts += [f"labels: {labels}"] if labels else []
            parts += [f"log {one.log_file}"]
            print_line(f"{one.name:<{width}}  {', '.join(filter(None, parts))}")
        if not running:
            say("nothing was started in the background from this directory")
    return OK if running else FAILED


def daemons(kind: str) -> list[Daemon]:
    """The processes of a kind that were started from this directory."""
    return [Daemon(path.stem) for path in sorted(FOLDER.glob(f"{kind}*.pid"))]
