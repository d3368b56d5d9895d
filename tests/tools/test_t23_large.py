"""T23 for the kinds that bring in data of any size: 50 MB through a whole system, by reference.

Each runs in a process of its own, first with a little data and then with 50 MB, so that what the
second run takes besides is the cost of the size alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import psycopg

from tests.examples.system import ROOT, playbook

SIZE = 50 * 1024 * 1024
EVENT_MAX = 4096
MEMORY_MAX = 0.8
"""Of the size: less than one copy of the data. Reading it into memory takes several."""

MEASURED = """
import json, resource, sys
from noetl.model.events import encode
from tests.examples.system import on_bench

text, credentials, small, large = json.load(sys.stdin)

async def work(bench):
    for name, fields in credentials.items():
        await bench.system.keys.put(name, "generic", fields)
    (await bench.run(text, small)).result
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = await bench.run(text, large)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "result": run.result,
        "event": max(len(encode(fact)) for fact in run.events),
        "grown": (after - before) * 1024,
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
    - { name: got, kind: postgres, auth: db, table: "{{ workload.table }}", copy: { header: false } }
"""
PARQUET = """
- step: start
  tool:
    - name: got
      kind: postgres
      auth: db
      command: SELECT md5(n::text) AS word FROM generate_series(1, %(rows)s) AS n
      params: { rows: "{{ workload.rows }}" }
      result_as: parquet
"""
STORE = """
- step: start
  tool:
    - { name: got, kind: store, op: get, url: "{{ workload.folder }}", key: "{{ workload.key }}" }
"""


def measured(
    flow: str, reference: str, small: dict[str, Any], large: dict[str, Any], **credentials: Any
) -> dict[str, Any]:
    text = playbook(flow + WHOLE.replace("REFERENCE", reference).lstrip("\n"))
    told = json.dumps([text, credentials, small, large])
    words = [sys.executable, "-c", MEASURED]
    ran = subprocess.run(words, cwd=ROOT, input=told, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return dict(json.loads(ran.stdout))


def assert_bounded(found: dict[str, Any], size: int) -> None:
    assert found["result"]["same"]
    assert found["result"]["size"] >= size
    assert found["event"] < EVENT_MAX
    print(found)
    assert found["grown"] < MEMORY_MAX * size, found


def test_t23_a_download_of_50_mb_is_a_reference(web):
    small, large = ({"url": f"{web.url}/large?size={size}"} for size in (1000, SIZE))

    assert_bounded(measured(DOWNLOAD, "got.data", small, large), SIZE)


def test_t23_a_copy_of_50_mb_is_a_reference(postgres):
    lines = "SELECT repeat('x', 1023) AS line FROM generate_series(1, {})"
    with psycopg.connect(**postgres) as connection:
        connection.execute(f"CREATE TABLE small AS {lines.format(10)}")
        connection.execute(f"CREATE TABLE large AS {lines.format(SIZE // 1024)}")
    small, large = ({"table": name} for name in ("small", "large"))

    assert_bounded(measured(COPY, "got", small, large, db=postgres), SIZE)


def test_t23_rows_of_50_mb_are_a_reference(postgres):
    # Digests are as long in Parquet as they are as text.
    small, large = ({"rows": size // 32} for size in (10_240, SIZE))

    assert_bounded(measured(PARQUET, "got", small, large, db=postgres), SIZE)


def test_t23_an_object_of_50_mb_is_a_reference(tmp_path):
    (tmp_path / "small.bin").write_bytes(b"x" * 1000)
    (tmp_path / "large.bin").write_bytes(bytes(range(256)) * (SIZE // 256))
    small, large = (
        {"folder": tmp_path.as_uri(), "key": f"{name}.bin"} for name in ("small", "large")
    )

    assert_bounded(measured(STORE, "got", small, large), SIZE)
