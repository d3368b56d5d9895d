"""kind: quantum. Jobs for a quantum computer or simulator: submit, watch, fetch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from noetl.tools.base import Credential, Duration, Name, Tool, ToolConfig, about, run_of

Shots = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
Angle = float | str
"""A number, or the text of one, as templates yield it."""
Seed = Annotated[int, msgspec.Meta(ge=0)]


class Quantum(ToolConfig, frozen=True, kw_only=True):
    """What a playbook writes under `kind: quantum`."""

    op: Annotated[
        Literal["submit", "status", "results", "run"],
        about("Submit a circuit, ask for its status, fetch the results; `run` does all three."),
    ] = "submit"
    provider: Annotated[Name, about("Who runs it; `aer` is the local simulator.")] = "aer"
    backend: Annotated[Name | None, about("Device of the provider; its default when left out.")] = (
        None
    )
    auth: Annotated[Credential | None, about("Credential of the provider.")] = None
    circuit: Annotated[
        str | dict[str, Any] | tuple[Any, ...] | None,
        about("The circuit: OpenQASM 2 or 3, or a list of gates."),
    ] = None
    parameters: Annotated[
        dict[str, Angle | tuple[Angle, ...]], about("Values for the circuit's free parameters.")
    ] = {}
    shots: Annotated[Shots, about("How often to run the circuit.")] = 1024
    shots_max: Annotated[Shots | None, about("Upper limit for `shots`.")] = None
    seed: Annotated[Seed | None, about("Same seed, same counts, on a simulator.")] = None
    job_id: Annotated[Name | None, about("The job that `submit` yielded.")] = None
    options: Annotated[dict[str, Any], about("Further options for the provider.")] = {}
    timeout: Annotated[Duration | None, about("How long `run` waits for the results.")] = None


NEEDS = {
    "submit": (("circuit",),),
    "run": (("circuit",),),
    "status": (("job_id",),),
    "results": (("job_id",),),
}

EXAMPLE = """\
- step: submit_bell
  tool:
    kind: quantum
    provider: aer
    circuit: |
      OPENQASM 2.0;
      include "qelib1.inc";
      qreg q[2];
      creg c[2];
      h q[0];
      cx q[0], q[1];
      measure q -> c;
    shots: 1000
    seed: 7
"""

TOOL = Tool(
    kind="quantum",
    example=EXAMPLE,
    summary="Runs a circuit on a quantum computer or simulator.",
    config=Quantum,
    run=run_of("noetl.tools.quantum.run"),
    errors=("not_found", "parse", "client_error", "server_error", "timeout"),
    extra="quantum",
    aliases={"credential": "auth"},
    needs_when={"op": NEEDS},
)
