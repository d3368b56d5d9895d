"""SQL as text: where statements end and where values are to be bound.

What stands in quotes or comments is neither. Pure; knows just enough of each dialect's lexical
rules to tell these apart, and nothing of its grammar but `BEGIN … END` bodies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, Literal, NamedTuple

from noetl.tools.failures import Foreseen

Dialect = Literal["postgres", "sqlite", "duckdb", "mysql", "sql"]
"""`sql`: any other database of SQLAlchemy; placeholders are spelled as in SQLite."""

PLACE = re.compile(r"^LINE \d+: .*\n *\^+", re.MULTILINE)
"""The place of an error in a statement: the line, and carets below it. PostgreSQL and DuckDB tell
it so."""

_DOLLAR = re.compile(r"\$(?:[A-Za-z_\u0080-\uffff][\w\u0080-\uffff]*)?\$")
_WORD = re.compile(r"[A-Za-z_\u0080-\uffff][\w$\u0080-\uffff]*")
_NUMBER = re.compile(r"\d[\w.]*")
_PERCENT_NAME = re.compile(r"%\((\w+)\)s")
_PERCENT_PLACE = re.compile(r"%s(?!\w)")
_PERCENTS = re.compile(r"%%|%")
_TO_QUOTE = {one: re.compile(f"[^{one}]*(?:{one}{one}[^{one}]*)*{one}?") for one in "'\"`"}
_TO_ESCAPED = {
    one: re.compile(rf"[^{one}\\]*(?:(?:{one}{one}|\\.?)[^{one}\\]*)*{one}?", re.DOTALL)
    for one in "'\""
}
"""What follows an opening quote, up to the one that closes it; with escapes by a backslash, too."""
_NAMED = re.compile(r"[:$@]([A-Za-z_]\w*)")

Kind = Literal["quoted", "comment", "word", "end", "name", "place", "other"]


class Token(NamedTuple):
    """A piece of SQL: an `end` is a semicolon, `name` and `place` may be placeholders."""

    kind: Kind
    text: str
    name: str = ""


class BadSql(Foreseen):
    """The text or its parameters are wrong; found before a database sees them."""

    kind = "client_error"


def tokens(sql: str, dialect: Dialect) -> Iterator[Token]:
    """The whole text in pieces. An unclosed quote extends to the end."""
    at = 0
    while at < len(sql):
        token = _placeholder(sql, at, dialect)
        if token is None:
            kind, end = _next(sql, at, dialect)
            token = Token(kind, sql[at:end])
        yield token
        at += len(token.text)


def _placeholder(sql: str, at: int, dialect: Dialect) -> Token | None:
    char = sql[at]
    if char == "%":
        if found := _PERCENT_NAME.match(sql, at):
            return Token("name", found.group(), found.group(1))
        return Token("place", "%s") if _PERCENT_PLACE.match(sql, at) else None
    if dialect == "postgres":
        return None
    if char == "?":
        is_numbered = sql[at + 1 : at + 2].isdigit()
        return None if is_numbered else Token("place", "?")
    before = sql[at - 1 : at]
    if char in ":$@" and before not in (":", "@") and (found := _NAMED.match(sql, at)):
        if dialect == "duckdb" and (char == "@" or _DOLLAR.match(sql, at)):
            return None
        if dialect == "duckdb" and char == ":" and (before.isalnum() or before in "_]})\"'"):
            return None
        return Token("name", found.group(), found.group(1))
    return None


def _next(sql: str, at: int, dialect: Dialect) -> tuple[Kind, int]:
    char = sql[at]
    if char in "'\"" or (char == "`" and dialect in ("sqlite", "mysql", "sql")):
        escapes = dialect == "mysql" and char != "`"
        return "quoted", _closed(sql, at + 1, char, escapes)
    if char == "[" and dialect == "sqlite":
        end = sql.find("]", at)
        return "quoted", len(sql) if end < 0 else end + 1
    dashes = sql.startswith("--", at) and not (dialect == "mysql" and sql[at + 2 : at + 3].strip())
    if dashes or (char == "#" and dialect == "mysql"):
        end = sql.find("\n", at)
        return "comment", len(sql) if end < 0 else end + 1
    if sql.startswith("/*", at):
        return "comment", _comment_end(sql, at, nests=dialect not in ("sqlite", "mysql"))
    if char == "$" and dialect not in ("sqlite", "mysql") and (tag := _DOLLAR.match(sql, at)):
        end = sql.find(tag.group(), tag.end())
        return "quoted", len(sql) if end < 0 else end + len(tag.group())
    if char == ";":
        return "end", at + 1
    if char in "eE" and dialect != "sqlite" and sql.startswith("'", at + 1):
        return "quoted", _closed(sql, at + 2, "'", True)
    if word := _WORD.match(sql, at):
        return "word", word.end()
    if number := _NUMBER.match(sql, at):
        return "other", number.end()
    return "other", at + 1


def _closed(sql: str, at: int, quote: str, escapes: bool = False) -> int:
    """The position after the closing quote; a doubled one does not close."""
    found = (_TO_ESCAPED if escapes else _TO_QUOTE)[quote].match(sql, at)
    assert found is not None
    return found.end()


def _comment_end(sql: str, at: int, nests: bool) -> int:
    depth, at = 1, at + 2
    while at < len(sql):
        if sql.startswith("*/", at):
            depth, at = depth - 1, at + 2
            if depth == 0:
                return at
        elif nests and sql.startswith("/*", at):
            depth, at = depth + 1, at + 2
        else:
            at += 1
    return len(sql)


# --- Statements --------------------------------------------------------------------------------


def statements(sql: str, dialect: Dialect) -> list[str]:
    """The statements, trimmed, without semicolons; empty ones and lone comments are dropped."""
    found: list[str] = []
    pieces: list[str] = []
    body = _Body(dialect)
    has_code = False
    for kind, text, _ in tokens(sql, dialect):
        if kind == "end" and not body.is_open:
            if has_code:
                found.append("".join(pieces).strip())
            pieces, body, has_code = [], _Body(dialect), False
            continue
        pieces.append(text)
        has_code = has_code or (kind != "comment" and not text.isspace())
        if kind == "word":
            body.see(text.upper())
    if has_code:
        found.append("".join(pieces).strip())
    return found


class _Body:
    """Whether we are inside `BEGIN … END` of a trigger or of a function in standard SQL."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._words: list[str] = []
        self._depth = 0

    @property
    def is_open(self) -> bool:
        return self._depth > 0

    def see(self, word: str) -> None:
        words = self._words
        words.append(word)
        if words[0] != "CREATE":
            return
        if self._depth:
            self._depth += (word == "CASE") - (word == "END")
        elif self._dialect == "sqlite":
            self._depth = int(word == "BEGIN" and "TRIGGER" in words[:3])
        elif self._dialect == "postgres":
            self._depth = int(words[-2:] == ["BEGIN", "ATOMIC"])


