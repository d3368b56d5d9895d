"""Whatever the text, compiling it gives problems or a net: never a traceback, never a hang.

Random text finds the reader's mistakes; random trees of the language's own words and mutations
of real playbooks find those of the checks and the builder, which text rarely gets to.
"""

import importlib.util
import random
import shutil
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, currently_in_test_context, given, note, settings
from hypothesis import strategies as st

from noetl.dsl import compile_text
from noetl.dsl.codes import CODES
from noetl.model.net import Limits, decode, encode
from noetl.tools.registry import tools
from tests.dsl.attempts import time_limit
from tests.effort import IS_LONG, TIMES

HERE = Path(__file__).parent
GOOD = sorted((HERE / "good").rglob("*.yaml"))
BAD = sorted((HERE / "bad").glob("*.yaml"))
SECONDS_MAX = 30
TOOLS = tools()

short = settings(
    max_examples=100 * TIMES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
cheap = settings(short, max_examples=500 * TIMES)
long = settings(short, max_examples=10_000, derandomize=False)


def check(text: str, limits: Limits | None = None) -> None:
    """The promise of the compiler, whatever it is given."""
    if currently_in_test_context():
        note(text)
    with time_limit(SECONDS_MAX):
        compiled = compile_text(text, tools=TOOLS, limits=limits)
    has_errors = any(problem.severity == "error" for problem in compiled.problems)
    assert (compiled.net is None) == has_errors
    for problem in compiled.problems:
        assert CODES[problem.code] == problem.severity
        assert problem.line >= 1
        assert problem.column >= 1
        assert 0 < len(problem.message) < 2000
    if compiled.net is not None:
        assert decode(encode(compiled.net)) == compiled.net
        assert compile_text(text, tools=TOOLS, limits=limits) == compiled


# --- Text --------------------------------------------------------------------------------------

YAML_PIECES = st.sampled_from(
    [
        *(": ", "- ", "\n", "  ", "{", "}", "[", "]", "&a ", "*a", "<<: ", "|\n", ">-\n", "? "),
        *("'", '"', "#", "---\n", "...\n", "%TAG ", "!!str ", "\t", "~", "a", "1", "{{ ", " }}"),
        *("apiVersion: noetl.io/v2\n", "kind: Playbook\n", "workflow:\n", "  - step: start\n"),
    ]
)


@cheap
@given(st.text(alphabet=st.characters()))
def test_any_text_is_answered(text):
    check(text)


@cheap
@given(st.binary())
def test_any_bytes_are_answered(data):
    check(data.decode("utf-8", errors="surrogateescape"))


@cheap
@given(st.lists(YAML_PIECES, max_size=60).map("".join))
def test_any_pieces_of_yaml_are_answered(text):
    check(text)


@cheap
@given(st.sampled_from(GOOD + BAD), st.randoms(use_true_random=False))
def test_playbooks_with_damaged_text_are_answered(path, dice):
    check(damaged(path.read_text(), dice))


def damaged(text: str, dice: random.Random) -> str:
    """Cut, double, move and overwrite pieces of the text."""
    for _ in range(dice.randint(1, 6)):
        start = dice.randrange(len(text) + 1)
        end = min(len(text), start + dice.randint(0, 30))
        piece = text[start:end]
        match dice.randrange(4):
            case 0:
                text = text[:start] + text[end:]
            case 1:
                text = text[:end] + piece + text[end:]
            case 2:
                rest = text[:start] + text[end:]
                at = dice.randrange(len(rest) + 1)
                text = rest[:at] + piece + rest[at:]
            case _:
                text = text[:start] + dice.choice("\n\t {}[]:-&*!|>'\"%@`#,?\0é{{") + text[end:]
    return text


# --- Trees -------------------------------------------------------------------------------------


def data_of(path: Path) -> Any:
    """The data of a file, if it is YAML that PyYAML can load."""
    try:
        return yaml.load(path.read_text(), yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError):
        return None


PLAYBOOKS = [data for path in GOOD + BAD if isinstance(data := data_of(path), dict)]


def nodes_of(data: Any) -> list[Any]:
    """Every value in a tree, each object once: a bomb has more paths than there are atoms."""
    found: dict[int, Any] = {}
    stack = [data]
    while stack:
        node = stack.pop()
        if id(node) in found:
            continue
        found[id(node)] = node
        if isinstance(node, dict):
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)
    return list(found.values())


