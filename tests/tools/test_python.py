"""kind: python. Three ways to yield a value, what may be one, and every way to fail."""

from __future__ import annotations

import asyncio
import os
import time

import msgspec
import pytest

from noetl.tools.rules import Rules
from tests.stopwatch import PATIENCE, Stopwatch
from tests.tools.running import failure, on_bench, ran


def value_of(code, **context):
    outcome = ran("python", {"code": code}, **context)
    assert outcome.is_ok, outcome
    return outcome.result


def values_of(*codes, inputs=None):
    """The outcomes of several tasks, one after the other in the same processes."""

    async def work(bench):
        return [await bench.run("python", {"code": code}, inputs=inputs or {}) for code in codes]

    return on_bench(work)


# --- Ways to yield a value ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("result = x + 1", 4),
        ("return x + 1", 4),
        ("if x > 2:\n    return 'big'\nreturn 'small'", "big"),
        ("if x > 9:\n    return 'big'\nresult = 'set'", "set"),
        ("x += 1\nreturn x", 4),
        ("x: int = x + 1\nreturn [x for x in [x, x]]", [4, 4]),
        ("def double(n):\n    return n * k\nk = 2\nreturn double(x)", 6),
        ("from __future__ import annotations\nreturn x", 3),
        ("def main(x, y=2): return x * y", 6),
        ("def main(**every): return every", {"x": 3, "other": 1}),
        ("def main(x, **rest): return [x, rest]", [3, {"other": 1}]),
        ("def main(x, /, *, other): return [x, other]", [3, 1]),
        ("def main(args, input_data): return args == input_data == {'x': 3, 'other': 1}", True),
        ("def main(): return args['x'] + input_data['other']", 4),
        ("async def main(x):\n    import asyncio\n    await asyncio.sleep(0)\n    return x", 3),
        ("def main(x):\n    yield x\n    yield x + 1", [3, 4]),
        ("async def main(x):\n    yield x", [3]),
        ("def main(x): return x\nresult = main(x) + 1", 4),
        ("main = lambda x: x * 2", 6),
        ("import functools\nmain = functools.partial(lambda x, y: x + y, y=1)", 4),
        ("nothing = 1", None),
        ("", None),
        ("return json.dumps({'a': x})", '{"a": 3}'),
        ("result = 5\nimport sys\nsys.exit(0)", 5),
    ],
)
def test_a_value_is_set_returned_or_made_by_main(code, value):
    assert value_of(code, inputs={"x": 3, "other": 1}) == value


def test_inputs_named_result_and_main_are_inputs_like_any_other():
    inputs = {"result": 1, "main": 2}

    assert value_of("def main(result): return result + 1", inputs=inputs) == 2
    assert value_of("x = 1", inputs=inputs) is None


def test_the_context_is_there_for_code_that_looks():
    assert (
        value_of("return context['workload']['a']", look_around=lambda: {"workload": {"a": 1}}) == 1
    )


def test_dataclasses_and_own_classes_work():
    code = """
from dataclasses import dataclass
@dataclass
class Point:
    x: "int"
    y: "int" = 2
def main(): return Point(1).y
"""
    assert value_of(code) == 2


# --- What may be a value -----------------------------------------------------------------------


def test_near_relatives_of_plain_values_are_converted():
    code = """
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from uuid import UUID
from enum import Enum
class Colour(Enum):
    RED = "red"
return {
    1: (1, 2), None: date(2024, 1, 2), "t": time(3, 4),
    "utc": datetime(2024, 1, 2, 3, 4, 5, tzinfo=timezone.utc),
    "zone": datetime(2024, 1, 2, tzinfo=timezone(timedelta(hours=2))),
    "long": timedelta(days=1, seconds=2.5), "back": timedelta(seconds=-3),
    "d": [Decimal("1.10"), Decimal("3"), Decimal("0.1234567890123456789")],
    "u": UUID(int=1), "e": Colour.RED,
}
"""
    assert value_of(code) == {
        "1": [1, 2],
        "null": "2024-01-02",
        "t": "03:04:00",
        "utc": "2024-01-02T03:04:05Z",
        "zone": "2024-01-02T00:00:00+02:00",
        "long": "P1DT2.5S",
        "back": "-PT3S",
        "d": [1.1, 3, "0.1234567890123456789"],
        "u": "00000000-0000-0000-0000-000000000001",
        "e": "red",
    }


