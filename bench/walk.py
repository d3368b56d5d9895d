"""The walk of one step: which functions of ours it passes through, and how often from file to file.

The step is a no-op with one `set` whose only arc has a guard and leads back to it, in one process
on SQLite, after it has come round often enough that everything is at hand. A *hop* is a call from a
function of one file of ours into a function of another.

Run `python bench/walk.py [--calls]`. With `--calls` it also prints the functions in order.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

import noetl
from noetl import wiring
from noetl.cli import workloads
from noetl.settings import Settings
from noetl.store.sqlite import database

HOUSE = str(Path(noetl.__file__).parent) + "/"
ROUNDS, FIRST, LAST = 60, 20, 50
"""It comes round so often; it is looked at from the first of these rounds to the last."""
PLAYBOOK = f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: walk, path: bench/walk}}
workflow:
  - step: start
    tool:
      kind: noop
      set: {{ctx.n: "{{{{ (ctx.n | default(0)) + 1 }}}}"}}
    next:
      arcs:
        - step: start
          when: "{{{{ ctx.n < {ROUNDS} }}}}"
"""


class Walk:
    """Every call of a function of ours, in order, on every thread."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str]] = []
        """File of the caller, file and name of the function."""
        self._marks: list[int] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        path = frame.f_code.co_filename
        if not path.startswith(HOUSE):
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(HOUSE):
            caller = caller.f_back
        came_from = caller.f_code.co_filename if caller is not None else ""
        place = path.removeprefix(HOUSE)
        name = frame.f_code.co_qualname
        if place == "engine/entry.py" and name == "start_run":
            self._marks.append(len(self.calls))
        self.calls.append((came_from.removeprefix(HOUSE), place, name))

    def rounds(self) -> list[list[tuple[str, str, str]]]:
        """The calls from one beginning of the step to the next."""
        marks = self._marks
        return [
            self.calls[a:b] for a, b in zip(marks[FIRST:LAST], marks[FIRST + 1 :], strict=False)
        ]


async def walk() -> Walk:
    with tempfile.TemporaryDirectory() as folder:
        settings = msgspec.structs.replace(
            Settings.from_environment({}), database_url=f"sqlite:///{folder}/walk.db"
        )
        async with wiring.embedded(settings) as system:
            found = Walk()
            threading.setprofile(found)
            sys.setprofile(found)
            try:
                await workloads.run(system, PLAYBOOK)
            finally:
                sys.setprofile(None)
                threading.setprofile(None)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calls", action="store_true", help="print the functions in order")
    options = parser.parse_args()
    # Tracing makes writes slow; they are done on the spot all the same, as untraced ones are.
    database.SHORT_SECONDS = 100.0
    rounds = asyncio.run(walk()).rounds()
    usual = Counter(map(len, rounds)).most_common(1)[0][0]
    one = next(calls for calls in rounds if len(calls) == usual)
    if options.calls:
        for caller, place, name in one:
            print(f"{'→' if caller != place else ' '} {place}: {name}")
    hops = [call for call in one if call[0] != call[1]]
    print(f"calls {len(one)}, hops {len(hops)}, files {len({place for _, place, _ in one})}")


if __name__ == "__main__":
    main()