PARTS = [node for data in PLAYBOOKS for node in nodes_of(data)]
WORDS = sorted({str(key) for node in PARTS if isinstance(node, dict) for key in node})
TEXTS = sorted({node for node in PARTS if isinstance(node, str)})
"""All keys and texts that occur in our playbooks: the vocabulary of the language."""

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(TEXTS)
    | st.sampled_from(WORDS)
    | st.sampled_from(["{{", "{{ a.b[0] | default(x) }}", "{% for a in b %}", "5s", "-1", "{{ '}}"])
)
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=5), inner, max_size=6)
    ),
    max_leaves=25,
)
entries = st.dictionaries(st.sampled_from(WORDS), trees, max_size=6)


def written(data: Any) -> str:
    """Aliases are left in: data used twice becomes an anchor."""
    return str(yaml.dump(data, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True))


@short
@given(trees)
def test_any_tree_of_the_languages_words_is_answered(data):
    check(written(data))


@settings(short, max_examples=1000 if IS_LONG else 50)  # Most of the time goes into making them.
@given(st.lists(entries, max_size=4), entries, entries)
def test_any_steps_of_the_languages_words_are_answered(steps, root, step):
    named = {**step, "step": "start", "tool": step.get("tool", {"kind": "noop"})}
    playbook = {"apiVersion": "noetl.io/v2", "kind": "Playbook", "metadata": {"name": "x"}, **root}

    check(written({**playbook, "workflow": [named, *steps]}))


@short
@given(st.sampled_from(PLAYBOOKS), st.randoms(use_true_random=False))
def test_playbooks_with_mutated_trees_are_answered(playbook, dice):
    check(written(mutated(playbook, dice)), Limits(max_attempts=2, max_in_flight=1, timeout=1))


@pytest.mark.long
@long
@given(st.sampled_from(PLAYBOOKS), st.randoms(use_true_random=False))
def test_many_more_mutated_trees_are_answered(playbook, dice):
    check(written(mutated(playbook, dice)))


@pytest.mark.long
@long
@given(st.sampled_from(GOOD + BAD), st.randoms(use_true_random=False))
def test_many_more_damaged_texts_are_answered(path, dice):
    check(damaged(path.read_text(), dice))


def mutated(playbook: Any, dice: random.Random) -> Any:
    """Delete, double, move and replace nodes of a playbook."""
    data = deepcopy(playbook)
    for _ in range(dice.randint(1, 5)):
        holders = [node for node in nodes_of(data) if isinstance(node, dict | list) and node]
        if not holders:
            break
        holder = dice.choice(holders)
        key = dice.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        match dice.randrange(5):
            case 0:
                del holder[key]
            case 1:
                holder[key] = deepcopy(dice.choice(PARTS))
            case 2:
                holder[key] = dice.choice(
                    [None, True, 0, -1, 2.5, "", "x", [], {}, [[]], "{{ x }}"]
                )
            case 3 if isinstance(holder, dict):
                holder[dice.choice(WORDS)] = holder.pop(key)
            case _:
                _add(holder, deepcopy(dice.choice([holder[key], dice.choice(PARTS)])), dice)
    return data


def _add(holder: dict[str, Any] | list[Any], node: Any, dice: random.Random) -> None:
    if isinstance(holder, dict):
        holder[dice.choice(WORDS)] = node
    else:
        holder.insert(dice.randrange(len(holder) + 1), node)


# --- Large but harmless-looking ----------------------------------------------------------------

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: large}\n"
TEMPLATES, SUMS, ALIASES = (20_000, 8, 100_000) if IS_LONG else (4_000, 2, 30_000)
STEPS = 5_000 if IS_LONG else 1_500
"""More than Python may call deep."""
TERMS = 60_000 if IS_LONG else 20_000
"""Of each of several sums; one alone is as long as a template may be."""


