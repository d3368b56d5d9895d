"""The net for other programs: what they read is what we meant."""

from __future__ import annotations

import json
import re

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from noetl.cli.views.diagrams import document, dot, mermaid
from noetl.model.net import Arc, Loop
from tests.cli.nets import ORDERS, net, nets, step, task

DOT_STATEMENT = re.compile(
    r'  (?:(?:graph|node|edge|[st]\d+) \[(?P<node>(?:[^"\]]|"(?:[^"\\]|\\.)*")*)\]'
    r'|[st]\d+ -> [st]\d+(?: \[(?P<edge>(?:[^"\]]|"(?:[^"\\]|\\.)*")*)\])?);'
)
MERMAID_TEXT = r'"(?:[^"<]|<br/>)*"'
MERMAID_STATEMENT = re.compile(
    rf"  (?:s\d+(?:\({MERMAID_TEXT}\)|\[\[{MERMAID_TEXT}\]\])|t\d+>{MERMAID_TEXT}\]"
    rf"|s\d+ (?:-->|-\.->)(?:\|{MERMAID_TEXT}\|)? [st]\d+"
    r"|classDef \w+ .*|class (?:s\d+,?)+ \w+|linkStyle [\d,]+ stroke:\w+)"
)


def labels(text: str) -> list[str]:
    return re.findall(r'label="((?:[^"\\]|\\.)*)"', text)


def test_dot_has_a_node_for_every_step_and_an_edge_with_its_guard_for_every_arc():
    text = dot(ORDERS)

    assert text.startswith('digraph "orders" {\n')
    assert text.endswith("}\n")
    assert 's0 [label="start\\ncheck: noop", penwidth=2];' in text
    assert 's0 -> s1 [label="if workload.enabled"];' in text
    assert re.search(r'label="lost.*dashed', text)
    assert 's2 -> s1 [label="if store.more", constraint=false, color=purple];' in text
    assert "s2 -> s3 [label=\"case 1: if event.name == 'call.error'\", style=dotted];" in text


def test_mermaid_has_a_node_for_every_step_and_an_edge_with_its_guard_for_every_arc():
    text = mermaid(ORDERS)

    assert text.startswith("flowchart TD\n")
    assert '  s0 -->|"if workload.enabled"| s1\n' in text
    assert '  s2 -.->|"case 1: if event.name == #39;call.error#39;"| s3\n' in text
    assert "  class s5 unreachable\n" in text
    assert re.search(r"  linkStyle \d+ stroke:purple\n", text)


ANYTHING = st.text(min_size=1, max_size=30)


@settings(deadline=None)
@given(ANYTHING, ANYTHING)
def test_no_name_or_guard_can_break_out_of_its_label(name, guard):
    looped = step(
        "a",
        Arc(step="b", when=guard),
        loop=Loop(iterator=name, items=guard),
        tasks=(task(name, guard),),
    )
    drawn = net(looped, step("b", guard + "{{"))

    for line in dot(drawn).splitlines()[1:-1]:
        assert DOT_STATEMENT.fullmatch(line), line
    for line in mermaid(drawn).splitlines()[1:]:
        assert MERMAID_STATEMENT.fullmatch(line), line


@settings(deadline=None)
@given(st.text(st.sampled_from('ab"\\{}<>|#;n'), min_size=1, max_size=20))
def test_what_graphviz_reads_back_is_the_name(name):
    [label, *_] = labels(dot(net(step(name))))

    assert label.replace('\\"', '"').replace("\\\\", "\\") == name


@settings(deadline=None)
@given(nets())
def test_all_three_forms_have_the_same_arcs(drawn):
    arcs = document(drawn, "d")["arcs"]

    assert len(re.findall("->", dot(drawn))) == len(arcs)
    assert len(re.findall(r"^  s\d+ -", mermaid(drawn), re.MULTILINE)) == len(arcs)


def test_the_document_is_json_and_holds_what_the_picture_shows():
    plan = json.loads(msgspec.json.encode(document(ORDERS, "abc")))

    assert plan["entry"] == "start"
    assert plan["digest"] == "abc"
    assert plan["unreachable"] == ["lost"]
    assert [one["name"] for one in plan["steps"]][:2] == ["start", "fetch"]
    assert plan["steps"][1]["loop"] == {
        "iterator": "id",
        "in": "{{ workload.ids }}",
        "range": None,
        "cursor": None,
        "mode": "parallel",
        "max_in_flight": 8,
        "on_error": "fail",
    }
    assert plan["arcs"][0] == {
        "from": "start",
        "to": "fetch",
        "when": "{{ workload.enabled }}",
        "kind": "next",
        "on_failure": False,
        "back": False,
    }
    assert plan["credentials"] == [
        {
            "name": "pg",
            "kind": "postgres_credential",
            "declared": True,
            "used_by": ["store"],
        },
        {"name": "api_token", "kind": None, "declared": False, "used_by": ["fetch"]},
    ]
