"""A process in which thousands of executions wait, and what they cost it, as one line of JSON."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

import noetl.store.sqlite.store as sqlite_store
from noetl import configured, wiring
from noetl.settings import Settings

PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: waits, path: tests/waits}
workload: {number: 0, text: "some words that every execution carries with it"}
workflow:
  - step: start
    spec:
      eval_mode: on_event
      match: "{{ event.data.number == workload.number }}"
      timers: [{id: late, after: 1h}]
      form: [{name: number, type: integer, label: "Which number?"}]
    case:
      - when: "{{ event.name == 'approval.received' }}"
        then: {result: {value: "{{ event.data.number }}"}}
"""
BASE = 1000
"""Executions that are there before anything is measured: caches are full then."""
IDLE_SECONDS = 3.0
"""Longer than anything takes that is looked at while executions wait."""
OF_NONE = ("BEGIN", "ROLLBACK", "noetl_lease")
"""Leases are looked at now and then, however many executions there are; these have none."""
statements: list[str] = []
watching = False


def counted(*arguments: Any) -> sqlite3.Connection:
    db = _connect(*arguments)
    db.set_trace_callback(lambda sql: statements.append(sql) if watching else None)
    return db


_connect, sqlite_store.connect = sqlite_store.connect, counted


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def main(folder: str, number: int) -> dict[str, Any]:
    global watching
    settings = Settings.from_environment({"NOETL_DATABASE_URL": f"sqlite:///{folder}/noetl.db"})
    async with wiring.embedded(settings) as system:
        compiled = configured.compiler(settings)(PLAYBOOK)
        await system.orchestrator.programs.keep(compiled.unwrap(), compiled.digest)

        async def start(first: int, count: int) -> list[str]:
            ids: list[str] = []
            for begin in range(first, first + count, 200):
                ids += await asyncio.gather(
                    *(
                        system.executions.start(
                            compiled.digest, "tests/waits", None, {"number": one}
                        )
                        for one in range(begin, min(begin + 200, first + count))
                    )
                )
            return ids

        ids = await start(0, BASE)
        tasks, memory = len(asyncio.all_tasks()), resident_bytes()
        ids += await start(BASE, number)
        grown = resident_bytes() - memory
        more_tasks = len(asyncio.all_tasks()) - tasks
        await asyncio.sleep(IDLE_SECONDS)  # what the last start left to be looked up
        watching = True
        await asyncio.sleep(IDLE_SECONDS)
        watching = False
        chosen = [0, BASE // 2, BASE + number // 2, BASE + number - 1]
        for one in chosen:
            await system.executions.signal(ids[one], "approval.received", {"number": one})
        documents = [await system.executions.wait(ids[one]) for one in chosen]
        return {
            "bytes_each": grown / number,
            "more_tasks": more_tasks,
            "statements_while_idle": [
                one for one in statements if not any(word in one for word in OF_NONE)
            ],
            "results": [document["result"] for document in documents],
            "expected": chosen,
            "waiting": len(await system.store.records.unfinished()),
        }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], int(sys.argv[2])))))
