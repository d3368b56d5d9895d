"""Libraries that not every worker needs: installed as extras, asked for when a task runs."""

from __future__ import annotations

from importlib.util import find_spec

from noetl.model.outcome import Outcome, failed


def lacking(extra: str, *modules: str) -> Outcome | None:
    """The outcome of a task whose library is not installed here; None if all are."""
    missing = [name for name in modules if find_spec(name) is None]
    if not missing:
        return None
    return failed(
        "client_error",
        f"This worker lacks {' and '.join(missing)}. Install it there with "
        f'`pip install "noetl[{extra}]"`.',
        code="missing_extra",
    )
