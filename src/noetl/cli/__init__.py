"""The `noetl` command. Data goes to stdout, everything else to stderr.

Exit codes: 0 success, 1 the command failed, 2 the command line or a playbook is wrong.
"""

from __future__ import annotations

import gc
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Entry point of the `noetl` command."""
    # Imported modules stay in memory: collecting garbage every few hundred objects would cost a
    # lot.
    gc.set_threshold(10_000, 20, 20)
    from noetl.cli.commands import noetl
    from noetl.errors import NoetlError

    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal cannot encode must not end the command.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        noetl.main(prog_name="noetl")
    except NoetlError as error:
        from noetl.cli.exits import exit_code
        from noetl.cli.output import say

        say(str(error))
        sys.exit(exit_code(error))
    sys.exit(0)
