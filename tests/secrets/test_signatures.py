"""Signatures of deliveries: as the vendors publish them, and made by an HMAC written anew here."""

from __future__ import annotations

import base64
import hashlib

import msgspec
import pytest

from noetl.dsl.triggers import PRESETS
from noetl.model.triggers import Verify
from noetl.secrets.signatures import is_genuine, may_be_genuine

NOW = 1_760_000_000.0
BODY = b'{"id": "evt_1", "amount": "\xc3\xa4 {timestamp} {body}"}'
SECRET = "a secret that both know"


def mac(key: bytes, message: bytes, algorithm: str = "sha256") -> bytes:
    """HMAC by RFC 2104, from the hash alone."""
    made = hashlib.new(algorithm)
    key = key if len(key) <= made.block_size else hashlib.new(algorithm, key).digest()
    key = key.ljust(made.block_size, b"\0")
    inner = hashlib.new(algorithm, bytes(b ^ 0x36 for b in key) + message).digest()
    return hashlib.new(algorithm, bytes(b ^ 0x5C for b in key) + inner).digest()


# --- What the vendors publish --------------------------------------------------------------------

SLACK_BODY = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
    b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
    b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554"
    b"%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
)
PUBLISHED = {
    "github": (
        "It's a Secret to Everybody",
        b"Hello, World!",
        {
            "x-hub-signature-256": "sha256="
            "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
        },
        NOW,
    ),
    "slack": (
        "8f742231b10e8888abcd99yyyzzz85a5",
        SLACK_BODY,
        {
            "x-slack-signature": "v0="
            "a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
            "x-slack-request-timestamp": "1531420618",
        },
        1531420618.0,
    ),
    "standard-webhooks": (
        "whsec_plJ3nmyCDGBKInavdOK15jsl",
        b'{"event_type":"ping","data":{"success":true}}',
        {
            "webhook-id": "msg_loFOjxBNrRLzqYUf",
            "webhook-timestamp": "1731705121",
            "webhook-signature": "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0=",
        },
        1731705121.0,
    ),
}


@pytest.mark.parametrize("preset", PUBLISHED)
def test_the_example_that_the_vendor_publishes_is_genuine(preset: str):
    secret, body, headers, now = PUBLISHED[preset]

    assert is_genuine(PRESETS[preset], headers, body, [secret], now)
    assert not is_genuine(PRESETS[preset], headers, body + b" ", [secret], now)
    assert not is_genuine(PRESETS[preset], headers, body[:-1], [secret], now)
    assert not is_genuine(PRESETS[preset], headers, body, [secret + "x"], now)
    assert not is_genuine(PRESETS[preset], headers, body, [], now)


# --- Every way, signed here ----------------------------------------------------------------------

OWN = Verify(
    scheme="hmac",
    header="x-sign",
    algorithm="sha512",
    encoding="base64",
    prefix="s=",
    signed="{id}:{timestamp}:{body}",
    timestamp="x-time",
    id="x-id",
)
STANDARD_SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef").decode()


def signed(way: str, body: bytes = BODY, at: float = NOW, secret: str = SECRET) -> dict[str, str]:
    stamp, key = f"{at:.0f}", secret.encode()
    match way:
        case "github":
            return {"x-hub-signature-256": f"sha256={mac(key, body).hex()}"}
        case "slack":
            made = mac(key, b"v0:%b:%b" % (stamp.encode(), body)).hex()
            return {"x-slack-signature": f"v0={made}", "x-slack-request-timestamp": stamp}
        case "stripe":
            made = mac(key, stamp.encode() + b"." + body).hex()
            return {"stripe-signature": f"t={stamp},v1={'0' * 64},v1={made},v0=abc"}
        case "standard-webhooks":
            key = base64.b64decode(STANDARD_SECRET[6:]) if secret == SECRET else b"other"
            made = base64.b64encode(mac(key, b"msg_1.%b.%b" % (stamp.encode(), body))).decode()
            headers = {"webhook-id": "msg_1", "webhook-timestamp": stamp}
            return headers | {"webhook-signature": f"v1a,xyz v1,{'A' * 43}= v1,{made}"}
        case "own":
            made = base64.b64encode(mac(key, b"7:%b:%b" % (stamp.encode(), body), "sha512"))
            return {"x-sign": f"s={made.decode()}", "x-time": stamp, "x-id": "7"}
        case _:
            return {"authorization": f"Bearer {secret}"}


WAYS = {**PRESETS, "own": OWN, "token": Verify(scheme="token", header="authorization")}


