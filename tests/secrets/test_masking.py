"""Secrets are found again in every form they travel in, and nothing else is touched."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetl.errors import SecretInFile
from noetl.model.outcome import Outcome, TaskError
from noetl.secrets.masking import Mask

CANARY = 'can/ary+"sécret\\ 1'


def mask_of(*secrets):
    mask = Mask()
    for secret in secrets:
        mask.add(secret)
    return mask


@pytest.mark.parametrize(
    "form",
    [
        CANARY,
        quote(CANARY),
        quote(CANARY, safe=""),
        quote_plus(CANARY),
        base64.b64encode(CANARY.encode()).decode(),
        base64.urlsafe_b64encode(CANARY.encode()).decode(),
        json.dumps(CANARY, ensure_ascii=False)[1:-1],
        json.dumps(CANARY)[1:-1],
        ascii(CANARY)[1:-1],
        CANARY.encode().hex(),
        CANARY.encode().hex().upper(),
        "".join(f"%{byte:02x}" for byte in CANARY.encode()),
    ],
)
def test_s06_each_form_is_masked(form):
    text = mask_of(CANARY).text(f"before {form} after")

    assert form not in text
    assert text.startswith("before ***")
    assert text.endswith(" after")


@given(
    st.text(alphabet=st.characters(codec="utf-8"), min_size=8, max_size=40),
    st.binary(max_size=9),
    st.binary(max_size=9),
)
def test_s06_a_secret_inside_of_something_encoded_is_masked(secret, before, after):
    whole = base64.b64encode(before + secret.encode() + after).decode()
    masked = mask_of(secret).text(whole)

    assert "***" in masked
    # What is left around it is at most what its neighbours share with it.
    assert len(masked) <= len(whole) - len(secret.encode()) * 4 // 3 + 6 + len("***")


def test_data_is_masked_at_any_depth_but_its_keys_are_not():
    value = {"a": [{"b": f"x{CANARY}"}], "n": 5, "t": ("y", CANARY), "k": {f"x{CANARY}": 1}}

    assert mask_of(CANARY).value(value) == {
        "a": [{"b": "x***"}],
        "n": 5,
        "t": ["y", "***"],
        "k": "***",
    }


def test_data_that_is_no_secret_is_never_damaged():
    mask = mask_of("demo", "fifteen-letters", 4711)
    data = {
        "demo": "demographics",
        "note": "a demo of fifteen-letters-and-more",
        "encoded": base64.b64encode(b"demo").decode(),
        "year": 4711,
    }

    assert mask.value(data) == data
    assert mask.text("a demo of demographics") == "a *** of ***graphics"


@pytest.mark.parametrize("whole", ["demo", "fifteen-letters"])
def test_a_secret_of_any_length_is_masked_in_data_where_it_is_all_of_a_text(whole):
    assert mask_of(whole).value({"a": [whole]}) == {"a": ["***"]}


def test_a_number_that_is_a_secret_is_masked_as_number_and_as_text():
    mask = mask_of({"pin": 90210733, "port": 54321987, "ratio": 1.25})

    assert mask.value([90210733, "90210733", 54321987, 1.25, True]) == [
        "***",
        "***",
        54321987,
        1.25,
        True,
    ]
    assert mask.text("the pin is 90210733") == "the pin is ***"


def test_s29_of_a_credential_that_a_task_was_given_every_field_is_secret():
    mask = Mask()
    mask.add_given(
        {"username": "svc-reporting", "key": "k-1234", "path": "/team/x", "n": [77777777]}
    )

    given = ["svc-reporting", "k-1234", "/team/x", 77777777]
    assert mask.value(given) == ["***"] * 4


@pytest.mark.parametrize(
    ("form", "content", "wanted"),
    [
        ("ndjson", f'{{"a": {json.dumps(CANARY)}}}\n{{"demo": "demo", "b": "demos"}}\n', 2),
        ("csv", f"a,b\ndemo,demos\nx{CANARY.split(chr(34))[0]},demo\n", 2),
    ],
)
def test_s29_a_file_is_masked_as_other_data_is(tmp_path, form, content, wanted):
    path = tmp_path / "file"
    path.write_text(content)
    mask_of(CANARY, "demo").file(path, form)
    masked = path.read_text()

    assert masked.count("***") == wanted
    assert CANARY not in masked
    assert json.dumps(CANARY)[1:-1] not in masked
    assert "demos" in masked
    assert len(masked.splitlines()) == len(content.splitlines())


def test_s29_a_file_that_cannot_be_masked_is_refused_and_one_without_secrets_untouched(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"PAR1 demo demo")
    mask = mask_of(CANARY, "demo")
    mask.file(path, "parquet")
    assert path.read_bytes() == b"PAR1 demo demo"

    path.write_bytes(b"x" * (1024 * 1024 - 5) + CANARY.encode())
    with pytest.raises(SecretInFile, match="parquet"):
        mask.file(path, "parquet")


def test_every_part_of_an_outcome_is_masked():
    outcome = Outcome(
        status="error",
        result={"r": CANARY},
        error=TaskError(kind="auth", message=CANARY, code=CANARY, details=[CANARY]),
        http={"headers": {"x": CANARY}},
        pg={"a": CANARY},
        py={"a": CANARY},
        sh={"a": CANARY},
    )
    told = mask_of(CANARY).outcome(outcome)

    assert "can" not in msgspec.json.encode(told).decode()
    assert told.error.kind == "auth"
    assert told.status == "error"


def test_of_a_credential_only_what_is_secret_is_masked():
    mask = mask_of(
        {
            "type": "postgres",
            "host": "localhost",
            "port": 5432,
            "user": "postgres",
            "password": "hunter22",
            "dsn": "postgresql://me:pass%word@host/db",
            "key": "-----BEGIN PRIVATE KEY-----\nMIIBVAIBADANBgkqhkiG9w0B\n-----END-----",
        }
    )

    assert mask.text("postgres at localhost:5432") == "postgres at localhost:5432"
    assert mask.text("is hunter22 or pass%word") == "is *** or ***"
    assert mask.text("line MIIBVAIBADANBgkqhkiG9w0B") == "line ***"


def test_without_secrets_nothing_is_touched():
    mask = mask_of("", "abc", None, 5, [])
    value = {"a": "abc"}

    assert not mask
    assert mask.value(value) is value
    assert mask.text("abc") == "abc"


def test_a_longer_secret_is_masked_whole_when_a_shorter_one_is_part_of_it():
    assert mask_of("secret", "secret-and-more").text("secret-and-more secret") == "*** ***"
