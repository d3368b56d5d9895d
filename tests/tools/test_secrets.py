"""kinds secrets and noop, and what every kind that runs promises."""

from __future__ import annotations

import msgspec
import pytest

from noetl.secrets.keychain import Sources
from noetl.tools.base import TaskLog
from noetl.tools.registry import BUILT_IN, tools
from tests.tools.running import failure, ran

KINDS = [tools()[kind] for kind in BUILT_IN]
ENVIRONMENT = {"OPEN": "canary-env", "SHUT": "x"}
SETTINGS = {
    "credentials": {"shop": {"token": "canary-token", "user": "me"}, "one": {"value": "canary"}},
    "sources": Sources(environment=ENVIRONMENT, env_allowed=("OPEN", "GONE")),
}


def read(**config):
    return ran("secrets", config, settings=SETTINGS)


def test_a_field_or_the_whole_entry_is_read():
    assert read(secret="shop", field="token").result == "canary-token"
    assert read(secret="shop").result == {"token": "canary-token", "user": "me"}
    assert read(secret="one").result == "canary"


def test_a_variable_is_read_if_the_operator_allows_it():
    assert read(secret="OPEN", provider="env").result == "canary-env"
    assert failure(read(secret="SHUT", provider="env"))[0] == "auth"
    assert failure(read(secret="GONE", provider="env"))[0] == "not_found"


def test_s09_a_file_is_read_below_the_operators_directory_only(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "key").write_text("canary-file\n")
    (tmp_path / "outside").write_text("x")
    settings = {"sources": Sources(file_root=str(tmp_path / "root"))}

    def read_file(name):
        return ran("secrets", {"secret": name, "provider": "file"}, settings=settings)

    assert read_file("key").result == "canary-file"
    assert failure(read_file("../outside"))[0] == "auth"
    assert failure(read_file(str(tmp_path / "outside")))[0] == "auth"
    assert failure(read_file("gone"))[0] == "not_found"
    assert failure(read(secret="key", provider="file"))[0] == "auth"


def test_what_is_missing_is_named_without_what_is_there():
    for config in ({"secret": "nobody"}, {"secret": "shop", "field": "gone"}):
        outcome = read(**config)
        assert failure(outcome)[0] == "not_found"
        assert "canary" not in msgspec.json.encode(outcome).decode()


# --- noop --------------------------------------------------------------------------------------


def test_noop_yields_its_result_or_its_inputs():
    assert ran("noop", {"result": [1]}, inputs={"a": 1}).result == [1]
    assert ran("noop", {"result": 0}, inputs={"a": 1}).result == 0
    assert ran("noop", {}, inputs={"a": 1}).result == {"a": 1}


# --- Every kind --------------------------------------------------------------------------------


def test_every_kind_runs_but_those_that_the_worker_runs_itself():
    assert {tool.kind for tool in KINDS if tool.run is None} == {"playbook", "workbook"}


@pytest.mark.parametrize("tool", [tool for tool in KINDS if tool.run], ids=lambda t: t.kind)
def test_a_config_with_an_unknown_key_never_reaches_the_tool(tool):
    with pytest.raises(msgspec.ValidationError):
        ran(tool.kind, {"no_such_key": 1})


def test_a_log_keeps_the_end_of_what_was_printed():
    log = TaskLog(limit=10)
    assert log.text() == ""
    log("12345")
    log("67890")
    assert log.text() == "1234567890"
    for _ in range(10):
        log("abcdef")
    log("the end")

    assert log.text() == "[… earlier output dropped]\ndefthe end"
