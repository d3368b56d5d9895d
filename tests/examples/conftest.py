"""What examples talk to: a demo server of their own, and PostgreSQL."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from examples.demo_server import Demo, serving
from tests.examples.system import ROOT


class Shop(NamedTuple):
    """A running demo server."""

    demo: Demo
    url: str

    def paths(self, method: str) -> list[str]:
        """What was asked for by that method, in order."""
        return [question.path for question in self.demo.asked if question.method == method]


@pytest.fixture
def shop() -> Iterator[Shop]:
    demo = Demo()
    with serving(demo) as url:
        yield Shop(demo, url)


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples name their data from where `noetl run examples/….yaml` is said."""
    monkeypatch.chdir(ROOT)
