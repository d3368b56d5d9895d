"""How fast are expressions? Ours, inlined and not, beside Jinja's `compile_expression`.

    python bench/expressions.py [--json]

Prints evaluations per second for the twenty shapes of expression that playbooks use most. Exits
with 1 if inlined code is less than five times as fast as Jinja (geometric mean of the shapes).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from functools import partial
from time import perf_counter

from jinja2 import ChainableUndefined, Environment

from noetl.templates import Condition, EventView, Scope, Template

SHAPES = [
    "workload.api_url",
    "ctx.user.address.city",
    "order_id",
    "ctx.lines[0].sku",
    "ctx.count > 3",
    "outcome.status == 'error'",
    "outcome.status == 'error' and outcome.http.status in [429, 500, 502, 503, 504]",
    "event.name == 'loop.done'",
    "event.name == 'call.done' and response.paging.hasMore",
    "event.name == 'step.exit' and not ctx.ready",
    "outcome.result.data.data | default([])",
    "outcome.result.data.paging.page | default(iter.page)",
    "(iter.page | int) + 1",
    "iter.has_more == true",
    "ctx.rows | length > 0",
    "'success' if ctx.valid else 'failure'",
    "ctx.region in ['eu', 'us']",
    "ctx.missing is defined and ctx.missing > 1",
    "ctx.price * ctx.count",
    "{'page': iter.page, 'size': workload.page_size}",
]

ROOTS: dict[str, object] = {
    "workload": {"api_url": "https://api.example.com", "page_size": 100, "order_id": 7},
    "ctx": {
        "user": {"address": {"city": "Oslo"}},
        "lines": [{"sku": "A-1"}, {"sku": "A-2"}],
        "count": 7,
        "price": 2.5,
        "ready": False,
        "rows": [{"id": 1}, {"id": 2}],
        "valid": True,
        "region": "eu",
    },
    "iter": {"page": 3, "has_more": True},
    "outcome": {
        "status": "error",
        "http": {"status": 503},
        "result": {"data": {"data": [1, 2, 3], "paging": {"page": 3, "hasMore": True}}},
    },
    "response": {"paging": {"hasMore": True}},
    "event": {"name": "call.done"},
}
REQUIRED_RATIO = 5.0


def rate(work: Callable[[], object], runs: int, seconds: float) -> float:
    """Calls per second: the median of several runs."""
    work()
    rounds = 64
    while _time(work, rounds) < seconds / 4:
        rounds *= 2
    return statistics.median(rounds / _time(work, rounds) for _ in range(runs))


def _time(work: Callable[[], object], rounds: int) -> float:
    start = perf_counter()
    for _ in range(rounds):
        work()
    return perf_counter() - start


def measure(shape: str, runs: int, seconds: float) -> dict[str, object]:
    """One row of the table. A comparison is measured as the condition it is used as."""
    scope = Scope(ROOTS | {"event": EventView({"name": "call.done"}, frozenset({"tool.done"}))})
    flat = ROOTS | {"order_id": 7}
    theirs = Environment(undefined=ChainableUndefined).compile_expression(shape)
    text = f"{{{{ {shape} }}}}"
    inlined, general = Template(text), Template(text, inline=False)
    as_condition = any(sign in shape for sign in ("==", ">", " in ", "defined"))
    works: list[Callable[[], object]] = []
    for template in (inlined, general):
        evaluate = Condition(text, template).holds if as_condition else template.evaluate
        works.append(partial(evaluate, scope))
    works.append(partial(theirs, flat))
    assert works[0]() == works[1]() == works[2](), shape
    fast, slow, jinja = (rate(work, runs, seconds) for work in works)
    return {"shape": shape, "inlined": fast, "general": slow, "jinja": jinja, "ratio": fast / jinja}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.05, help="length of one run")
    options = parser.parse_args()
    rows = [measure(shape, options.runs, options.seconds) for shape in SHAPES]
    ratio = statistics.geometric_mean(float(str(row["ratio"])) for row in rows)
    if options.json:
        print(json.dumps({"rows": rows, "ratio": ratio, "required": REQUIRED_RATIO}, indent=2))
    else:
        print(f"{'expression':<80}{'inlined/s':>12}{'general/s':>12}{'Jinja/s':>12}{'ratio':>8}")
        for row in rows:
            numbers = "".join(f"{row[key]:>12,.0f}" for key in ("inlined", "general", "jinja"))
            print(f"{row['shape']:<80}{numbers}{row['ratio']:>7.1f}x")
        print(f"geometric mean of the ratios: {ratio:.1f}x (required: {REQUIRED_RATIO:.0f}x)")
    return 0 if ratio >= REQUIRED_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
