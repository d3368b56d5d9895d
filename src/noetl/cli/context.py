"""What every command that compiles needs to know from its surroundings."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from noetl.cli.printing import say

if TYPE_CHECKING:
    from noetl.settings import Settings


def current_settings() -> Settings:
    """The settings in force; says which variables look like settings and are none."""
    from noetl.settings import Settings, unknown_variables

    for remark in unknown_variables(os.environ):
        say(f"warning: {remark}")
    return Settings.from_environment(os.environ)
