"""Named servers of one person: a file with addresses and tokens that nobody else may read."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec

from noetl.errors import BadSetting


class Server(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a server is, and what we show to it."""

    url: str
    token: str | None = None


class Contexts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All servers that have a name, and the one in use."""

    current: str | None = None
    servers: dict[str, Server] = {}

    @property
    def chosen(self) -> Server | None:
        return self.servers.get(self.current) if self.current is not None else None


def place() -> Path:
    """The file, where such files belong."""
    base = os.environ.get("XDG_CONFIG_HOME", "").strip()
    return (Path(base) if base else Path.home() / ".config") / "noetl" / "contexts.json"


def contexts() -> Contexts:
    """What is in the file; nothing if there is none."""
    try:
        return msgspec.json.decode(place().read_bytes(), type=Contexts)
    except (FileNotFoundError, NotADirectoryError, RuntimeError):
        return Contexts()  # none were added, or there is no home to keep them in
    except (OSError, msgspec.MsgspecError) as error:
        raise BadSetting(f"{place()} cannot be read: {error}. Correct it or remove it.") from None


def keep(found: Contexts) -> None:
    """Write the file, all of it or nothing."""
    path = place()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with open(handle, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(found), indent=2))
    os.replace(temporary, path)
