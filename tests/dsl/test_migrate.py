"""Rewritten: what has an exact canonical form gets it, everything else stays and is explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from noetl.dsl import compile_text
from noetl.errors import PlaybookRejected
from noetl.model.net import Net
from noetl.model.rewrites import Rewritten
from noetl.rewrite.fmt import format_text
from noetl.rewrite.migrate import migrate_text
from noetl.rewrite.templates import output_is_outcome, replace_names
from noetl.tools.registry import tools
from tests.dsl.test_fmt import comments_of

TOOLS = tools()
HERE = Path(__file__).parent
PAIRS = sorted((HERE / "migrate").glob("*.before.yaml"))
DOCUMENTS = sorted((HERE.parent / "documents").glob("*.yaml"))
NOT_ONLY_FORM = ("`retry` is", "the rules of `case`", "`output` is", "`set` of a task")
"""Changes after which the net differs although the playbook does the same."""


def name_of(path: Path) -> str:
    return path.name.split(".")[0]


def migrated(text: str) -> Rewritten:
    return migrate_text(text, TOOLS)


def net_of(text: str) -> Net:
    return compile_text(text, tools=TOOLS).unwrap()


def digest_of(text: str) -> str:
    return compile_text(text, tools=TOOLS).digest


def steps(body: str) -> str:
    return (
        f"apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {{ name: test }}\n\nworkflow:\n{body}"
    )


@pytest.mark.parametrize("before", PAIRS, ids=name_of)
def test_each_example_becomes_its_counterpart_and_its_name_says_what_stays_the_same(
    before: Path,
) -> None:
    after = before.with_name(before.name.replace("before", "after"))
    text = before.read_text()
    made = migrated(text).text

    assert made == after.read_text()
    old, new = digest_of(text), digest_of(made)
    assert new, "what comes out compiles"
    match name_of(before).split("_")[0]:
        case "form":
            assert old == new
        case "behave":
            assert old
            assert old != new
        case "refused":
            assert not old


@pytest.mark.parametrize("path", [*DOCUMENTS, *PAIRS], ids=name_of)
def test_no_comment_is_lost_the_text_is_formatted_and_migrating_again_changes_nothing(
    path: Path,
) -> None:
    text = path.read_text()
    once = migrated(text)
    again = migrated(once.text)

    assert again.text == once.text
    assert again.changes == ()
    assert sorted(comments_of(once.text)) == sorted(comments_of(text))
    assert once.text == (format_text(once.text) if once.changes else text)


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_a_playbook_that_compiles_still_does_and_form_alone_keeps_its_digest(path: Path) -> None:
    text = path.read_text()
    before = digest_of(text)
    if not before:
        pytest.skip("refused, as its document says")
    found = migrated(text)
    is_only_form = not any(change.message.startswith(NOT_ONLY_FORM) for change in found.changes)

    after = digest_of(found.text)
    assert after
    assert not is_only_form or after == before


def test_canonical_text_comes_back_byte_for_byte_whatever_its_layout() -> None:
    text = steps("- step:   start\n  tool: {kind: noop}   \n\n\n  # end\r\n").replace("\n", "\r\n")
    text = text.replace("\r\r", "\r")

    assert migrated(text) == Rewritten(text, (), ())


def test_broken_yaml_is_rejected_with_its_place() -> None:
    with pytest.raises(PlaybookRejected) as caught:
        migrated("a: [1\nb: 2\n")

    assert caught.value.problems[0].code == "yaml-syntax"


def test_a_moved_retry_waits_as_before() -> None:
    text = (HERE / "migrate" / "behave_retry.before.yaml").read_text()
    old = [task for step in net_of(text).steps for task in step.tasks]
    new = [task for step in net_of(migrated(text).text).steps for task in step.tasks]

    for before, after in zip(old, new, strict=True):
        assert [(rule.when, rule.actions) for rule in before.retries] == [
            (rule.when, rule.actions) for rule in after.rules[: len(before.retries)]
        ]
        assert after.retries == ()


def test_a_task_keeps_its_retry_where_it_shields_from_one_that_stays() -> None:
    text = steps(
        """\
  - step: start
    spec: { on_error: retry }
    tool:
      kind: noop
      retry: { max_attempts: 2 }
"""
    )
    found = migrated(text)

    assert found.changes == ()
    assert "inherit" in found.remarks[0].message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("retry: [{ when: '{{ error.status == 503 }}', then: { max_attempts: 2 } }]", "list of"),
        ("retry: { when: '{{ response.x }}' }", "names that policy rules do not have"),
        ("poll: { until: '{{ result.done }}' }", "`poll` stays"),
        ("set: { seen: 1 }", "neither `ctx.…` nor `iter.…`"),
        ("set: { ctx.x: '{{ output | tojson }}' }", "inside a larger template"),
        (
            "set: { ctx.x: 1 }\n      spec: { policy: { rules: [{ else: { do: break } }] } }",
            "rules of",
        ),
    ],
)
def test_what_has_no_exact_form_on_a_task_stays_with_a_reason(body: str, words: str) -> None:
    text = steps(f"  - step: start\n    tool:\n      kind: noop\n      {body}\n")
    found = migrated(text)

    assert found.text == text
    assert words in found.remarks[0].message
    assert found.remarks[0].line == 9


CASE_STAYS = {
    "does more": "- { when: \"{{ event.name == 'step.exit' }}\", then: { set: { a: 1 } } }",
    "before the step has ended": "- { when: '{{ result.ok }}', then: { next: end } }",
    "several steps at once": """\
- { when: "{{ event.name == 'step.exit' and result.ok }}", then: { next: [end, other] } }
      - { when: "{{ event.name == 'step.exit' }}", then: { next: [end] } }""",
    "behind rules for the end": """\
