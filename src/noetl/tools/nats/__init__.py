"""kind: nats. Messages, key-value buckets and object buckets of a NATS server."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from noetl.tools.base import Credential, Duration, Name, Tool, ToolConfig, about, run_of

Revision = Annotated[int, msgspec.Meta(ge=0)]


class Nats(ToolConfig, frozen=True, kw_only=True):
    """What a playbook writes under `kind: nats`."""

    op: Annotated[
        Literal[
            "kv_get",
            "kv_put",
            "kv_delete",
            "kv_list",
            "publish",
            "request",
            "object_get",
            "object_put",
            "object_delete",
            "object_list",
        ]
        | None,
        about("What to do."),
    ] = None
    auth: Annotated[Credential | None, about("Credential of the NATS server.")] = None
    url: Annotated[
        str | tuple[str, ...] | None, about("Server or servers, unless the credential holds them.")
    ] = None
    bucket: Annotated[Name | None, about("Key-value or object bucket.")] = None
    key: Annotated[
        Name | None, about("Key or object; for the lists a pattern such as `user.*`.")
    ] = None
    value: Annotated[
        Any, about("What to put, publish or ask with: text as it is, other data as JSON.")
    ] = None
    create: Annotated[bool, about("Make the bucket if it is not there.")] = False
    subject: Annotated[Name | None, about("Subject of `publish` and `request`.")] = None
    headers: Annotated[dict[str, str], about("Headers of the message.")] = {}
    ttl: Annotated[Duration | None, about("How long `kv_put` keeps the key.")] = None
    revision: Annotated[
        Revision | None, about("Put or delete only if this is still the key's revision.")
    ] = None
    stream: Annotated[
        bool, about("`publish`: wait until a JetStream stream has stored the message.")
    ] = False
    decode: Annotated[
        Literal["auto", "json", "text", "bytes", "reference"],
        about("How to read what comes back; `auto`: JSON if it is, else text, else bytes."),
    ] = "auto"
    timeout: Annotated[Duration, about("How long to wait for the answer.")] = 5


NEEDS = {
    "kv_get": (("bucket",), ("key",)),
    "kv_put": (("bucket",), ("key",), ("value",)),
    "kv_delete": (("bucket",), ("key",)),
    "kv_list": (("bucket",),),
    "publish": (("subject",),),
    "request": (("subject",),),
    "object_get": (("bucket",), ("key",)),
    "object_put": (("bucket",), ("key",), ("value",)),
    "object_delete": (("bucket",), ("key",)),
    "object_list": (("bucket",),),
}

EXAMPLE = """\
- step: open_session
  tool:
    kind: nats
    auth: nats_main
    op: kv_put
    bucket: sessions
    key: "user.{{ workload.user_id }}"
    value: { roles: [viewer] }
    ttl: 24h
"""

TOOL = Tool(
    kind="nats",
    example=EXAMPLE,
    summary="Uses a NATS server: key-value, messages, objects.",
    config=Nats,
    run=run_of("noetl.tools.nats.run", extra="nats", libraries=("nats",)),
    errors=("not_found", "connection", "timeout", "auth", "client_error", "server_error", "parse"),
    extra="nats",
    aliases={"operation": "op", "credential": "auth"},
    needs=(("op",),),
    needs_when={"op": NEEDS},
)
