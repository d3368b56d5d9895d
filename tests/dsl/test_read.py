"""Reading YAML: hostile documents end quickly with a problem, honest ones mean what they show.

T25 in full: bombs, depth, cycles, duplicate keys and scalars that surprise. `attempt` bounds the
time of every document here, so no input can hang a server.
"""

import math
import tracemalloc

import pytest

from noetl.dsl.nodes import Mapping, plain
from noetl.dsl.read import BYTES_MAX, DEPTH_MAX, NODES_MAX
from noetl.dsl.report import PROBLEMS_MAX
from noetl.model.problems import Place
from tests.dsl.attempts import attempt, message_of, refusals, value_of

# --- Bombs -------------------------------------------------------------------------------------


def laughs(levels: int, width: int = 10) -> str:
    lines = ["a0: &a0 [lol]"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]")
    return "\n".join(lines)


def test_t25_a_billion_laughs_are_refused_where_they_pass_the_limit():
    [(code, line, _)] = refusals(laughs(levels=30))

    assert code == "yaml-alias-limit"
    assert line == 7


def test_t25_laughs_built_from_mappings_and_merge_keys_are_refused():
    lines = ["a0: &a0 {k: v}"]
    for level in range(1, 30):
        pairs = ", ".join(f"k{index}: *a{level - 1}" for index in range(10))
        lines.append(f"a{level}: &a{level} {{<<: *a{level - 1}, {pairs}}}")

    assert refusals("\n".join(lines))[0][0] == "yaml-alias-limit"


def test_t25_many_aliases_of_one_large_text_are_refused():
    text = f"big: &big {'x' * 1_000_000}\nall: [{', '.join(['*big'] * 400_000)}]\n"

    assert [code for code, _, _ in refusals(text)] == ["yaml-alias-limit"]


def test_t25_many_aliases_of_one_long_key_keep_the_report_small():
    text = f"? &k {'x' * 50_000}\n: 1\n" + "*k : 2\n" * 600
    tracemalloc.start()
    _, problems = attempt(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert {problem.code for problem in problems} <= {"yaml-duplicate-key", "yaml-alias-limit"}
    assert all(len(problem.message) < 1000 for problem in problems)
    assert peak < 50_000_000


def test_t25_harmless_aliases_are_fine():
    text = "a: &a [1, 2]\n" + "".join(f"b{index}: *a\n" for index in range(10_000))
    root, problems = attempt(text)

    assert problems == ()
    assert plain(root)["b9999"] == [1, 2]


def test_t25_a_document_over_the_size_limit_is_refused_unread():
    text = "a: " + "x" * (5 * 1024 * 1024)

    assert refusals(text) == [("yaml-too-large", 1, 1)]
    assert "5,242,883 bytes" in message_of(text)


def test_t25_the_size_limit_counts_bytes_not_characters():
    assert refusals("a: " + "é" * (BYTES_MAX // 2))[0][0] == "yaml-too-large"


def test_t25_a_document_just_below_the_size_limit_is_read():
    text = "a: " + "x" * (BYTES_MAX - 3)
    root, problems = attempt(text)

    assert problems == ()
    assert len(plain(root)["a"]) == BYTES_MAX - 3


def test_t25_a_document_of_too_many_nodes_is_too_large_even_without_aliases():
    assert refusals(f"a: [{'1,' * (NODES_MAX + 1)}]")[0][0] == "yaml-too-large"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: " + "[" * 5000 + "]" * 5000, id="flow lists"),
        pytest.param("a: " + "{a: " * 5000 + "1" + "}" * 5000, id="flow mappings"),
        pytest.param("a: " + "[" * 1_000_000, id="brackets never closed"),
        pytest.param("- " * 5000 + "a", id="block lists"),
        pytest.param("? " * 5000 + "a", id="block keys"),
        pytest.param("".join(" " * n + "a:\n" for n in range(2500)), id="block mappings"),
    ],
)
def test_t25_deep_nesting_is_refused_at_the_limit(text):
    [(code, line, column)] = refusals(text)

    assert code == "yaml-too-deep"
    assert line <= DEPTH_MAX + 1
    assert column <= DEPTH_MAX * 5


def test_t25_block_mappings_5000_deep_are_already_too_large():
    assert refusals("".join(" " * n + "a:\n" for n in range(5000)))[0][0] == "yaml-too-large"


def test_t25_depth_made_of_aliases_counts():
    chain = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 900))

    assert refusals(chain) == [("yaml-too-deep", DEPTH_MAX, 12)]


