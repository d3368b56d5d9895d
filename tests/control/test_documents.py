"""Documents of the API: how they write what the state holds."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import example, given
from hypothesis import strategies as st

from noetl.control.documents import moment


@given(st.floats(min_value=-1e9, max_value=4e9))
@example(0.0)
@example(1794915327.9999997)
@example(1794915327.0004997)
@example(-0.25)
def test_a_moment_is_written_as_the_standard_library_writes_it(at: float):
    written = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")

    assert moment(at) == written.replace("+00:00", "Z")
