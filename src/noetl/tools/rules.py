"""What the operator of a worker allows its tools."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from noetl.errors import BadSetting
from noetl.tools.egress import EgressPolicy
from noetl.tools.processes.namespaces import Room
from noetl.tools.processes.spawner import Bounds

Cpus = Annotated[float, msgspec.Meta(gt=0)]
Memory = Annotated[str, msgspec.Meta(pattern=r"^\d+([KMGT]i?)?$")]


class ContainerPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What containers of tasks may do (NOETL_CONTAINERS); playbooks choose within it.

    None allows anything that the engine or the cluster's own rules allow.
    """

    images: tuple[str, ...] | None = None
    """Patterns like `ghcr.io/our/*`; for every runtime. The rest is for Jobs."""
    namespaces: tuple[str, ...] | None = None
    """Where Jobs may run; the first one is for tasks that name none."""
    service_accounts: tuple[str, ...] | None = None
    """Accounts that a task may name; the first one is for tasks that name none."""
    node_selector: dict[str, str] = {}
    """Labels that every node must have, whatever the task says."""
    host_paths: tuple[str, ...] = ()
    """Directories of nodes that may be mounted, with all below them."""
    capabilities: tuple[str, ...] = ()
    """What a container keeps; all others are dropped."""
    non_root: bool = False
    """Refuse to run as root."""
    read_only_root: bool = False
    """The image's own files cannot be changed."""
    max_cpu: Cpus | None = None
    max_memory: Memory | None = None
    max_gpu: int | None = None
    """Most that a Job may ask for; what it has when it asks for nothing (processors, memory)."""
    max_seconds: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """The cluster ends a Job after so long, even if its worker is gone."""


def read_container_policy(path: str | None) -> ContainerPolicy:
    """The operator's policy; raises BadSetting for a file that is none."""
    if path is None:
        return ContainerPolicy()
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=ContainerPolicy)
    except OSError as error:
        raise BadSetting(f"NOETL_CONTAINERS: {path} cannot be read: {error.strerror}.") from None
    except msgspec.DecodeError as error:
        raise BadSetting(f"NOETL_CONTAINERS: {path} is not a policy: {error}.") from None


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator of a worker allows its tools."""

    egress: EgressPolicy = EgressPolicy()
    containers: ContainerPolicy = ContainerPolicy()
    file_root: str | None = None
    """Tools read and write files below this directory only; None: wherever the worker may."""
    store_url: str | None = None
    """The object store of tasks that name none."""
    cache: str = "~/.cache/noetl"
    """Directory for what is worth keeping between runs: packages, local jobs."""
    install_libs: bool = False
    """Whether `libs` of Python tasks are installed; else they must be there."""
    max_response_bytes: int = 256 * 1024 * 1024
    """Of a result that is held in memory: rows, an answer, an object, what code returns."""
    max_file_bytes: int = 10 * 1024**3
    """Of a file among the results: a download, a table."""
    cached_file_bytes: int = 4 * 1024**3
    """Of all files that the worker keeps for the next task that wants them."""
    opened: Mapping[str, str] = {}
    """Variables of the worker's environment that tasks may see."""
    bounds: Bounds = Bounds()
    """Of processes that run code and programs of tasks."""
    room: Room | None = None
    """What such processes see; None: what the worker sees."""
    task_network: bool = True
    """Whether a task may ask for the worker's network in its room."""
    connections_per_host: int = 100
    max_output_bytes: int = 16 * 1024 * 1024
    threads: int = 64
    """Calls of databases inside the worker (SQLite, DuckDB) at one time."""
