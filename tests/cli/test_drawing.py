"""The picture of a net: nothing twice, nothing missing, never too wide."""

from __future__ import annotations

import io
import re
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from noetl.cli.views.description import summary
from noetl.cli.views.drawing import ASCII, DEPTH_MAX, LINES, draw
from noetl.cli.views.paint import Drawn, Span, plain, wrapped
from noetl.engine.graph import graph_of
from noetl.model.graph import dominators
from noetl.model.net import Arc, Block, CaseSettings, Net, Patch, Route, Rule, Target, Timer
from tests.cli.nets import ORDERS, net, nets, step, task

PICTURE = """\
orders  examples/orders
Fetch orders, price them, store them.
6 steps, 9 arcs, digest 0123456789ab

●  start  entry, exclusive
│  check  noop
├─ if workload.enabled ─▶ fetch
├─ otherwise ─▶ end
│
●  fetch  exclusive
│  for each id in workload.ids  (parallel, 8 in flight)
│  call   http  GET {{ workload.api }}/{{ iter.id }}
│    if outcome.error.kind == 'rate_limit': retry, 5 tries, exponential 1 s up to 1 min
│    else: fail
│  price  python  def main(): ...
├─ if event.name == 'call.error' ─▶ report
├─ otherwise ─▶ store
│
●  store  exclusive
│  save  postgres  INSERT ...
│  case 1 if event.name == 'call.error': go to report
├─ case 1 ─▶ report
├─ if store.more ─▶ ↺ fetch
├─ otherwise ─▶ end
│
●  report
│  mail  http  GET https://x.test
│
●  end
   join all: one token from every arc

unreachable, no token can get here:
○  lost
│  nothing  noop
╰─▶ end

credentials needed:
   pg  postgres_credential  used by store
   api_token  not declared under keychain  used by fetch
"""


def picture(drawn: Net, glyphs=LINES) -> str:
    return "\n".join(plain(draw(drawn, "0123456789abcdef", glyphs))) + "\n"


def headlines(drawn: Net) -> list[str]:
    return re.findall(r"^[│ ]*[●○]  (\S+)", picture(drawn), re.MULTILINE)


def test_the_picture_shows_steps_arcs_loops_tools_rules_credentials_and_what_is_unreachable():
    assert picture(ORDERS) == PICTURE


def test_the_plain_picture_is_made_of_ascii():
    assert picture(ORDERS, ASCII).isascii()


def test_the_arms_of_a_fork_stand_inside_it_and_their_meeting_point_after_it():
    forked = net(
        step("fork", "left", "right", mode="inclusive"),
        step("left", "join"),
        step("right", "join"),
        step("join", "end"),
        step("end"),
    )

    assert picture(forked).split("\n\n")[1] == (
        "●  fork  entry, inclusive\n"
        "├─ always\n"
        "│  ●  left\n"
        "│  ╰─▶ join\n"
        "├─ always\n"
        "│  ●  right\n"
        "│  ╰─▶ join\n"
        "│\n"
        "●  join\n"
        "│\n"
        "●  end\n"
    )


def test_no_line_is_drawn_to_a_step_that_the_one_above_does_not_lead_to():
    early_exit = net(
        step("a", Arc(step="b", when="{{ ctx.x }}"), "end"),
        step("b", Arc(step="c", when="{{ ctx.x }}"), "end"),
        step("c"),
        step("end"),
    )

    assert "●  c\n\n●  end\n" in picture(early_exit)


def test_a_target_known_only_at_run_time_is_shown_and_leaves_no_step_unreachable():
    dispatching = net(step("a", "{{ ctx.where }}"), step("b", "a"))

    assert "╰─▶ <ctx.where>" in picture(dispatching)
    assert "chosen by name at run time:\n○  b" in picture(dispatching)
    assert graph_of(dispatching).unreachable == ()


def test_a_step_that_undoes_another_is_not_unreachable():
    undone = net(step("pay", "end", compensate="refund"), step("refund"), step("end"))

    assert graph_of(undone).unreachable == ()
    assert "to undo it" in picture(undone)


def test_waiting_timers_admission_and_patches_are_told():
    waiting = net(
        step(
            "wait",
            case=CaseSettings(wait=True),
            timers=(Timer(id="late", after=90),),
            patch=Patch(ctx={"a": 1}),
            tasks=(task("t", rules=(Rule(label="x", when=True, actions=()),), timeout=120),),
            timeout=3600,
        )
    )

    text = picture(waiting)

    assert "waits for events" in text
    assert "timer late after 90 s" in text
    assert "set ctx.a" in text
    assert "always: nothing" in text
    assert "timeout 2 min" in text
    assert "timeout 1 h" in text


def test_the_workbook_is_shown_after_the_steps():
    block = Block(name="load", description="All of it.", tasks=(task("t", "workbook"),))

    assert picture(net(step("a"), workbook=(block,))).endswith(
        "\nworkbook, called by name:\n●  load\n   All of it.\n   t  workbook\n"
    )