@pytest.mark.parametrize(
    ("expression", "path"),
    [
        ("{'a': [1, float('nan')]}", "result.a[1]"),
        ("float('inf')", "result "),
        ("[b'x']", "result[0]"),
        ("{'s': {1, 2}}", "result.s"),
        ("'\\ud800'", "result "),
        ("{'a': 'b\\0'}", "result.a"),
        ("{'\\0': 1}", "result."),
        ("[2**63]", "result[0]"),
        ("-2**63 - 1", "result "),
        ("{(1, 2): 1}", "result "),
        ("{1: 1, '1': 2}", "result.1"),
        ("[object()]", "result[0]"),
        ("[lambda: 1]", "result[0]"),
    ],
)
def test_t24_a_value_that_nobody_can_carry_is_a_schema_error_with_its_path(expression, path):
    kind, message = failure(ran("python", {"code": f"result = {expression}"}))

    assert kind == "schema"
    assert path in message


def test_t24_the_largest_numbers_pass():
    assert value_of("return [2**63 - 1, -2**63]") == [2**63 - 1, -(2**63)]


def test_t24_a_value_that_holds_itself_is_a_schema_error():
    assert failure(ran("python", {"code": "a = []\na.append(a)\nreturn a"}))[0] == "schema"


def test_t23_fifty_megabytes_pass_in_and_out():
    text = "x" * 50_000_000

    assert value_of("return text + 'y'", inputs={"text": text}) == text + "y"


# --- Failures ----------------------------------------------------------------------------------


def test_an_exception_shows_the_authors_lines_only():
    code = (
        "import json\ndef inner(x):\n    return json.loads(x)\n\ndef main():\n    return inner('{')"
    )
    outcome = ran("python", {"code": code})

    assert failure(outcome)[0] == "exception"
    assert outcome.py == {"exception_type": "JSONDecodeError"}
    assert outcome.error.message.startswith("JSONDecodeError: ")
    assert outcome.error.message.endswith("(line 3)")
    lines = outcome.error.details["traceback"].splitlines()
    assert lines[1:5] == [
        '  File "<code>", line 6, in main',
        "    return inner('{')",
        '  File "<code>", line 3, in inner',
        "    return json.loads(x)",
    ]
    assert "sandbox" not in outcome.error.details["traceback"]


def test_a_function_that_calls_itself_without_end_is_told_once():
    code = "def down(n):\n    return down(n + 1)\n\nresult = down(0)"
    outcome = ran("python", {"code": code})

    assert failure(outcome)[1].startswith("RecursionError: ")
    lines = outcome.error.details["traceback"].splitlines()
    assert [line for line in lines if "line 2" in line] == ['  File "<code>", line 2, in down']
    [again] = [line for line in lines if "more times" in line]
    assert int(again.split()[-3]) > 100

    twice = ran("python", {"code": "def down(n):\n    return down(2 / n - 2)\n\ndown(1)"})
    assert "[the same line 1 more time]" in twice.error.details["traceback"]


def test_line_numbers_are_those_of_the_code_also_with_a_return_at_top_level():
    outcome = ran("python", {"code": "x = 1\n\nif x:\n    raise ValueError('no')\nreturn 2"})

    assert outcome.error.message == "ValueError: no (line 4)"


@pytest.mark.parametrize("code", ["def main(:", "return return", "x = 'a\0'", "(" * 5000])
def test_code_that_is_not_python_is_a_parse_error(code):
    outcome = ran("python", {"code": code})

    assert failure(outcome)[0] == "parse"
    assert outcome.py == {"exception_type": "SyntaxError"}


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("import sys; sys.exit(3)", "SystemExit"),
        ("def f(): f()\nf()", "RecursionError"),
        ("def main(missing): pass", "TypeError"),
        ("class Odd(Exception):\n  def __str__(self): 1/0\nraise Odd", "Odd"),
        ("raise ValueError('\\ud800\\0')", "ValueError"),
        ("eval('1 +')", "SyntaxError"),
    ],
)
def test_whatever_is_raised_is_an_exception_by_its_name(code, name):
    outcome = ran("python", {"code": code})

    assert failure(outcome)[0] == "exception"
    assert outcome.py == {"exception_type": name}


