"""Checks a container against the operator's policy, and applies the policy to it.

Regardless of the policy, no container of a Job is privileged, gains privileges or has capabilities
that the policy does not name, and the runtime's profile filters its system calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

from noetl.tools.container import Container
from noetl.tools.limits import size_in_bytes
from noetl.tools.rules import ContainerPolicy


def refusal(policy: ContainerPolicy, config: Container) -> str | None:
    """Why the task's image may not run."""
    if policy.images is None or any(fnmatchcase(config.image or "", one) for one in policy.images):
        return None
    allowed = ", ".join(policy.images) or "none"
    return f'the image "{config.image}" is not among those that the operator allows: {allowed}'


def job_refusals(policy: ContainerPolicy, config: Container, namespace: str) -> Iterator[str]:
    """Every reason why the task may not run as a Job in this namespace."""
    if policy.namespaces is not None and namespace not in policy.namespaces:
        yield f'Jobs may not run in the namespace "{namespace}"'
    account, accounts = config.service_account, policy.service_accounts
    if account is not None and accounts is not None and account not in accounts:
        yield f'Jobs may not run as the service account "{account}"'
    for mount in config.mounts:
        if mount.source.startswith("/") and not _may_mount(policy, mount.source):
            yield f'the directory "{mount.source}" of a node may not be mounted'
    if policy.non_root and str(config.user).partition(":")[0] == "0":
        yield "containers may not run as root"
    asked = config.resources
    if asked is None:
        return
    if policy.max_cpu is not None and (asked.cpu or 0) > policy.max_cpu:
        yield f"{asked.cpu:g} processors are more than {policy.max_cpu:g}"
    if size_in_bytes(asked.memory or "0") > size_in_bytes(policy.max_memory or asked.memory or "0"):
        yield f"{asked.memory} of memory is more than {policy.max_memory}"
    if policy.max_gpu is not None and asked.gpu > policy.max_gpu:
        yield f"{asked.gpu} graphics processors are more than {policy.max_gpu}"


def _may_mount(policy: ContainerPolicy, source: str) -> bool:
    path = PurePosixPath(source)
    return ".." not in path.parts and any(path.is_relative_to(one) for one in policy.host_paths)


def limits(policy: ContainerPolicy, asked: dict[str, Any]) -> dict[str, Any]:
    """The limits of a Job: what it requests, otherwise the maximum."""
    most = {
        "cpu": None if policy.max_cpu is None else f"{policy.max_cpu:g}",
        "memory": policy.max_memory,
    }
    return {key: value for key, value in most.items() if value is not None} | asked


def security(policy: ContainerPolicy, user: dict[str, Any]) -> dict[str, Any]:
    """The security context of every container of a Job; a task chooses only the user."""
    kept = {"add": list(policy.capabilities)} if policy.capabilities else {}
    return {
        **user,
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], **kept},
        "seccompProfile": {"type": "RuntimeDefault"},
        **({"runAsNonRoot": True} if policy.non_root else {}),
        **({"readOnlyRootFilesystem": True} if policy.read_only_root else {}),
    }
