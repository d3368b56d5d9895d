"""Every setting there is, in one table; read once, where the system is put together.

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
"""What may be reached without a host: a file, or a server through its socket."""

Secrecy = Literal["none", "password", "whole"]


class Kind(msgspec.Struct, frozen=True):
    """How the text of a variable becomes a value."""

    parse: Callable[[str], Any]
    """Raises ValueError for a text that will not do."""
    expected: str
    """What to write, for the message about a text that will not do."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    name: str
    field: str
    kind: Kind
    default: Any = None
    unit: str = ""
    help: str
    secrecy: Secrecy = "none"
    """What of the value is never shown: nothing, a URL's password, or all of it."""

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
                f" ({'none' if self.default in (None, '') else self.default})."
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


def _level(text: str) -> str:
    if text.lower() not in LOG_LEVELS:
        raise ValueError
    return text.lower()


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


def _permission(text: str) -> str:
    if text.lower() not in PERMISSIONS:
        raise ValueError
    return text.lower()


def _sandbox(text: str) -> str:
    if text.lower() not in SANDBOXES:
        raise ValueError
    return text.lower()


def _libs(text: str) -> str:
    if text.lower() not in ("present", "install"):
        raise ValueError
    return text.lower()


def _switch(text: str) -> bool:
    if text.lower() not in SWITCHES:
        raise ValueError
    return SWITCHES[text.lower()]


