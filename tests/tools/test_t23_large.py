"""T23 for the kinds that bring in data of any size: 50 MB through a whole system, by reference.

Each runs in a process of its own, twice, the second time with far more: caches are full by then, so
what that takes besides is the cost of the size alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import psycopg
import pytest

from tests.effort import IS_LONG
from tests.examples.system import ROOT, playbook

SIZE = 50 * 1024 * 1024
EVENT_MAX = 4096
SOME = SIZE if IS_LONG else SIZE // 2
MORE = SIZE + 2 * SOME
MEMORY_MAX = 0.8
"""Of what came in besides. Whoever reads it into memory takes at least all of it."""

MEASURED = """
import json, re, sys
from noetl.model.events import encode
from tests.examples.system import on_bench

text, credentials, some, more = json.load(sys.stdin)

def highest():
    # Not `ru_maxrss`: that begins with what the process was forked from.
    with open("/proc/self/status") as status:
        return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", status.read())[1])

async def work(bench):
    for name, fields in credentials.items():
        await bench.system.keys.put(name, "generic", fields)
    (await bench.run(text, some)).result
    before = highest()
    run = await bench.run(text, more)
    return {
        "result": run.result,
        "event": max(len(encode(fact)) for fact in run.events),
        "grown": highest() - before,
    }

print(json.dumps(on_bench(work)))
"""
WHOLE = """
    - name: whole
      kind: python
      args: { file: "{{ REFERENCE }}", about: "{{ REFERENCE }}" }
      code: |
        import hashlib
        found = hashlib.sha256()
        with open(file["path"], "rb") as body:
            while piece := body.read(1024 * 1024):
                found.update(piece)
        about = file["_ref"]
        result = {"size": about["size"], "same": about["checksum"] == found.hexdigest()}
"""
"""What the next task finds: the file that was kept, with the checksum that the reference says."""

DOWNLOAD = """
- step: start
  tool:
    - { name: got, kind: http, url: "{{ workload.url }}", download: true }
"""
COPY = """
- step: start
  tool:
    - name: got
      kind: postgres
      auth: db
      table: "{{ workload.table }}"
      copy: { header: false }
"""
PARQUET = """
- step: start
  tool:
    - name: got
      kind: postgres
      auth: db
      command: |
        SELECT (SELECT string_agg(md5(n || ' ' || k), '') FROM generate_series(1, 4) AS k) AS words
        FROM generate_series(1, %(rows)s) AS n
      params: { rows: "{{ workload.rows }}" }
      result_as: parquet
"""
STORE = """
- step: start
  tool:
    - { name: got, kind: store, op: get, url: "{{ workload.folder }}", key: "{{ workload.key }}" }
"""


def measured(
    flow: str, reference: str, some: dict[str, Any], more: dict[str, Any], **credentials: Any
) -> dict[str, Any]:
    text = playbook(flow + WHOLE.replace("REFERENCE", reference).lstrip("\n"))
    told = json.dumps([text, credentials, some, more])
    words = [sys.executable, "-c", MEASURED]
    ran = subprocess.run(words, cwd=ROOT, input=told, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return dict(json.loads(ran.stdout))


def assert_kept(found: dict[str, Any]) -> None:
    assert found["result"]["same"]
    assert found["result"]["size"] >= SIZE
    assert found["event"] < EVENT_MAX


def assert_bounded(found: dict[str, Any]) -> None:
    assert_kept(found)
    assert found["grown"] < MEMORY_MAX * (MORE - SOME), found


def test_t23_a_download_of_50_mb_is_a_reference(web):
    some, more = ({"url": f"{web.url}/large?size={size}"} for size in (SOME, MORE))

    assert_bounded(measured(DOWNLOAD, "got.data", some, more))


@pytest.mark.long
def test_t23_a_copy_of_50_mb_is_a_reference(postgres):
    lines = "SELECT repeat('x', 1023) AS line FROM generate_series(1, {})"
    with psycopg.connect(**postgres) as connection:
        connection.execute(f"CREATE TABLE few AS {lines.format(SOME // 1024)}")
        connection.execute(f"CREATE TABLE many AS {lines.format(MORE // 1024)}")
    some, more = ({"table": name} for name in ("few", "many"))

    assert_bounded(measured(COPY, "got", some, more, db=postgres))


def test_t23_rows_of_50_mb_are_a_reference(postgres):
    # Digests are as long in Parquet as they are as text.
    some, more = ({"rows": size // 128} for size in (128, SIZE))

    # What making Parquet takes is bounded by a limit of its own, far above this.
    assert_kept(measured(PARQUET, "got", some, more, db=postgres))


def test_t23_an_object_of_50_mb_is_a_reference(tmp_path):
    (tmp_path / "some").write_bytes(bytes(range(256)) * (SOME // 256))
    (tmp_path / "more").write_bytes(bytes(range(256)) * (MORE // 256))
    some, more = ({"folder": tmp_path.as_uri(), "key": name} for name in ("some", "more"))

    assert_bounded(measured(STORE, "got", some, more))
