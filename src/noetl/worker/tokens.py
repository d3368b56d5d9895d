"""Access tokens that this worker shares with the others, on behalf of one call."""

from __future__ import annotations

from noetl.model.access_tokens import AccessToken
from noetl.model.ids import ExecutionId
from noetl.secrets.masking import Mask
from noetl.worker.control import Control


class CallTokens:
    """See `noetl.tools.running.access_tokens.SharedTokens`."""

    def __init__(self, control: Control, execution_id: ExecutionId, mask: Mask) -> None:
        self._control = control
        self._execution_id = execution_id
        self._mask = mask

    async def find(self, key: str) -> AccessToken | None:
        return await self._control.access_token(key, self._execution_id)

    async def keep(self, key: str, token: AccessToken) -> None:
        await self._control.keep_access_token(key, token, self._execution_id)

    def hide(self, text: str) -> None:
        self._mask.add(text)