def test_a_name_that_the_code_was_not_given_is_answered_with_how_to_give_it():
    outcome = ran("python", {"code": "result = folder + '/in'"})

    assert outcome.error.message == (
        "NameError: name 'folder' is not defined (line 1)."
        " Code reads what `args` names: `args: {folder: …}`"
    )


@pytest.mark.parametrize("head", ["def main(a, *, b)", "async def main(a, *, b)"])
def test_a_parameter_without_a_value_is_answered_with_what_the_task_gives(head):
    outcome = ran("python", {"code": f"{head}:\n    return a"}, inputs={"b": 1, "c": 2})

    assert outcome.error.message == (
        "TypeError: main() missing 1 required positional argument: 'a'. The task gives it `b`,"
        " `c`; `main` takes `a`, `b`. Add what is missing to `args` of the task, or give the"
        " parameter a default"
    )


def test_a_call_inside_main_that_misses_an_argument_speaks_for_itself():
    code = "def main():\n    return add(1)\ndef add(a, b):\n    return a + b"

    outcome = ran("python", {"code": code})

    assert outcome.error.message == (
        "TypeError: add() missing 1 required positional argument: 'b' (line 2)"
    )


def test_code_that_is_nested_too_deeply_for_the_compiler_ends_no_process():
    outcome = ran("python", {"code": f"result = {'1 if 1 else ' * 2_500}1"})

    # How deep is too deep differs between versions of Python.
    assert (
        outcome.is_ok
        or outcome.error.message == "SyntaxError: the code is nested too deeply (line 1)"
    )


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import os; os._exit(7)", "exit code 7"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9 (SIGKILL)"),
        ("import ctypes; ctypes.string_at(0)", "signal 11 (SIGSEGV)"),
        ("import os; os.closerange(3, 100); import time; time.sleep(60)", "signal 9 (SIGKILL)"),
    ],
)
def test_the_end_of_the_process_is_a_task_error_and_the_next_task_runs(code, how):
    crashed, fine = values_of(f"print('before', flush=True)\n{code}", "return 1")

    kind, message = failure(crashed)
    assert (kind, how in message) == ("exception", True)
    assert fine.result == 1


def test_inputs_that_cannot_be_handed_over_are_a_schema_error():
    assert failure(ran("python", {"code": "x = 1"}, inputs={"a": 2**70}))[0] == "schema"


# --- Time --------------------------------------------------------------------------------------


def test_t07_code_that_runs_too_long_is_killed_before_the_outcome(tmp_path):
    late = tmp_path / "late"
    code = f"import time\ntime.sleep(1)\nopen({str(late)!r}, 'w').write('x')"
    outcome = ran("python", {"code": code, "timeout": "200ms"})

    assert failure(outcome)[0] == "timeout"
    time.sleep(1.2)
    assert not late.exists()


def test_the_shorter_of_both_timeouts_holds():
    config = {"code": "while True: pass", "timeout": 30}
    watch = Stopwatch()

    assert failure(ran("python", config, timeout={"total": "300ms"}))[0] == "timeout"
    assert watch.seconds() < 5


def test_a_cancelled_task_stops_within_a_second():
    async def work(bench):
        await bench.run("python", {"code": "x = 1"})
        code = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)"
        task = asyncio.create_task(bench.run("python", {"code": code}))
        await asyncio.sleep(0.3)
        watch = Stopwatch()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return watch.seconds(), (await bench.run("python", {"code": "return 2"})).result

    seconds, after = on_bench(work)
    assert seconds < 1
    assert after == 2


# --- Script and libs ---------------------------------------------------------------------------


def test_a_script_is_read_from_its_file(tmp_path):
    script = tmp_path / "job.py"
    script.write_text("def main(n):\n    return 10 // n\nif __name__ == '__main__':\n    1 / 0\n")

    assert ran("python", {"script": str(script)}, inputs={"n": 5}).result == 2
    assert ran("python", {"script": script.as_uri()}, inputs={"n": 5}).result == 2
    outcome = ran("python", {"script": str(script)}, inputs={"n": 0})
    assert f'File "{script}", line 2' in outcome.error.details["traceback"]