def test_t25_nesting_up_to_the_limit_is_fine():
    root, problems = attempt("a: " + "[" * (DEPTH_MAX - 1) + "]" * (DEPTH_MAX - 1))

    assert problems == ()
    assert root is not None
    assert root.height == DEPTH_MAX


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("a: &a [*a]", 1, 8),
        ("a: &a\n  b: *a\n", 2, 6),
        ("a: &a\n  - b:\n      - *a\n", 3, 9),
        ("a: &a\n  <<: *a\n", 2, 7),
    ],
)
def test_t25_an_alias_inside_its_own_anchor_is_a_cycle(text, line, column):
    assert refusals(text) == [("yaml-alias-cycle", line, column)]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("".join(f"%TAG !a{n}! x\n" for n in range(200_000)), id="tag directives"),
        pytest.param("a: 1\n...\n" + "%TAG !a! x\n" * 100_000, id="second document"),
        pytest.param("a: 1\n" * 600_000, id="duplicate keys"),
        pytest.param("a: [" + ".nan," * 800_000 + "]", id="bad numbers"),
        pytest.param("a: {" + "b, " * 1_000_000 + "}", id="flow keys", marks=pytest.mark.long),
        pytest.param("a: " + "&x " * 1_000_000, id="anchors"),
        pytest.param("a: '" + "x\n" * 1_000_000, id="open quote"),
        pytest.param("a: |\n" + " " * 3_000_000 + "\n x", id="wide indentation"),
        pytest.param("#" * 4_000_000, id="a comment"),
        pytest.param("\n" * 4_000_000, id="empty lines"),
    ],
)
def test_t25_large_nonsense_is_refused_in_time(text):
    codes = refusals(text)

    assert 0 < len(codes) <= PROBLEMS_MAX + 1


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: 1." + "1" * 4_000_000, id="fraction"),
        pytest.param("a: 1e" + "0" * 4_000_000 + "1", id="exponent"),
        pytest.param("a: x\n" + "  x\n" * 900_000, id="folded text"),
        pytest.param("a: " + "a:b" * 1_300_000, id="colons"),
    ],
)
def test_t25_large_scalars_are_read_in_time(text):
    _, problems = attempt(text)

    assert problems == ()


def test_t25_paths_of_long_nested_keys_stay_short():
    depth = 50
    text = "".join(" " * n + "k" * 1000 + ":\n" for n in range(depth))
    text += " " * depth + f"a: [{'1,' * 20_000}]\n" + "b: .nan\n"
    tracemalloc.start()
    _, [problem] = attempt(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert (problem.code, problem.path) == ("yaml-value", "b")
    assert peak < 40_000_000


# --- Keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("a: 1\na: 2\n", 2, 1),
        ("x:\n  a: 1\n  b: 2\n  a: 3\n", 4, 3),
        ("x: {a: 1, a: 2}\n", 1, 11),
        ("'a': 1\n\"a\": 2\n", 2, 1),
        ("1: x\n'1': y\n", 2, 1),
        ("x: &k a\n*k : 1\na: 2\n", 3, 1),
        ("b: &b {x: 1}\nc:\n  <<: *b\n  <<: *b\n", 4, 3),
    ],
)
def test_t25_a_duplicate_key_is_refused_at_the_second(text, line, column):
    assert refusals(text) == [("yaml-duplicate-key", line, column)]


def test_a_duplicate_key_names_the_line_of_the_first():
    assert "the first is on line 1" in message_of("a: 1\nb: 2\na: 3\n")


def test_all_duplicates_are_reported_and_reading_goes_on():
    assert refusals("a: 1\na: 2\nb: .nan\na: 3\n") == [
        ("yaml-duplicate-key", 2, 1),
        ("yaml-value", 3, 4),
        ("yaml-duplicate-key", 4, 1),
    ]


def test_equal_keys_of_different_mappings_are_fine():
    root, problems = attempt("a: {k: 1}\nb: {k: 2}\n")

    assert problems == ()
    assert plain(root) == {"a": {"k": 1}, "b": {"k": 2}}


