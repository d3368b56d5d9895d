"""Nets built by hand, for what draws them."""

from __future__ import annotations

from hypothesis import strategies as st

from noetl.model.net import (
    Arc,
    EventRule,
    Fail,
    Join,
    KeychainEntry,
    Loop,
    Net,
    Retry,
    Route,
    Router,
    Rule,
    Step,
    Target,
    Task,
)


def step(name: str, *arcs: str | Arc, mode: str = "exclusive", **more) -> Step:
    ways = tuple(Arc(step=arc) if isinstance(arc, str) else arc for arc in arcs)
    return Step(name=name, router=Router(mode=mode, arcs=ways), **more)


def net(*steps: Step, entry: str | None = None, **more) -> Net:
    return Net(name="n", path="n", entry=entry or steps[0].name, steps=steps, **more)


def task(name: str, kind: str = "noop", **more) -> Task:
    return Task(name=name, kind=kind, **more)


ORDERS = Net(
    name="orders",
    path="examples/orders",
    description="Fetch orders, price them, store them.",
    entry="start",
    keychain=(KeychainEntry(name="pg", kind="postgres_credential"),),
    steps=(
        step(
            "start", Arc(step="fetch", when="{{ workload.enabled }}"), "end", tasks=(task("check"),)
        ),
        step(
            "fetch",
            Arc(step="report", when="{{ event.name == 'call.error' }}", on_failure=True),
            "store",
            loop=Loop(iterator="id", items="{{ workload.ids }}", mode="parallel", max_in_flight=8),
            tasks=(
                task(
                    "call",
                    "http",
                    config={"url": "{{ workload.api }}/{{ iter.id }}", "auth": "api_token"},
                    rules=(
                        Rule(
                            label="limit",
                            when="{{ outcome.error.kind == 'rate_limit' }}",
                            actions=(
                                Retry(attempts=5, backoff="exponential", delay=1, max_delay=60),
                            ),
                        ),
                        Rule(label="else", actions=(Fail(),)),
                    ),
                ),
                task("price", "python", config={"code": "def main():\n    return 1"}),
            ),
        ),
        step(
            "store",
            Arc(step="fetch", when="{{ store.more }}"),
            "end",
            tasks=(task("save", "postgres", config={"command": "INSERT …", "auth": "pg"}),),
            rules=(
                EventRule(
                    label="r",
                    when="{{ event.name == 'call.error' }}",
                    actions=(Route(targets=(Target(step="report"),)),),
                ),
            ),
        ),
        step("report", "end", tasks=(task("mail", "http", config={"url": "https://x.test"}),)),
        step("end", join=Join(kind="all")),
        step("lost", "end", tasks=(task("nothing"),)),
    ),
)


@st.composite
def nets(draw: st.DrawFn) -> Net:
    """Any graph at all: cycles, self-arcs, islands, several arcs between two steps."""
    size = draw(st.integers(1, 12))
    names = [f"s{index}" for index in range(size)]
    guards = st.sampled_from([None, "{{ ctx.a }}", "{{ ctx.b }}"])
    steps = []
    for name in names:
        targets = draw(st.lists(st.tuples(st.sampled_from(names), guards), max_size=4))
        mode = draw(st.sampled_from(["exclusive", "inclusive"]))
        steps.append(step(name, *(Arc(step=to, when=when) for to, when in targets), mode=mode))
    return net(*steps)
