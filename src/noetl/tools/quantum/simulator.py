"""Simulates one quantum circuit. Runs in a sandbox process, which can be killed at any moment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

MEMORY_MB = 4096
METHODS = (
    *("automatic", "statevector", "density_matrix", "stabilizer", "matrix_product_state"),
    "extended_stabilizer",
)


class Unfit(Exception):
    """The circuit cannot be simulated; carries the kind of error and the reason."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def simulate(
    circuit: Any,
    parameters: dict[str, Any],
    shots: int,
    seed: int | None,
    backend: str | None,
    options: dict[str, Any],
) -> dict[str, Any]:
    """`{counts}`, or `{kind, message}` of an error."""
    try:
        ready = _bound(_circuit(circuit), parameters)
        return {"counts": _counts(ready, shots, seed, backend or "automatic", options)}
    except Unfit as problem:
        return {"kind": problem.kind, "message": str(problem)}


# --- The circuit -------------------------------------------------------------------------------


def _circuit(written: Any) -> Any:
    """A circuit with measurements, from OpenQASM 2 or 3 or from a list of gates."""
    if isinstance(written, str):
        found = _from_text(written)
    elif isinstance(written, dict):
        found = _from_gates(written.get("gates"), written.get("qubits"))
    else:
        found = _from_gates(written, None)
    if not any(part.operation.name == "measure" for part in found.data):
        found.measure_all(add_bits=found.num_clbits < found.num_qubits)
    return found


def _from_text(text: str) -> Any:
    from openqasm3.parser import QASM3ParsingError
    from qiskit import qasm2, qasm3
    from qiskit.exceptions import QiskitError

    try:
        if text.lstrip().startswith("OPENQASM 3"):
            return qasm3.loads(text)
        # Without a path only the standard library can be included.
        return qasm2.loads(text, include_path=())
    except QASM3ParsingError:
        raise Unfit("parse", "The circuit is not OpenQASM 3. The log shows where.") from None
    except QiskitError as error:
        raise Unfit("parse", f"The circuit cannot be read: {_said(error)}.") from None


def _from_gates(gates: Any, qubits: Any) -> Any:
    from qiskit import QuantumCircuit
    from qiskit.exceptions import QiskitError

    if not isinstance(gates, list) or not gates:
        raise Unfit("parse", "A circuit is OpenQASM text, or `{qubits, gates}` with some gates.")
    read = [_gate(number, gate) for number, gate in enumerate(gates)]
    highest = max((place for _, _, places in read for place in places), default=0)
    count = qubits if isinstance(qubits, int) else highest + 1
    circuit = QuantumCircuit(count, count)
    for number, (name, values, places) in enumerate(read):
        try:
            _add(circuit, name, values, places)
        except (QiskitError, TypeError, ValueError, IndexError) as error:
            raise Unfit("parse", f"gates[{number}] ({name}): {_said(error)}.") from None
    return circuit


def _gate(number: int, written: Any) -> tuple[str, list[Any], list[int]]:
    """`[h, 0]`, or `{gate: rx, params: [theta], qubits: [0]}`."""
    name: Any = None
    values: Any = []
    places: Any = None
    if isinstance(written, list) and written:
        name, places = written[0], written[1:]
    elif isinstance(written, dict):
        name, places = written.get("gate"), written.get("qubits")
        values = written.get("params") or []
    if not isinstance(name, str) or not isinstance(places, list) or not isinstance(values, list):
        told = f"gates[{number}] is neither [name, qubit, …] nor {{gate, qubits, params}}."
        raise Unfit("parse", told)
    if not all(isinstance(place, int) and place >= 0 for place in places):
        raise Unfit("parse", f"gates[{number}]: qubits are whole numbers from 0 on.")
    return name, values, places


def _add(circuit: Any, name: str, values: list[Any], places: list[int]) -> None:
    from qiskit.circuit.library import get_standard_gate_name_mapping

    if name == "measure":
        circuit.measure(places, places)
        return
    known = get_standard_gate_name_mapping().get(name)
    if known is None:
        raise ValueError("there is no such gate")
    free = {one.name: one for one in circuit.parameters}
    given = [_value(value, free) for value in values]
    circuit.append(known.base_class(*given) if given else known.base_class(), places)


def _value(written: Any, free: dict[str, Any]) -> Any:
    from qiskit.circuit import Parameter

    if not isinstance(written, str):
        return float(written)
    return free[written] if written in free else Parameter(written)


def _bound(circuit: Any, parameters: dict[str, Any]) -> Any:
    values: dict[str, float] = {}
    for name, value in parameters.items():
        several = value if isinstance(value, list) else None
        each = {f"{name}[{n}]": one for n, one in enumerate(several or ())}
        for one, given in (each if several is not None else {name: value}).items():
            values[one] = _number(one, given)
    free = {one.name for one in circuit.parameters}
    if missing := sorted(free - values.keys()):
        raise Unfit("client_error", f"`parameters` has no value for {', '.join(missing)}.")
    if unknown := sorted(values.keys() - free):
        raise Unfit("client_error", f"The circuit has no parameter {', '.join(unknown)}.")
    return circuit.assign_parameters(values) if free else circuit


def _number(name: str, written: Any) -> float:
    try:
        return float(written)
    except ValueError:
        raise Unfit("client_error", f"`parameters`: {name} is not a number.") from None


# --- The simulation ----------------------------------------------------------------------------


def _counts(
    circuit: Any, shots: int, seed: int | None, method: str, options: dict[str, Any]
) -> dict[str, int]:
    from qiskit import transpile
    from qiskit.exceptions import QiskitError
    from qiskit_aer import AerSimulator
    from qiskit_aer.jobs import utils as jobs

    if method not in METHODS:
        raise Unfit("not_found", f'There is no backend "{method}": {", ".join(METHODS)}.')
    limits = {"max_memory_mb": MEMORY_MB, "method": method, "seed_simulator": seed}
    # A thread of our own, which ends with the call. The library's would spoil the process, and the
    # next call would have to wait for a new one.
    with ThreadPoolExecutor(1) as thread:
        jobs.DEFAULT_EXECUTOR = thread
        try:
            simulator = AerSimulator(**(limits | options))
            prepared = transpile(circuit, simulator, seed_transpiler=seed)
            found = simulator.run(prepared, shots=shots).result()
        except (QiskitError, AttributeError, TypeError, ValueError) as error:
            raise Unfit("client_error", f"The simulator refuses it: {_said(error)}.") from None
    if not found.success:
        raise Unfit("client_error", f"The simulator refuses it: {_said(found.status)}.")
    return {str(bits): int(count) for bits, count in found.get_counts().items()}


def _said(problem: Any) -> str:
    text = str(getattr(problem, "message", None) or problem).strip().strip("'\"")
    return text.partition("\n")[0].rstrip(".")[:500]
