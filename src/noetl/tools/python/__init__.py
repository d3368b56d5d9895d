"""kind: python. Runs the author's own code, in a process of its own."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping, Sequence
from keyword import iskeyword
from typing import Annotated, Any, Literal

import msgspec

from noetl.model.older_forms import Written
from noetl.model.toolshape import CodeProblem, Yielded
from noetl.tools.base import (
    OLDER_SCRIPT,
    Credential,
    Duration,
    Name,
    Options,
    Tool,
    ToolConfig,
    about,
    older_script,
    run_of,
)
from noetl.tools.processes.code import compiled, returned


class Import(Options, frozen=True, kw_only=True):
    """A name of a module, bound for the code."""

    module: Annotated[Name, about("The module.")] = msgspec.field(name="from")
    name: Annotated[Name, about("What to take from it.")] = msgspec.field(name="import")


class Python(ToolConfig, frozen=True, kw_only=True):
    """What a playbook writes under `kind: python`."""

    code: Annotated[
        str | None, about("Code that sets `result`, returns, or defines `main(**args)`.")
    ] = None
    script: Annotated[str | None, about("File or address to load the code from.")] = None
    auth: Annotated[
        Credential | None, about("Credential to read `script` with, where its address needs one.")
    ] = None
    libs: Annotated[
        tuple[Name, ...] | dict[str, Name | Import],
        about("Packages the code imports, as requirement specifiers."),
    ] = ()
    result_as: Annotated[
        Literal["value", "ndjson"],
        about("Yield the value, or a reference to a file of what it yields, a line each."),
    ] = "value"
    timeout: Annotated[
        Duration | None, about("How long the code may run before its process is killed.")
    ] = None


EXAMPLE = """\
- step: total
  tool:
    kind: python
    args:
      orders: "{{ fetch_orders.rows }}"
    code: |
      def main(orders):
          return {"count": len(orders), "total": sum(order["amount"] for order in orders)}
"""


def check(code: str) -> CodeProblem | None:
    """What Python says of the code before it runs. `return` is allowed at top level."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled(code, "<code>")
    except SyntaxError as error:
        line, column = error.lineno or 1, error.offset or 1
        return CodeProblem(message=_with_remedy(error.msg), line=line, column=column)
    return None


def _with_remedy(message: str) -> str:
    """What to write, where `return` at top level lets expect that more is allowed there."""
    if message == "'yield' outside function":
        return f"{message}. Put it into `def main():`; what it yields is the result, a list"
    if message.startswith(("'await' outside", "'async ", "asynchronous comprehension outside")):
        return f"{message}. Put it into `async def main():`"
    return message


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def yields(config: Mapping[str, Any]) -> Yielded:
    """The keys of the result, if the code states them at every place where it can end.

    Follows the process that runs it: a `return` at top level counts, else `result`, else what
    `main` returns.
    """
    code = config.get("code")
    if not isinstance(code, str) or "{{" in code or check(code) is not None:
        return None
    if config.get("result_as", "value") != "value" or isinstance(config.get("libs"), dict):
        return None
    body = ast.parse(code).body
    mentions = [node for node in ast.walk(ast.Module(body, [])) if _names_result(node)]
    mains = [node for node in body if isinstance(node, _Function) and node.name == "main"]
    if returns := returned(body):
        is_last = isinstance(body[-1], ast.Return)
        return _merged([one.value for one in returns]) if is_last and not mentions else None
    if mentions:
        assigned = [
            node.value
            for node in body
            if isinstance(node, ast.Assign) and any(_names_result(one) for one in node.targets)
        ]
        return _merged(assigned) if len(assigned) == len(mentions) == 1 else None
    if len(mains) != 1 or mains[0].decorator_list:
        return None
    [main] = mains
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(main)):
        return None
    return _merged([one.value for one in returned(main.body)])