def first_word(statement: str, dialect: Dialect) -> str:
    """The verb of a statement, in capitals."""
    return next((t.text.upper() for t in tokens(statement, dialect) if t.kind == "word"), "")


# --- Columns -----------------------------------------------------------------------------------

_CLAUSES = frozenset(
    ["FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "OFFSET", "FETCH", "WINDOW", "FOR"]
)
_UNSURE = frozenset(
    [
        *("INTO", "UNION", "INTERSECT", "EXCEPT", "MINUS", "FORMAT", "PIVOT", "UNPIVOT", "XML"),
        *("JSON", "COLUMNS", "UNNEST", "FLATTEN", "EXPLODE"),
    ]
)
"""Words that may change the columns, in one dialect or another."""
_NO_COLUMN = frozenset(
    [
        *("NULL", "TRUE", "FALSE", "DEFAULT", "USER", "SESSION_USER", "SYSTEM_USER", "SYSDATE"),
        *("CURRENT_DATE", "CURRENT_TIME", "CURRENT_TIMESTAMP", "CURRENT_USER", "CURRENT_SCHEMA"),
        *("LOCALTIME", "LOCALTIMESTAMP", "ROWNUM", "ROWID", "LEVEL", "END"),
    ]
)
"""Words that look like a column and yield one that each database names differently."""
_WRITING = ("INSERT", "UPDATE", "DELETE")
_NAME_MAX = 60
"""Some databases truncate longer names."""


def columns(statement: str, dialect: Dialect) -> tuple[str, ...] | None:
    """The names of the columns that a statement yields; None unless they are certain.

    They are if it is one SELECT (or ends in RETURNING) whose list contains only columns and
    expressions with an alias after AS. Databases differ in letter case: compare without it.
    """
    if any(sign in statement for sign in ("\\", "#", "|>")):
        return None  # escapes, comments and pipes of certain dialects
    names = [_column_name(item) for item in _select_list(statement, dialect)]
    known = [name for name in names if name is not None]
    is_certain = known and len({name.lower() for name in known}) == len(names)
    return tuple(known) if is_certain else None


def _select_list(statement: str, dialect: Dialect) -> list[list[Token]]:
    """The items after SELECT or RETURNING, each as its tokens; empty if not understood."""
    found = [
        token
        for token in tokens(statement, dialect)
        if token.kind != "comment" and not token.text.isspace()
    ]
    outer: list[int] = []
    depth = 0
    for index, token in enumerate(found):
        depth += (token.text in ("(", "[", "{")) - (token.text in (")", "]", "}"))
        if depth == 0:
            outer.append(index)
    words = {i: found[i].text.upper() for i in outer if found[i].kind == "word"}
    verb = words.get(0, "")
    opening = "RETURNING" if verb in _WRITING else "SELECT"
    begins = [i for i, word in words.items() if word == opening]
    is_known = verb in ("SELECT", "WITH", *_WRITING) and len(begins) == 1
    if not is_known or (verb == "WITH" and {*_WRITING, "MERGE"} & set(words.values())):
        return []
    begin = begins[0] + 1
    end = next((i for i in words if i >= begin and words[i] in _CLAUSES), len(found))
    inside = {token.text.upper() for token in found[begin:end]}
    if _UNSURE & inside or any(i >= begin and words[i] in _UNSURE for i in words):
        return []
    cuts = [begin - 1, *(i for i in outer if begin <= i < end and found[i].text == ","), end]
    return [found[a + 1 : b] for a, b in pairwise(cuts)]


def _column_name(item: list[Token]) -> str | None:
    *before, last = item or [Token("other", "")]
    if before and before[-1].text.upper() == "AS":
        return _identifier(last) if len(before) > 1 else None
    if item and item[0].text.upper() in ("DISTINCT", "ALL"):
        item = item[1:]
    path, dots = item[::2], item[1::2]
    is_path = len(path) == len(dots) + 1 and all(dot.text == "." for dot in dots)
    if not is_path or not all(_identifier(part) for part in path):
        return None
    return None if last.text.upper() in _NO_COLUMN else _identifier(last)


def _identifier(token: Token) -> str | None:
    text = token.text
    if token.kind == "quoted":
        text = text[1:-1] if text[0] in '"`[' and len(text) > 2 else ""
    elif token.kind != "word":
        return None
    return text if 0 < len(text) <= _NAME_MAX and not set(text) & set('"`[]') else None


# --- Parameters --------------------------------------------------------------------------------

Params = Mapping[str, Any] | Sequence[Any]


class Bound(NamedTuple):
    """A statement in the driver's spelling, with its values."""

    sql: str
    values: dict[str, Any] | list[Any] | None = None
    """None: it takes none."""


def bound(found: Sequence[str], params: Params, dialect: Dialect) -> list[Bound]:
    """Bind the placeholders of each statement. Raises BadSql if that is impossible.

    From a mapping each statement takes the names it uses. A list is consumed in order over all
    statements. `%(name)s` and `%s` work everywhere; SQLite and DuckDB also have `:name`, `$name`
    and `?`.
    """
    if isinstance(params, Mapping):
        return [_by_name(statement, params, dialect) for statement in found]
    left = list(params)
    bindings: list[Bound] = []
    for statement in found:
        binding = _by_position(statement, left, dialect)
        left = left[len(binding.values or ()) :]
        bindings.append(binding)
    if left:
        raise BadSql(
            f"`params` has {len(params)} values, but the statements have placeholders for "
            f"{len(params) - len(left)} only."
        )
    return bindings


def _by_name(statement: str, params: Mapping[str, Any], dialect: Dialect) -> Bound:
    values: dict[str, Any] = {}
    pieces: list[Token] = []
    for token in tokens(statement, dialect):
        if token.kind != "name" or not _is_meant(token, params, dialect):
            pieces.append(token)
            continue
        name = token.name
        if name not in params:
            raise BadSql(f'The statement binds "{name}", but `params` has no value of that name.')
        values[name] = params[name]
        marks = {"postgres": f"%({name})s", "duckdb": f"${name}"}
        pieces.append(token._replace(text=marks.get(dialect, f":{name}")))
    return _spelled(pieces, values or None, dialect)


def _is_meant(token: Token, params: Mapping[str, Any], dialect: Dialect) -> bool:
    """Whether this is a placeholder: in DuckDB a colon may also be a slice, and some databases have
    variables that begin with @.
    """
    if token.name in params:
        return True
    if token.text.startswith("@") and dialect in ("mysql", "sql"):
        return False
    if token.text.startswith(":"):
        return dialect in ("sqlite", "mysql", "sql")
    return bool(params) or not token.text.startswith("%")


def _by_position(statement: str, left: Sequence[Any], dialect: Dialect) -> Bound:
    values: list[Any] = []
    pieces: list[Token] = []
    for token in tokens(statement, dialect):
        if token.kind == "place" and (left or token.text == "?"):
            if len(values) == len(left):
                raise BadSql("The statements have more placeholders than `params` has values.")
            values.append(left[len(values)])
            token = token._replace(text="%s" if dialect == "postgres" else "?")
        pieces.append(token)
    return _spelled(pieces, values or None, dialect)


def _spelled(pieces: list[Token], values: Any, dialect: Dialect) -> Bound:
    if dialect != "postgres" or values is None:
        return Bound("".join(piece.text for piece in pieces), values)
    # The driver takes every other percent sign for the beginning of a placeholder. A doubled one,
    # as written by people who know that, is one; it may be two tokens.
    runs = groupby(pieces, lambda piece: piece.kind in ("name", "place"))
    texts = [(is_mark, "".join(piece.text for piece in run)) for is_mark, run in runs]
    sql = "".join(text if is_mark else _PERCENTS.sub("%%", text) for is_mark, text in texts)
    return Bound(sql, values)


def driver_spelling(sql: str, values: Any, style: str, dialect: Dialect = "sql") -> Bound:
    """A bound statement in the spelling of a driver (PEP 249, `paramstyle`)."""
    if values is None:
        return Bound(sql, None)
    pieces: list[str] = []
    order: list[Any] = []
    for token in tokens(sql, dialect):
        is_mark = token.kind == "place" or (token.kind == "name" and token.name in values)
        if not is_mark:
            escapes = style in ("format", "pyformat")
            pieces.append(token.text.replace("%", "%%") if escapes else token.text)
            continue
        order.append(values[token.name] if token.kind == "name" else values[len(order)])
        number = len(order)
        spelled = {"qmark": "?", "named": f":p{number}", "numeric": f":{number}"}
        pieces.append(spelled.get(style, "%s"))
    if style == "named":
        return Bound("".join(pieces), {f"p{n}": value for n, value in enumerate(order, 1)})
    return Bound("".join(pieces), tuple(order))  # type: ignore[arg-type]  # drivers want tuples
