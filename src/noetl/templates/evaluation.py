"""One evaluation: its budget, whether it has read a secret, and how it reads values.

Every operator and filter charges the `Evaluation` before it does work, never after, so that work
that would be too large is refused before it starts. Containers are charged by a walk that counts
shared parts as often as they occur, because comparing or writing them visits them as often.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

from noetl.errors import BudgetExceeded, EvaluationFailed, UndefinedValue
from noetl.model.spelling import did_you_mean, nearest
from noetl.templates.errors import shortened
from noetl.templates.scope import Scope
from noetl.templates.taint import Tainted, uncovered
from noetl.templates.views import MISSING, AliasedName, View, lookup

CHARACTERS_PER_TICK = 100
"""Reading text costs much less than anything else that costs a tick."""
KEYS_SHOWN = 8

CONTAINERS = (dict, list, tuple)
WEIGHTY = (str, dict, list, tuple)
SCALARS = (str, int, float, Decimal, datetime, date, time, timedelta, UUID, bytes)

KINDS: tuple[tuple[type, str], ...] = (
    (bool, "a boolean"),
    (int, "a number"),
    (float, "a number"),
    (Decimal, "a number"),
    (str, "text"),
    (dict, "a mapping"),
    (list, "a list"),
    (tuple, "a list"),
    (datetime, "a time"),
    (date, "a date"),
)


class Undefined:
    """A missing value. A lookup in it gives the same Undefined again."""

    __slots__ = ("key", "parent", "path", "where")

    def __init__(self, path: str, parent: object = None, key: object = None, where: str = ""):
        self.path = path
        self.parent = parent
        self.key = key
        self.where = where

    def __bool__(self) -> bool:
        return False

    def cause(self, secret: bool) -> str:
        """Why it is undefined; with `secret`, without the key, which may be one."""
        key = f'"{shortened(str(self.key), 60)}"' if type(self.key) in (str, int) else "such key"
        key = "such key" if secret else key
        hint = "" if secret else self._hint()
        path, where = shortened(self.path, 80), shortened(self.where, 80)
        if isinstance(self.parent, Scope):
            return f'"{path}" is not defined.{hint}'
        if where and isinstance(self.parent, dict | list | tuple | View):
            return f'"{path}" is undefined: "{where}" has no {key}.{hint}'
        if where:
            kind = kind_of(self.parent)
            return f'"{path}" is undefined: "{where}" is {kind} and has no {key}.{hint}'
        return f"{path} has no {key}." if self.key is not None else f"{path}."

    def _hint(self) -> str:
        if isinstance(self.parent, Scope):
            return did_you_mean(self.path, self.parent.names())
        keys = self._keys_beside()
        if not keys:
            return ""
        shown = ", ".join(shortened(key, 40) for key in keys[:KEYS_SHOWN])
        more = ", …" if len(keys) > KEYS_SHOWN else ""
        return f" It has {shown}{more}." + did_you_mean(str(self.key), keys)

    def _keys_beside(self) -> list[str]:
        """The keys that the container has."""
        parent = self.parent.keys if isinstance(self.parent, View) else self.parent
        if not isinstance(parent, dict):
            return []
        return [key for _, key in zip(range(1000), parent, strict=False) if type(key) is str]

    def nearest(self) -> str:
        """The existing name that was probably meant; empty if none is similar."""
        if isinstance(self.parent, Scope):
            return nearest(self.path, self.parent.names())
        return nearest(str(self.key), self._keys_beside()) if self.key is not None else ""


class Lacks(Exception):
    """A filter met an item that lacks the attribute it needs."""

    def __init__(self, undefined: Undefined) -> None:
        self.undefined = undefined


class Evaluation:
    """The state of one evaluation: budget, local names, and whether it met a secret."""

    __slots__ = (
        "may_taint",
        "missed",
        "place",
        "scope",
        "strict",
        "tainted",
        "text_left",
        "ticks_left",
        "uuids",
    )

    def __init__(self, scope: Scope, *, strict: bool, may_taint: bool, place: str) -> None:
        self.scope = scope
        self.strict = strict
        self.may_taint = may_taint
        self.place = place
        self.tainted = False
        self.missed: list[Undefined] | None = None
        """If a list: every lookup that found nothing is added to it."""
        self.ticks_left = scope.limits.ticks
        self.text_left = scope.limits.text
        self.uuids = 0

    def charge(self, ticks: int) -> None:
        self.ticks_left -= ticks
        if self.ticks_left < 0:
            raise BudgetExceeded(
                f"stopped after {self.scope.limits.ticks:,} steps. Loop over less, or do this in a "
                "python task."
            )

    def charge_text(self, characters: int) -> None:
        """Pay for text before it is made, and for the time that takes."""
        self.text_left -= characters
        if self.text_left < 0:
            raise BudgetExceeded(
                f"would make more than {self.scope.limits.text:,} characters of text. Do this in a "
                "python task, or pass the data by reference."
            )
        self.charge(1 + characters // CHARACTERS_PER_TICK)

    def charge_reading(self, text: str) -> None:
        """Pay for reading a text."""
        self.charge(1 + len(text) // CHARACTERS_PER_TICK)

    def undefined(
        self, path: str, parent: object, key: object = None, where: str = ""
    ) -> Undefined:
        """The Undefined for a lookup that found nothing."""
        undefined = Undefined(path, parent, key, where)
        if self.missed is not None:
            self.missed.append(undefined)
        return undefined

    def missing(self, value: Undefined) -> Undefined:
        """A missing value is needed: an error if `strict`; a condition goes on without it."""
        if not self.strict:
            return value
        raise UndefinedValue(
            f"{value.cause(self.may_taint)} Write `| default(…)` if it may be missing."
        )

    def take(self, value: Tainted) -> object:
        """Read a secret; the result of the evaluation becomes tainted."""
        self.tainted = True
        return uncovered(value)

    def settle(self, value: object) -> object:
        """The plain value for a consumer: no view, nothing tainted inside."""
        if isinstance(value, Tainted):
            value = self.take(value)
        if isinstance(value, View):
            value = self.settle(value.plain)
        if self.may_taint and isinstance(value, CONTAINERS):
            return self._uncover(value)
        return value

    def _uncover(self, value: object) -> object:
        """The container with its tainted values revealed; the evaluation becomes tainted."""
        if isinstance(value, Tainted):
            return self._uncover(self.take(value))
        if isinstance(value, View):
            return self._uncover(value.plain)
        if isinstance(value, dict):
            self.charge(1 + len(value))
            return {key: self._uncover(part) for key, part in value.items()}
        if isinstance(value, list | tuple):
            self.charge(1 + len(value))
            parts = [self._uncover(part) for part in value]
            return parts if type(value) is list else type(value)(parts)
        return value

    def walk(self, value: object) -> None:
        """Pay for a visit to every part of a container; shared parts count at each occurrence."""
        if not isinstance(value, CONTAINERS):
            return
        pending: list[object] = [value]
        while pending:
            part = pending.pop()
            if isinstance(part, str):
                self.charge(len(part) // CHARACTERS_PER_TICK)
                continue
            assert isinstance(part, CONTAINERS)
            self.charge(1 + len(part))
            pending.extend(item for item in part if isinstance(item, WEIGHTY))
            if isinstance(part, dict):
                pending.extend(item for item in part.values() if isinstance(item, WEIGHTY))

    def walk_text(self, value: object, indent: int = 0) -> None:
        """Pay for writing a container out as text."""
        pending: list[tuple[object, int]] = [(value, 1)]
        while pending:
            part, depth = pending.pop()
            if isinstance(part, dict):
                self.charge(len(part))
                self.charge_text(2 + (6 + depth * indent) * len(part))
                pending.extend((item, depth + 1) for item in part.values())
                pending.extend((key, 0) for key in part)
            elif isinstance(part, list | tuple):
                self.charge(len(part))
                self.charge_text(2 + (2 + depth * indent) * len(part))
                pending.extend((item, depth + 1) for item in part)
            elif isinstance(part, str):
                self.charge_text(len(part) + 2)
            elif isinstance(part, int):
                self.charge_text(1 + part.bit_length() // 3)
            elif part is not None and not isinstance(part, SCALARS):
                raise not_plain(part)

    def text(self, value: object) -> str:
        """The text of a plain value, as in `{{ value }}` amid other text. Pays for it."""
        if isinstance(value, str):
            return str.__str__(value) if type(value) is AliasedName else value
        if value is None or isinstance(value, int | float):
            self.charge_text(8)
            return str(value)
        self.walk_text(value)
        return str(value)

    def made(self, text: str) -> str:
        """Pay for a text that is no longer than those it was made from."""
        self.charge_text(len(text))
        return text


def kind_of(value: object) -> str:
    """The kind of a value in words. Safe in messages: it does not reveal the value."""
    if value is None:
        return "none"
    for kind, word in KINDS:
        if isinstance(value, kind):
            return word
    return "a value of another kind"


def not_plain(value: object) -> EvaluationFailed:
    return EvaluationFailed(f"{kind_of(value)} is not plain data and has no text")


def items_of(run: Evaluation, value: object, what: str) -> list[object]:
    """The items of a list, keys of a mapping or characters of a text, at one tick each."""
    if isinstance(value, list):
        run.charge(1 + len(value))
        return value
    if isinstance(value, tuple | dict | str):
        run.charge(1 + len(value))
        return list(value)
    raise EvaluationFailed(f"{what} needs a list, not {kind_of(value)}")


def attribute_parts(attribute: object, what: str) -> list[str | int]:
    """The path in `attribute="a.0.b"`: dots separate its parts, digits are indexes."""
    if isinstance(attribute, int):
        return [int(attribute)]
    if isinstance(attribute, str):
        return [int(part) if is_index(part) else part for part in attribute.split(".")]
    raise EvaluationFailed(f"{what} needs the name of an attribute, not {kind_of(attribute)}")


def is_index(part: str) -> bool:
    return part.isascii() and part.isdigit() and len(part) < 10


def attribute_of(item: object, parts: list[str | int]) -> object:
    """The value at the end of the path, or MISSING."""
    for part in parts:
        item = lookup(item, part)
    return item


def required_attribute(item: object, parts: list[str | int]) -> object:
    """The value at the end of the path. Raises Lacks if there is none."""
    found = attribute_of(item, parts)
    if found is MISSING:
        raise Lacks(Undefined("an item", key=".".join(map(str, parts))))
    return found


def whole(value: object, what: str, low: int, high: int) -> int:
    """An argument that must be a whole number within bounds."""
    if not isinstance(value, int):
        raise EvaluationFailed(f"{what} must be a whole number, not {kind_of(value)}")
    if not low <= value <= high:
        raise EvaluationFailed(f"{what} must be from {low:,} to {high:,}")
    return value
