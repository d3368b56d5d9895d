"""`noetl lsp`: a language server for editors, over standard input and output."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit
from urllib.request import url2pathname

import click
import msgspec

from noetl import configured
from noetl.cli.files import Source, is_document, is_test
from noetl.cli.options import current_settings
from noetl.dsl.assist import about, offers, step_at
from noetl.errors import NoetlError
from noetl.model.problems import Problem
from noetl.model.triggers import KINDS
from noetl.version import __version__

BODY_MAX = 16 * 1024 * 1024
_OFFERED = {"key": 10, "value": 12, "step": 6, "name": 6, "filter": 3, "test": 3, "function": 3}
"""Kinds of completion items: property, value, variable, function."""
_SEVERITIES = {"error": 1, "warning": 2}
NO_JSON, NO_METHOD, INVALID, NOT_INITIALIZED = -32700, -32601, -32600, -32002
_KIND = re.compile(r"^kind:\s*[\"']?(\w+)", re.MULTILINE)
_VALUE = re.compile(r":\s+[^\s#]|-\s+[^\s#]")


@click.command()
def command() -> None:
    """Run the language server, for editors.

    It speaks the Language Server Protocol over standard input and output: problems as you type,
    completion of keys, kinds, steps, names and filters, hover, and formatting. Editors start it
    themselves.

    \b
    Example:
      noetl lsp
    """
    from noetl.cli.validate import checker
    from noetl.rewrite.fmt import format_text

    server = Server(checker(current_settings()), format_text)
    sys.exit(server.serve(sys.stdin.buffer, sys.stdout.buffer))


class Server:
    """The texts that an editor has open, and the answers to its requests."""

    def __init__(
        self,
        problems_of: Callable[[Source], tuple[Problem, ...]],
        formatter: Callable[[str], str],
    ) -> None:
        self._problems_of = problems_of
        self._format = formatter
        self._open: dict[str, Source] = {}
        self._is_initialized = False
        self._is_shut_down = False
        self._answers: dict[str, Callable[[dict[str, Any]], Any]] = {
            "initialize": self._initialize,
            "shutdown": self._shutdown,
            "textDocument/completion": self._complete,
            "textDocument/definition": self._define,
            "textDocument/hover": self._hover,
            "textDocument/formatting": self._formatting,
        }

    def serve(self, given: BinaryIO, out: BinaryIO) -> int:
        """Serve until the editor ends it. Returns the exit code."""
        while (message := read_message(given)) is not None:
            if message.get("method") == "exit":
                return 0 if self._is_shut_down else 1
            for answer in self.heard(message):
                write_message(out, answer)
        return 1

    def heard(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """The answers to a message, notifications included."""
        if not message:
            return [_refusal(None, NO_JSON, "the message is no JSON object")]
        method, given = message.get("method"), message.get("params") or {}
        if not isinstance(method, str) or not isinstance(given, dict):
            return []
        if "id" not in message:
            return self._notified(method, given)
        number, handler = message["id"], self._answers.get(method)
        if not self._is_initialized and method != "initialize":
            return [_refusal(number, NOT_INITIALIZED, "the first request is initialize")]
        if self._is_shut_down:
            return [_refusal(number, INVALID, "after shutdown there is only exit")]
        if handler is None:
            return [_refusal(number, NO_METHOD, f"no method {method}")]
        try:
            return [{"jsonrpc": "2.0", "id": number, "result": handler(given)}]
        except (KeyError, TypeError, ValueError) as error:
            return [_refusal(number, INVALID, f"bad request: {error!r}")]

    def _notified(self, method: str, given: dict[str, Any]) -> list[dict[str, Any]]:
        try:
            match method:
                case "textDocument/didOpen":
                    document = given["textDocument"]
                    return self._changed(document["uri"], document["text"])
                case "textDocument/didChange":
                    text = given["contentChanges"][-1]["text"]
                    return self._changed(given["textDocument"]["uri"], text)
                case "textDocument/didClose":
                    uri = given["textDocument"]["uri"]
                    self._open.pop(uri, None)
                    return [_diagnostics(uri, [])]
                case _:
                    return []
        except (KeyError, TypeError, IndexError):
            return []  # a notification gets no answer, not even an error

    def _initialize(self, given: dict[str, Any]) -> Any:
        self._is_initialized = True
        return {
            "capabilities": {
                "textDocumentSync": 1,
                "completionProvider": {"triggerCharacters": [" ", ".", "|", "{", ":"]},
                "definitionProvider": True,
                "hoverProvider": True,
                "documentFormattingProvider": True,
                "positionEncoding": "utf-16",
            },
            "serverInfo": {"name": "noetl", "version": __version__},
        }

    def _shutdown(self, given: dict[str, Any]) -> Any:
        self._is_shut_down = True

    def _changed(self, uri: str, text: str) -> list[dict[str, Any]]:
        path = _path(uri)
        source = self._open[uri] = Source(uri, path, text)
        problems = self._problems_of(source) if _is_ours(source) else ()
        return [_diagnostics(uri, [_diagnostic(problem, text) for problem in problems])]

    def _asked(self, given: dict[str, Any]) -> Source | None:
        """The text that a request is about, if it is one of ours or may become one."""
        source = self._open[given["textDocument"]["uri"]]
        return source if _is_ours(source) or not _VALUE.search(source.text) else None

    def _complete(self, given: dict[str, Any]) -> Any:
        if (source := self._asked(given)) is None:
            return []
        return [
            {"label": one.text, "kind": _OFFERED[one.kind], "documentation": one.about}
            for one in offers(source.text, *_place(source.text, given), _schema_of(source))
        ]

    def _define(self, given: dict[str, Any]) -> Any:
        if (source := self._asked(given)) is None:
            return None
        found = step_at(source.text, *_place(source.text, given))
        if found is None:
            return None
        written = source.text.splitlines()[found.line - 1]
        start = _units(written, found.column - 1)
        end = _units(written, found.column - 1 + len(found.name))
        return {"uri": source.name, "range": _range(found.line - 1, start, end)}

    def _hover(self, given: dict[str, Any]) -> Any:
        if (source := self._asked(given)) is None:
            return None
        told = about(source.text, *_place(source.text, given), _schema_of(source))
        return None if told is None else {"contents": {"kind": "markdown", "value": told.text}}

    def _formatting(self, given: dict[str, Any]) -> Any:
        if (source := self._asked(given)) is None:
            return []
        try:
            made = self._format(source.text)
        except NoetlError:
            return []  # its errors are among the problems
        if made == source.text:
            return []
        end = {"line": len(source.text.splitlines()) + 1, "character": 0}
        return [{"range": {"start": {"line": 0, "character": 0}, "end": end}, "newText": made}]


# --- Texts --------------------------------------------------------------------------------------


def _path(uri: str) -> Path | None:
    """The file that an editor means; None for a text without one."""
    parts = urlsplit(uri)
    return Path(url2pathname(parts.path)) if parts.scheme == "file" else None


def _is_ours(source: Source) -> bool:
    """Other YAML is left alone. A text of `kind: Playbook` is told that `apiVersion` is missing."""
    found = _KIND.search(source.text)
    is_playbook = found is not None and found[1] == "Playbook"
    return is_playbook or is_test(source) or is_document(source.text.encode())


def _schema_of(source: Source) -> dict[str, Any]:
    if is_test(source):
        return _test_schema()
    found = _KIND.search(source.text)
    return _schema(found[1] if found is not None and found[1] in KINDS else "Playbook")


@cache
def _schema(kind: str) -> dict[str, Any]:
    return configured.schema(kind)


@cache
def _test_schema() -> dict[str, Any]:
    from noetl.trials import files

    return files.schema()


# --- Places -------------------------------------------------------------------------------------


def _place(text: str, given: dict[str, Any]) -> tuple[int, int]:
    """The line and column of a request, counted from 1."""
    line, units = given["position"]["line"], given["position"]["character"]
    written = (text.splitlines() or [""])[line : line + 1] or [""]
    return line + 1, _column(written[0], units) + 1


def _range(line: int, start: int, end: int) -> dict[str, Any]:
    return {
        "start": {"line": line, "character": start},
        "end": {"line": line, "character": end},
    }


def _column(line: str, units: int) -> int:
    """The column in characters; editors count in units of UTF-16."""
    count = 0
    for number, letter in enumerate(line):
        if count >= units:
            return number
        count += 2 if ord(letter) > 0xFFFF else 1
    return len(line)


def _units(line: str, column: int) -> int:
    return sum(2 if ord(letter) > 0xFFFF else 1 for letter in line[:column])


def _diagnostic(problem: Problem, text: str) -> dict[str, Any]:
    lines = text.splitlines()
    number = max(0, min(problem.line - 1, len(lines) - 1)) if lines else 0
    written = lines[number] if lines else ""
    begin = max(0, problem.column - 1)
    end = begin
    while end < len(written) and (written[end].isalnum() or written[end] in "_-."):
        end += 1
    return {
        "range": _range(number, _units(written, begin), _units(written, max(end, begin + 1))),
        "severity": _SEVERITIES.get(problem.severity, 3),
        "code": problem.code,
        "source": "noetl",
        "message": problem.message,
    }


def _diagnostics(uri: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    params = {"uri": uri, "diagnostics": found}
    return {"jsonrpc": "2.0", "method": "textDocument/publishDiagnostics", "params": params}


def _refusal(number: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}


# --- Messages -----------------------------------------------------------------------------------


def read_message(given: BinaryIO) -> dict[str, Any] | None:
    """The next message; None at the end, and an empty one for what is no JSON object."""
    length = None
    while (line := given.readline()) not in (b"", b"\r\n", b"\n"):
        name, _, value = line.decode("ascii", "replace").partition(":")
        if name.strip().lower() == "content-length" and value.strip().isdecimal():
            length = int(value)
    if line == b"" or length is None or length > BODY_MAX:
        return None
    try:
        found = msgspec.json.decode(given.read(length))
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def write_message(out: BinaryIO, message: dict[str, Any]) -> None:
    body = msgspec.json.encode(message)
    out.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
    out.flush()
