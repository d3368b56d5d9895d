"""Sharing tokens with other workers: a courtesy, and never a reason for a call to fail."""

from __future__ import annotations

import asyncio
import time

from aiohttp import web

from noetl.api.worker_control import HttpControl
from noetl.model.secrets import AccessToken
from noetl.secrets.masking import Mask
from noetl.templates import Views
from noetl.tools.registry import tool_of
from noetl.worker.keyring import KEPT_MAX, CallTokens, KeptSecrets
from tests.tools.services import answering

REFUSAL = {"error": {"code": "not_allowed", "message": "no lease."}}


def test_a_server_that_keeps_no_tokens_is_done_without():
    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.json_response(REFUSAL, status=403)

    async def story() -> AccessToken | None:
        async with HttpControl([url], Views(tool_of)) as control:
            tokens = CallTokens(control, "1", Mask())
            await tokens.keep("key", AccessToken(text="t", expires_at=time.time() + 60))
            return await tokens.find("key")

    with answering(("*", "/api/auth-cache/key", refuse)) as url:
        assert asyncio.run(story()) is None


def test_of_secrets_that_were_asked_for_the_oldest_make_room():
    kept = KeptSecrets()
    for number in range(KEPT_MAX + 1):
        kept.put(str(number), {"value": number}, 3600.0)

    assert kept.get("0") is None
    assert kept.get("1") == {"value": 1}
    assert kept.get(str(KEPT_MAX)) == {"value": KEPT_MAX}
