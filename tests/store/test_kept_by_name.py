"""Results, documents, nets and credentials."""

from __future__ import annotations

import asyncio
from hashlib import sha256

import msgspec
import pytest

from noetl.store.base import Store
from noetl.store.postgres import PostgresStore
from noetl.store.records import SavedView
from tests.store.making import NOON, ONE, TWO, credential, entry, more, start, summary

MIB = 1 << 20


@pytest.mark.parametrize("size", [0, 1, 100_000, MIB, MIB + 1, 5 * MIB])
async def test_a_body_comes_back_with_its_checksum(store: Store, size: int):
    body = bytes(index % 251 for index in range(1000)) * (size // 1000 + 1)
    body = body[:size]

    assert await store.bodies.put(ONE, "k", body) == sha256(body).hexdigest()
    assert await store.bodies.get(ONE, "k") == body


async def test_a_body_of_50_mb_is_no_problem(store: Store):
    body = b"0123456789abcdef" * (50 * MIB // 16)

    checksum = await store.bodies.put(ONE, "k", body)

    assert checksum == sha256(body).hexdigest()
    assert await store.bodies.get(ONE, "k") == body


@pytest.mark.parametrize("size", [10, 2 * MIB])
async def test_the_same_key_again_changes_nothing(store: Store, size: int):
    first, second = b"a" * size, b"b" * size

    assert await store.bodies.put(ONE, "k", first) == sha256(first).hexdigest()
    assert await store.bodies.put(ONE, "k", second) == sha256(first).hexdigest()
    assert await store.bodies.get(ONE, "k") == first


async def test_keys_belong_to_their_execution_and_may_be_any_text(store: Store):
    await store.bodies.put(ONE, "../ü/\n", b"1")
    await store.bodies.put(TWO, "../ü/\n", b"2")

    assert await store.bodies.get(ONE, "../ü/\n") == b"1"
    assert await store.bodies.get(TWO, "../ü/\n") == b"2"
    assert await store.bodies.get(ONE, "other") is None


async def test_results_are_committed_with_their_execution(store: Store):
    large = b"x" * (2 * MIB)
    await store.log.commit([start(results=[("small", b"1"), ("large", large)])])
    moved = await store.log.commit(
        [more(0, results=[("late", b"2"), ("late large", large + b"y")])]
    )
    await store.log.commit([more(1, results=[("small", b"changed"), ("large", b"changed")])])

    assert moved == [ONE]
    assert await store.bodies.get(ONE, "small") == b"1"
    assert await store.bodies.get(ONE, "large") == large
    assert await store.bodies.get(ONE, "late") is None
    assert await store.bodies.get(ONE, "late large") is None


async def test_versions_of_a_path_count_from_1(store: Store):
    first = await store.catalog.register(entry("a", version=77), b"net a")
    second = await store.catalog.register(entry("b"), b"net b")
    other = await store.catalog.register(entry("c", path="other"), b"net c")

    assert [first.version, second.version, other.version] == [1, 2, 1]
    assert first == entry("a", version=1)


async def test_the_same_content_again_is_the_same_version(store: Store):
    first = await store.catalog.register(entry("a"), b"net")
    again = await store.catalog.register(entry("a", catalog_id="new", created_at=NOON + 9), b"net")

    assert again == first
    assert await store.catalog.entry("orders/sync", 2) is None


async def test_going_back_to_an_earlier_content_makes_it_the_newest(store: Store):
    for content, catalog_id in [("a", "1"), ("b", "2"), ("a", "3")]:
        await store.catalog.register(entry(content, catalog_id=catalog_id), b"net")

    newest = await store.catalog.entry("orders/sync")
    assert newest is not None
    assert (newest.version, newest.content) == (3, "a")


async def test_registering_at_the_same_time_gives_no_version_twice(store: Store):
    entries = await asyncio.gather(
        *(store.catalog.register(entry(f"c{n}"), b"net") for n in range(20))
    )

    assert sorted(entry.version for entry in entries) == list(range(1, 21))


async def test_a_version_is_found_by_default_the_newest(store: Store):
    first = await store.catalog.register(entry("a", description="d"), b"net a")
    second = await store.catalog.register(entry("b"), b"net b")

    assert await store.catalog.entry("orders/sync", 1) == first
    assert await store.catalog.entry("orders/sync") == second
    assert await store.catalog.entry("orders/sync", 3) is None
    assert await store.catalog.entry("orders/sync", 10**30) is None
    assert await store.catalog.entry("orders") is None


async def test_the_catalog_lists_the_newest_version_of_every_path(store: Store):
    for path, kind in [("b/x", "Playbook"), ("a/x", "Playbook"), ("a/y", "Credential")]:
        await store.catalog.register(entry(f"{path} 1", path=path, kind=kind), b"net")
    await store.catalog.register(entry("a/x 2", path="a/x"), b"net")

    async def listed(kind: str | None = None, prefix: str = "") -> list[str]:
        return [entry.content for entry in await store.catalog.entries(kind=kind, prefix=prefix)]

    assert await listed() == ["a/x 2", "a/y 1", "b/x 1"]
    assert await listed(kind="Playbook") == ["a/x 2", "b/x 1"]
    assert await listed(prefix="a/") == ["a/x 2", "a/y 1"]
    assert await listed(kind="Credential", prefix="a") == ["a/y 1"]
    assert await listed(prefix="%") == []
    assert await listed(prefix="A/") == []


async def test_a_net_is_found_by_its_digest(store: Store):
    digest_a, digest_b = sha256(b"net a").hexdigest(), sha256(b"net b").hexdigest()
    await store.catalog.register(entry("a", digest=digest_a), b"net a")
    await store.catalog.put_net(digest_b, b"net b")
    await store.catalog.put_net(digest_b, b"net b")

    assert await store.catalog.net(digest_a) == b"net a"
    assert await store.catalog.net(digest_b) == b"net b"
    assert await store.catalog.net("none") is None


async def test_a_credential_is_created_replaced_and_deleted(store: Store):
    first = credential("pg", tags=("prod", "ü"), description="orders")
    await store.credentials.put(first)
    assert await store.credentials.get("pg") == first

    second = credential("pg", type="http", data=b"new", created_at=NOON + 5, updated_at=NOON + 5)
    await store.credentials.put(second)
    # It was created once and only once.
    assert await store.credentials.get("pg") == msgspec.structs.replace(second, created_at=NOON)

    assert await store.credentials.delete("pg") is True
    assert await store.credentials.delete("pg") is False
    assert await store.credentials.get("pg") is None


async def test_a_credential_is_sealed_anew_only_if_nobody_changed_it(store: Store):
    await store.credentials.put(credential("pg", data=b"changed"))

    assert await store.credentials.reseal("pg", old=b"before", new=b"anew") is False
    assert await store.credentials.get("pg") == credential("pg", data=b"changed")
    assert await store.credentials.reseal("pg", old=b"changed", new=b"anew") is True
    assert await store.credentials.get("pg") == credential("pg", data=b"anew")
    assert await store.credentials.reseal("none", old=b"changed", new=b"anew") is False


async def test_credentials_are_listed_by_name(store: Store):
    for name in ("b", "c", "a"):
        await store.credentials.put(credential(name))

    assert await store.credentials.all() == [credential(name) for name in ("a", "b", "c")]


async def test_versions_of_a_path_are_listed_newest_first_in_pages(store: Store):
    for number in range(1, 5):
        await store.catalog.register(entry(path="a", content=f"text {number}"), b"{}")
    await store.catalog.register(entry(path="b", catalog_id="9", content="other"), b"{}")

    assert [one.version for one in await store.catalog.versions("a")] == [4, 3, 2, 1]
    page = await store.catalog.versions("a", before=3, limit=1)
    assert [(one.version, one.content) for one in page] == [(2, "text 2")]
    assert await store.catalog.versions("none") == []


async def test_views_are_kept_replaced_and_removed(store: Store):
    view = SavedView(name="on-call", q='status:failed "x"', columns=("a", "ü"), owner="ann")
    await store.records.put_view(view)
    await store.records.put_view(SavedView(name="all", q=""))
    newer = SavedView(name="on-call", q="status:paused", owner="bob", updated_at=5.0)
    await store.records.put_view(newer)

    assert [one.name for one in await store.records.views()] == ["all", "on-call"]
    assert (await store.records.views())[1] == newer
    assert await store.records.delete_view("all")
    assert not await store.records.delete_view("all")
    assert await store.records.views() == [newer]


async def test_a_body_that_is_removed_while_it_is_asked_for_is_not_there(
    new_database_url: str, monkeypatch: pytest.MonkeyPatch
):
    store = await PostgresStore.open(new_database_url)
    await store.log.commit([start(ONE, summary=summary(ONE, status="FAILED", ended_at=NOON))])
    await store.bodies.put(ONE, "k", b"a result")
    get = store.bodies.get

    async def removed(*which: str) -> bytes | None:
        assert await store.retention.forget([ONE]) == [ONE]
        return await get(*which)

    monkeypatch.setattr(store.bodies, "get", removed)
    assert await store.bodies.get_pieces(ONE, "k") is None
    await store.close()
