"""The parts of every tool kind, and config types that several kinds share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from noetl.model.older_forms import Written
from noetl.model.outcome import ErrorKind, Outcome
from noetl.model.secrets import without_values
from noetl.model.toolshape import ToolShape

if TYPE_CHECKING:
    from noetl.tools.credentials import SharedTokens
    from noetl.tools.files.results import Files
    from noetl.tools.resources import ToolResources

# --- A tool and its call -----------------------------------------------------------------------

Run = Callable[[Any, "ToolContext"], Awaitable[Outcome]]


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of one task, as its tool sees it."""

    execution_id: str
    playbook: str = ""
    """The playbook and its version: data kept for one is not shown to another."""
    step: str
    task: str
    action_id: str
    """The same for every attempt of one call: the key that makes repeats harmless."""
    attempt: int = 1
    iteration: int | None = None
    inputs: dict[str, Any] = {}
    """The task's `args`, rendered."""
    look_around: Callable[[], dict[str, Any]] = dict
    """Builds `context`; few tools need it."""
    timeout: Any = None
    """`spec.timeout`: seconds, or `{connect, read, total}`."""
    spec: dict[str, Any] = {}
    """Runtime settings, all layers merged."""
    credential: Callable[[str | Mapping[str, Any]], Awaitable[dict[str, Any]]]
    """The fields of the keychain entry or credential of that name, or of an entry written inline.

    Raises NotFound for an unknown name.
    """
    log: Callable[[str], None]
    """Records what the task prints, e.g. a `TaskLog`."""
    resources: ToolResources
    """What calls share: sessions, connections, processes, the operator's rules."""
    read_result: Callable[[Any], Awaitable[Any]]
    """The value behind a result reference; any other data as it is."""
    open_files: Callable[[], Files]
    """Opens `files`; few tools need them."""
    is_masked: Callable[[str], bool] = lambda text: False
    """Whether records mask this text or a part of it, because it holds a secret of the call."""
    open_tokens: Callable[[], SharedTokens] | None = None
    """Opens `shared_tokens`; None: every worker keeps its own."""
    traceparent: str = ""
    """The W3C header by which a called service joins the trace; empty if it is not traced."""

    @property
    def context(self) -> dict[str, Any]:
        """Workload, ctx, vars and ids, for code that inspects the execution."""
        return self.look_around()

    @property
    def files(self) -> Files:
        """Files among the results, and a directory for this attempt."""
        return self.open_files()

    @property
    def shared_tokens(self) -> SharedTokens | None:
        """Access tokens that other workers fetched."""
        return self.open_tokens() if self.open_tokens is not None else None


class Tool(ToolShape, frozen=True, kw_only=True):
    """A tool kind: its config, and how to run it.

    `run` raises `failures.Failed` for failures it expects, or returns the outcome of one, and lets
    other exceptions propagate. When it is cancelled it stops within a second and leaves nothing
    running. What it returns and logs contains no secret.
    """

    run: Run | None = None
    """None: this version only knows the config of the kind, or the worker runs it itself."""
    errors: tuple[ErrorKind, ...] = ()
    """Every error kind that `run` ends with, except `exception` for what it did not foresee."""
    has_effect: bool = True
    """Whether a call may change anything; a call without effect may be repeated without a
    record.
    """
    is_harmless: bool = False
    """It reaches nothing outside, so a test may run it as it is."""
    is_client: bool = False
    """A call is a request to a server that may be traced, too; its span says so."""
    runs_code: bool = False
    """It runs the author's code, which also sees the args of its step and whole results."""
    secret_result: bool = False
    """Its result is a secret: later tasks can use it; records and logs show a mask."""
    extra: str = ""
    """The extra of this package with its libraries: `pip install "noetl[extra]"`."""
    example: str = ""
    """A step that uses it, in YAML, for `noetl tools show` and the docs."""


def run_of(module: str, *given: Any, extra: str = "", libraries: tuple[str, ...] = ()) -> Run:
    """Calls the function `run` of that module, after what is `given` here with config and context.

    The module is imported by the first call: checking a task needs its config, and only running it
    needs the libraries. `extra` brings those that a worker may lack.
    """
    found: Callable[..., Awaitable[Outcome]] | None = None

    async def run(config: Any, context: ToolContext) -> Outcome:
        nonlocal found
        if found is None:
            from noetl.tools.failures import need

            need(extra, *libraries)
            found = import_module(module).run
        return await found(*given, config, context)

    return run


