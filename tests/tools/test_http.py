"""kind: http. Requests as the server sees them, answers as the task sees them, and each failure."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import sys
import time
from email.utils import formatdate
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from noetl.tools.egress import EgressPolicy
from noetl.tools.rules import Rules
from noetl.tools.web import client
from tests.stopwatch import PATIENCE, Stopwatch
from tests.tools.running import KEY, failure, kept, on_bench, ran
from tests.tools.services import answering

CANARY = "canary-secret"


def echoed(web, **config):
    outcome = ran("http", {"url": f"{web.url}/echo", **config}, action_id="action-7")
    assert outcome.is_ok, outcome
    return outcome.result["data"]


def answered(web, body: bytes, media: str, **config):
    """The outcome of a request whose answer has this body."""
    data = {"hex": body.hex(), "type": media}
    return ran("http", {"url": f"{web.url}/body", "method": "POST", "json": data, **config})


def keepalive_seconds(request: web.Request) -> float:
    """How soon the caller's system will ask whether we are there; 0 if it will not."""
    assert request.transport is not None
    ends = (request.transport.get_extra_info(name)[1] for name in ("peername", "sockname"))
    caller = "".join(f"{port:04X} " for port in ends)
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if "".join(f"{end.partition(':')[2]} " for end in fields[1:3]) == caller:
            timer, ticks = fields[5].split(":")
            return int(ticks, 16) / os.sysconf("SC_CLK_TCK") if timer == "02" else 0.0
    return 0.0


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel where Linux tells")
def test_a_machine_that_vanishes_while_a_call_waits_is_missed():
    found: list[float] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        async with asyncio.timeout(PATIENCE):
            # The request is on its way until it is acknowledged; then the timer begins.
            while not (seconds := keepalive_seconds(request)):
                await asyncio.sleep(0.02)
        found.append(seconds)
        return web.json_response({})

    with answering(("GET", "/", answer)) as url:
        assert ran("http", {"url": url}).is_ok

    assert 0 < found[0] <= 60


# --- The request -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_each_method_is_sent_and_writing_ones_carry_the_idempotency_key(web, method):
    told = echoed(web, method=method)

    assert told["method"] == method
    key = told["headers"].get("idempotency-key")
    assert key == ("action-7" if method in ("POST", "PUT", "PATCH", "DELETE") else None)


def test_the_tasks_own_idempotency_key_wins(web):
    headers = {"idempotency-key": "mine", "X-N": 3, "X-B": True, "X-None": None}
    told = echoed(web, method="POST", headers=headers)

    assert told["headers"]["idempotency-key"] == "mine"
    assert (told["headers"]["x-n"], told["headers"]["x-b"]) == ("3", "true")
    assert "x-none" not in told["headers"]


def test_parameters_join_those_of_the_address_and_a_list_repeats_one(web):
    outcome = ran(
        "http",
        {"url": f"{web.url}/echo?a=0", "params": {"b": [1, 2], "c": True, "d": None, "e": "ä&="}},
    )

    assert outcome.result["data"]["query"] == [
        ["a", "0"],
        ["b", "1"],
        ["b", "2"],
        ["c", "true"],
        ["e", "ä&="],
    ]


@pytest.mark.parametrize(
    ("config", "media", "body"),
    [
        ({"json": {"a": [1, None]}}, "application/json", '{"a":[1,null]}'),
        ({"body": {"a": 1}}, "application/json", '{"a":1}'),
        ({"body": "plain ü"}, "text/plain; charset=utf-8", "plain ü"),
        ({"form": {"a": [1, 2], "b": "x y"}}, "application/x-www-form-urlencoded", "a=1&a=2&b=x+y"),
        ({"body": "<a/>", "headers": {"content-type": "text/xml"}}, "text/xml", "<a/>"),
    ],
)
def test_bodies_are_sent_as_what_they_are(web, config, media, body):
    told = echoed(web, method="POST", **config)

    assert told["headers"]["content-type"] == media
    assert told["body"] == body


