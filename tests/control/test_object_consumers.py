"""Consumers of objects below a prefix, on a server that speaks the protocol of S3."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from obstore.store import S3Store

from noetl.api.services import Services
from noetl.control.retention import Retention
from noetl.model.retention import keep_rules
from tests.control.servers import run
from tests.control.test_consumers import PLAYBOOK, document, orders, taken
from tests.control.test_schedules import embedded, register, until
from tests.tools.services import S3_PAGE, s3_server

KEY = "canary-secret-key"
BY_SIZE = {"playbook": "t/order", "workload": {"order": "{{ message.body.size }}"}}
INPUTS = next(line for line in PLAYBOOK.splitlines() if line.startswith("executor:"))
BUCKETS = iter(range(1000))


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    with s3_server() as url:
        yield url


class Bucket:
    """A bucket of its own, in the hands of a test."""

    def __init__(self, url: str) -> None:
        self.name = f"orders{next(BUCKETS)}"
        self.login = {
            "access_key_id": "AKIDTRIAL",
            "secret_access_key": KEY,
            "region": "us-east-1",
            "endpoint": url,
        }
        self._objects = S3Store(
            self.name,
            access_key_id="AKIDTRIAL",
            secret_access_key=KEY,
            region="us-east-1",
            endpoint=url,
            client_options={"allow_http": True},
        )
        self._made = urllib.request.Request(f"{url}/{self.name}", method="PUT")

    def make(self) -> Bucket:
        urllib.request.urlopen(self._made).close()
        return self

    def put(self, key: str, text: str) -> None:
        self._objects.put(key, text.encode())

    def remove(self, key: str) -> None:
        self._objects.delete(key)

    def source(self, **more: Any) -> dict[str, Any]:
        found = {"url": f"s3://{self.name}", "auth": "shop_s3", "prefix": "in/", "every": "100ms"}
        return {"files": found | more}


async def prepared(system: Services, bucket: Bucket, **spec: Any) -> None:
    await system.keys.put("shop_s3", "s3", bucket.login)
    await register(system, PLAYBOOK)
    source = bucket.source(pattern="*.csv")
    await register(system, document(source, **{"target": BY_SIZE, **spec}))


def test_objects_below_a_prefix_start_one_execution_each_also_across_restarts(
    tmp_path: Path, s3_url: str
):
    bucket = Bucket(s3_url).make()
    bucket.put("in/1.csv", "1")
    bucket.put("in/deep/er/22.csv", "22")
    bucket.put("in/other.txt", "not ours: the pattern")
    bucket.put("inner/3.csv", "not ours: the prefix")

    async def first() -> None:
        async with embedded(tmp_path) as system:
            await prepared(system, bucket)
            await taken(system, 2)
            assert await orders(system) == [1, 2]

    async def second() -> None:
        bucket.put("in/1.csv", "1234")
        bucket.remove("in/deep/er/22.csv")
        bucket.put("in/new.csv", "12345")
        async with embedded(tmp_path) as system:

            async def changed() -> bool:
                return await orders(system) == [4, 5]

            # Of what is gone, or was overwritten, nothing is known any more.
            await until(changed)
            assert await system.store.records.count() == 4

    run(first)
    run(second)


def test_an_object_whose_execution_was_forgotten_starts_no_other(tmp_path: Path, s3_url: str):
    bucket = Bucket(s3_url).make()
    bucket.put("in/1.csv", "1")

    async def story() -> None:
        async with embedded(tmp_path) as system:
            await prepared(system, bucket)
            [first] = await taken(system, 1)
            assert first.execution_id is not None
            await system.executions.signal(first.execution_id, "go")
            retention = Retention(system.store, system.clock, keep_rules("1ms"))

            async def forgotten() -> bool:
                await retention.prune()
                return await system.store.records.count() == 0

            await until(forgotten)
        async with embedded(tmp_path) as system:
            bucket.put("in/22.csv", "22")
            await taken(system, 2)
            assert await system.store.records.count() == 1, "the new one, and no other"

    run(story)


def test_an_execution_knows_where_its_object_is(tmp_path: Path, s3_url: str):
    bucket = Bucket(s3_url).make()
    bucket.put("in/a b.csv", "one")
    whole = {"playbook": "t/file", "workload": {"file": "{{ message.body }}"}}

    async def story() -> None:
        async with embedded(tmp_path) as system:
            await register(system, PLAYBOOK.replace(INPUTS, "").replace("t/order", "t/file"))
            await prepared(system, bucket, target=whole)
            [message] = await taken(system, 1)
            assert message.execution_id is not None
            file = (await system.orchestrator.state(message.execution_id)).workload["file"]
            place = f"s3://{bucket.name}"
            assert (file["store"], file["key"], file["size"]) == (place, "in/a b.csv", 3)
            assert file["url"] == f"{place}/in/a b.csv"
            assert message.id == f"in/a b.csv@{file['etag']}"

    run(story)


def test_more_objects_than_one_answer_of_the_service_lists(tmp_path: Path, s3_url: str):
    bucket = Bucket(s3_url).make()
    many = 2 * S3_PAGE + 1
    for number in range(many):
        bucket.put(f"in/{number}.csv", "1")

    async def story() -> None:
        async with embedded(tmp_path) as system:
            await prepared(system, bucket, when="{{ message.body.size > 1 }}")

            async def all_taken() -> bool:
                found = await system.store.messages.of("t/c", limit=2 * many)
                return len({one.id for one in found}) == many

            await until(all_taken)

    run(story)


def test_a_bucket_that_cannot_be_read_is_said_without_the_key_and_read_as_soon_as_it_can(
    tmp_path: Path, s3_url: str
):
    bucket = Bucket(s3_url)

    async def story() -> None:
        async with embedded(tmp_path) as system:
            await prepared(system, bucket)

            async def problem() -> str:
                said = (await system.consumers.find("t/c"))[1].problem
                return said if said.startswith("its source cannot be read") else ""

            said = await until(problem)
            assert bucket.name in said
            assert KEY not in said
            bucket.make().put("in/1.csv", "1")
            await taken(system, 1)

            async def is_well() -> bool:
                return (await system.consumers.find("t/c"))[1].problem == ""

            await until(is_well)

    run(story)
