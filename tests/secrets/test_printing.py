"""What holds secrets prints none of them: a traceback or a log line may print anything."""

from __future__ import annotations

import pytest

from noetl.api.routes.access import NewUser
from noetl.api.routes.auth import Login
from noetl.api.routes.credentials import NewCredential
from noetl.cli.options import Contexts, NamedServer
from noetl.model.answers import ApiTokenCreated, CachedToken, CredentialDocument
from noetl.model.secrets import AccessToken
from noetl.tools.duckdb.attached import Attached
from noetl.tools.http import Http
from noetl.tools.shell import Shell
from noetl.tools.transfer.run import Prepared
from noetl.tools.web.auth import Proof
from noetl.tools.web.request import BasicAuth

WORD = "hunter2"


@pytest.mark.parametrize(
    "holder",
    [
        Attached("postgres", f"password={WORD}", True, password=WORD, login={"password": WORD}),
        Prepared(login={"password": WORD}),
        Proof(headers={"authorization": WORD}),
        Http(url="http://x", headers={"x-key": WORD}, auth=BasicAuth(password=WORD)),
        Shell(cmd="x", env={"TOKEN": WORD}),
        Login(user="ada", password=WORD),
        NewUser(name="ada", password=WORD, roles=("viewer",)),
        Contexts(servers={"prod": NamedServer(url="http://x", token=WORD)}),
        ApiTokenCreated(name="ci", roles=("viewer",), token=WORD),
        CachedToken(token=WORD, expires_in=1.0),
        AccessToken(text=WORD, expires_at=1.0),
        NewCredential(name="shop", data={"token": WORD}),
        CredentialDocument(
            id="1",
            name="shop",
            type="generic",
            description="",
            tags=[],
            playbooks=[],
            created_at=None,
            updated_at=None,
            data={"token": WORD},
        ),
    ],
    ids=lambda holder: type(holder).__name__,
)
def test_a_secret_is_not_printed(holder):
    assert WORD not in f"{holder!r} {holder}"
    assert type(holder).__name__ in repr(holder)
