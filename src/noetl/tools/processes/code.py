"""Compiles the text of a task's code, for each of the ways to yield a value."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, NamedTuple

FELL_THROUGH = object()
"""Marks a body that reached its end without `return`."""
BODY = "__noetl_body__"
END = "__noetl_end__"
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_VARKEYWORDS = 0x08


class Program(NamedTuple):
    """Code ready to run."""

    body: CodeType
    returns: str
    """Name of the function that wraps the code, if it returns at top level."""
    defines_main: bool


def compiled(code: str, name: str) -> Program:
    """Raises SyntaxError, also for text that Python cannot decode."""
    try:
        return _compiled(ast.parse(code, name), name)
    except ValueError as error:
        raise SyntaxError(str(error), (name, 1, 1, "")) from None
    except (RecursionError, MemoryError):
        raise SyntaxError("the code is nested too deeply", (name, 1, 1, "")) from None


def _compiled(tree: ast.Module, name: str) -> Program:
    defines_main = any("main" in _bound_by(statement) for statement in tree.body)
    if not returned(tree.body):
        return Program(compile(tree, name, "exec"), "", defines_main)
    return Program(compile(_as_function(tree, name), name, "exec"), BODY, defines_main)


def _bound_by(statement: ast.stmt) -> set[str]:
    """Names that a top-level statement assigns."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return {alias.asname or alias.name for alias in names}
        case ast.If() | ast.Try() | ast.With():
            inner = [part for part in ast.walk(statement) if isinstance(part, ast.stmt)]
            return {name for part in inner if part is not statement for name in _bound_by(part)}
    return set()


def returned(body: list[ast.stmt]) -> list[ast.Return]:
    """The returns of a body, without those of nested functions."""
    found: list[ast.Return] = []
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Return):
            found.append(node)
        elif not isinstance(node, _SCOPES):
            pending.extend(ast.iter_child_nodes(node))
    return found


def _as_function(tree: ast.Module, name: str) -> ast.Module:
    """The code as the body of a function in which every variable is global, as its author
    expects.
    """
    count = next((n for n, part in enumerate(tree.body) if not _opens(part)), len(tree.body))
    opening, rest = tree.body[:count], [_Unannotated().visit(part) for part in tree.body[count:]]
    end = ast.Return(value=ast.Name(id=END, ctx=ast.Load()))
    [function] = ast.parse(f"def {BODY}(): pass").body
    assert isinstance(function, ast.FunctionDef)
    function.body = [*rest, end]
    wrapped = ast.fix_missing_locations(ast.Module(body=[*opening, function], type_ignores=[]))
    local = _locals_of(compile(wrapped, name, "exec"))
    if local:
        function.body = [ast.Global(names=sorted(local)), *function.body]
    return ast.fix_missing_locations(wrapped)


def _opens(statement: ast.stmt) -> bool:
    """Whether it must stay at the head of a module: the docstring, `__future__`."""
    match statement:
        case ast.Expr(value=ast.Constant(value=str())) | ast.ImportFrom(module="__future__"):
            return True
    return False


def _locals_of(module: CodeType) -> set[str]:
    for part in module.co_consts:
        if isinstance(part, CodeType) and part.co_name == BODY:
            return {*part.co_varnames, *part.co_cellvars}
    return set()


class _Unannotated(ast.NodeTransformer):
    """Turns `x: int = 1` into `x = 1`, because a global may not be annotated inside a function."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Assign(targets=[node.target], value=node.value), node)


# --- main(**args) ------------------------------------------------------------------------------


def arguments_of(
    main: Callable[..., Any], inputs: Mapping[str, Any], context: Any
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments for `main`: those of the offered values that it has parameters for."""
    offered = {"args": inputs, "input_data": inputs, "context": context, **inputs}
    positional, named, takes_all = _parameters(main)
    first = [offered[name] for name in positional if name in offered]
    rest = {name: offered[name] for name in named if name in offered}
    if takes_all:
        rest.update((name, value) for name, value in inputs.items() if name not in positional)
    return first, rest


def mismatch(main: Callable[..., Any], inputs: Mapping[str, Any]) -> str:
    """What the task gives and what `main` takes, for people to compare."""
    positional, named, _ = _parameters(main)
    given = ", ".join(f"`{name}`" for name in inputs) or "nothing"
    taken = ", ".join(f"`{name}`" for name in (*positional, *named))
    return (
        f"The task gives it {given}; `main` takes {taken}. Add what is missing to `args` of the"
        " task, or give the parameter a default"
    )


def _parameters(main: Any) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Positional-only parameters, other parameters, and whether it accepts any name."""
    while hasattr(main, "__wrapped__"):
        main = main.__wrapped__
    code = getattr(main, "__code__", None)
    if isinstance(code, CodeType) and not hasattr(main, "__self__"):
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        cut = code.co_posonlyargcount
        return names[:cut], names[cut:], bool(code.co_flags & _VARKEYWORDS)
    import inspect

    parameters = inspect.signature(main).parameters.values()
    return (
        tuple(p.name for p in parameters if p.kind is p.POSITIONAL_ONLY),
        tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)),
        any(p.kind is p.VAR_KEYWORD for p in parameters),
    )
