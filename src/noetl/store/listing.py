"""Lists of executions: which statement answers which wish, and what a row of it means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from noetl.model.ids import ExecutionId
from noetl.store.base import Summary

_decode_steps = msgspec.json.Decoder(tuple[str, ...]).decode


def statement(
    status: str | None,
    path: str | None,
    parent: ExecutionId | None,
    since: float | None,
    before: tuple[float, ExecutionId] | None,
    limit: int,
) -> tuple[str, dict[str, Any]]:
    """Each way to ask has a statement that walks the index made for it: its name and values."""
    if parent is not None:
        name = "summaries_of_parent"
    elif path is not None and status is not None:
        name = "summaries_of_path_and_status"
    elif path is not None:
        name = "summaries_of_path"
    elif status is not None:
        name = "summaries_of_status"
    else:
        name = "summaries"
    before_at, before_id = before or (math.inf, "")
    return name, {
        "status": status,
        "path": path,
        "parent": parent,
        "since": -math.inf if since is None else since,
        "before_at": before_at,
        "before_id": before_id,
        "limit": limit,
    }


def summary_of(row: Mapping[str, Any]) -> Summary:
    try:
        steps = _decode_steps(row["current_steps"])
    except msgspec.DecodeError:
        # Damaged. A list shows it as it is, for the sake of the other rows.
        steps = (row["current_steps"],)
    return Summary(**{**row, "current_steps": steps})
