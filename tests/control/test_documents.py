"""Documents of the API: how they write what the state holds."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import example, given
from hypothesis import strategies as st

from noetl.control import documents
from noetl.control.documents import moment
from noetl.model.answers import ArchivedDocument, FailureDocument, SessionDocument
from noetl.store.access import StoredSession
from noetl.store.archive import Archived


@given(st.floats(min_value=-1e9, max_value=4e9))
@example(0.0)
@example(1794915327.9999997)
@example(1794915327.0004997)
@example(-0.25)
def test_a_moment_is_written_as_the_standard_library_writes_it(at: float):
    written = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")

    assert moment(at) == written.replace("+00:00", "Z")


def test_a_document_is_made_from_what_it_shows():
    session = StoredSession(
        session_id="7",
        digest="secret",
        user="ann",
        created_at=0,
        expires_at=1.5,
        last_activity_at=1,
    )

    assert documents.of(SessionDocument, session, current=True) == SessionDocument(
        session_id="7",
        user="ann",
        created_at="1970-01-01T00:00:00.000Z",
        expires_at="1970-01-01T00:00:01.500Z",
        last_activity_at="1970-01-01T00:00:01.000Z",
        client_ip="",
        current=True,
    )
    assert documents.of(ArchivedDocument, Archived("a", 3, 0.0), archived_at=0.25) == (
        ArchivedDocument(name="a", size=3, archived_at="1970-01-01T00:00:00.250Z")
    )


def test_a_document_made_from_another_lacks_what_that_lacks():
    failure = FailureDocument(kind="timeout", message="too late", status=504)

    assert documents.of(FailureDocument, failure, message="late") == FailureDocument(
        kind="timeout", message="late", status=504
    )
