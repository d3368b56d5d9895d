"""Metrics for Prometheus: requests to the server, and the depth of its queues.

They are counted in plain numbers, at a fifth of the cost of `prometheus_client`'s objects. That
library is imported on the first scrape; most processes that hold a database never see one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

from noetl.model.ids import ExecutionId
from noetl.model.state import ExecutionState
from noetl.version import __version__

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from noetl.control.commit_loop import CommitLoop
    from noetl.store.nats import Nats

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"
"""The content type of `prometheus_client`'s text format."""
LATENESS_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 300, 3600)
PATHS_MAX = 1000
"""How many playbooks are counted by path; the rest is counted together."""
OTHER_PATHS = "(other)"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Bucket bounds of the request histogram."""


class Figure:
    """A counter or a gauge, by labels."""

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
        """Replace all values."""
        self._values = values

    def metric(self) -> Metric:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        kind, name, says, labels = self._about
        family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
        found = family(name, says, labels=labels)
        for key, value in self._values.items():
            found.add_metric([str(one) for one in key], value)
        return found


_counter, _gauge = partial(Figure, "counter"), partial(Figure, "gauge")


class Times:
    """A histogram of durations, by labels."""

    def __init__(self, name: str, says: str, bounds: tuple[float, ...], *labels: str) -> None:
        self._about = name, says, labels
        self._bounds = bounds
        self._times: dict[tuple[str, ...], list[float]] = {}
        """The count of each bucket (the last is unbounded), and the sum in seconds."""
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
    """The metrics of one server: its own counts, and those of its commit loop and of NATS."""

    def __init__(self, commits: CommitLoop, nats: Nats | None) -> None:
        self._commits = commits
        self._nats = nats
        self._requests = _counter(
            "noetl_http_requests", "Requests answered", "method", "route", "status"
        )
        self._request_seconds = Times(
            "noetl_http_request_seconds",
            "Time until the answer began; long polls and streams are not counted",
            SECONDS,
            "method",
            "route",
        )
        self._finished = _counter(
            "noetl_executions_finished", "Executions that ended here, by status", "status", "path"
        )
        self._paths: set[str] = set()
        self.reports = _counter("noetl_reports", "Reports of workers, by outcome", "outcome")
        self._leased = _gauge(
            "noetl_commands_leased", "Commands leased to workers, by pool", "pool"
        )
        self._open = _gauge(
            "noetl_commands_open", "Commands that wait for a worker, by pool", "pool"
        )
        self._schedule_times = _counter(
            "noetl_schedule_times",
            "Due times of schedules decided on this server, by outcome",
            "outcome",
        )
        self._lateness = Times(
            "noetl_schedule_lateness_seconds",
            "Delay from the due time of a schedule until its execution was stored",
            LATENESS_BUCKETS,
        )
        self.deliveries = _counter(
            "noetl_hook_deliveries", "Deliveries to hooks, by outcome", "outcome"
        )
        self.messages = _counter(
            "noetl_consumer_messages",
            "Messages of consumers taken on this server, by outcome",
            "outcome",
        )
        self.notices = _counter(
            "noetl_notifications",
            "Notices of notifications settled on this server, by event and outcome",
            "on",
            "outcome",
        )
        self.streams = _gauge("noetl_streams", "Open event streams")

    def answered(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """A request was answered; `seconds` is None if its duration does not count."""
        self._requests.inc(method, route, status)
        if seconds is not None:
            self._request_seconds.add(seconds, method, route)

    def time_decided(self, outcome: str, late: float | None) -> None:
        """The outcome of a due time of a schedule and, if it started an execution, its delay."""
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
        """Set the depth of each pool: waiting commands and leased commands."""
        self._open.show({(pool,): waiting for pool, (waiting, _) in sizes.items()})
        self._leased.show({(pool,): leased for pool, (_, leased) in sizes.items()})

    def collect(self) -> Iterator[Metric]:
        """All metrics, for `prometheus_client`."""
        commits = self._commits
        started = _counter("noetl_executions_started", "Executions started here")
        started.show({(): commits.started})
        states = _counter("noetl_states", "Decisions, by where the state was found", "where")
        states.show({("memory",): commits.states_found, ("store",): commits.states_read})
        yield from (started.metric(), states.metric())
        if self._nats is not None:
            yield from _of_nats(self._nats)
        for one in vars(self).values():
            if isinstance(one, Figure | Times):
                yield one.metric()
        version = _gauge("noetl_build_info", "Which version", "version")
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


def _of_nats(nats: Nats) -> Iterator[Metric]:
    connection, bodies = nats.connection, nats.bodies
    connected = _gauge("noetl_nats_connected", "Whether NATS is connected")
    connected.show({(): float(connection.is_connected)})
    connects = _counter("noetl_nats_connects", "Connections made to NATS")
    connects.show({(): connection.connects})
    failures = _counter("noetl_nats_failures", "Requests that NATS did not answer")
    failures.show({(): connection.failures})
    copies = _counter("noetl_nats_copies", "Large results looked up in NATS", "outcome")
    copies.show({("found",): bodies.found, ("missed",): bodies.missed})
    yield from (one.metric() for one in (connected, connects, failures, copies))
