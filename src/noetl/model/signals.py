"""What a waiting step listens for, and who may answer it."""

from __future__ import annotations

import msgspec

from noetl.model.net import FormField

APPROVAL = "approval.received"
TIMER = "timer.fired"
TIMER_KEYS = ("timer_id", "id", "fires_at")
"""What the data of `timer.fired` has."""
ANY = "*"
ADMIN = "admin"


class Listening(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a step waits for, for people."""

    events: tuple[str, ...] = ()
    """Names of external events that a rule of the step handles; `*` for any."""
    form: tuple[FormField, ...] = ()
    """The form for a person, with its templates rendered."""
    role: str = ""
    """The role that may answer; admins always may. Empty: everyone who may send events."""


def may_answer(role: str, roles: tuple[str, ...]) -> bool:
    """Whether these roles may answer a form for that role."""
    return not role or role in roles or ADMIN in roles
