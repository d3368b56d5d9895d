"""The shape of the code itself: what a machine can judge of it without harm.

There is no limit on lines: limits were met by cutting ideas into pieces. Import layers are
import-linter's; tools, settings and their pages have tests of their own.
"""

import ast
import inspect
import itertools
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

import noetl.dsl
import noetl.templates
from noetl.dsl.codes import CODES
from noetl.tools.registry import BUILT_IN
from tests import house_report

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "noetl"
NAMES_THAT_SAY_NOTHING = {"utils", "util", "common", "helpers", "helper", "misc", "stuff"}
PUBLIC_NAMES_MAX = 12
WORDS_MIN = 4

SOURCES = sorted(SRC.rglob("*.py"))
CODE = [
    *SOURCES,
    *sorted((ROOT / "tests").rglob("*.py")),
    *sorted((ROOT / "bench").rglob("*.py")),
]
PURE_PACKAGES = ("model", "dsl", "rewrite", "templates", "engine")
PURE = [path for path in SOURCES if path.relative_to(SRC).parts[0] in PURE_PACKAGES]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def text_of(path: Path) -> str:
    return path.read_text()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree_of(path)))


def kinds_named(path: Path, kinds: set[str]) -> Iterator[int]:
    """Lines that compare a kind with the name of one, or list several names."""

    def names(node: ast.AST) -> int:
        return sum(
            isinstance(one, ast.Constant) and one.value in kinds
            for one in getattr(node, "elts", [node])
        )

    for node in nodes_of(path):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            asks = any(isinstance(one, ast.Attribute) and one.attr == "kind" for one in sides)
            of_actor = any("actor" in ast.unparse(one) for one in sides)
            if asks and not of_actor and any(names(one) for one in sides):
                yield node.lineno
        elif isinstance(node, ast.Set | ast.List | ast.Tuple) and names(node) > 1:
            yield node.lineno


# Each test judges all files at once and names those that fall short: a test for each file would
# cost more than what it looks at.


def test_no_room_knows_a_tool_kind_by_its_name():
    """What is special about a kind its tool declares; see `Tool` and `ToolShape`."""
    kinds = set(BUILT_IN)
    found = {
        f"{path.relative_to(SRC)}:{line}"
        for path in SOURCES
        if path.relative_to(SRC).parts[0] != "tools"
        for line in kinds_named(path, kinds)
    }

    assert not found


def test_only_wiring_and_serving_ask_whether_others_use_the_same_database():
    """Rooms are given values instead: how often to look, whose work, which clock."""
    found = {
        f"{path.relative_to(SRC)}:{node.lineno}"
        for path in SOURCES
        if path.name not in ("wiring.py", "serving.py")
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute)
        and node.attr == "exclusive"
        and isinstance(node.ctx, ast.Load)
    }

    assert not found


def test_a_module_says_why_it_exists():
    silent = [
        name_of(path)
        for path in CODE
        if len((ast.get_docstring(tree_of(path)) or "").split()) < WORDS_MIN
    ]

    assert silent == []


def test_a_module_is_named_by_what_it_holds():
    assert [name_of(path) for path in CODE if path.stem in NAMES_THAT_SAY_NOTHING] == []


def test_nothing_is_left_for_later():
    left = [
        f"{name_of(path)}:{number}: {word}"
        for path in SOURCES
        for number, line in enumerate(text_of(path).splitlines(), 1)
        for word in ("TODO", "FIXME", "XXX", "HACK", "NotImplemented(")
        if word in line
    ]

    assert left == []


def swallowed(path: Path) -> Iterator[str]:
    lines = text_of(path).splitlines()
    for node in nodes_of(path):
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                yield f"{name_of(path)}:{node.lineno}: a bare except"
            passes = all(isinstance(part, ast.Pass) for part in node.body)
            if passes and "#" not in "".join(lines[node.lineno - 1 : node.end_lineno]):
                yield f"{name_of(path)}:{node.lineno}: passed over without a word"


def test_no_exception_is_swallowed():
    assert [place for path in SOURCES for place in swallowed(path)] == []


def test_nobody_waits_in_a_way_that_loses_a_cancellation():
    """Until Python 3.12 `wait_for` drops it if what it waits for comes at the same moment."""
    waits = [
        f"{name_of(path)}:{node.lineno}: use `async with asyncio.timeout(…)`"
        for path in SOURCES
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and node.attr == "wait_for"
    ]

    assert waits == []


