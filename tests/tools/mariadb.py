"""A MariaDB server of our own, if this machine has the programs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MISSING = "MariaDB is not installed here (Debian: mariadb-server-core, mariadb-client-core)"
PLACES = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"


def programs() -> tuple[str, str] | None:
    """The server and the script that makes its first files."""
    server = shutil.which("mariadbd", path=PLACES)
    install = shutil.which("mariadb-install-db", path=PLACES)
    if server and install and shutil.which("my_print_defaults", path=PLACES):  # which it asks
        return server, install
    return None


@contextmanager
def serving(port: int | None = None) -> Iterator[str]:
    """The path of the server's socket; `root` comes in without a password.

    With a port it can also be reached there.
    """
    found = programs()
    assert found is not None
    server, install = found
    base = Path(server).parent.parent
    with tempfile.TemporaryDirectory(prefix="noetl-mariadb-") as folder:
        data, place = f"{folder}/data", f"{folder}/s"
        prepare = [install, "--no-defaults", f"--basedir={base}", f"--datadir={data}"]
        how = ["--auth-root-authentication-method=normal", "--skip-test-db", "--user=root"]
        subprocess.run([*prepare, *how], check=True, capture_output=True)
        options = [f"--basedir={base}", f"--datadir={data}", f"--socket={place}", "--user=root"]
        network = [f"--port={port}", "--bind-address=127.0.0.1"] if port else ["--skip-networking"]
        process = subprocess.Popen(
            [server, "--no-defaults", *options, *network, "--pid-file=pid"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_for(place, process)
            yield place
        finally:
            process.terminate()
            process.wait(30)


def _wait_for(place: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    with socket.socket(socket.AF_UNIX) as line:
        while line.connect_ex(place) != 0:
            assert process.poll() is None, "MariaDB ended before it began to serve"
            assert time.monotonic() < deadline, "MariaDB does not begin to serve"
            time.sleep(0.05)
