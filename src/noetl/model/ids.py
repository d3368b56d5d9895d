"""Names of things that happen. Derived from their causes, so that deciding again names the same.

Execution ids are the exception: they are drawn once, when an execution is started.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

ExecutionId = str
"""A 63-bit number in decimal."""
StepRunId = str
TokenId = str
CommandId = str
EventId = str

EPOCH_MS = 1_704_067_200_000
"""2024-01-01; 41 bits of milliseconds from here last until 2093."""


_blank = blake2b(digest_size=9)
"""Copied for each id, which costs a third less than a new hash."""


def derive(*causes: object) -> str:
    """A short id: the same for the same causes, and practically never that of others."""
    digest = _blank.copy()
    digest.update("\x1f".join(map(str, causes)).encode())
    return digest.hexdigest()


@lru_cache(maxsize=1024)
def token_of(command_id: CommandId) -> str:
    """The lease token of this command, which is leased to one worker, once."""
    return f"{command_id}.{derive(command_id, 'lease')}"


@lru_cache(maxsize=1024)
def trace_of(execution_id: ExecutionId) -> str:
    """The W3C trace id of an execution: 32 hexadecimal digits, in logs and traces alike."""
    return blake2b(f"trace\x1f{execution_id}".encode(), digest_size=16).hexdigest()


@lru_cache(maxsize=1024)
def root_span_of(execution_id: ExecutionId) -> str:
    """The id of the span of a whole execution, which every worker knows before it ends."""
    return blake2b(f"execution\x1f{execution_id}".encode(), digest_size=8).hexdigest()


def command_of(token: str) -> CommandId:
    """The command of a lease token, whether it exists or not."""
    return token.rpartition(".")[0]


def event_id(execution_id: ExecutionId, seq: int, at: float) -> EventId:
    """A 63-bit id in decimal: ordered by time, unique in its execution, derived from its place."""
    milliseconds = max(0, int(at * 1000) - EPOCH_MS) & ((1 << 41) - 1)
    return str(milliseconds << 22 | (seq + int(execution_id)) & 0x3FFFFF)
