"""The list of commands, each loaded only when it is called.

`noetl --help` must answer at once, so this module knows a command's name and summary and
imports nothing else. Command `x` is `command` in the module `x` beside this one.
"""

from __future__ import annotations

from importlib import import_module

import click

from noetl.version import __version__

GROUPS: dict[str, dict[str, str]] = {
    "Run": {
        "run": "Run a playbook to its end, in this process or on a server.",
        "executions": "Look at executions, and act on them.",
        "signal": "Send an event to an execution that waits for it.",
        "register": "Keep documents and credentials, to be used by their names.",
        "catalog": "Look at the playbooks that are registered.",
        "credential": "Keep the secrets that playbooks use.",
        "schedules": "Look at what is started when, and change it.",
        "hooks": "Look at what others may call, and end it.",
        "consumers": "Look at what messages start executions, and change it.",
        "notifications": "Look at what is told of executions, and change it.",
    },
    "Serve": {
        "dev": "Run a server with a worker and the web UI, in this process.",
        "server": "Run a server that workers and commands talk to.",
        "worker": "Run a worker that takes commands from a server.",
        "execute": "Start a playbook on a server.",
        "context": "Name servers, and choose the one that commands talk to.",
        "access": "Say who may use a server: users and tokens.",
        "keys": "Keep the key that credentials are encrypted with.",
        "db": "Upgrade or check the database that executions are kept in.",
    },
    "Check and understand": {
        "validate": "Report every problem of playbooks, with line and column.",
        "plan": "Draw what a playbook would run, without running it.",
        "ui": "Look at a recorded execution, offline.",
        "test": "Test playbooks, with stand-ins for tools and time that jumps.",
    },
    "Keep playbooks tidy": {
        "fmt": "Format playbooks the canonical way, comments kept.",
        "migrate": "Rewrite older dialects to the canonical one.",
    },
    "Set up": {
        "lsp": "Help editors with playbooks: a language server.",
        "schema": "Print the JSON Schema of the language, for editors.",
        "settings": "Print every setting with its value, default and meaning.",
        "tools": "List the tool kinds, show one, or begin one of your own.",
        "completion": "Print what a shell needs to complete noetl commands.",
        "bench": "Measure how fast executions run on this machine.",
    },
}
COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}

FIRST_EXAMPLE = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hello, path: examples/hello}
workflow:
  - step: start
    tool: {kind: python, code: "result = 'hello'"}
    next: shout
  - step: shout
    tool: {kind: python, args: {word: "{{ start }}"}, code: "result = word.upper() + '!'"}
"""


class Commands(click.Group):
    """A group that imports a command when it is asked for, and teaches when it is not."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"noetl.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            from noetl.model.spelling import did_you_mean

            ctx.fail(
                f'there is no command "{args[0]}".{did_you_mean(args[0], COMMANDS)}'
                f" The commands are: {', '.join(COMMANDS)}."
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            from noetl.cli.exits import INTERRUPTED

            click.echo(err=True)  # what follows does not begin behind the ^C of the terminal
            ctx.exit(INTERRUPTED)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        formatter.write_text("NoETL: durable workflows from YAML playbooks.")
        with formatter.section("A first playbook, hello.yaml"):
            for line in FIRST_EXAMPLE.splitlines():
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")
        with formatter.section("Try"):
            formatter.write_dl(
                [
                    ("noetl validate hello.yaml", "is it right?"),
                    ("noetl plan hello.yaml", "what would it do?"),
                    ("noetl run hello.yaml", "do it"),
                    ("noetl COMMAND --help", "everything about one command"),
                ]
            )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="noetl", message="%(prog)s %(version)s")
def noetl() -> None:
    """NoETL: durable workflows from YAML playbooks."""
