"""kind: secrets. Reads an entry of a secret manager; the value stays masked."""

from __future__ import annotations

from typing import Annotated, Literal

from noetl.tools.base import Credential, Duration, Name, Tool, ToolConfig, about, run_of
from noetl.tools.web.request import SERVICE_ERRORS


class Secrets(ToolConfig, frozen=True, kw_only=True):
    """What a playbook writes under `kind: secrets`."""

    secret: Annotated[
        Name | None, about("Name of the entry: credential, variable, file or path in the vault.")
    ] = None
    provider: Annotated[
        Literal["credential", "env", "file", "vault", "google", "aws", "azure"],
        about("Where to look it up."),
    ] = "credential"
    field: Annotated[Name | None, about("One field of the entry; all of it when left out.")] = None
    version: Annotated[int | str | None, about("Version of it; the latest when left out.")] = None
    url: Annotated[str | None, about("Address of the vault or secret manager.")] = None
    project: Annotated[
        str | None, about("Project, account or namespace the secret belongs to.")
    ] = None
    auth: Annotated[Credential | None, about("Credential to ask the secret manager with.")] = None
    timeout: Annotated[Duration | None, about("How long the look-up may take.")] = None


EXAMPLE = """\
- step: read_key
  tool:
    kind: secrets
    secret: payments
    field: api_key
"""

TOOL = Tool(
    kind="secrets",
    example=EXAMPLE,
    summary="Reads a secret.",
    config=Secrets,
    run=run_of("noetl.tools.secrets.run"),
    secret_result=True,
    errors=SERVICE_ERRORS,
    aliases={"secret_name": "secret", "credential": "auth"},
    needs=(("secret",),),
    credential=lambda config: (
        config.get("secret") if config.get("provider", "credential") == "credential" else None
    ),
)
