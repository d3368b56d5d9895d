"""`noetl test`: playbooks on the real engine, with stand-ins and time that jumps."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from noetl.dsl.nodes import plain
from noetl.dsl.read import read
from noetl.dsl.report import Report

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
TESTED = sorted(EXAMPLES.glob("*.test.yaml"))
PAGE = (EXAMPLES.parent / "docs" / "testing-playbooks.md").read_text()
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\n"
STUBBORN = f"""{HEAD}
metadata: {{name: stubborn, path: tests/stubborn}}
workflow:
  - step: start
    tool:
      - name: fetch
        kind: http
        url: http://127.0.0.1:1/orders
        spec:
          policy:
            rules:
              - when: "{{{{ outcome.status == 'error' and outcome.http.status == 503 }}}}"
                then: {{do: retry, attempts: 4, backoff: fixed, delay: 1h}}
              - when: "{{{{ outcome.status == 'error' }}}}"
                then: {{do: fail}}
              - else: {{then: {{do: continue, set_ctx: {{tries: "{{{{ _attempt }}}}"}}}}}}
    next:
      arcs:
        - {{step: give_up, when: "{{{{ event.name == 'step.failed' }}}}"}}
        - {{step: end}}
  - step: give_up
    tool: {{kind: noop, result: gave up}}
  - step: end
    tool: {{kind: noop, result: "{{{{ start }}}}"}}
"""
BUSY = "{kind: server_error, status: 503, retryable: true}"


@pytest.fixture
def tests_of(noetl, tmp_path):
    """Run tests of a playbook; its exit code, with the JSON document or with both streams."""

    def run(playbook: str, tests: str, *arguments: str, **beside: str):
        (tmp_path / "playbook.yaml").write_text(playbook)
        (tmp_path / "it.test.yaml").write_text(f"playbook: playbook.yaml\ntests:\n{tests}")
        for name, text in beside.items():
            (tmp_path / f"{name}.yaml").write_text(text)
        return noetl("test", "it.test.yaml", *arguments)

    return run


@pytest.fixture
def judged(tests_of):
    """Run one test; its part of the JSON document."""

    def run(playbook: str, test: str, **beside: str) -> dict[str, Any]:
        done = tests_of(playbook, test, "--json", **beside)
        assert done.out, done.err
        [found] = json.loads(done.out)["tests"]
        assert done.code == (0 if found["passed"] else 1)
        return found

    return run


# --- What happens in a test --------------------------------------------------------------------


@pytest.mark.parametrize("path", TESTED, ids=lambda path: path.stem)
def test_the_tests_of_an_example_pass(noetl, path):
    done = noetl("test", str(path))

    assert (done.code, "✗" in done.out) == (0, False), done.out + done.err


def test_the_first_test_on_the_page_passes_with_the_playbook_beside_it(noetl, tmp_path):
    playbook, tests, *_ = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "orders.yaml").write_text(playbook)
    (tmp_path / "orders.test.yaml").write_text(tests)

    done = noetl("test", "orders.test.yaml")

    assert (done.code, done.out.strip() in PAGE) == (0, True), done.out + done.err


def test_hours_of_backoff_are_hours_of_virtual_time_only(judged):
    found = judged(
        STUBBORN,
        f"""
  - name: the third try gets through
    stand_ins:
      start: [{{error: {BUSY}, times: 2}}, {{result: {{data: {{id: 7}}}}}}]
    expect: {{steps: [start, end], ctx: {{tries: 3}}, calls: {{start: 3}}, elapsed: 2h}}
""",
    )

    # Had it really waited, the command would have been stopped long before it said so.
    assert (found["differences"], found["elapsed_seconds"]) == ([], 7200)


def test_the_same_tests_say_the_same_again(tests_of):
    test = f"  - {{name: busy, stand_ins: {{start: {{error: {BUSY}}}}}}}\n"

    first = tests_of(STUBBORN, test, "--json")
    assert json.loads(first.out)["tests"][0]["steps"] == ["start", "give_up"]
    assert tests_of(STUBBORN, test, "--json") == first


def test_code_runs_for_real_and_takes_no_virtual_time(judged):
    found = judged(
        f"""{HEAD}
metadata: {{name: sums, path: tests/sums}}
workload: {{numbers: [1]}}
workflow:
  - step: start
    tool:
      kind: python
      args: {{numbers: "{{{{ workload.numbers }}}}"}}
      code: |
        import time
        time.sleep(0.05)
        result = sum(numbers)
    next: {{arcs: [{{step: end, spec: {{delay: 1d}}}}]}}
  - step: end
    tool: {{kind: noop, result: "{{{{ start + 1 }}}}"}}
