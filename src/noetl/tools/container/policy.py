"""What the operator allows containers of tasks (NOETL_CONTAINERS). Playbooks choose within it.

Whatever it says, no container of a Job is privileged, gains privileges or has capabilities that it
does not name, and the runtime's profile filters its system calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import msgspec

from noetl.errors import BadSetting
from noetl.tools.container import Container

Cpus = Annotated[float, msgspec.Meta(gt=0)]
Memory = Annotated[str, msgspec.Meta(pattern=r"^\d+([KMGT]i?)?$")]
_UNITS: dict[str, int] = {"": 1}
for _n, _unit in enumerate("KMGT", 1):
    _UNITS |= {_unit: 1000**_n, f"{_unit}i": 1024**_n}


class ContainerPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """None allows anything that the engine or the cluster's own rules allow."""

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

    def refusal(self, config: Container) -> str | None:
        """Why the task's image may not run."""
        if self.images is None or any(fnmatchcase(config.image or "", one) for one in self.images):
            return None
        allowed = ", ".join(self.images) or "none"
        return f'the image "{config.image}" is not among those that the operator allows: {allowed}'

    def job_refusals(self, config: Container, namespace: str) -> Iterator[str]:
        """Every reason why the task may not run as a Job in this namespace."""
        if self.namespaces is not None and namespace not in self.namespaces:
            yield f'Jobs may not run in the namespace "{namespace}"'
        account, accounts = config.service_account, self.service_accounts
        if account is not None and accounts is not None and account not in accounts:
            yield f'Jobs may not run as the service account "{account}"'
        for mount in config.mounts:
            if mount.source.startswith("/") and not self._may_mount(mount.source):
                yield f'the directory "{mount.source}" of a node may not be mounted'
        if self.non_root and str(config.user).partition(":")[0] == "0":
            yield "containers may not run as root"
        asked = config.resources
        if asked is None:
            return
        if self.max_cpu is not None and (asked.cpu or 0) > self.max_cpu:
            yield f"{asked.cpu:g} processors are more than {self.max_cpu:g}"
        if bytes_of(asked.memory or "0") > bytes_of(self.max_memory or asked.memory or "0"):
            yield f"{asked.memory} of memory is more than {self.max_memory}"
        if self.max_gpu is not None and asked.gpu > self.max_gpu:
            yield f"{asked.gpu} graphics processors are more than {self.max_gpu}"

    def _may_mount(self, source: str) -> bool:
        path = PurePosixPath(source)
        return ".." not in path.parts and any(path.is_relative_to(one) for one in self.host_paths)

    def limits(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The limits of a Job: what it asked for, else the most that it may have."""
        most = {
            "cpu": None if self.max_cpu is None else f"{self.max_cpu:g}",
            "memory": self.max_memory,
        }
        return {key: value for key, value in most.items() if value is not None} | asked

    def security(self, user: dict[str, Any]) -> dict[str, Any]:
        """The security context of every container of a Job; a task chooses the user alone."""
        kept = {"add": list(self.capabilities)} if self.capabilities else {}
        return {
            **user,
            "privileged": False,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], **kept},
            "seccompProfile": {"type": "RuntimeDefault"},
            **({"runAsNonRoot": True} if self.non_root else {}),
            **({"readOnlyRootFilesystem": True} if self.read_only_root else {}),
        }


def bytes_of(written: str) -> int:
    """Bytes that a text like `512Mi` or `1GB` means."""
    found = re.fullmatch(r"(\d+)([KMGT]i?)?B?", written)
    assert found is not None  # the shapes of configs and policies see to it
    return int(found[1]) * _UNITS[found[2] or ""]


def read_policy(path: str | None) -> ContainerPolicy:
    """The operator's policy; raises BadSetting for a file that is none."""
    if path is None:
        return ContainerPolicy()
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=ContainerPolicy)
    except OSError as error:
        raise BadSetting(f"NOETL_CONTAINERS: {path} cannot be read: {error.strerror}.") from None
    except msgspec.DecodeError as error:
        raise BadSetting(f"NOETL_CONTAINERS: {path} is no policy: {error}.") from None
