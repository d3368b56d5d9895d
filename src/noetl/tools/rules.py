"""What the operator of a worker allows tools to do."""

from __future__ import annotations

import os
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

    None allows everything that the engine or the cluster allows.
    """

    images: tuple[str, ...] | None = None
    """Patterns such as `ghcr.io/our/*`, for every runtime. The other fields are for Jobs."""
    namespaces: tuple[str, ...] | None = None
    """Namespaces in which Jobs may run; the first is the default."""
    service_accounts: tuple[str, ...] | None = None
    """Accounts that a task may name; the first is the default."""
    node_selector: dict[str, str] = {}
    """Labels that every node must have, regardless of the task."""
    host_paths: tuple[str, ...] = ()
    """Directories of nodes that may be mounted, including their subdirectories."""
    capabilities: tuple[str, ...] = ()
    """Capabilities that a container keeps; all others are dropped."""
    non_root: bool = False
    """Refuse to run as root."""
    read_only_root: bool = False
    """The image's own files are read-only."""
    max_cpu: Cpus | None = None
    max_memory: Memory | None = None
    max_gpu: int | None = None
    """The maximum that a Job may request; also its default for processors and memory."""
    max_seconds: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """The cluster ends a Job after this, even if its worker is gone."""


def read_container_policy(path: str | None) -> ContainerPolicy:
    """The operator's policy. Raises BadSetting for an invalid file."""
    if path is None:
        return ContainerPolicy()
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=ContainerPolicy)
    except OSError as error:
        raise BadSetting(f"NOETL_CONTAINERS: {path} cannot be read: {error.strerror}.") from None
    except msgspec.DecodeError as error:
        raise BadSetting(f"NOETL_CONTAINERS: {path} is not a policy: {error}.") from None


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator of a worker allows tools to do."""

    egress: EgressPolicy = EgressPolicy()
    containers: ContainerPolicy = ContainerPolicy()
    file_root: str | None = None
    """Tools read and write files below this directory only; None: wherever the worker may."""
    store_url: str | None = None
    """The default object store of tasks."""
    cache: str = "~/.cache/noetl"
    """Directory for data kept between runs: packages, local jobs."""
    install_libs: bool = False
    """Whether `libs` of Python tasks are installed; otherwise they must be present."""
    max_response_bytes: int = 256 * 1024 * 1024
    """Maximum size of a result in memory: rows, an answer, an object, what code returns."""
    max_file_bytes: int = 10 * 1024**3
    """Maximum size of a file among the results: a download, a table."""
    opened: Mapping[str, str] = {}
    """Variables of the worker's environment that tasks may see."""
    bounds: Bounds = Bounds()
    """Limits of processes that run code and programs of tasks."""
    room: Room | None = None
    """What such processes see; None: everything that the worker sees."""
    task_network: bool = True
    """Whether a task may request the worker's network in its room."""
    python_processes: int | None = None
    """Maximum number of processes for Python code; None: what slots and memory allow."""
    connections_per_host: int = 100
    max_output_bytes: int = 16 * 1024 * 1024
    threads: int = 64
    """Concurrent calls of databases inside the worker (SQLite, DuckDB)."""


# --- What libraries would find on their own ----------------------------------------------------

AMBIENT_PREFIXES = (
    *("AWS_", "AZURE_", "GOOGLE_", "GCLOUD_", "CLOUDSDK_", "SNOWFLAKE_", "DATABRICKS_", "OCI_"),
    *("MYSQL_PWD", "PGSERVICE"),
)
"""Beginnings of the names of variables in which libraries look for credentials."""
NO_AMBIENT = {
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent/noetl",
    "AWS_CONFIG_FILE": "/nonexistent/noetl",
    "AWS_EC2_METADATA_DISABLED": "true",
    "CLOUDSDK_CONFIG": "/nonexistent/noetl",
    "NO_GCE_CHECK": "true",
    "SNOWFLAKE_HOME": "/nonexistent/noetl",
}
"""Variables that keep them from looking in files and services of the machine."""


def drop_ambient_credentials() -> None:
    """From now on libraries in this process find no credentials of the operator by themselves."""
    for name in [name for name in os.environ if name.startswith(AMBIENT_PREFIXES)]:
        del os.environ[name]
    os.environ.update(NO_AMBIENT)
