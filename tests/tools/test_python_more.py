"""kind: python beyond a piece of code: scripts from elsewhere, packages, values as they come."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from noetl.tools.python import packages
from noetl.tools.rules import Rules
from tests.tools.running import Bench, failure, on_bench, ran
from tests.tools.services import answering, free_port, refusing

# --- Values as they come -----------------------------------------------------------------------


def lines(code: str, **context: Any) -> Any:
    """The reference and the lines behind it."""

    async def work(bench: Bench) -> Any:
        outcome = await bench.run("python", {"code": code, "result_as": "ndjson"}, **context)
        if not outcome.is_ok:
            return outcome, []
        text = b"".join(bench.bodies.values()).decode()
        return outcome, [json.loads(line) for line in text.splitlines()]

    return on_bench(work)


@pytest.mark.parametrize(
    ("code", "values"),
    [
        (
            "def main():\n    for n in range(3):\n        yield {'n': n}",
            [{"n": n} for n in range(3)],
        ),
        ("async def main():\n    for n in range(2):\n        yield n", [0, 1]),
        ("async def main():\n    return [1, 2]", [1, 2]),
        ("return (n for n in 'ab')", ["a", "b"]),
        ("result = [1, None]", [1, None]),
        ("result = {'a': 1}", [{"a": 1}]),
        ("def main():\n    return iter(())", []),
    ],
)
def test_what_the_code_yields_becomes_a_file_of_lines(code, values):
    outcome, found = lines(code)

    assert found == values
    assert outcome.result["_ref"]["format"] == "ndjson"
    assert outcome.result["_ref"]["rows"] == len(values)


def test_t23_a_generator_of_much_data_is_never_in_memory_as_a_whole():
    code = """