def one_step(tool: str) -> str:
    return f"{HEAD}workflow:\n  - step: start\n    tool: {tool}\n"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            HEAD
            + "workflow:\n"
            + "".join(
                f"  - {{step: {'start' if n == 0 else f's{n}'}, next: s{n + 1}}}\n"
                for n in range(STEPS)
            )
            + f"  - {{step: s{STEPS}, tool: {{kind: noop}}}}\n",
            id="a long chain",
        ),
        pytest.param(
            HEAD
            + "workflow:\n"
            + f"  - {{step: start, next: [{', '.join(f's{n}' for n in range(STEPS))}]}}\n"
            + "".join(f"  - {{step: s{n}, next: last}}\n" for n in range(STEPS))
            + "  - {step: last, spec: {join: all}, tool: {kind: noop}}\n",
            id="a wide fork",
        ),
        pytest.param(
            one_step(f"[{', '.join(f'{{kind: noop, result: {n}}}' for n in range(STEPS))}]"),
            id="many tasks",
        ),
        pytest.param(one_step(f"{{kind: noop, result: {'x' * 1_000_000}}}"), id="a long text"),
        pytest.param(
            one_step('{kind: noop, result: "{{ ' + "x+" * 65_000 + 'x }}"}'), id="a long sum"
        ),
        pytest.param(
            one_step('{kind: noop, result: "' + "{{ ctx.x }}" * 20_000 + '"}'), id="many braces"
        ),
        pytest.param(
            one_step('{kind: noop, result: "{{ ' + "(" * 20_000 + '"}'), id="open parentheses"
        ),
        pytest.param(
            one_step('{kind: noop, result: "{{ ' + "not " * 20_000 + 'x }}"}'), id="many nots"
        ),
        pytest.param(
            one_step('{kind: noop, result: "' + "{% if x %}" * 5_000 + '"}'), id="open ifs"
        ),
        pytest.param(
            one_step('{kind: noop, result: [&t "{{ ctx.a }}", ' + "*t, " * ALIASES + "]}"),
            id="one template aliased often",
        ),
        pytest.param(
            one_step(
                "{kind: noop, result: ["
                + ", ".join('"{{ ctx.a' + f'{n} }}}}"' for n in range(TEMPLATES))
                + "]}"
            ),
            id="many templates",
        ),
        pytest.param(
            one_step(
                "{kind: noop, result: ["
                + ", ".join('"{{ ' + f"x{n}+" + "x+" * TERMS + 'x }}"' for n in range(SUMS))
                + "]}"
            ),
            id="several long sums",
        ),
        pytest.param(
            HEAD
            + "workflow:\n  - {step: start, next: s0}\n"
            + "".join(f"  - {{step: s{n}, next: [s{n + 1}, typo{n}]}}\n" for n in range(STEPS)),
            id="many misspelt steps",
        ),
        pytest.param(one_step("[" * 60 + "]" * 60), id="lists in lists"),
        pytest.param(
            one_step("[" + "{choose: [{when: true, do: [" * 9 + "{kind: noop}" + "]}]}" * 9 + "]"),
            id="choices in choices",
        ),
        pytest.param(one_step("{" + ", ".join(f"k{n}: 1" for n in range(20_000)) + "}"), id="keys"),
        pytest.param(f"{HEAD}? {'k' * 100_000}\n: 1\n", id="a long key"),
        pytest.param(
            HEAD + "workflow:\n" + "  - {step: start, next: nowhere}\n" * STEPS, id="many mistakes"
        ),
        pytest.param(f"{HEAD}workflow: [{'a, ' * 20_000}]\n", id="many texts that are no steps"),
        pytest.param(f"{HEAD}workflow: [[{'a, ' * 20_000}]]\n", id="many texts in what is no step"),
    ],
)
def test_large_playbooks_are_answered_in_time(text):
    check(text)


# --- Guided by coverage ------------------------------------------------------------------------

needs_atheris = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris has no wheel for this Python"
)


def fuzz(tmp_path: Path, seconds: int) -> None:
    """Run the fuzzer on our playbooks; a crash, a hang or too much memory fails."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, path in enumerate(GOOD + BAD):
        shutil.copy(path, corpus / f"{number}_{path.name}")
    done = subprocess.run(
        [
            sys.executable,
            str(HERE / "atheris_target.py"),
            str(corpus),
            f"-max_total_time={seconds}",
            "-timeout=20",
            "-max_len=4096",
            "-rss_limit_mb=2048",
            f"-artifact_prefix={tmp_path}/",
        ],
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=seconds * 3 + 120,
        check=False,
    )
    culprits = [path.read_bytes() for path in tmp_path.iterdir() if path.is_file()]

    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-1000:]}\n{culprits}"


@pytest.mark.long
@needs_atheris
def test_the_fuzzer_finds_nothing_in_two_minutes(tmp_path):
    fuzz(tmp_path, seconds=120)
