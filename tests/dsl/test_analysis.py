"""What can be told of a net without running it: each analysis where it speaks and where not."""

import pytest

from noetl.model.graph import strongly_connected
from tests.dsl.compiling import codes, found, messages

NOOP = "tool: {kind: noop}"


def steps(**followers: str) -> str:
    """Steps by name, each with what stands under `next` (empty: nothing)."""
    return "\n".join(
        f"- {{step: {name}, {NOOP}" + (f", next: {following}" if following else "") + "}"
        for name, following in followers.items()
    )


# --- Reachability ------------------------------------------------------------------------------


def test_a_step_that_nothing_leads_to_is_pointed_out():
    assert found(steps(start="end", lost="end", end="")) == [
        ("unreachable-step", f"lost, {NOOP}, next: end}}")
    ]


def test_steps_that_only_lead_to_each_other_are_all_pointed_out():
    assert codes(steps(start="", one="two", two="{arcs: [{step: one, when: '{{ ctx }}'}]}")) == [
        "unreachable-step",
        "unreachable-step",
    ]


@pytest.mark.parametrize(
    "way",
    [
        "next: other",
        "next: [other]",
        "next: {arcs: [{step: other, when: '{{ ctx.x | default(false) }}'}]}",
        "next: {arcs: [{step: other, when: \"{{ event.name == 'step.failed' }}\"}]}",
        "case: [{when: '{{ event.name }}', then: {next: other}}]",
        "case: [{when: '{{ event.name }}', then: [{next: {to: [{step: other}]}}]}]",
        "case: [{when: '{{ event.name }}', then: {skip: true}}, {else: {next: [other]}}]",
        "spec: {compensate: other}",
    ],
)
def test_every_way_that_leads_to_a_step_counts(way):
    assert codes(f"- {{step: start, {NOOP}, {way}}}\n- {{step: other, {NOOP}}}") == []


@pytest.mark.parametrize(
    "way",
    [
        "next: {arcs: [{step: '{{ workload.target }}'}]}",
        "next: ['{{ workload.target }}']",
        "case: [{when: '{{ event.name }}', then: {next: '{{ workload.target }}'}}]",
    ],
)
def test_a_target_that_is_computed_may_be_any_step(way):
    assert (
        codes(
            f"- {{step: start, {NOOP}, {way}}}\n- {{step: other, {NOOP}}}",
            "workload: {target: other}\n",
        )
        == []
    )


# --- Arcs that cannot fire ---------------------------------------------------------------------


def router(*arcs: str, mode: str = "exclusive") -> str:
    written = ", ".join(f"{{{arc}}}" for arc in arcs)
    return (
        f"- {{step: start, {NOOP}, next: {{spec: {{mode: {mode}}}, arcs: [{written}]}}}}\n"
        f"- {{step: one, {NOOP}}}\n- {{step: two, {NOOP}}}\n- {{step: three, {NOOP}}}"
    )


GUARDED = "when: '{{ workload.x }}'"
X = "workload: {x: 1}\n"


@pytest.mark.parametrize("open_arc", ["step: one", "step: one, when: true"])
def test_arcs_behind_one_that_always_wins_are_pointed_out(open_arc):
    workflow = router(open_arc, f"step: two, {GUARDED}", "step: three")

    assert [code for code, _ in found(workflow, X)] == ["shadowed-arc", "shadowed-arc"]
    assert '"two"' in messages(workflow, X)
    assert '"three"' in messages(workflow, X)


def test_guarded_arcs_first_are_fine():
    assert codes(router(f"step: one, {GUARDED}", f"step: two, {GUARDED}", "step: three"), X) == []


def test_an_inclusive_router_shadows_nothing():
    assert (
        codes(router("step: one", f"step: two, {GUARDED}", "step: three", mode="inclusive"), X)
        == []
    )


@pytest.mark.parametrize(
    "guard",
    [
        "{{ event.name == 'step.failed' }}",
        "{{ event.name == 'call.error' }}",
        "{{ event.name in ['step.failed', 'step.done'] }}",
        "{{ event.name == 'step.exit' }}",
        "{{ error.kind == 'timeout' }}",
        "{{ event.error is defined }}",
    ],
)
def test_an_arc_for_failures_is_not_shadowed_by_one_for_success(guard):
    assert (
        codes(
            router("step: one", f'step: two, when: "{guard}"', "step: three, when: '{{ error }}'")
        )
        == []
    )


def test_an_arc_for_the_event_of_success_is_shadowed():
    workflow = router(
        "step: one",
        "step: two, when: \"{{ event.name == 'step.done' }}\"",
        "step: three, when: '{{ error }}'",
    )

    assert codes(workflow) == ["shadowed-arc"]


# --- Cycles ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "workflow",
    [
        steps(start="start"),
        steps(start="other", other="start"),
        steps(start="one", one="[two, start]", two="start"),
        steps(start="{arcs: [{step: start, when: true}]}"),
    ],
)
def test_a_cycle_without_way_out_is_pointed_out_once(workflow):
    assert codes(workflow) == ["endless-cycle"]


