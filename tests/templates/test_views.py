"""One result in all the shapes it is read in."""

from __future__ import annotations

import pytest

from noetl.templates import EventView, OutcomeView, StepView, Tainted, Views, ViewsByName, view
from noetl.templates.views import AnswerView, ResultView, RowsView
from tests.templates.scopes import holds, value

ANSWER = {
    "status_code": 200,
    "headers": {"etag": "x"},
    "data": {"paging": {"hasMore": True, "page": 2}, "data": [1, 2], "status": "DONE"},
    "url": "http://a",
    "elapsed": 0.1,
}
ROWS = {
    "rows": [{"id": 1}, {"id": 2}],
    "row_count": 2,
    "columns": ["id"],
    "command_0": {"rows": [{"a": 1}], "row_count": 1},
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ response.status_code }}", 200),
        ("{{ response.data }}", ANSWER["data"]),
        ("{{ response.paging.hasMore }}", True),
        ("{{ response.data.paging.page }}", 2),
        ("{{ response.data.data | default([]) }}", [1, 2]),
        ("{{ response.status }}", "DONE"),
        ("{{ response.result.status_code }}", 200),
        ("{{ response }}", ANSWER),
        ("{{ response | length }}", 5),
        ("{{ (response | default({})).paging.page }}", 2),
        ("{{ (response or {}).paging.page }}", 2),
        ("{{ (response if response else {}).paging.page }}", 2),
        ("{% set r = response %}{{ r.paging.page }}", "2"),
        ("{% with r = response %}{{ r.paging.page }}{% endwith %}", "2"),
        ("{{ [response][0].status_code }}", 200),
        ("{{ 'status_code' in response }}", True),
        ("{{ response is mapping }}", True),
    ],
)
def test_an_http_answer_is_read_through_to_its_body(text, expected):
    assert value(text, response=view(AnswerView, ANSWER)) == expected


def test_what_the_body_lacks_too_is_missing():
    assert not holds("{{ response.nope }}", response=view(AnswerView, ANSWER))
    assert not holds("{{ response.data.nope }}", response=view(AnswerView, ANSWER))
    assert value("{{ r[0] }}", r=view(AnswerView, {"data": [7]})) == 7
    assert value("{{ r.data }}", r=view(AnswerView, {"data": "text"})) == "text"


def test_rows_are_read_by_index_by_name_and_by_statement():
    result = view(RowsView, ROWS)

    assert value("{{ result[0].id }}", result=result) == 1
    assert value("{{ result[-1].id }}", result=result) == 2
    assert value("{{ result[1:] }}", result=result) == [{"id": 2}]
    assert value("{{ result.rows | length }}", result=result) == 2
    assert value("{{ result.row_count }}", result=result) == 2
    assert value("{{ result.columns }}", result=result) == ["id"]
    assert value("{{ result.command_0.rows[0].a }}", result=result) == 1
    assert value("{{ result.data[0].id }}", result=result) == 1
    assert value("{{ result }}", result=result) == ROWS
    assert not holds("{{ result[2] }}", result=result)


def test_a_plain_list_of_rows_has_the_same_names():
    result = view(RowsView, [{"id": 1}])

    assert value("{{ result.rows[0].id + result.row_count + result[0].id }}", result=result) == 3


@pytest.mark.parametrize("plain", [5, None, "text", [1], {"a": 1}])
def test_data_and_result_of_any_result_are_the_result_itself(plain):
    step = view(ResultView, plain)

    assert value("{{ step }}", step=step) == plain
    assert value("{{ step.data }}", step=step) == plain
    assert value("{{ step.result }}", step=step) == plain
    assert value("{{ step.data.result }}", step=step) == plain


def test_a_result_with_that_key_gives_the_key():
    assert value("{{ step.data }}", step=view(ResultView, {"data": 1})) == 1
    assert value("{{ step.a }}", step=view(ResultView, {"a": 2})) == 2


def test_an_outcome_is_an_envelope_whose_result_is_a_view():
    envelope = {"status": "ok", "result": ANSWER, "http": {"status": 200}}
    outcome = OutcomeView(AnswerView, envelope)

    assert value("{{ outcome.status }}", outcome=outcome) == "ok"
    assert value("{{ outcome.result.paging.page }}", outcome=outcome) == 2
    assert value("{{ outcome.result.data.paging.page }}", outcome=outcome) == 2
    assert value("{{ outcome.data.paging.page }}", outcome=outcome) == 2
    assert value("{{ outcome }}", outcome=outcome) == envelope


def test_steps_are_read_by_name_and_an_unrun_step_is_false():
    steps = ViewsByName({"fetch": view(AnswerView, ANSWER), "n": 3})

    assert value("{{ steps.fetch.paging.page }}", steps=steps) == 2
    assert value("{{ steps }}", steps=steps) == {"fetch": ANSWER, "n": 3}
    assert not holds("{{ steps.other }}", steps=steps)


def test_a_step_of_several_tasks_is_its_last_result_and_has_each_of_them():
    tasks = {"load": view(RowsView, ROWS), "fetch": view(AnswerView, ANSWER)}
    step = StepView(tasks["fetch"], tasks)

    assert value("{{ step.paging.page }}", step=step) == 2
    assert value("{{ step }}", step=step) == ANSWER
    assert value("{{ step.results.load[0].id }}", step=step) == 1
    assert value("{{ step.results }}", step=step) == {"load": ROWS, "fetch": ANSWER}
    assert value("{{ step[1:] }}", step=StepView(tasks["load"], tasks)) == [{"id": 2}]
    assert value("{{ s.results }}", s=StepView(view(AnswerView, {"results": 5}), tasks)) == 5


def test_an_event_answers_to_all_its_names():
    event = EventView({"name": "step.done", "data": 1}, frozenset({"step.exit"}))

    assert holds("{{ event.name == 'step.exit' }}", event=event)
    assert holds("{{ event.name == 'step.done' }}", event=event)
    assert holds("{{ 'step.exit' == event.name }}", event=event)
    assert holds("{{ event.name in ['a', 'step.exit'] }}", event=event)
    assert not holds("{{ event.name != 'step.exit' }}", event=event)
    assert not holds("{{ event.name == 'step.enter' }}", event=event)
    assert value("{{ event.name }}", event=event) == "step.done"
    assert type(value("{{ event.name }}", event=event)) is str
    assert type(value("{{ [event.name] }}", event=event)[0]) is str
    assert value("on {{ event.name }}", event=event) == "on step.done"
    assert value("{{ event }}", event=event) == {"name": "step.done", "data": 1}


def test_truth_and_tests_of_a_view_are_those_of_the_plain_value():
    assert not holds("{{ step }}", step=view(ResultView, {}))
    assert not holds("{{ step }}", step=view(ResultView, None))
    assert holds("{{ step is none }}", step=view(ResultView, None))
    assert holds("{{ step == 5 and step > 4 and step + 1 == 6 }}", step=view(ResultView, 5))


def test_a_result_of_a_kind_that_is_not_installed_is_read_by_its_own_keys():
    assert Views({}.get)["gone"] is ResultView


def test_the_view_of_a_secret_result_is_secret():
    assert isinstance(view(ResultView, Tainted({"a": 1})), Tainted)
