"""kind: http over TLS and through a proxy: whom it trusts, whom it shows itself to."""

from __future__ import annotations

import datetime
import ipaddress
import ssl

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.tools.running import failure, ran
from tests.tools.web import serving


class Authority:
    """A certificate authority of our own, as PEM files."""

    def __init__(self, place):
        self.place = place
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("our authority")
        certificate = self._signed(self._name, self._key.public_key(), is_authority=True)
        self.ca = _pem(certificate)
        (place / "ca.pem").write_text(self.ca)

    def issue(self, name, password=None):
        """PEM texts of a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._signed(_name(name), key.public_key(), is_authority=False)
        hidden = (
            serialization.BestAvailableEncryption(password.encode())
            if password
            else serialization.NoEncryption()
        )
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden
        ).decode()
        (self.place / f"{name}.pem").write_text(_pem(certificate))
        (self.place / f"{name}.key").write_text(text)
        return _pem(certificate), text

    def _signed(self, subject, public_key, *, is_authority):
        now = datetime.datetime.now(datetime.UTC)
        day = datetime.timedelta(days=1)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - day)
            .not_valid_after(now + day)
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _name(text):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate):
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("pem"))


@pytest.fixture(scope="module")
def secure(authority):
    """A server that shows a certificate, and one that also wants to see one."""
    authority.issue("server")
    contexts = []
    for wants_ours in (False, True):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(authority.place / "server.pem", authority.place / "server.key")
        if wants_ours:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(authority.place / "ca.pem")
        contexts.append(context)
    with serving(contexts[0]) as open_server, serving(contexts[1]) as strict_server:
        yield f"{open_server.url}/echo", f"{strict_server.url}/echo"


def test_an_unknown_authority_is_refused_for_good(secure):
    outcome = ran("http", {"url": secure[0]})

    kind, message = failure(outcome)
    assert (kind, "certificate" in message) == ("connection", True)
    assert "under `ca`, or in SSL_CERT_FILE of the worker" in message
    assert not outcome.error.retryable


def test_it_is_trusted_when_the_task_says_so(secure, authority):
    for config in (
        {"verify_ssl": False},
        {"ca": authority.ca},
        {"ca": str(authority.place / "ca.pem")},
    ):
        assert ran("http", {"url": secure[0], **config}).is_ok, config


def test_s06_a_client_certificate_is_shown_and_its_key_to_nobody_else(secure, authority):
    certificate, key = authority.issue("client", password="canary-pw")
    files = {
        "cert": str(authority.place / "client.pem"),
        "key": str(authority.place / "client.key"),
    }
    texts = {"cert": certificate, "key": key}
    for shown in (
        {**files, "password": "canary-pw"},
        {**texts, "password": "canary-pw"},
        "stored",
    ):
        outcome = ran(
            "http",
            {"url": secure[1], "ca": authority.ca, "client_cert": shown},
            settings={"credentials": {"stored": {**texts, "password": "canary-pw"}}},
        )
        assert outcome.is_ok, outcome
    for shown in ({**files, "password": "wrong-canary"}, {"cert": "/nowhere"}, "nobody"):
        outcome = ran("http", {"url": secure[1], "ca": authority.ca, "client_cert": shown})
        assert failure(outcome)[0] == "auth", outcome
        told = msgspec.json.encode(outcome).decode()
        assert "canary" not in told
        assert "PRIVATE" not in told


def test_without_a_certificate_a_strict_server_ends_the_connection(secure, authority):
    outcome = ran("http", {"url": secure[1], "ca": authority.ca})

    assert failure(outcome)[0] == "connection"


def test_s06_a_client_certificate_is_not_shown_to_the_origin_of_a_redirect(web, secure, authority):
    certificate, key = authority.issue("client")
    shown = {"ca": authority.ca, "client_cert": {"cert": certificate, "key": key}}
    open_server, strict_server = secure
    for elsewhere in (open_server, strict_server):
        outcome = ran("http", {"url": f"{web.url}/redirect?to={elsewhere}", **shown})
        assert outcome.is_ok is (elsewhere is open_server), outcome


def test_a_request_goes_through_its_proxy(web):
    outcome = ran("http", {"url": "http://behind.invalid/echo?a=1", "proxy": web.url})

    assert outcome.is_ok, outcome
    assert outcome.result["data"]["headers"]["host"] == "behind.invalid"
