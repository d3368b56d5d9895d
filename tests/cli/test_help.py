"""The first thing people see: it teaches, and it is there at once."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from statistics import median

import click
import pytest

from noetl.cli.commands import COMMANDS, FIRST_EXAMPLE
from noetl.version import __version__
from tests.cli.conftest import COMMAND, clean_environment
from tests.faults.runs import Place

HELLO = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hello, path: tests/hello}
workflow: [{step: start, tool: {kind: noop}}]
"""
SLOW_PARTS = ("noetl.dsl", "noetl.wiring", "noetl.model", "jinja2", "yaml", "ruamel", "rich")


def test_help_names_every_command_and_shows_a_first_example(noetl):
    ran = noetl("--help")

    assert ran.code == 0
    assert ran.err == ""
    for name, summary in COMMANDS.items():
        assert f"  {name} " in ran.out
        assert summary in ran.out
    for line in FIRST_EXAMPLE.splitlines():
        assert line in ran.out


def test_the_first_example_is_a_valid_playbook(noetl):
    ran = noetl("validate", "--strict", "-", stdin=FIRST_EXAMPLE)

    assert ran.code == 0, ran.out


def leaves(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """The command and all below it, by the words that people type."""
    yield name, command
    if isinstance(command, click.Group):
        for word, one in command.commands.items():
            yield from leaves(one, f"{name} {word}")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(noetl, name):
    ran = noetl(name, "--help")

    assert ran.code == 0
    assert COMMANDS[name] in ran.out
    for words, command in leaves(import_module(f"noetl.cli.{name}").command, name):
        example = (command.help or "").partition("Example")[2]
        assert f"noetl {words}" in example, f"`noetl {words} --help` shows no example"


@pytest.mark.parametrize("name", COMMANDS)
def test_no_summary_is_cut_short(noetl, name):
    assert "..." not in noetl(name, "--help").out.partition("Commands:")[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_begins_with_its_summary(name):
    command = import_module(f"noetl.cli.{name}").command

    assert command.help.splitlines()[0] == COMMANDS[name]


def test_the_version_is_printed(noetl):
    assert noetl("--version") == (0, f"noetl {__version__}\n", "")


def test_without_a_command_the_help_goes_to_stderr_and_the_exit_code_is_2(noetl):
    ran = noetl()

    assert (ran.code, ran.out) == (2, "")
    assert "noetl validate hello.yaml" in ran.err


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    ("command", "code"),
    [("run hello.yaml", 0), ("validate -", 2), ("credential set mail password", 2)],
)
def test_a_stream_that_is_closed_leads_nowhere(tmp_path, command, code, closed):
    (tmp_path / "hello.yaml").write_text(FIRST_EXAMPLE)
    shell = f"{shlex.join(COMMAND)} {command} </dev/null {closed}"
    ran = subprocess.run(
        shell, shell=True, capture_output=True, text=True, cwd=tmp_path, env=clean_environment()
    )

    assert ran.returncode == code, ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("mkdir gone; cd gone; rmdir ../gone; noetl executions list", "is gone"),
        ("XDG_CONFIG_HOME=/proc noetl context add a http://b", "/proc/noetl: "),
        ("noetl executions list --db ''", "the database has no name"),
        ("ln -s a.db a.db; noetl executions list --db a.db", "a.db does not exist"),
        ("ln -s a.db a.db; echo 1 | noetl credential set x a --db a.db", "symbolic links"),
    ],
)
def test_what_the_machine_refuses_is_said_in_a_sentence(tmp_path, command, said):
    shell = command.replace("noetl ", f"{shlex.join(COMMAND)} ", 1)
    ran = subprocess.run(
        shell, shell=True, capture_output=True, text=True, cwd=tmp_path, env=clean_environment()
    )

    assert ran.returncode in (1, 2)
    [line] = ran.stderr.splitlines()
    assert said in line


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_load_nothing_that_is_slow(option):
    code = (
        "import sys; from noetl.cli import main\n"
        f"sys.argv = ['noetl', {option!r}]\n"
        "try: main()\n"
        "finally: print(*sys.modules, file=sys.stderr)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = ran.stderr.split()

    assert "noetl.cli.commands" in loaded
    assert [name for name in loaded if name.startswith(SLOW_PARTS)] == []


@pytest.mark.parametrize(
    ("command", "unneeded"),
    [
        ("executions list", ("noetl.dsl", "noetl.templates", "noetl.control.executions", "jinja2")),
        ("catalog list", ("noetl.dsl", "noetl.templates", "jinja2", "yaml")),
        ("executions show last", ("noetl.dsl", "noetl.control.catalog", "yaml")),
        ("schedules list", ("noetl.dsl", "noetl.control.consumers", "yaml")),
        (
            "run hello.yaml",
            ("cryptography", "noetl.control.forks", "aiohttp"),
        ),
    ],
)
def test_a_command_loads_only_what_it_needs(tmp_path, command, unneeded):
    place = Place(tmp_path)
    place.write("hello.yaml", HELLO)
    assert place.run("run", "hello.yaml").returncode == 0
    code = (
        "import sys; from noetl.cli import main\n"
        f"sys.argv = ['noetl', *{command.split()!r}]\n"
        "try: main()\n"
        "finally: print(*sys.modules, file=sys.stderr)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=clean_environment(),
    )
    loaded = ran.stderr.splitlines()[-1].split()

    assert "noetl.store.sqlite" in loaded
    assert [name for name in loaded if name.startswith(unneeded)] == []


def test_help_takes_little_longer_than_starting_python():
    bare, helping = [], []
    for _ in range(5):
        bare.append(_seconds(sys.executable, "-c", "pass"))
        helping.append(_seconds(*COMMAND, "--help"))

    # Measured: about 6 times. Loading the language makes it more than 20.
    assert median(helping) < 15 * median(bare)


def _seconds(*command: str) -> float:
    """Processor time, so that a busy machine changes nothing."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=clean_environment())
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = status
    assert status == 0
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["vaildate", "x.yaml"], 'there is no command "vaildate". Did you mean "validate"?'),
        (["logs", "last"], 'no command "logs". Did you mean `noetl executions logs`?'),
        (["backfill"], 'no command "backfill". Did you mean `noetl schedules backfill`?'),
        (["resume"], "Did you mean `noetl executions resume` or `noetl schedules resume` or"),
        (["deploy", "x.yaml"], 'no command "deploy". Did you mean `noetl register`?'),
        (["--versoin"], "No such option '--versoin'"),
        (
            ["walk", "x.yaml"],
            "The commands are: run, executions, signal, register, catalog, cre",
        ),
        (["executions", "lst"], "No such command 'lst'"),
        (["executions", "show"], "Missing argument 'ID'"),
        (["executions", "list", "--status", "DONE"], "'DONE' is not one of"),
        (["credential", "set"], "Missing argument 'NAME'"),
        (["register"], "Missing argument 'FILE_OR_DIR...'"),
        (["validate"], "Missing argument 'FILE...'"),
        (["validate", "--jsno", "x.yaml"], "No such option '--jsno'"),
        (["validate", "--json=yes", "x.yaml"], "does not take a value"),
        (["plan"], "Missing argument 'FILE'"),
        (["plan", "a.yaml", "b.yaml"], "unexpected extra argument"),
        (["plan", "--dot", "--json", "a.yaml"], "choose one of --dot, --mermaid and --json"),
        (["fmt"], "Missing argument 'FILE...'"),
        (["fmt", "--chek", "a.yaml"], "No such option '--chek'"),
        (["fmt", "--diff=all", "a.yaml"], "does not take a value"),
        (["migrate"], "Missing argument 'FILE...'"),
        (["migrate", "--write", "--check", "a.yaml"], "choose one of --write and --check"),
        (["migrate", "a.yaml", "b.yaml"], "there are 2 files, and standard output takes one"),
        (["schema", "x"], "unexpected extra argument"),
        (["schema", "--json"], "No such option '--json'"),
        (["schema", "--", "-"], "unexpected extra argument"),
        (["settings", "NOETL_LOG"], "unexpected extra argument"),
        (["settings", "--jsno"], "No such option '--jsno'"),
        (["settings", "--json=1"], "does not take a value"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_exits_with_2_says_why_and_prints_no_data(noetl, arguments, message):
    ran = noetl(*arguments)

    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert "Traceback" not in ran.err
