"""Older ways to write a piece of a playbook, and how they become today's.

A form is a function that takes a mapping as it was written and puts it into today's words.
The compiler applies forms to the tree it has read; `noetl migrate` applies the same functions to
the text. So what runs and what is rewritten cannot differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol


class Written(Protocol):
    """A mapping as it was written. Whatever changes it also says so to the author."""

    what: str
    """Names it in messages: "a task"."""
    is_text: bool
    """The text itself is being rewritten, not only read."""

    # --- Looking ---

    def names(self) -> list[str]:
        """What is written, in order."""

    def has(self, key: str) -> bool:
        """Whether something stands under the key; an empty value counts as nothing."""

    def plain(self, key: str) -> Any:
        """What stands under the key, as plain data."""

    def text(self, key: str) -> str | None:
        """The text under the key, if it is one."""

    def below(self, key: str, what: str = "") -> Written | None:
        """The mapping under the key."""

    def each(self, key: str, what: str = "") -> list[Written]:
        """The mappings of the list under the key."""

    # --- Changing ---

    def rename(self, key: str, new: str) -> None:
        """`key` is called `new` today."""
        self.move(key, self, new, f"it is `{new}` today")

    def move(self, key: str, to: Written, new: str, today: str, code: str = "older-form") -> None:
        """What stands under `key` belongs there today, under `new`; `today` says so to people."""

    def room(self, *path: str) -> Written | None:
        """The mapping at the end of a path of keys, made where missing; None where there is
        something else.
        """

    def spread(self, prefixes: Mapping[str, str], to: str) -> None:
        """The entries of the mappings under these keys stand in one mapping `to` today, each with
        the prefix of its key.
        """

    def gather(self, key: str, prefix: str, today: str) -> None:
        """A list of `{name, value}` is a mapping today, its names with `prefix`."""

    def wrap(self, key: str, inner: str, today: str) -> None:
        """What stands under `key` stands one level deeper today, under `inner`."""

    def put(self, key: str, value: Any, today: str) -> None:
        """What stands under `key` is written as this value today."""

    def leave_out(self, key: str, today: str) -> None:
        """The key says nothing new."""
        self.note(key, today)
        self.discard(key)

    def discard(self, key: str) -> None:
        """Take out what is empty now that its content was moved. Nothing is said about it."""

    def ignore(self, key: str, why: str) -> None:
        """The key is accepted and has no effect."""

    def note(self, key: str, today: str) -> None:
        """Say that this is an older form, and leave it as it is."""

    def refuse(self, key: str, code: str, message: str) -> None:
        """What stands under the key cannot be read."""


Form = Callable[[Written], None]


def auth_by_name(written: Written) -> None:
    """`auth: {type, credential}` of a database names a credential."""
    auth = written.below("auth", "`auth`")
    if auth is not None and auth.text("credential") and set(auth.names()) <= {"type", "credential"}:
        written.put("auth", auth.text("credential"), "write the credential's name: `auth: name`")
