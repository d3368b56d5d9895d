"""What tests of the HTTP edge share: a system with two real workers, and an authenticated one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.examples.system import temporary_folder
from tests.server.processes import Server, serving, working


class Guarded(NamedTuple):
    """A server with authentication on, and a token for each role."""

    server: Server
    tokens: dict[str, str]
    folder: Path


@pytest.fixture(scope="module")
def dev() -> Iterator[Server]:
    """An open server with a worker in it."""
    with temporary_folder() as folder, serving(folder, kind="dev") as server:
        yield server


@pytest.fixture(scope="module")
def two_workers() -> Iterator[Server]:
    """A server and two workers, each a process."""
    with temporary_folder() as folder, serving(folder) as server:
        slots = ("--slots", "8")
        with working(folder, server.url, *slots), working(folder, server.url, *slots):
            yield server


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    """A server that knows who asks."""
    with guarding() as found:
        yield found


@contextmanager
def guarding(**environment: str) -> Iterator[Guarded]:
    with temporary_folder() as folder, serving(folder, **environment) as server:
        tokens = {}
        for role in ("admin", "viewer", "operator", "author", "worker"):
            body = {"name": role, "roles": [role]}
            made = server.post("/api/access/tokens", body, token=tokens.get("admin", ""))
            tokens[role] = made["token"]
        yield Guarded(server, tokens, folder)