def _names_result(node: ast.AST) -> bool:
    """Whether it may read or bind `result`, also as an import, a function or a parameter."""
    if isinstance(node, ast.Attribute | ast.Constant | ast.keyword):
        return False
    if isinstance(node, ast.Name) and node.id in ("globals", "locals", "exec", "vars"):
        return True
    return any(value == "result" for _, value in ast.iter_fields(node))


def _merged(values: Sequence[ast.expr | None]) -> Yielded:
    """Every key that one of these mappings has; unknown if one of them is no such mapping."""
    merged: dict[str, Yielded] = {}
    for value in values:
        if not isinstance(value, ast.Dict):
            return None
        for key, part in zip(value.keys, value.values, strict=True):
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                return None
            merged[key.value] = None if key.value in merged else _merged([part])
    return merged or None


def _older(task: Written) -> None:
    older_script(task, "code")
    libs = task.plain("libs")
    if isinstance(libs, dict):
        _older_libs(task, libs)


def _older_libs(task: Written, libs: dict[str, Any]) -> None:
    """`libs: {alias: module}` binds names before the code runs; the current form imports them in
    the code.
    """
    code = task.text("code")
    if not libs:
        task.leave_out("libs", "it names nothing")
        return
    if wrong := _no_names(libs):
        task.refuse("libs", "bad-value", f"`libs` of a python task: {'; '.join(wrong)}.")
        return
    if not task.is_text or code is None or "{{" in code:
        task.note("libs", "import the modules in the code")
        return
    try:
        imports = imports_of(msgspec.convert(libs, dict[str, Name | Import]))
    except ValueError:
        return  # the shape check reports what is wrong with it
    task.put("code", "\n".join([*imports, code]), "it imports what `libs` named")
    task.leave_out("libs", "the code imports the modules")


def _no_names(libs: dict[str, Any]) -> list[str]:
    """The entries that cannot be bound, and what to write instead."""
    wrong = []
    for alias, written in libs.items():
        is_import = isinstance(written, dict) and written.keys() == {"from", "import"}
        modules = [written["from"], written["import"]] if is_import else [written]
        if not _is_name(alias) and alias != written:
            wrong.append(f'"{alias[:60]}" is not a name for code (write one such as "lib_1")')
        for module in modules:
            if not isinstance(module, str) or not all(map(_is_name, module.split("."))):
                wrong.append(
                    f"{alias[:60]}: {str(module)[:60]!r} is not a module (write it as in an import,"
                    " `package.module`, or `{from: package, import: name}`)"
                )
    return wrong


def _is_name(text: str) -> bool:
    return text.isidentifier() and not iskeyword(text)


def imports_of(libs: Mapping[str, str | Import]) -> tuple[str, ...]:
    """The statements that bind these names. Raises ValueError for an invalid name."""
    found = []
    for alias, written in libs.items():
        parts = (written.module, written.name) if isinstance(written, Import) else (written, "")
        for name in (alias, *filter(None, parts)):
            if not all(part.isidentifier() for part in name.split(".")):
                raise ValueError(f'`libs`: "{name[:60]}" is not a name of a module')
        module, taken = parts
        bound = "" if alias == (taken or module) else f" as {alias}"
        found.append(f"from {module} import {taken}{bound}" if taken else f"import {module}{bound}")
    return tuple(found)


def _reads_context(config: Mapping[str, Any]) -> bool:
    """Whether the code mentions `context`; a script, which is loaded later, may."""
    return "context" in str(config.get("code", "context"))


TOOL = Tool(
    kind="python",
    example=EXAMPLE,
    summary="Runs Python code in a separate process.",
    config=Python,
    run=run_of("noetl.tools.python.run"),
    runs_code=True,
    is_harmless=True,
    reads_context=_reads_context,
    errors=(
        *("exception", "timeout", "schema", "parse", "not_found", "auth", "client_error"),
        *("connection", "rate_limit", "server_error"),
    ),
    aliases={"credential": "auth"},
    needs=(("code", "script"),),
    only_one=(("code", "script"),),
    code_fields=("code",),
    code_check=check,
    yields=yields,
    code_inputs="args",
    older=_older,
    older_shapes={"script": OLDER_SCRIPT},
)
