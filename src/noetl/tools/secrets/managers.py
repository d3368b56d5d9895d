"""Secret managers reached over HTTP, behind one function each: the fields of an entry.

HashiCorp Vault (and compatible servers), Google Secret Manager, AWS Secrets Manager, Azure Key
Vault. `url` overrides the provider's address, for instances and emulators.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from noetl.model.secrets import without_values
from noetl.tools.base import ToolContext
from noetl.tools.credentials import needed, text_field
from noetl.tools.failures import Failed
from noetl.tools.plain_data import read_json
from noetl.tools.web.service import ask

GOOGLE = "https://secretmanager.googleapis.com"
GOOGLE_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
GOOGLE_TOKENS = "https://oauth2.googleapis.com/token"
AZURE_TOKENS = "https://login.microsoftonline.com/{tenant}/oauth2/v2.0/token"
AZURE_SCOPE = "https://vault.azure.net/.default"
AZURE_API = "7.4"
JWT_SECONDS = 3600


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The requested entry, and the access to it."""

    name: str
    version: str | None = None
    url: str | None = None
    project: str | None = None
    fields: Mapping[str, Any] = {}
    """The fields of the credential for the secret manager."""

    __repr__ = without_values


Manager = Callable[[Wanted, ToolContext], Awaitable[dict[str, Any]]]


def _fields_in(text: str) -> dict[str, Any]:
    """A JSON object is fields; anything else is one value."""
    try:
        found = read_json(text)
    except msgspec.DecodeError:
        found = None
    return found if isinstance(found, dict) else {"value": text}


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Around what takes an answer apart. Raises Failed if it is not what the protocol says."""
    try:
        yield
    except (KeyError, TypeError, ValueError):
        # The message repeats nothing of the answer, which may hold the secret.
        raise Failed("parse", f"The answer of {what} is not in its protocol.") from None


def _address(wanted: Wanted, what: str) -> str:
    url = wanted.url or text_field(wanted.fields, "url", "address", "vault_url")
    if url is None:
        told = f"Where is {what}? Write `url`, or put it into the credential."
        raise Failed("client_error", told)
    return url.rstrip("/")


# --- HashiCorp Vault ---------------------------------------------------------------------------


async def vault(wanted: Wanted, context: ToolContext) -> dict[str, Any]:
    """The key-value engine, version 2 or 1; the first part of the name is its mount."""
    base = _address(wanted, "the vault")
    space = {"X-Vault-Namespace": wanted.project} if wanted.project else {}
    headers = {"X-Vault-Token": await _vault_token(base, wanted, context, space), **space}
    mount, _, rest = wanted.name.strip("/").partition("/")
    rest = rest.removeprefix("data/")
    version = {"version": wanted.version} if wanted.version else {}
    try:
        answer = await ask(
            context,
            "GET",
            f"{base}/v1/{quote(mount)}/data/{quote(rest)}",
            params=version,
            headers=headers,
        )
    except Failed as problem:
        if wanted.version or problem.error.kind != "not_found":
            raise
        answer = await ask(
            context, "GET", f"{base}/v1/{quote(mount)}/{quote(rest)}", headers=headers
        )
    with _reading("the vault"):
        data = answer.data["data"]
        return dict(data["data"] if "metadata" in data and "data" in data else data)


async def _vault_token(
    base: str, wanted: Wanted, context: ToolContext, space: dict[str, str]
) -> str:
    role = text_field(wanted.fields, "role_id")
    if role is None:
        return needed(wanted.fields, "token", "vault_token", "value")
    proof = {"role_id": role, "secret_id": needed(wanted.fields, "secret_id")}
    answer = await ask(context, "POST", f"{base}/v1/auth/approle/login", json=proof, headers=space)
    with _reading("the vault"):
        return str(answer.data["auth"]["client_token"])


# --- Google ------------------------------------------------------------------------------------


async def google(wanted: Wanted, context: ToolContext) -> dict[str, Any]:
    base = (wanted.url or GOOGLE).rstrip("/")
    place = quote(wanted.name)
    if not place.startswith("projects/"):
        project = wanted.project or text_field(wanted.fields, "project", "project_id")
        if project is None:
            raise Failed("client_error", "Of which project? Write `project`.")
        place = f"projects/{quote(project)}/secrets/{quote(wanted.name, safe='')}"
    answer = await ask(
        context,
        "GET",
        f"{base}/v1/{place}/versions/{quote(wanted.version or 'latest')}:access",
        headers={"Authorization": f"Bearer {await _google_token(wanted, context)}"},
    )
    with _reading("Google Secret Manager"):
        return _fields_in(base64.b64decode(answer.data["payload"]["data"]).decode())


async def _google_token(wanted: Wanted, context: ToolContext) -> str:
    fields = wanted.fields
    if token := text_field(fields, "token", "access_token"):
        return token
    if not isinstance(fields.get("private_key"), str):
        fields = _fields_in(text_field(fields, "service_account_key", "json", "value") or "")
    url = text_field(fields, "token_uri") or GOOGLE_TOKENS
    claim = {
        "iss": needed(fields, "client_email"),
        "scope": GOOGLE_SCOPE,
        "aud": url,
        "iat": int(time.time()),
        "exp": int(time.time()) + JWT_SECONDS,
    }
    signed = _signed_claim(claim, needed(fields, "private_key"))
    form = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": signed}
    answer = await ask(context, "POST", url, form=form)
    with _reading("Google's token service"):
        return str(answer.data["access_token"])


def _signed_claim(claim: dict[str, Any], pem: str) -> str:
    """A JSON Web Token, signed with an RSA key."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import padding, rsa

    try:
        key = serialization.load_pem_private_key(pem.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, rsa.RSAPrivateKey):
        told = "auth: the `private_key` of the credential is not an RSA key in PEM form."
        raise Failed("auth", told)
    parts = [msgspec.json.encode(part) for part in ({"alg": "RS256", "typ": "JWT"}, claim)]
    text = b".".join(_url_safe(part) for part in parts)
    seal = key.sign(text, padding.PKCS1v15(), hashes.SHA256())
    return (text + b"." + _url_safe(seal)).decode()


