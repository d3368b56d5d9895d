"""kind: store. Objects in files, S3, Google Cloud Storage or Azure, through one interface."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from noetl.tools.base import Count, Credential, Duration, Name, Tool, ToolConfig, about, run_of
from noetl.tools.web.request import SERVICE_ERRORS


class Store(ToolConfig, frozen=True, kw_only=True):
    """What a playbook writes under `kind: store`."""

    op: Annotated[
        Literal["put", "get", "list", "delete", "presign"] | None, about("What to do.")
    ] = None
    url: Annotated[
        Name | None,
        about("Store: `file:///…`, `s3://…`, `gs://…`, `az://…`; the operator's if left out."),
    ] = None
    auth: Annotated[Credential | None, about("Credential of the store.")] = None
    key: Annotated[Name | None, about("Key of the object.")] = None
    value: Annotated[
        Any, about("What to put: text as it is, other data as JSON; may be a reference.")
    ] = None
    file: Annotated[str | None, about("Local file to put, instead of `value`.")] = None
    content_type: Annotated[str | None, about("Media type to put it with.")] = None
    metadata: Annotated[dict[str, str], about("Metadata to put it with.")] = {}
    overwrite: Annotated[bool, about("Whether `put` may replace an object.")] = True
    decode: Annotated[
        Literal["reference", "auto", "json", "ndjson", "csv", "text", "bytes"],
        about("What `get` yields: a reference, or the content read this way."),
    ] = "reference"
    prefix: Annotated[str, about("`list`: only keys that begin like this.")] = ""
    limit: Annotated[Count, about("`list`: how many at most.")] = 1000
    expires: Annotated[Duration, about("`presign`: how long the address is good for.")] = "1h"
    method: Annotated[
        Literal["GET", "PUT"], about("`presign`: whether the address is to read or to write.")
    ] = "GET"
    timeout: Annotated[Duration | None, about("How long the operation may take.")] = None


NEEDS = {
    "put": (("key",), ("value", "file")),
    "get": (("key",),),
    "delete": (("key",),),
    "presign": (("key",),),
}

EXAMPLE = """\
- step: keep_report
  tool:
    kind: store
    op: put
    url: s3://reports
    auth: s3_reports
    key: "daily/{{ execution_id }}.json"
    value: "{{ make_report }}"
    content_type: application/json
"""

TOOL = Tool(
    kind="store",
    example=EXAMPLE,
    summary="Puts, gets, lists, deletes or presigns objects.",
    config=Store,
    run=run_of("noetl.tools.store.run", extra="store", libraries=("obstore",)),
    errors=SERVICE_ERRORS,
    extra="store",
    aliases={"operation": "op", "credential": "auth"},
    needs=(("op",),),
    needs_when={"op": NEEDS},
    only_one=(("value", "file"),),
)
