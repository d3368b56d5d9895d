"""Who sits at this command line, for the record of what they do."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from noetl.model.facts import Actor


def user_name() -> str:
    """The account on this machine; empty if it has no name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""  # a container may run under a number that nobody gave a name to


def local_actor() -> Actor:
    """Whoever runs this command, on a database that no server has."""
    from noetl.model.facts import Actor

    return Actor(kind="local", name=user_name())
