"""Runs a container image with Docker, Podman or a Kubernetes cluster, whichever the worker has."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
from collections.abc import Callable
from contextlib import suppress

import msgspec

from noetl.model.outcome import Outcome
from noetl.tools.base import ToolContext
from noetl.tools.container import Container, policy
from noetl.tools.credentials import fields_of
from noetl.tools.failures import Failed, Refused, within
from noetl.tools.limits import shortest
from noetl.tools.plain_data import as_text
from noetl.tools.processes.commands import (
    Output,
    ended_badly,
    ended_well,
    environment,
    run_command,
)
from noetl.tools.processes.programs import task_directory

ENGINES = ("docker", "podman")
IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
OF_ENGINE = (125, 126, 127)
"""Exit codes by which an engine reports that the program never ran."""
REMOVE_SECONDS = 10.0


async def run(config: Container, context: ToolContext) -> Outcome:
    limit = shortest(config.timeout, context.timeout)
    late, end = "The container ran longer than", " and was stopped."
    async with within(limit, late, end, who="container"):
        runtime = config.runtime if config.runtime != "auto" else _found()
        if runtime is None:
            raise Failed(
                "not_found",
                "This worker has neither docker nor podman and is in no Kubernetes cluster. Install"
                " one of them, or write `runtime: kubernetes` with the cluster's credential.",
            )
        refusal = policy.refusal(context.resources.rules.containers, config)
        if refusal is not None:
            raise Refused(f"{refusal}.")
        if runtime == "kubernetes":
            from noetl.tools.container.kubernetes import run_job

            return await run_job(config, context)
        return await _with_engine(runtime, config, context)


def _found() -> str | None:
    engine = next((name for name in ENGINES if shutil.which(name)), None)
    return engine or ("kubernetes" if os.environ.get(IN_CLUSTER) else None)


# --- Docker and Podman -------------------------------------------------------------------------


class Engine(msgspec.Struct, frozen=True):
    """Docker or Podman, for one call; what it needs of files is in a directory of the call."""

    program: str
    variables: dict[str, str]
    directory: str

    async def run(
        self, words: list[str], log: Callable[[str], None], limit: int, stdin: str | None = None
    ) -> tuple[int, Output, Output]:
        """The exit code of one of its commands, and what that printed."""
        out, err = Output(log, limit), Output(log, limit)
        words = [self.program, *words]
        code = await run_command(words, stdin, self.variables, self.directory, out, err, None)
        return code, out, err

    async def remove(self, name: str) -> None:
        """Stop and remove a container; one that is not there is no fault."""
        with suppress(TimeoutError):
            async with asyncio.timeout(REMOVE_SECONDS):
                await self.run(["rm", "--force", name], lambda text: None, 0)

    async def log_in(self, config: Container, context: ToolContext) -> None:
        """Log in to the image's registry, for this call only."""
        fields = await fields_of(config.auth, context)
        user = str(fields.get("username") or fields.get("user") or "")
        password = str(fields.get("password") or fields.get("token") or "")
        registry = fields.get("registry") or fields.get("server") or _registry(config.image or "")
        self.variables["DOCKER_CONFIG"] = self.directory
        self.variables["REGISTRY_AUTH_FILE"] = os.path.join(self.directory, "auth.json")
        words = ["login", "--username", user, "--password-stdin", str(registry)]
        code, _, _ = await self.run(words, context.log, 4096, password)
        if code != 0:
            raise Failed("auth", f"The registry {registry} refuses the credential.")


async def _with_engine(engine: str, config: Container, context: ToolContext) -> Outcome:
    program = shutil.which(engine)
    if program is None:
        raise Failed("not_found", f'The program "{engine}" does not exist on this worker.')
    name = name_of(context)
    limit = context.resources.rules.max_output_bytes
    with task_directory() as directory:
        own = {"DOCKER_HOST": os.environ["DOCKER_HOST"]} if "DOCKER_HOST" in os.environ else {}
        docker = Engine(program, environment(own), directory)
        if config.auth is not None:
            await docker.log_in(config, context)
        # Values are passed in a file, because every user can read the process list.
        words = arguments(config, context, name, _env_file(config, directory))
        try:
            code, out, err = await docker.run(words, context.log, limit, config.stdin)
            if code in OF_ENGINE and "already in use" in err.text():
                # An earlier worker started it and was lost.
                await docker.remove(name)
                code, out, err = await docker.run(words, context.log, limit, config.stdin)
        except BaseException:
            # The program that we stopped was only the client.
            await asyncio.shield(docker.remove(name))
            raise
    if code in OF_ENGINE and _is_engines(err.text()):
        raise _never_ran(config, err.text())
    if code not in config.ok_codes:
        return ended_badly("The container", config.retry_codes, code, out, err)
    return ended_well(config.decode, code, out, err)


