"""Every area of the language in all its spellings: accepted in silence, and the same net.

A net has no formatting and no spelling. So shuffled keys and another YAML style must give the
same digest, the pairs in `good/same/` the same net, and a change of meaning another one.
"""

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from noetl.dsl import Compiled, compile_text
from noetl.dsl.nodes import plain
from noetl.dsl.read import read
from noetl.dsl.report import Report
from noetl.model.net import Net, decode, digest, encode
from noetl.tools.registry import tools
from tests.dsl.compiling import found, playbook

HERE = Path(__file__).parent
FILES = sorted((HERE / "good").glob("*.yaml"))
PAIRS = sorted(path for path in (HERE / "good" / "same").iterdir() if path.is_dir())
FILES_MIN = 25
TOOLS = tools()


class QuotedDumper(yaml.SafeDumper):
    """Writes data so that texts stay texts under any schema, and without aliases."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')


QuotedDumper.add_representer(str, _quoted)


def compiled(text: str) -> Compiled:
    return compile_text(text, tools=TOOLS)


def net_of(text: str) -> Net:
    """The net of a playbook with which nothing is wrong."""
    found = compiled(text)
    assert found.problems == (), "\n".join(map(str, found.problems))
    assert found.net is not None
    return found.net


def shuffled(data: Any, dice: random.Random) -> Any:
    """The same data with the keys of every mapping in another order.

    `then` of an event rule keeps its order, because its actions take effect as written.
    """
    match data:
        case dict():
            keys = list(data)
            dice.shuffle(keys)
            return {
                key: data[key] if key in ("then", "else") else shuffled(data[key], dice)
                for key in keys
            }
        case list():
            return [shuffled(item, dice) for item in data]
        case _:
            return data


def written_again(text: str, dice: random.Random, flow: bool) -> str:
    """The playbook in another order and another style."""
    data = ordered(text)
    return yaml.dump(
        shuffled(data, dice),
        Dumper=QuotedDumper,
        sort_keys=False,
        default_flow_style=flow,
        allow_unicode=True,
        width=60,
    )


def ordered(text: str) -> Any:
    """The data as our reader sees it, mappings in the order written."""

    def data_of(node: Any) -> Any:
        if hasattr(node, "entries"):
            return {key: data_of(value) for key, value in node.entries.items()}
        if hasattr(node, "items"):
            return [data_of(item) for item in node.items]
        return plain(node)

    return data_of(read(text, Report()))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_good_playbook_compiles_in_silence(path):
    found = compiled(path.read_text())

    assert [str(problem) for problem in found.problems] == []
    assert found.net is not None
    assert found.digest == digest(found.net)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_net_survives_its_canonical_bytes(path):
    net = net_of(path.read_text())

    assert decode(encode(net)) == net
    assert encode(decode(encode(net))) == encode(net)


@pytest.mark.parametrize("flow", [False, True], ids=["block", "flow"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_key_order_and_style_do_not_change_the_digest(path, flow):
    text = path.read_text()
    expected = net_of(text)

    for seed in range(3):
        again = written_again(text, random.Random(seed), flow)
        assert net_of(again) == expected
        assert digest(net_of(again)) == digest(expected)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_comments_blank_lines_and_line_endings_do_not_change_the_digest(path):
    text = path.read_text()
    edited = "# a comment\n\n" + text.replace("\n", "\r\n")

    assert digest(net_of(edited)) == digest(net_of(text))


@pytest.mark.parametrize("path", PAIRS, ids=lambda path: path.name)
def test_two_spellings_of_one_thing_are_one_net(path):
    first, second = ((path / name).read_text() for name in ("a.yaml", "b.yaml"))

    assert first != second
    assert net_of(first) == net_of(second)


def test_what_is_empty_around_a_named_task_is_empty_in_it():
    text = (HERE / "good" / "same" / "named_task_inputs" / "a.yaml").read_text()
    store = "{tool: {kind: noop, args: {rows: 1}}, input: {rows: 2}}"
    policy = "{policy: {rules: [{else: {then: {do: fail}}}]}}"
    inner = f"input: {{a: 1}}, set: {{ctx.a: 1}}, retry: {{max_attempts: 5}}, spec: {policy}"
    emptied = f"{{tool: {{kind: noop, {inner}}}, args: , set: , retry: , spec: }}"

    assert store in text
    assert net_of(text.replace(store, emptied)) == net_of(
        text.replace(store, "{tool: {kind: noop}}")
    )


LOOP = "- step: start\n  loop: {%s, iterator: n}\n  tool: {kind: noop}"
TIMER = """\
- step: start
  spec: {eval_mode: on_event, timers: [{id: late, %s}]}
  case: [{when: "{{ event.name == 'timer' }}", then: {result: {value: 1}}}]
