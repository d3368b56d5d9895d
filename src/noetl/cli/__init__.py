"""The `noetl` command. Data goes to stdout, everything else to stderr."""

from __future__ import annotations

import errno
import gc
import os
import sys
from typing import NoReturn

# The exit codes, which scripts rely on.
OK = 0
FAILED = 1
"""The command failed, or `--check` found something to do."""
WRONG = 2
"""The input is wrong: the command line, a setting, a file or a playbook."""
INTERRUPTED = 130
"""Ctrl-C, as shells report it."""


def main() -> NoReturn:
    """Entry point of the `noetl` command."""
    # Modules stay: searching for cycles in them while the command starts finds nothing. The search
    # when the interpreter ends is needed: libraries such as DuckDB report objects that it does not
    # free as leaked.
    gc.set_threshold(200_000, 20, 20)
    _open_closed_streams()
    try:
        from noetl.cli.commands import noetl
        from noetl.errors import BadRequest, BadSetting, NoetlError, PlaybookRejected
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)  # nothing has begun

    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal cannot encode must not end the command.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        noetl.main(prog_name="noetl")
    except NoetlError as error:
        from noetl.cli.output import say

        say(str(error))
        is_wrong = isinstance(error, BadRequest | BadSetting | PlaybookRejected)
        sys.exit(WRONG if is_wrong else FAILED)
    except OSError as error:
        if (refused := _refused(error)) is None:
            raise
        sys.stderr.write(f"noetl: {refused}\n")
        sys.exit(FAILED)
    sys.exit(OK)


def _open_closed_streams() -> None:
    """A stream that was closed before the command began leads nowhere. It is opened at once: the
    next file that is opened takes its place.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  until the command ends


def _refused(error: OSError) -> str | None:
    """What the machine refuses; None if it does not say of what."""
    try:
        os.getcwd()
    except OSError:
        return "the directory in which this was started is gone; change to another."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.filename or 'the output'} cannot be written: no space."
    return f"{error.filename}: {error.strerror}." if error.filename else None
