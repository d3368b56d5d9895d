"""What every store promises about users, tokens, sessions, the audit log and handed-out secrets."""

from __future__ import annotations

import msgspec

from noetl.store.access import AuditEntry, StoredSession, StoredToken, StoredUser
from noetl.store.credentials import CachedSecret
from noetl.store.database import columns_of

NOON = 1_800_000_000.0
HOUR = 3600.0
ADA = StoredUser(name="ada", password_hash="$argon2id$1", roles=("admin",), created_at=NOON)


def token(name: str, digit: str = "a") -> StoredToken:
    return StoredToken(name=name, digest=digit * 64, roles=("worker",), created_at=NOON)


def session(session_id: str, digit: str, user: str = "ada", at: float = NOON) -> StoredSession:
    return StoredSession(
        session_id=session_id,
        digest=digit * 64,
        user=user,
        created_at=at,
        expires_at=at + HOUR,
        last_activity_at=at,
        client_ip="127.0.0.1",
    )


def secret(**changes: object) -> CachedSecret:
    whole = CachedSecret(
        cache_key="shop:7",
        credential_name="shop",
        credential_type="bearer",
        cache_type="secret",
        scope_type="execution",
        execution_id="7",
        data_encrypted=b"sealed",
        expires_at=NOON + HOUR,
        created_at=NOON,
        accessed_at=NOON,
    )
    return msgspec.structs.replace(whole, **changes)


async def test_a_user_is_what_was_put_last_and_as_old_as_what_was_put_first(store):
    await store.access.put_user(ADA)
    changed = msgspec.structs.replace(ADA, roles=("viewer", "author"), created_at=NOON + 1)
    await store.access.put_user(changed)

    assert await store.access.user("ada") == msgspec.structs.replace(changed, created_at=NOON)
    assert [user.name for user in await store.access.users()] == ["ada"]
    assert await store.access.user("eve") is None


async def test_a_user_who_goes_takes_the_sessions_along(store):
    await store.access.put_user(ADA)
    await store.sessions.put(session("1", "1"))
    await store.sessions.put(session("2", "2", user="bob"))

    assert await store.access.delete_user("ada")
    assert not await store.access.delete_user("ada")
    assert await store.sessions.of_user("ada") == []
    assert len(await store.sessions.of_user("bob")) == 1


async def test_a_token_is_found_by_its_digest_and_its_name_is_taken_once(store):
    assert await store.access.put_token(token("ci", "a"))
    assert not await store.access.put_token(token("ci", "b"))

    assert await store.access.token("a" * 64) == token("ci", "a")
    assert await store.access.token("b" * 64) is None
    assert await store.access.delete_token("ci")
    assert not await store.access.delete_token("ci")
    assert await store.access.tokens() == []


async def test_sessions_are_forgotten_when_their_time_is_over(store):
    await store.sessions.put(session("1", "1"))
    await store.sessions.put(session("2", "2", at=NOON + 60))

    await store.access.delete_expired(NOON + HOUR)

    assert [found.session_id for found in await store.sessions.of_user("ada")] == ["2"]


async def test_a_database_knows_its_name_for_ever(store):
    name = await store.installation()

    assert len(name) == 32
    assert await store.installation() == name


async def test_the_audit_log_shows_the_newest_first(store):
    entries = [
        AuditEntry(at=NOON + n, who="ada", action="credential.read", target="shop", details=str(n))
        for n in range(3)
    ]
    for entry in entries:
        await store.access.put_audit(entry)

    newest = await store.access.audit(limit=2)
    older = await store.access.audit(limit=2, before=newest[-1].position)
    assert [one.details for one in (*newest, *older)] == ["2", "1", "0"]
    assert columns_of(older[0]).items() > columns_of(entries[0]).items()


async def test_a_cached_secret_counts_its_readers_until_it_expires(store):
    await store.credentials.put_cached(secret())
    again = secret(data_encrypted=b"anew", expires_at=NOON + 2 * HOUR, accessed_at=NOON + 9)
    await store.credentials.put_cached(again)

    found = await store.credentials.cached("shop:7", now=NOON + HOUR)
    assert found == msgspec.structs.replace(again, access_count=2)
    assert await store.credentials.cached("shop:7", now=NOON + 2 * HOUR) is None
    await store.access.delete_expired(NOON + 2 * HOUR)
    assert await store.credentials.cached("shop:7", now=NOON) is None