"""
RESULT = """\
- step: start
  spec: {eval_mode: on_event}
  case: [{when: "{{ event.name == 'go' }}", then: {result: {%s}}}]
"""
CURSOR = "cursor: {kind: sqlite, database: a.db, claim: SELECT 1}"


@pytest.mark.parametrize(
    ("workflow", "full", "empty"),
    [
        (LOOP, "in: [1, 2]", "cursor: "),
        (LOOP, CURSOR, "in: "),
        (TIMER, "after: 5m", "at: "),
        (TIMER, "at: '2030-01-31T12:00:00Z'", "after: "),
        (RESULT, "value: 1", "from: "),
        (RESULT, "from: workload", "value: "),
    ],
)
def test_an_empty_key_beside_one_that_says_the_same_is_not_written(
    workflow: str, full: str, empty: str
):
    alone = net_of(playbook(workflow % full))

    assert net_of(playbook(workflow % f"{full}, {empty}")) == alone
    assert net_of(playbook(workflow % f"{empty}, {full}")) == alone


FIELDS = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: fields}
executor: {spec: {inputs: {day: {type: date, help: Which day.%s}}}}
workflow:
  - step: start
    spec:
      eval_mode: on_event
      form: [{name: fine, type: boolean%s}, {name: why, desc: In a word.%s}]
    case: [{when: "{{ event.name == 'approval.received' }}", then: {next: end}}]
  - step: end
    tool: {kind: noop}
"""


def test_an_empty_key_of_an_input_or_a_form_field_is_not_written():
    empty = (", label: , desc: , default: ", ", label: ", ", type: , help: , pattern: ")

    assert net_of(FIELDS % empty) == net_of(FIELDS % ("", "", ""))


def test_good_playbooks_all_mean_something_different():
    digests = {digest(net_of(path.read_text())) for path in FILES}

    assert len(digests) == len(FILES)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("result: 1", "result: 2"),
        ("result: 1", 'result: "1"'),
        ("result: 1", "result: 1.5"),
        ("kind: noop", "kind: noop, args: {a: 1}"),
        ("[a, b]", "[b, a]"),
        ("[a, b]", "a"),
        ("start: true", "start: false"),
        ("name: meaning", "name: other"),
        ("attempts: 3", "attempts: 4"),
        ("do: fail", "do: break"),
        ("step: b", "step: b, spec: {join: each}"),
        ("path: good/meaning", "path: good/other"),
    ],
)
def test_another_meaning_is_another_digest(old, new):
    text = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: meaning, path: good/meaning}
workload: {start: true}
workflow:
  - step: start
    next: [a, b]
  - {step: a, tool: {kind: noop, result: 1}}
  - {step: b, tool: {kind: noop, spec: {policy: {rules: [
      {when: "{{ outcome.status == 'error' and workload.start }}", then: {do: retry, attempts: 3}},
      {when: "{{ outcome.status == 'error' }}", then: {do: fail}},
      {else: {then: {do: continue}}}]}}}}
"""
    assert text.count(old) >= 1
    changed = text.replace(old, new, 1)

    assert compiled(changed).net is not None
    assert compiled(changed).digest != digest(net_of(text))


def test_the_order_of_actions_is_meaning():
    text = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: order, path: good/order}
workflow:
  - step: start
    tool: {kind: noop}
    case:
      - when: "{{ event.name == 'step.exit' }}"
        then: {%s}
"""
    set_first = text % "set: {ctx: {a: 1}}, result: {value: 1}"
    result_first = text % "result: {value: 1}, set: {ctx: {a: 1}}"

    assert net_of(set_first) != net_of(result_first)


def test_there_are_many_good_files():
    assert len(FILES) >= FILES_MIN
    assert len(PAIRS) >= FILES_MIN


EMPTY = {
    "to of a rule without do": "tool: {a: {kind: noop, spec: {policy: {rules: [{else: {then: "
    "{set_ctx: {a: 1}, to: }}}]}}}}",
    "a longest wait without a wait": "tool: {kind: noop}, retry: {max_attempts: 3, max_delay: }",
    "kinds beside a condition": "tool: {kind: noop}, retry: {on: , when: '{{ error.retryable }}'}",
}


@pytest.mark.parametrize("written", EMPTY.values(), ids=EMPTY)
def test_a_key_without_a_value_counts_as_not_written(written):
    assert found(f"- {{step: start, {written}}}") == []
