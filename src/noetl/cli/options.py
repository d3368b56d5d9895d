"""Options that several commands share, and what people mean by them: which server or database,
which labels, which values for a workload.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from noetl import configured
from noetl.cli.output import as_text, one_line, say
from noetl.errors import BadSetting, NoetlError
from noetl.model import labels
from noetl.model.secrets import without_values
from noetl.settings import HTTP, Settings, database_url, unknown_variables

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from noetl.errors import BadInputs
    from noetl.model.net import FormField
    from noetl.settings import Settings

Option = Callable[[Callable[..., Any]], Callable[..., Any]]
DEFAULT_SERVER = "http://127.0.0.1:8082"
COMPLETION_SECONDS = 2.0
"""How long a server may take to complete an id; a person is waiting at the terminal."""
COMPLETIONS_SHOWN = 50
SECRET_MAX = 1024 * 1024
TYPED = frozenset({"text", "choice", "date", "datetime", "secret", "file"})
"""Types of inputs whose values are the text that people type."""


def executions_beginning_with(
    context: click.Context, parameter: click.Parameter, beginning: str
) -> list[CompletionItem]:
    """The newest executions, each with its playbook and status; and the word `last`.

    Shells call this at every press of the tab key, so it is quick and quiet: if executions cannot
    be looked up, none are offered, and the command itself reports why when it runs.
    """
    from click.shell_completion import CompletionItem

    async def newest() -> list[tuple[str, str]]:
        from noetl.api.routes.executions import LIST, Which
        from noetl.cli.calls import looking

        settings = settings_for(context.params.get("db"), context.params.get("server"))
        async with asyncio.timeout(COMPLETION_SECONDS), looking(settings) as api:
            page = await api.call(LIST, query=Which(limit=COMPLETIONS_SHOWN))
        return [(row.execution_id, f"{row.path} {row.status.lower()}") for row in page.executions]

    found = [("last", "the newest one")]
    try:
        found += asyncio.run(newest())
    except (NoetlError, OSError, TimeoutError):
        found = found[:1]
    return [CompletionItem(name, help=said) for name, said in found if name.startswith(beginning)]


db_option = click.option(
    "--db", metavar="URL", help="The database: a file or postgresql://… Default .noetl/noetl.db."
)
server_option = click.option(
    "--server", metavar="URL", help="The server to use. Default NOETL_SERVER_URL, or the context."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def pairs_option(name: str, form: str, help_text: str) -> Option:
    """An option that may be repeated, `--set KEY=VALUE`; the command takes `sets`."""
    return click.option(f"--{name}", f"{name}s", multiple=True, metavar=form, help=help_text)


set_option = pairs_option(
    "set",
    "KEY=VALUE",
    "A value for the workload, in YAML, e.g. --set days=3 or --set shop.url=http://…",
)
payload_option = click.option(
    "--payload", metavar="JSON", help="The workload as JSON, or @FILE with JSON in it."
)
label_option = pairs_option(
    "label", "NAME=VALUE", "A label of the execution, e.g. --label team=sales."
)
execution_argument = click.argument(
    "execution_id", metavar="ID", shell_complete=executions_beginning_with
)
"""An execution as people name it; commands on the API get its whole id."""


# --- Which server or database ------------------------------------------------------------------


def current_settings() -> Settings:
    """The current settings; warns about variables that look like settings and are none."""
    for remark in unknown_variables(os.environ):
        say(f"warning: {remark}")
    return Settings.from_environment(os.environ)


def settings_for(db: str | None, server: str | None = None) -> Settings:
    """The current settings, with `--db` and `--server` over the environment.

    They name a server if the command acts on one, otherwise a database.
    """
    if db is not None and server is not None:
        raise click.UsageError("--db is a database, --server a server: give only one of them.")
    settings = _with_server(current_settings(), server=server, db=db)
    return settings if settings.server_url is not None else _on_database(settings, db)


def local_settings(db: str | None) -> Settings:
    """The current settings, for a command that always works on a database."""
    return _on_database(msgspec.structs.replace(current_settings(), server_url=None), db)


def settings_for_server(server: str | None) -> Settings:
    """The current settings, for a command that needs a server; by default one on this machine."""
    settings = _with_server(current_settings(), server=server, db=None)
    if settings.server_url is None:
        settings = msgspec.structs.replace(settings, server_url=DEFAULT_SERVER)
    return settings


def _with_server(settings: Settings, *, server: str | None, db: str | None) -> Settings:
    """The same settings with the server to talk to, or with none for a database.

    Precedence: an option, then the environment, then `noetl context use`.
    """
    if server is not None:
        try:
            url = HTTP.parse(server)
        except ValueError:
            raise BadSetting(f'--server is {HTTP.expected}, not "{server}".') from None
        known = {one.url: one.token for one in contexts().servers.values()}
        return msgspec.structs.replace(
            settings, server_url=url, token=settings.token or known.get(url)
        )
    if db is not None:
        return msgspec.structs.replace(settings, server_url=None)
    if settings.server_url is not None or os.environ.get("NOETL_DATABASE_URL", "").strip():
        return settings
    chosen = contexts().chosen
    if chosen is None:
        return settings
    return msgspec.structs.replace(
        settings, server_url=chosen.url, token=settings.token or chosen.token
    )


def _on_database(settings: Settings, db: str | None) -> Settings:
    if db is not None:
        settings = msgspec.structs.replace(settings, database_url=database_url(db))
    return settings


class NamedServer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The address of a server, and the token for it."""

    url: str
    token: str | None = None

    __repr__ = without_values


