"""Those who watch are told of what they watch for, and of nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from noetl.control.watchers import Watchers
from noetl.store.log import Facts, Write


def test_executions_that_somebody_watches_are_known_until_nobody_does():
    watchers = Watchers()
    with watchers.follow("1"), watchers.follow("2", 1000), watchers.follow("2"):
        assert watchers.executions() == {"1", "2"}

    assert watchers.executions() == set()


def stored(seq_before: int, *names: str) -> Write:
    """A write of events with these names."""
    facts = [Facts(1, f'{{"type":"{name}","at":1.0}}'.encode()) for name in names]
    return Write(execution_id="1", seq_before=seq_before, events=facts)


def told(writes: Sequence[Write | None], after: int, size: int = 1000) -> list[str] | None:
    """What somebody takes who has read the store up to that event, and is told of these."""
    watchers = Watchers()
    with watchers.follow("1", size) as tail:
        assert tail.take(0) is None
        for write in writes:
            watchers.tell("1", write, may_have_ended=False)
        rows = tail.take(after)
        assert not tail.signal.is_set()
        assert tail.take(after) == []
    assert watchers.executions() == set()
    return None if rows is None else [f"{row.seq} {row.type}" for row in rows]


def test_whoever_follows_takes_what_was_stored_after_what_they_have():
    assert told([stored(3, "a", "b"), stored(5, "c")], after=3) == ["4 a", "5 b", "6 c"]
    assert told([stored(3, "a", "b"), stored(5, "c")], after=4) == ["5 b", "6 c"]
    assert told([stored(3, "a")], after=4) == []
    assert told([stored(3)], after=3) == []


def test_whoever_follows_is_told_to_read_what_is_not_there():
    assert told([stored(4, "b")], after=3) is None
    assert told([stored(3, "a"), stored(5, "c")], after=3) is None
    assert told([stored(3, "a"), None, stored(4, "b")], after=3) is None
    assert told([stored(3, "a"), stored(4, "b"), stored(5, "c")], after=3, size=40) is None


CALLED = b'{"type":"task.done","at":1.0,"step":"step.done"}'
DONE = b'{"type":"a","at":1.0},{"type":"step.done","at":1.0}'


def test_whoever_follows_some_types_hears_of_these_and_of_what_others_did():
    watchers = Watchers()
    types = ("step.failed", "step.done")
    with watchers.follow("1") as everything, watchers.follow("1", 1000, types) as ends:
        heard, taken, last = [], [], 4
        assert ends.take(last) is None
        for events in ([Facts(1, CALLED)], [Facts(1, CALLED), Facts(2, DONE)], None, []):
            everything.signal.clear()
            write = (
                None if events is None else Write(execution_id="1", seq_before=last, events=events)
            )
            watchers.tell("1", write, may_have_ended=False)
            assert everything.signal.is_set() == (events != [])
            heard.append(ends.signal.is_set())
            if ends.signal.is_set():
                rows = ends.take(4)
                taken.append(None if rows is None else [f"{row.seq} {row.type}" for row in rows])
            last += sum(facts.size for facts in events or ())

    assert heard == [False, True, True, False]
    assert taken == [["8 step.done"], None]


def test_whoever_follows_some_types_reads_what_others_stored_between_two_events():
    watchers = Watchers()
    with watchers.follow("1", 1000, ("step.done",)) as ends:
        assert ends.take(4) is None
        for before in (4, 9):
            write = Write(execution_id="1", seq_before=before, events=[Facts(1, CALLED)])
            watchers.tell("1", write, may_have_ended=False)

        assert ends.signal.is_set()
        assert ends.take(4) is None