def test_files_go_as_multipart_with_their_form(web, tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    files = {
        "first": str(tmp_path / "a.csv"),
        "second": {"content": {"n": 1}, "filename": "b.json"},
        "third": {"content": kept("from the store"), "content_type": "text/x-note"},
    }
    outcome = ran(
        "http",
        {"url": f"{web.url}/echo", "method": "POST", "form": {"who": "me"}, "files": files},
        settings={"results": {KEY: "from the store"}},
    )

    told = outcome.result["data"]
    assert told["headers"]["content-type"].startswith("multipart/form-data")
    for part in ('name="who"', "x,y\n1,2", 'filename="b.json"', '{"n":1}', "from the store"):
        assert part in told["body"]


def test_two_bodies_are_refused(web):
    config = {"url": f"{web.url}/echo", "method": "POST", "json": 1, "body": "x"}

    assert failure(ran("http", config))[0] == "client_error"


def test_s09_a_file_outside_the_allowed_directory_is_not_sent(web, tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "secret").write_text("x")
    (tmp_path / "root" / "link").symlink_to(tmp_path / "secret")
    for name in ("../secret", str(tmp_path / "secret"), "link"):
        outcome = ran(
            "http",
            {"url": f"{web.url}/echo", "method": "POST", "files": {"f": name}},
            settings={"rules": Rules(file_root=str(tmp_path / "root"))},
        )
        assert failure(outcome)[0] == "auth"
    assert web.seen == []


def test_a_file_that_does_not_exist_is_not_found(web, tmp_path):
    files = {"f": str(tmp_path / "none.txt")}
    outcome = ran("http", {"url": f"{web.url}/echo", "method": "POST", "files": files})

    kind, message = failure(outcome)
    assert kind == "not_found"
    assert "none.txt" in message
    assert web.seen == []


# --- Who asks ----------------------------------------------------------------------------------

BASIC = "Basic " + base64.b64encode(b"me:canary-secret").decode()


@pytest.mark.parametrize(
    ("auth", "header", "value"),
    [
        ({"type": "bearer", "token": CANARY}, "authorization", f"Bearer {CANARY}"),
        ({"type": "basic", "username": "me", "password": CANARY}, "authorization", BASIC),
        ({"type": "api_key", "value": CANARY, "key": "X-Key"}, "x-key", CANARY),
        ({"type": "bearer", "credential": "by_token"}, "authorization", f"Bearer {CANARY}"),
        ("by_token", "authorization", f"Bearer {CANARY}"),
        ("by_password", "authorization", BASIC),
        ("by_key", "x-special", CANARY),
    ],
)
def test_s06_the_proof_reaches_the_server_and_nobody_else(web, auth, header, value):
    credentials = {
        "by_token": {"token": CANARY},
        "by_password": {"username": "me", "password": CANARY},
        "by_key": {"type": "api_key", "key": "X-Special", "value": CANARY},
    }

    async def work(bench):
        config = {"url": f"{web.url}/status/500", "auth": auth}
        failed = await bench.run("http", config)
        fine = await bench.run("http", {**config, "url": f"{web.url}/large?size=3"})
        await bench.run("http", {**config, "url": f"{web.url}/echo"})
        return failed, fine, bench.log.text()

    *outcomes, log = on_bench(work, credentials=credentials)

    assert web.seen[0]["headers"][header] == value
    told = log + "".join(msgspec.json.encode(outcome).decode() for outcome in outcomes)
    assert CANARY not in told
    assert base64.b64encode(CANARY.encode()).decode() not in told


def test_s06_a_key_in_the_query_is_not_in_the_result(web):
    auth = {"type": "api_key", "value": CANARY, "key": "k", "place": "query"}
    outcome = ran("http", {"url": f"{web.url}/large?size=3", "auth": auth})

    assert outcome.result["url"] == f"{web.url}/large?size=3"
    assert CANARY not in msgspec.json.encode(outcome).decode()
    outcome = ran("http", {"url": f"{web.url}/status/404", "auth": auth})
    assert CANARY not in msgspec.json.encode(outcome).decode()


def test_a_missing_field_or_credential_is_an_auth_error(web):
    kind, message = failure(ran("http", {"url": web.url, "auth": {"type": "bearer"}}))
    assert (kind, "`token`" in message) == ("auth", True)
    assert failure(ran("http", {"url": web.url, "auth": "nobody"}))[0] == "auth"


def oauth2(web, secret=CANARY):
    return {
        "type": "oauth2",
        "token_url": f"{web.url}/token",
        "client_id": "c",
        "client_secret": secret,
        "scope": ["a", "b"],
    }


def test_the_time_of_a_call_includes_that_for_its_token():
    async def slow(request):
        await asyncio.sleep(0.4)
        return web.json_response({"access_token": "t"})

    with answering(("POST", "/token", slow), ("GET", "/", slow)) as url:
        auth = {"type": "oauth2", "token_url": f"{url}/token", "client_id": "a"}
        config = {"url": url, "auth": {**auth, "client_secret": "b"}, "timeout": "600ms"}
        assert failure(ran("http", config))[0] == "timeout"


def test_an_oauth2_token_is_fetched_once_and_renewed_when_refused(web):
    async def work(bench):
        config = {"url": f"{web.url}/private", "auth": oauth2(web)}
        before = web.tokens_given
        first = await bench.run("http", config)
        second = await bench.run("http", config)
        web.good_tokens.clear()
        third = await bench.run("http", config)
        assert web.tokens_given == before + 2
        return [one.result["data"]["token"] for one in (first, second, third)]

    first, second, third = on_bench(work)
    assert first == second != third


def test_s06_a_refused_client_is_an_auth_error_without_its_secret(web):
    outcome = ran("http", {"url": f"{web.url}/private", "auth": oauth2(web, "wrong-canary")})

    assert failure(outcome)[0] == "auth"
    assert "wrong-canary" not in msgspec.json.encode(outcome).decode()


# --- The answer --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("media", "body", "data"),
    [
        ("application/json", b'{"a": 1}', {"a": 1}),
        ("application/problem+json; charset=utf-8", b"[1]", [1]),
        ("application/x-ndjson", b'{"a":1}\n\n2\n', [{"a": 1}, 2]),
        ("text/csv", '\ufeffa,b\r\n1,"x\ny"\r\n'.encode(), [{"a": "1", "b": "x\ny"}]),
        ("text/plain; charset=latin-1", "ü".encode("latin-1"), "ü"),
        ("text/html", b"<p>", "<p>"),
        ("image/png", b"\x89PNG", "iVBORw=="),
        ("application/json", b"", None),
        (
            "application/xml",
            b"<r x='1'><i>a</i><i>b</i><n xmlns='u'>t<m/></n></r>",
            {"r": {"@x": "1", "i": ["a", "b"], "n": {"m": None, "#text": "t"}}},
        ),
    ],
)
def test_a_body_is_read_by_its_content_type(web, media, body, data):
    outcome = answered(web, body, media)

    assert outcome.result["data"] == data
    assert outcome.result["status_code"] == outcome.http["status"] == 200
    assert outcome.result["url"] == f"{web.url}/body"
    assert outcome.result["headers"]["content-type"] == media
    assert 0 < outcome.result["elapsed"] < 10


