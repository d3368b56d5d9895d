"""`noetl dev` with files: what they hold is registered, and again when they are saved."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.runs import Place, wait_for
from tests.stopwatch import PATIENCE

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: greet, path: tried/greet}
workflow: [{step: start, tool: {kind: noop, result: hi}}]
"""
HOOK = """\
apiVersion: noetl.io/v2
kind: Hook
metadata: {name: asked, path: tried/asked}
spec: {target: {playbook: tried/greet}, verify: none}
"""


class Dev(Place):
    """`noetl dev` on a directory."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.write("greet.yaml", PLAYBOOK)

    def write(self, name: str, text: str) -> None:
        """As an editor saves: the file is never half there."""
        directory = self.folder / "playbooks"
        directory.mkdir(exist_ok=True)
        draft = self.folder / "draft"
        draft.write_text(text)
        draft.replace(directory / name)

    def begin(self) -> str:
        self.process = self.start("dev", "playbooks", "--port", "0", "--no-open")
        return self.until("serving at")

    def until(self, word: str) -> str:
        said = wait_for(self.process, word)
        assert word in said
        return said

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE) == 0


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    dev = Dev(tmp_path)
    yield dev
    with dev.process as process:
        process.kill()


def test_dev_registers_what_is_in_a_directory_and_again_what_is_saved(dev: Dev):
    dev.write("asked.yaml", HOOK)
    said = dev.begin()
    assert "playbooks/greet.yaml: tried/greet version 1\n" in said
    # The hook stands before the playbook that it starts, and is registered after it.
    assert said.index("greet.yaml") < said.index("asked.yaml: hook tried/asked")

    dev.write("greet.yaml", PLAYBOOK.replace("hi", "hello"))
    assert dev.until("version 2").count("version") == 1  # The hook has not changed.
    [url] = re.findall(r"serving at (\S+),", said)
    ran = dev.run("execute", "tried/greet", "--wait", "--server", url)
    assert ran.stdout == "hello\n", ran.stderr

    dev.write("more.yaml", PLAYBOOK.replace("greet", "more"))
    dev.until("playbooks/more.yaml: tried/more version 1")
    (dev.folder / "playbooks/more.yaml").unlink()
    dev.until("playbooks/more.yaml is gone; what it registered stays")
    dev.end()


def test_dev_tells_what_is_wrong_with_a_file_and_goes_on(dev: Dev):
    dev.begin()
    dev.write("greet.yaml", PLAYBOOK.replace("noop", "noopp"))
    dev.until('playbooks/greet.yaml:4:39: there is no tool kind "noopp"')
    dev.write("greet.yaml", PLAYBOOK.replace("hi", "hello"))
    dev.until("tried/greet version 2")
    os.mkfifo(dev.folder / "playbooks" / "pipe.yaml")  # Nobody writes to it.
    dev.write("twin.yaml", PLAYBOOK.replace("hi", "howdy"))
    said = dev.until("tried/greet version 3")
    assert "playbooks/greet.yaml and playbooks/twin.yaml declare the same path" in said
    dev.end()


def test_dev_says_only_of_documents_that_they_are_gone(dev: Dev):
    (dev.folder / "playbooks/greet.yaml").unlink()
    dev.write("greet.test.yaml", "apiVersion: noetl.io/v2\n")
    assert "no playbook in this directory" not in dev.begin()
    (dev.folder / "playbooks/greet.test.yaml").unlink()
    dev.until("no playbook in this directory")
    dev.write("greet.yaml", PLAYBOOK)
    assert "is gone" not in dev.until("tried/greet version 1")
    (dev.folder / "playbooks/greet.yaml").unlink()
    said = dev.until("no playbook in this directory") + dev.until("is gone")
    assert re.findall(r"(\S+) is gone", said) == ["playbooks/greet.yaml"]
    dev.end()


def test_dev_refuses_a_directory_that_is_not_there(tmp_path: Path):
    ran: subprocess.CompletedProcess[str] = Place(tmp_path).run("dev", "playboks")
    assert ran.returncode == 2
    assert "'playboks' does not exist" in ran.stderr
    assert not (tmp_path / ".noetl").exists()
