"""`noetl fmt`: files are formatted whole or not at all."""

from __future__ import annotations

import resource
import subprocess

import pytest

from tests import forked
from tests.cli.conftest import COMMAND, clean_environment

UNTIDY = """\
kind:   Playbook
apiVersion: noetl.io/v2
workflow:
- step: start   # keep me
  tool: {kind: noop}
metadata: {path: a,  name: a}
"""


@pytest.fixture
def untidy(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(UNTIDY)
    return path


@pytest.fixture
def tidy_text(noetl):
    return noetl("fmt", "-", stdin=UNTIDY).out


def test_a_file_is_formatted_in_place_with_its_comments_and_mode(noetl, untidy):
    untidy.chmod(0o640)

    ran = noetl("fmt", "a.yaml")

    assert (ran.code, ran.out, ran.err) == (0, "", "noetl: rewrote a.yaml\n")
    assert untidy.read_text().startswith("apiVersion: noetl.io/v2\nkind: Playbook\n")
    assert "# keep me" in untidy.read_text()
    assert untidy.stat().st_mode & 0o777 == 0o640


def test_formatting_again_changes_and_says_nothing(noetl, untidy):
    noetl("fmt", "a.yaml")
    before = untidy.stat()

    assert noetl("fmt", "a.yaml") == (0, "", "")
    assert untidy.stat().st_ino == before.st_ino


def test_stdin_goes_to_stdout(noetl, untidy, tidy_text):
    noetl("fmt", "a.yaml")

    assert tidy_text == untidy.read_text()
    assert noetl("fmt", "-", stdin=tidy_text).out == tidy_text


def test_check_changes_nothing_and_exits_with_1_if_something_would_change(noetl, untidy):
    would = noetl("fmt", "--check", "a.yaml")

    assert (would.code, would.out) == (1, "")
    assert "would rewrite a.yaml" in would.err
    assert untidy.read_text() == UNTIDY
    noetl("fmt", "a.yaml")
    assert noetl("fmt", "--check", "a.yaml").code == 0


def test_diff_prints_what_patch_understands_and_changes_nothing(noetl, untidy, tidy_text):
    ran = noetl("fmt", "--diff", "a.yaml")

    assert ran.code == 0
    assert untidy.read_text() == UNTIDY
    subprocess.run(
        ["patch", "-s", "a.yaml"], input=ran.out, text=True, cwd=untidy.parent, check=True
    )
    assert untidy.read_text() == tidy_text


def test_a_diff_of_a_file_without_last_line_end_is_still_what_patch_understands(noetl, untidy):
    untidy.write_text(UNTIDY.removesuffix("\n"))

    diff = noetl("fmt", "--diff", "a.yaml").out
    subprocess.run(["patch", "-s", "a.yaml"], input=diff, text=True, cwd=untidy.parent, check=True)

    assert noetl("fmt", "--check", "a.yaml").code == 0


def test_diff_together_with_check_exits_with_1(noetl, untidy):
    ran = noetl("fmt", "--check", "--diff", "a.yaml")

    assert ran.code == 1
    assert ran.out.startswith("--- a.yaml\n+++ a.yaml\n")


def test_what_is_wrong_is_left_alone_and_the_others_are_done(noetl, untidy, tmp_path):
    (tmp_path / "bad.yaml").write_text("a: [\n")
    (tmp_path / "latin.yaml").write_bytes(b"\xe9")

    ran = noetl("fmt", "bad.yaml", "latin.yaml", "missing.yaml", "a.yaml")

    assert ran.code == 2
    assert (tmp_path / "bad.yaml").read_text() == "a: [\n"
    assert "[yaml-syntax]" in ran.err
    assert "latin.yaml: not UTF-8" in ran.err
    assert "missing.yaml: there is no such file" in ran.err
    assert "rewrote a.yaml" in ran.err


def test_a_directory_is_formatted_without_what_is_no_playbook(noetl, untidy, tmp_path):
    (tmp_path / "compose.yaml").write_text("services:   {}\n")

    assert noetl("fmt", ".").err == "noetl: rewrote a.yaml\n"
    assert (tmp_path / "compose.yaml").read_text() == "services:   {}\n"


def test_a_read_only_file_is_left_alone_and_the_command_fails(noetl, untidy):
    untidy.chmod(0o444)

    ran = noetl("fmt", "a.yaml")

    assert (ran.code, ran.err) == (1, "noetl: a.yaml was not changed: it is read-only.\n")
    assert untidy.read_text() == UNTIDY


def test_a_full_disk_leaves_the_file_as_it_was(untidy):
    ran = subprocess.run(
        [*COMMAND, "fmt", "a.yaml"],
        capture_output=True,
        text=True,
        cwd=untidy.parent,
        env=clean_environment(PYTHONDONTWRITEBYTECODE="1"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10)),
    )

    assert ran.returncode == 1
    assert "a.yaml was not changed" in ran.stderr
    assert untidy.read_text() == UNTIDY
    assert list(untidy.parent.iterdir()) == [untidy]


def test_killed_while_at_work_every_file_is_old_or_new(tmp_path, tidy_text):
    paths = [tmp_path / f"{n}.yaml" for n in range(100)]
    killed_between = 0
    for files_done in (1, 2, 3, 10, 50):
        for path in paths:
            path.write_text(UNTIDY)
        with forked.popen(
            [*COMMAND, "fmt", "."], cwd=tmp_path, env=clean_environment(), stderr=subprocess.PIPE
        ) as process:
            assert process.stderr is not None
            for _ in range(files_done):
                process.stderr.readline()
            process.kill()
        texts = {path.read_text() for path in paths}
        assert texts <= {UNTIDY, tidy_text}
        killed_between += len(texts) == 2

    assert killed_between, "it was always done before the signal came; take more files"
