"""S12: programs that tasks start see neither the environment nor the secrets of who runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from secrets import token_hex
from typing import Any

import pytest

from noetl.tools.testing import Trial, Trials
from tests.cli.conftest import COMMAND, clean_environment
from tests.tools.canary_system import Guarded, played

GET_DUMPABLE = 3
LOOK = """
import glob, json, os
def main(words):
    seen = str(dict(os.environ))
    for place in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(place, "rb") as file:
                seen += file.read().decode("utf-8", "replace")
        except OSError:
            pass
    return [word for word in ["PATH", *words] if word[::-1] in seen or word == "PATH" in seen]
"""
"""Which of some words it sees, of its own environment and of all that the system shows it.

The words come and go turned round: what is looked for must not be shown by the search."""


def task(kind: str, words: list[str]) -> Trial:
    turned = [word[::-1] for word in words]
    if kind == "python":
        return Trial({"code": LOOK}, inputs={"words": turned})
    code = f"{LOOK}\nprint(json.dumps(main(json.loads(os.environ['WORDS']))))"
    env = {"WORDS": json.dumps(turned)}
    return Trial({"cmd": [sys.executable, "-c", code], "env": env, "decode": "json"})


def seen_in(document: dict[str, Any]) -> list[str]:
    [step] = [step for step in document["steps"] if step["step"] == "trial_0"]
    result = step["result"]
    return list(result["data"] if isinstance(result, dict) else result)


@pytest.mark.parametrize("kind", ["python", "shell"])
def test_s12_a_task_sees_no_environment_of_a_worker_or_server(kind: str, canary_system: Guarded):
    trials = Trials(good=task(kind, list(canary_system.secrets)), failing=())
    server = canary_system.server

    ended = server.ended(server.start(played(kind, trials).text))

    assert seen_in(ended) == ["PATH"], ended["error"]


@pytest.mark.parametrize("kind", ["python", "shell"])
def test_s12_a_task_sees_no_environment_of_the_command_that_runs_it(kind: str, tmp_path):
    secret = f"canary-of-the-command-{token_hex(4)}"
    trials = Trials(good=task(kind, [secret]), failing=())
    (tmp_path / "look.yaml").write_text(played(kind, trials).text)

    ran = subprocess.run(
        [*COMMAND, "run", "look.yaml", "--json"],
        cwd=tmp_path,
        env=clean_environment(AWS_SECRET_ACCESS_KEY=secret),
        capture_output=True,
        timeout=60,
    )

    assert seen_in(json.loads(ran.stdout)) == ["PATH"], ran.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="other systems show nothing of this kind")
def test_s12_a_hidden_process_keeps_its_environment_for_itself():
    program = f"""
import ctypes, os
from noetl.cli.privacy import hide_process
os.environ["LATER"] = "later"
hide_process()
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
print(os.environ["MINE"], libc.getenv(b"MINE").decode(), libc.getenv(b"LATER").decode())
print(libc.prctl({GET_DUMPABLE}, 0, 0, 0, 0), open("/proc/self/environ", "rb").read().strip(b"\\0"))
"""
    words = [sys.executable, "-c", program]
    ran = subprocess.run(words, env=clean_environment(MINE="mine"), capture_output=True, text=True)

    assert ran.stdout.splitlines() == ["mine mine later", "0 b''"], ran.stderr
