"""Runs a container image as a Kubernetes Job: create it, wait, read its log, delete it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from noetl.model.outcome import Outcome
from noetl.tools.base import ToolContext
from noetl.tools.container import Container, Mount, policy
from noetl.tools.container.run import name_of, split
from noetl.tools.credentials import fields_of, text_field
from noetl.tools.failures import Failed, Refused
from noetl.tools.limits import to_thread
from noetl.tools.plain_data import as_text
from noetl.tools.processes.commands import Output, ended_badly, ended_well
from noetl.tools.web.service import ask

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds between two polls; the last value repeats."""
LIVE_BYTES = 64 * 1024
CANNOT_START = {
    "ImagePullBackOff": "not_found",
    "ErrImagePull": "not_found",
    "InvalidImageName": "client_error",
    "CreateContainerConfigError": "client_error",
    "CreateContainerError": "client_error",
}
"""Reasons for which a waiting container will never run."""


class Cluster(msgspec.Struct, frozen=True):
    """The address of the API and the credentials for it."""

    url: str
    namespace: str
    options: dict[str, Any]
    context: ToolContext

    async def ask(self, method: str, path: str, *, but: int = 0, **more: Any) -> Any:
        """The data of the answer; None if its status is `but`. Raises Failed for other errors."""
        try:
            answer = await ask(self.context, method, f"{self.url}{path}", **(self.options | more))
        except Failed as problem:
            if problem.error.status != but:
                raise
            return None
        return answer.data

    async def log(self, pod: dict[str, Any], **params: int) -> str:
        """The output of the pod so far; a container that is starting has none yet."""
        path = f"{self.pods}/{pod['metadata']['name']}/log"
        return str(await self.ask("GET", path, but=400, decode="text", params=params) or "")

    @property
    def jobs(self) -> str:
        return f"/apis/batch/v1/namespaces/{self.namespace}/jobs"

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"


class Growing:
    """Extracts the new part of a text that is read again and again from its beginning."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._length = 0

    def __call__(self, text: str) -> None:
        if len(text) > self._length:
            self._log(text[self._length :])
            self._length = len(text)


async def run_job(config: Container, context: ToolContext) -> Outcome:
    """Run the image to its end. When this returns or raises, the Job is gone (unless kept)."""
    if config.stdin is not None or config.network is not None:
        told = "`stdin` and `network` are for docker and podman; a Job has neither."
        raise Failed("client_error", told)
    cluster = await _cluster(config, context)
    allowed = context.resources.rules.containers
    if refused := list(policy.job_refusals(allowed, config, cluster.namespace)):
        raise Refused(f"the operator's rules do not allow it: {'; '.join(refused)}.")
    name = name_of(context)[:63].rstrip("-")
    try:
        # If there is one, an earlier worker created it and was lost: wait for the same Job.
        job = manifest(config, context, name)
        await cluster.ask("POST", cluster.jobs, but=409, json=job)
        printed = Growing(context.log)
        pod = await _ended_pod(cluster, name, printed)
        out = Output(printed, context.resources.rules.max_output_bytes)
        out.take((await cluster.log(pod)).encode())
        code = _exit_code(pod)
    finally:
        if not config.keep:
            await asyncio.shield(_deleted(cluster, name))
    nothing = Output(context.log, 0)
    if code not in config.ok_codes:
        return ended_badly("The container", config.retry_codes, code, out, nothing)
    return ended_well(config.decode, code, out, nothing)


async def _cluster(config: Container, context: ToolContext) -> Cluster:
    """The cluster of the credential; without one, that of the worker's own pod."""
    fields = await fields_of(config.auth, context)
    options: dict[str, Any] = {}
    if fields:
        url = text_field(fields, "server", "url", "host")
        token, ca = text_field(fields, "token"), text_field(fields, "ca", "certificate_authority")
        options["verify_ssl"] = bool(fields.get("verify_ssl", True))
        if text_field(fields, "client_cert"):
            pair = {"cert": fields["client_cert"], "key": fields.get("client_key")}
            options["client_cert"] = pair
    else:
        url, token, ca = await to_thread(_of_the_pod)
    if url is None:
        told = "Which cluster? Write `auth` with the fields `server`, `token` and `ca`."
        raise Failed("client_error", told)
    if token is not None:
        options["headers"] = {"Authorization": f"Bearer {token}"}
    if ca is not None:
        options["ca"] = ca
    allowed = context.resources.rules.containers.namespaces
    usual = allowed[0] if allowed else "default"
    namespace = config.namespace or text_field(fields, "namespace") or usual
    if not fields and allowed is None:
        # The account is the worker's: without the operator's permission its Jobs stay in its
        # namespace.
        own = await to_thread(_own_namespace)
        if config.namespace not in (None, own):
            told = f'Jobs of this worker run in the namespace "{own}" only (NOETL_CONTAINERS).'
            raise Refused(told)
        namespace = own
    return Cluster(url.rstrip("/"), namespace, options, context)


def _of_the_pod() -> tuple[str | None, str | None, str | None]:
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    if host is None or not (ACCOUNT / "token").exists():
        return None, None, None
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    host = f"[{host}]" if ":" in host else host
    return f"https://{host}:{port}", (ACCOUNT / "token").read_text(), str(ACCOUNT / "ca.crt")


