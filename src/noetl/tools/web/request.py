"""The config of an HTTP request, and the ways to authenticate it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from noetl.model.outcome import ErrorKind
from noetl.tools.base import (
    Credential,
    Duration,
    Name,
    Options,
    Timeouts,
    ToolConfig,
    about,
)

SERVICE_ERRORS: tuple[ErrorKind, ...] = (
    *("timeout", "connection", "rate_limit", "auth", "not_found", "client_error"),
    *("server_error", "parse"),
)
"""Every error of a request to a service."""
Scalar = str | int | float | bool | None
Redirects = Annotated[int, msgspec.Meta(ge=0, le=50)]


# --- Authentication ----------------------------------------------------------------------------


class Auth(Options, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Base of the ways to authenticate; `type` says which."""

    credential: Annotated[
        Name | None, about("Keychain entry or credential that holds the fields left out here.")
    ] = None


class BearerAuth(Auth, frozen=True, kw_only=True, tag="bearer"):
    """`Authorization: Bearer …`"""

    token: Annotated[str | None, about("The token to send.")] = None


class BasicAuth(Auth, frozen=True, kw_only=True, tag="basic"):
    """`Authorization: Basic …`"""

    username: Annotated[str | None, about("The user to sign in as.")] = None
    password: Annotated[str | None, about("That user's password.")] = None


class ApiKeyAuth(Auth, frozen=True, kw_only=True, tag="api_key"):
    """A key in a header or in the query."""

    value: Annotated[str | None, about("The key to send.")] = None
    key: Annotated[Name, about("Name of the header or query parameter.")] = "X-API-Key"
    place: Annotated[
        Literal["header", "query"], about("Whether the key goes into a header or the query.")
    ] = "header"


class OAuth2Auth(Auth, frozen=True, kw_only=True, tag="oauth2"):
    """A token fetched with client credentials, cached, and renewed before it expires."""

    token_url: Annotated[str | None, about("Where to fetch the token.")] = None
    client_id: Annotated[str | None, about("The client to ask as.")] = None
    client_secret: Annotated[str | None, about("That client's secret.")] = None
    scope: Annotated[str | tuple[str, ...] | None, about("Scopes to ask for.")] = None
    audience: Annotated[str | None, about("The audience to ask for, where needed.")] = None


AnyAuth = BearerAuth | BasicAuth | ApiKeyAuth | OAuth2Auth


# --- The request -------------------------------------------------------------------------------


class FilePart(Options, frozen=True, kw_only=True):
    """One file of a multipart body."""

    path: Annotated[str | None, about("File or object address to send.")] = None
    content: Annotated[Any, about("What to send, instead of `path`; may be a reference.")] = None
    filename: Annotated[str | None, about("Name the receiver sees.")] = None
    content_type: Annotated[str | None, about("Media type of this file.")] = None


class ClientCertificate(Options, frozen=True, kw_only=True):
    """A certificate the client shows to the server."""

    cert: Annotated[str, about("The certificate: PEM text or the path of a PEM file.")]
    key: Annotated[str | None, about("Its private key, unless `cert` holds it too.")] = None
    password: Annotated[str | None, about("Password of the private key.")] = None


class Request(ToolConfig, frozen=True, kw_only=True):
    """One request and how its answer is read. `kind: http` takes all of it."""

    method: Annotated[
        Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"],
        about("The request's method."),
    ] = "GET"
    url: Annotated[Name | None, about("The address to call.")] = None
    params: Annotated[
        dict[str, Scalar | tuple[Scalar, ...]], about("Query parameters; a list repeats one.")
    ] = {}
    headers: Annotated[dict[str, Scalar], about("Request headers.")] = {}
    json: Annotated[Any, about("Body to send as JSON.")] = None
    body: Annotated[Any, about("Body to send: text as it is, a mapping or list as JSON.")] = None
    form: Annotated[
        dict[str, Scalar | tuple[Scalar, ...]] | None, about("Form fields to send as the body.")
    ] = None
    files: Annotated[
        dict[str, str | FilePart | tuple[FilePart, ...]] | None,
        about("Files to send as multipart: a path, or how to send it; `form` goes along."),
    ] = None
    auth: Annotated[
        Name | AnyAuth | None,
        about("Name of a keychain entry or credential, or a way to authenticate."),
    ] = None
    timeout: Annotated[
        Duration | Timeouts | None, about("How long the call may take, in all or by part.")
    ] = None
    follow_redirects: Annotated[bool, about("Follow 3xx answers.")] = True
    max_redirects: Annotated[Redirects, about("Redirects to follow before giving up.")] = 10
    verify_ssl: Annotated[bool, about("Check the server's certificate.")] = True
    ca: Annotated[
        str | None, about("Authority to trust besides the usual: PEM text or a file's path.")
    ] = None
    client_cert: Annotated[
        Name | ClientCertificate | None,
        about("Certificate to show to the server: a credential's name, or its parts."),
    ] = None
    proxy: Annotated[str | None, about("Address of a proxy to go through.")] = None
    decode: Annotated[
        Literal["auto", "json", "ndjson", "csv", "xml", "text", "bytes"],
        about("How to read the answer's body; `auto` goes by its content type."),
    ] = "auto"
    download: Annotated[
        bool | str,
        about("Stream the body into the result store (`true`) or to this file or object."),
    ] = False
    store_auth: Annotated[
        Credential | None, about("Credential of the store, where a file is an object (`s3://…`).")
    ] = None
