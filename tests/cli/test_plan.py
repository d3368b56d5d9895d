"""`noetl plan`: the picture of a playbook from its file."""

from __future__ import annotations

import json
import subprocess
from time import perf_counter

import pytest
from rich.cells import cell_len

from tests.cli.conftest import COMMAND, clean_environment

ORDERS = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: orders, path: examples/orders}
keychain:
  - {name: pg, kind: postgres_credential}
workflow:
  - step: start
    tool: {kind: noop}
    next:
      spec: {mode: exclusive}
      arcs:
        - step: fetch
          when: "{{ workload.enabled and workload.shop != 'two' and not workload.done }}"
        - {step: end}
  - step: fetch
    loop:
      in: "{{ workload.ids }}"
      iterator: id
      spec: {mode: parallel, max_in_flight: 8}
    tool:
      - {name: save, kind: postgres, auth: pg, command: "SELECT 1"}
    next: end
  - step: end
    tool: {kind: noop}
  - step: lost
    tool: {kind: noop}
workload: {enabled: true, shop: one, ids: [1, 2]}
"""


@pytest.fixture
def orders(tmp_path):
    (tmp_path / "orders.yaml").write_text(ORDERS)
    return "orders.yaml"


def test_the_picture_is_plain_ascii_without_a_terminal(noetl, orders):
    ran = noetl("plan", orders)

    assert ran.code == 0
    assert ran.out.isascii()
    assert (
        "+- if workload.enabled and workload.shop != 'two' and not workload.done -> fetch"
        in ran.out
    )
    assert "for each id in workload.ids  (parallel, 8 in flight)" in ran.out
    assert "unreachable, no token can get here:\no  lost" in ran.out
    assert "pg  postgres_credential  used by fetch" in ran.out
    assert "1 warning; `noetl validate` lists" in ran.err


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_terminal_gets_colours_and_no_line_wider_than_itself(
    on_terminal, uncoloured, orders, columns
):
    shown = on_terminal("plan", orders, columns=columns)
    lines = uncoloured(shown).splitlines()

    assert "\x1b[" in shown
    assert "●  start" in shown.replace("\x1b[0m", "").replace("\x1b[1m", "").replace("\x1b[2m", "")
    assert max(map(cell_len, lines)) <= columns
    assert "'two' and not workload.done" in " ".join(line.lstrip("│ ") for line in lines)


def test_no_color_makes_the_terminal_plain(on_terminal, noetl, orders):
    assert on_terminal("plan", orders, NO_COLOR="1") == noetl("plan", orders).out


def test_json_is_one_document_with_the_net(noetl, orders):
    ran = noetl("plan", "--json", orders)
    plan = json.loads(ran.out)

    assert ran.code == 0
    assert {"entry", "steps", "arcs", "credentials", "unreachable", "digest"} <= set(plan)
    assert plan["unreachable"] == ["lost"]
    assert len(plan["digest"]) == 64


def test_dot_and_mermaid_are_printed(noetl, orders):
    assert noetl("plan", "--dot", orders).out.startswith('digraph "orders" {')
    assert noetl("plan", orders, "--mermaid").out.startswith("flowchart TD\n")


def test_stdin_can_be_planned(noetl):
    assert noetl("plan", "-", stdin=ORDERS).out.startswith("orders  examples/orders\n")


@pytest.mark.parametrize("form", [[], ["--json"], ["--dot"], ["--mermaid"]])
def test_a_wrong_playbook_is_not_drawn(noetl, tmp_path, form):
    (tmp_path / "bad.yaml").write_text(ORDERS.replace("next: end", "next: edn"))

    ran = noetl("plan", *form, "bad.yaml")

    assert (ran.code, ran.out) == (2, "")
    assert "bad.yaml:22:" in ran.err
    assert "[unknown-step]" in ran.err


@pytest.mark.parametrize(
    ("name", "reason"),
    [("missing.yaml", "there is no such file"), (".", "this is a directory; name one file")],
)
def test_what_is_no_file_cannot_be_planned(noetl, name, reason):
    ran = noetl("plan", name)

    assert (ran.code, ran.out, ran.err) == (2, "", f"noetl: {name}: {reason}.\n")


def test_a_reader_that_stops_early_gets_no_traceback(tmp_path):
    (tmp_path / "large.yaml").write_text(_large(2000))
    command = subprocess.list2cmdline([*COMMAND, "plan", "large.yaml"])

    ran = subprocess.run(
        f"{command} | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=clean_environment(),
    )

    assert ran.stdout == "large  large\n".replace("  large", "")
    assert "Traceback" not in ran.stderr


def test_two_thousand_steps_are_drawn_on_a_terminal_in_seconds(on_terminal, tmp_path, uncoloured):
    (tmp_path / "large.yaml").write_text(_large(2000))

    began = perf_counter()
    shown = on_terminal("plan", "large.yaml")

    assert perf_counter() - began < 20
    assert uncoloured(shown).count("●") == 2000


def _large(size: int) -> str:
    steps = "".join(
        f"  - step: s{n}\n    tool: {{kind: noop}}\n    next: s{n + 1}\n" for n in range(size - 1)
    )
    return (
        "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: large, path: large}\n"
        "executor: {spec: {entry_step: s0}}\n"
        f"workflow:\n{steps}  - step: s{size - 1}\n    tool: {{kind: noop}}\n"
    )
