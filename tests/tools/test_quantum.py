"""kind: quantum, on the simulator in its own processes."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from noetl.tools.rules import Rules
from tests.stopwatch import PATIENCE
from tests.tools.running import Bench, failure, on_bench, ran

BELL = """
OPENQASM 2.0;
include "qelib1.inc";
qreg q[2];
creg c[2];
h q[0];
cx q[0], q[1];
measure q -> c;
"""
TURN = """
OPENQASM 3.0;
include "stdgates.inc";
input angle theta;
qubit[1] q;
bit[1] c;
rx(theta) q[0];
c = measure q;
"""
PI = 3.141592653589793


def run(bench: Bench, **config: Any) -> Any:
    return bench.run("quantum", {"op": "run", "shots": 200, "seed": 7, **config})


def test_a_circuit_is_run_and_the_same_seed_gives_the_same_counts():
    async def work(bench: Bench) -> list[Any]:
        bounded = await run(bench, circuit=BELL, shots_max=50)
        return [await run(bench, circuit=BELL), await run(bench, circuit=BELL), bounded]

    first, second, bounded = on_bench(work)

    assert first.result == second.result
    assert (first.result["state"], first.result["shots"]) == ("DONE", 200)
    assert bounded.result["shots"] == 50
    assert set(first.result["counts"]) == {"00", "11"}
    assert sum(first.result["counts"].values()) == 200


CIRCUITS: list[tuple[Any, dict[str, Any], str]] = [
    ([["x", 0], ["cx", 0, 1]], {}, "11"),
    ({"qubits": 3, "gates": [["x", 1]]}, {}, "010"),
    ([{"gate": "rx", "params": ["t"], "qubits": [0]}], {"t": PI}, "1"),
    ([{"gate": "rx", "params": [f"t[{n}]"], "qubits": [n]} for n in (0, 1)], {"t": [0, PI]}, "10"),
    (TURN, {"theta": PI}, "1"),
    ([["x", 0], ["measure", 0]], {}, "1"),
]


def test_the_forms_of_a_circuit():
    async def work(bench: Bench) -> list[Any]:
        return [
            await run(bench, circuit=circuit, parameters=parameters)
            for circuit, parameters, _ in CIRCUITS
        ]

    counts = [outcome.result["counts"] for outcome in on_bench(work)]
    assert counts == [{bits: 200} for *_, bits in CIRCUITS]


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"circuit": "OPENQASM 2.0; nonsense"}, "parse", "cannot be read"),
    ({"circuit": "OPENQASM 3.0; nope"}, "parse", "not OpenQASM 3"),
    ({"circuit": 'OPENQASM 2.0; include "/etc/passwd";'}, "parse", "unable to find"),
    ({"circuit": [["warp", 0]]}, "parse", "no such gate"),
    ({"circuit": [["h", -1]]}, "parse", "whole numbers"),
    ({"circuit": [["cx", 0]]}, "parse", "gates[0]"),
    ({"circuit": {"qubits": 1}}, "parse", "with some gates"),
    ({"circuit": TURN}, "client_error", "no value for theta"),
    ({"circuit": BELL, "parameters": {"t": 1}}, "client_error", "no parameter t"),
    ({"circuit": TURN, "parameters": {"theta": "x"}}, "client_error", "not a number"),
    ({"circuit": BELL, "backend": "abacus"}, "not_found", "no backend"),
    ({"circuit": BELL, "options": {"no_such": 1}}, "client_error", "refuses"),
    ({"circuit": [["h", n] for n in range(40)]}, "client_error", "refuses"),
    ({"circuit": BELL, "provider": "ibm"}, "not_found", "no provider"),
    ({"op": "submit", "job_id": "x"}, "client_error", "needs `circuit`"),
    ({"op": "status", "circuit": BELL}, "client_error", "needs `job_id`"),
]


def test_what_is_wrong_with_a_circuit_is_told():
    async def work(bench: Bench) -> list[Any]:
        return [await run(bench, **config) for config, *_ in WRONG]

    for outcome, (_, kind, words) in zip(on_bench(work), WRONG, strict=True):
        assert failure(outcome)[0] == kind
        assert words in failure(outcome)[1]


def test_a_simulation_that_takes_too_long_is_killed():
    hard = {"qubits": 27, "gates": [["h", n] for n in range(27)] * 40}
    outcome = ran("quantum", {"op": "run", "circuit": hard, "shots": 1, "timeout": "300ms"})

    assert failure(outcome)[0] == "timeout"


# --- Jobs --------------------------------------------------------------------------------------


async def done(bench: Bench, job_id: str) -> list[str]:
    """Ask until the job is over; the states on the way."""
    states = []
    async with asyncio.timeout(PATIENCE):
        while not states or states[-1] not in ("DONE", "ERROR"):
            outcome = await bench.run("quantum", {"op": "status", "job_id": job_id})
            states.append(outcome.result["state"])
            await asyncio.sleep(0.01)
    return states


def test_a_job_is_submitted_watched_and_fetched(tmp_path):
    async def work(bench: Bench) -> Any:
        submit = {"op": "submit", "circuit": BELL, "shots": 100, "seed": 1}
        first = await bench.run("quantum", submit)
        again = await bench.run("quantum", submit)
        early = await bench.run("quantum", {"op": "results", **named(first)})
        states = await done(bench, first.result["job_id"])
        return (
            first,
            again,
            early,
            states,
            await bench.run("quantum", {"op": "results", **named(first)}),
        )

    first, again, early, states, fetched = on_bench(work, rules=Rules(cache=str(tmp_path)))

    assert first.result["state"] == "QUEUED"
    assert again.result["job_id"] == first.result["job_id"]
    assert failure(early)[0] == "client_error"
    assert early.error.code == "not_done"
    assert states[-1] == "DONE"
    assert sum(fetched.result["counts"].values()) == fetched.result["shots"] == 100


def named(outcome: Any) -> dict[str, str]:
    return {"job_id": outcome.result["job_id"]}


def test_a_job_outlives_the_worker_that_took_it(tmp_path):
    rules = Rules(cache=str(tmp_path))

    async def submit(bench: Bench) -> Any:
        return await bench.run("quantum", {"circuit": BELL, "shots": 50, "seed": 3})

    async def fetch(bench: Bench) -> Any:
        states = await done(bench, taken.result["job_id"])
        return states, await bench.run("quantum", {"op": "results", **named(taken)})

    taken = on_bench(submit, rules=rules)
    states, fetched = on_bench(fetch, rules=rules)
    again, kept = on_bench(fetch, rules=rules)

    assert states[0] == "QUEUED"
    assert again == ["DONE"]
    assert kept.result == fetched.result


def test_a_job_that_fails_says_why(tmp_path):
    async def work(bench: Bench) -> Any:
        taken = await bench.run("quantum", {"circuit": [["warp", 0]]})
        states = await done(bench, taken.result["job_id"])
        return states[-1], await bench.run("quantum", {"op": "results", **named(taken)})

    state, outcome = on_bench(work, rules=Rules(cache=str(tmp_path)))

    assert state == "ERROR"
    assert failure(outcome)[0] == "parse"


@pytest.mark.parametrize("job_id", ["aer-0123", "../../etc/passwd", "aer-" + "0" * 24])
def test_s09_a_job_that_nobody_submitted_is_not_found(tmp_path, job_id):
    rules = {"rules": Rules(cache=str(tmp_path))}

    for op in ("status", "results"):
        outcome = ran("quantum", {"op": op, "job_id": job_id}, settings=rules)
        assert failure(outcome)[0] == "not_found"


def test_a_file_that_another_worker_moves_away_disturbs_nobody(tmp_path):
    """Workers share the directory: what one has listed, another has renamed before it is read."""
    folder = tmp_path / "quantum"
    folder.mkdir()
    (folder / "aer-0.1.partial").symlink_to(folder / "renamed")
    (old := folder / "aer-1.done").write_bytes(b"{}")
    os.utime(old, (0, 0))

    taken = ran("quantum", {"circuit": BELL}, settings={"rules": Rules(cache=str(tmp_path))})

    assert taken.is_ok
    assert not old.exists()
