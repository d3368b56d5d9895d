"""Access tokens that this worker shares with the others, on behalf of one call."""

from __future__ import annotations

import logging

from noetl.errors import NoetlError
from noetl.model.access_tokens import AccessToken
from noetl.model.ids import ExecutionId
from noetl.secrets.masking import Mask
from noetl.worker.control import Control

logger = logging.getLogger(__name__)


class CallTokens:
    """See `noetl.tools.credentials.SharedTokens`.

    To share saves others a request; a call that has its token does not fail for it.
    """

    def __init__(self, control: Control, execution_id: ExecutionId, mask: Mask) -> None:
        self._control = control
        self._execution_id = execution_id
        self._mask = mask

    async def find(self, key: str) -> AccessToken | None:
        try:
            return await self._control.access_token(key, self._execution_id)
        except NoetlError as error:
            logger.warning("tokens of other workers cannot be asked for: %s", error)
            return None

    async def keep(self, key: str, token: AccessToken) -> None:
        try:
            await self._control.keep_access_token(key, token, self._execution_id)
        except NoetlError as error:
            logger.warning("a token cannot be kept for other workers: %s", error)

    def hide(self, text: str) -> None:
        self._mask.add(text)
