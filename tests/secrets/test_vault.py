"""Credentials at rest: sealed, bound to their name, and lost keys lose nothing else."""

from __future__ import annotations

import base64
import hashlib
import logging
import threading

import pytest

from noetl.errors import BadSetting, Corrupted, WrongKey
from noetl.secrets.operator_key import (
    OperatorKey,
    add_key,
    drop_old_keys,
    key_from_text,
    keys_from_file,
)
from noetl.secrets.vault import Vault, key_of
from tests.effort import later

FIELDS = {"user": "me", "password": "canary-password", "port": 5432}
KEY = key_of(b"k" * 32)
WORDS = "correct-horse-battery"


@pytest.fixture(scope="module")
def stretched():
    """The key that is made of `WORDS` with the salt `a`: a few tenths of a second."""
    return key_from_text(WORDS, "a")


def test_what_is_sealed_opens_and_shows_nothing():
    sealed = Vault([KEY]).seal("pg", FIELDS)

    assert Vault([KEY]).open("pg", sealed) == FIELDS
    assert b"canary" not in sealed
    assert b"k" * 8 not in sealed
    assert Vault([KEY]).seal("pg", FIELDS) != sealed
    assert "kkk" not in repr(KEY)


def test_s16_another_key_is_told_apart_from_damage_and_names_both_keys():
    sealed = Vault([KEY]).seal("pg", FIELDS)
    other = key_of(b"x" * 32)

    with pytest.raises(WrongKey) as problem:
        Vault([other]).open("pg", sealed)
    assert KEY.id.hex() in str(problem.value)
    assert other.id.hex() in str(problem.value)


def test_every_changed_byte_is_noticed():
    sealed = Vault([KEY]).seal("pg", FIELDS)
    for at in range(len(sealed)):
        changed = sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :]
        with pytest.raises((Corrupted, WrongKey)):
            Vault([KEY]).open("pg", changed)
    for cut in (0, 3, 50, len(sealed) - 1):
        with pytest.raises(Corrupted):
            Vault([KEY]).open("pg", sealed[:cut])


def test_a_sealed_credential_does_not_open_under_another_name():
    with pytest.raises(Corrupted):
        Vault([KEY]).open("other", Vault([KEY]).seal("pg", FIELDS))


def test_s16_rotation_keeps_the_fields_and_needs_the_old_key_no_longer():
    new = key_of(b"n" * 32)
    both = Vault([new, KEY])
    sealed = Vault([KEY]).seal("pg", FIELDS)
    assert both.open("pg", sealed) == FIELDS
    assert not both.is_current(sealed)

    rotated = both.rotated("pg", sealed)

    assert both.is_current(rotated)
    assert Vault([new]).open("pg", rotated) == FIELDS
    with pytest.raises(WrongKey):
        Vault([KEY]).open("pg", rotated)


# --- Keys --------------------------------------------------------------------------------------


def test_a_key_file_is_made_once_for_its_owner_only(tmp_path):
    path = tmp_path / "data" / "secret.key"
    [first] = keys_from_file(path, may_create=True)

    assert path.stat().st_mode & 0o777 == 0o600
    assert keys_from_file(path, may_create=True) == [first]
    assert [entry.name for entry in path.parent.iterdir()] == ["secret.key"]


def test_processes_that_make_it_at_once_agree(tmp_path):
    path = tmp_path / "secret.key"
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(keys_from_file(path, may_create=True)[0].id))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 8
    assert len(set(found)) == 1


def test_s16_a_lost_key_file_is_not_made_again_behind_our_back(tmp_path):
    path = tmp_path / "secret.key"
    with pytest.raises(WrongKey, match="is gone"):
        keys_from_file(path, may_create=False)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"short\n", b"\xff\xfe", b"!!!!\n"])
def test_s16_a_damaged_key_file_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "secret.key"
    path.write_bytes(content)
    path.chmod(0o600)

    with pytest.raises(WrongKey):
        keys_from_file(path, may_create=True)
    assert path.read_bytes() == content


def test_a_key_file_that_others_can_read_is_refused(tmp_path):
    path = tmp_path / "secret.key"
    keys_from_file(path, may_create=True)
    path.chmod(0o644)

    with pytest.raises(WrongKey, match="chmod 600"):
        keys_from_file(path, may_create=True)


def test_keys_are_added_before_the_old_ones_and_those_are_dropped(tmp_path):
    path = tmp_path / "secret.key"
    [old] = keys_from_file(path, may_create=True)

    new, still = add_key(path)
    assert still == old
    assert new != old
    assert drop_old_keys(path) == [new] == keys_from_file(path, may_create=False)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_setting_is_a_key_in_base64_or_hex_or_a_passphrase(stretched):
    secret = bytes(range(32))

    assert key_from_text(secret.hex(), "a") == key_of(secret)
    assert key_from_text(base64.b64encode(secret).decode(), "a") == key_of(secret)
    assert key_from_text(base64.urlsafe_b64encode(secret).decode(), "b") == key_of(secret)
    assert stretched != key_from_text("correct-horse-batterx", "a")
    assert stretched != key_from_text(WORDS, "b")
    with pytest.raises(WrongKey):
        key_from_text("short", "a")


def test_s34_a_passphrase_is_stretched_with_a_salt_and_costs_as_much_as_is_advised(stretched):
    salt = b"noetl-vault-2:a"
    again = hashlib.scrypt(WORDS.encode(), salt=salt, n=2**17, r=8, p=1, maxmem=2**28, dklen=32)

    assert stretched.secret == again


def test_s34_what_was_sealed_under_the_old_stretching_opens_and_is_moved(stretched):
    old = key_of(hashlib.scrypt(WORDS.encode(), salt=b"noetl-vault-1", n=2**14, r=8, p=1, dklen=32))
    sealed = Vault([old]).seal("shop", {"password": "canary"})
    today = OperatorKey(WORDS, None).vault("a")

    assert today.open("shop", sealed) == {"password": "canary"}
    assert not today.is_current(sealed)
    moved = today.rotated("shop", sealed)
    assert Vault([stretched]).open("shop", moved) == {"password": "canary"}


WEAK = ["a" * 20, "passwordpassword", "1234567890abcdef"[:8] * 2, "abcdefghijklmnopqrst"]


@pytest.mark.parametrize("words", WEAK)
def test_s34_a_weak_passphrase_is_refused(words):
    with pytest.raises(BadSetting, match="easily guessed"):
        OperatorKey(words, None).vault("a", may_create=True)
    with pytest.raises(BadSetting, match="easily guessed"):
        OperatorKey(f"{words},{WORDS}", None).vault("a")


@pytest.mark.parametrize("words", [WEAK[0], *later(WEAK[1:])])
def test_s34_a_weak_passphrase_opens_what_it_sealed(words, caplog):
    sealed = Vault([key_from_text(words, "a")]).seal("pg", FIELDS)

    assert OperatorKey(words, None).vault("a").open("pg", sealed) == FIELDS
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "easily guessed" in caplog.text
