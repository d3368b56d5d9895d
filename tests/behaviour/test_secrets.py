"""S6 and S12: a secret is seen by the tool that uses it, and by nothing and nobody else."""

from __future__ import annotations

import base64
import logging
from pathlib import Path

import pytest

from noetl.control import documents
from noetl.model.events import TaskDone
from tests import canaries, forked
from tests.cli.conftest import COMMAND, clean_environment
from tests.examples.conftest import Shop
from tests.examples.system import Bench, Run, on_bench, playbook, ran, temporary_folder
from tests.tools.web import serving

CANARY = 'c4nary/Päss+w0rd 8%?=&"x'
PIECE = "c4nary/P"
"""Enough of it to show that it was there."""
KEYCHAIN = "- { name: door, kind: credential }"


def assert_clean(*places: Path | str) -> None:
    """No form of the canary in any file below these folders, nor in these texts."""
    canaries.assert_clean((CANARY, PIECE), *places)


def test_the_search_for_canaries_finds_them(tmp_path):
    (tmp_path / "x").write_text(f"before {base64.b64encode(CANARY.encode()).decode()} after")

    with pytest.raises(AssertionError):
        assert_clean(tmp_path)
    with pytest.raises(AssertionError):
        assert_clean(f"a {CANARY} b")


async def played(bench: Bench, flow: str, **sections: str) -> Run:
    await bench.system.keys.put("door", "basic", {"username": "ada", "password": CANARY})
    return await bench.run(playbook(flow, keychain=KEYCHAIN, **sections))


def secret_run(flow: str, caplog: pytest.LogCaptureFixture, **sections: str) -> Run:
    """Run with the canary as a credential; afterwards nothing that is kept or said holds it."""
    caplog.set_level(logging.DEBUG)

    async def work(bench: Bench) -> Run:
        run = await played(bench, flow, **sections)
        execution_id = run.document["execution_id"]
        rows = await bench.system.store.log.events(execution_id, limit=1000)
        shown = [documents.plain(documents.event(execution_id, row)) for row in rows]
        why = (await bench.system.executions.why(execution_id)).reasons
        # WAL and all: what the files hold while everything is open is what a thief would get.
        assert_clean(bench.folder, repr(run), repr(shown), repr(why), caplog.text)
        return run

    return on_bench(work)


# --- S6: every way out -------------------------------------------------------------------------

SECRET = '"{{ keychain.door.password }}"'
WAYS = {
    "stdout": f"kind: shell\n    cmd: printenv S\n    env: {{ S: {SECRET} }}",
    "stderr": f"kind: shell\n    cmd: 'printenv S >&2; exit 3'\n    env: {{ S: {SECRET} }}",
    "base64 of it": f"kind: shell\n    cmd: printenv S | base64\n    env: {{ S: {SECRET} }}",
    "a python result": "kind: python\n    code: 'result = {s: [s, s.upper()[:2]]}'\n"
    f"    args: {{ s: {SECRET} }}",
    "a python print": f"kind: python\n    code: print(s)\n    args: {{ s: {SECRET} }}",
    "a python exception": "kind: python\n    code: raise ValueError(s)\n"
    f"    args: {{ s: {SECRET} }}",
    "hex of it": "kind: shell\n    cmd: printenv S | od -An -v -tx1 | tr -d ' \\n'\n"
    f"    env: {{ S: {SECRET} }}",
    "base64 and text around": "kind: python\n    code: |\n      import base64\n"
    "      result = base64.b64encode(('x' + s + 'y').encode()).decode()\n"
    f"    args: {{ s: {SECRET} }}",
    "a filter": 'kind: noop\n    result: "{{ keychain.door.password | b64encode }}"',
    "text around": 'kind: noop\n    result: "pw={{ keychain.door.password | urlencode }}!"',
    "a query": "kind: http\n"
    '    url: "http://127.0.0.1:1/?{{ keychain.door.password | urlencode }}"',
    "a header": 'kind: http\n    url: "http://127.0.0.1:1/"\n'
    '    headers: { X-Key: "{{ keychain.door.password | b64encode }}" }',
    "sql that is wrong": "kind: sqlite\n    command: \"SELECT '{{ keychain.door.password"
    " | replace('\\\"', '') }}' FROM nowhere\"",
    "sql that is right": "kind: sqlite\n    command: SELECT :s AS s\n"
    f"    params: {{ s: {SECRET} }}",
    "a name that is wrong": f"kind: shell\n    cmd: [{SECRET}]",
    "a wrong config": f"kind: http\n    url: http://127.0.0.1:1\n    method: {SECRET}",
    "a template that fails": "kind: noop\n"
    '    result: "{{ (keychain.door.password | fromjson).x }}"',
}
IN_A_PATH = 'kind: http\n    url: "http://127.0.0.1:1/{{ keychain.door.password | urlencode }}"'


