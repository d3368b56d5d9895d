"""Records a history: a database as one version leaves it, with what that version said of it.

    python -m tests.histories.record PATH/TO/noetl VERSION

runs the playbooks beside this file with that `noetl` and writes VERSION.db.xz and VERSION.json.
Some executions end, one is paused, and others are left behind by a kill -9: while they wait for an
answer, for a moment, and in the middle of a loop. Record one for every release; test_histories.py
opens all of them with the code of today.
"""

from __future__ import annotations

import json
import lzma
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ENDED = ("chain", "loops", "branches", "calls", "undone")
LEFT = ("asks", "later", "slow", "held")
PATIENCE = 60.0


class Recorder:
    def __init__(self, noetl: str, database: Path) -> None:
        self._noetl = noetl
        self._where = ("--db", f"sqlite:///{database}")

    def command(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self._noetl, *words, *self._where],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=HERE,
        )

    def said(self, *words: str) -> Any:
        out, errors = self.command(*words, "--json").communicate(timeout=PATIENCE)
        if not out.strip():
            sys.exit(f"noetl {' '.join(words)}: {errors}")
        return json.loads(out)

    def left(self, name: str, *, pause: bool) -> str:
        """An execution that is at work or waits when its process is killed."""
        running = self.command("run", f"playbooks/{name}.yaml", "--new")
        execution_id = self._begun(f"histories/{name}")
        if pause:
            self.command("executions", "pause", execution_id).communicate(timeout=PATIENCE)
        os.kill(running.pid, signal.SIGKILL)
        running.communicate()
        return execution_id

    def _begun(self, path: str) -> str:
        """The newest execution of a playbook, once it waits, or its loop is under way."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            found = self.said("executions", "list", "--path", path, "--limit", "1")["executions"]
            if found and found[0]["status"] == "RUNNING":
                execution_id = str(found[0]["execution_id"])
                events = self.said("executions", "events", execution_id)["events"]
                names = [event["name"] for event in events]
                if "loop.started" not in names or names.count("loop.iteration.done") >= 4:
                    return execution_id
        sys.exit(f"{path} did not begin within {PATIENCE} s")


def main(noetl: str, version: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "noetl.db"
        recorder = Recorder(noetl, database)
        ended, left = {}, {}
        for name in ENDED:
            recorder.command("run", f"playbooks/{name}.yaml", "--new").communicate()
            found = recorder.said("executions", "list", "--path", f"histories/{name}")
            ended[name] = recorder.said(
                "executions", "show", found["executions"][0]["execution_id"]
            )
        for name in LEFT:
            left[name] = recorder.left(name, pause=name == "held")
        # Whatever is in the write-ahead log goes into the file.
        subprocess.run([sys.executable, "-c", _CHECKPOINT, str(database)], check=True, cwd=HERE)
        bodies = {
            str(path.relative_to(folder)): path.read_bytes().hex()
            for path in sorted(Path(folder).rglob("*"))
            if path.is_file() and not path.name.startswith("noetl.db")
        }
        with lzma.open(HERE / f"{version}.db.xz", "wb", preset=9) as file:
            file.write(database.read_bytes())
        told = {"ended": ended, "left": left, "bodies": bodies}
        (HERE / f"{version}.json").write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")


_CHECKPOINT = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as db:
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
"""

if __name__ == "__main__":
    main(*sys.argv[1:])
