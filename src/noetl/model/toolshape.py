"""What the language knows of a tool kind: enough to check a task, nothing about running it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from noetl.model.older_forms import Form


class CodeProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A program text that cannot be run: why, and where in it, counted from 1."""

    message: str
    line: int = 1
    column: int = 1


class Each(msgspec.Struct, frozen=True):
    """A list of any length of which each element has this shape."""

    element: Yielded


Yielded = Mapping[str, "Yielded"] | Each | None
"""What is known of a value before anything has run: its keys and what lies below them, or that it
is a list; None: nothing is known.
"""


ViewName = Literal["plain", "answer", "rows"]
"""How templates read a result: by its own keys; as the answer of a web service, also by the keys of
its body; as rows, also by index and by statement.
"""


def yielded_by(value: object) -> Yielded:
    """What a literal says of itself: the keys of mappings."""
    if isinstance(value, dict):
        return {str(key): yielded_by(part) for key, part in value.items()}
    return None


class ToolShape(msgspec.Struct, frozen=True, kw_only=True):
    """The written form of one tool kind."""

    kind: str
    summary: str
    """One line for people: what it does."""
    config: type[msgspec.Struct]
    """What a task may write beside `kind`; unknown fields are refused.

    A field's type is the type *after* templates are rendered; its help is the `description` of
    its `Meta`.
    """
    aliases: Mapping[str, str] = {}
    """Other spelling → field of `config`."""
    claims: bool = False
    """Whether a statement of this kind may claim the rows of a cursor: what it returns is committed
    with what it changes, or not at all."""
    needs: tuple[tuple[str, ...], ...] = ()
    """Groups of fields of which at least one must be written, e.g. `(("code", "script"),)`."""
    only_one: tuple[tuple[str, ...], ...] = ()
    """Groups of fields of which at most one may have a value, e.g. `(("json", "body"),)`."""
    idle_without: Mapping[str, str] = {}
    """Field → the field without which it has no effect, e.g. `{"rows": "table"}`."""
    needs_when: Mapping[str, Mapping[str, tuple[tuple[str, ...], ...]]] = {}
    """Field → value of it → groups of fields beside it of which one must then have a value, e.g.
    `{"op": {"put": (("key",), ("value", "file"))}}`; `target.mode` is a field below `target`."""
    code_fields: tuple[str, ...] = ()
    """Fields that hold program text, where a template is legal but bound parameters are better."""
    code_check: Callable[[str], CodeProblem | None] | None = None
    """What is wrong with such a text as a program, as far as it can be told without running it."""
    code_inputs: str = "args"
    """What to recommend instead of a template in a code field."""
    view: ViewName = "plain"
    """How templates read its results."""
    yields: Callable[[Mapping[str, Any]], Yielded] | None = None
    """What a task with this config certainly yields; None for whatever is not certain."""
    reads_context: Callable[[Mapping[str, Any]], bool] | None = None
    """Whether a task with this config may read `context`, which shows everything; None: never."""
    tells: Callable[[Mapping[str, Any]], tuple[Any, ...]] | None = None
    """What people recognise a call by, in the order it is read, e.g. method and URL; None: by the
    first of the usual fields (`path`, `code`, `url`, …) that is written.
    """
    credential: Callable[[Mapping[str, Any]], Any] | None = None
    """What a config names as a credential elsewhere than under `auth`."""
    older: Form | None = None
    """Puts older ways to write this kind into today's words."""
    deprecated: Mapping[str, str] = {}
    """Keys that `older` reads, and what to write instead; shown in the JSON Schema."""

    older_shapes: Mapping[str, dict[str, Any]] = {}
    """JSON Schema of older ways to write the value of a key that is still there."""

    def default(self, field: str) -> Any:
        """The value of a field that is not written."""
        [found] = [one for one in msgspec.structs.fields(self.config) if one.name == field]
        return found.default

    def takes(self, key: str) -> bool:
        """Whether a task of this kind may write this key; a kind's own field wins over one that
        all tasks have.
        """
        return key in self.config.__struct_fields__ or key in self.aliases
