"""Keychain entries: where each kind finds its fields, and what it says when it does not."""

from __future__ import annotations

import asyncio

import pytest

from noetl.errors import NotAllowed, NotFound
from noetl.model.net import KeychainEntry
from noetl.secrets.keychain import Sources, opened, resolve

STORE = {"pg": {"host": "h", "password": "p"}, "team/token": {"token": "t"}, "own": {"token": "t"}}


async def stored(name):
    if name not in STORE:
        raise NotFound(f'there is no credential "{name}".')
    return STORE[name]


def resolved(kind, name="own", sources=None, **config):
    entry = KeychainEntry(name=name, kind=kind, config=config)
    return asyncio.run(resolve(entry, stored, sources))


@pytest.mark.parametrize(
    ("kind", "config", "fields"),
    [
        ("credential", {}, {"token": "t"}),
        ("credential", {"credential": "pg"}, STORE["pg"]),
        ("credential", {"credential": "pg", "key": "host"}, {**STORE["pg"], "value": "h"}),
        ("postgres_credential", {"credential": "pg"}, STORE["pg"]),
        ("secret_manager", {}, {"token": "t"}),
        ("secret_manager", {"path": "team/token"}, {"token": "t"}),
        ("secrets", {"key": "token"}, {"token": "t", "value": "t"}),
        ("static", {"value": 5}, {"value": 5}),
        ("static", {"data": {"a": 1}}, {"a": 1}),
        ("static", {"value": {"a": 1}}, {"a": 1}),
        ("bearer", {"token": "x"}, {"type": "bearer", "token": "x"}),
        ("bearer", {}, {"type": "bearer", "token": "t"}),
        (
            "basic",
            {"username": "u", "password": "p"},
            {"type": "basic", "username": "u", "password": "p"},
        ),
        (
            "oauth2",
            {"token_url": "u", "client_id": "c", "client_secret": "s", "scopes": ["a"]},
            {
                "type": "oauth2",
                "token_url": "u",
                "client_id": "c",
                "client_secret": "s",
                "scope": ["a"],
            },
        ),
    ],
)
def test_each_kind_finds_its_fields(kind, config, fields):
    assert resolved(kind, **config) == fields


def test_variables_are_open_by_name_or_pattern_and_never_those_of_noetl():
    environment = {"SHOP_KEY": "a", "OTHER": "b", "NOETL_TOKEN": "c"}
    sources = Sources(environment=environment, env_allowed=("SHOP_*", "GONE", "NOETL_*"))

    assert resolved("env", "SHOP_KEY", sources) == {"value": "a"}
    assert resolved("env", "x", sources, variable="SHOP_KEY") == {"value": "a"}
    for name in ("OTHER", "NOETL_TOKEN"):
        with pytest.raises(NotAllowed):
            resolved("env", name, sources)
    with pytest.raises(NotFound):
        resolved("env", "GONE", sources)
    with pytest.raises(NotAllowed):
        resolved("env", "SHOP_KEY")
    spelled = Sources(environment={"noetl_token": "c"}, env_allowed=("*",))
    with pytest.raises(NotAllowed):
        resolved("env", "noetl_token", spelled)
    assert opened({"noetl_token": "c", "a": "b"}, ("*",)) == {"a": "b"}


def test_a_file_is_a_value_or_fields(tmp_path):
    (tmp_path / "plain").write_text("secret\n")
    (tmp_path / "fields").write_text('{"user": "u"}')
    (tmp_path / "bytes").write_bytes(b"\xff")
    sources = Sources(file_root=str(tmp_path))

    assert resolved("file", "plain", sources) == {"value": "secret"}
    assert resolved("file", "x", sources, file="fields") == {"user": "u"}
    for name in ("gone", "bytes", "."):
        with pytest.raises(NotFound):
            resolved("file", name, sources)


def test_s09_a_file_outside_the_directory_of_secret_files_is_not_read(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "other").write_text("canary")
    (root / "link").symlink_to(tmp_path / "other")

    for name in ("../other", "link", str(tmp_path / "other"), "x/../../other"):
        with pytest.raises(NotAllowed):
            resolved("file", name, Sources(file_root=str(root)))
    with pytest.raises(NotAllowed):
        resolved("file", "x")


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("credential", {"credential": "nobody"}),
        ("credential", {"key": "gone"}),
        ("secret_manager", {"provider": "nobody"}),
        ("static", {}),
        ("basic", {"credential": "nobody"}),
    ],
)
def test_what_is_missing_is_said(kind, config):
    with pytest.raises(NotFound):
        resolved(kind, **config)