@pytest.mark.parametrize(
    "tool",
    [
        *(pytest.param(tool, id=way) for way, tool in WAYS.items()),
        pytest.param(IN_A_PATH, id="a path"),
    ],
)
def test_s06_a_secret_is_never_recorded_nor_said(tool, caplog):
    flow = f"""
- step: start
  tool:
    {tool}
  next:
    spec: {{ mode: inclusive }}
    arcs:
      - {{ step: end, when: "{{{{ error }}}}", args: {{ told: "{{{{ error }}}}" }} }}
      - {{ step: end, args: {{ told: "{{{{ start }}}}" }} }}
- step: end
  tool: {{ kind: noop, result: "{{{{ args.told }}}}" }}
  set: {{ ctx.kept: "{{{{ args.told }}}}" }}
"""
    done = secret_run(flow, caplog)

    assert done.document["status"] == "COMPLETED"


def test_s06_a_rule_that_reads_the_outcome_sees_only_the_mask(caplog):
    flow = """
- step: start
  tool:
    - name: say
      kind: shell
      cmd: 'printenv S; exit 1'
      env: { S: "{{ keychain.door.password }}" }
      spec:
        policy:
          rules:
            - when: "{{ outcome.status == 'error' and _attempt < 3 }}"
              then:
                do: retry
                attempts: 3
                set_iter: { said: "{{ outcome.error.details.stdout }}" }
            - else: { then: { do: continue, set_ctx: { said: "{{ iter.said | trim }}" } } }
    - { name: tell, kind: noop, result: "{{ ctx.said }}" }
"""
    assert secret_run(flow, caplog).result == "***"


@pytest.mark.parametrize(
    ("part", "seen"),
    [
        ('headers: { X-Api-Key: "k {{ keychain.door.password | b64encode }}", X-Open: o }', 1),
        ('json: { deep: ["{{ keychain.door.password }}"] }', 0),
        ('body: "pw={{ keychain.door.password }}"', 0),
        ('form: { pw: "{{ keychain.door.password }}" }', 0),
        ('files: { pw: { content: "{{ keychain.door.password }}" } }', 0),
        ("json: { deep: [open] }", 1),
    ],
)
@pytest.mark.parametrize("code", [307, 308])
def test_s06_a_secret_does_not_follow_a_redirect_to_another_origin(code, part, seen, caplog):
    with serving() as web:
        elsewhere = web.url.replace("127.0.0.1", "localhost")
        flow = f"""
- step: start
  tool:
    kind: http
    method: POST
    url: "{web.url}/redirect?code={code}&to={elsewhere}/echo"
    {part}
    spec: {{ policy: {{ rules: [{{ else: {{ then: {{ do: continue }} }} }}] }} }}
"""
        secret_run(flow, caplog)

    assert len(web.seen) == seen
    assert_clean(str(web.seen))
    assert all(one["headers"].get("x-open", "o") == "o" for one in web.seen)


