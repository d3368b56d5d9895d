"""External events of an execution, and what a waiting step listens for."""

from __future__ import annotations

from typing import Any

import msgspec

from noetl.model.facts import Actor, Fact
from noetl.model.ids import StepRunId
from noetl.model.net import FormField

APPROVAL = "approval.received"
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


class SignalReceived(Fact, frozen=True, kw_only=True):
    """An external event. A known id is a repetition of the same event."""

    signal_id: str
    name: str
    """What `event.name` is."""
    data: Any = None
    step: str = ""
    """The step it is addressed to, if only one."""
    actor: Actor | None = None
    """Who sent it."""


class MessageReceived(SignalReceived, frozen=True, kw_only=True, tag="message.received"):
    """Any external event but an approval, of any name."""


class ApprovalReceived(SignalReceived, frozen=True, kw_only=True, tag="approval.received"):
    """The answer to a form."""

    roles: tuple[str, ...] = ()
    """The roles of the person who answered, at that time."""


class SignalConsidered(Fact, frozen=True, kw_only=True, tag="signal.considered"):
    """A waiting step was offered a signal, or its own timer: each once."""

    signal_id: str
    step_run_id: StepRunId
    step: str
    taken: bool = False
    """One of its rules held."""
    reason: str = ""
    """Why it was not offered."""