import resource
def main():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for n in range(50_000):
        yield "x" * 1000
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    yield grown
"""
    outcome, found = lines(code)

    assert outcome.result["_ref"]["size"] > 50_000_000
    assert found[-1] < 20_000


def test_a_generator_that_breaks_fails_the_task():
    outcome, _ = lines("def main():\n    yield 1\n    raise ValueError('no')")
    unfit, _ = lines("def main():\n    yield {1, 2}")

    assert failure(outcome)[0] == "exception"
    assert outcome.py == {"exception_type": "ValueError"}
    assert failure(unfit)[0] == "schema"


def test_what_is_printed_is_heard_while_the_code_runs():
    async def work(bench: Bench) -> list[str]:
        heard: list[str] = []
        first = asyncio.Event()

        def log(text: str) -> None:
            heard.append(text)
            first.set()

        code = "import time\nprint('begun')\ntime.sleep(3600)"
        task = asyncio.create_task(bench.run("python", {"code": code}, log=log))
        await first.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return heard

    assert on_bench(work) == ["begun\n"]


# --- Scripts -----------------------------------------------------------------------------------


def test_a_script_is_read_from_the_web_with_a_credential():
    async def script(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != "Bearer canary-token":
            return web.Response(status=401)
        return web.Response(text="def main(n):\n    return n + 1\n")

    with answering(("GET", "/job.py", script)) as url:
        config = {"script": f"{url}/job.py"}
        settings = {"credentials": {"web": {"token": "canary-token"}}}
        good = ran("python", {**config, "auth": "web"}, settings=settings, inputs={"n": 1})
        bad = ran("python", config)

    assert good.result == 2
    assert failure(bad)[0] == "auth"


@pytest.mark.parametrize(
    ("status", "kind"), [(404, "not_found"), (500, "server_error"), (429, "rate_limit")]
)
def test_a_script_that_the_web_does_not_hand_out_is_named(status, kind):
    with answering(("GET", "/job.py", refusing(status))) as url:
        assert failure(ran("python", {"script": f"{url}/job.py"}))[0] == kind


def test_a_script_whose_host_is_not_there_is_a_connection_error():
    url = f"http://127.0.0.1:{free_port()}/job.py"

    assert failure(ran("python", {"script": url}))[0] == "connection"


# --- Packages ----------------------------------------------------------------------------------


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A place where installers find one package, and no other place."""
    folder = tmp_path / "index"
    folder.mkdir()
    wheel = folder / "noetl_trial_lib-1.2-py3-none-any.whl"
    about = "noetl_trial_lib-1.2.dist-info"
    files = {
        "noetl_trial_lib.py": "def answer():\n    return 42\n",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: noetl-trial-lib\nVersion: 1.2\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{about}/RECORD"])
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    for tool in ("PIP", "UV"):
        monkeypatch.setenv(f"{tool}_NO_INDEX", "1")
        monkeypatch.setenv(f"{tool}_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    return tmp_path


def rules(place: Path) -> dict[str, Any]:
    return {"rules": Rules(cache=str(place / "cache"), install_libs=True)}


CODE = {"code": "import noetl_trial_lib\nresult = noetl_trial_lib.answer()"}
LIBS = {**CODE, "libs": ["noetl-trial-lib>=1"]}


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_a_package_is_installed_once_and_kept_apart(index, monkeypatch, installer):
    if installer == "pip":
        monkeypatch.setattr(packages.shutil, "which", lambda name, path: None)
    elif shutil.which("uv", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("uv is not installed")

    async def work(bench: Bench) -> list[Any]:
        return [await bench.run("python", config) for config in (LIBS, LIBS, CODE)]

    first, second, without = on_bench(work, **rules(index))
    shutil.rmtree(index / "index")
    later = ran("python", LIBS, settings=rules(index))

    assert (first.result, second.result, later.result) == (42, 42, 42)
    assert without.py == {"exception_type": "ModuleNotFoundError"}
    assert "Install it in the environment of the worker" in failure(without)[1]
    assert len(list((index / "cache" / "libs").iterdir())) == 1


def test_what_a_killed_worker_left_of_an_installation_stands_in_nobodys_way(index, monkeypatch):
    """In a container every worker has the same process id."""
    wheels = index / "index"
    wheels.rename(index / "away")
    wheels.mkdir()
    with monkeypatch.context() as killed:
        killed.setattr(packages.shutil, "rmtree", lambda *_, **__: None)
        assert failure(ran("python", LIBS, settings=rules(index)))[0] == "not_found"
    wheels.rmdir()
    (index / "away").rename(wheels)

    assert ran("python", LIBS, settings=rules(index)).result == 42


def test_two_tasks_that_need_the_same_package_install_it_once(index):
    async def work(bench: Bench) -> list[Any]:
        return await asyncio.gather(*(bench.run("python", LIBS) for _ in range(2)))

    assert [outcome.result for outcome in on_bench(work, **rules(index))] == [42, 42]


def test_a_package_that_is_nowhere_is_named(index):
    config = {"code": "x = 1", "libs": ["noetl-no-such-lib"]}
    outcome = ran("python", config, settings=rules(index))

    assert failure(outcome)[0] == "not_found"
    assert list((index / "cache" / "libs").iterdir()) == []


def test_packages_are_not_installed_unless_the_operator_says_so(index):
    outcome = ran("python", LIBS)

    assert failure(outcome)[0] == "client_error"
    assert "NOETL_PYTHON_LIBS=install" in failure(outcome)[1]


@pytest.mark.parametrize(
    "lib",
    [
        "--index-url=http://evil",
        "-r/etc/passwd",
        "./somewhere",
        "x @ http://evil/x.whl",
        "x; import os",
        "git+https://evil/x",
    ],
)
def test_s08_nothing_but_a_requirement_reaches_the_installer(index, lib):
    outcome = ran("python", {"code": "x = 1", "libs": [lib]}, settings=rules(index))

    assert failure(outcome)[0] == "client_error"
    assert not (index / "cache").exists()