def _own_namespace() -> str:
    place = ACCOUNT / "namespace"
    return place.read_text().strip() if place.exists() else "default"


# --- The Job -----------------------------------------------------------------------------------


def manifest(config: Container, context: ToolContext, name: str) -> dict[str, Any]:
    """A Job that runs one pod once; retries are the playbook's decision."""
    labels = {"app.kubernetes.io/managed-by": "noetl", "noetl.io/execution": context.execution_id}
    allowed = context.resources.rules.containers
    accounts = allowed.service_accounts
    account = config.service_account or (accounts[0] if accounts else None)
    container = {
        "name": "main",
        "image": config.image,
        "command": split(config.entrypoint),
        "args": split(config.command),
        "workingDir": config.cwd,
        "env": [{"name": key, "value": as_text(value)} for key, value in config.env.items()],
        "volumeMounts": [_mounted(number, mount) for number, mount in enumerate(config.mounts)],
        "imagePullPolicy": {"always": "Always", "missing": "IfNotPresent", "never": "Never"}[
            config.pull
        ],
        "resources": {"limits": limits}
        if (limits := policy.limits(allowed, _limits(config)))
        else None,
        "securityContext": policy.security(allowed, _user(config.user)),
    }
    pod = {
        "restartPolicy": "Never",
        "containers": [{key: value for key, value in container.items() if value}],
        "serviceAccountName": account,
        # A task that needs the cluster's API names an account.
        "automountServiceAccountToken": None if account is not None else False,
        "nodeSelector": {**config.node_selector, **allowed.node_selector},
        "volumes": [_volume(number, mount) for number, mount in enumerate(config.mounts)],
    }
    spec = {key: value for key, value in pod.items() if value or value is False}
    # Ours come last: they identify the Job.
    about = {"name": name, "labels": {**config.labels, **labels}}
    template = {"metadata": {"labels": about["labels"]}, "spec": spec}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": about,
        "spec": {
            "backoffLimit": 0,
            "template": template,
            **({"activeDeadlineSeconds": allowed.max_seconds} if allowed.max_seconds else {}),
        },
    }


def _volume(number: int, mount: Mount) -> dict[str, Any]:
    name = f"mount-{number}"
    if mount.source.startswith("/"):
        return {"name": name, "hostPath": {"path": mount.source}}
    return {"name": name, "persistentVolumeClaim": {"claimName": mount.source}}


def _mounted(number: int, mount: Mount) -> dict[str, Any]:
    place = {"name": f"mount-{number}", "mountPath": mount.target}
    return {**place, "readOnly": True} if mount.read_only else place


def _limits(config: Container) -> dict[str, Any]:
    if config.resources is None:
        return {}
    memory = config.resources.memory
    limits = {
        "cpu": None if config.resources.cpu is None else f"{config.resources.cpu:g}",
        "memory": None if memory is None else memory.rstrip("B"),
        "nvidia.com/gpu": config.resources.gpu or None,
    }
    return {key: value for key, value in limits.items() if value is not None}


def _user(written: str | int | None) -> dict[str, Any]:
    if written is None:
        return {}
    user, _, group = str(written).partition(":")
    if not user.isdigit() or (group and not group.isdigit()):
        raise Failed("client_error", "`user` of a Job is a number, or two with a colon between.")
    return {"runAsUser": int(user)} | ({"runAsGroup": int(group)} if group else {})


async def _ended_pod(cluster: Cluster, name: str, printed: Growing) -> dict[str, Any]:
    asked = 0
    while True:
        listed = await cluster.ask(
            "GET", cluster.pods, params={"labelSelector": f"job-name={name}"}
        )
        for pod in listed.get("items", []):
            if pod["status"].get("phase") in ("Succeeded", "Failed"):
                return dict(pod)
            _check_start(pod)
            if pod["status"].get("phase") == "Running":
                # Shown while it runs, up to the limit of live output; read whole at the end.
                printed(await cluster.log(pod, limitBytes=LIVE_BYTES))
        await asyncio.sleep(PAUSES[min(asked, len(PAUSES) - 1)])
        asked += 1


def _check_start(pod: dict[str, Any]) -> None:
    for container in pod["status"].get("containerStatuses") or []:
        waiting = container.get("state", {}).get("waiting") or {}
        kind = CANNOT_START.get(str(waiting.get("reason")))
        if kind is not None:
            told = f"The container cannot start: {waiting.get('message') or waiting['reason']}"
            raise Failed(kind, told)  # type: ignore[arg-type]  # they are ours


def _exit_code(pod: dict[str, Any]) -> int:
    for container in pod["status"].get("containerStatuses") or []:
        ended = container.get("state", {}).get("terminated")
        if ended is not None:
            return int(ended.get("exitCode", 1))
    why = pod["status"].get("message") or pod["status"].get("reason") or "it does not say why"
    raise Failed("server_error", f"The pod failed: {why}.")


async def _deleted(cluster: Cluster, name: str) -> None:
    try:
        how = {"propagationPolicy": "Background"}
        await cluster.ask("DELETE", f"{cluster.jobs}/{name}", but=404, params=how)
    except Failed as problem:
        cluster.context.log(f"The Job {name} could not be deleted: {problem}\n")
