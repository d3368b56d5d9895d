"""Figures for Prometheus: what is asked of the server, and how much work waits.

They are counted in plain numbers, a fifth of what the objects of `prometheus_client` cost; that
library is loaded when somebody reads them. Most processes that hold a database are never asked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

import msgspec

from noetl.model.ids import ExecutionId
from noetl.model.state import ExecutionState
from noetl.version import __version__

if TYPE_CHECKING:
    from prometheus_client.core import Metric

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
"""Of the text that `prometheus_client` writes."""
LATENESS_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 300, 3600)
PATHS_MAX = 1000
"""Playbooks that are counted by their paths; those of the others are counted together."""
OTHER_PATHS = "(other)"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The bounds of the histogram of requests."""


class NatsFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How NATS does, as far as this server knows."""

    is_connected: bool
    connects: int
    failures: int
    copies_found: int
    copies_missed: int


AskNats = Callable[[], NatsFigures]


AskStates = Callable[[], tuple[int, int]]
"""Decisions on states that were in memory, and on states that had to be read."""


class Figure:
    """A counter or a gauge, by its labels."""

    def __init__(
        self, kind: Literal["counter", "gauge"], name: str, says: str, *labels: str
    ) -> None:
        self._about = kind, name, says, labels
        self._values: dict[tuple[str | int, ...], float] = {} if labels else {(): 0.0}

    def inc(self, *labels: str | int) -> None:
        self._values[labels] = self._values.get(labels, 0.0) + 1

    def dec(self, *labels: str | int) -> None:
        self._values[labels] -= 1

    def show(self, values: dict[tuple[str | int, ...], float]) -> None:
        """What there is now, instead of what there was."""
        self._values = values

    def metric(self) -> Metric:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        kind, name, says, labels = self._about
        family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
        found = family(name, says, labels=labels)
        for key, value in self._values.items():
            found.add_metric([str(one) for one in key], value)
        return found


class Times:
    """How long something took: how many took at most so long, by labels."""

    def __init__(self, name: str, says: str, bounds: tuple[float, ...], *labels: str) -> None:
        self._about = name, says, labels
        self._bounds = bounds
        self._times: dict[tuple[str, ...], list[float]] = {}
        """How many, for each of the bounds and for more; and all their seconds."""
        if not labels:
            self._times[()] = self._none()

    def _none(self) -> list[float]:
        return [0.0] * (len(self._bounds) + 2)

    def add(self, seconds: float, *labels: str) -> None:
        times = self._times.get(labels)
        if times is None:
            times = self._times[labels] = self._none()
        times[bisect_left(self._bounds, seconds)] += 1
        times[-1] += seconds

    def metric(self) -> Metric:
        from prometheus_client.core import HistogramMetricFamily

        name, says, labels = self._about
        found = HistogramMetricFamily(name, says, labels=labels)
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for key, times in self._times.items():
            upto = list(zip(bounds, accumulate(times[:-1]), strict=True))
            found.add_metric(key, upto, times[-1])
        return found


class Metrics:
    """The figures of one server."""

    def __init__(self, states: AskStates, nats: AskNats | None = None) -> None:
        self._states = states
        self._nats = nats
        self._requests = Figure(
            *("counter", "noetl_http_requests", "Requests answered"), "method", "route", "status"
        )
        self._request_seconds = Times(
            "noetl_http_request_seconds",
            "Time until the answer began; long polls and streams are not counted",
            SECONDS,
            *("method", "route"),
        )
        self.started = Figure("counter", "noetl_executions_started", "Executions started here")
        self._finished = Figure(
            *("counter", "noetl_executions_finished", "Executions that ended here, by how"),
            *("status", "path"),
        )
        self._paths: set[str] = set()
        self.reports = Figure(
            *("counter", "noetl_reports", "Reports of workers, by what became of them"), "outcome"
        )
        self._leased = Figure(
            *("gauge", "noetl_commands_leased", "Commands that workers have, by pool"), "pool"
        )
        self._open = Figure(
            *("gauge", "noetl_commands_open", "Commands that wait for a worker, by pool"), "pool"
        )
        self._schedule_times = Figure(
            "counter",
            "noetl_schedule_times",
            "Times of schedules decided here, by what became of them",
            "outcome",
        )
        self._lateness = Times(
            "noetl_schedule_lateness_seconds",
            "From the moment a time of a schedule was due until its execution was stored",
            LATENESS_BUCKETS,
        )
        self.deliveries = Figure(
            *("counter", "noetl_hook_deliveries", "Deliveries to hooks, by what became of them"),
            "outcome",
        )
        self.messages = Figure(
            "counter",
            "noetl_consumer_messages",
            "Messages of consumers taken here, by what became of them",
            "outcome",
        )
        self.notices = Figure(
            "counter",
            "noetl_notifications",
            "Notices of notifications settled here, by what they tell and what became of them",
            *("on", "outcome"),
        )
        self.streams = Figure("gauge", "noetl_streams", "Event streams being read")

    def answered(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """A request was answered, after so many seconds if they count."""
        self._requests.inc(method, route, status)
        if seconds is not None:
            self._request_seconds.add(seconds, method, route)

    def time_decided(self, outcome: str, late: float | None) -> None:
        """What became of a time of a schedule and, if it was started, how late."""
        self._schedule_times.inc(outcome)
        if late is not None:
            self._lateness.add(max(0.0, late))

    def finished(self, execution_id: ExecutionId, state: ExecutionState) -> None:
        """An execution has ended."""
        if len(self._paths) < PATHS_MAX:
            self._paths.add(state.path)
        path = state.path if state.path in self._paths else OTHER_PATHS
        self._finished.inc(state.status, path)

    def show_queue(self, sizes: dict[str, tuple[int, int]]) -> None:
        """Set the depth of each pool: commands that wait, and commands that are leased."""
        self._open.show({(pool,): waiting for pool, (waiting, _) in sizes.items()})
        self._leased.show({(pool,): leased for pool, (_, leased) in sizes.items()})

    def collect(self) -> Iterator[Metric]:
        """Everything there is, for `prometheus_client`."""
        found = Figure(
            "counter", "noetl_states", "Decisions, by where the state was found", "where"
        )
        memory, store = self._states()
        found.show({("memory",): memory, ("store",): store})
        yield found.metric()
        if self._nats is not None:
            yield from _of_nats(self._nats())
        for one in vars(self).values():
            if isinstance(one, Figure | Times):
                yield one.metric()
        version = Figure("gauge", "noetl_build_info", "Which version", "version")
        version.show({(__version__,): 1})
        yield version.metric()

    def text(self) -> bytes:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.registry import Collector

        class Ours(Collector):
            collect = self.collect

        registry = CollectorRegistry()
        registry.register(Ours())
        return generate_latest(registry)


def _of_nats(now: NatsFigures) -> Iterator[Metric]:
    connected = Figure("gauge", "noetl_nats_connected", "Whether NATS is reached")
    connected.show({(): float(now.is_connected)})
    connects = Figure("counter", "noetl_nats_connects", "Connections to NATS that were made")
    connects.show({(): now.connects})
    failures = Figure("counter", "noetl_nats_failures", "Questions that NATS did not answer")
    failures.show({(): now.failures})
    copies = Figure("counter", "noetl_nats_copies", "Large results looked for in NATS", "outcome")
    copies.show({("found",): now.copies_found, ("missed",): now.copies_missed})
    yield from (one.metric() for one in (connected, connects, failures, copies))
