"""Figures for Prometheus: what is asked of the server, and how much work waits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from noetl.model.ids import ExecutionId
from noetl.model.state import ExecutionState
from noetl.version import __version__

CONTENT_TYPE = CONTENT_TYPE_LATEST

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


class _OfNats(Collector):
    """Counted where it happens, read when somebody asks."""

    def __init__(self, ask: AskNats) -> None:
        self._ask = ask

    def collect(self) -> Iterator[Metric]:
        now = self._ask()
        yield GaugeMetricFamily(
            "noetl_nats_connected", "Whether NATS is reached", float(now.is_connected)
        )
        yield CounterMetricFamily(
            "noetl_nats_connects", "Connections to NATS that were made", value=now.connects
        )
        yield CounterMetricFamily(
            "noetl_nats_failures", "Questions that NATS did not answer", value=now.failures
        )
        copies = CounterMetricFamily(
            "noetl_nats_copies", "Large results looked for in NATS", labels=["outcome"]
        )
        copies.add_metric(["found"], now.copies_found)
        copies.add_metric(["missed"], now.copies_missed)
        yield copies


AskStates = Callable[[], tuple[int, int]]
"""Decisions on states that were in memory, and on states that had to be read."""


class _OfStates(Collector):
    """How well executions stay with the server that has them in memory."""

    def __init__(self, ask: AskStates) -> None:
        self._ask = ask

    def collect(self) -> Iterator[Metric]:
        states = CounterMetricFamily(
            "noetl_states", "Decisions, by where the state was found", labels=["where"]
        )
        for where, count in zip(("memory", "store"), self._ask(), strict=True):
            states.add_metric([where], count)
        yield states


class _OfRequests(Collector):
    """What is counted at every step, in plain numbers: a fifth of what a `Histogram` costs."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, int], int] = {}
        self._times: dict[tuple[str, str], list[float]] = {}
        """How many took so long, for each of `SECONDS` and for more; and all their seconds."""

    def count(self, method: str, route: str, status: int) -> None:
        key = method, route, status
        self._counts[key] = self._counts.get(key, 0) + 1

    def time(self, method: str, route: str, seconds: float) -> None:
        times = self._times.get((method, route))
        if times is None:
            times = self._times[method, route] = [0.0] * (len(SECONDS) + 2)
        times[bisect_left(SECONDS, seconds)] += 1
        times[-1] += seconds

    def collect(self) -> Iterator[Metric]:
        counts = CounterMetricFamily(
            "noetl_http_requests", "Requests answered", labels=["method", "route", "status"]
        )
        for (method, route, status), count in self._counts.items():
            counts.add_metric([method, route, str(status)], count)
        yield counts
        seconds = HistogramMetricFamily(
            "noetl_http_request_seconds",
            "Time until the answer began; long polls and streams are not counted",
            labels=["method", "route"],
        )
        bounds = [*map(str, SECONDS), "+Inf"]
        for key, times in self._times.items():
            upto = list(zip(bounds, accumulate(times[:-1]), strict=True))
            seconds.add_metric(key, upto, times[-1])
        yield seconds


class Metrics:
    """The figures of one server, in a registry of their own."""

    def __init__(self, states: AskStates, nats: AskNats | None = None) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_OfStates(states))
        if nats is not None:
            self.registry.register(_OfNats(nats))
        self.requests = _OfRequests()
        self.registry.register(self.requests)
        self.started = Counter(
            "noetl_executions_started", "Executions started here", registry=self.registry
        )
        self._finished = Counter(
            "noetl_executions_finished",
            "Executions that ended here, by how",
            ["status", "path"],
            registry=self.registry,
        )
        self._paths: set[str] = set()
        reports = Counter(
            "noetl_reports",
            "Reports of workers, by what became of them",
            ["outcome"],
            registry=self.registry,
        )
        self.reports_taken = reports.labels("taken")
        self.reports_refused = reports.labels("refused")
        self.leased = Gauge(
            "noetl_commands_leased",
            "Commands that workers have, by pool",
            ["pool"],
            registry=self.registry,
        )
        self.open = Gauge(
            "noetl_commands_open",
            "Commands that wait for a worker, by pool",
            ["pool"],
            registry=self.registry,
        )
        self._schedule_times = Counter(
            "noetl_schedule_times",
            "Times of schedules decided here, by what became of them",
            ["outcome"],
            registry=self.registry,
        )
        self._lateness = Histogram(
            "noetl_schedule_lateness_seconds",
            "From the moment a time of a schedule was due until its execution was stored",
            buckets=LATENESS_BUCKETS,
            registry=self.registry,
        )
        self.deliveries = Counter(
            "noetl_hook_deliveries",
            "Deliveries to hooks, by what became of them",
            ["outcome"],
            registry=self.registry,
        )
        self.streams = Gauge("noetl_streams", "Event streams being read", registry=self.registry)
        info = Gauge("noetl_build_info", "Which version", ["version"], registry=self.registry)
        info.labels(__version__).set(1)

    def time_decided(self, outcome: str, late: float | None) -> None:
        """What became of a time of a schedule and, if it was started, how late."""
        self._schedule_times.labels(outcome).inc()
        if late is not None:
            self._lateness.observe(max(0.0, late))

    def finished(self, execution_id: ExecutionId, state: ExecutionState) -> None:
        """An execution has ended."""
        if len(self._paths) < PATHS_MAX:
            self._paths.add(state.path)
        path = state.path if state.path in self._paths else OTHER_PATHS
        self._finished.labels(state.status, path).inc()

    def show_queue(self, sizes: dict[str, tuple[int, int]]) -> None:
        """Set the depth of each pool: commands that wait, and commands that are leased."""
        self.open.clear()
        self.leased.clear()
        for pool, (waiting, leased) in sizes.items():
            self.open.labels(pool).set(waiting)
            self.leased.labels(pool).set(leased)

    def text(self) -> bytes:
        return generate_latest(self.registry)
