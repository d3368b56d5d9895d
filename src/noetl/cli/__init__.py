"""The `noetl` command. Data goes to stdout, everything else to stderr.

Exit codes: 0 success, 1 the command failed, 2 the command line or a playbook is wrong.
"""

from __future__ import annotations

import gc
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Entry point of the `noetl` command."""
    # Modules stay: searching for cycles in them while the command starts finds nothing. The search
    # when the interpreter ends has to be: libraries report what it leaves as leaked.
    gc.set_threshold(50_000, 20, 20)
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
