"""`noetl lsp`: a language server for editors, over standard input and output."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO

import click

if TYPE_CHECKING:
    from noetl.dsl import Compiled

BODY_MAX = 16 * 1024 * 1024
_KINDS = {"key": 10, "value": 12, "step": 6, "name": 6, "filter": 3, "test": 3, "function": 3}
"""Kinds of completion items: property, value, variable, function."""
_SEVERITIES = {"error": 1, "warning": 2}
NO_METHOD, INVALID = -32601, -32600


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
    from noetl import wiring
    from noetl.cli.options import current_settings
    from noetl.rewrite.fmt import format_text

    settings = current_settings()
    server = Server(wiring.compiler(settings), wiring.schema(), format_text)
    sys.exit(server.serve(sys.stdin.buffer, sys.stdout.buffer))


class Server:
    """The texts that an editor has open, and the answers to its requests."""

    def __init__(
        self,
        compile_text: Callable[[str], Compiled],
        schema: dict[str, Any],
        formatter: Callable[[str], str],
    ) -> None:
        self._compile = compile_text
        self._schema = schema
        self._format = formatter
        self._texts: dict[str, str] = {}
        self._is_shut_down = False
        self._answers: dict[str, Callable[[dict[str, Any]], Any]] = {
            "initialize": self._initialize,
            "shutdown": self._shutdown,
            "textDocument/completion": self._complete,
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
        method, given = message.get("method"), message.get("params") or {}
        if not isinstance(method, str) or not isinstance(given, dict):
            return []
        if "id" not in message:
            return self._notified(method, given)
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        handler = self._answers.get(method)
        if handler is None:
            return [answer | {"error": {"code": NO_METHOD, "message": f"no method {method}"}}]
        try:
            return [answer | {"result": handler(given)}]
        except (KeyError, TypeError, ValueError) as error:
            return [answer | {"error": {"code": INVALID, "message": f"bad request: {error!r}"}}]

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
                    self._texts.pop(uri, None)
                    return [_diagnostics(uri, [])]
                case _:
                    return []
        except (KeyError, TypeError, IndexError):
            return []  # a notification gets no answer, not even an error

    def _initialize(self, given: dict[str, Any]) -> Any:
        from noetl.version import __version__

        return {
            "capabilities": {
                "textDocumentSync": 1,
                "completionProvider": {"triggerCharacters": [" ", ".", "|", "{", ":"]},
                "hoverProvider": True,
                "documentFormattingProvider": True,
                "positionEncoding": "utf-16",
            },
            "serverInfo": {"name": "noetl", "version": __version__},
        }

    def _shutdown(self, given: dict[str, Any]) -> Any:
        self._is_shut_down = True

    def _changed(self, uri: str, text: str) -> list[dict[str, Any]]:
        self._texts[uri] = text
        if "kind:" in text and "Playbook" not in text:
            return [_diagnostics(uri, [])]  # some other YAML
        problems = self._compile(text).problems
        found = [_diagnostic(problem, text) for problem in problems]
        return [_diagnostics(uri, found)]

    def _place(self, given: dict[str, Any]) -> tuple[str, int, int]:
        text = self._texts[given["textDocument"]["uri"]]
        line, units = given["position"]["line"], given["position"]["character"]
        written = (text.splitlines() or [""])[line : line + 1] or [""]
        return text, line + 1, _column(written[0], units) + 1

    def _complete(self, given: dict[str, Any]) -> Any:
        from noetl.dsl.assist import offers

        return [
            {"label": one.text, "kind": _KINDS[one.kind], "documentation": one.about}
            for one in offers(*self._place(given), self._schema)
        ]

    def _hover(self, given: dict[str, Any]) -> Any:
        from noetl.dsl.assist import about

        told = about(*self._place(given), self._schema)
        return None if told is None else {"contents": {"kind": "markdown", "value": told.text}}

    def _formatting(self, given: dict[str, Any]) -> Any:
        from noetl.errors import NoetlError

        text = self._texts[given["textDocument"]["uri"]]
        try:
            made = self._format(text)
        except NoetlError:
            return []  # its errors are among the problems
        if made == text:
            return []
        end = {"line": len(text.splitlines()) + 1, "character": 0}
        return [{"range": {"start": {"line": 0, "character": 0}, "end": end}, "newText": made}]


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


def _diagnostic(problem: Any, text: str) -> dict[str, Any]:
    lines = text.splitlines()
    number = max(0, min(problem.line - 1, len(lines) - 1)) if lines else 0
    written = lines[number] if lines else ""
    begin = max(0, problem.column - 1)
    end = begin
    while end < len(written) and (written[end].isalnum() or written[end] in "_-."):
        end += 1
    return {
        "range": {
            "start": {"line": number, "character": _units(written, begin)},
            "end": {"line": number, "character": _units(written, max(end, begin + 1))},
        },
        "severity": _SEVERITIES.get(problem.severity, 3),
        "code": problem.code,
        "source": "noetl",
        "message": problem.message,
    }


def _diagnostics(uri: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    params = {"uri": uri, "diagnostics": found}
    return {"jsonrpc": "2.0", "method": "textDocument/publishDiagnostics", "params": params}


# --- Messages -----------------------------------------------------------------------------------


def read_message(given: BinaryIO) -> dict[str, Any] | None:
    """The next message; None at the end, or for invalid input."""
    import msgspec

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
    import msgspec

    body = msgspec.json.encode(message)
    out.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
    out.flush()
