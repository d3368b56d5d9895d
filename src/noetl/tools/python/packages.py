"""Packages that a task's code needs: present on the worker, or installed beside it once.

Only plain requirements are allowed (`pandas>=2`), no options and addresses, and only wheels:
packages come from the operator's index, and their installation runs no code.
"""

from __future__ import annotations

import asyncio
import hashlib
import operator
import os
import platform
import re
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from noetl.tools.base import ToolContext
from noetl.tools.failures import Failed
from noetl.tools.limits import to_thread
from noetl.tools.processes.commands import Output, environment, run_command

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[\w,. -]*\])?\s*(.*?)\s*$")
_CLAUSE = re.compile(r"(==|!=|<=|>=|<|>|~=)\s*(\d+(?:\.\d+)*)")
OPERATORS_OWN = ("PIP_", "UV_", "SSL_CERT_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
"""Variables by which the operator configures the package index."""


async def packages_for(libs: tuple[str, ...], context: ToolContext) -> str | None:
    """A directory with the required packages; None if the worker has them all.

    Raises Failed if they are missing and cannot be installed.
    """
    lacks = [lack for lib in libs if (lack := _lack(lib))]
    if not lacks:
        return None
    if not context.resources.rules.install_libs:
        told = f"{lacks[0]} Install it there, or have the operator set NOETL_PYTHON_LIBS=install."
        raise Failed("client_error", told)
    kept = context.resources.shared("packages", Packages)
    root = Path(context.resources.rules.cache).expanduser() / "libs"
    return str(await kept.installed(root, libs, context))


class Packages:
    """Directories of installed packages, each made once, also if several calls need it at the same
    time.
    """

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def installed(self, root: Path, libs: tuple[str, ...], context: ToolContext) -> Path:
        written = [sys.version, platform.machine(), *sorted(libs)]
        place = root / hashlib.sha256("\n".join(written).encode()).hexdigest()[:32]
        async with self._locks[place.name]:
            if not place.exists():
                await self._install(place, libs, context)
        return place

    async def _install(self, place: Path, libs: tuple[str, ...], context: ToolContext) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(".partial", f"{place.name}.", place.parent))
        partial.chmod(0o755)
        try:
            out, err = Output(context.log, 65536), Output(context.log, 65536)
            words = _installer(str(partial), libs)
            variables = environment(
                {
                    name: value
                    for name, value in os.environ.items()
                    if name.upper().startswith(OPERATORS_OWN)
                }
            )
            code = await run_command(words, None, variables, str(partial), out, err, None)
            if code != 0:
                raise _not_installed(libs, f"{out.text()}\n{err.text()}")
            try:
                partial.rename(place)
            except OSError:
                # Another worker of this machine was faster; its directory is the same.
                if not place.exists():
                    raise
        finally:
            await to_thread(shutil.rmtree, partial, ignore_errors=True)

    async def close(self) -> None:
        """Nothing is open; installed packages stay."""


def _installer(target: str, libs: tuple[str, ...]) -> list[str]:
    own = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    uv = shutil.which("uv", path=own)
    begin = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    if uv is not None:
        begin = [uv, "pip", "install", "--python", sys.executable]
    return [*begin, "--only-binary", ":all:", "--target", target, "--", *libs]


def _not_installed(libs: tuple[str, ...], said: str) -> Failed:
    wanted = ", ".join(libs)
    lower = said.lower()
    missing = ("no matching distribution", "no solution found", "not found in the")
    if any(words in lower for words in missing):
        told = f"libs: the package index has no {wanted} for this Python. The log says more."
        return Failed("not_found", told)
    return Failed("connection", f"libs: {wanted} could not be installed. The log says why.")


# --- What is there -----------------------------------------------------------------------------


def _lack(requirement: str) -> str | None:
    """Why a requirement like `pandas>=2` is not met; None if it is. Raises Failed for anything that
    an installer could take for more than a requirement.
    """
    found = _REQUIREMENT.match(requirement)
    written = [part.strip() for part in found.group(2).split(",")] if found else [""]
    clauses = [_CLAUSE.fullmatch(part) for part in written if part]
    if found is None or None in clauses:
        told = f'libs: "{requirement}" is not a requirement like "pandas" or "pandas>=2".'
        raise Failed("client_error", told)
    name = found.group(1)
    version = _version(name)
    if version is None:
        return f'libs: the package "{name}" is not installed on this worker.'
    if all(
        _holds(clause[1], _numbers(version), _numbers(clause[2])) for clause in clauses if clause
    ):
        return None
    return f"libs: {name} {version} is installed, but the task needs {requirement}."


@cache
def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in release.group().split(".")) if release else ()


_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "~=": operator.ge,
}


def _holds(sign: str, have: tuple[int, ...], want: tuple[int, ...]) -> bool:
    length = max(len(have), len(want))
    filled = [one + (0,) * (length - len(one)) for one in (have, want)]
    is_alike = sign != "~=" or have[: len(want) - 1] == want[:-1]
    return is_alike and _COMPARED[sign](*filled)