class Contexts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The servers that have names (`noetl context`), and the one in use.

    They are stored, with addresses and tokens, in a file that only the user can read.
    """

    current: str | None = None
    servers: dict[str, NamedServer] = {}

    @property
    def chosen(self) -> NamedServer | None:
        return self.servers.get(self.current) if self.current is not None else None

    def save(self) -> None:
        """Write the file atomically."""
        import tempfile

        path = _contexts_file()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        with open(handle, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(self), indent=2))
        os.replace(temporary, path)


def contexts() -> Contexts:
    """The content of the file; empty if there is none."""
    try:
        return msgspec.json.decode(_contexts_file().read_bytes(), type=Contexts)
    except (FileNotFoundError, NotADirectoryError, RuntimeError):
        return Contexts()  # none were added, or there is no home directory
    except (OSError, msgspec.MsgspecError) as error:
        raise BadSetting(
            f"{_contexts_file()} cannot be read: {error}. Correct or remove it."
        ) from None


def _contexts_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME", "").strip()
    return (Path(base) if base else Path.home() / ".config") / "noetl" / "contexts.json"


# --- Values ------------------------------------------------------------------------------------


def _pairs(written: tuple[str, ...], form: str, example: str) -> Iterator[tuple[str, str]]:
    """Name and text of each `NAME=TEXT`."""
    for item in written:
        name, equals, text = item.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f'"{item}" is not {form}, e.g. {example}.')
        yield name.strip(), text


def labels_of(written: tuple[str, ...]) -> dict[str, str]:
    """The labels of `--label NAME=VALUE`."""
    found = dict(_pairs(written, "NAME=VALUE", "--label team=sales"))
    if wrong := labels.problems(found):
        raise click.BadParameter(" ".join(wrong))
    return found


def values_of(sets: tuple[str, ...]) -> list[tuple[str, Any]]:
    """The dotted path and value of each `--set KEY=VALUE`."""
    found = []
    for key, text in _pairs(sets, "KEY=VALUE", "--set days=3"):
        if not all(key.split(".")):
            raise click.BadParameter(f'"{key}" has an empty name; a path is like shop.url.')
        try:
            found.append((key, configured.plain_value(text)))
        except ValueError as error:
            raise click.BadParameter(f'the value of "{key}={text}" is not YAML: {error}') from None
    return found


def workload(sets: tuple[str, ...], payload: str | None) -> dict[str, Any]:
    """The values to merge over the playbook's own workload; `--set` wins over `--payload`."""
    found = json_text(payload, "--payload") if payload is not None else {}
    if not isinstance(found, dict):
        raise click.BadParameter('--payload is a JSON object, e.g. {"days": 3}.')
    for path, value in values_of(sets):
        *parents, last = path.split(".")
        inner = found
        for key in parents:
            below = inner.get(key)
            inner[key] = dict(below) if isinstance(below, dict) else {}
            inner = inner[key]
        inner[last] = value
    return found


