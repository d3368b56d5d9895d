"""`spec.rate`: calls are spread, whoever makes them."""

from __future__ import annotations

import asyncio

import pytest

from noetl.model.duration import interval
from noetl.model.events import TaskDone
from noetl.worker.rates import Rates
from tests.examples.system import playbook, ran
from tests.tools.web import serving


@pytest.mark.parametrize(
    ("rate", "apart"),
    [("10/s", 0.1), ("100/5m", 3.0), ("2.5/s", 0.4), ("3/500ms", 1 / 6), (" 5 / 2s ", 0.4)],
)
def test_a_rate_says_how_far_apart_calls_are(rate, apart):
    assert interval(rate) == pytest.approx(apart)


@pytest.mark.parametrize("rate", ["10", "10/", "/s", "0/s", "a/s", "10/5", "10/s/s", "1/0s", ""])
def test_what_is_no_rate_is_none(rate):
    assert interval(rate) is None


def spread(run):
    """Seconds from the end of the first call to the end of the last."""
    ends = [fact.outcome.meta.ended_at for fact in run.of(TaskDone)]
    return max(ends) - min(ends)


def test_iterations_of_a_parallel_loop_share_the_rate_of_their_task():
    done = ran(
        playbook(
            """
- step: start
  loop: { in: { from: 0, to: 9 }, iterator: n, spec: { mode: parallel } }
  tool: { kind: noop, result: "{{ n }}", spec: { rate: 40/s } }
"""
        )
    )

    assert done.result["results"] == list(range(9))
    assert spread(done) >= 8 / 40 * 0.95


def test_requests_to_one_host_share_its_rate_whichever_step_they_come_from(monkeypatch):
    began = []
    wait = Rates.wait

    async def noted(self, *call):
        await wait(self, *call)
        began.append(asyncio.get_running_loop().time())

    # When calls may begin, not when they end: how long a connection takes is another matter.
    monkeypatch.setattr(Rates, "wait", noted)
    with serving() as web:
        call = f"tool: {{kind: http, url: '{web.url}/echo', spec: {{rate: 10/s}}}}"
        steps = [f"- {{step: {name}, {call}}}" for name in "abc"]
        done = ran(playbook("\n".join(["- {step: start, next: [a, b, c]}", *steps])))

    assert len(done.of(TaskDone)) == 3
    assert max(began) - min(began) >= 2 / 10 * 0.5, "without a common rate they begin together"