def test_s06_a_secret_follows_a_redirect_within_its_origin(caplog):
    with serving() as web:
        flow = f"""
- step: start
  tool:
    kind: http
    method: POST
    url: "{web.url}/redirect?code=307&to=/echo"
    headers: {{ X-Api-Key: "{{{{ keychain.door.password | b64encode }}}}" }}
    body: "{{{{ keychain.door.password }}}}"
"""
        secret_run(flow, caplog)

    [asked] = web.seen
    assert asked["headers"]["x-api-key"] == base64.b64encode(CANARY.encode()).decode()
    assert asked["body"] == CANARY


def test_s06_what_is_sent_to_a_service_is_not_recorded(shop: Shop, caplog):
    flow = f"""
- step: start
  tool:
    - name: refused
      kind: http
      url: "{shop.url}/customers"
      auth: door
      spec: {{ policy: {{ rules: [{{ else: {{ then: {{ do: continue }} }} }}] }} }}
    - {{ name: found, kind: http, url: "{shop.url}/stock/hotels", auth: door }}
"""
    done = secret_run(flow, caplog)

    sent = {question.headers["authorization"] for question in shop.demo.asked}
    pair = base64.b64encode(f"ada:{CANARY}".encode()).decode()
    assert sent == {f"Basic {pair}"}
    assert done.document["status"] == "COMPLETED"


def test_s06_ordinary_data_that_is_called_token_is_not_touched():
    done = ran(playbook("- {step: end, tool: {kind: noop, result: {token: abc, password: def}}}"))

    assert done.result == {"token": "abc", "password": "def"}


def test_s06_the_command_line_says_nothing_of_it_either(tmp_path):
    folder = tmp_path
    (folder / "p.yaml").write_text(
        playbook(
            """
- step: start
  tool:
    kind: shell
    cmd: 'echo "it is $S"; echo "it is $S" >&2; exit 5'
    env: { S: "{{ keychain.door.password }}" }
""",
            keychain=KEYCHAIN,
        )
    )

    def said(*words: str, stdin: str = "") -> str:
        run = forked.run(
            [*COMMAND, *words],
            cwd=folder,
            env=clean_environment(),
            input=stdin,
            capture_output=True,
            text=True,
        )
        return run.stdout + run.stderr

    stored = said("credential", "set", "door", f"password={CANARY}")
    failed = said("run", "p.yaml")
    shown = said("run", "p.yaml", "--json", "--new")

    assert "it is ***" in failed
    assert_clean(folder, stored, failed, shown)


# --- S12: what tools see -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "tool",
    [
        "kind: shell\n    cmd: cat /proc/self/environ | tr '\\0' '\\n'",
        "kind: python\n    code: |\n      import os\n      result = str(dict(os.environ))",
    ],
    ids=["shell", "python"],
)
def test_s12_tools_see_neither_our_secrets_nor_our_environment(tool, monkeypatch):
    monkeypatch.setenv("NOETL_SECRET_KEY", "s3cret-key-of-the-worker")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "aws-s3cret")
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:pg-s3cret@h/d")

    done = ran(playbook(f"- step: start\n  tool:\n    {tool}\n"))

    assert "s3cret" not in str(done.result)
    assert "PATH" in str(done.result)


def test_s12_python_code_cannot_read_the_memory_or_files_of_the_worker(monkeypatch):
    flow = """
- step: end
  tool:
    kind: python
    code: |
      import os, sys
      seen = [name for name in sys.modules if name.startswith("noetl.")]
      places = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
      files = [os.readlink(place) for place in places if os.path.lexists(place)]
      result = {"modules": seen, "files": [one for one in files if "noetl.db" in one]}
"""
    done = ran(playbook(flow))

    assert done.result["files"] == []
    assert [name for name in done.result["modules"] if "secret" in name or "store" in name] == []


