"""Commands that refuse what they are given leave nothing behind, and no database."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_run import HELLO

WRONG = HELLO.replace("workflow:", "workfow:")
REFUSED = (
    "register wrong.yaml",
    "register .",
    "register missing.yaml",
    "register credential.json",
    "validate wrong.yaml",
    "run wrong.yaml",
    "test wrong.yaml",
    "plan wrong.yaml",
    "credential set shop",
    "credential delete shop",
    "access token create ci --role author --expires soon",
    "access token revoke ci",
    "schedules pause shop/nightly",
    "hooks delete shop/orders",
    "consumers resume shop/orders",
    "notifications list",
    "executions cancel 5",
    "executions list",
    "executions resume-all",
    "execute shop/orders --db other.db",
    "run shop/orders",
    "keys rotate",
)


@pytest.mark.parametrize("command", REFUSED)
def test_what_is_refused_makes_no_database(noetl, tmp_path: Path, command: str):
    (tmp_path / "wrong.yaml").write_text(WRONG)
    (tmp_path / "credential.json").write_text('{"name": "shop"}')
    before = sorted(tmp_path.iterdir())

    ran = noetl(*command.split())

    assert ran.code in (1, 2), ran
    assert ran.err + ran.out
    assert sorted(tmp_path.iterdir()) == before


def test_files_that_are_all_wrong_are_all_told_of(noetl, tmp_path: Path):
    (tmp_path / "wrong.yaml").write_text(WRONG)
    (tmp_path / "credential.json").write_text('{"name": "shop"}')

    ran = noetl("register", "wrong.yaml", "credential.json", "missing.yaml", "--json")

    assert ran.code == 2
    assert '"registered": []' in ran.out
    assert "wrong.yaml:" in ran.err
    assert "credential.json: a credential has a `name`" in ran.err
    assert "missing.yaml: there is no such file." in ran.err


def test_one_file_that_is_right_is_registered_beside_the_wrong_ones(noetl, tmp_path: Path):
    (tmp_path / "wrong.yaml").write_text(WRONG)
    (tmp_path / "right.yaml").write_text(HELLO)

    ran = noetl("register", "wrong.yaml", "right.yaml")

    assert ran.code == 2
    assert ran.err.count("[unknown-key]") == 1
    assert "right.yaml: tests/hello version 1" in ran.err
    assert (tmp_path / ".noetl" / "noetl.db").exists()