@pytest.mark.parametrize(
    "workflow",
    [
        pytest.param(
            steps(start="{arcs: [{step: start, when: '{{ workload.x }}'}]}"), id="guarded arc"
        ),
        pytest.param(
            steps(
                start="other",
                other="{arcs: [{step: start, when: '{{ workload.x }}'}, {step: end}]}",
                end="",
            ),
            id="other arc leads out",
        ),
        pytest.param(
            "- {step: start, next: start, spec: {policy: {admit: {rules:"
            " [{when: '{{ workload.x }}', then: {allow: true}}]}}}}",
            id="admission",
        ),
        pytest.param(
            "- {step: start, next: start, case: [{when: '{{ workload.x }}', then: {skip: true}}]}",
            id="event rule",
        ),
        pytest.param(steps(start="one", one="two", two="three", three=""), id="no cycle"),
    ],
)
def test_a_cycle_that_something_can_end_is_fine(workflow):
    assert codes(workflow, X) == []


def test_components_of_a_long_chain_are_found_without_recursion():
    graph = {str(n): [str(n + 1)] for n in range(20_000)} | {"20000": ["0"]}

    assert [len(component) for component in strongly_connected(graph)] == [20_001]


def test_components_are_found_where_cycles_touch():
    graph = {"a": ["b"], "b": ["a", "c"], "c": ["d"], "d": ["c"], "e": []}

    assert sorted(sorted(c) for c in strongly_connected(graph)) == [["a", "b"], ["c", "d"], ["e"]]


# --- Joins -------------------------------------------------------------------------------------


def joining(join: str, first: str = "[one, two]") -> str:
    return (
        steps(start=first, one="both", two="both")
        + f"\n- {{step: both, spec: {{join: {join}}}, {NOOP}}}"
    )


@pytest.mark.parametrize("join", ["auto", "each", "any", "all", "{n: 1}", "{n: 2}"])
def test_a_join_of_as_many_tokens_as_come_is_fine(join):
    assert codes(joining(join)) == []


def test_a_join_of_more_tokens_than_arcs_is_pointed_out():
    assert found(joining("{n: 3}")) == [("join-never-completes", f"{{n: 3}}}}, {NOOP}}}")]


def test_a_join_of_all_arcs_is_pointed_out_when_they_exclude_each_other():
    excluding = (
        f"- {{step: start, {NOOP}, next: {{arcs: [{{step: both, {GUARDED}}}, {{step: both}}]}}}}\n"
        f"- {{step: both, spec: {{join: all}}, {NOOP}}}"
    )
    forking = excluding.replace("next: {", "next: {spec: {mode: inclusive}, ")

    assert codes(excluding, X) == ["join-never-completes"]
    assert codes(forking, X) == []


def test_a_join_that_no_arc_leads_to_is_refused():
    assert codes(f"- {{step: start, spec: {{join: all}}, {NOOP}}}") == ["join-impossible"]
    assert codes(f"- {{step: start, spec: {{join: {{n: 2}}}}, {NOOP}}}") == ["join-impossible"]
    assert codes(f"- {{step: start, spec: {{join: any}}, {NOOP}}}") == []


def test_a_step_that_runs_for_each_token_feeds_a_join_by_one_arc():
    workflow = (
        steps(start="[one, two]", one="work", two="work")
        + f"\n- {{step: work, spec: {{join: each}}, {NOOP}, next: both}}"
        + f"\n- {{step: both, spec: {{join: {{n: 2}}}}, {NOOP}}}"
    )

    assert codes(workflow) == []


def test_a_join_of_branches_that_exclude_each_other_is_pointed_out():
    first = f"{{arcs: [{{step: one, {GUARDED}}}, {{step: two}}]}}"

    assert codes(joining("all", first), X) == ["join-never-completes"]


# --- Errors that fall through ------------------------------------------------------------------


def policy(*rules: str, kind: str = "http, url: 'http://x'", extra: str = "") -> str:
    written = ", ".join(f"{{{rule}}}" for rule in rules)
    spec = f"{{policy: {{rules: [{written}]{extra}}}}}"
    return f"- {{step: start, tool: {{kind: {kind}, spec: {spec}}}}}"


