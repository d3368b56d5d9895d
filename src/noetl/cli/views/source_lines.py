"""Maps lines of a task's code to lines of its playbook.

The net holds no positions. For a file, the start event of the execution records them; otherwise
they are looked up when something is shown, in the catalog's text of the version that ran.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from noetl.errors import NotFound

if TYPE_CHECKING:
    from noetl.dsl import Compiled
    from noetl.model.outcome import TaskError

_IN_CODE = re.compile(r'File "<code>", line (\d+)')
CHILDREN_DEEP = 5
"""How deep failed child executions are followed."""
AT_END = re.compile(r"\(line (\d+)\)$")
"""A line of a task's code, at the end of a message."""


class SourceLines(NamedTuple):
    """The first line of each task's code."""

    name: str = ""
    """The file, or path and version in the catalog."""
    first: Mapping[str, int] = {}
    """Task (`step.task`) → line."""
    failed_step: str = ""
    failure: Mapping[str, Any] = {}
    """The details of its error."""
    children: Mapping[str, SourceLines] = {}
    """Executions that failed below this one, by their ids."""

    def _offset(self, step: str, task: str | None) -> int | None:
        """The offset of a task's code in the file; None if it is unknown."""
        found = self.first.get(f"{step}.{task}")
        if found is None:
            # For a workbook entry the event names the step that called it.
            lines = {
                line
                for label, line in self.first.items()
                if (label.startswith(f"{step}.") if task is None else label.endswith(f".{task}"))
            }
            found = lines.pop() if len(lines) == 1 else None
        return None if found is None else found - 1

    def _below(self, details: Mapping[str, Any]) -> SourceLines | None:
        """The execution that the error comes from, if it is another one."""
        child = details.get("execution_id")
        return self.children.get(child, NOWHERE) if isinstance(child, str) else None

    def traceback(self, text: str, details: Mapping[str, Any], step: str, task: str | None) -> str:
        """A traceback that names the file and its lines."""
        if (below := self._below(details)) is not None:
            return below.traceback(text, below.failure, below.failed_step, None)
        offset = self._offset(step, task)
        if offset is None:
            return text
        return _IN_CODE.sub(
            lambda match: f'File "{self.name}", line {int(match[1]) + offset}', text
        )

    def message(self, error: Mapping[str, Any], step: str) -> str:
        """The message of an error, with the line of the file."""
        text = str(error.get("message", "no reason given"))
        details = error["details"] if isinstance(error.get("details"), dict) else {}
        if (below := self._below(details)) is not None:
            return below.message({**error, "details": below.failure}, below.failed_step)
        if "line" not in details and error.get("kind") != "exception":
            return text  # a line of something else, such as SQL
        offset = self._offset(step, None)
        if offset is None:
            # For a workbook entry the message names the entry.
            entries = {label.partition(".")[0] for label in self.first}
            named = [name for name in entries if f"{name}: " in text]
            offset = self._offset(named[0], None) if len(named) == 1 else None
        return self._placed(text, offset)

    def _placed(self, text: str, offset: int | None) -> str:
        if offset is None:
            return text
        return AT_END.sub(lambda match: f"({self.name}:{int(match[1]) + offset})", text)

    def told(self, document: dict[str, Any]) -> dict[str, Any]:
        """The document of an execution, with messages that name the file and its lines."""

        def placed(error: Any, step: str) -> Any:
            return error and {**error, "message": self.message(error, step)}

        steps = [
            {**one, "error": placed(one["error"], one["step"]), **self._loop(one)}
            for one in document["steps"]
        ]
        error = placed(document["error"], document.get("failed_step") or "")
        return {**document, "error": error, "steps": steps}

    def _loop(self, step: dict[str, Any]) -> dict[str, Any]:
        """The loop of a step, if it has one; of the reasons for failed iterations only the text is
        kept.
        """
        loop = step.get("loop")
        if not loop:
            return {}
        offset = self._offset(step["step"], None)
        errors = [
            {**one, "message": self._placed(one["message"], offset)}
            for one in loop.get("errors", ())
        ]
        return {"loop": {**loop, "errors": errors}}


NOWHERE = SourceLines()


class Looking(Protocol):
    """Reads executions and the catalog."""

    async def document(self, execution_id: str) -> dict[str, Any]: ...

    async def text(self, path: str, version: int) -> str | None: ...


async def of_execution(
    records: Looking,
    compile_text: Callable[[str], Compiled],
    document: Mapping[str, Any],
    below: int = CHILDREN_DEEP,
) -> SourceLines:
    """Where the code of an execution is, and of those below it; empty if nothing failed."""
    if not _has_failures(document):
        return NOWHERE
    own = document.get("source")
    version = document["version"]
    found = NOWHERE
    if own:
        found = SourceLines(own["name"], own.get("code_lines", {}))
    elif version and (text := await records.text(document["path"], version)) is not None:
        name = f"{document['path']} version {version}"
        found = SourceLines(name, compile_text(text).code_lines)
    children: dict[str, SourceLines] = {}
    for error in (document["error"], *(step["error"] for step in document["steps"])):
        details = (error or {}).get("details")
        child = details.get("execution_id") if isinstance(details, dict) else None
        if below and isinstance(child, str) and child not in children:
            try:
                inner = await records.document(child)
            except NotFound:
                continue  # it could not be started, or it was removed
            children[child] = await of_execution(records, compile_text, inner, below - 1)
    failure = (document["error"] or {}).get("details")
    return found._replace(
        failed_step=document.get("failed_step") or "",
        failure=failure if isinstance(failure, dict) else {},
        children=children,
    )


def _has_failures(document: Mapping[str, Any]) -> bool:
    return bool(document["error"]) or any(
        step["error"] or (step.get("loop") or {}).get("failed") for step in document["steps"]
    )


class Locator:
    """Finds lines of files for commands that follow executions: each is looked up once."""

    def __init__(
        self,
        records: Looking,
        compile_text: Callable[[str], Compiled],
        execution_id: str,
        file: SourceLines | None,
    ) -> None:
        """`file`: the code of this execution, if its own record does not have it."""
        self._records = records
        self._compile_text = compile_text
        self._execution_id = execution_id
        self._file = file
        self._found: dict[tuple[str, str | None], SourceLines] = {}

    async def source(self, document: Mapping[str, Any]) -> SourceLines:
        """Where the code of an execution is, and of those below it that failed."""
        found = await of_execution(self._records, self._compile_text, document)
        if self._file is not None and document["execution_id"] == self._execution_id:
            found = found._replace(name=self._file.name, first=self._file.first)
        return found

    async def message(self, execution_id: str, step: str, error: TaskError) -> str:
        """The message of an error of a step, with the line of the file."""
        if AT_END.search(error.message) is None:
            return error.message
        details = error.details if isinstance(error.details, dict) else {}
        child = details.get("execution_id")
        child = child if isinstance(child, str) else None
        source = self._found.get((execution_id, child))
        if source is None:
            source = await self.source(await self._records.document(execution_id))
            if source.first if child is None else child in source.children:
                self._found[execution_id, child] = source
        known = {"kind": error.kind, "message": error.message, "details": details}
        return source.message(known, step)