def test_keys_are_texts_as_written():
    root, problems = attempt("1: a\n1.50: b\ntrue: c\n0x1F: d\nno: e\n'': f\n2024-01-01: g\n")

    assert problems == ()
    assert root is not None
    assert list(root.entries) == ["1", "1.50", "true", "0x1F", "no", "", "2024-01-01"]


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("a: {{ x }}\n", 1, 5),
        ("a: {{ x }}/path\n", 1, 5),
        ("? [a, b]\n: 1\n", 1, 3),
        ("? {a: b}\n: 1\n", 1, 3),
        ("~: 1\n", 1, 1),
        ("a:\n  null: 1\n", 2, 3),
        ("? \n: 1\n", 1, 2),
    ],
)
def test_a_key_that_is_no_plain_text_is_refused(text, line, column):
    assert refusals(text) == [("yaml-key", line, column)]


def test_an_unquoted_template_is_told_to_stand_in_quotes():
    assert '"{{ … }}"' in message_of("url: {{ workload.url }}\n")


def test_merge_keys_take_over_what_is_not_written_out():
    root, problems = attempt(
        "base: &base {x: 1, y: 1}\nmore: &more {y: 2, z: 2}\nc:\n  z: 3\n  <<: [*base, *more]\n"
    )

    assert problems == ()
    assert plain(root)["c"] == {"x": 1, "y": 1, "z": 3}


def test_a_merged_key_keeps_the_place_where_it_was_written():
    root, _ = attempt("base: &base\n  x: 1\nc:\n  <<: *base\n")

    assert root is not None
    merged = root.get("c")
    assert isinstance(merged, Mapping)
    assert merged.keys["x"] == Place(2, 3)


@pytest.mark.parametrize("source", ["3", "text", "[1, {a: 1}]", "~"])
def test_merging_something_other_than_mappings_is_refused(source):
    assert refusals(f"c:\n  <<: {source}\n") == [("yaml-key", 2, 3)]


def test_a_quoted_merge_key_is_an_ordinary_key():
    root, problems = attempt('c: {"<<": 3}\n')

    assert problems == ()
    assert plain(root) == {"c": {"<<": 3}}


# --- Scalars -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        *("no", "yes", "on", "off", "y", "n", "No", "YES", "On"),
        *("012", "0755", "00", "-012", "01.5", "1_000", "0b11", "0O17", "0X1F", "-0x1F"),
        *("12:30", "12:30:45", "190:20:30", "2024-01-01", "2024-01-01T12:00:00Z"),
        *("1.2.3", "1e", "e3", ".", "+", "-.", "1 000", "1,000", "١٢", "5s", "tRue", "nUll"),
        *("nan", "inf", "Infinity", "NaN", "none", "None", "undefined"),
    ],
)
def test_t25_scalars_that_only_look_like_something_stay_texts(text):
    assert value_of(text) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("True", True),
        ("FALSE", False),
        ("~", None),
        ("null", None),
        ("NULL", None),
        ("", None),
        ("0", 0),
        ("-0", 0),
        ("+5", 5),
        ("42", 42),
        ("0x1F", 31),
        ("0o17", 15),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("0.5", 0.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("-1.25", -1.25),
        ("1e3", 1000.0),
        ("1E-3", 0.001),
        ("12e03", 12000.0),
    ],
)
def test_t25_plain_values_are_read_as_yaml_1_2_says(text, value):
    found = value_of(text)

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("quoted", ["'12'", '"12"', "|-\n  12", ">-\n  12", "!!str 12"])
def test_quoted_scalars_are_texts(quoted):
    assert value_of(quoted) == "12"


@pytest.mark.parametrize(
    "text",
    [
        *(".nan", ".NaN", ".inf", "-.INF", "+.Inf", "1e400", "-1e999"),
        *("9223372036854775808", "-9223372036854775809", "0xFFFFFFFFFFFFFFFFF", "9" * 5000),
    ],
)
def test_t25_numbers_json_cannot_carry_are_refused(text):
    assert refusals(f"a: {text}\n") == [("yaml-value", 1, 4)]
    assert "quotes" in message_of(f"a: {text}\n")
    assert value_of(f'"{text}"') == text


def test_no_value_is_ever_infinite():
    assert math.isfinite(value_of("1e308"))
