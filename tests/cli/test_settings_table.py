"""Settings: one table, read once, with clear words about what will not do."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from noetl.errors import BadSetting
from noetl.model.net import Limits
from noetl.settings import MASK, TABLE, Settings, database_url, unknown_variables

BY_NAME = {setting.name: setting for setting in TABLE}


def test_the_table_and_the_struct_have_the_same_settings_and_defaults():
    fields = msgspec.structs.fields(Settings)

    assert [(row.field, row.default) for row in TABLE] == [(f.name, f.default) for f in fields]


def test_names_follow_from_fields_and_there_are_fewer_than_forty():
    assert [row.name for row in TABLE] == [f"NOETL_{row.field.upper()}" for row in TABLE]
    assert len(TABLE) < 40


@pytest.mark.parametrize(
    ("variable", "default"),
    [("NOETL_UI", "on"), ("NOETL_STRICT", "off"), ("NOETL_TRUSTED_PROXIES", "none")],
)
def test_a_wrong_value_is_refused_with_the_default_as_one_would_write_it(
    variable: str, default: str
):
    with pytest.raises(BadSetting) as caught:
        Settings.from_environment({variable: "maybe"})

    assert str(caught.value).endswith(f"unset it to use the default ({default}).")


def test_every_setting_is_documented_with_its_help():
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()

    for row in TABLE:
        assert f"`{row.name}`" in page
        assert row.help in page


def test_without_variables_every_setting_has_its_default():
    settings = Settings.from_environment({})

    assert settings.database_url == "sqlite:///.noetl/noetl.db"
    assert settings.limits == Limits()


def test_an_empty_variable_counts_as_not_set():
    assert Settings.from_environment({"NOETL_TIMEOUT": " "}).timeout is None


def test_values_are_read_with_their_types():
    settings = Settings.from_environment(
        {
            "NOETL_DATABASE_URL": "postgresql://u:p@h:5432/db",
            "NOETL_LOG": "DEBUG",
            "NOETL_MAX_ATTEMPTS": "7",
            "NOETL_TIMEOUT": "2.5",
        }
    )

    assert settings.database_url == "postgresql://u:p@h:5432/db"
    assert settings.log == "debug"
    assert settings.limits == Limits(max_attempts=7, timeout=2.5)


@pytest.mark.parametrize("rest", ["u:p@h:5432/db", "/db"])
def test_both_spellings_of_postgresql_name_the_same_database(rest: str):
    said = Settings.from_environment({"NOETL_DATABASE_URL": f"postgres://{rest}"})

    assert said.database_url == database_url(f"postgres://{rest}") == f"postgresql://{rest}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NOETL_DATABASE_URL", "mysql://h/db"),
        ("NOETL_DATABASE_URL", "sqlite://"),
        ("NOETL_DATABASE_URL", "sqlite://noetl.db"),
        ("NOETL_DATABASE_URL", "postgresql://h:port/db"),
        ("NOETL_SERVER_URL", "localhost:8082"),
        ("NOETL_SERVER_URL", "http://"),
        ("NOETL_NATS_URL", "http://h"),
        ("NOETL_TOKEN", "two words"),
        ("NOETL_SECRET_KEY", "a\x07b"),
        ("NOETL_LOG", "loud"),
        ("NOETL_MAX_ATTEMPTS", "0"),
        ("NOETL_MAX_ATTEMPTS", "-1"),
        ("NOETL_MAX_ATTEMPTS", "1.5"),
        ("NOETL_MAX_ATTEMPTS", "1_000"),
        ("NOETL_MAX_ATTEMPTS", "9" * 5000),
        ("NOETL_MAX_IN_FLIGHT", "many"),
        ("NOETL_TIMEOUT", "nan"),
        ("NOETL_TIMEOUT", "inf"),
        ("NOETL_TIMEOUT", "0"),
    ],
)
def test_a_value_that_will_not_do_is_refused_by_name_with_what_is_expected(name, value):
    with pytest.raises(BadSetting) as refused:
        Settings.from_environment({name: value})

    assert name in str(refused.value)
    assert BY_NAME[name].kind.expected in str(refused.value)


def test_secrets_appear_neither_in_messages_nor_in_reprs():
    settings = Settings.from_environment(
        {"NOETL_TOKEN": "tok-123", "NOETL_DATABASE_URL": "postgresql://u:pass-123@h/db"}
    )
    with pytest.raises(BadSetting) as refused:
        Settings.from_environment({"NOETL_DATABASE_URL": "mysql://u:pass-123@h/db"})

    assert "123" not in repr(settings) + str(refused.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:pw@h/db", f"postgresql://u:{MASK}@h/db"),
        ("postgresql://u:p@w@h/db", f"postgresql://u:{MASK}@h/db"),
        ("postgresql://h/db?user=u&password=pw", f"postgresql://h/db?user=u&password={MASK}"),
        ("sqlite:///a/b.db", "sqlite:///a/b.db"),
    ],
)
def test_of_a_url_only_the_password_is_hidden(url, shown):
    assert BY_NAME["NOETL_DATABASE_URL"].shown(url) == shown


def test_a_misspelt_setting_is_pointed_out_with_its_right_name():
    [remark] = unknown_variables({"NOETL_DATABSE_URL": "x", "PATH": "y", "NOETL_LOG": "info"})

    assert "NOETL_DATABSE_URL is not a setting" in remark
    assert 'Did you mean "NOETL_DATABASE_URL"?' in remark


def test_what_kubernetes_writes_for_a_service_called_noetl_is_no_mistake():
    assert not unknown_variables(
        {
            "NOETL_SERVICE_HOST": "10.0.0.1",
            "NOETL_SERVER_SERVICE_PORT_HTTP": "8082",
            "NOETL_PORT": "tcp://10.0.0.1:8082",
            "NOETL_PORT_8082_TCP_ADDR": "10.0.0.1",
        }
    )
    assert unknown_variables({"NOETL_PORT": "8082"})