""",
        "  - {name: sums, workload: {numbers: [1, 2, 3]}, expect: {result: 7}}\n",
    )

    assert (found["differences"], found["elapsed_seconds"]) == ([], 86400)


@pytest.mark.parametrize("timeout", ["timeout: 5", "spec: {timeout: {connect: 1, read: 5}}"])
def test_a_call_that_takes_longer_than_it_may_fails(judged, timeout):
    found = judged(
        f"""{HEAD}
metadata: {{name: slow, path: tests/slow}}
workflow:
  - step: start
    tool: {{kind: http, url: "http://127.0.0.1:1", {timeout}}}
""",
        """
  - name: too slow
    stand_ins: {start: {takes: 1h, result: 1}}
    expect: {error: {kind: timeout, message: longer than 5 s}, elapsed: 5}
""",
    )

    assert found["differences"] == []


FAMILY = f"""{HEAD}
metadata: {{name: family, path: tests/family}}
workload: {{ids: [1, 2, 3]}}
workbook:
  wash:
    tool: [{{name: rinse, kind: http, url: "http://127.0.0.1:1/{{{{ args.what }}}}"}}]
workflow:
  - step: start
    loop: {{in: "{{{{ workload.ids }}}}", iterator: id, spec: {{mode: parallel}}}}
    tool: {{kind: http, url: "http://127.0.0.1:1/{{{{ iter.id }}}}"}}
    next: wash
  - step: wash
    spec: {{pool: elsewhere}}
    tool: {{kind: workbook, name: wash, args: {{what: socks}}}}
    next: child
  - step: child
    tool: {{kind: playbook, path: tests/child, args: {{x: 3}}}}
    next: end
  - step: end
    tool: {{kind: noop, result: ["{{{{ start.results }}}}", "{{{{ wash }}}}", "{{{{ child }}}}"]}}
"""
CHILD = f"""{HEAD}
metadata: {{name: child, path: tests/child}}
workload: {{x: 0}}
workflow:
  - step: start
    tool: {{kind: http, url: "http://127.0.0.1:1/child/{{{{ workload.x }}}}"}}
    next: {{arcs: [{{step: end, spec: {{delay: 2h}}}}]}}
  - step: end
    tool: {{kind: noop, result: "{{{{ start }}}}"}}
