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
        "executions": "List, inspect, cancel, resume and rerun executions.",
        "signal": "Send an event to a waiting execution.",
        "register": "Register playbooks, triggers and credentials by name.",
        "catalog": "List registered playbooks, and print their text.",
        "credential": "Store the secrets that playbooks use.",
    },
    "Automate": {
        "schedules": "Playbooks started at given times: list, pause, backfill.",
        "hooks": "Playbooks started by HTTP calls: list, show, delete.",
        "consumers": "Playbooks started by messages, rows and files: list, pause.",
        "notifications": "Playbooks started when others fail or wait: list, pause.",
    },
    "Serve": {
        "dev": "Run a server, a worker and the web UI in one process.",
        "server": "Start and stop a server.",
        "worker": "Start and stop a worker, which runs tasks for a server.",
        "execute": "Start a registered playbook on a server.",
        "context": "Name servers, and choose the one that commands talk to.",
        "access": "Manage users and API tokens of a server, and read its audit log.",
        "keys": "Rotate the key that encrypts credentials.",
        "db": "Upgrade or check the database.",
    },
    "Check and understand": {
        "validate": "Report every problem of playbooks, with line and column.",
        "plan": "Draw what a playbook would run, without running it.",
        "ui": "Show a recorded execution in the web UI, without a server.",
        "test": "Run tests of playbooks, with stand-ins for tools and virtual time.",
    },
    "Keep playbooks tidy": {
        "fmt": "Format playbooks; comments are kept.",
        "migrate": "Rewrite older dialects of playbooks to the current one.",
    },
    "Set up": {
        "lsp": "Run the language server, for editors.",
        "mcp": "Run the server of the Model Context Protocol, for assistants.",
        "schema": "Print the JSON Schema of playbooks, for editors.",
        "settings": "Print every setting with its value, default and meaning.",
        "tools": "List the tool kinds, show one, or create one of your own.",
        "completion": "Print the completion script for a shell.",
        "bench": "Measure how fast executions run on this machine.",
    },
}
COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}

ELSEWHERE = {
    **dict.fromkeys(("start", "trigger", "submit"), "execute"),
    **dict.fromkeys(("deploy", "apply", "publish"), "register"),
    **dict.fromkeys(("secret", "secrets", "connections", "variables"), "credential"),
    **dict.fromkeys(("lint", "compile"), "validate"),
    **dict.fromkeys(("ls", "ps", "runs", "jobs"), "executions list"),
    **dict.fromkeys(("describe", "get"), "executions show"),
    **dict.fromkeys(("standalone", "webserver", "up"), "dev"),
}
"""What other tools call a command, and ours that does the same."""

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
    """A group that imports a command only when it is called, and shows an example in its help."""

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
            meant = self._meant(ctx, args[0])
            more = (
                "`noetl --help` lists all."
                if meant
                else f"The commands are: {', '.join(COMMANDS)}."
            )
            ctx.fail(f'there is no command "{args[0]}".{meant} {more}')
        return super().resolve_command(ctx, args)

    def _meant(self, ctx: click.Context, word: str) -> str:
        """Which command is meant by a word: in other tools, below another command, or misspelt."""
        from noetl.model.spelling import did_you_mean

        groups = ((name, self.get_command(ctx, name)) for name in COMMANDS)
        below = [
            f"`noetl {name} {word}`"
            for name, group in groups
            if isinstance(group, click.Group) and word in group.commands
        ]
        if word in ELSEWHERE:
            below = [f"`noetl {ELSEWHERE[word]}`"]
        return f" Did you mean {' or '.join(below[:3])}?" if below else did_you_mean(word, COMMANDS)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            from noetl.cli import INTERRUPTED

            click.echo(err=True)  # start a new line after the terminal's ^C
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
                    ("noetl validate hello.yaml", "check it"),
                    ("noetl plan hello.yaml", "show what it would do"),
                    ("noetl run hello.yaml", "run it"),
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