class TaskLog:
    """The last output of a task; older output is dropped."""

    def __init__(self, limit: int = 64 * 1024) -> None:
        self.limit = limit
        self._parts: list[str] = []
        self._length = 0
        self._dropped = False

    def __call__(self, text: str) -> None:
        self._parts.append(text)
        self._length += len(text)
        if self._length > 2 * self.limit:
            self._shorten()

    def text(self) -> str:
        """The kept output: at most `limit` characters, after a mark if more was printed."""
        if self._length > self.limit:
            self._shorten()
        kept = "".join(self._parts)
        return f"[… earlier output dropped]\n{kept}" if self._dropped else kept

    def _shorten(self) -> None:
        kept = "".join(self._parts)[-self.limit :]
        self._parts = [kept]
        self._length = len(kept)
        self._dropped = True


# --- Configs -----------------------------------------------------------------------------------


def about(help_text: str) -> msgspec.Meta:
    """The one-line help of a config field, for editors and the docs."""
    return msgspec.Meta(description=help_text)


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the structured values inside a config."""

    __repr__ = without_values


class ToolConfig(Options, frozen=True, kw_only=True):
    """Base of every tool's config: what a playbook writes beside `kind`, after rendering."""


# --- Values that several kinds take ------------------------------------------------------------

Name = Annotated[str, msgspec.Meta(min_length=1)]
Count = Annotated[int, msgspec.Meta(ge=1)]
ExitCode = Annotated[int, msgspec.Meta(ge=0, le=255)]
Size = Annotated[str, msgspec.Meta(pattern=r"^\d+(\.\d+)? ?([KMGT]i?)?B$", examples=["512MB"])]
Duration = (
    Annotated[float, msgspec.Meta(ge=0)]
    | Annotated[str, msgspec.Meta(pattern=r"^\d+(\.\d+)?(ms|s|m|h|d)$", examples=["30s"])]
)
"""Seconds as a number, or a number with its unit."""

Credential = Annotated[
    str | dict[str, Any],
    about("Name of a keychain entry or credential, or its fields written out."),
]
Reference = dict[str, Any]
"""A stored result as events show it: `{"_ref": {store, key, …}}`."""


class Timeouts(Options, frozen=True, kw_only=True):
    """How long to wait for each part of a call."""

    connect: Annotated[Duration | None, about("How long to wait for the connection.")] = None
    read: Annotated[Duration | None, about("How long to wait for data.")] = None
    total: Annotated[Duration | None, about("How long the whole call may take.")] = None


# --- Program text ------------------------------------------------------------------------------

OLDER_SCRIPT: dict[str, Any] = {
    "type": "object",
    "properties": {"uri": {"type": "string"}, "source": {"type": "object"}},
    "additionalProperties": False,
    "description": "Older form: write the address.",
}
_ADDRESSES = {
    "file": ("file",),
    "http": ("http", "https"),
    "https": ("http", "https"),
    "gcs": ("gs", "gcs"),
    "s3": ("s3",),
}


def older_script(task: Written, inline: str, auth: str = "auth") -> None:
    """Older form: `script: {uri, source: {type, auth, …}}`.

    `inline` is the field for the program text, `auth` the field for the credential that reads it.
    """
    script = task.below("script", "`script`")
    if script is None:
        return
    source = script.below("source", "`source`")
    kind = source.text("type") if source is not None else None
    if source is not None and kind == "inline":
        if not source.has("code"):
            told = "`source` of an inline script needs `code`: the text of the program."
            task.refuse("script", "missing-key", told)
            return
        source.move("code", task, inline, f"write `{inline}`")
        task.discard("script")
        return
    uri = script.text("uri")
    if uri is None:
        task.refuse("script", "missing-key", "`script` needs `uri`: where the text is.")
        return
    scheme = uri.partition("://")[0] if "://" in uri else "file"
    if "{{" not in uri and kind is not None and scheme not in _ADDRESSES.get(kind, ()):
        told = f'`type` of a script\'s source is "{kind}", which does not fit "{uri[:60]}".'
        task.refuse("script", "bad-value", told)
        return
    if source is not None:
        for key in ("region", "endpoint"):
            if source.has(key):
                source.ignore(key, "the credential says where its store is")
        if source.has("auth"):
            source.move("auth", task, auth, f"write `{auth}` on the task itself")
    task.put("script", uri.removeprefix("file://"), "write the address: `script: …`")