"""


def test_stand_ins_know_the_call_they_answer(judged):
    found = judged(
        FAMILY,
        """
  - name: each its own
    stand_ins:
      start:
        - {when: "{{ config.url.endswith('2') }}", result: two}
        - {result: "{{ iteration }} of {{ workload.ids | length }}", times: always}
      wash.rinse: {result: "{{ config.url }}"}
      tests/child:start: {result: "{{ config.url }}"}
    expect:
      result: [[0 of 3, two, 2 of 3], http://127.0.0.1:1/socks, http://127.0.0.1:1/child/3]
      calls: {start: 3, tests/child:start: 1}
      elapsed: 2h
""",
        child=CHILD,
    )

    assert (found["complaints"], found["differences"]) == ([], [])


def test_whole_workbook_entries_and_playbooks_can_be_stood_in_for(judged):
    found = judged(
        FAMILY,
        """
  - name: nothing inside runs
    stand_ins:
      start: {result: 1}
      wash: {result: clean}
      child: {result: grown, takes: 5m}
    expect: {result: [[1, 1, 1], clean, grown], calls: {wash: 1, child: 1}, elapsed: 5m}
""",
    )

    assert (found["complaints"], found["differences"]) == ([], [])


def test_what_undoes_a_step_is_among_the_steps_that_ran(judged):
    found = judged(
        f"""{HEAD}
metadata: {{name: saga, path: tests/saga}}
workbook:
  give_back: {{tool: {{kind: http, url: "http://127.0.0.1:1/back"}}}}
workflow:
  - step: start
    spec: {{compensate: give_back}}
    tool: {{kind: http, url: "http://127.0.0.1:1/take"}}
    next: pay
  - step: pay
    tool: {{kind: http, url: "http://127.0.0.1:1/pay"}}
""",
        """
  - name: what was taken is given back
    stand_ins:
      start: {result: 1}
      start.give_back_task: {result: 1}
      pay: {error: {kind: client_error, message: no money}}
    expect:
      error: {message: no money}
      steps: [start, pay, give_back]
      calls: {start.give_back_task: 1}
""",
    )

    assert (found["complaints"], found["differences"]) == ([], [])


def test_rows_of_a_cursor_are_claimed_from_a_stand_in(judged):
    found = judged(
        f"""{HEAD}
metadata: {{name: queue, path: tests/queue}}
workflow:
  - step: start
    loop:
      cursor: {{kind: postgres, auth: db, claim: "UPDATE q SET taken = true RETURNING id"}}
      iterator: row
      spec: {{mode: cursor, max_in_flight: 1}}
    tool: {{kind: http, url: "http://127.0.0.1:1/{{{{ iter.row.id }}}}"}}
""",
        """
  - name: two rows
    stand_ins:
      start.claim: [{result: {rows: [{id: 1}]}}, {result: {rows: [{id: 2}]}}, {result: {rows: []}}]
      start: {result: "{{ config.url }}", takes: 10m}
    expect:
      calls: {start.claim: 3, start: 2}
      result: {results: [http://127.0.0.1:1/1, http://127.0.0.1:1/2]}
      elapsed: 20m
""",
    )

    assert (found["complaints"], found["differences"]) == ([], [])


# --- What people are told ----------------------------------------------------------------------


def test_a_failed_test_says_what_was_expected_found_and_happened(tests_of):
    done = tests_of(
        STUBBORN,
        f"""
  - name: hopeful
    stand_ins: {{start: {{error: {BUSY}}}}}
    expect: {{steps: [start, end], ctx: {{tries: 1}}, never: [start -> give_up], elapsed: 0}}
""",
    )

    assert done.code == 1
    assert "✗ hopeful  (3 h 00 min)" in done.out
    assert (
        '    steps\n      expected  ["start","end"]\n      found     ["start","give_up"]'
        in done.out
    )
    assert "    ctx.tries\n      expected  1\n      found     nothing" in done.out
    assert "    never start -> give_up\n" in done.out
    assert "    elapsed\n      expected  0 s\n      found     10800 s" in done.out
    assert "1 h 00 min  start: fetch is tried again in 1 h 00 min (try 3)" in done.out
    assert "1 test, 1 failed" in done.err


def test_a_tool_that_reaches_outside_needs_a_stand_in(tests_of, judged):
    done = tests_of(STUBBORN, "  - name: nobody answers\n")
    assert done.code == 1
    assert "start.fetch needs a stand-in: kind http" in done.out

    snippet = "      start.fetch: { result: {} }\n"
    assert f"stand_ins:\n  {snippet}" in done.out
    found = judged(STUBBORN, f"  - name: somebody answers\n    stand_ins:\n{snippet}")
    assert found["passed"]


def test_a_stand_in_that_is_used_up_is_named(tests_of):
    done = tests_of(STUBBORN, f"  - {{name: short, stand_ins: {{start: [{{error: {BUSY}}}]}}}}\n")

    assert done.code == 1
    assert "the stand-in of start.fetch has no answer to call 2" in done.out


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("{result: '{{ wrkload.x }}'}", '"wrkload" is not defined'),
        ("[{when: '{{ attempt + config }}', result: 1}]", "`when`: "),
        ("{error: {kind: timeout, message: '{{ 5 }}'}}", "Expected `str`, got `int`"),
    ],
)
def test_a_stand_in_that_cannot_answer_is_named_whatever_the_playbook_does(tests_of, written, why):
    careless = f"""{HEAD}
metadata: {{name: careless, path: tests/careless}}
workflow:
- step: start
  tool:
    kind: http
    url: http://example.com
    spec: {{policy: {{rules: [{{else: {{then: {{do: continue}}}}}}]}}}}
"""
    done = tests_of(careless, f"  - {{name: misspelt, stand_ins: {{start: {written}}}}}\n")

    assert done.code == 1
    assert "the stand-in of start.start_task cannot answer: " in done.out
    assert why in done.out


WAITING = f"""{HEAD}
metadata: {{name: waiting, path: tests/waiting}}
workflow:
  - step: start
    spec:
      eval_mode: on_event
      form: [{{name: approved, type: boolean}}]
    case:
      - when: "{{{{ event.name == 'approval.received' }}}}"
        then: [{{next: {{to: [{{step: end}}]}}}}]
  - step: end
    tool: {{kind: noop}}
"""


def test_an_execution_that_waits_for_ever_is_found_out(tests_of):
    done = tests_of(
        WAITING, "  - {name: waits, expect: {status: RUNNING}}\n  - {name: does not wait}\n"
    )

    assert done.code == 1
    assert "✓ waits" in done.out
    assert "✗ does not wait" in done.out
    assert "RUNNING: nothing more can happen without an event; `signals`" in done.out


def test_a_signal_that_is_refused_breaks_the_test_off(judged):
    signals = "[{name: approval.received, data: {aproved: true}}]"
    found = judged(WAITING, f"  - {{name: misspelt, signals: {signals}}}\n")

    [complaint] = found["complaints"]
    assert complaint.startswith("the signal approval.received was refused: ")
    assert "aproved" in complaint


# --- Which tests, and what may be wrong with their files ---------------------------------------


def test_a_text_chooses_tests_and_a_directory_is_searched(noetl, tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "playbook.yaml").write_text(WAITING)
    tests = "playbook: playbook.yaml\ntests: [{name: First}, {name: second}]\n"
    (tmp_path / "below" / "it.test.yaml").write_text(tests)

    done = noetl("test", ".", "-k", "first", "--json")
    assert [test["name"] for test in json.loads(done.out)["tests"]] == ["First"]
    none = noetl("test", ".", "-k", "third")
    assert none.code == 2
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "theirs.test.yaml").write_text("of another program: it is hidden")
    assert noetl("test", ".", "-k", "first", "--json").out == done.out
    assert 'no test has "third" in its name' in none.err


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("{name: x, standins: {}}", 'a test has no `standins`. Did you mean "stand_ins"?'),
        ("{expect: {}}", "a test needs `name`."),
        ("{name: x, expect: {status: DONE}}", 'is "DONE"; it must be one of'),
        ("{name: x, expect: {arcs: [start]}}", "must be an arc such as `fetch -> end`"),
        ("{name: x, expect: {never: [giveup]}}", 'no step "giveup". Did you mean "give_up"?'),
        ("{name: x, expect: {calls: {start.fech: 1}}}", 'Did you mean "fetch"?'),
        ("{name: x, stand_ins: {start: {error: {kind: oops}}}}", 'is "oops"; it must be one of'),
        ('{name: x, stand_ins: {start: {result: "{{ a b }}"}}}', "a template of this stand-in"),
        ("{name: x, stand_ins: {start: {takes: }}}", "must be a value, or left out, not empty"),
        ("{name: x, keychain: {api: y}}", 'the keychain has no entry "api"'),
    ],
)
def test_a_wrong_test_file_is_refused_with_place_and_remedy(tests_of, test, said):
    done = tests_of(STUBBORN, f"  - {test}\n")

    assert (done.code, done.out) == (2, "")
    assert "it.test.yaml:3:" in done.err
    assert said in done.err


def test_a_playbook_that_is_wrong_or_not_there_is_said(tests_of, noetl, tmp_path):
    broken = tests_of(STUBBORN.replace("tool:", "tol:", 1), "  - name: x\n")
    assert broken.code == 2
    assert "playbook.yaml:" in broken.err
    assert "[unknown-key]" in broken.err

    (tmp_path / "lost.test.yaml").write_text("playbook: nowhere.yaml\ntests: [{name: x}]\n")
    lost = noetl("test", "lost.test.yaml")
    assert lost.code == 2
    assert '`playbook` names "nowhere.yaml", which cannot be read' in lost.err


def test_the_story_names_the_line_of_the_file_that_failed_also_of_a_playbook_called(tests_of):
    code = """
    tool:
      kind: python
      code: |
        x = 1
        raise ValueError("boom")
"""
    own = tests_of(
        f"{HEAD}metadata: {{name: own, path: tests/own}}\nworkflow:\n  - step: start{code}",
        "  - name: x\n",
    )
    assert own.code == 1
    assert "(line " not in own.out
    assert "start: failed: ValueError: boom (playbook.yaml:10)" in own.out
    assert '"message":"ValueError: boom (playbook.yaml:10)"' in own.out

    below = tests_of(
        f"{HEAD}metadata: {{name: own, path: tests/own}}\n"
        "workflow: [{step: start, tool: {kind: playbook, path: tests/child}}]\n",
        "  - name: x\n",
        child=f"{HEAD}metadata: {{name: c, path: tests/child}}\nworkflow:\n  - step: start{code}",
    )
    assert below.code == 1
    assert "(line " not in below.out
    assert "boom (tests/child version 1:10)" in below.out


@pytest.mark.parametrize("path", TESTED, ids=lambda path: path.stem)
def test_the_json_schema_knows_test_files(noetl, path):
    schema = json.loads(noetl("schema", "--tests").out)
    document = plain(read(path.read_text(), Report()))

    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document | {"test": []}, schema)


ASKING = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: asking, path: tests/asking}
keychain:
  - {name: model, kind: credential}
workflow:
  - step: start
    tool:
      kind: http
      url: https://model.example/ask
      headers: {Authorization: "Bearer {{ keychain.model.token }}"}
      spec:
        policy:
          rules:
            - else: {then: {do: continue, set_ctx: {used: "{{ outcome.meta.usage.tokens }}"}}}
    next: {arcs: [{step: end}]}
  - {step: end, tool: {kind: noop, result: "{{ ctx.used }}"}}
---
playbook: asking.yaml
tests:
  - name: counts
    stand_ins: {start: {result: {data: yes}, usage: {tokens: "{{ 3 * 4 }}"}}}
    expect: {result: 12}
"""


def test_fields_of_secrets_have_placeholders_and_stand_ins_say_what_was_used(tmp_path, noetl):
    playbook, _, test = ASKING.partition("---\n")
    (tmp_path / "asking.yaml").write_text(playbook)
    (tmp_path / "asking.test.yaml").write_text(test)

    ran = noetl("test", "asking.test.yaml")

    assert ran.code == 0, (ran.out, ran.err)


RECORDED = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: recorded, path: tests/recorded}
workload: {total: 7}
keychain:
  - {name: shop, kind: static, data: {password: "canary-hunter2-canary"}}
workflow:
  - step: start
    tool:
      kind: python
      args: {total: "{{ workload.total }}", password: "{{ keychain.shop.password }}"}
      code: "result = {'total': total, 'said': password + ' {' + '{ not a template }' + '}'}"
    next: {arcs: [{step: each, when: "{{ start.total > 5 }}"}]}
  - step: each
    loop: {in: [1, 2], iterator: n}
    tool: {kind: python, args: {n: "{{ iter.n }}"}, code: "result = n * 2"}
    next: {arcs: [{step: end}]}
  - {step: end, tool: {kind: noop, result: "{{ each.results | sum }}"}}
"""


def test_a_test_is_written_from_a_run_and_passes_without_secrets(tmp_path, noetl):
    (tmp_path / "recorded.yaml").write_text(RECORDED)
    assert noetl("run", "recorded.yaml").code == 0

    made = noetl("test", "--from", "last", "-o", "made.test.yaml")
    again = noetl("test", "made.test.yaml")
    noetl("executions", "export", "last", "-o", "it.noetl")
    of_file = noetl(
        "test", "--from", "it.noetl", "-o", "other.test.yaml", "--playbook", "recorded.yaml"
    )

    assert (made.code, again.code, of_file.code) == (0, 0, 0), (made, again, of_file)
    text = (tmp_path / "made.test.yaml").read_text()
    assert "canary" not in text
    assert "result: 6" in text
    assert (tmp_path / "other.test.yaml").read_text() == text


def test_a_playbook_is_compared_with_recorded_executions(tmp_path, noetl):
    (tmp_path / "recorded.yaml").write_text(RECORDED)
    noetl("run", "recorded.yaml")
    (tmp_path / "edited.yaml").write_text(RECORDED.replace("total > 5", "total > 50"))

    same = noetl("test", "recorded.yaml", "--against", "tests/recorded")
    other = noetl("test", "edited.yaml", "--against", "last", "--json")
    nothing = noetl("test", "edited.yaml", "--against", "status:failed")
    (tmp_path / "else.yaml").write_text(RECORDED.replace("tests/recorded", "tests/else"))
    noetl("run", "else.yaml")
    ended = noetl("test", "recorded.yaml", "--against", "status:ended", "--json")
    renamed = noetl("test", "recorded.yaml", "--against", "path:tests/*", "--json")
    another = noetl("test", "recorded.yaml", "--against", "last")

    assert [json.loads(one.out)["same"] for one in (ended, renamed)] == [1, 2]
    assert same.code == 0, same.err
    assert "it goes the same way" in same.out
    assert (other.code, json.loads(other.out)["different"]) == (1, 1)
    assert nothing.code == 2
    assert (another.code, another.out) == (2, "")
    assert "is of tests/else, and this playbook is tests/recorded" in another.err
    assert noetl("test", "--from", "last", "recorded.yaml").code == 2
    assert noetl("test").code == 2
