"""`make` chooses the Python that it makes the environment with, and says which."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from noetl.cli.workloads import machine

MAKEFILE = Path(__file__).parents[1] / "Makefile"
PYTHON = """#!/bin/sh
case "$2" in
*optimizations*) exit {optimized} ;;
*version_info*) exit {new} ;;
venv) mkdir -p "$3/bin" && touch "$3/bin/python" ;;
esac
"""


@pytest.fixture
def made(tmp_path):
    """What `make` says when these are the Pythons on its path, each with the answers it gives:
    whether it was built with optimizations, and whether it is new enough."""
    if shutil.which("make") is None or shutil.which("which") is None:
        pytest.skip("make or which is not installed")

    def make(*words: str, path: Sequence[Path] = (), **pythons: str) -> tuple[int, str]:
        for name, answers in pythons.items():
            (tmp_path / name).mkdir()
            optimized, new = (int(answer == "no") for answer in answers.split())
            program = tmp_path / name / "python3"
            program.write_text(PYTHON.format(optimized=optimized, new=new))
            program.chmod(0o755)
        tools = {str(Path(shutil.which(one)).parent) for one in ("make", "which", "sh", "mkdir")}
        places = os.pathsep.join(map(str, [*path, *(tmp_path / name for name in pythons), *tools]))
        command = ["make", "-f", str(MAKEFILE), ".venv/bin/python", *words]
        ran = subprocess.run(
            command, cwd=tmp_path, env={"PATH": places}, capture_output=True, text=True
        )
        return ran.returncode, ran.stdout.replace(f"{tmp_path}/", "")

    return make


def test_the_first_that_was_built_with_optimizations_is_taken(made):
    said = made(plain="no yes", fast="yes yes", faster="yes yes")
    assert said == (0, "making .venv with fast/python3\n")


def test_what_somebody_chose_is_taken(made, tmp_path):
    chosen = f"PYTHON={tmp_path}/plain/python3"
    assert made(chosen, plain="no yes", fast="yes yes") == (
        0,
        "making .venv with plain/python3\n",
    )


def test_one_that_is_too_old_is_refused_with_the_remedy(made, tmp_path):
    code, said = made(f"PYTHON={tmp_path}/old/python3", old="no no")
    assert code == 2
    assert not (tmp_path / ".venv").exists()
    assert "NoETL needs Python 3.11 or newer; old/python3 is older. Use: make PYTHON=" in said


def test_one_that_is_not_there_is_told_as_such(made):
    code, said = made("PYTHON=python9", fast="yes yes")
    assert code == 2
    assert "There is no python9 here. NoETL needs Python 3.11 or newer: make PYTHON=" in said


def test_make_and_bench_agree_on_this_python(made, tmp_path):
    is_fast = "optimizations" not in machine()["python"] and find_spec("ensurepip") is not None
    (tmp_path / "real").mkdir()
    program = tmp_path / "real" / "python3"
    program.write_text(
        PYTHON.format(optimized=1, new=0).replace("exit 1", f'exec {sys.executable} "$@"')
    )
    program.chmod(0o755)
    taken = "real" if is_fast else "other"
    said = made(path=[tmp_path / "real"], other="yes yes")
    assert said == (0, f"making .venv with {taken}/python3\n")