def test_decode_overrules_the_content_type(web):
    assert answered(web, b"[1]", "text/plain", decode="json").result["data"] == [1]
    assert answered(web, b"[1]", "application/json", decode="text").result["data"] == "[1]"
    assert answered(web, b"[1]", "application/json", decode="bytes").result["data"] == "WzFd"


@pytest.mark.parametrize(
    ("media", "body"),
    [
        ("application/json", b"{"),
        ("application/json", b"NaN"),
        ("application/x-ndjson", b"1\n{"),
        ("text/csv", b"a\n1,2\n"),
        ("text/plain", b"\xff"),
        ("text/plain; charset=klingon", b"x"),
        ("text/xml", b"<a>"),
        ("text/xml", b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'),
    ],
)
def test_a_body_that_is_not_what_it_says_is_a_parse_error(web, media, body):
    outcome = answered(web, body, media)

    assert failure(outcome)[0] == "parse"
    assert outcome.http["status"] == 200


@pytest.mark.parametrize("body", [b'{"a": ["\\u0000"]}', b'{"a": [9223372036854775808]}'])
def test_t24_a_body_that_nobody_could_keep_is_a_schema_error_with_its_path(web, body):
    kind, message = failure(answered(web, body, "application/json"))

    assert kind == "schema"
    assert "result.a[0]" in message


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (400, "client_error", False),
        (401, "auth", False),
        (403, "auth", False),
        (404, "not_found", False),
        (410, "not_found", False),
        (409, "client_error", False),
        (429, "rate_limit", True),
        (500, "server_error", True),
        (503, "server_error", True),
        (304, "client_error", False),
    ],
)
def test_a_status_that_is_not_2xx_is_an_error_of_its_kind(web, status, kind, retryable):
    outcome = ran("http", {"url": f"{web.url}/status/{status}?secret=x"})

    assert (outcome.error.kind, outcome.error.retryable) == (kind, retryable)
    assert outcome.error.status == outcome.error.code == outcome.http["status"] == status
    assert "secret" not in outcome.error.message
    if status != 304:
        assert outcome.error.details == {"body": "no such luck"}


