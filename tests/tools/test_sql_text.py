"""SQL as text: statements and placeholders, whatever stands in quotes and comments."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.tools.sql.text import BadSql, Bound, bound, first_word, statements, tokens

TRIGGER = """CREATE TEMP TRIGGER t AFTER INSERT ON a BEGIN
  UPDATE b SET n = CASE WHEN n > 1 THEN 2 ELSE 3 END;
  DELETE FROM c;
END"""
FUNCTION = """CREATE FUNCTION f() RETURNS int LANGUAGE SQL BEGIN ATOMIC
  SELECT 1; SELECT CASE WHEN true THEN 2 END;
END"""


@pytest.mark.parametrize(
    ("dialect", "sql", "found"),
    [
        ("postgres", "SELECT 1; SELECT 2", ["SELECT 1", "SELECT 2"]),
        ("postgres", " ; ;SELECT 1;; ", ["SELECT 1"]),
        ("postgres", "SELECT ';'';', \";\"; SELECT 2", ["SELECT ';'';', \";\"", "SELECT 2"]),
        ("postgres", r"SELECT E'\';', 1; SELECT 2", [r"SELECT E'\';', 1", "SELECT 2"]),
        ("postgres", r"SELECT '\'; SELECT 2", [r"SELECT '\'", "SELECT 2"]),
        ("postgres", "SELECT 1 -- a;b\n; SELECT 2", ["SELECT 1 -- a;b", "SELECT 2"]),
        (
            "postgres",
            "SELECT /* ; /* ; */ ; */ 1; SELECT 2",
            ["SELECT /* ; /* ; */ ; */ 1", "SELECT 2"],
        ),
        ("postgres", "-- nothing\n/* at all */;", []),
        ("postgres", "DO $$ BEGIN x; END $$; SELECT 1", ["DO $$ BEGIN x; END $$", "SELECT 1"]),
        ("postgres", "DO $a$ ; $$ ; $b$ ; $a$; SELECT 1", ["DO $a$ ; $$ ; $b$ ; $a$", "SELECT 1"]),
        ("postgres", "SELECT a$1$b; SELECT $1", ["SELECT a$1$b", "SELECT $1"]),
        ("postgres", "SELECT arr[1]; SELECT ';]'", ["SELECT arr[1]", "SELECT ';]'"]),
        ("postgres", f"{FUNCTION}; SELECT 1", [FUNCTION, "SELECT 1"]),
        ("postgres", "BEGIN; SELECT 1; END", ["BEGIN", "SELECT 1", "END"]),
        ("postgres", "SELECT 'open; SELECT 2", ["SELECT 'open; SELECT 2"]),
        ("sqlite", f"{TRIGGER}; SELECT 1", [TRIGGER, "SELECT 1"]),
        ("sqlite", "SELECT [a;b], `c;d`; SELECT 2", ["SELECT [a;b], `c;d`", "SELECT 2"]),
        ("sqlite", "SELECT /* ; /* ; */ 1; SELECT 2", ["SELECT /* ; /* ; */ 1", "SELECT 2"]),
        ("sqlite", "CREATE TABLE trigger_log (begin int); SELECT 1", None),
        ("duckdb", "SELECT [1;2]; SELECT $$;$$", ["SELECT [1", "2]", "SELECT $$;$$"]),
    ],
)
def test_statements_end_at_semicolons_that_are_meant(dialect, sql, found):
    if found is None:
        found = [part.strip() for part in sql.split(";")]
    assert statements(sql, dialect) == found


@given(st.text(alphabet="ab'\"$-/*;[]`\\E \n", max_size=40))
def test_nothing_of_the_text_is_lost(sql):
    for dialect in ("postgres", "sqlite", "duckdb"):
        assert "".join(token.text for token in tokens(sql, dialect)) == sql


@given(
    st.lists(st.sampled_from(["';'", '";"', "/*;*/", "--;\n", "x", "[;]", "`;`", " "]), max_size=8)
)
def test_sqlite_agrees_that_each_statement_is_whole(parts):
    sql = "SELECT 1 " + "".join(parts)

    assert len(statements(f"{sql}; SELECT 2", "sqlite")) == 2
    assert sqlite3.complete_statement(f"{sql};")


def test_the_first_word_is_found_behind_comments():
    assert first_word("/* SELECT */ -- x\n (\n insert", "postgres") == "INSERT"


@pytest.mark.parametrize(
    ("dialect", "sql", "params", "expected"),
    [
        (
            "sqlite",
            "SELECT :a, %(a)s, ':b'",
            {"a": 1, "c": 2},
            Bound("SELECT :a, :a, ':b'", {"a": 1}),
        ),
        ("sqlite", "SELECT ?, %s, '%s'", [1, 2], Bound("SELECT ?, ?, '%s'", [1, 2])),
        ("sqlite", "SELECT 5 %s", {}, Bound("SELECT 5 %s")),
        (
            "duckdb",
            "SELECT $a, :a::INT, x::b",
            {"a": 1, "b": 2},
            Bound("SELECT $a, $a::INT, x::b", {"a": 1}),
        ),
        ("duckdb", "SELECT l[1:n], %(n)s", {"n": 1}, Bound("SELECT l[1:n], $n", {"n": 1})),
        ("duckdb", "SELECT {'a':x}", {"x": 1}, Bound("SELECT {'a':x}")),
        ("duckdb", "SELECT $$:a$$", {"a": 1}, Bound("SELECT $$:a$$")),
        (
            "postgres",
            "SELECT %(a)s, 'x%', '%%', '%(a)s', 5 % 2, 5 %% 2",
            {"a": 1},
            Bound("SELECT %(a)s, 'x%%', '%%', '%%(a)s', 5 %% 2, 5 %% 2", {"a": 1}),
        ),
        ("postgres", "SELECT 'x%', '%s'", {"a": 1}, Bound("SELECT 'x%', '%s'")),
        ("postgres", "SELECT a::text, :b", {"b": 1}, Bound("SELECT a::text, :b")),
        ("postgres", "SELECT %s LIKE 'a%'", ["b"], Bound("SELECT %s LIKE 'a%%'", ["b"])),
    ],
)
def test_values_are_bound_where_they_are_meant(dialect, sql, params, expected):
    assert bound([sql], params, dialect) == [expected]


def test_a_list_of_values_is_used_up_in_order_over_the_statements():
    found = bound(["A %s", "B", "C %s, %s"], [1, 2, 3], "postgres")

    assert [one.values for one in found] == [[1], None, [2, 3]]


@pytest.mark.parametrize(
    ("sql", "params"),
    [("SELECT :a", {"b": 1}), ("SELECT ?", []), ("SELECT ?, ?", [1]), ("SELECT ?", [1, 2])],
)
def test_values_that_do_not_fit_are_refused(sql, params):
    with pytest.raises(BadSql):
        bound([sql], params, "sqlite")