ANY_ERROR = "when: \"{{ outcome.status == 'error' }}\""
SOME_ERROR = "when: \"{{ outcome.status == 'error' and outcome.http.status in [429, 503] }}\""
ON_OK = "when: \"{{ outcome.status == 'ok' }}\""
CONTINUE, FAIL, RETRY = "then: {do: continue}", "then: {do: fail}", "then: {do: retry, attempts: 3}"
ELSE_CONTINUE, ELSE_FAIL = "else: {then: {do: continue}}", "else: {then: {do: fail}}"


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param([f"{ON_OK}, {CONTINUE}"], id="only success is named"),
        pytest.param([ELSE_CONTINUE], id="else goes on"),
        pytest.param([f"{SOME_ERROR}, {FAIL}"], id="only some errors fail"),
        pytest.param(
            [f"{SOME_ERROR}, {RETRY}", ELSE_CONTINUE], id="some are retried, else goes on"
        ),
        pytest.param([f"when: true, {CONTINUE}"], id="a rule that always holds"),
        pytest.param([f"{ON_OK}, {CONTINUE}", "else: {do: continue}"], id="else without then"),
        pytest.param(["else: {then: {do: break}}"], id="else ends the pipeline well"),
    ],
)
def test_an_error_that_goes_on_as_if_nothing_had_happened_is_pointed_out(rules):
    assert codes(policy(*rules)) == ["error-falls-through"]


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param([f"{ANY_ERROR}, {FAIL}", ELSE_CONTINUE], id="fails first"),
        pytest.param(
            [f"{SOME_ERROR}, {RETRY}", f"{ANY_ERROR}, {FAIL}", ELSE_CONTINUE], id="the usual"
        ),
        pytest.param([f"{ANY_ERROR}, {RETRY}", f"{ANY_ERROR}, {FAIL}", ELSE_CONTINUE], id="twice"),
        pytest.param([f"{ANY_ERROR}, {RETRY}"], id="used-up retries fail"),
        pytest.param([f"{ANY_ERROR}, {RETRY}", ELSE_CONTINUE], id="no else takes used-up retries"),
        pytest.param([f"{ANY_ERROR}, {CONTINUE}"], id="going on is meant"),
        pytest.param(
            [f"{ANY_ERROR}, then: {{do: jump, to: start_task}}", ELSE_CONTINUE], id="jumps"
        ),
        pytest.param([f"{ON_OK}, {CONTINUE}", ELSE_FAIL], id="else fails"),
        pytest.param(["when: \"{{ outcome.status != 'ok' }}\", then: {do: fail}"], id="not ok"),
        pytest.param(["when: '{{ outcome.error }}', then: {do: fail}"], id="has an error"),
    ],
)
def test_an_error_that_some_rule_is_meant_for_is_fine(rules):
    assert codes(policy(*rules)) == []


def test_a_policy_that_fails_when_nothing_matches_is_fine():
    assert codes(policy(f"{ON_OK}, {CONTINUE}", extra=", on_unmatched: fail")) == []


def test_a_task_that_cannot_fail_needs_no_rule_for_it():
    assert codes(policy(ELSE_CONTINUE, kind="noop")) == []


def test_a_task_without_rules_fails_by_itself():
    assert codes("- {step: start, tool: {kind: http, url: 'http://x'}}") == []


ADD = 'tool: {kind: noop, set: {ctx.n: "{{ ctx.n + 1 }}"}}'
AT_THE_END = 'tool: {kind: noop}, set: {ctx.n: "{{ ctx.n + 1 }}"}'
BRANCHES = "- {step: a, ADD, next: end}\n- {step: b, ADD, next: end}\n- {step: end}\n"
FORK = f"- {{step: start, next: [a, b]}}\n{BRANCHES}"


@pytest.mark.parametrize(
    ("workflow", "lost"),
    [
        (FORK, 2),
        (f"- {{step: start, next: [a, c]}}\n- {{step: c, next: b}}\n{BRANCHES}", 2),
        (
            "- {step: start, next: [{step: a, args: {x: 1}}, {step: a, args: {x: 2}}]}\n"
            "- {step: a, spec: {join: each}, ADD}",
            1,
        ),
        (
            "- {step: start, next: {arcs: [{step: a, when: '{{ ctx.n }}'}, {step: b}]}}\n"
            + BRANCHES,
            0,
        ),
        (
            "- {step: start, next: [a, c]}\n- {step: c, next: end}\n- {step: a, ADD, next: b}\n"
            "- {step: b, ADD, next: end}\n- {step: end}",
            0,
        ),
        (
            "- {step: start, next: [c, d]}\n- {step: c, next: m}\n- {step: d, next: m}\n"
            "- {step: m, next: {arcs: [{step: a, when: '{{ ctx.n }}'}, {step: b}]}}\n" + BRANCHES,
            0,
        ),
        (FORK.replace("ADD", ADD.replace("n + 1", "nn + 1")), 0),
        (FORK.replace("ADD", AT_THE_END), 0),
    ],
)
def test_branches_that_add_to_a_key_of_ctx_in_a_task_lose_what_others_add(workflow, lost):
    assert codes(workflow.replace("ADD", ADD)).count("parallel-ctx-write") == lost


def test_a_loop_that_adds_to_a_key_is_told_to_write_only_what_it_adds():
    loop = "loop: {in: [1], iterator: x, mode: parallel}"

    assert "reduce: {n: sum}`, and write only what one adds" in messages(
        f"- {{step: start, {loop}, {ADD}}}"
    )


@pytest.mark.parametrize(
    ("own", "said"), [("'{{ workload }}'", ["unused-key"]), ("1", [])], ids=["computed", "default"]
)
def test_what_a_workbook_entry_computes_itself_is_not_given(own, said):
    entry = f"workbook: {{w: {{args: {{n: {own}}}, tool: {{kind: noop}}}}}}\n"

    assert codes("- {step: start, tool: {kind: workbook, task: w, args: {n: 2}}}", entry) == said