def known(way: str) -> list[str]:
    return [STANDARD_SECRET if way == "standard-webhooks" else SECRET]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_signed_with_the_secret_is_genuine_and_nothing_else_is(way: str):
    verify, headers = WAYS[way], signed(way)

    assert is_genuine(verify, headers, BODY, known(way), NOW)
    assert is_genuine(verify, headers, BODY, ["an older one", *known(way)], NOW)
    assert not is_genuine(verify, signed(way, secret="another"), BODY, known(way), NOW)
    assert not is_genuine(verify, {}, BODY, known(way), NOW)
    assert not may_be_genuine(verify, {}, known(way), NOW)
    assert not is_genuine(verify, headers, BODY, [], NOW)
    assert not is_genuine(verify, headers, BODY, [""], NOW)


@pytest.mark.parametrize("secret", ["whsec_", "whsec_no base64!", "no base64 at all!"])
def test_a_secret_that_is_no_key_is_not_an_empty_one_with_which_anybody_could_sign(secret: str):
    stamp = f"{NOW:.0f}"
    made = base64.b64encode(mac(b"", b"msg_1.%b.%b" % (stamp.encode(), BODY))).decode()
    headers = {"webhook-id": "msg_1", "webhook-timestamp": stamp, "webhook-signature": f"v1,{made}"}

    assert not is_genuine(PRESETS["standard-webhooks"], headers, BODY, [secret], NOW)


@pytest.mark.parametrize("way", sorted(WAYS.keys() - {"token"}))
def test_a_body_that_was_cut_or_changed_is_not_genuine(way: str):
    verify, headers = WAYS[way], signed(way)

    for body in (BODY[:-1], BODY + b"\n", BODY.replace(b"evt_1", b"evt_2"), b""):
        assert not is_genuine(verify, headers, body, known(way), NOW)


@pytest.mark.parametrize("way", sorted(WAYS.keys() - {"token", "github"}))
def test_what_was_signed_too_long_ago_or_will_be_is_refused_before_the_body_is_read(way: str):
    verify = WAYS[way]

    for late in (-301.0, 301.0, 1e6):
        assert not may_be_genuine(verify, signed(way, at=NOW + late), known(way), NOW)
    assert is_genuine(verify, signed(way, at=NOW - 299), BODY, known(way), NOW)
    longer = msgspec.structs.replace(verify, tolerance=1000.0)
    assert is_genuine(longer, signed(way, at=NOW - 999), BODY, known(way), NOW)


@pytest.mark.parametrize("way", sorted(WAYS.keys() - {"token", "github"}))
def test_a_newer_time_cannot_be_put_on_an_old_signature(way: str):
    old, new = signed(way, at=NOW - 1000), signed(way, at=NOW)
    mixed = {
        name: new[name] if "time" in name else value.replace(f"{NOW - 1000:.0f}", f"{NOW:.0f}")
        for name, value in old.items()
    }

    assert may_be_genuine(WAYS[way], mixed, known(way), NOW)
    assert not is_genuine(WAYS[way], mixed, BODY, known(way), NOW)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "junk", ["", "=", "sha256=", "zz", "v1,", "t=1", "t=x,v1=", "ä" * 10, "v0=00"]
)
def test_no_header_however_odd_breaks_it(way: str, junk: str):
    headers = dict.fromkeys(signed(way), junk)

    assert not is_genuine(WAYS[way], headers, BODY, known(way), NOW)


def test_without_verification_everybody_may():
    assert is_genuine(Verify(scheme="none"), {}, BODY, [], NOW)


def test_only_the_parts_that_the_scheme_names_are_signatures():
    standard, own = signed("standard-webhooks"), signed("own")
    made = standard["webhook-signature"].rpartition(" v1,")[2]
    bare = own["x-sign"].removeprefix("s=")

    for header in (f"v2,{made}", f"v1a,{made}", made):
        headers = {**standard, "webhook-signature": header}
        assert not is_genuine(PRESETS["standard-webhooks"], headers, BODY, [STANDARD_SECRET], NOW)
    assert not is_genuine(OWN, {**own, "x-sign": bare}, BODY, [SECRET], NOW)


def test_of_many_signatures_the_first_are_looked_at():
    headers = signed("standard-webhooks")
    made = headers["webhook-signature"].rpartition(" ")[2]

    for others, is_seen in ((19, True), (20, False)):
        headers["webhook-signature"] = " ".join(["v1,AAAA"] * others + [made])
        found = is_genuine(PRESETS["standard-webhooks"], headers, BODY, [STANDARD_SECRET], NOW)
        assert found is is_seen


def test_a_time_in_milliseconds_is_one():
    headers = signed("own", at=NOW * 1000)

    assert is_genuine(OWN, headers, BODY, [SECRET], NOW)
    assert not is_genuine(OWN, headers, BODY, [SECRET], NOW + 301)


@pytest.mark.parametrize("shown", ["Bearer ", "Bearer  ", " "])
def test_an_empty_token_is_no_proof(shown: str):
    verify = Verify(scheme="token", header="authorization")

    assert not is_genuine(verify, {"authorization": shown}, BODY, [""], NOW)
