"""Figures for Prometheus: what is asked of the server, and how much work waits."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from noetl.version import __version__

CONTENT_TYPE = CONTENT_TYPE_LATEST.partition("; charset")[0]
"""The framework says by itself that it is UTF-8."""


class Metrics:
    """The figures of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "noetl_http_requests",
            "Requests answered",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "noetl_http_request_seconds",
            "Time until the answer began; long polls and streams are not counted",
            ["method", "route"],
            registry=self.registry,
        )
        self.started = Counter(
            "noetl_executions_started", "Executions started here", registry=self.registry
        )
        self.reports = Counter(
            "noetl_reports",
            "Reports of workers, by what became of them",
            ["outcome"],
            registry=self.registry,
        )
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
        self.streams = Gauge("noetl_streams", "Event streams being read", registry=self.registry)
        info = Gauge("noetl_build_info", "Which version", ["version"], registry=self.registry)
        info.labels(__version__).set(1)

    def show_queue(self, sizes: dict[str, tuple[int, int]]) -> None:
        """Set the depth of each pool: commands that wait, and commands that are leased."""
        self.open.clear()
        self.leased.clear()
        for pool, (waiting, leased) in sizes.items():
            self.open.labels(pool).set(waiting)
            self.leased.labels(pool).set(leased)

    def text(self) -> bytes:
        return generate_latest(self.registry)
