"""The archive: objects by name, whole or not at all, in a folder or in a bucket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from noetl.errors import BadSetting, NotFound, StoreError
from noetl.store.archive import Archive, Bucket, Folder, archive_at


async def pieces(*some: bytes) -> AsyncIterator[bytes]:
    for one in some:
        yield one


async def broken() -> AsyncIterator[bytes]:
    yield b"half"
    raise ValueError("no more")


async def text(archive: Archive, name: str) -> bytes:
    return b"".join([piece async for piece in await archive.get(name)])


@pytest.fixture(params=["folder", "bucket"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Archive:
    if request.param == "folder":
        return Folder(tmp_path / "archive")
    store = pytest.importorskip("obstore.store")
    return Bucket(store.LocalStore(tmp_path / "archive", mkdir=True), "test")


async def test_what_is_put_is_read_back_and_listed_by_name(archive: Archive):
    await archive.put("shop/b/2026-11-17/2.noetl", pieces(b"a" * 100_000, b"b"))
    await archive.put("shop/a/2026-11-17/1.noetl", pieces(b"one"))
    await archive.put("shop/a/2026-11-17/1.noetl", pieces(b"one again"))

    assert await text(archive, "shop/a/2026-11-17/1.noetl") == b"one again"
    assert await text(archive, "shop/b/2026-11-17/2.noetl") == b"a" * 100_000 + b"b"
    listed = [(one.name, one.size) for one in await archive.names("", "", 10)]
    assert listed == [("shop/a/2026-11-17/1.noetl", 9), ("shop/b/2026-11-17/2.noetl", 100_001)]
    assert [one.name for one in await archive.names("shop/b", "", 10)] == [listed[1][0]]
    assert [one.name for one in await archive.names("", listed[0][0], 10)] == [listed[1][0]]
    assert [one.name for one in await archive.names("", "", 1)] == [listed[0][0]]
    assert await archive.names("bank", "", 10) == []


async def test_what_breaks_off_is_not_there(archive: Archive):
    with pytest.raises((ValueError, StoreError)):
        await archive.put("a/1.noetl", broken())

    assert await archive.names("", "", 10) == []
    with pytest.raises(NotFound):
        await archive.get("a/1.noetl")


@pytest.mark.parametrize(
    "name", ["../x.noetl", "/etc/x.noetl", "a/../../x.noetl", "a/x", "", "a/\0.noetl"]
)
async def test_a_name_that_is_none_of_ours_is_not_found(archive: Archive, name: str):
    with pytest.raises(NotFound):
        await archive.get(name)


def test_the_setting_names_a_folder_or_a_bucket(tmp_path: Path):
    assert isinstance(archive_at(str(tmp_path)), Folder)
    assert isinstance(archive_at(f"file://{tmp_path}"), Folder)
    pytest.importorskip("obstore")
    with pytest.raises(BadSetting, match=r"NOETL_ARCHIVE_URL .* Name a folder, or a bucket"):
        archive_at("gopher://bucket/x")
