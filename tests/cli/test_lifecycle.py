"""Servers and workers in the background: started, looked at and stopped from one directory."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import noetl
from tests.cli.conftest import COMMAND as PROGRAM
from tests.cli.conftest import clean_environment
from tests.faults.runs import Place, wait_for
from tests.stopwatch import PATIENCE

HELLO = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hello, path: tried/hello}
workflow: [{step: start, tool: {kind: noop, result: hi}}]
"""


class Yard(Place):
    """A directory from which things are started in the background."""

    def noetl(self, *arguments: str, code: int = 0) -> str:
        """What a command says on both its outputs."""
        ran = self.run(*arguments, XDG_CONFIG_HOME=str(self.folder / "config"))
        assert ran.returncode == code, ran.stderr
        return ran.stdout + ran.stderr

    def pids(self) -> list[int]:
        return [int(path.read_text()) for path in (self.folder / ".noetl").glob("*.pid")]


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path)
    yield yard
    for pid in yard.pids():
        os.kill(pid, signal.SIGKILL)


def test_a_server_and_a_worker_run_in_the_background_until_they_are_stopped(yard: Yard):
    yard.write("hello.yaml", HELLO)
    said = yard.noetl("server", "start", "--detach", "--port", "0")
    [url] = re.findall(r"http://\S+", said)
    yard.noetl("worker", "start", "--detach", "--pool", "default", "--server", url)
    again = yard.noetl("server", "start", "--detach", "--port", "0", code=1)
    yard.noetl("register", "hello.yaml", "--server", url)
    ran = yard.noetl("execute", "tried/hello", "--wait", "--server", url)

    assert "is already running" in again
    assert "`noetl server stop` stops it" in again
    assert ran.startswith("hi\n")
    assert [(one["name"], one["ready"]) for one in _running(yard, "server")] == [("server", url)]
    assert url in yard.noetl("server", "status")
    workers = [(one["name"], one["sandbox"]) for one in _running(yard, "worker")]
    assert workers == [("worker-default", "processes")]
    assert "sandbox: processes" in yard.noetl("worker", "status")
    assert "has ended" in yard.noetl("worker", "stop")
    assert "has ended" in yard.noetl("server", "stop")
    assert _running(yard, "server", code=1) == _running(yard, "worker", code=1) == []
    assert "no server was started in the background from this directory" in yard.noetl(
        "server", "stop"
    )
    assert yard.pids() == []


def _running(yard: Yard, kind: str, code: int = 0) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(yard.noetl(kind, "status", "--json", code=code))[
        "running"
    ]
    return found


def test_what_cannot_start_says_why_and_leaves_nothing(yard: Yard):
    before = yard.noetl("server", "start", "--detach", "--host", "192.0.2.1", code=1)
    wrong = yard.noetl("server", "start", "--detach", "--db", "postgresql://127.0.0.1:1/x", code=1)

    assert "did not start" in before
    assert "no users are configured" in before
    assert "did not start" in wrong
    assert "no users are configured" not in wrong
    assert yard.pids() == []


def test_a_server_that_cannot_listen_says_why_and_what_to_do(yard: Yard):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = yard.noetl("server", "start", "--port", port, code=2)

    assert f"cannot listen on 127.0.0.1:{port}: the port is in use. Another server" in said
    assert "--port chooses another" in said


def test_whoever_follows_what_no_worker_takes_is_told(yard: Yard):
    yard.write("hello.yaml", HELLO)
    [url] = re.findall(r"http://\S+", yard.noetl("server", "start", "--detach", "--port", "0"))
    yard.noetl("register", "hello.yaml", "--server", url)

    following = yard.start("execute", "tried/hello", "--wait", "--server", url)
    said = wait_for(following, "waits for a worker")
    why = yard.noetl("executions", "why", "last", "--server", url)
    yard.noetl("worker", "start", "--detach", "--server", url)
    result, _ = following.communicate(timeout=PATIENCE)

    assert 'step "start" waits for a worker: none of pool default is there.' in said
    assert f"`noetl worker start --server {url} --pool default` starts one" in said
    assert "none of pool default is there. `noetl worker start --pool default` starts one" in why
    assert (following.returncode, result) == (0, "hi\n")


