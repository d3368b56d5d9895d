"""`pytest --processes`: whatever happens in one of the processes is in the report of the run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARED = """
import os, pathlib, pytest

@pytest.fixture(scope="session", autouse=True)
def whole():
    yield
    pathlib.Path("ended").open("a").write("x")

def test_it_has_a_folder_of_its_own(tmp_path):
    (tmp_path / "file").write_text("")

@pytest.mark.parametrize("number", range(20))
def test_it_is_run_once(number, tmp_path):
    pathlib.Path("runs").open("a").write("x")
"""
FAILS = """
def test_it_fails():
    print("said before")
    assert 1 == 2

def test_it_passes():
    pass
"""
DIES = """
import os

def test_it_ends_its_process():
    os._exit(3)

def test_it_is_never_reached():
    pass
"""


def run(folder: Path, *words: str, **files: str) -> tuple[int, str]:
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", str(folder)]
    command += ["-p", "tests.processes", "-p", "no:cacheprovider", *words]
    # Plug-ins take most of the time that these runs take, and none of them is looked at.
    environment = {
        "PYTHONPATH": str(ROOT),
        "PYTHONPYCACHEPREFIX": sys.pycache_prefix or "",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "TMPDIR": str(folder),
    }
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    return ran.returncode, ran.stdout


def test_each_test_runs_once_and_what_a_file_began_is_ended(tmp_path):
    code, said = run(tmp_path, "--processes", "2", one=SHARED, two=SHARED, three=SHARED)

    assert code == 0, said
    assert "63 passed" in said
    assert (tmp_path / "runs").read_text() == 60 * "x"
    assert (tmp_path / "ended").read_text() == "xxx", "one for each file"


def test_a_failure_is_shown_with_what_was_printed(tmp_path):
    code, said = run(tmp_path, "--processes", "2", one=SHARED, two=FAILS)

    assert code == 1
    assert re.search(r"assert 1 == 2.*said before.*1 failed, 22 passed", said, re.DOTALL), said


def test_a_process_that_ends_is_a_failure_of_what_it_ran(tmp_path):
    code, said = run(tmp_path, "--processes", "2", one=DIES, two=SHARED)

    assert code == 1
    assert "The process ended (3). This is the test that it began last" in said
    assert re.search(r"test_one.py::test_it_ends_its_process.*1 failed, 21 passed", said, re.DOTALL)


def test_after_the_first_failure_no_file_is_begun(tmp_path):
    files = {f"later_{number:02}": FAILS for number in range(20)}
    code, said = run(tmp_path, "--processes", "2", "-x", **files)

    assert code == 1
    assert int(re.search(r"(\d+) failed", said)[1]) < 10, said
