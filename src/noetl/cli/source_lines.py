"""Lines of a task's code as lines of the playbook that it stands in.

The net carries no places, so they are found when something is shown: in the file that was run, or
in the text that the catalog has of the version that was.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from noetl.settings import Settings

_IN_CODE = re.compile(r'File "<code>", line (\d+)')
_AT_END = re.compile(r"\(line (\d+)\)$")


class SourceLines(NamedTuple):
    """Where the code of each task begins."""

    name: str = ""
    """The file, or path and version in the catalog."""
    first: Mapping[str, int] = {}
    """Task (`step.task`) → line."""

    def _offset(self, step: str, task: str | None) -> int | None:
        """What to add to a line of the task's code; None where that is unknown."""
        found = self.first.get(f"{step}.{task}")
        if found is None:
            # Of a workbook entry the record names the step that called it.
            lines = {
                line
                for label, line in self.first.items()
                if (label.startswith(f"{step}.") if task is None else label.endswith(f".{task}"))
            }
            found = lines.pop() if len(lines) == 1 else None
        return None if found is None else found - 1

    def traceback(self, text: str, step: str, task: str) -> str:
        """A traceback that names the file and its lines."""
        offset = self._offset(step, task)
        if offset is None:
            return text
        return _IN_CODE.sub(
            lambda match: f'File "{self.name}", line {int(match[1]) + offset}', text
        )

    def message(self, error: Mapping[str, Any], step: str) -> str:
        """The message of an error, with the line of the file."""
        text = str(error.get("message", "no reason given"))
        details = error.get("details")
        its_own = isinstance(details, dict) and "line" in details and "execution_id" not in details
        offset = self._offset(step, None) if its_own else None
        if offset is None:
            return text
        return _AT_END.sub(lambda match: f"({self.name}:{int(match[1]) + offset})", text)


NOWHERE = SourceLines()


class Texts(Protocol):
    """Wherever the catalog can be read."""

    async def text(self, path: str, version: int) -> str | None: ...


async def of_execution(
    texts: Texts, settings: Settings, document: Mapping[str, Any]
) -> SourceLines:
    """For an execution of a version in the catalog; of a file that was run, nothing is known."""
    version = document["version"]
    text = await texts.text(document["path"], version) if version else None
    if text is None:
        return NOWHERE
    from noetl import wiring

    lines = wiring.compiler(settings)(text).code_lines
    return SourceLines(f"{document['path']} version {version}", lines)
