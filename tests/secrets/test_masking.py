"""Secrets are found again in every form they travel in, and nothing else is touched."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_a_value_is_masked_at_any_depth_and_in_keys():
    value = {"a": [{"b": f"x{CANARY}"}], CANARY: 1, "n": 5, "t": ("y", CANARY)}

    assert mask_of(CANARY).value(value) == {
        "a": [{"b": "x***"}],
        "***": 1,
        "n": 5,
        "t": ["y", "***"],
    }


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
