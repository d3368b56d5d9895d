"""Regular expressions that people write, compiled by RE2: the time of a search grows with the text
alone, whatever the pattern. It knows no look-around and no back-references.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

MEMORY_MAX = 8 * 1024 * 1024


class BadPattern(ValueError):
    """RE2 does not know this pattern; the text says why."""


@lru_cache(maxsize=256)
def compiled_pattern(source: str) -> Any:
    """The compiled pattern, with the methods of `re.Pattern`. Raises BadPattern."""
    import re2  # loaded by the first pattern: most playbooks use none

    options = re2.Options()
    options.max_mem = MEMORY_MAX
    options.log_errors = False
    try:
        return re2.compile(source, options)
    except re2.error as error:
        why = error.args[0]
        raise BadPattern(why.decode() if isinstance(why, bytes) else str(why)) from None
    except ValueError as error:
        raise BadPattern(str(error)) from None
