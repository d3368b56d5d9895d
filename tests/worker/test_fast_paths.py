"""Each fast path of a call gives the same facts as the general path it stands for.

`docs/performance.md` lists them with what they save.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from noetl import configured
from noetl.model.events import Event
from tests.examples.system import Bench, Run, on_bench, playbook

FLOWS = {
    "one task": "- {step: start, tool: {kind: noop, result: {a: [1, null]}}}",
    "a pipeline": """
- step: start
  tool:
  - {name: one, kind: noop, args: {x: 1}, result: 1}
  - {name: two, kind: python, code: "result = {'x': x}", args: {x: 2}}
  - {name: three, kind: noop, result: "{{ two.x + one }}"}
""",
    "a failure": """
- {step: start, tool: {kind: python, code: "raise ValueError('no')"}, next: other}
- {step: other, tool: {kind: noop}}
""",
    "a loop": """
- {step: start, loop: {in: [1, 2, 3], iterator: n}, tool: {kind: noop, result: 7}}
""",
}
DRAWN = re.compile(r"\b[0-9a-f]{16,}\b|\b\d{15,}\b|\bembedded-[\w-]+")
"""Ids and names that every execution has of its own."""
TIMES = frozenset({"at", "recorded_at", "duration", "started_at", "ended_at", "seal"})
BUNDLING = frozenset({"report", "settled"})
"""Which report brings a fact depends on the clock: what takes long is told in between."""


def _told(value: Any) -> Any:
    """What a fact says that the same execution, run again, says as well."""
    if isinstance(value, dict):
        return {key: _told(one) for key, one in value.items() if key not in TIMES | BUNDLING}
    if isinstance(value, list):
        return [_told(one) for one in value]
    return DRAWN.sub("…", value) if isinstance(value, str) else value


def _facts(events: list[Event]) -> Any:
    return _told(msgspec.to_builtins(events))


@pytest.mark.parametrize("name", FLOWS)
def test_tasks_without_templates_and_rules_do_as_all_others(name: str) -> None:
    text = playbook(FLOWS[name])

    async def both(bench: Bench) -> tuple[Run, Run]:
        plain = await bench.run(text)
        digest = configured.compiler(bench.settings)(text).digest
        program = await bench.system.orchestrator.programs.by_digest(digest)
        tasks = [task for step in program.steps.values() for task in step.tasks]
        assert any(task.is_literal for task in tasks)
        assert any(task.judges_nothing for task in tasks)
        for task in tasks:
            task.is_literal = task.judges_nothing = False
        return plain, await bench.run(text)

    plain, general = on_bench(both)
    assert plain.document["status"] == general.document["status"]
    assert _facts(plain.events) == _facts(general.events)