def field_values(form: tuple[FormField, ...], written: tuple[str, ...]) -> dict[str, Any]:
    """`FIELD=VALUE`, converted by the type of the field; JSON for json."""
    types = {field.name: field.type for field in form}
    return {
        name: json_text(text, f"the value of {name}") if types.get(name) == "json" else text
        for name, text in _pairs(written, "FIELD=VALUE", "approved=yes")
    }


def json_text(text: str, what: str) -> Any:
    """A JSON value as people type it, or @FILE with JSON in it."""
    if text.startswith("@"):
        try:
            is_stdin = text == "@-"
            text = sys.stdin.read() if is_stdin else Path(text[1:]).read_text(encoding="utf-8")
        except OSError as error:
            raise click.BadParameter(f"{what} {text}: {error.strerror or error}.") from None
        except UnicodeError:
            raise click.BadParameter(f"{what} {text}: it is not text in UTF-8.") from None
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"{what} is not JSON: {error}") from None


# --- Questions ---------------------------------------------------------------------------------


def answered(question: Callable[..., Any], text: str, **more: Any) -> Any:
    """The answer to a question of click. Ctrl-C ends the command: the event loop would only note
    it, and the question would go on waiting.

    Python notices a signal between two instructions, or when it interrupts a system call. One that
    comes just before the call that waits for the answer would be noticed after the answer only, so
    an alarm interrupts the wait five times a second.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    alarm = signal.signal(signal.SIGALRM, lambda *about: None)
    loop = signal.set_wakeup_fd(-1)  # the event loop reads nothing meanwhile
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
    try:
        return question(text, err=True, **more)
    except click.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.set_wakeup_fd(loop)
        signal.signal(signal.SIGALRM, alarm)
        signal.signal(signal.SIGINT, before)


def with_inputs(
    given: dict[str, Any], sets: tuple[str, ...], inputs: tuple[FormField, ...], own: dict[str, Any]
) -> dict[str, Any]:
    """The given workload, ready for a playbook with these inputs and this workload of its own.

    `--set` values of typed inputs are taken as they were typed: a text input keeps `1.10` and
    `true` as text. If there is a terminal, it asks for missing inputs.
    """
    from noetl.model.fields import missing

    as_typed = {one.name for one in inputs if one.type in TYPED}
    texts = {key.strip(): text for key, _, text in (item.partition("=") for item in sets)}
    given = {**given, **{key: text for key, text in texts.items() if key in as_typed}}
    wanted = missing(inputs, {**own, **given})
    if not wanted or not sys.stdin.isatty():
        return given
    say("this playbook needs:")
    return {**given, **{one.name: ask(one) for one in wanted}}


def ask(question: FormField) -> Any:
    """Ask a question until the answer fits."""
    from noetl.model.fields import Unfit, fitted, wanted

    if question.help:
        click.echo(f"  {one_line(question.help)}", err=True)
    label = one_line(question.label or question.name)
    default = "" if question.default is None else as_text(question.default)
    while True:
        text = answered(
            click.prompt,
            f"  {label} ({one_line(wanted(question))})",
            default=default,
            show_default=question.default is not None,
        )
        try:
            is_json = question.type == "json" and text
            return fitted(question, msgspec.json.decode(text) if is_json else text)
        except (Unfit, msgspec.DecodeError) as error:
            click.echo(f"  it {one_line(str(error))}", err=True)


def say_bad_inputs(error: BadInputs) -> None:
    """Print every missing or unsuitable input, one per line."""
    say("nothing was started:")
    for problem in error.problems or (str(error),):
        click.echo(f"  {one_line(problem)}", err=True)


def ask_secret(
    label: str, missing: str, *, confirm: bool = False, may_be_empty: bool = False
) -> str:
    """A secret that is not shown while it is typed; without a terminal, the next line of stdin."""
    if sys.stdin.isatty():
        return str(answered(click.prompt, label, hide_input=True, confirmation_prompt=confirm))
    line = sys.stdin.readline(SECRET_MAX)
    secret = line.rstrip("\r\n")
    if not (line if may_be_empty else secret):
        raise click.BadParameter(missing)
    return secret
