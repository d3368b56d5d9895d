"""Labels of executions: short texts under short names, to find and to count executions by."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

NAME_MAX = 63
VALUE_MAX = 255
LABELS_MAX = 32
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_./-]{0,61}[A-Za-z0-9_])?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def text_of(value: Any) -> str | None:
    """The value of a label; None for what is none, such as a list."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None


def problem(name: str, value: str) -> str | None:
    """What is wrong with a label; None for a good one."""
    if not _NAME.fullmatch(name):
        return (
            f'"{name[:80]}" cannot be the name of a label: it has up to {NAME_MAX} letters,'
            " digits, and _ . / - between them."
        )
    if len(value) > VALUE_MAX or _CONTROL.search(value):
        return (
            f'the value of label "{name}" is a text of up to {VALUE_MAX} characters without line'
            " breaks or other control characters."
        )
    return None


def problems(labels: Mapping[str, str]) -> list[str]:
    """Everything that is wrong with given labels."""
    found = [wrong for name, value in labels.items() if (wrong := problem(name, value))]
    if len(labels) > LABELS_MAX:
        found.append(f"an execution has up to {LABELS_MAX} labels, not {len(labels)}.")
    return found


_OF_WORKERS = re.compile(r"[A-Za-z0-9_.:/-]{1,63}")


def of_worker_problem(name: str, value: str) -> str | None:
    """What is wrong with a label of workers; None for a good one. They stand in names of queues."""
    if _OF_WORKERS.fullmatch(name) and _OF_WORKERS.fullmatch(value):
        return None
    return (
        f'"{name[:80]}={value[:80]}" is not a worker label: name and value have up to {NAME_MAX}'
        " letters, digits, and _ . : / - each."
    )


def of_worker(written: str) -> dict[str, str]:
    """Labels as `gpu=a100,zone=eu`. Raises ValueError with what is wrong."""
    found: dict[str, str] = {}
    for one in filter(None, (part.strip() for part in written.split(","))):
        name, _, value = one.partition("=")
        if wrong := of_worker_problem(name, value):
            raise ValueError(wrong)
        found[name] = value
    return found


def of_playbook(written: Mapping[str, Any]) -> dict[str, str]:
    """The labels that `metadata.labels` gives to executions: those that are single values."""
    texts = {name: text for name, value in written.items() if (text := text_of(value)) is not None}
    good = [item for item in sorted(texts.items()) if problem(*item) is None]
    return dict(good[:LABELS_MAX])


def combined(inherited: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The labels of a called execution: those of its caller, with its own over them."""
    found = {**inherited, **own}
    # Its own come first, should there be too many.
    kept = sorted(found, key=lambda name: (name not in own, name))[:LABELS_MAX]
    return {name: found[name] for name in sorted(kept)}
