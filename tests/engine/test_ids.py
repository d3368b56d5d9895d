"""An event's id follows from its place: the place alone keeps it from being written twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from noetl.model.ids import event_id

executions = st.integers(0, 2**63 - 1).map(str)
moments = st.floats(1_704_067_200, 3_000_000_000)
places = st.integers(1, 2**22 - 1)


@given(executions, moments, moments, places, places)
def test_two_places_in_a_log_never_have_the_same_event_id(execution_id, at, later, seq, other):
    same = event_id(execution_id, seq, at) == event_id(execution_id, other, later)

    assert same <= (seq == other)


@given(executions, moments, places)
def test_deciding_again_names_an_event_the_same(execution_id, at, seq):
    assert event_id(execution_id, seq, at) == event_id(execution_id, seq, at)
    assert int(event_id(execution_id, seq, at)) < 2**63
