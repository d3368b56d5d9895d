"""How long it takes to compile playbooks, and that the time grows with their length, not faster.

Run `python bench/validate.py`, with `--json` for machines. Exits with 1 if a step of a long
playbook costs more than twice a step of a short one.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from noetl.dsl import Compiled, compile_text
from noetl.dsl.schema import playbook_schema
from noetl.model.net import Net, decode, digest, encode
from noetl.tools.registry import tools

SHORT, LONG = 10, 2_000
RATIO_MAX = 2.0
TOOLS = tools()

HEAD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: long, path: bench/long}
workload: {api_url: https://example.com}
workflow:
"""
STEP = """\
  - step: STEP
    desc: One page of many, cleaned and kept.
    args: {page: "{{ NUMBER }}"}
    tool:
      - name: fetch
        kind: http
        url: "{{ workload.api_url }}/pages/{{ args.page + NUMBER }}"
        params: {size: 100}
        spec:
          timeout: {connect: 5, read: 15}
          policy:
            rules:
              - when: "{{ outcome.status == 'error' and outcome.http.status in [429, NUMBER] }}"
                then: {do: retry, attempts: 5, backoff: exponential, delay: 1s}
              - when: "{{ outcome.status == 'error' }}"
                then: {do: fail}
              - else:
                  then: {do: continue, set_iter: {rows: "{{ outcome.result.data.rNUMBER }}"}}
      - name: clean
        kind: python
        args: {rows: "{{ iter.rows | default([NUMBER]) }}"}
        code: result = [row for row in rows if row]
    next:
      arcs:
        - {step: NEXT, when: "{{ event.name == 'step.done' and STEP.count > NUMBER }}"}
        - {step: end, when: "{{ event.name == 'step.failed' }}"}
"""
END = "  - {step: end, tool: {kind: noop}}\n"


def playbook(steps: int) -> str:
    """A chain of this many steps. Every template has a number of its own, so none is met twice."""
    names = ["start", *(f"s{number}" for number in range(1, steps - 1)), "end"]
    written = [
        STEP.replace("NUMBER", str(number)).replace("NEXT", names[number + 1]).replace("STEP", name)
        for number, name in enumerate(names[:-1])
    ]
    return HEAD + "".join(written) + END


def forget_templates() -> None:
    """Empty every cache of the package, so that no run profits from the one before."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "noetl":
            for thing in list(vars(module).values()):
                if hasattr(thing, "cache_clear"):
                    thing.cache_clear()


def median_seconds(
    work: Callable[[], object], runs: int, before: Callable[[], None] = lambda: None
) -> float:
    """Of processor time: the work runs on one core, and others may use this machine too."""
    taken = []
    for _ in range(runs):
        before()
        gc.collect()
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


def compiled(text: str) -> Compiled:
    found = compile_text(text, tools=TOOLS)
    assert found.problems == (), "\n".join(map(str, found.problems[:5]))
    return found


def net_figures(net: Net) -> dict[str, float]:
    """Microseconds of what happens to a net on its way to a worker."""
    data = encode(net)
    return {
        "net_bytes": len(data),
        "encode_us": 1e6 * median_seconds(lambda: encode(net), 51),
        "decode_us": 1e6 * median_seconds(lambda: decode(data), 51),
        "digest_us": 1e6 * median_seconds(lambda: digest(net), 51),
    }


def measure() -> dict[str, Any]:
    short, long = playbook(SHORT), playbook(LONG)
    compiled(short)  # imports, and the parser's own tables
    short_s = median_seconds(lambda: compiled(short), 21, forget_templates)
    warm_s = median_seconds(lambda: compiled(short), 21)
    long_s = median_seconds(lambda: compiled(long), 3, forget_templates)
    ratio = (long_s / LONG) / (short_s / SHORT)
    return {
        "compile_10_steps_ms": 1e3 * short_s,
        "compile_10_steps_again_ms": 1e3 * warm_s,
        "compile_2000_steps_ms": 1e3 * long_s,
        "per_step_ratio": ratio,
        "schema_bytes": len(json.dumps(playbook_schema(TOOLS), separators=(",", ":"))),
        **net_figures(compiled(short).unwrap()),
        "linear": ratio <= RATIO_MAX,
    }


def main() -> int:
    figures = measure()
    if "--json" in sys.argv[1:]:
        print(json.dumps(figures, indent=2))
    else:
        for name, value in figures.items():
            print(
                f"{name:28} {value:>12,.2f}"
                if isinstance(value, float)
                else f"{name:28} {value:>12}"
            )
    if not figures["linear"]:
        print(
            f"a step of {LONG} costs {figures['per_step_ratio']:.1f} times a step of {SHORT};"
            f" at most {RATIO_MAX:g} times is linear enough",
            file=sys.stderr,
        )
    return 0 if figures["linear"] else 1


if __name__ == "__main__":
    sys.exit(main())
