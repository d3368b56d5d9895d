"""kind: http. One request, one answer."""

from __future__ import annotations

from noetl.tools.base import Tool, run_of
from noetl.tools.web.request import SERVICE_ERRORS, Request


class Http(Request, frozen=True, kw_only=True):
    """What a playbook writes under `kind: http`."""


EXAMPLE = """\
- step: fetch_orders
  tool:
    kind: http
    method: GET
    url: "{{ workload.api_url }}/orders"
    params: { page: 1, status: [open, paid] }
    headers: { Accept: application/json }
    auth: { type: bearer, credential: shop_token }
    timeout: { connect: 5, read: 15 }
"""

TOOL = Tool(
    kind="http",
    example=EXAMPLE,
    summary="Sends one HTTP request.",
    config=Http,
    run=run_of("noetl.tools.web.client"),
    errors=(*SERVICE_ERRORS, "schema"),
    aliases={"endpoint": "url", "payload": "json", "data": "body", "credential": "auth"},
    needs=(("url",),),
    only_one=(("json", "body", "form"),),
    tells=lambda config: (config.get("method", "GET"), config.get("url", "")),
    view="answer",
    is_client=True,
)
