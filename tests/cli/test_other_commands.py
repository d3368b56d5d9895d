"""`noetl migrate`, `noetl schema`, `noetl settings`."""

from __future__ import annotations

import json

import jsonschema
import pytest

from noetl.cli.commands import FIRST_EXAMPLE
from noetl.settings import TABLE

OLD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: old, path: old}
workflow:
  - step: start
    tool: {kind: noop}
    input: {a: 1}
    next: [{step: end}]
  - step: end
    tool: {kind: noop}
"""


@pytest.fixture
def old(tmp_path):
    path = tmp_path / "old.yaml"
    path.write_text(OLD)
    return path


def test_migrate_prints_the_new_text_and_reports_on_stderr(noetl, old):
    ran = noetl("migrate", "old.yaml")

    assert ran.code == 0
    assert "input:" not in ran.out
    assert "old.yaml:7: changed: " in ran.err
    assert old.read_text() == OLD
    assert noetl("validate", "-", stdin=ran.out).code == 0


def test_migrate_check_exits_with_1_until_migrate_write_has_been_there(noetl, old):
    printed = noetl("migrate", "old.yaml").out
    first = noetl("migrate", "--check", "old.yaml")
    written = noetl("migrate", "--write", "old.yaml")

    assert (first.code, first.out) == (1, "")
    assert (written.code, written.out) == (0, "")
    assert "rewrote old.yaml" in written.err
    assert old.read_text() == printed
    assert noetl("migrate", "--check", "old.yaml").code == 0


def test_migrate_reads_stdin(noetl, old):
    assert noetl("migrate", "-", stdin=OLD).out == noetl("migrate", "old.yaml").out


def test_migrate_takes_a_directory(noetl, old, tmp_path):
    (tmp_path / "more.yaml").write_text(OLD)

    ran = noetl("migrate", "--check", ".")

    assert ran.code == 1
    assert "2 files would be rewritten, of 2" in ran.err


def test_migrate_leaves_alone_what_it_cannot_read_and_does_the_others(noetl, old, tmp_path):
    (tmp_path / "bad.yaml").write_text("a: [\n")

    ran = noetl("migrate", "--write", "bad.yaml", "missing.yaml", "old.yaml")

    assert ran.code == 2
    assert (tmp_path / "bad.yaml").read_text() == "a: [\n"
    assert "bad.yaml:2:1: " in ran.err
    assert "missing.yaml: there is no such file" in ran.err
    assert old.read_text() != OLD


def test_schema_prints_a_json_schema_that_accepts_the_first_example(noetl):
    import yaml

    ran = noetl("schema")
    schema = json.loads(ran.out)
    drafts = jsonschema.validators.validator_for(schema)
    drafts.check_schema(schema)

    assert (ran.code, ran.err) == (0, "")
    drafts(schema).validate(yaml.safe_load(FIRST_EXAMPLE))
    assert not drafts(schema).is_valid({"apiVersion": "noetl.io/v2"})


def test_settings_prints_every_setting_with_value_default_and_help(noetl):
    ran = noetl("settings", NOETL_MAX_ATTEMPTS="5")

    assert (ran.code, ran.err) == (0, "")
    assert "NOETL_MAX_ATTEMPTS       5 tries  (default none)" in ran.out
    assert "NOETL_ENV_SECRETS        none  (default)" in ran.out
    assert "NOETL_STRICT             off  (default)" in ran.out
    assert ran.out.isascii()
    for row in TABLE:
        assert row.name in ran.out
        assert row.help.replace("…", "...") in ran.out


def test_settings_json_is_one_document_with_every_setting(noetl):
    ran = noetl("settings", "--json", NOETL_LOG="error")
    rows = {row["name"]: row for row in json.loads(ran.out)["settings"]}

    assert list(rows) == [row.name for row in TABLE]
    assert rows["NOETL_LOG"] == {
        "name": "NOETL_LOG",
        "value": "error",
        "is_set": True,
        "default": "info",
        "unit": "",
        "secret": False,
        "help": next(row.help for row in TABLE if row.name == "NOETL_LOG"),
        "problem": None,
    }


def test_settings_never_prints_secrets(noetl):
    secrets = {
        "NOETL_TOKEN": "canary-1",
        "NOETL_SECRET_KEY": "canary-2",
        "NOETL_DATABASE_URL": "postgresql://u:canary-3@h/db",
        "NOETL_SERVER_URL": "ftp://u:canary-4@h",
    }

    for arguments in (["settings"], ["settings", "--json"]):
        ran = noetl(*arguments, **secrets)
        assert "canary" not in ran.out + ran.err
        assert "********" in ran.out


def test_settings_shows_a_bad_value_beside_the_good_ones_and_exits_with_2(noetl):
    ran = noetl("settings", "--json", NOETL_TIMEOUT="soon", NOETL_LOG="debug")
    rows = {row["name"]: row for row in json.loads(ran.out)["settings"]}

    assert ran.code == 2
    assert 'NOETL_TIMEOUT is "soon"' in rows["NOETL_TIMEOUT"]["problem"]
    assert 'noetl: NOETL_TIMEOUT is "soon"' in ran.err
    assert rows["NOETL_LOG"]["value"] == "debug"


def test_settings_are_coloured_on_a_terminal(on_terminal, uncoloured):
    shown = on_terminal("settings", columns=80)

    assert "\x1b[" in shown
    assert max(map(len, uncoloured(shown).splitlines())) <= 80
