"""S18: whoever can write to NATS is nobody to the server."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import nats
from nats.js import JetStreamContext

from tests.server.processes import Server, serving
from tests.servers import nats_running
from tests.stopwatch import PATIENCE

SECRET = "noetl_s_" + "forged" * 8
LASTING = 1_000_000_000_000.0


def with_nats(url: str, act: Callable[[JetStreamContext], Awaitable[Any]]) -> Any:
    """Do something with the NATS of the server, as anybody on its network can."""

    async def doing() -> Any:
        client = await nats.connect(url)
        try:
            return await act(client.jetstream())
        finally:
            await client.close()

    return asyncio.run(doing())


async def only_copy(js: JetStreamContext) -> tuple[str, str, bytes]:
    """The bucket, the key and the value of the one copy that there is."""
    [stream] = [one for one in await js.streams_info() if "sessions" in str(one.config.name)]
    bucket = str(stream.config.name).removeprefix("KV_")
    copy = await js.get_last_msg(f"KV_{bucket}", f"$KV.{bucket}.*.*.*")
    assert copy.subject is not None
    return bucket, copy.subject, copy.data or b""


def status_of(server: Server, session: str) -> int:
    return server.ask("GET", "/api/auth/me", token=session).status


def test_s18_a_copy_in_nats_lets_nobody_in(tmp_path: Path):
    with (
        nats_running(tmp_path / "nats") as server_of_nats,
        serving(tmp_path, NOETL_NATS_URL=server_of_nats.url) as server,
    ):
        admin = server.post("/api/access/tokens", {"name": "a", "roles": ["admin"]})["token"]
        for name, role in (("root", "admin"), ("ada", "viewer")):
            person = {"name": name, "roles": [role], "password": "lovelace1815"}
            server.post("/api/access/users", person, token=admin)
        login = {"user": "ada", "password": "lovelace1815"}
        deadline = time.monotonic() + PATIENCE
        while server.get("/health")["nats"] != "connected":
            assert time.monotonic() < deadline
        session = server.post("/api/auth/login", login, token="")["token"]
        assert status_of(server, session) == 200

        async def forge(js: JetStreamContext) -> None:
            _, subject, value = await only_copy(js)
            digest = hashlib.sha256(SECRET.encode()).hexdigest()
            copy = {**json.loads(value), "digest": digest, "user": "root", "session_id": "1"}
            copy |= {"expires_at": LASTING, "last_activity_at": LASTING}
            forged = json.dumps(copy).encode()
            unsigned = {name: field for name, field in copy.items() if name != "seal"}
            place = subject.rsplit(".", 2)[0]
            await js.publish(f"{place}.1.{digest}", json.dumps(unsigned).encode())
            await js.publish(f"{place}.1.{digest}", forged)
            # A viewer's own copy, altered to be somebody else's.
            await js.publish(subject, value.replace(b'"ada"', b'"root"'))

        _, subject, value = with_nats(server_of_nats.url, only_copy)
        with_nats(server_of_nats.url, forge)
        assert status_of(server, SECRET) == 401
        time.sleep(2.1)  # what a server knows of somebody it remembers for two seconds
        assert server.get("/api/auth/me", token=session)["name"] == "ada"

        assert server.ask("POST", "/api/auth/logout", token=session).status == 200
        with_nats(server_of_nats.url, lambda js: js.publish(subject, value))
        assert status_of(server, session) == 401
