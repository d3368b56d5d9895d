"""Lists of executions: which statement answers which wish, and what a row of it means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from noetl.model.ids import ExecutionId
from noetl.store.base import Summary

_decode_steps = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_labels = msgspec.json.Decoder(dict[str, str]).decode


def statement(
    status: str | None,
    path: str | None,
    parent: ExecutionId | None,
    since: float | None,
    before: tuple[float, ExecutionId] | None,
    limit: int,
    labels: Mapping[str, str] | None = None,
) -> tuple[str, dict[str, Any]]:
    """Each way to ask has a statement that walks the index made for it: its name and values."""
    # The walk is along the first label; the others are looked up for each row.
    wanted = list((labels or {}).items())
    label, value = wanted[0] if wanted else (None, None)
    others = dict(wanted[1:])
    if label is not None:
        name = "summaries_of_label"
    elif parent is not None:
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
        "label": label,
        "value": value,
        "labels": encode_labels(others),
    }


def counts(label: str, since: float | None, limit: int) -> dict[str, Any]:
    """The values of `label_counts`."""
    return {"label": label, "since": -math.inf if since is None else since, "limit": limit}


def encode_labels(labels: Mapping[str, str]) -> str | None:
    """Labels as their column holds them: null where there are none."""
    return msgspec.json.encode(labels, order="sorted").decode() if labels else None


def summary_of(row: Mapping[str, Any]) -> Summary:
    try:
        steps = _decode_steps(row["current_steps"])
    except msgspec.DecodeError:
        # Damaged. A list shows it as it is, for the sake of the other rows.
        steps = (row["current_steps"],)
    labels = _labels(row["labels"]) if row["labels"] is not None else {}
    return Summary(**{**row, "current_steps": steps, "labels": labels})


def _labels(written: str) -> dict[str, str]:
    try:
        return _decode_labels(written)
    except msgspec.DecodeError:
        return {"": written}  # Damaged, and shown as it is.
