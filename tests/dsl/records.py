"""Every record the language is made of, for tests that nothing is left out."""

from __future__ import annotations

from noetl.dsl.grammar import DEFINITIONS, Field, Record, Shape
from noetl.dsl.playbook import WrittenPlaybook


def all_records() -> list[Record]:
    """Every record that a playbook's shape is made of, found by following its parts."""
    seen: dict[int, object] = {}
    stack: list[object] = [WrittenPlaybook.shape, *DEFINITIONS.values()]
    while stack:
        thing = stack.pop()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing
        match thing:
            case Field():
                stack.append(thing.shape)
            case Shape():
                stack += [*vars(thing).values(), *vars(type(thing)).values()]
            case dict():
                stack += thing.values()
            case list() | tuple():
                stack += thing
    return [thing for thing in seen.values() if isinstance(thing, Record)]
