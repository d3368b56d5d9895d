"""What a reader of the code might simplify, as far as a machine can see it: `make house` prints it.

Nothing here fails: a module that one other imports, or a short function that is called once, may
be right where it is. The lists should become shorter.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SRC = Path(__file__).parent.parent / "src"
LINES_MAX = 4
FIELDS_MAX = 15
LOOSE = "dict[str, Any]"
EDGE = ("cli", "dsl", "templates", "tools", "trials")
"""Rooms where data of users, which have no type, come in or go out."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def module_of(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else module


@cache
def trees() -> dict[str, ast.Module]:
    """By name, all our modules."""
    return {module_of(path): ast.parse(path.read_text()) for path in sorted(SRC.rglob("*.py"))}


PACKAGES = {module_of(path) for path in SRC.rglob("__init__.py")}


def imported_by(tree: ast.Module) -> set[str]:
    """The modules of ours that a module imports."""
    known, found = trees().keys(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & known) or {node.module}
    return found & known


def modules_for_one_other() -> Iterator[str]:
    """A piece that only one file needs may belong in that file."""
    users: dict[str, list[str]] = {}
    for module, tree in trees().items():
        for used in imported_by(tree) - {module}:
            users.setdefault(used, []).append(module)
    for used, by in sorted(users.items()):
        if len(by) == 1 and used not in PACKAGES:
            yield f"{used} by {by[0]}"


def short_functions_called_once() -> Iterator[str]:
    """A name for what the caller could say itself. A name that is defined twice is left out."""
    defined: dict[str, list[tuple[str, Function]]] = {}
    used: Counter[str] = Counter()
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                defined.setdefault(node.name, []).append((module, node))
            elif isinstance(node, ast.Name):
                used[node.id] += 1
            elif isinstance(node, ast.Attribute):
                used[node.attr] += 1
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                used[node.value] += 1
    for name, places in sorted(defined.items()):
        [(module, function), *others] = places
        is_plain = not others and not function.decorator_list and not name.startswith("__")
        if is_plain and used[name] == 1 and lines_of(function) <= LINES_MAX:
            yield f"{module}:{function.lineno} {name}"


def lines_of(function: Function) -> int:
    """Without what documents it."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0  # type: ignore[operator]


def classes_with_many_fields() -> Iterator[str]:
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and (count := len(fields_of(node))) > FIELDS_MAX:
                yield f"{module}:{node.lineno} {node.name}: {count}"


def fields_of(owner: ast.ClassDef) -> set[str]:
    """Those that the class declares, and those that its methods give to `self`."""
    declared = {ast.unparse(one.target) for one in owner.body if isinstance(one, ast.AnnAssign)}
    given = {
        node.attr
        for node in ast.walk(owner)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    return declared | given


def loose_signatures() -> Iterator[str]:
    for module, tree in trees().items():
        if room_of(module) in EDGE:
            continue
        for node in ast.walk(tree):
            if isinstance(node, Function):
                arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
                said = [one.annotation for one in arguments] + [node.returns]
                if any(one is not None and LOOSE in ast.unparse(one) for one in said):
                    yield f"{module}:{node.lineno} {node.name}"


REPORT = {
    "modules that only one other imports": modules_for_one_other,
    f"functions of at most {LINES_MAX} lines that are used once": short_functions_called_once,
    f"classes with more than {FIELDS_MAX} fields": classes_with_many_fields,
    f"signatures with {LOOSE} outside of {', '.join(EDGE)}": loose_signatures,
}


def main() -> None:
    for title, find in REPORT.items():
        found = list(find())
        print(f"\n{title}: {len(found)}")
        for line in found:
            print(f"  {line}")
    print()


if __name__ == "__main__":
    main()
