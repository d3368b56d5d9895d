"""Secret managers as their protocols have them, on this machine: Vault, Google, Azure, AWS."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.tools.services import answering

SECRET = "canary-of-the-manager"
VAULT = {"token": "canary-vault-token"}
AZURE = {"token": "canary-azure-token"}
GOOGLE = {"token": "canary-google-token"}
AWS = {
    "access_key_id": "AKIDTRIAL",
    "secret_access_key": "canary-aws-secret",
    "region": "eu-west-1",
}


class Managers:
    """Four secret managers at one address; each lets in only who shows the right thing."""

    def __init__(self) -> None:
        self.seen: list[web.Request] = []
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    # --- Vault ---

    async def vault(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        if request.headers.get("X-Vault-Token") != "canary-vault-token":
            return web.json_response({"errors": ["permission denied"]}, status=403)
        match request.match_info["rest"]:
            case "kv/data/shop":
                version = request.query.get("version", "2")
                data = {"api_key": f"{SECRET}-{version}", "user": "me"}
                return web.json_response({"data": {"data": data, "metadata": {"version": 2}}})
            case "old/shop":
                return web.json_response({"data": {"value": SECRET}})
            case "odd/data/shop":
                return web.json_response({"data": SECRET})
        return web.json_response({"errors": []}, status=404)

    async def approle(self, request: web.Request) -> web.StreamResponse:
        given = await request.json()
        if given != {"role_id": "r", "secret_id": "canary-secret-id"}:
            return web.json_response({"errors": ["invalid role or secret ID"]}, status=400)
        return web.json_response({"auth": {"client_token": "canary-vault-token"}})

    # --- Google ---

    async def google(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != "Bearer canary-google-token":
            return web.json_response({"error": {"message": "who are you"}}, status=401)
        if "/secrets/shop/" not in request.path:
            return web.json_response({"error": {"message": "not found"}}, status=404)
        version = request.path.rpartition("/")[2].removesuffix(":access")
        data = base64.b64encode(f"{SECRET}-{version}".encode()).decode()
        return web.json_response({"payload": {"data": data}})

    async def google_token(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        head, claim, seal = str(form["assertion"]).split(".")
        self.key.public_key().verify(
            _unsafe(seal), f"{head}.{claim}".encode(), padding.PKCS1v15(), hashes.SHA256()
        )
        assert json.loads(_unsafe(claim))["iss"] == "robot@example.com"
        return web.json_response({"access_token": "canary-google-token"})

    # --- Azure ---

    async def azure(self, request: web.Request) -> web.StreamResponse:
        assert request.query["api-version"] == "7.4"
        if request.headers.get("Authorization") != "Bearer canary-azure-token":
            return web.json_response({"error": {"message": "who are you"}}, status=401)
        if request.match_info["rest"].split("/")[0] != "shop":
            return web.json_response({"error": {"message": "not found"}}, status=404)
        return web.json_response({"value": json.dumps({"password": SECRET})})

    async def azure_token(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        form = await request.post()
        assert form["scope"] == "https://vault.azure.net/.default"
        good = form["client_secret"] == "canary-client-secret"
        told = {"access_token": "canary-azure-token"} if good else {"error": "invalid_client"}
        return web.json_response(told, status=200 if good else 401)

    # --- AWS ---

    async def aws(self, request: web.Request) -> web.StreamResponse:
        assert request.headers["X-Amz-Target"] == "secretsmanager.GetSecretValue"
        body = await request.text()
        if not _is_signed(request, body):
            told = {"__type": "InvalidSignatureException", "message": "bad signature"}
            return web.json_response(told, status=400)
        asked = json.loads(body)
        if asked["SecretId"] != "shop":
            told = {"__type": "ResourceNotFoundException", "message": "can't find it"}
            return web.json_response(told, status=400)
        if asked.get("VersionId") == "binary":
            return web.json_response({"SecretBinary": base64.b64encode(b"\0\1").decode()})
        return web.json_response({"SecretString": json.dumps({"password": SECRET})})

    def routes(self) -> list[Any]:
        return [
            ("POST", "/v1/auth/approle/login", self.approle),
            ("GET", "/v1/projects/{rest:.*}", self.google),
            ("GET", "/v1/{rest:.*}", self.vault),
            ("POST", "/google/token", self.google_token),
            ("GET", "/secrets/{rest:.*}", self.azure),
            ("POST", "/azure/token", self.azure_token),
            ("POST", "/", self.aws),
        ]


def _unsafe(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _is_signed(request: web.Request, body: str) -> bool:
    """Whether the library of AWS would have signed it so."""
    told = dict(request.headers)
    moment = datetime.strptime(told["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    signed = told["Authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    named = {name: value for name, value in told.items() if name.lower() in signed}
    named.pop("Host")
    question = AWSRequest("POST", f"http://{told['Host']}/", data=body, headers=named)
    question.context["timestamp"] = moment.strftime("%Y%m%dT%H%M%SZ")
    signer = SigV4Auth(Credentials("AKIDTRIAL", "canary-aws-secret"), "secretsmanager", "eu-west-1")
    text = signer.string_to_sign(question, signer.canonical_request(question))
    return told["Authorization"].endswith(f"Signature={signer.signature(text, question)}")


@pytest.fixture(scope="module")
def managers():
    managers = Managers()
    with answering(*managers.routes()) as url:
        managers.url = url
        yield managers