def test_retry_after_is_read_as_seconds_and_as_a_date(web):
    def asked_to_wait(after):
        config = {"url": f"{web.url}/status/429", "params": {"after": after}}
        return ran("http", config).error.retry_after

    assert asked_to_wait("7") == 7
    assert 20 < asked_to_wait(formatdate(time.time() + 30, usegmt=True)) <= 30
    assert asked_to_wait(formatdate(time.time() - 30, usegmt=True)) == 0
    assert asked_to_wait("soon") is None
    assert asked_to_wait("²") is None


def test_headers_that_are_latin_1_are_read():
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 500 caf\xe9\r\nX-Name: caf\xe9\r\nX-Other: caf\xc3\xa9\r\n")
        writer.write(b"Content-Length: 0\r\n\r\n")
        writer.close()

    async def work(bench):
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            return await bench.run("http", {"url": f"http://127.0.0.1:{port}/"})

    outcome = on_bench(work)
    assert outcome.error.message.endswith(" answered 500 café.")
    assert outcome.http["headers"]["x-name"] == outcome.http["headers"]["x-other"] == "café"


def test_the_type_of_a_download_may_be_latin_1(tmp_path):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/caf\xe9\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async def work(bench):
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            config = {"url": f"http://127.0.0.1:{port}/", "download": str(tmp_path / "file")}
            return await bench.run("http", config)

    assert on_bench(work).result["data"]["media"] == "text/café"


def test_t23_a_large_body_arrives_whole_and_a_larger_one_is_refused(web):
    size = 50_000_000
    outcome = ran("http", {"url": f"{web.url}/large?size={size}"})
    assert len(outcome.result["data"]) == size

    rules = {"rules": Rules(max_response_bytes=1000)}
    outcome = ran("http", {"url": f"{web.url}/large?size=1001"}, settings=rules)
    assert failure(outcome)[0] == "client_error"


# --- Redirects and egress ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "method", "body"),
    [(302, "GET", ""), (303, "GET", ""), (307, "POST", '{"a":1}'), (308, "POST", '{"a":1}')],
)
def test_a_redirect_is_followed_as_its_code_says(web, code, method, body):
    url = f"{web.url}/redirect?code={code}&to=/echo"
    outcome = ran("http", {"url": url, "method": "POST", "json": {"a": 1}})

    assert outcome.result["data"]["method"] == method
    assert outcome.result["data"]["body"] == body
    assert outcome.result["url"] == f"{web.url}/echo"


@pytest.mark.parametrize(
    ("body", "media", "data"),
    [
        ("\ufeff[1]", "application/json", [1]),
        ("\ufeff1\r\n2", "application/x-ndjson", [1, 2]),
        ('{"a":"x\u2028y"}\n["\x85"]\n', "application/x-ndjson", [{"a": "x\u2028y"}, ["\x85"]]),
        ("a,a,a_1\n1,2,3\n", "text/csv", [{"a": "1", "a_1": "2", "a_1_1": "3"}]),
        (f"a\n{'x' * 200_000}\n", "text/csv", [{"a": "x" * 200_000}]),
    ],
)
def test_bodies_of_other_systems_are_read(web, body, media, data):
    """A mark at the beginning, separators of Unicode inside of lines, long and repeated fields."""
    assert answered(web, body.encode(), media).result["data"] == data


def test_many_columns_without_a_name_do_not_hold_up_the_worker(web):
    watch = Stopwatch()
    [row] = answered(web, b"a," + b"," * 3000 + b"\n" + b"," * 3001, "text/csv").result["data"]
    assert (len(row), list(row)[:3]) == (3002, ["a", "", "_1"])
    assert watch.seconds() < 10


