"""How the pages are served: to anyone, cached for ever or not at all, below any path, or not."""

from __future__ import annotations

import gzip
import os
import pty
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import urljoin

import pytest

from noetl.ui import ASSETS, Pages
from tests.examples.system import temporary_folder
from tests.server.processes import Server, serving

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self' data:; base-uri 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'"
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with temporary_folder() as folder, serving(folder) as found:
        yield found


def asset(server: Server) -> str:
    page = server.ask("GET", "/").raw.decode()
    found = re.search(r'src="([^"]+\.js)"', page)
    assert found is not None
    return urljoin("/", found[1])


@pytest.mark.parametrize("path", ["/", "/executions", "/executions/17", "/playbooks/a/b/c"])
def test_the_page_is_there_at_every_address_of_the_app(server, path):
    reply = server.ask("GET", path)

    assert reply.status == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.headers["content-security-policy"] == CSP
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/execution", "/executionss/17", "/a/b/c"])
def test_a_browser_at_an_address_that_leads_nowhere_gets_a_page_that_says_so(server, path):
    page = server.ask("GET", path, headers={"Accept": "text/html,*/*;q=0.8"})
    data = server.ask("GET", path)

    assert (page.status, page.headers["content-security-policy"]) == (404, CSP)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert (data.status, data.code) == (404, "not_found")


@pytest.mark.parametrize("path", ["/api/nowhere", "/ui/nowhere.js", "/health", "/hooks/nowhere"])
def test_addresses_of_the_api_and_files_answer_browsers_as_they_answer_others(server, path):
    seen = server.ask("GET", path, headers={"Accept": "text/html,*/*;q=0.8"})

    assert seen.status == server.ask("GET", path).status
    assert not seen.headers["content-type"].startswith("text/html")


def test_the_page_has_an_etag_and_a_head(server):
    reply = server.ask("GET", "/executions")

    again = server.ask("GET", "/executions", headers={"If-None-Match": reply.headers["etag"]})
    head = server.ask("HEAD", "/executions")

    assert (again.status, again.raw) == (304, b"")
    assert (head.status, head.raw) == (200, b"")
    assert head.headers["content-length"] == reply.headers["content-length"]


def test_the_page_finds_its_files_below_any_path_that_a_proxy_takes_away(server):
    """A browser sees the prefix; the server does not."""
    expected = asset(server)
    for path in ("/", "/executions", "/executions/17", "/playbooks/a/b"):
        page = server.ask("GET", path).raw.decode()
        for link in re.findall(r'(?:src|href)="([^"]+)"', page):
            assert urljoin(f"https://host/deep/er{path}", link).startswith(
                "https://host/deep/er/ui/"
            )
        found = re.search(r'src="([^"]+)"', page)
        assert found is not None
        assert urljoin(path, found[1]) == expected


@pytest.mark.parametrize("coding", ["br", "gzip", "identity", "gzip;q=0, br;q=0", ""])
def test_a_file_is_kept_for_ever_in_the_coding_that_the_browser_reads(server, coding):
    whole = gzip.decompress(
        server.ask("GET", asset(server), headers={"Accept-Encoding": "gzip"}).raw
    )

    reply = server.ask("GET", asset(server), headers={"Accept-Encoding": coding})

    used = reply.headers.get("content-encoding")
    assert used == (coding if coding in ("br", "gzip") else None)
    assert reply.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert reply.headers["vary"] == "Accept-Encoding"
    assert reply.headers["content-type"] == "text/javascript; charset=utf-8"
    if used is None:
        assert reply.raw == whole
    head = server.ask("HEAD", asset(server), headers={"Accept-Encoding": coding})
    assert head.headers["content-length"] == str(len(reply.raw))
    tag = {"Accept-Encoding": coding, "If-None-Match": reply.headers["etag"]}
    assert server.ask("GET", asset(server), headers=tag).status == 304


def test_a_server_keeps_its_files_when_another_version_is_installed_below_it(tmp_path):
    shutil.copytree(ASSETS, tmp_path / "assets")
    pages = Pages(tmp_path / "assets")
    shutil.rmtree(tmp_path / "assets")
    page = pages.find("/", {})
    assert page is not None
    for name in re.findall(r"ui/([\w.-]+)", page.body.decode()):
        for coding in (b"br", b"gzip", b""):
            found = pages.find(f"/ui/{name}", {b"accept-encoding": coding})
            assert found is not None
            assert found.status == 200
            assert found.body


@pytest.mark.parametrize(
    "path", ["/ui/app-gone.js", "/ui/../manifest.json", "/ui/manifest.json", "/ui/%2e%2e/x", "/x"]
)
def test_what_is_no_file_and_no_screen_is_not_found(server, path):
    assert server.ask("GET", path).status == 404


def test_other_methods_reach_the_api(server):
    assert server.ask("POST", "/", {}).status == 405
    assert server.ask("DELETE", "/executions").status == 404


def test_a_server_with_users_shows_the_page_to_anybody_and_data_to_nobody(tmp_path):
    with serving(tmp_path) as server:
        server.post("/api/access/tokens", {"name": "boss", "roles": ["admin"]})

        assert server.ask("GET", "/executions").status == 200
        assert server.ask("GET", asset(server)).status == 200
        assert server.ask("GET", "/api/executions").status == 401
        assert server.ask("GET", "/api/auth/me").status == 401


def test_pages_can_be_off(tmp_path):
    with serving(tmp_path, NOETL_UI="off") as server:
        welcome = server.ask("GET", "/")

        assert welcome.headers["content-type"].startswith("text/plain")
        assert b"NOETL_UI=off" in welcome.raw
        assert server.ask("GET", "/executions").status == 404
        assert "web UI" not in server.log.read_text()


def test_a_server_says_where_its_pages_are(server):
    assert f"web UI: {server.url}/" in server.log.read_text()


def test_dev_opens_its_pages_in_the_browser_of_whoever_sits_there(tmp_path):
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.part\nmv {opened}.part {opened}\n')
    browser.chmod(0o755)
    here, there = pty.openpty()
    seen = {**os.environ, "BROWSER": str(browser), "DISPLAY": ":17", "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "noetl.cli", "dev", "--port", "0", "--db", "noetl.db"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=seen, stdin=there, stdout=there, stderr=there
    )
    os.close(there)
    said = b""
    try:
        while b"web UI: " not in said or not opened.exists():
            said += os.read(here, 4096) if select.select([here], [], [], 0.05)[0] else b""
            assert process.poll() is None, said
    finally:
        process.terminate()
        process.wait(60)
        os.close(here)
    assert f"web UI: {opened.read_text().strip()}" in said.decode()