def _url_safe(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


# --- Azure -------------------------------------------------------------------------------------


async def azure(wanted: Wanted, context: ToolContext) -> dict[str, Any]:
    base = _address(wanted, "the key vault")
    place = f"secrets/{quote(wanted.name, safe='')}"
    if wanted.version:
        place = f"{place}/{quote(wanted.version, safe='')}"
    answer = await ask(
        context,
        "GET",
        f"{base}/{place}",
        params={"api-version": AZURE_API},
        headers={"Authorization": f"Bearer {await _azure_token(wanted, context)}"},
    )
    with _reading("the key vault"):
        return _fields_in(str(answer.data["value"]))


async def _azure_token(wanted: Wanted, context: ToolContext) -> str:
    fields = wanted.fields
    if token := text_field(fields, "token", "access_token"):
        return token
    url = text_field(fields, "token_url") or AZURE_TOKENS.format(
        tenant=quote(needed(fields, "tenant_id"), safe="")
    )
    from noetl.tools.web.client import access_token

    return await access_token({**fields, "token_url": url, "scope": AZURE_SCOPE}, context)


# --- AWS ---------------------------------------------------------------------------------------


async def aws(wanted: Wanted, context: ToolContext) -> dict[str, Any]:
    region = text_field(wanted.fields, "region", "aws_region") or "us-east-1"
    url = (wanted.url or f"https://secretsmanager.{region}.amazonaws.com").rstrip("/") + "/"
    question = {"SecretId": wanted.name}
    if wanted.version:
        question["VersionId"] = wanted.version
    body = msgspec.json.encode(question).decode()
    headers = {
        "Content-Type": "application/x-amz-json-1.1",
        "X-Amz-Target": "secretsmanager.GetSecretValue",
    }
    signed = signed_headers(url, body, headers, region, wanted.fields, datetime.now(UTC))
    try:
        answer = await ask(context, "POST", url, body=body, headers=signed)
    except Failed as problem:
        # AWS answers 400 where others answer 404 or 403; the type in the body tells them apart.
        said = str(problem.error.details)
        if "ResourceNotFoundException" in said:
            raise Failed("not_found", f'There is no secret "{wanted.name}".', status=400) from None
        if "AccessDenied" in said or "UnrecognizedClient" in said or "InvalidSignature" in said:
            told = "AWS Secrets Manager refuses the credential."
            raise Failed("auth", told, status=400) from None
        raise
    with _reading("AWS Secrets Manager"):
        if "SecretString" in answer.data:
            return _fields_in(str(answer.data["SecretString"]))
        return {"value": str(answer.data["SecretBinary"])}


def signed_headers(
    url: str,
    body: str,
    headers: Mapping[str, str],
    region: str,
    fields: Mapping[str, Any],
    now: datetime,
) -> dict[str, str]:
    """The headers of a POST without query, signed for AWS (version 4)."""
    key_id = needed(fields, "access_key_id", "aws_access_key_id")
    secret = needed(fields, "secret_access_key", "aws_secret_access_key")
    session = text_field(fields, "session_token", "aws_session_token")
    moment, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    own = {"X-Amz-Date": moment} | ({"X-Amz-Security-Token": session} if session else {})
    signed = {"host": urlsplit(url).netloc} | {
        name.lower(): value.strip() for name, value in (dict(headers) | own).items()
    }
    names = ";".join(sorted(signed))
    lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
    request = f"POST\n/\n\n{lines}\n{names}\n{_sha256(body)}"
    scope = f"{day}/{region}/secretsmanager/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{_sha256(request)}"
    key = f"AWS4{secret}".encode()
    for part in (day, region, "secretsmanager", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    seal = hmac.digest(key, text.encode(), "sha256").hex()
    proof = f"AWS4-HMAC-SHA256 Credential={key_id}/{scope}, SignedHeaders={names}, Signature={seal}"
    return {**headers, **own, "Authorization": proof}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


MANAGERS: dict[str, Manager] = {"vault": vault, "google": google, "aws": aws, "azure": azure}
