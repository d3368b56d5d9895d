"""kind: container. Runs an image with Docker or Podman, or as a Kubernetes Job."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from noetl.tools.base import (
    Credential,
    Duration,
    ExitCode,
    Name,
    Options,
    Tool,
    ToolConfig,
    about,
    run_of,
)

Cpus = Annotated[float, msgspec.Meta(gt=0)]
Gpus = Annotated[int, msgspec.Meta(ge=0)]


class Mount(Options, frozen=True, kw_only=True):
    """A directory or volume the container sees."""

    source: Annotated[Name, about("Directory, volume or claim outside.")]
    target: Annotated[Name, about("Where it appears inside.")]
    read_only: Annotated[bool, about("Refuse to write to it.")] = False


class Resources(Options, frozen=True, kw_only=True):
    """What the container may use."""

    cpu: Annotated[Cpus | None, about("Processors, e.g. `0.5`.")] = None
    memory: Annotated[
        Annotated[str, msgspec.Meta(pattern=r"^\d+([KMGT]i?)?B?$")] | None,
        about("Memory, e.g. `512Mi`."),
    ] = None
    gpu: Annotated[Gpus, about("Graphics processors.")] = 0


class Container(ToolConfig, frozen=True, kw_only=True):
    """What a playbook writes under `kind: container`."""

    image: Annotated[Name | None, about("Image to run.")] = None
    command: Annotated[
        str | tuple[str, ...] | None,
        about("Program and arguments; a text is split as a shell would. The image's if left out."),
    ] = None
    entrypoint: Annotated[
        str | tuple[str, ...] | None, about("Replaces the image's entry point.")
    ] = None
    runtime: Annotated[
        Literal["auto", "docker", "podman", "kubernetes"],
        about("What runs it; `auto`: what the worker finds."),
    ] = "auto"
    env: Annotated[dict[str, str | int | float | bool], about("Environment variables to set.")] = {}
    cwd: Annotated[str | None, about("Directory to run in.")] = None
    user: Annotated[str | int | None, about("User, or `user:group`, to run as.")] = None
    stdin: Annotated[str | None, about("Text for the program to read.")] = None
    mounts: Annotated[tuple[Mount, ...], about("Directories and volumes to mount.")] = ()
    network: Annotated[
        str | None, about("Network to join; `none` for no network. Docker and Podman.")
    ] = None
    resources: Annotated[Resources | None, about("What it may use.")] = None
    pull: Annotated[Literal["always", "missing", "never"], about("When to fetch the image.")] = (
        "missing"
    )
    auth: Annotated[
        Credential | None, about("Credential of the image registry or of the cluster.")
    ] = None
    namespace: Annotated[Name | None, about("Kubernetes: namespace of the Job.")] = None
    service_account: Annotated[Name | None, about("Kubernetes: account the Job runs as.")] = None
    node_selector: Annotated[dict[str, str], about("Kubernetes: labels a node must have.")] = {}
    labels: Annotated[dict[str, str], about("Labels for the container or Job.")] = {}
    keep: Annotated[bool, about("Leave the ended container or Job for inspection.")] = False
    decode: Annotated[
        Literal["text", "lines", "json", "ndjson"], about("How to read what it prints.")
    ] = "text"
    ok_codes: Annotated[tuple[ExitCode, ...], about("Exit codes that mean success.")] = (0,)
    retry_codes: Annotated[
        tuple[ExitCode, ...], about("Exit codes of failures that are worth another try.")
    ] = ()
    timeout: Annotated[Duration | None, about("How long it may run before it is stopped.")] = None


EXAMPLE = """\
- step: convert
  tool:
    kind: container
    image: ghcr.io/example/convert:1.4
    command: [convert, --from, /in/a.tiff, --to, /out/a.png]
    env: { QUALITY: 80 }
    mounts:
      - { source: scans, target: /in, read_only: true }
      - { source: pictures, target: /out }
    resources: { cpu: 0.5, memory: 512Mi }
    timeout: 10m
"""

TOOL = Tool(
    kind="container",
    example=EXAMPLE,
    summary="Runs a container image.",
    config=Container,
    run=run_of("noetl.tools.container.run"),
    errors=(
        *("exception", "timeout", "not_found", "auth", "connection", "client_error"),
        *("server_error", "parse"),
    ),
    aliases={"credential": "auth"},
    needs=(("image",),),
)
