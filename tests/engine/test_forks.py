"""What a fork begins with."""

from __future__ import annotations

from noetl.engine.forks import Past, seed
from noetl.model.chains import Progress
from noetl.model.state import LoopState, Run


def test_a_poll_that_waited_has_the_time_that_it_had_left() -> None:
    waits = Progress(poll_began=90.0)
    past = Past(None)
    past.at = 100.0
    past.state.runs = {
        "one": Run(step_run_id="one", step="look", number=1, progress=waits),
        "two": Run(
            step_run_id="two",
            step="each",
            number=1,
            loop=LoopState(total=1, suspended={0: waits}),
        ),
    }

    one, two = seed(past, "1", "2", now=1000.0).state.runs.values()

    assert one.progress is not None
    assert one.progress.poll_began == 990.0
    assert two.loop is not None
    assert two.loop.suspended[0].poll_began == 990.0