def _store(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("file", "s3", "gs", "az") or not (parts.netloc or parts.path):
        raise ValueError
    return text


SANDBOXES = ("processes", "namespaces")
PERMISSIONS = ("allow", "refuse")
SWITCHES = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
LOG_LEVELS = ("debug", "info", "warning", "error")
DATABASE = Kind(
    _url("sqlite", "postgresql"),
    "a URL like sqlite:///noetl.db or postgresql://user:password@host/database",
)
HTTP = Kind(
    _urls(_url("http", "https")), "a URL like https://noetl.example.com, or several with commas"
)
NATS = Kind(
    _urls(_url("nats", "tls", "ws", "wss")), "a URL like nats://host:4222, or several with commas"
)
SECRET = Kind(_secret, "one word of printable characters, without spaces")
LEVEL = Kind(_level, f"one of {', '.join(LOG_LEVELS)}")
QUOTAS = Kind(_quotas, "calls, bytes or seconds, e.g. calls=1000,seconds=3600")
LABELS = Kind(_labels, "labels with commas between, e.g. gpu=a100,zone=eu")
NAMES = Kind(_names, "names of variables with commas between, e.g. API_TOKEN,SHOP_*")
ORIGINS = Kind(_origins, "origins with commas between, e.g. https://ui.example.com")
NETWORKS = Kind(_networks, "addresses or networks with commas between, e.g. 10.0.0.7,10.1.0.0/16")
PATH = Kind(_path, "the path of a directory")
FILE = Kind(_path, "the path of a file")
PERMISSION = Kind(_permission, f"one of {', '.join(PERMISSIONS)}")
SANDBOX = Kind(_sandbox, f"one of {', '.join(SANDBOXES)}")
STORE = Kind(_store, "a URL like file:///var/objects or s3://bucket")
SWITCH = Kind(_switch, "on or off")
LIBS = Kind(_libs, "one of present, install")
ARCHIVE = Kind(_archive, "a folder, or the URL of a bucket such as s3://bucket/noetl")
KEEP = Kind(
    _keep,
    "lengths of time, for all or after a path: 90d, shop/=30d, failed=180d, shop/:failed=forever",
)
COUNT = Kind(_count, "a whole number of at least 1, e.g. 1000")
SECONDS = Kind(_seconds, "a number of seconds greater than 0, e.g. 3600")

TABLE: tuple[Setting, ...] = (
    Setting(
        name="NOETL_DATABASE_URL",
        field="database_url",
        kind=DATABASE,
        default="sqlite:///.noetl/noetl.db",
        secrecy="password",
        help="Where executions are kept: sqlite:///… or postgresql://…",
    ),
    Setting(
        name="NOETL_SERVER_URL",
        field="server_url",
        kind=HTTP,
        secrecy="password",
        help="The server that commands and workers talk to; several with commas.",
    ),
    Setting(
        name="NOETL_NATS_URL",
        field="nats_url",
        kind=NATS,
        secrecy="password",
        help="NATS for wake-ups between machines, sessions and results; several with commas.",
    ),
    Setting(
        name="NOETL_TOKEN",
        field="token",
        kind=SECRET,
        secrecy="whole",
        help="The API token that commands and workers show to the server.",
    ),
    Setting(
        name="NOETL_SECRET_KEY",
        field="secret_key",
        kind=SECRET,
        secrecy="whole",
        help="The key of stored credentials; needed with PostgreSQL, else a key file is made.",
    ),
    Setting(
        name="NOETL_CORS_ORIGINS",
        field="cors_origins",
        kind=ORIGINS,
        default=(),
        help="Sites whose pages may ask a server (CORS), as https://host, with commas.",
    ),
    Setting(
        name="NOETL_TRUSTED_PROXIES",
        field="trusted_proxies",
        kind=NETWORKS,
        default=(),
        help="Addresses or networks of proxies whose X-Forwarded-For a server believes.",
    ),
    Setting(
        name="NOETL_UI",
        field="ui",
        kind=SWITCH,
        default=True,
        help="Whether a server shows its web pages: on or off.",
    ),
    Setting(
        name="NOETL_ENV_SECRETS",
        field="env_secrets",
        kind=NAMES,
        default=(),
        help="Variables that playbooks may read as secrets (keychain kind env), with commas.",
    ),
    Setting(
        name="NOETL_TASK_ENV",
        field="task_env",
        kind=NAMES,
        default=(),
        help="Variables that tasks may see (env_allow of shell, keychain kind env), with commas.",
    ),
    Setting(
        name="NOETL_SECRET_FILES",
        field="secret_files",
        kind=PATH,
        help="A directory; playbooks may read files below it as secrets (keychain kind file).",
    ),
    Setting(
        name="NOETL_PRIVATE_NETWORKS",
        field="private_networks",
        kind=PERMISSION,
        default="allow",
        help="Whether tasks may reach private addresses by http: allow or refuse.",
    ),
    Setting(
        name="NOETL_CONTAINERS",
        field="containers",
        kind=FILE,
        help="A JSON file: which images, namespaces, accounts and limits containers may have.",
    ),
    Setting(
        name="NOETL_FILES",
        field="files",
        kind=PATH,
        help="A directory; tasks read and write files below it only. Else anywhere.",
    ),
    Setting(
        name="NOETL_MAX_RESPONSE_BYTES",
        field="max_response_bytes",
        kind=COUNT,
        default=256 * 1024 * 1024,
        unit="bytes",
        help="Largest result that a task holds in memory: rows, an answer, an object.",
    ),
    Setting(
        name="NOETL_MAX_FILE_BYTES",
        field="max_file_bytes",
        kind=COUNT,
        default=10 * 1024**3,
        unit="bytes",
        help="Largest file that a task may keep as its result: a download, a table.",
    ),
    Setting(
        name="NOETL_STORE_URL",
        field="store_url",
        kind=STORE,
        help="The object store of tasks that name none: file:///…, s3://…, gs://…, az://….",
    ),
    Setting(
        name="NOETL_CACHE",
        field="cache",
        kind=PATH,
        default="~/.cache/noetl",
        help="A directory for what is worth keeping between runs: packages, local jobs.",
    ),
    Setting(
        name="NOETL_PYTHON_LIBS",
        field="python_libs",
        kind=LIBS,
        default="present",
        help="What `libs` of Python tasks may be: present, or install from the package index.",
    ),
    Setting(
        name="NOETL_SLOTS",
        field="slots",
        kind=COUNT,
        default=64,
        unit="commands",
        help="How many commands a worker runs at the same time.",
    ),
    Setting(
        name="NOETL_LABELS",
        field="labels",
        kind=LABELS,
        default="",
        help="What workers say of themselves: gpu=a100,zone=eu; steps may ask for it.",
    ),
    Setting(
        name="NOETL_PYTHON_PROCESSES",
        field="python_processes",
        kind=COUNT,
        unit="processes",
        help="Most processes for Python code of tasks. Else as many as slots and memory allow.",
    ),
    Setting(
        name="NOETL_TASK_MEMORY_BYTES",
        field="task_memory_bytes",
        kind=COUNT,
        unit="bytes",
        help="Most memory (address space) of one process of python, shell and mcp tasks.",
    ),
    Setting(
        name="NOETL_TASK_PROCESSES",
        field="task_processes",
        kind=COUNT,
        unit="processes",
        help="Most processes of the worker's user while such a task runs (RLIMIT_NPROC).",
    ),
    Setting(
        name="NOETL_TASK_FILE_BYTES",
        field="task_file_bytes",
        kind=COUNT,
        unit="bytes",
        help="Largest file that such a task may write.",
    ),
    Setting(
        name="NOETL_SANDBOX",
        field="sandbox",
        kind=SANDBOX,
        default="processes",
        help="What code and programs of tasks are kept in: processes, or namespaces of Linux.",
    ),
    Setting(
        name="NOETL_TASK_NETWORK",
        field="task_network",
        kind=PERMISSION,
        default="allow",
        help="Whether tasks in namespaces may ask for the network: allow or refuse.",
    ),
    Setting(
        name="NOETL_STRICT",
        field="strict",
        kind=SWITCH,
        default=False,
        help="Whether older forms of the language are refused: on or off.",
    ),
    Setting(
        name="NOETL_LOG",
        field="log",
        kind=LEVEL,
        default="info",
        help="How much servers and workers log: debug, info, warning, error.",
    ),
    Setting(
        name="NOETL_MAX_PAYLOAD_BYTES",
        field="max_payload_bytes",
        kind=COUNT,
        unit="bytes",
        help="Largest payload a playbook may allow itself.",
    ),
    Setting(
        name="NOETL_MAX_ATTEMPTS",
        field="max_attempts",
        kind=COUNT,
        unit="tries",
        help="Most tries of one call, whatever a playbook asks for.",
    ),
    Setting(
        name="NOETL_MAX_IN_FLIGHT",
        field="max_in_flight",
        kind=COUNT,
        unit="iterations",
        help="Most iterations of a parallel loop at one time.",
    ),
    Setting(
        name="NOETL_MAX_JUMPS",
        field="max_jumps",
        kind=COUNT,
        unit="jumps",
        help="Most jumps between the tasks of one step run.",
    ),
    Setting(
        name="NOETL_QUOTAS",
        field="quotas",
        kind=QUOTAS,
        help="What one execution may use: calls=1000,bytes=1000000,seconds=3600.",
    ),
    Setting(
        name="NOETL_MAX_DEPTH",
        field="max_depth",
        kind=COUNT,
        default=50,
        unit="executions",
        help="Most executions that call each other, one below the other.",
    ),
    Setting(
        name="NOETL_MAX_CHILDREN",
        field="max_children",
        kind=COUNT,
        default=1_000_000,
        unit="executions",
        help="Most executions that one execution may call.",
    ),
    Setting(
        name="NOETL_KEEP",
        field="keep",
        kind=KEEP,
        default="",
        help="How long ended executions are kept: 90d, shop/=30d, failed=180d; unset: for ever.",
    ),
    Setting(
        name="NOETL_ARCHIVE_URL",
        field="archive_url",
        kind=ARCHIVE,
        help="Where executions are recorded before they are forgotten: a folder, s3://bucket/….",
    ),
    Setting(
        name="NOETL_TIMEOUT",
        field="timeout",
        kind=SECONDS,
        unit="seconds",
        help="Longest time that one task or step may ask for.",
    ),
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The values in force. Defaults stand in TABLE and nowhere else."""

    database_url: str
    server_url: str | None
    nats_url: str | None
    token: str | None
    secret_key: str | None
    cors_origins: tuple[str, ...]
    trusted_proxies: tuple[str, ...]
    ui: bool
    env_secrets: tuple[str, ...]
    task_env: tuple[str, ...]
    secret_files: str | None
    private_networks: str
    containers: str | None
    files: str | None
    max_response_bytes: int
    max_file_bytes: int
    store_url: str | None
    cache: str
    python_libs: str
    slots: int
    labels: str
    python_processes: int | None
    task_memory_bytes: int | None
    task_processes: int | None
    task_file_bytes: int | None
    sandbox: str
    task_network: str
    strict: bool
    log: str
    max_payload_bytes: int | None
    max_attempts: int | None
    max_in_flight: int | None
    max_jumps: int | None
    quotas: str | None
    max_depth: int
    max_children: int
    keep: str
    archive_url: str | None
    timeout: float | None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read every setting; raises BadSetting for the first that will not do."""
        return cls(**{setting.field: setting.read(environment) for setting in TABLE})

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


def unknown_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """A sentence for each `NOETL_…` variable that no setting reads."""
    known = [setting.name for setting in TABLE]
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