def test_a_body_that_is_nested_too_deeply_is_a_parse_error(web):
    assert failure(answered(web, b"<a>" * 5000 + b"</a>" * 5000, "text/xml"))[0] == "parse"


@pytest.mark.parametrize("target", ["http://[::1", "http://a:99999/", "file:///etc/passwd"])
def test_a_redirect_to_what_is_no_address_names_the_request(web, target):
    outcome = ran("http", {"url": f"{web.url}/redirect", "params": {"to": target}})

    kind, message = failure(outcome)
    assert kind == "client_error"
    assert message.startswith(f"GET {web.url}/redirect is redirected to ")
    assert message.endswith(", not an http or https address.")


def test_redirects_are_bounded_and_can_be_left_alone(web):
    loop = f"{web.url}/redirect?to=/redirect%3Fto=/redirect"
    assert failure(ran("http", {"url": loop, "max_redirects": 1}))[0] == "client_error"

    outcome = ran("http", {"url": f"{web.url}/redirect?to=/echo", "follow_redirects": False})
    assert (outcome.error.kind, outcome.http["status"]) == ("client_error", 302)
    assert web.seen == []


def test_s06_the_proof_does_not_follow_to_another_host(web):
    elsewhere = web.url.replace("127.0.0.1", "localhost")
    url = f"{web.url}/redirect?to={elsewhere}/echo"
    for auth in ({"type": "bearer", "token": CANARY}, {"type": "api_key", "value": CANARY}):
        ran("http", {"url": url, "auth": auth, "headers": {"Cookie": CANARY}})

    assert len(web.seen) == 2
    assert CANARY not in str(web.seen)


def test_s06_the_secret_of_a_client_does_not_follow_where_its_tokens_are_said_to_be(web):
    elsewhere = web.url.replace("127.0.0.1", "localhost")
    moved = f"{web.url}/redirect?code=307&to={elsewhere}/echo"
    auth = {**oauth2(web), "token_url": moved}
    outcome = ran("http", {"url": f"{web.url}/private", "auth": auth})

    assert failure(outcome)[0] == "auth"
    assert web.seen == []


METADATA = [
    "http://169.254.169.254/latest/meta-data",
    "http://[::ffff:169.254.169.254]/",
    "http://[::ffff:a9fe:a9fe]/",
    "http://[fd00:ec2::254]/",
    "http://2852039166/",
    "http://0xa9fea9fe/",
    "http://169.254.43518/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://[2002:a9fe:a9fe::1]/",
    "http://[2001:0:4136:e378:8000:63bf:5601:5601]/",
    "http://100.100.100.200/",
]


@pytest.mark.parametrize("url", METADATA)
def test_s14_metadata_services_are_never_reached(url):
    kind, message = failure(ran("http", {"url": url, "timeout": 5}))

    assert kind == "client_error"
    # Numbers that are no address in writing are refused even before they are resolved.
    assert "egress policy" in message or "not an http" in message


@pytest.mark.parametrize("url", METADATA[:2])
def test_s14_not_by_a_redirect_either(web, url):
    outcome = ran("http", {"url": f"{web.url}/redirect", "params": {"to": url}, "timeout": 5})

    assert "egress policy" in failure(outcome)[1]


def test_s14_private_networks_are_refused_where_the_operator_says_so(web):
    rules = {"rules": Rules(egress=EgressPolicy(private=False))}
    for url in (
        web.url,
        web.url.replace("127.0.0.1", "localhost"),
        "http://10.1.2.3/",
        "http://[::1]/",
    ):
        assert "egress policy" in failure(ran("http", {"url": url}, settings=rules))[1]


def test_s14_a_name_is_judged_by_what_it_resolves_to(web, monkeypatch):
    def rebound(host, port, *args, **kwargs):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", port))]

    monkeypatch.setattr(socket, "getaddrinfo", rebound)
    outcome = ran("http", {"url": "http://innocent.example/", "timeout": 5})

    assert "egress policy" in failure(outcome)[1]


def test_s14_a_proxy_at_a_refused_address_is_refused(web):
    config = {"url": f"{web.url}/echo", "proxy": "http://169.254.169.254:3128", "timeout": 5}

    assert "egress policy" in failure(ran("http", config))[1]


