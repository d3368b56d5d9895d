"""What the exit codes mean. Scripts rely on them, so they stand in one place."""

from __future__ import annotations

from noetl.errors import BadRequest, BadSetting, NoetlError, PlaybookRejected

OK = 0
FAILED = 1
"""The command could not do its work, or `--check` found something to do."""
WRONG = 2
"""What we were given is wrong: the command line, a setting, a file or a playbook."""

INTERRUPTED = 130
"""Somebody pressed Ctrl-C, as shells say it."""


def exit_code(error: NoetlError) -> int:
    """Whose fault it was, as an exit code."""
    return WRONG if isinstance(error, BadRequest | BadSetting | PlaybookRejected) else FAILED
