"""The secrets of one call: looked up when they are used, and masked in what the call reports.

An entry of the keychain may contain templates and may read other entries. A secret of an external
manager is requested with the tool context of the call that needs it, so that its egress policy and
time limits apply.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import msgspec

from noetl.engine.pipeline.frame import Frame
from noetl.errors import EvaluationFailed, NoetlError
from noetl.model.duration import seconds
from noetl.model.ids import ExecutionId
from noetl.model.net import KeychainEntry
from noetl.model.secrets import AccessToken
from noetl.secrets.keychain import Sources, resolve
from noetl.secrets.masking import Mask
from noetl.templates import Compiled, Scope, Tainted, compile_value, reveal
from noetl.templates.views import ResultView
from noetl.tools.base import ToolContext
from noetl.tools.credentials import fields_of, secret_key
from noetl.worker.control import Control

logger = logging.getLogger(__name__)

KEPT_MAX = 1000
_finding: ContextVar[tuple[str, ...]] = ContextVar("finding", default=())
"""Entries being looked up, each for the one before it; one may need another, but not itself. A tool
may look up several at the same time, each in a context of its own.
"""

ONE_SECRET = {"bearer": "token", "basic": "password", "oauth2": "access_token"}
"""The field that such an entry exists for; the others say how to use it."""


class SecretView(ResultView):
    """An entry as templates see it: its fields, or its one value.

    An entry with one secret is that secret: its only field, `value`, or the field for which its
    type exists. An entry with several is the mapping of them.
    """

    __slots__ = ()

    @property
    def plain(self) -> object:
        fields = self._plain
        assert isinstance(fields, dict)
        secrets = [name for name in fields if name != "type"]
        if len(secrets) == 1:
            return fields[secrets[0]]
        for name in ("value", ONE_SECRET.get(str(reveal(fields.get("type"))))):
            if name in fields:
                return fields[name]
        return fields


class KeptSecrets:
    """Secrets of external managers, cached on this worker for the `ttl` of their entries.

    Each execution has its own, so the oldest are dropped first.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[float, dict[str, Any]]] = {}

    def get(self, key: str) -> dict[str, Any] | None:
        until, fields = self._kept.get(key, (0.0, {}))
        return fields if time.monotonic() < until else None

    def put(self, key: str, fields: dict[str, Any], lasts: float) -> None:
        if lasts <= 0:
            return
        self._kept.pop(key, None)
        if len(self._kept) >= KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = (time.monotonic() + lasts, fields)

    async def close(self) -> None:
        self._kept.clear()