- { when: "{{ event.name == 'step.exit' }}", then: { next: end } }
      - { when: "{{ event.name == 'call.done' }}", then: { next: other } }""",
}


@pytest.mark.parametrize(("words", "rules"), CASE_STAYS.items())
def test_event_rules_that_arcs_cannot_express_stay_with_a_reason(words: str, rules: str) -> None:
    text = steps(
        f"""\
  - step: start
    tool: {{ kind: noop }}
    case:
      {rules}

  - step: other
    tool: {{ kind: noop }}

  - step: end
    tool: {{ kind: noop }}
"""
    )
    found = migrated(text)

    assert found.text == text
    assert words in found.remarks[0].message
    assert found.remarks[0].line == 8


@pytest.mark.parametrize(
    "setting", ["case_mode: inclusive", "eval_mode: on_event", "on_error: ignore"]
)
def test_event_rules_of_a_step_with_special_settings_stay(setting: str) -> None:
    text = steps(
        f"""\
  - step: start
    spec: {{ {setting} }}
    case:
      - when: "{{{{ event.name == 'step.exit' }}}}"
        then: {{ next: end }}

  - step: end
    tool: {{ kind: noop }}
"""
    )

    assert migrated(text).changes == ()


def test_a_call_rule_of_a_looped_step_stays_because_calls_end_before_the_step() -> None:
    text = steps(
        """\
  - step: start
    loop: { in: [1, 2], iterator: n }
    tool: { kind: noop }
    case:
      - when: "{{ event.name == 'call.done' }}"
        then: { next: end }

  - step: end
    tool: { kind: noop }
"""
    )

    assert "before the step has ended" in migrated(text).remarks[0].message


def test_a_plain_text_with_brackets_survives_the_move_into_a_rule() -> None:
    text = steps(
        "  - step: start\n    tool:\n      kind: noop\n      set:\n        ctx.a: x, [y]\n"
    )
    flowing = text.replace(
        "set:\n        ctx.a: x, [y]", "retry:\n        delay: '5s'\n        on: a[b]"
    )

    assert "a: x, [y]" in migrated(text).text
    assert migrated(migrated(flowing).text).changes == ()


@pytest.mark.parametrize(
    "keys",
    [
        "tool: { kind: noop, args: { a: 1 }, input: { b: 2 } }",
        "tool: { kind: noop }, loop: { in: [1], collection: [2], iterator: x }",
        "tool: { kind: noop }, pipe: [{ kind: noop }]",
        "tool: { kind: noop, type: noop }",
        "next: { arcs: [{ step: start, args: { a: 1 }, with: { b: 2 } }] }",
    ],
)
def test_two_spellings_of_one_thing_are_left_to_their_author(keys: str) -> None:
    text = steps(f"  - {{ step: start, {keys} }}\n")
    found = migrated(text)

    assert found.text == text
    assert "Join them by hand" in found.remarks[0].message


def test_what_comes_through_a_merge_key_is_left_alone() -> None:
    text = steps(
        """\
  - step: start
    tool: &base
      kind: noop
    next:
      arcs:
        - step: end

  - step: end
    tool: { <<: *base, input: { a: 1 } }
"""
    )
    found = migrated(text)

    assert found.text == text
    assert "`<<`" in found.remarks[0].message


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ output.data.x }} output.data", "{{ outcome.result.x }} output.data"),
        ("{{ ctx.output.data }}", "{{ ctx.output.data }}"),
        ("{{ output['data']['x'] }}", "{{ outcome.result['x'] }}"),
        ("{{ output[key] }}", "{{ output[key] }}"),
        ("{{ x | default(output) }}", "{{ x | default(outcome) }}"),
        ("{{ f(output=1) }}", "{{ f(output=1) }}"),
        ("{% if output.status %}a{% endif %}", "{% if outcome.status %}a{% endif %}"),
        ("{{ 'output.data' }}", "{{ 'output.data' }}"),
        ("{{ outputs.data }}", "{{ outputs.data }}"),
        ("{{ broken", "{{ broken"),
    ],
)
def test_only_the_name_itself_is_replaced_in_a_template(source: str, expected: str) -> None:
    assert replace_names(source, output_is_outcome) == expected


@pytest.mark.parametrize(
    ("template", "becomes"),
    [
        ("{{ outcome.status | default('none') | upper }}", "{{ 'none' | upper }}"),
        ("{{ outcome.x | d(workload.a + 1, true) * 2 }}", "{{ (workload.a + 1) * 2 }}"),
        ("{{ outcome | default }}-{{ 1 }}", "{{ '' }}-{{ 1 }}"),
        ("{{ response is defined }}", "{{ false }}"),
        ("{{ response.x is not defined and workload.a }}", "{{ true and workload.a }}"),
        ("{{ response is not undefined or workload.a }}", "{{ false or workload.a }}"),
        ("{{ outcome.x | default([1, {'k': 2}][0]) }}", "{{ ([1, {'k': 2}][0]) }}"),
    ],
)
def test_a_reserved_name_that_is_not_there_gives_way_to_what_its_guard_answers(
    template: str, becomes: str
) -> None:
    before = steps(f'  - step: start\n    tool: {{ kind: noop, result: "{template}" }}\n')
    found = migrated(before)

    assert found.text == before.replace(template, becomes)
    assert [change.line for change in found.changes] == [7]
    assert not compile_text(found.text, tools=TOOLS).problems


def test_a_reserved_name_that_is_also_read_without_a_guard_stays_with_a_reason() -> None:
    text = steps(
        "  - step: start\n    tool:\n      kind: noop\n"
        '      result: "{{ outcome.x if outcome is defined else 5 }}"\n'
    )
    found = migrated(text)

    assert found.text == text
    assert "`outcome`: undefined here" in found.remarks[0].message
