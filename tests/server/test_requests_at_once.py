"""Requests that come at once with the same secret: the database is asked once who that is."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import cast

import msgspec

from noetl import wiring
from noetl.api.access import Access
from noetl.api.rights import NOBODY, OPEN
from noetl.settings import Settings
from noetl.store.access import Access as AccessStore
from tests.server.test_streams import Counted


async def at_once(access: Access, secret: str | None) -> set[str]:
    """Who fifty requests are of."""
    return {one.name for one in await asyncio.gather(*(access.who(secret) for _ in range(50)))}


async def asked(folder: Path) -> Counter[str]:
    """What the store is asked until a token that many used was revoked."""
    settings = Settings.from_environment({})
    here = msgspec.structs.replace(settings, database_url=f"sqlite:///{folder}/x.db")
    async with wiring.embedded(here, work=False, serves=True) as system:
        store = Counted(system.store.access)
        access = Access(cast(AccessStore, store), system.sessions, system.clock)
        assert await at_once(access, None) == {OPEN.name}
        assert store.reads == {"users": 1, "tokens": 1}

        secret = await access.create_token(OPEN, "boss", ("admin",))
        store.reads.clear()
        assert await at_once(access, None) == {NOBODY.name}
        assert await at_once(access, secret) == {"boss"}
        await access.delete_token(OPEN, "boss")
        assert await at_once(access, "wrong") == {NOBODY.name}
        assert await access.who(secret) is NOBODY
        return store.reads


def test_the_database_is_asked_once_who_sends_requests_with_one_secret(tmp_path: Path):
    reads = asyncio.run(asked(tmp_path))

    assert reads["users"] == 1
    # Once while it was valid, once when it was not; each of fifty wrong ones is refused by itself.
    assert reads["token"] == 1 + 50 + 1
