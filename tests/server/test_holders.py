"""S4: a lease counts until it lapses, also where nobody has noticed yet that it has."""

from __future__ import annotations

import asyncio

import pytest

from noetl.api.holders import Holders
from noetl.api.rights import Principal
from noetl.errors import NotAllowed
from noetl.store.sqlite import SqliteStore
from tests.store.making import MINUTE, NOON, ONE, TWO, born_leased, start
from tests.store.test_sessions import Turned


def test_s04_a_lapsed_lease_gives_no_right_to_secrets_and_results():
    asyncio.run(asked_before_and_after_its_time())


async def asked_before_and_after_its_time() -> None:
    store, clock = await SqliteStore.open(":memory:", threads=False), Turned()
    clock.at = NOON
    pool = Principal(name="pool", kind="token", roles=("worker",))
    holders = Holders(store, clock)
    leased = born_leased("a", "pool/w", NOON + MINUTE)
    await store.log.commit([start(ONE, commands=[leased]), start(TWO)])

    async def is_allowed(worker: str, execution_id: str) -> bool:
        try:
            await holders.require_execution(pool, worker, execution_id)
        except NotAllowed:
            return False
        return True

    asked = [("w", ONE), ("v", ONE), ("w", TWO)]
    assert [await is_allowed(*one) for one in asked] == [True, False, False]
    clock.at += MINUTE
    assert [await is_allowed(*one) for one in asked] == [False, False, False]
    with pytest.raises(NotAllowed, match="holds no lease"):
        await holders.require_execution(pool, "w", ONE, family=False)
    await store.close()
