"""kind: shell. Output, exit codes, environment, and that nothing lives on."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from noetl.tools.processes.programs import GRACE_SECONDS
from noetl.tools.rules import Rules
from tests.faults.runs import is_running
from tests.stopwatch import PATIENCE, Stopwatch
from tests.tools.running import failure, on_bench, ran


def is_alive(pid: int) -> bool:
    """Whether it lives on; a process that was killed may take a moment to be gone."""
    end = time.monotonic() + 10
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return is_running(pid)


def test_a_command_line_yields_what_it_prints():
    outcome = ran("shell", {"cmd": "echo one; echo two >&2"})

    assert outcome.result == {"stdout": "one\n", "stderr": "two\n", "exit_code": 0, "data": "one\n"}
    assert outcome.sh == {"exit_code": 0}


def test_a_list_is_a_program_without_a_shell():
    assert ran("shell", {"cmd": ["echo", "$HOME; ls"]}).result["stdout"] == "$HOME; ls\n"


def test_several_commands_run_in_order_in_one_directory_until_one_fails():
    outcome = ran("shell", {"cmds": ["echo a > f", "cat f; exit 3", "echo never"]})

    assert outcome.error.kind == "exception"
    assert outcome.error.code == 3
    assert outcome.error.details["stdout"] == "a\n"
    assert outcome.sh == {"exit_code": 3}


def test_input_is_given_and_a_command_that_ignores_it_is_fine():
    assert ran("shell", {"cmd": "cat", "stdin": "hello"}).result["data"] == "hello"
    assert ran("shell", {"cmd": "true", "stdin": "x" * 1_000_000}).is_ok


def test_without_input_there_is_none_to_wait_for():
    assert ran("shell", {"cmd": "cat"}).result["data"] == ""


@pytest.mark.parametrize(
    ("form", "command", "data"),
    [
        ("lines", "echo a; echo b", ["a", "b"]),
        ("lines", r"printf 'a\342\200\250b\r\nc\n\n'", ["a\u2028b", "c", ""]),
        ("ndjson", r"""printf '"a\342\200\250b"\r\n1'""", ["a\u2028b", 1]),
        ("json", """echo '{"a": [1]}'""", {"a": [1]}),
        ("ndjson", """echo '{"a":1}'; echo; echo '2'""", [{"a": 1}, 2]),
    ],
)
def test_output_is_read_as_told(form, command, data):
    assert ran("shell", {"cmd": command, "decode": form}).result["data"] == data


def test_output_that_is_not_as_told_is_a_parse_error():
    assert failure(ran("shell", {"cmd": "echo {", "decode": "json"}))[0] == "parse"
    nul = """printf '{"a": "\\\\u0000"}'"""
    assert failure(ran("shell", {"cmd": nul, "decode": "json"}))[0] == "parse"


def test_t24_bytes_that_are_no_text_become_text_that_everyone_can_carry():
    outcome = ran("shell", {"cmd": r"printf 'a\000b\377'"})

    assert outcome.result["stdout"] == "a\ufffdb\ufffd"


def test_exit_codes_mean_what_the_task_says():
    assert ran("shell", {"cmd": "exit 4", "ok_codes": [0, 4]}).result["exit_code"] == 4
    assert ran("shell", {"cmd": "exit 5", "retry_codes": [5]}).error.retryable
    assert not ran("shell", {"cmd": "exit 5"}).error.retryable


def test_a_killed_command_names_its_signal():
    outcome = ran("shell", {"cmd": ["sh", "-c", "kill -9 $$"]})

    assert "signal 9 (SIGKILL)" in outcome.error.message
    assert outcome.sh == {"exit_code": 137}


def test_a_program_or_directory_that_is_not_there_is_not_found():
    assert failure(ran("shell", {"cmd": ["no-such-program"]}))[0] == "not_found"
    kind, message = failure(ran("shell", {"cmd": "true", "cwd": "/no/such/place"}))
    assert (kind, "/no/such/place" in message) == ("not_found", True)


def test_what_a_command_misses_in_its_empty_directory_is_told_with_cwd(tmp_path):
    alone = "in the empty directory that it has without `cwd`"
    misses = {"cmd": "cat orders.csv"}

    assert f"exit code 1 {alone}. It said: cat: orders.csv: No" in failure(ran("shell", misses))[1]
    assert f"exit code 127 {alone}. It said:" in failure(ran("shell", {"cmd": "./load.sh"}))[1]
    assert failure(ran("shell", {"cmd": ["./load.sh"]}))[1] == (
        f'The program "./load.sh" does not exist {alone}.'
    )
    assert alone not in failure(ran("shell", {**misses, "cwd": str(tmp_path)}))[1]
    assert f"{alone}. It said:" in failure(ran("shell", {"cmd": "cat < orders.csv"}))[1]
    assert alone not in failure(ran("shell", {"cmd": "exit 1"}))[1]
    assert alone not in failure(ran("shell", {"cmd": "cat /no/such/file"}))[1]


def test_long_errors_do_not_hold_up_the_worker():
    """Once a command could keep it busy for days with one long line."""
    watch = Stopwatch()
    kind, _ = failure(ran("shell", {"cmd": "yes ./ | head -c 300000 | tr -d '\\n' >&2; exit 1"}))
    assert kind == "exception"
    assert watch.seconds() < 10


def test_a_program_that_may_not_be_run_says_so(tmp_path):
    (tmp_path / "data").write_text("x")

    assert failure(ran("shell", {"cmd": [str(tmp_path / "data")]}))[0] == "auth"


def test_s12_the_command_sees_neither_secrets_nor_environment_of_the_worker(monkeypatch):
    monkeypatch.setenv("NOETL_TOKEN", "canary-1")
    monkeypatch.setenv("DATABASE_PASSWORD", "canary-2")
    monkeypatch.setenv("WANTED", "yes")

    task = {"cmd": "env", "env": {"N": 1, "B": True}, "env_allow": ["WANTED", "HOME"]}
    seen = ran("shell", task, settings={"rules": Rules(opened={"WANTED": "yes", "OTHER": "x"})})

    names = {line.partition("=")[0] for line in seen.result["stdout"].splitlines()}
    assert (
        {"N", "B", "WANTED"}
        <= names
        <= {"N", "B", "WANTED", "PATH", "HOME", "LANG", "PWD", "_", "SHLVL", "OLDPWD"}
    )
    assert "B=true" in seen.result["stdout"]
    assert "canary" not in seen.result["stdout"]


def test_s25_what_the_operator_has_not_opened_is_not_handed_out(monkeypatch):
    monkeypatch.setenv("DATABASE_PASSWORD", "canary-2")

    kind, message = failure(ran("shell", {"cmd": "env", "env_allow": ["DATABASE_PASSWORD"]}))

    assert kind == "auth"
    assert "NOETL_TASK_ENV" in message


def test_s12_variables_of_the_worker_itself_are_never_handed_out():
    assert failure(ran("shell", {"cmd": "env", "env_allow": ["NOETL_SECRET_KEY"]}))[0] == "auth"


def test_s09_outside_the_allowed_directory_nothing_runs(tmp_path):
    rules = {"rules": Rules(file_root=str(tmp_path))}
    (tmp_path / "in").mkdir()

    assert (
        ran("shell", {"cmd": "pwd", "cwd": "in"}, settings=rules).result["stdout"]
        == f"{tmp_path}/in\n"
    )
    assert failure(ran("shell", {"cmd": "pwd", "cwd": "../"}, settings=rules))[0] == "auth"


def test_without_a_directory_it_runs_in_a_fresh_one_that_is_gone_afterwards():
    place = ran("shell", {"cmd": "touch x; pwd; ls"}).result["data"].split()

    assert place[1:] == ["x"]
    assert not os.path.exists(place[0])


def test_long_output_is_bounded_and_says_so():
    outcome = ran(
        "shell", {"cmd": "yes | head -c 300000"}, settings={"rules": Rules(max_output_bytes=1000)}
    )

    assert len(outcome.result["stdout"]) == 1000
    assert outcome.result["truncated"] is True


def test_t07_a_timed_out_command_is_dead_with_all_its_children_before_the_outcome(tmp_path):
    command = (
        f"trap '' TERM; setsid sleep 30 & echo $! > {tmp_path}/a; "
        f"sleep 30 & echo $! > {tmp_path}/b; wait"
    )
    watch = Stopwatch()
    outcome = ran("shell", {"cmd": command, "timeout": "300ms"})

    assert failure(outcome)[0] == "timeout"
    assert watch.seconds() < 2
    assert not any(is_alive(int((tmp_path / name).read_text())) for name in "ab")


def test_what_runs_on_in_the_background_ends_with_the_command(tmp_path):
    watch = Stopwatch()
    outcome = ran("shell", {"cmd": f"sleep 30 & echo $! > {tmp_path}/pid"})

    assert outcome.is_ok
    assert watch.seconds() < 5
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_a_cancelled_command_stops_within_a_second(tmp_path):
    pid_file = tmp_path / "pid"

    async def work(bench):
        task = asyncio.create_task(
            bench.run("shell", {"cmd": f"trap '' TERM; echo $$ > {pid_file}; sleep 30; sleep 30"})
        )
        while not (pid_file.exists() and pid_file.read_text()):
            await asyncio.sleep(0.01)
        watch = Stopwatch()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return watch.seconds()

    assert on_bench(work) < 1
    assert not is_alive(int(pid_file.read_text()))


@pytest.mark.parametrize("noticed", [True, False], ids=["noticed", "unnoticed"])
def test_a_cancelled_command_has_time_to_end_before_it_is_killed(noticed, tmp_path):
    """Also if its worker, busy with something else, has not heard yet that it runs."""
    begun = tmp_path / "begun"
    took = 0.0

    async def work(bench):
        nonlocal took
        command = f"trap '' TERM; echo > {begun}; while :; do sleep 0.01; done"
        task = asyncio.create_task(bench.run("shell", {"cmd": command}))
        while not begun.exists():
            await asyncio.sleep(0)
            time.sleep(0.05)
        if noticed:
            await asyncio.sleep(0.05)
        since = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        took = time.monotonic() - since

    on_bench(work)
    assert took >= GRACE_SECONDS  # It does not end when it is asked to.


@pytest.mark.parametrize("delay", [0, 0.001, 0.003, 0.01, 0.03])
def test_a_command_cancelled_while_it_starts_is_dead_too(delay, tmp_path):
    async def work(bench):
        command = f"echo $$ > {tmp_path}/pid; sleep 30; sleep 30"
        task = asyncio.create_task(bench.run("shell", {"cmd": command}))
        await asyncio.sleep(delay)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    watch = Stopwatch()
    on_bench(work)
    assert watch.seconds() < 5
    written = (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else ""
    assert not written or not is_alive(int(written))


def test_output_reaches_the_log_while_the_command_runs():
    async def work(bench):
        seen = asyncio.Event()

        def log(text):
            if "early" in text:
                seen.set()

        task = asyncio.create_task(bench.run("shell", {"cmd": "echo early; sleep 30"}, log=log))
        await asyncio.wait_for(seen.wait(), PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    on_bench(work)
