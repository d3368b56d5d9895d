"""Roles and rights: every route names one right, and a role is a set of rights.

A worker's rights are narrower than they look: what it may report, renew or read depends on the
leases it holds, which `holders.py` checks.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import msgspec

from noetl.errors import NotAllowed
from noetl.model.commands import pool_of
from noetl.model.facts import Actor

Right = Literal[
    "anyone",  # everyone, signed in or not: health, signing in
    "self",  # one's own sessions
    "read",  # executions, events, the catalog
    "operate",  # start executions and act on them
    "author",  # register documents in the catalog
    "secrets.list",  # names and types of credentials
    "secrets.one",  # one credential; more is needed for its data
    "secrets.read",  # the data of every credential
    "secrets.write",  # create, replace and delete credentials
    "work",  # lease commands and report on them
    "results.read",  # bodies stored by reference
    "events.send",  # external events
    "manage",  # users, API tokens, the audit log
]

_VIEWER: frozenset[Right] = frozenset({"anyone", "self", "read", "results.read"})
_OPERATOR: frozenset[Right] = _VIEWER | {
    "operate",
    "events.send",
    "secrets.list",
    "secrets.one",
}
_AUTHOR: frozenset[Right] = _OPERATOR | {"author"}
_WORKER: frozenset[Right] = frozenset(
    {"anyone", "self", "work", "secrets.one", "results.read", "events.send"}
)
_ADMIN: frozenset[Right] = _AUTHOR | _WORKER | {"secrets.read", "secrets.write", "manage"}
ROLES: dict[str, frozenset[Right]] = {
    "viewer": _VIEWER,
    "operator": _OPERATOR,
    "author": _AUTHOR,
    "worker": _WORKER,
    "admin": _ADMIN,
}
RIGHTS = _ADMIN


@lru_cache(256)
def _rights_of(roles: tuple[str, ...]) -> frozenset[Right]:
    return frozenset().union(*(ROLES.get(role, frozenset()) for role in roles))


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """An authenticated caller."""

    name: str
    kind: Literal["user", "token", "open", "local", "visitor", "nobody"]
    roles: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    """The pools it may work for; every pool if empty."""
    session_id: str | None = None
    email: str = ""
    display_name: str = ""

    @property
    def actor(self) -> Actor:
        """The name of the caller in records and in the audit log."""
        if self.kind == "visitor" or self.kind == "nobody":
            return Actor(kind="open", name=self.name)
        return Actor(kind=self.kind, name=self.name)

    @property
    def rights(self) -> frozenset[Right]:
        return RIGHTS if self.is_of_this_machine else _rights_of(self.roles)

    @property
    def answers_as(self) -> tuple[str, ...]:
        """The roles under which they may answer forms."""
        return ("admin",) if self.is_of_this_machine else self.roles

    def may(self, right: Right) -> bool:
        return right == "anyone" or right in self.rights

    def require(self, right: Right) -> None:
        if not self.may(right):
            needed = ", ".join(role for role, rights in ROLES.items() if right in rights)
            raise NotAllowed(
                f"{self.name or 'this caller'} ({', '.join(self.roles) or 'no role'}) may not do"
                f" this: it needs the right `{right}`, which these roles have: {needed}."
            )

    def require_pool(self, pool: str) -> None:
        pool = pool_of(pool)
        if self.pools and pool not in self.pools:
            raise NotAllowed(
                f"the token {self.name} works for the pool {', '.join(self.pools)}, not for"
                f' "{pool}". `noetl access token create NAME --role worker --pool {pool}` makes'
                " one that does."
            )

    @property
    def is_bound_to_leases(self) -> bool:
        """A worker may read secrets and results only of executions whose commands it holds."""
        return "read" not in self.rights

    @property
    def is_of_this_machine(self) -> bool:
        """An account that can write the database file, or a caller of a server without users, may
        do everything.
        """
        return self.kind in ("open", "local")

    def worker_name(self, chosen: str) -> str:
        """The worker's name in leases. It contains the token's name, so a worker cannot pose as one
        of another token.
        """
        return chosen if self.is_of_this_machine else f"{self.name}/{chosen}"

    def reader(self, worker: str) -> str:
        """Who reads a secret: the worker that the request names, or the caller himself."""
        return f"worker {self.worker_name(worker)}" if worker else str(self.actor)


OPEN = Principal(name="", kind="open")
"""Every caller of a server without users, which only this machine can reach."""
NOBODY = Principal(name="", kind="nobody")
VISITOR = Principal(name="visitor", kind="visitor", roles=("viewer",))
"""Every viewer of a recording."""


def local(account: str) -> Principal:
    """A process on this machine that can write the database file, named by its account."""
    return Principal(name=account, kind="local")


def myself() -> Principal:
    """This process, named by its account; a container may run under a user id without a name."""
    import getpass

    try:
        return local(getpass.getuser())
    except (OSError, KeyError):
        return local("")
