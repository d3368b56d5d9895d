"""The `noetl` command. Data goes to stdout, everything else to stderr."""

from __future__ import annotations

import errno
import gc
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
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        sys.stderr.write(f"noetl: {error.filename or 'the output'} cannot be written: no space.\n")
        sys.exit(FAILED)
    sys.exit(OK)