# --- Tests stand outside of the rooms ----------------------------------------------------------


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def named_in(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that are given to functions, classes, variables and attributes."""
    found = set()
    for node in nodes:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
    return found


def private_uses(nodes: Sequence[ast.AST], ours: set[str]) -> Iterator[tuple[int, str]]:
    """Uses of private names of ours: imported, read or replaced; with their lines."""
    libraries = {
        (alias.asname or alias.name).partition(".")[0]
        for node in nodes
        if isinstance(node, ast.Import)
        for alias in node.names
        if not alias.name.startswith("noetl")
    }
    own = named_in(nodes)
    for node in nodes:
        match node:
            case ast.ImportFrom(module=str(module)) if module.startswith("noetl"):
                names = [*module.split("."), *(alias.name for alias in node.names)]
                yield from ((node.lineno, name) for name in names if is_private(name))
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if name in own:
                pass  # of a class of the test
            case ast.Attribute(value=ast.Name(id=base), attr=_) if base in libraries:
                pass
            case ast.Attribute(attr=name) if name in ours:
                yield node.lineno, name
            case ast.Call(
                func=ast.Attribute(attr="setattr" | "delattr") | ast.Name(id="setattr" | "getattr"),
                args=[_, ast.Constant(value=str(name)), *_],
            ) if name.rpartition(".")[2] in ours:
                yield node.lineno, name


def test_no_test_uses_a_private_name_of_ours():
    """What only a room knows may change; tests show what others see of it."""
    ours = {name for path in SOURCES for name in named_in(nodes_of(path)) if is_private(name)}

    assert [
        f"{name_of(path)}:{line}: {name}"
        for path in CODE
        if path not in SOURCES
        for line, name in private_uses(nodes_of(path), ours)
    ] == []


@pytest.mark.parametrize(
    "source",
    [
        "from noetl.worker.worker import _free",
        "from noetl.tools._inside import run",
        "worker._free()",
        "monkeypatch.setattr(worker, '_free', 1)",
        "super()._free()",
    ],
)
def test_the_check_of_private_names_sees(source):
    nodes = [*ast.walk(ast.parse(source))]

    assert [*private_uses(nodes, {"_free"})] != []


# --- Purity ------------------------------------------------------------------------------------

IMPURE_MODULES = {
    *("asyncio", "glob", "http", "io", "logging", "multiprocessing", "os", "pathlib", "random"),
    *("secrets", "select", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "sys"),
    *("tempfile", "threading", "time", "urllib", "uuid", "zoneinfo"),
}
PURE_PARTS = {"urllib": {"urllib.parse"}, "uuid": {"uuid"}}
"""Of these modules, the parts that compute and nothing else."""
IMPURE_CALLS = {"now", "utcnow", "today", "time", "monotonic", "perf_counter", "uuid1", "uuid4"}
IMPURE_BUILTINS = {"open", "print", "input", "breakpoint", "__import__"}


def imported(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
    return names


def test_a_pure_package_imports_nothing_that_touches_the_world():
    touching = [
        f"{name_of(path)}: {name}"
        for path in PURE
        for name in sorted(imported(tree_of(path)))
        for root in [name.partition(".")[0]]
        if root in IMPURE_MODULES and name not in PURE_PARTS.get(root, ())
    ]

    assert touching == []


def impure_calls(tree: ast.Module) -> list[str]:
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_BUILTINS:
                found.append(f"line {node.lineno}: {name}()")
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)) if (
                name in IMPURE_CALLS and owner in {"datetime", "date", "time", "uuid"}
            ):
                found.append(f"line {node.lineno}: {owner}.{name}()")
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr=owner), attr=name)) if (
                name in IMPURE_CALLS and owner in {"datetime", "date"}
            ):
                found.append(f"line {node.lineno}: {owner}.{name}()")
    return found


def test_a_pure_package_asks_neither_clock_nor_chance_nor_files():
    asking = {name_of(path): impure_calls(tree_of(path)) for path in PURE}

    assert {path: calls for path, calls in asking.items() if calls} == {}


@pytest.mark.parametrize(
    "source",
    ["datetime.now()", "datetime.datetime.now(tz)", "date.today()", "open('x')", "uuid.uuid4()"],
)
def test_the_check_of_purity_sees(source):
    assert impure_calls(ast.parse(source)) != []


# --- What we promise is written down -----------------------------------------------------------


def test_a_problem_code_is_documented():
    page = (ROOT / "docs" / "problems.md").read_text()

    assert [code for code in CODES if f"`{code}`" not in page] == []


def test_the_public_promise_is_small():
    assert len(noetl.__all__) <= PUBLIC_NAMES_MAX


@pytest.mark.parametrize("package", [noetl, noetl.dsl, noetl.templates], ids=lambda p: p.__name__)
def test_every_public_name_is_documented(package):
    for name in package.__all__:
        thing = getattr(package, name)
        assert inspect.getdoc(thing), f"{package.__name__}.{name} has no docstring"
        if inspect.isfunction(thing):
            signature = inspect.signature(thing)
            parameters = signature.parameters.values()
            assert all(p.annotation is not p.empty for p in parameters), name
            assert signature.return_annotation is not signature.empty, name


# --- Words -------------------------------------------------------------------------------------

NAMED_AFTER_OTHERS = ("cli", "ui", "rewrite", "api/routes", "store/sqlite", "store/postgres")
"""Rooms whose names come from a command, a text, a noun of the API or a part of a store."""
OF_THEIR_OWN = ("errors", "events", "answers")
"""Classes of these modules are errors, events and answers, each with a page of documentation."""
IMPORTED_MIN = 4


def singular(word: str) -> str:
    for plural, one in (("ies", "y"), ("ches", "ch"), ("xes", "x")):
        if word.endswith(plural):
            return word.removesuffix(plural) + one
    return word if word.endswith(("ss", "us", "is", "news")) else word.removesuffix("s")


@cache
def vocabulary() -> frozenset[str]:
    page = (ROOT / "docs" / "vocabulary.md").read_text()
    return frozenset(singular(word) for word in re.findall(r"\*\*(.+?)\*\*", page))


def is_defined(words: Sequence[str]) -> bool:
    """Whether it is a word of the vocabulary, or a compound of one (`StepProgram`: a program)."""
    return any(singular(" ".join(words[start:])) in vocabulary() for start in range(len(words)))


def test_the_name_of_a_module_is_in_the_vocabulary():
    modules = [
        path
        for path in SOURCES
        if not path.stem.startswith("__")
        and not room_of(path).startswith((*NAMED_AFTER_OTHERS, "tools"))
    ]

    assert [name_of(path) for path in modules if not is_defined(path.stem.split("_"))] == []


def test_the_name_of_a_class_that_many_use_is_in_the_vocabulary():
    imports = Counter(
        (node.module, alias.name)
        for path in SOURCES
        for node in nodes_of(path)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    )
    used = [
        (name_of(path), node.name)
        for path in SOURCES
        if path.stem not in OF_THEIR_OWN and not path.stem.endswith("_answers")
        if not room_of(path).startswith(NAMED_AFTER_OTHERS)
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef) and imports[module_of(path), node.name] >= IMPORTED_MIN
    ]

    assert len(used) > 100
    assert [one for one in used if not is_defined(parts_of(one[1]))] == []


def room_of(path: Path) -> str:
    return path.relative_to(SRC).as_posix()


def module_of(path: Path) -> str:
    parts = path.relative_to(SRC.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def parts_of(name: str) -> list[str]:
    """StepRun: step, run."""
    return [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]+", name)]


def test_a_module_that_is_named_in_prose_exists():
    """In the docstrings and comments of the code, as `engine.forks`; in pages, as a path."""
    rooms = "|".join(path.name for path in SRC.iterdir() if path.is_dir())
    dotted = re.compile(rf"`((?:noetl\.)?(?:{rooms})\.[a-z_]+)(?:\.\w+)*`")
    pathlike = re.compile(rf"`(?:src/noetl/)?((?:{rooms})/(?:[a-z_]+/)*[a-z_]+\.(?:py|sql))`")
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md"]
    named = [
        (name_of(path), found.replace(".", "/").removeprefix("noetl/"))
        for path in SOURCES
        for found in dotted.findall(text_of(path))
    ]

    assert len(named) > 20
    assert [
        one
        for one in named
        if not any((SRC / one[1]).with_suffix(end).exists() for end in ("", ".py"))
    ] == []
    assert [
        (name_of(path), found)
        for path in (*SOURCES, *pages)
        for found in pathlike.findall(text_of(path))
        if not (SRC / found).exists() and not (ROOT / found).exists()
    ] == []


# --- Nothing points outside --------------------------------------------------------------------

OUTSIDE = ("../" + "shared", "/wo" + "rk/", "/ho" + "me/", "/ro" + "ot/", "/tmp/" + "brief")


def tracked() -> list[Path]:
    """Every file that is, or is about to be, part of the project."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def test_a_number_in_the_name_of_a_test_has_one_spelling():
    names = [
        found
        for path in (ROOT / "tests").rglob("test_*.py")
        for found in (path.stem, *re.findall(r"def (test_\w+)", path.read_text()))
    ]

    assert [name for name in names if re.match(r"test_[ts]\d_", name)] == [], "t05, not t5"


def test_no_file_mentions_a_place_outside_the_project():
    for path in tracked():
        text = path.read_text(errors="replace")
        for place in OUTSIDE:
            assert place not in text, f"{path.relative_to(ROOT)} mentions {place}"


def test_what_might_be_simplified_is_found(monkeypatch: pytest.MonkeyPatch):
    """The report itself fails nothing; it must only see what it looks for."""
    fields = "".join(f"    f{number}: int\n" for number in range(house_report.FIELDS_MAX + 1))
    sources = {
        "noetl.control.a": "from noetl.control.b import once\nimport noetl.errors\nonce()\n",
        "noetl.control.b": "import noetl.errors\ndef once(): return 1\nclass Wide:\n" + fields,
        "noetl.errors": "def loose(given: dict[str, Any]): ...\nloose(loose)\n",
        "noetl.dsl": "def loose_at_the_edge(given: dict[str, Any]): ...\n",
    }
    trees = {name: ast.parse(text) for name, text in sources.items()}
    monkeypatch.setattr(house_report, "trees", lambda: trees)

    assert [list(find()) for find in house_report.REPORT.values()] == [
        ["noetl.control.b by noetl.control.a"],
        ["noetl.control.b:2 once"],
        ["noetl.control.b:3 Wide: 16"],
        ["noetl.errors:1 loose"],
    ]


SECRET_FIELD = re.compile(
    r"(^|_)(password|passphrase|login|secrets?|token|private_key|access_key|api_key)$"
)
SECRET_HOLDER = re.compile(r"Credential|AccessToken")
"""What these classes call `data` or `text` is a secret, too."""
NO_SECRETS = {
    ("StoredCredential", "data"): "Encrypted.",
    ("Lease", "token"): "The fence of a lease, which follows from the id of its command.",
    ("LeaseTerms", "token"): "The same, over the API.",
    ("Report", "token"): "The same, from a worker.",
    ("Verify", "secrets"): "Names of credentials.",
}
PLAIN = re.compile(r"\b(str|bytes|dict|Mapping|Any)\b")
PRINTED = {"Struct", "NamedTuple"}


def test_what_holds_secrets_does_not_print_them():
    """Structs and tuples print their fields, so a log line or traceback would show them."""
    classes = {
        node.name: node
        for path in SOURCES
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef)
    }

    def lineage(node: ast.ClassDef) -> Iterator[ast.ClassDef | str]:
        yield node
        for base in node.bases:
            name = ast.unparse(base).split("[")[0].split(".")[-1]
            if name in classes and classes[name] is not node:
                yield from lineage(classes[name])
            else:
                yield name

    shown = []
    for path in SOURCES:
        for node in nodes_of(path):
            if not isinstance(node, ast.ClassDef):
                continue
            above = list(lineage(node))
            names = {name for name in above if isinstance(name, str)}
            bodies = [one.body for one in above if isinstance(one, ast.ClassDef)]
            if not names & PRINTED or any(map(prints_itself, itertools.chain(*bodies))):
                continue
            shown += [
                f"{name_of(path)}:{field.lineno}: {node.name}.{field.target.id}"
                for field in node.body
                if isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and (
                    SECRET_FIELD.search(field.target.id)
                    or (SECRET_HOLDER.search(node.name) and field.target.id in ("data", "text"))
                )
                and PLAIN.search(ast.unparse(field.annotation))
                and (node.name, field.target.id) not in NO_SECRETS
            ]

    assert shown == [], "write `__repr__ = without_values`"


def prints_itself(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.FunctionDef):
        return statement.name == "__repr__"
    return isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__repr__"
