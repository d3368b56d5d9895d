"""Those who watch are told of what they watch for, and of nothing else."""

from __future__ import annotations

from noetl.control.watchers import Watchers
from noetl.store.log import Facts

CALLED = [Facts(1, b'{"type":"task.done","step":"step.done"}')]
DONE = [Facts(1, b'{"type":"task.done"}'), Facts(2, b'{"type":"a"},{"type":"step.done"}')]


def test_whoever_watches_for_some_types_hears_of_these_and_of_what_others_did():
    watchers = Watchers()
    everything = watchers.watch("1")
    ends = watchers.watch("1", ("step.failed", "step.done"))

    for events, is_for_it in ((CALLED, False), (DONE, True), (None, True), ([], False)):
        everything.clear()
        ends.clear()
        watchers.tell("1", events, may_have_ended=False)
        assert (everything.is_set(), ends.is_set()) == (True, is_for_it)


def test_executions_that_somebody_watches_are_known_until_nobody_does():
    watchers = Watchers()
    signals = [watchers.watch("1"), watchers.watch("2", ("step.done",))]
    assert watchers.executions() == {"1", "2"}

    watchers.unwatch("1", signals[0])
    watchers.unwatch("2", signals[1])

    assert watchers.executions() == set()
