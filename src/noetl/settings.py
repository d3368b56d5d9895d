"""Every setting there is, in one class; read once, where the system is put together.

A setting is an environment variable. An empty value counts as not set, because compose files
and shells write `NOETL_TOKEN=` for "none".
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from noetl.errors import BadSetting
from noetl.model.labels import of_worker
from noetl.model.net import Limits
from noetl.model.retention import keep_rules
from noetl.model.spelling import did_you_mean

PREFIX = "NOETL_"
MASK = "********"

# Kubernetes writes such variables into every container when a service is called "noetl…".
_FROM_KUBERNETES = re.compile(
    r"NOETL_(?:.+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_.+)?"
    r"|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)=.*"
    r"|NOETL_(?:.+_)?PORT=(?:tcp|udp|sctp)://.*"
)

FILE_LIKE = ("sqlite", "postgresql")
"""Schemes of URLs without a host: a file, or a server behind a local socket."""

Secrecy = Literal["none", "password", "whole"]


class Kind(msgspec.Struct, frozen=True):
    """How the text of a variable becomes a value."""

    parse: Callable[[str], Any]
    """Raises ValueError for an invalid text."""
    expected: str
    """What a valid text looks like, for the message about an invalid one."""


class Setting(msgspec.Struct, frozen=True):
    """One row of the table."""

    kind: Kind
    help: str
    default: Any
    unit: str
    secrecy: Secrecy
    """What of the value is never shown: nothing, a URL's password, or all of it."""
    field: str = ""

    @property
    def name(self) -> str:
        """The environment variable."""
        return PREFIX + self.field.upper()

    def read(self, environment: Mapping[str, str]) -> Any:
        """The value in force."""
        text = environment.get(self.name, "").strip()
        if not text:
            return self.default
        try:
            return self.kind.parse(text)
        except ValueError:
            raise BadSetting(
                f"{self.name} is {self._quoted(text)}, but must be {self.kind.expected}."
                " Correct it, or unset it to use the default"
                f" ({written(self.default)})."
            ) from None

    def shown(self, value: Any) -> Any:
        """The value as it may be printed."""
        if value is None or self.secrecy == "none":
            return value
        if self.secrecy == "whole":
            return MASK
        return ",".join(map(without_password, re.split(",(?=[a-z]+://)", str(value))))

    def _quoted(self, text: str) -> str:
        # A value we cannot parse may hold its secret anywhere, so none of it is repeated.
        return f'"{text}"' if self.secrecy == "none" else "set to something we cannot use"


