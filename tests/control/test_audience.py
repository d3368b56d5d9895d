"""Those who watch are told of what they watch for, and of nothing else."""

from __future__ import annotations

from noetl.control.audience import Audience


def test_whoever_watches_for_the_end_hears_of_nothing_before():
    audience = Audience()
    everything = audience.watch("1")
    only_end = audience.watch("1", only_end=True)

    audience.tell("1", may_have_ended=False)
    assert (everything.is_set(), only_end.is_set()) == (True, False)

    everything.clear()
    audience.tell("1", may_have_ended=True)
    assert (everything.is_set(), only_end.is_set()) == (True, True)


def test_executions_that_somebody_watches_are_known_until_nobody_does():
    audience = Audience()
    signals = [audience.watch("1"), audience.watch("2", only_end=True)]
    assert audience.executions() == {"1", "2"}

    audience.unwatch("1", signals[0])
    audience.unwatch("2", signals[1])

    assert audience.executions() == set()