@pytest.mark.parametrize(
    ("kind", "config", "words"),
    [
        ("http", {"url": "{{ ctx.u }}", "method": "POST"}, "POST ctx.u"),
        ("transfer", {"source": {"kind": "http"}, "target": {"kind": "sqlite"}}, "http to sqlite"),
        ("nats", {"op": "publish", "subject": "orders"}, "publish orders"),
        ("workbook", {"task": "load"}, "load"),
        ("postgres", {"commands": ["SELECT 1", "SELECT 2"]}, "SELECT 1"),
        ("python", {"code": "\nimport os\nresult = 1\n"}, "import os …"),
        ("shell", {"cmd": "x" * 100}, "x" * 59 + "…"),
        ("noop", {}, ""),
    ],
)
def test_a_call_is_told_by_what_people_know_it_by(kind, config, words):
    assert summary(task("t", kind, config=config)) == words


def test_control_characters_in_names_and_guards_do_not_reach_the_terminal():
    hostile = net(step("a", Arc(step="b", when="{{ '\x1b[2J\n\u202e' }}")), step("b\x07"))

    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", picture(hostile))


@settings(deadline=None)
@given(nets())
def test_every_step_is_drawn_once_and_every_arc_is_shown(drawn):
    graph = graph_of(drawn)
    text = picture(drawn)
    falls = sum(
        len(graph.out[name]) == 1 and not re.search(rf"●  {name}(  entry)?\n[│ ]*[├╰]", text)
        for name in graph.order
    )

    assert sorted(headlines(drawn)) == sorted(graph.steps)
    assert len(re.findall("[├╰]─", text)) + falls == sum(1 for _ in graph.edges)


@settings(deadline=None)
@given(nets())
def test_a_dominator_is_a_step_without_which_there_is_no_way(drawn):
    graph = graph_of(drawn)
    ways = {name: [edge.target for edge in graph.out[name]] for name in graph.order}
    above = dominators(ways, graph.entry)

    assert set(above) == set(graph.order[1:])
    for name, dominator in above.items():
        if dominator != graph.entry:
            assert name not in _reached(graph, without=dominator)
        for other in graph.order:
            is_above = other not in (name, graph.entry) and name not in _reached(graph, other)
            assert not is_above or other in _chain(above, name)


def _reached(graph, without):
    found, open_ends = {graph.entry}, [graph.entry]
    while open_ends:
        for edge in graph.out[open_ends.pop()]:
            if edge.target not in found and edge.target != without:
                found.add(edge.target)
                open_ends.append(edge.target)
    return found


def _chain(above, name):
    while name in above:
        name = above[name]
        yield name


@settings(deadline=None)
@given(nets())
def test_what_is_unreachable_is_what_no_way_leads_to(drawn):
    graph = graph_of(drawn)

    assert set(graph.steps) - _reached(graph, without=None) == set(graph.unreachable)


def test_two_thousand_steps_are_drawn_quickly_and_no_deeper_than_the_limit():
    size = 2000
    chain = [step(f"s{n}", Arc(step=f"s{n + 1}", when="{{ ctx.a }}"), f"e{n}") for n in range(size)]
    ends = [step(f"e{n}", f"s{max(n - 1, 0)}") for n in range(size)]
    large = net(*chain, *ends, step(f"s{size}"))

    began = process_time()
    text = picture(large)

    assert process_time() - began < 5
    assert len(headlines(large)) == 2 * size + 1
    assert max(line.count("│") for line in text.splitlines()) <= DEPTH_MAX + 1


def test_deeply_nested_forks_do_not_run_out_of_stack():
    size = 3000
    arms = [step(f"a{n}", f"a{n + 1}", f"b{n + 1}", mode="inclusive") for n in range(size)]
    joins = [step(f"b{n + 1}", f"b{n}") for n in range(size)]

    assert len(headlines(net(*arms, step(f"a{size}", f"b{size}"), *joins, step("b0")))) == (
        2 * size + 2
    )


WORDS = st.text(st.sampled_from("ab 日é\u0301"), max_size=40)


@settings(deadline=None)
@given(st.lists(WORDS, max_size=6), st.integers(30, 60))
def test_broken_rows_fit_the_terminal_and_lose_nothing(words, width):
    row = Drawn("│  ", "│    ", tuple(Span(word, "guard") for word in words))
    console = Console(file=io.StringIO(), width=width, color_system=None)

    lines = [line.plain for line in wrapped([row], console)]

    assert all(cell_len(line) <= width for line in lines)
    assert "".join("".join(lines).replace("│", "").split()) == "".join("".join(words).split())


def test_a_rule_with_several_targets_gives_an_arc_for_each():
    actions = (Route(targets=(Target(step="b"), Target(step="c"))),)
    forked = net(
        step("a", tasks=(task("t", rules=(Rule(label="r", actions=actions),)),)),
        step("b"),
        step("c"),
    )

    assert [(edge.target, edge.kind) for edge in graph_of(forked).edges] == [
        ("b", "case"),
        ("c", "case"),
    ]