def _url(*schemes: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        parts = urlsplit(text)
        has_place = bool(parts.hostname) or (parts.scheme in FILE_LIKE and len(parts.path) > 1)
        if parts.scheme not in schemes or not has_place or re.search(r"\s", text):
            raise ValueError
        _ = parts.port  # raises ValueError when it is not a port number
        return text

    return parse


def database_url(text: str) -> str:
    """A file or a URL, as people name a database, in the form that the rest of the program reads.

    Raises BadSetting for a database of another kind.
    """
    url = _canonical(text)
    if not url.strip():
        raise BadSetting("the database has no name: --db is a file or postgresql://…")
    scheme, has_scheme, rest = url.partition("://")
    if scheme == "sqlite" and rest and not rest.startswith("/"):
        raise BadSetting(
            f"{url} names no file: write sqlite:///{rest} for one in the working directory, with"
            " four slashes for an absolute path."
        )
    if has_scheme and scheme not in FILE_LIKE:
        raise BadSetting(
            f"NoETL uses SQLite or PostgreSQL, not {scheme}. Name a file (--db noetl.db) or a"
            " database (--db postgresql://user:password@host/database)."
        )
    return url


def _canonical(text: str) -> str:
    # libpq and many providers write both.
    return re.sub("^postgres://", "postgresql://", text)


def _database(text: str) -> str:
    if re.match("sqlite://[^/]", text):  # a host, which files do not have
        raise ValueError
    return _url(*FILE_LIKE)(_canonical(text))


def _urls(one: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: ",".join(one(part.strip()) for part in text.split(","))


def _count(text: str) -> int:
    # int() would also take "1_000", " 1" and digits of other scripts.
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < 1:
        raise ValueError
    return int(text)


def _seconds(text: str) -> float:
    number = float(text)
    if not math.isfinite(number) or number <= 0:
        raise ValueError
    return number


def _archive(text: str) -> str:
    parts = urlsplit(text)
    if "\0" in text or (parts.scheme not in ("", "file") and not parts.hostname):
        raise ValueError
    return text


def _keep(text: str) -> str:
    keep_rules(text)
    return text


def _secret(text: str) -> str:
    if not text.isprintable() or " " in text:
        raise ValueError
    return text


def _amounts(text: str) -> dict[str, int]:
    written = (part.strip().partition("=") for part in text.split(",") if part.strip())
    found = {name: _count(amount) for name, _, amount in written}
    if found.keys() - {"calls", "bytes", "seconds"}:
        raise ValueError
    return found


def _quotas(text: str) -> str:
    return ",".join(f"{name}={amount}" for name, amount in _amounts(text).items())


def _labels(text: str) -> str:
    return ",".join(f"{name}={value}" for name, value in of_worker(text).items())


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if not all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*\*?", name) for name in names):
        raise ValueError
    return names


def _origins(text: str) -> tuple[str, ...]:
    found = tuple(one.strip().rstrip("/") for one in text.split(",") if one.strip())
    for one in found:
        address = urlsplit(one)
        if address.scheme not in ("http", "https") or one != f"{address.scheme}://{address.netloc}":
            raise ValueError(one)
    return found


def _networks(text: str) -> tuple[str, ...]:
    return tuple(str(ipaddress.ip_network(one.strip())) for one in text.split(","))


def _path(text: str) -> str:
    if "\0" in text:
        raise ValueError
    return text


def _switch(text: str) -> bool:
    if text.lower() not in SWITCHES:
        raise ValueError
    return SWITCHES[text.lower()]


def _one_of(*words: str) -> Kind:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError
        return text.lower()

    return Kind(parse, f"one of {', '.join(words)}")


def _store(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("file", "s3", "gs", "az") or not (parts.netloc or parts.path):
        raise ValueError
    return text


SWITCHES = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
DATABASE = Kind(
    _database,
    "a URL like sqlite:///noetl.db or postgresql://user:password@host/database",
)
HTTP = Kind(
    _urls(_url("http", "https")), "a URL like https://noetl.example.com, or several with commas"
)
NATS = Kind(
    _urls(_url("nats", "tls", "ws", "wss")), "a URL like nats://host:4222, or several with commas"
)
SECRET = Kind(_secret, "one word of printable characters, without spaces")
LEVEL = _one_of("debug", "info", "warning", "error")
QUOTAS = Kind(_quotas, "calls, bytes or seconds, e.g. calls=1000,seconds=3600")
LABELS = Kind(_labels, "labels with commas between, e.g. gpu=a100,zone=eu")
NAMES = Kind(_names, "names of variables with commas between, e.g. API_TOKEN,SHOP_*")
ORIGINS = Kind(_origins, "origins with commas between, e.g. https://ui.example.com")
NETWORKS = Kind(_networks, "addresses or networks with commas between, e.g. 10.0.0.7,10.1.0.0/16")
PATH = Kind(_path, "the path of a directory")
FILE = Kind(_path, "the path of a file")
PERMISSION = _one_of("allow", "refuse")
SANDBOX = _one_of("processes", "namespaces")
STORE = Kind(_store, "a URL like file:///var/objects or s3://bucket")
SWITCH = Kind(_switch, "on or off")
LIBS = _one_of("present", "install")
ARCHIVE = Kind(_archive, "a folder, or the URL of a bucket such as s3://bucket/noetl")
KEEP = Kind(
    _keep,
    "lengths of time, for all or after a path: 90d, shop/=30d, failed=180d, shop/:failed=forever",
)
COUNT = Kind(_count, "a whole number of at least 1, e.g. 1000")
SECONDS = Kind(_seconds, "a number of seconds greater than 0, e.g. 3600")

_declared: list[Setting] = []


def setting(
    kind: Kind, about: str, *, default: Any = None, unit: str = "", secrecy: Secrecy = "none"
) -> Any:
    """Declares a field of `Settings`: a row of the table. Returns the field's default."""
    _declared.append(Setting(kind, about, default, unit, secrecy))
    return default


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting: its type, what it is for, and its default. Here are the values in force."""

    database_url: str = setting(
        DATABASE,
        "Where executions are kept: sqlite:///… or postgresql://…",
        default="sqlite:///.noetl/noetl.db",
        secrecy="password",
    )
    server_url: str | None = setting(
        HTTP,
        "The server that commands and workers talk to; several with commas.",
        secrecy="password",
    )
    nats_url: str | None = setting(
        NATS,
        "NATS for wake-ups between machines, sessions and results; several with commas.",
        secrecy="password",
    )
    token: str | None = setting(
        SECRET, "The API token that commands and workers show to the server.", secrecy="whole"
    )
    secret_key: str | None = setting(
        SECRET,
        "The key of stored credentials; needed with PostgreSQL, else a key file is made.",
        secrecy="whole",
    )
    cors_origins: tuple[str, ...] = setting(
        ORIGINS,
        "Sites whose pages may ask a server (CORS), as https://host, with commas.",
        default=(),
    )
    trusted_proxies: tuple[str, ...] = setting(
        NETWORKS,
        "Addresses or networks of proxies whose X-Forwarded-For a server believes.",
        default=(),
    )
    ui: bool = setting(SWITCH, "Whether a server shows its web pages: on or off.", default=True)
    env_secrets: tuple[str, ...] = setting(
        NAMES,
        "Variables that playbooks may read as secrets (keychain kind env), with commas.",
        default=(),
    )
    task_env: tuple[str, ...] = setting(
        NAMES,
        "Variables that tasks may see (env_allow of shell, keychain kind env), with commas.",
        default=(),
    )
    secret_files: str | None = setting(
        PATH, "A directory; playbooks may read files below it as secrets (keychain kind file)."
    )
    private_networks: str = setting(
        PERMISSION,
        "Whether tasks may reach private addresses by http: allow or refuse.",
        default="allow",
    )
    containers: str | None = setting(
        FILE, "A JSON file: which images, namespaces, accounts and limits containers may have."
    )
    files: str | None = setting(
        PATH, "A directory; tasks read and write files below it only. Else anywhere."
    )
    max_response_bytes: int = setting(
        COUNT,
        "Largest result that a task holds in memory: rows, an answer, an object.",
        default=256 * 1024 * 1024,
        unit="bytes",
    )
    max_file_bytes: int = setting(
        COUNT,
        "Largest file that a task may keep as its result: a download, a table.",
        default=10 * 1024**3,
        unit="bytes",
    )
    store_url: str | None = setting(
        STORE, "The object store of tasks that name none: file:///…, s3://…, gs://…, az://…."
    )
    cache: str = setting(
        PATH,
        "A directory for what is worth keeping between runs: packages, local jobs.",
        default="~/.cache/noetl",
    )
    python_libs: str = setting(
        LIBS,
        "What `libs` of Python tasks may be: present, or install from the package index.",
        default="present",
    )
    slots: int = setting(
        COUNT, "How many commands a worker runs at the same time.", default=64, unit="commands"
    )
    labels: str = setting(
        LABELS,
        "What workers say of themselves: gpu=a100,zone=eu; steps may ask for it.",
        default="",
    )
    python_processes: int | None = setting(
        COUNT,
        "Most processes for Python code of tasks. Else as many as slots and memory allow.",
        unit="processes",
    )
    task_memory_bytes: int | None = setting(
        COUNT,
        "Most memory (address space) of one process of python, shell and mcp tasks.",
        unit="bytes",
    )
    task_processes: int | None = setting(
        COUNT,
        "Most processes of the worker's user while such a task runs (RLIMIT_NPROC).",
        unit="processes",
    )
    task_file_bytes: int | None = setting(
        COUNT, "Largest file that such a task may write.", unit="bytes"
    )
    sandbox: str = setting(
        SANDBOX,
        "What code and programs of tasks are kept in: processes, or namespaces of Linux.",
        default="processes",
    )
    task_network: str = setting(
        PERMISSION,
        "Whether tasks in namespaces may ask for the network: allow or refuse.",
        default="allow",
    )
    strict: bool = setting(
        SWITCH, "Whether older forms of the language are refused: on or off.", default=False
    )
    log: str = setting(
        LEVEL, "How much servers and workers log: debug, info, warning, error.", default="info"
    )
    max_payload_bytes: int | None = setting(
        COUNT, "Largest payload a playbook may allow itself.", unit="bytes"
    )
    max_attempts: int | None = setting(
        COUNT, "Most tries of one call, whatever a playbook asks for.", unit="tries"
    )
    max_in_flight: int | None = setting(
        COUNT, "Most iterations of a parallel loop at one time.", unit="iterations"
    )
    max_jumps: int | None = setting(
        COUNT, "Most jumps between the tasks of one step run.", unit="jumps"
    )
    quotas: str | None = setting(
        QUOTAS, "What one execution may use: calls=1000,bytes=1000000,seconds=3600."
    )
    max_depth: int = setting(
        COUNT,
        "Most executions that call each other, one below the other.",
        default=50,
        unit="executions",
    )
    max_children: int = setting(
        COUNT, "Most executions that one execution may call.", default=1_000_000, unit="executions"
    )
    keep: str = setting(
        KEEP,
        "How long ended executions are kept: 90d, shop/=30d, failed=180d; unset: for ever.",
        default="",
    )
    archive_url: str | None = setting(
        ARCHIVE, "Where executions are recorded before they are forgotten: a folder, s3://bucket/…."
    )
    timeout: float | None = setting(
        SECONDS, "Longest time that one task or step may ask for.", unit="seconds"
    )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read every setting; raises BadSetting for the first invalid one."""
        return cls(**{row.field: row.read(environment) for row in TABLE})

    def __repr__(self) -> str:
        shown = (f"{row.field}={row.shown(getattr(self, row.field))!r}" for row in TABLE)
        return f"Settings({', '.join(shown)})"

    @property
    def server_urls(self) -> list[str]:
        """The servers to talk to; any of them will do."""
        return self.server_url.split(",") if self.server_url is not None else []

    @property
    def limits(self) -> Limits:
        """What no playbook may exceed."""
        return Limits(
            max_payload_bytes=self.max_payload_bytes,
            max_attempts=self.max_attempts,
            max_in_flight=self.max_in_flight,
            max_jumps=self.max_jumps,
            timeout=self.timeout,
            **{f"max_{name}": amount for name, amount in _amounts(self.quotas or "").items()},
        )


TABLE = tuple(
    msgspec.structs.replace(row, field=field)
    for field, row in zip(Settings.__struct_fields__, _declared, strict=True)
)
"""The settings, in the order of the class."""


def written(value: Any) -> str:
    """A value of a setting as people write it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    text = ", ".join(value) if isinstance(value, tuple) else value
    return "none" if text in (None, "") else str(text)


def unknown_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """A sentence for each `NOETL_…` variable that no setting reads."""
    known = [row.name for row in TABLE]
    return tuple(
        f"{name} is not a setting and has no effect.{did_you_mean(name, known)}"
        " `noetl settings` lists them all."
        for name in sorted(environment)
        if name.startswith(PREFIX)
        and name not in known
        and not _FROM_KUBERNETES.fullmatch(f"{name}={environment[name]}")
    )


def without_password(url: str) -> str:
    """A URL as people may see it."""
    parts = urlsplit(url)
    if parts.password is not None:
        user_and_password, _, host = parts.netloc.rpartition("@")
        user = user_and_password.partition(":")[0]
        url = url.replace(parts.netloc, f"{user}:{MASK}@{host}", 1)
    return re.sub(r"(?i)(?<=[?&])((?:ssl)?password|token)=[^&#]*", rf"\1={MASK}", url)