def test_a_script_of_the_worker_may_be_long(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(f"# {'-' * 11_000_000}\nresult = 2\n")

    assert ran("python", {"script": str(script)}).result == 2


def test_a_script_that_is_not_there_or_no_text_is_named(tmp_path):
    (tmp_path / "bytes.py").write_bytes(b"\xff")

    assert failure(ran("python", {"script": str(tmp_path / "no.py")}))[0] == "not_found"
    assert failure(ran("python", {"script": str(tmp_path / "bytes.py")}))[0] == "parse"
    assert failure(ran("python", {"script": "ftp://host/x.py"}))[0] == "auth"


def test_s09_a_script_outside_the_allowed_directory_is_not_read(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "x.py").write_text("result = 1")
    rules = {"rules": Rules(file_root=str(tmp_path / "root"))}

    for name in ("../x.py", str(tmp_path / "x.py"), "sub/../../x.py"):
        assert failure(ran("python", {"script": name}, settings=rules))[0] == "auth"


@pytest.mark.parametrize("lib", ["msgspec", "msgspec>=0.1", "msgspec >= 0.1, < 99", "msgspec~=0.1"])
def test_packages_that_are_there_are_fine(lib):
    assert ran("python", {"code": "import msgspec\nresult = 1", "libs": [lib]}).result == 1


@pytest.mark.parametrize(
    "lib", ["no-such-package", "msgspec>99", "msgspec==0.0.1", "msgspec>=x", "!"]
)
def test_packages_that_are_not_there_are_a_client_error(lib):
    kind, message = failure(ran("python", {"code": "x = 1", "libs": [lib]}))

    assert (kind, message.startswith("libs: ")) == ("client_error", True)


# --- What is around it -------------------------------------------------------------------------


def test_s12_the_code_sees_neither_secrets_nor_environment_of_the_worker(monkeypatch):
    monkeypatch.setenv("NOETL_TOKEN", "canary-1")
    monkeypatch.setenv("PYTHONPATH", "/canary-2")
    monkeypatch.setenv("PASSWORD", "canary-3")
    code = "import os, sys\nreturn [dict(os.environ), sys.path, sys.argv, list(globals())]"

    environment, path, arguments, names = value_of(code)
    # Python itself sets LC_CTYPE where no locale is given.
    assert set(environment) <= {"PATH", "HOME", "LANG", "LC_CTYPE"}
    assert "canary" not in msgspec.json.encode([environment, path, arguments]).decode()
    assert set(names) <= {
        *("args", "input_data", "context", "json", "os", "sys"),
        *("__name__", "__doc__", "__package__", "__loader__", "__spec__", "__builtins__"),
        *("__noetl_end__",),
    }


def test_what_is_printed_reaches_the_log_live_and_in_order(tmp_path):
    async def work(bench):
        seen = asyncio.Event()
        parts = []

        def log(text):
            parts.append(text)
            if "live" in text:
                seen.set()

        code = f"""
import os, sys, time, subprocess
print("live")
while not os.path.exists({str(tmp_path / "read")!r}):
    time.sleep(0.01)
sys.stderr.write("half ")
sys.stderr.flush()
os.write(1, "ü\\n".encode())
subprocess.run(["echo", "child"])
print("end", end="")
"""
        task = asyncio.create_task(bench.run("python", {"code": code}, log=log))
        await asyncio.wait_for(seen.wait(), PATIENCE)
        assert not task.done()
        (tmp_path / "read").touch()
        assert (await task).is_ok
        return "".join(parts)

    assert on_bench(work) == "live\nhalf ü\nchild\nend"


def test_a_flood_of_output_is_kept_to_its_end():
    async def work(bench):
        code = "for n in range(200000): print('line', n)\nprint('the end')"
        assert (await bench.run("python", {"code": code})).is_ok
        return bench.log.text()

    text = on_bench(work)
    assert len(text) < 70_000
    assert text.startswith("[… earlier output dropped]")
    assert text.endswith("the end\n")


def test_code_sees_the_path_of_now_not_of_when_the_first_process_began(monkeypatch):
    async def work(bench):
        first = await bench.run("python", {"code": "import os; result = os.environ['PATH']"})
        monkeypatch.setenv("PATH", "/somewhere")
        other = await bench.run(
            "python", {"code": "import os; result = os.environ['PATH']"}, playbook="another"
        )
        return first.result, other.result

    before = os.environ["PATH"]
    assert on_bench(work) == (before, "/somewhere")