def test_s12_the_key_file_is_readable_by_its_owner_only():
    async def work(bench: Bench) -> int:
        await bench.system.keys.put("door", "basic", {"password": CANARY})
        [key] = bench.folder.glob("*.key")
        return key.stat().st_mode & 0o777

    assert on_bench(work) == 0o600


def test_temporary_folders_are_gone_afterwards():
    with temporary_folder() as folder:
        assert folder.is_dir()

    assert not folder.exists()


# --- S29: files, whole credentials, numbers; and nothing else ------------------------------------


def test_s29_a_file_of_a_task_that_was_given_a_secret_is_masked_as_a_result_is(caplog):
    flow = f"""
- step: start
  tool:
    kind: python
    result_as: ndjson
    args: {{ s: {SECRET} }}
    code: |
      def main(s):
          yield {{"id": 1, "text": f"it is {{s}}"}}
          yield {{"id": 2, "text": s}}
          yield {{"id": 3, "text": "nothing"}}
  next: rows
- step: rows
  tool: {{ kind: artifact, ref: "{{{{ start }}}}" }}
"""
    done = secret_run(flow, caplog)

    assert done.result == [
        {"id": 1, "text": "it is ***"},
        {"id": 2, "text": "***"},
        {"id": 3, "text": "nothing"},
    ]


def test_s29_a_file_that_cannot_be_masked_is_not_kept(caplog):
    flow = """
- step: start
  tool:
    kind: duckdb
    command: SELECT $s AS s
    params: { s: "{{ keychain.door.password }}" }
    result_as: arrow
"""
    error = secret_run(flow, caplog).error

    assert (error["kind"], error["code"]) == ("client_error", "secret_in_file")


def test_s29_of_a_credential_that_is_passed_whole_every_field_is_masked():
    fields = {
        "username": "svc-reporting",
        "key": "k-1234",
        "path": "/team/treasure",
        "options": "-c role=boss",
        "password": "demo",
        "pin": 90210733,
    }
    flow = """
- step: start
  tool:
    kind: python
    args: { c: "{{ keychain.all }}" }
    code: |
      print(c["username"], "and", c["pin"])
      result = {"values": [c[name] for name in sorted(c)], "text": "demographics of", "n": 4711}
"""

    async def work(bench: Bench) -> Run:
        await bench.system.keys.put("all", "generic", fields)
        return await bench.run(playbook(flow, keychain="- { name: all, kind: credential }"))

    done = on_bench(work)

    assert set(done.result.pop("values")) == {"***"}
    assert done.result == {"text": "demographics of", "n": 4711}
    printed = repr(done.events)
    assert "svc-reporting" not in printed
    assert "90210733" not in printed


def test_s29_a_short_password_damages_no_data():
    flow = """
- step: start
  tool:
    kind: python
    args: { s: "{{ keychain.door.password }}" }
    code: |
      print("demographics")
      result = {"demographics": [{"demo": "a demo", "text": "demographics"}], "all": s}
"""

    async def work(bench: Bench) -> Run:
        await bench.system.keys.put("door", "basic", {"username": "ada", "password": "demo"})
        return await bench.run(playbook(flow, keychain=KEYCHAIN))

    done = on_bench(work)

    assert done.result == {
        "demographics": [{"demo": "a demo", "text": "demographics"}],
        "all": "***",
    }
    [task] = done.of(TaskDone)
    assert "***graphics" in task.log


def test_s29_the_preview_of_a_large_result_is_for_people():
    flow = """
- step: start
  tool:
    kind: python
    args: { s: "{{ keychain.door.password }}" }
    code: "result = ['a demo'] * 20_000"
"""

    async def work(bench: Bench) -> Run:
        await bench.system.keys.put("door", "basic", {"username": "ada", "password": "demo"})
        return await bench.run(playbook(flow, keychain=KEYCHAIN))

    preview = on_bench(work).result["_preview"]

    assert preview.startswith('["a ***",')
    assert "demo" not in preview
