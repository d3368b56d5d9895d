"""The exit codes. Scripts rely on them, so they are defined in one place."""

from __future__ import annotations

from noetl.errors import BadRequest, BadSetting, NoetlError, PlaybookRejected

OK = 0
FAILED = 1
"""The command failed, or `--check` found something to do."""
WRONG = 2
"""The input is wrong: the command line, a setting, a file or a playbook."""

INTERRUPTED = 130
"""Ctrl-C, as shells report it."""


def exit_code(error: NoetlError) -> int:
    """The exit code for an error: whether the input or the command failed."""
    return WRONG if isinstance(error, BadRequest | BadSetting | PlaybookRejected) else FAILED