class Keyring:
    """The part of a playbook's keychain that one call may use."""

    def __init__(
        self,
        frame: Frame,
        control: Control,
        sources: Sources,
        mask: Mask,
        lend_context: Callable[[], ToolContext],
    ) -> None:
        self._frame = frame
        self._control = control
        self._sources = sources
        self.mask = mask
        self._lend_context = lend_context
        self._entries = {entry.name: entry for entry in frame.program.net.keychain}
        self._shown: dict[object, str] = {}
        """Entries by the value that templates saw: `auth: "{{ keychain.x }}"` means the entry."""

    async def credential(self, name: str | Mapping[str, Any]) -> dict[str, Any]:
        """The fields of an entry or a stored credential, or of an inline entry."""
        if isinstance(name, str):
            name = self._shown.get(name, name)
        if not isinstance(name, str):
            fields = await self._written(name)
        elif name in self._entries:
            fields = await self._found(self._entries[name])
        else:
            fields = await self._stored(name)
        self.mask.add(fields)
        return fields

    async def show(self, scope: Scope, *readers: Compiled) -> None:
        """Put the entries that these templates read into the scope, and no others."""
        paths = [path for reader in readers for path in reader.reads if path[0] == "keychain"]
        wanted = {str(path[1]) for path in paths if len(path) > 1}
        fields_read = {(str(path[1]), *path[2:3]) for path in paths if len(path) > 1}
        if not wanted:
            scope.roots.pop("keychain", None)
            return
        found = {}
        for name in sorted(wanted & self._entries.keys()):
            fields = await self.credential(name)
            is_oauth2 = fields.get("type") == "oauth2" and "access_token" not in fields
            if is_oauth2 and fields_read & {(name,), (name, "access_token")}:
                from noetl.tools.web.client import access_token

                token = await access_token(fields, self._lend_context())
                self.mask.add(token)
                fields = {**fields, "access_token": token}
            found[name] = SecretView({key: Tainted(value) for key, value in fields.items()})
            value = reveal(found[name].plain)
            if isinstance(value, str):
                self._shown[value] = name
        scope.roots["keychain"] = found
        scope.tainted |= {"keychain"}

    async def _written(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        if "kind" not in fields:
            return dict(fields)
        config = {key: value for key, value in fields.items() if key not in ("name", "kind")}
        name, kind = str(fields.get("name", "")), str(fields["kind"])
        return await self._resolved(KeychainEntry(name=name, kind=kind, config=config))

    async def _stored(self, name: str) -> dict[str, Any]:
        return await self._control.credential(name, self._frame.command.execution_id)

    async def _found(self, entry: KeychainEntry) -> dict[str, Any]:
        outer = _finding.get()
        if entry.name in outer:
            circle = " → ".join([*outer, entry.name])
            raise EvaluationFailed(f"the keychain entries {circle} need each other.")
        token = _finding.set((*outer, entry.name))
        try:
            return await self._resolved(await self._rendered(entry))
        finally:
            _finding.reset(token)

    async def _rendered(self, entry: KeychainEntry) -> KeychainEntry:
        compiled = compile_value(entry.config)
        if compiled.is_literal:
            return entry
        outer = self._frame.scope
        scope = Scope(dict(outer.roots), now=outer.now, seed=outer.seed)
        await self.show(scope, compiled)
        config: Any = reveal(compiled.render(scope, f"keychain entry {entry.name}"))
        return KeychainEntry(name=entry.name, kind=entry.kind, config=config)

    async def _resolved(self, entry: KeychainEntry) -> dict[str, Any]:
        return await resolve(entry, self._stored, self._sources, self._asked)

    async def _asked(self, provider: str, entry: KeychainEntry) -> dict[str, Any]:
        """The fields of a secret in an external manager. Raises Failed."""
        # Most workers never ask one.
        from noetl.tools.secrets.managers import MANAGERS, Wanted

        config, context = entry.config, self._lend_context()
        version, region = config.get("version"), config.get("region")
        fields = await fields_of(config.get("auth"), context)
        wanted = Wanted(
            name=str(config.get("path") or entry.name),
            version=None if version is None else str(version),
            url=config.get("url"),
            project=config.get("project"),
            fields=fields if region is None else {**fields, "region": region},
        )
        kept = context.resources.shared("kept secrets", KeptSecrets)
        owner = "" if config.get("scope") == "global" else context.execution_id
        # A caller without the same credential does not get what it opened.
        key = secret_key(owner, provider, wanted)
        found = kept.get(key)
        if found is None:
            found = await MANAGERS[provider](wanted, context)
            kept.put(key, found, seconds(config.get("ttl") or 0) or 0.0)
        return found


class CallTokens(msgspec.Struct, frozen=True):
    """Access tokens that this worker shares with others, on behalf of one call. See
    `noetl.tools.credentials.SharedTokens`.

    Sharing saves other workers a request; a call that has its token does not fail if it cannot be
    shared.
    """

    control: Control
    execution_id: ExecutionId
    mask: Mask

    async def find(self, key: str) -> AccessToken | None:
        try:
            return await self.control.access_token(key, self.execution_id)
        except NoetlError as error:
            logger.warning("tokens of other workers cannot be asked for: %s", error)
            return None

    async def keep(self, key: str, token: AccessToken) -> None:
        try:
            await self.control.keep_access_token(key, token, self.execution_id)
        except NoetlError as error:
            logger.warning("a token cannot be kept for other workers: %s", error)

    def hide(self, text: str) -> None:
        self.mask.add(text)
