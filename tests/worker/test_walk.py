"""The steady path of a step is short: who reads it need not open half of the house."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"
HOPS_MAX, FILES_MAX = 88, 30
"""`bench/RESULTS.md` says that it is 86 and 30. A change that needs more says there what for."""


def test_a_step_passes_through_few_files_and_seldom_from_one_to_another():
    done = subprocess.run(
        [sys.executable, BENCH / "walk.py"], capture_output=True, text=True, check=True, timeout=120
    )

    found = re.fullmatch(r"calls (\d+), hops (\d+), files (\d+)\n", done.stdout)
    assert found is not None, done.stdout
    calls, hops, files = map(int, found.groups())
    assert calls > 150, "the walk is no step of ours"
    assert hops <= HOPS_MAX
    assert files <= FILES_MAX
