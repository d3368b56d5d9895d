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
    """What a step waits for, as people want to know it."""

    events: tuple[str, ...] = ()
    """Names of external events that a rule of the step speaks of; `*` for any."""
    form: tuple[FormField, ...] = ()
    """What a person is asked, with every template in it filled in."""
    role: str = ""
    """Who may answer: people with this role, and admins. Empty: all who may send events."""


def may_answer(role: str, roles: tuple[str, ...]) -> bool:
    """Whether these roles may answer a form that is for that role."""
    return not role or role in roles or ADMIN in roles


class SignalReceived(Fact, frozen=True, kw_only=True):
    """An external event. Under an id that is known already it is the same one again."""

    signal_id: str
    name: str
    """What `event.name` is."""
    data: Any = None
    step: str = ""
    """The step it is addressed to, if it is to one only."""
    actor: Actor | None = None
    """Who sent it."""


class MessageReceived(SignalReceived, frozen=True, kw_only=True, tag="message.received"):
    """Anything but an approval, whatever its sender calls it."""


class ApprovalReceived(SignalReceived, frozen=True, kw_only=True, tag="approval.received"):
    """The answer to a form."""

    roles: tuple[str, ...] = ()
    """The roles of the person who answered, at that time."""


class SignalConsidered(Fact, frozen=True, kw_only=True, tag="signal.considered"):
    """A waiting step was offered a signal, or a timer of its own: each of them once."""

    signal_id: str
    step_run_id: StepRunId
    step: str
    taken: bool = False
    """One of its rules held."""
    reason: str = ""
    """Why it was not even asked."""
