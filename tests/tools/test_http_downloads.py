"""Downloads of kind http: into the result store and to files; and what the operator allows."""

from __future__ import annotations

import hashlib

import msgspec

from noetl.configured import tool_rules
from noetl.settings import Settings
from noetl.tools.files.results import Files, in_memory
from noetl.tools.rules import Rules
from tests.tools.running import SEAL, elsewhere, failure, on_bench, ran

FIFTY_MB = 50 * 1024 * 1024


def test_t23_a_large_download_is_a_small_reference_and_verified(web):
    async def work(bench):
        url = f"{web.url}/large?size={FIFTY_MB}"
        # It would not fit into an answer that is read into memory.
        outcome = await bench.run("http", {"url": url, "download": True})
        reference = outcome.result["data"]
        async with elsewhere(bench) as other:
            files = other.resources.files("2", SEAL, "other", *in_memory(other.bodies))
            size = (await files.local(files.find(reference))).stat().st_size
            tail = await files.read(files.find(reference), FIFTY_MB - 3, FIFTY_MB + 100)
            await files.close()
        return outcome, size, tail, max(map(len, bench.bodies.values()))

    rules = Rules(max_response_bytes=1024)
    outcome, size, tail, largest = on_bench(work, rules=rules)

    about = outcome.result["data"]["_ref"]
    assert (about["size"], about["format"], size) == (FIFTY_MB, "text", FIFTY_MB)
    assert about["checksum"] == hashlib.sha256(b"x" * FIFTY_MB).hexdigest()
    assert tail == b"xxx"
    assert largest <= 8 * 1024 * 1024
    assert len(msgspec.json.encode(outcome)) < 2000


def test_a_download_is_a_table_for_the_next_task(web):
    async def work(bench):
        body = {"hex": b"a,b\n1,x\n2,y\n".hex(), "type": "text/csv"}
        config = {"method": "POST", "url": f"{web.url}/body", "json": body, "download": True}
        got = await bench.run("http", config)
        task = {"files": {"t": got.result["data"]}, "command": "SELECT sum(a) AS s FROM t"}
        return await bench.run("duckdb", task)

    assert on_bench(work).result["rows"] == [{"s": 3}]


def test_a_download_goes_to_a_file_that_is_whole_or_not_there(web, tmp_path):
    place = tmp_path / "deep" / "f.txt"
    config = {"url": f"{web.url}/large?size=70000", "download": str(place)}

    got = ran("http", config).result["data"]
    refused = ran("http", config, settings={"rules": Rules(max_file_bytes=100)})
    broken = ran("http", {"url": f"{web.url}/status/500", "download": str(tmp_path / "no.txt")})

    assert (got["size"], place.stat().st_size) == (70000, 70000)
    assert got["checksum"] == hashlib.sha256(b"x" * 70000).hexdigest()
    assert failure(refused)[0] == "client_error"
    assert failure(broken)[0] == "server_error"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["f.txt"]


def test_s09_a_download_does_not_leave_the_allowed_directory(web, tmp_path):
    rules = Rules(file_root=str(tmp_path))
    outcome = ran(
        "http", {"url": f"{web.url}/echo", "download": "../out"}, settings={"rules": rules}
    )

    assert failure(outcome)[0] == "auth"


def test_s14_the_egress_policy_is_the_operators(web):
    chosen = Settings.from_environment({"NOETL_PRIVATE_NETWORKS": "refuse"})

    outcome = ran("http", {"url": f"{web.url}/echo"}, settings={"rules": tool_rules(chosen)})

    assert failure(outcome)[0] == "client_error"
    assert "egress policy" in failure(outcome)[1]
    assert web.seen == []


def test_a_download_to_a_file_needs_no_directory_besides(web, tmp_path, monkeypatch):
    monkeypatch.setattr(Files, "folder", property(lambda _: 1 / 0))
    place = tmp_path / "f.txt"

    ran("http", {"url": f"{web.url}/large?size=7", "download": str(place)})

    assert place.read_text() == "x" * 7