def test_whoever_tires_of_waiting_for_a_start_can_still_stop_it(yard: Yard):
    starting = yard.start("worker", "start", "--detach", "--server", "http://127.0.0.1:1")
    said = wait_for(starting, "waiting until worker-default is ready")
    starting.send_signal(signal.SIGINT)
    starting.communicate(timeout=PATIENCE)

    assert ".noetl/worker-default.log" in said
    assert starting.returncode == 130
    assert [one["name"] for one in _running(yard, "worker")] == ["worker-default"]
    assert "has ended" in yard.noetl("worker", "stop")


HOSTILE = {
    "an option": "--help",
    "a flag": "-x",
    "a command": "; touch pwned",
    "a substitution": "$(touch pwned)",
    "an older substitution": "`touch pwned`",
    "a way out": "../../pwned",
    "lines": "a\ntouch pwned",
}
COMMANDS = [
    (("run", "--"), "a substitution"),
    (("validate", "--"), "an older substitution"),
    (("executions", "show", "--"), "a way out"),
    (("executions", "cancel", "--"), "an option"),
    (("catalog", "show", "--"), "a flag"),
    (("credential", "show", "--"), "lines"),
    (("worker", "stop", "--pool"), "a command"),
]


def test_s08_what_is_given_to_a_command_is_a_value_and_nothing_else(yard: Yard):
    """Nothing of it is read by a shell, taken for an option, or used as a way out of a folder."""
    yard.write("hello.yaml", HELLO)
    before = {path.name for path in yard.folder.parent.iterdir()}

    ran = yard.noetl("run", "hello.yaml", "--json", f"--set=texts={json.dumps(HOSTILE)}")
    said = [yard.run(*command, HOSTILE[kind]) for command, kind in COMMANDS]

    assert json.loads(ran[: ran.rindex("}") + 1])["workload"] == {"texts": HOSTILE}
    assert all(one.returncode in (0, 1, 2) and "Usage" not in one.stdout for one in said)
    assert {path.name for path in yard.folder.parent.iterdir()} == before
    assert not list(yard.folder.rglob("pwned"))


def test_whoever_closes_an_open_server_is_told_how_to_come_in_again(yard: Yard):
    [url] = re.findall(r"http://\S+", yard.noetl("server", "start", "--detach", "--port", "0"))

    made = subprocess.run(
        [*PROGRAM, "access", "user", "add", "ada", "--role", "admin", "--server", url],
        cwd=yard.folder,
        env=clean_environment(XDG_CONFIG_HOME=str(yard.folder / "config")),
        input="a long password",
        capture_output=True,
        text=True,
    )

    assert made.returncode == 0, made.stderr
    assert "commands and workers need an API token from now on" in made.stderr
    assert "a token" in yard.noetl("executions", "list", "--server", url, code=1)
    assert "noetl_t_" in yard.noetl("access", "token", "create", "ci", "--role", "admin")
    yard.noetl("server", "stop")


def test_s08_no_shell_reads_what_we_start():
    for path in sorted(Path(noetl.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                assert not any(word.arg == "shell" for word in node.keywords), path
                name = name_of(node.func)
                assert name not in ("os.system", "os.popen", "subprocess.getoutput"), path
                assert not name.endswith("create_subprocess_shell"), path


def name_of(called: ast.expr) -> str:
    """With what it is a part of, as far as these are names: `os.system`."""
    match called:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=whole, attr=name):
            return f"{name_of(whole)}.{name}"
    return ""


def test_s08_a_worker_in_the_background_has_the_pool_and_name_it_was_given(yard: Yard):
    pool, name = "--help $(touch pwned)", "-x; touch pwned"
    [url] = re.findall(r"http://\S+", yard.noetl("server", "start", "--detach", "--port", "0"))

    yard.noetl("worker", "start", "--detach", f"--pool={pool}", f"--name={name}", f"--server={url}")

    with urllib.request.urlopen(f"{url}/api/worker/pools") as answer:
        [found] = json.load(answer)["pools"]
    [worker] = found["workers"]
    assert (found["pool"], worker["name"], worker["host"]) == (pool, name, socket.gethostname())
    assert worker["sandbox"] == "processes"
    assert not list(yard.folder.rglob("pwned"))
    yard.noetl("worker", "stop", f"--pool={pool}")
    yard.noetl("server", "stop")


def test_a_worker_of_kinds_that_nobody_has_is_refused(yard: Yard):
    said = yard.noetl("worker", "start", "--kinds", "noop, nosuch", "--detach", code=2)

    assert "there is no kind nosuch here" in said
    assert "noetl tools list" in said
    assert yard.pids() == []