def name_of(context: ToolContext) -> str:
    """The same for each attempt, so that a second one finds what the first one left."""
    cleaned = re.sub(r"[^a-z0-9]+", "-", f"{context.step}-{context.task}".lower()).strip("-")
    return f"noetl-{cleaned[:30].strip('-')}-{context.action_id[:12].lower()}-{context.attempt}"


def _env_file(config: Container, directory: str) -> str:
    lines = []
    for name, value in config.env.items():
        text = as_text(value)
        if not re.fullmatch(r"[^=\s#]+", name) or "\n" in text or "\r" in text:
            told = f"env: {name!r} cannot be set: names have no spaces, values no line breaks."
            raise Failed("client_error", told)
        lines.append(f"{name}={text}\n")
    place = os.path.join(directory, "env")
    with open(os.open(place, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.writelines(lines)
    return place


def arguments(config: Container, context: ToolContext, name: str, env_file: str) -> list[str]:
    """The arguments of `docker run` and `podman run`. No shell reads them."""
    assert config.image is not None
    # The entry point is a program; its arguments come before those of `command`.
    entrypoint = split(config.entrypoint)
    words = ["run", "--name", name, "--pull", config.pull]
    words += [] if config.keep else ["--rm"]
    words += ["--interactive"] if config.stdin is not None else []
    labels = {"noetl.execution": context.execution_id, "noetl.step": context.step}
    for label, said in {**labels, **config.labels}.items():
        words += ["--label", f"{label}={said}"]
    words += ["--env-file", env_file] if config.env else []
    for mount in config.mounts:
        words += ["--mount", _mount(mount.source, mount.target, mount.read_only, context)]
    single: dict[str, str | int | None] = {
        "--workdir": config.cwd,
        "--user": config.user,
        "--network": config.network,
        "--entrypoint": entrypoint[0] if entrypoint else None,
    }
    if config.resources is not None:
        single["--cpus"] = None if config.resources.cpu is None else f"{config.resources.cpu:g}"
        single["--memory"] = _memory(config.resources.memory)
        single["--gpus"] = str(config.resources.gpu) if config.resources.gpu else None
    for option, value in single.items():
        words += [] if value is None else [option, str(value)]
    if config.image.startswith("-"):
        raise Refused(f'"{config.image}" is not an image.')
    return [*words, config.image, *entrypoint[1:], *split(config.command)]


def split(written: str | tuple[str, ...] | None) -> list[str]:
    """A text is split as a shell would; a list is taken as it is."""
    if written is None:
        return []
    try:
        return shlex.split(written) if isinstance(written, str) else list(written)
    except ValueError as error:
        raise Failed("client_error", f"The command cannot be split: {error}.") from None


def _mount(source: str, target: str, read_only: bool, context: ToolContext) -> str:
    if any("," in part or '"' in part for part in (source, target)):
        raise Refused("a mount's source and target cannot hold commas or quotes.")
    # The name of a volume contains no slash.
    is_path = "/" in source or source.startswith(".")
    where = str(context.resources.path(source)) if is_path else source
    kind = "bind" if is_path else "volume"
    words = f"type={kind},source={where},target={target}"
    return f"{words},readonly" if read_only else words


def _memory(written: str | None) -> str | None:
    """`512Mi` as the engines write it: `512m`."""
    if written is None:
        return None
    found = re.fullmatch(r"(\d+)([KMGT]?)i?B?", written)
    assert found is not None
    number, unit = found.groups()
    return f"{int(number) * 1024}g" if unit == "T" else f"{number}{unit.lower() or 'b'}"


def _registry(image: str) -> str:
    first, slash, _ = image.partition("/")
    is_host = slash and ("." in first or ":" in first or first == "localhost")
    return first if is_host else "docker.io"


def _is_engines(text: str) -> bool:
    """Whether the engine wrote this, not the program in the container."""
    return bool(re.search(r"(?m)^(docker: |Error: |podman: |.*Error response from daemon)", text))


def _never_ran(config: Container, text: str) -> Failed:
    lines = text.strip().splitlines()
    # The last line is often only advice: Run 'docker run --help' for more information.
    said = next((line for line in lines if _is_engines(line)), lines[-1])[:500]
    lower = text.lower()
    if "permission denied" in lower and ".sock" in lower:
        return Failed("auth", f"The worker may not use the container engine: {said}")
    if "denied" in lower or "unauthorized" in lower:
        return Failed("auth", f"The registry refuses to hand out {config.image}: {said}")
    if "not found" in lower or "no such image" in lower or "manifest unknown" in lower:
        return Failed("not_found", f"{config.image} or its program is not there: {said}")
    if "cannot connect" in lower or "connection refused" in lower:
        return Failed("connection", f"The engine cannot be reached: {said}")
    return Failed("client_error", f"The container could not be started: {said}")