@pytest.mark.parametrize(
    ("address", "refused"),
    [
        ("8.8.8.8", False),
        ("2001:4860:4860::8888", False),
        ("::ffff:8.8.8.8", False),
        ("10.0.0.1", True),
        ("100.64.0.1", True),
        ("0.0.0.0", True),
        ("::1", True),
        ("fc00::1", True),
        ("::ffff:192.168.0.1", True),
        ("2002:7f00:1::", True),
        ("fe80::1%eth0", True),
        ("224.0.0.1", True),
    ],
)
def test_s14_what_counts_as_private(address, refused):
    assert (EgressPolicy(private=False).refusal(address) is not None) == refused


# --- Failures on the way -----------------------------------------------------------------------


def test_no_answer_in_time_is_a_timeout(web):
    for timeout in ("200ms", {"read": 0.2}, {"total": 0.2}):
        outcome = ran("http", {"url": f"{web.url}/slow", "timeout": timeout})
        late = f"GET {web.url}/slow got no answer within 0.2 s, its `timeout`."
        assert failure(outcome) == ("timeout", late)
        assert outcome.error.retryable
    assert failure(ran("http", {"url": f"{web.url}/slow"}, timeout=0.2))[0] == "timeout"


def test_a_server_that_speaks_no_tls_is_told_with_the_scheme_to_write(web):
    url = f"{web.url}/x".replace("http://", "https://")

    said = failure(ran("http", {"url": url}))[1]

    assert (
        said == f"GET {url} failed: no TLS is spoken there; if it serves plain HTTP, write http://."
    )


def test_no_connection_is_a_connection_error():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        outcome = ran("http", {"url": url})
    assert failure(outcome) == ("connection", f"GET {url} failed: connection refused.")
    assert outcome.error.retryable
    assert failure(ran("http", {"url": "http://no-such-host.invalid/"}))[0] == "connection"


def test_a_connection_that_nobody_accepts_is_given_up_also_without_a_timeout(monkeypatch):
    monkeypatch.setattr(client, "CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        url = f"http://127.0.0.1:{full.getsockname()[1]}/"
        # The system accepts one or two in the place of the server, and leaves the others waiting.
        others = [socket.socket() for _ in range(4)]
        for other in others:
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        outcome = ran("http", {"url": url})
        for other in others:
            other.close()

    assert failure(outcome) == ("timeout", f"GET {url} got no connection in time.")
    assert outcome.error.retryable


def test_a_broken_connection_is_a_connection_error(web):
    assert failure(ran("http", {"url": f"{web.url}/broken"}))[0] == "connection"


def test_an_answer_that_ends_in_the_middle_is_told_in_plain_words():
    async def cut(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Length": "1000"})
        await answer.prepare(request)
        await answer.write(b"[1,")
        assert request.transport is not None
        request.transport.close()
        return answer

    with answering(("GET", "/", cut)) as url:
        outcome = ran("http", {"url": url})

    said = f"GET {url} failed: the connection ended in the middle of the answer."
    assert failure(outcome) == ("connection", said)


@pytest.mark.parametrize("url", ["ftp://example.com/", "nonsense", "http://", "http://[/"])
def test_an_address_that_is_none_is_a_client_error(url):
    assert failure(ran("http", {"url": url}))[0] == "client_error"


def test_a_header_that_would_forge_another_is_refused(web):
    config = {"url": f"{web.url}/echo", "headers": {"X": f"{CANARY}\r\nY: 1"}}
    outcome = ran("http", config)

    assert failure(outcome)[0] == "client_error"
    assert CANARY not in outcome.error.message


def test_a_cancelled_request_stops_within_a_second(web):
    async def work(bench):
        task = asyncio.create_task(bench.run("http", {"url": f"{web.url}/slow"}))
        await asyncio.sleep(0.2)
        watch = Stopwatch()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return watch.seconds()

    assert on_bench(work) < 1


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("shop.example/orders?key=canary", "GET shop.example/orders: this is not"),
        ("htp://ann:canary@shop.example/orders", "GET htp://shop.example/orders: this is not"),
        ("ann:canary@shop.example/orders", "this is not"),
    ],
)
def test_an_address_without_its_scheme_is_named_and_told_what_to_write(url: str, shown: str):
    kind, message, *_ = failure(ran("http", {"url": url}))

    assert kind == "client_error"
    assert shown in message
    assert "Begin it with https://" in message
    assert "canary" not in message
