"""`noetl credential`, `register` and `catalog`: kept by name, secrets never shown unasked."""

from __future__ import annotations

import getpass
import json
from datetime import datetime, timedelta

import pytest

from tests.cli.test_run import HEAD, HELLO
from tests.faults.runs import Place

SECRET = "correct horse battery"


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_a_credential_is_stored_listed_shown_and_deleted(place):
    stored = place.run(
        *("credential", "set", "db", "--type", "postgres", "--description", "the shop's"),
        *("host=db.example.com", "user=etl", f"password={SECRET}"),
    )
    listed = place.json("credential", "list")["credentials"]
    shown = place.run("credential", "show", "db")
    revealed = place.json("credential", "show", "db", "--reveal")
    deleted = place.run("credential", "delete", "db")

    assert stored.returncode == deleted.returncode == 0
    assert [(one["name"], one["type"], one["description"]) for one in listed] == [
        ("db", "postgres", "the shop's")
    ]
    assert "host: db.example.com" in shown.stdout
    assert "password: ********" in shown.stdout
    assert revealed["data"] == {"host": "db.example.com", "user": "etl", "password": SECRET}
    assert place.json("credential", "list")["credentials"] == []
    for said in (stored.stderr, shown.stdout, shown.stderr):
        assert SECRET not in said


def test_only_what_reveals_a_credential_is_audited_as_a_read(place):
    place.run("credential", "set", "db", "host=db.example.com", f"password={SECRET}")

    shown = place.json("credential", "show", "db")
    before = [one["action"] for one in place.json("access", "audit")["entries"]]
    place.run("credential", "show", "db", "--reveal")
    after = [one["action"] for one in place.json("access", "audit")["entries"]]

    assert shown["data"] == {"host": "db.example.com", "password": "********"}
    assert "credential.read" not in before
    assert after.count("credential.read") == 1


@pytest.mark.parametrize(
    ("kind", "warned"),
    [
        ("postgress", 'the type "postgress"; it is kept as one of your own. Did you mean "postgre'),
        ("acme", 'the type "acme"; it is kept as one of your own.\n'),
        ("postgres", ""),
        ("httpBearerAuth", ""),
        ("generic", ""),
    ],
)
def test_a_type_that_no_tool_knows_is_kept_with_a_word(place, kind, warned):
    ran = place.run("credential", "set", "db", "--type", kind, "password=1234")

    assert ran.returncode == 0
    assert [one["type"] for one in place.json("credential", "list")["credentials"]] == [kind]
    assert warned in ran.stderr
    assert ("warning" in ran.stderr) == bool(warned)


def test_the_database_and_its_folder_hold_no_secret_in_the_clear(place, tmp_path):
    place.run("credential", "set", "db", f"password={SECRET}")

    for path in (tmp_path / ".noetl").rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path
    assert (tmp_path / ".noetl" / "secret.key").stat().st_mode & 0o777 == 0o600


def test_a_password_of_blanks_is_a_password_and_an_empty_line_is_none(noetl):
    add = ("access", "user", "add", "ada", "--role", "admin")

    assert "no password on standard input" in noetl(*add, stdin="\n").err
    assert noetl(*add, stdin=" " * 8 + "\n").code == 0
    assert "ada" in noetl("access", "user", "list").out


def test_values_can_come_from_stdin_one_line_for_each_key(noetl):
    ran = noetl("credential", "set", "api", "user=me", "token", "key", stdin=f"{SECRET}\nk\n")
    lacking = noetl("credential", "set", "api", "token", stdin="")

    assert ran.code == 0
    shown = json.loads(noetl("credential", "show", "api", "--reveal", "--json").out)
    assert shown["data"] == {"user": "me", "token": SECRET, "key": "k"}
    assert lacking.code == 2
    assert '"token" has no value' in lacking.err


def test_fields_can_come_from_a_file(place):
    place.write("flat.json", json.dumps({"password": SECRET, "port": 5432}))
    place.write("whole.json", json.dumps({"type": "postgres", "data": {"password": SECRET}}))
    place.run("credential", "set", "flat", "--from-file", "flat.json")
    place.run("credential", "set", "whole", "--from-file", "whole.json", "user=u")

    flat = place.json("credential", "show", "flat", "--reveal")
    whole = place.json("credential", "show", "whole", "--reveal")

    assert flat["data"] == {"password": SECRET, "port": 5432}
    assert (whole["type"], whole["data"]) == ("postgres", {"password": SECRET, "user": "u"})


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["set", "db"], 2, "name the fields"),
        (["set", "db", "a=1", "a=2"], 2, "may appear once"),
        (["set", "db", "--from-file", "gone.json"], 2, "gone.json"),
        (["show", "shop_bd"], 1, 'there is no credential "shop_bd". Did you mean "shop_db"?'),
        (["delete", "bd"], 1, 'there is no credential "bd"'),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_answered_clearly(place, arguments, code, message):
    place.run("credential", "set", "shop_db", "password=1234")

    ran = place.run("credential", *arguments)

    assert (ran.returncode, ran.stdout) == (code, "")
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr


def test_with_another_key_a_credential_is_refused_and_kept(place):
    place.run("credential", "set", "db", f"password={SECRET}")

    other = place.run("credential", "show", "db", "--reveal", NOETL_SECRET_KEY="x" * 20)
    before = place.run("credential", "show", "db", "--reveal")

    assert other.returncode == 1
    assert "was encrypted with the key" in other.stderr
    assert SECRET in before.stdout


def test_a_playbook_uses_a_credential_and_its_secret_is_nowhere_to_be_seen(place, tmp_path):
    place.run("credential", "set", "api", f"token={SECRET}")
    place.write(
        "uses.yaml",
        HEAD
        + """\
metadata: {name: uses, path: tests/uses}
keychain: [{name: api, kind: credential}]
workflow:
  - step: start
    tool:
      kind: shell
      env: {TOKEN: "{{ keychain.api.token }}"}
      command: echo "length $(printf %s "$TOKEN" | wc -c), said $TOKEN"
""",
    )

    ran = place.run("run", "uses.yaml", "--json")

    assert f"length {len(SECRET)}" in ran.stdout, ran.stdout + ran.stderr
    assert SECRET not in ran.stdout + ran.stderr
    for path in (tmp_path / ".noetl").rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path


# --- Registering -------------------------------------------------------------------------------


def test_register_keeps_versions_and_the_catalog_shows_them(place):
    place.write("hello.yaml", HELLO)
    first = place.json("register", "hello.yaml")["registered"]
    same = place.json("register", "hello.yaml")["registered"]
    place.write("hello.yaml", HELLO.replace("hello '", "good day '"))
    second = place.json("register", "hello.yaml")["registered"]

    assert [one[0]["version"] for one in (first, same, second)] == [1, 1, 2]
    listed = place.json("catalog", "list")["entries"]
    assert [(entry["path"], entry["version"]) for entry in listed] == [("tests/hello", 2)]
    assert place.run("catalog", "show", "tests/hello", "--version", "1").stdout == HELLO
    assert place.json("catalog", "show", "tests/hello")["version"] == 2
    assert place.run("catalog", "show", "tests/helo").returncode == 1


def test_who_registers_two_files_with_one_path_is_told_which_one_runs(place):
    place.write("hello.yaml", HELLO)
    place.write("old.yaml", HELLO + "# another text\n")

    ran = place.run("register", "hello.yaml", "old.yaml")

    assert ran.returncode == 0
    assert "warning: hello.yaml and old.yaml declare the same path, tests/hello:" in ran.stderr

    place.write("old.yaml", HELLO)
    assert "warning" not in place.run("register", "hello.yaml", "old.yaml").stderr


def test_a_schema_is_registered_before_the_playbook_that_names_it(place):
    head = "apiVersion: noetl.io/v2\n"
    (place.folder / "all").mkdir()
    place.write(
        "all/a.yaml",
        f"{head}kind: Playbook\nmetadata: {{path: a}}\n"
        "executor: {spec: {result: {schema: numbers}}}\n"
        "workflow: [{step: start, tool: {kind: noop, result: 7}}]\n",
    )
    schema = "kind: Schema\nmetadata: {path: numbers}\nspec: {schema: {type: number}}\n"
    place.write("all/numbers.yaml", head + schema)

    done = place.run("register", "all")

    assert done.returncode == 0, done.stderr
    assert [row["path"] for row in place.json("catalog", "list")["entries"]] == ["a", "numbers"]


def test_tests_are_not_registered_and_are_no_mistake(place):
    place.write("hello.yaml", HELLO)
    place.write("hello.test.yaml", "playbook: hello.yaml\ntests: []\n")

    ran = place.run("register", "hello.test.yaml", "hello.yaml")

    assert ran.returncode == 0
    assert "`noetl test hello.test.yaml` runs them" in ran.stderr
    assert [one["path"] for one in place.json("catalog", "list")["entries"]] == ["tests/hello"]


def test_a_directory_is_registered_with_its_playbooks_and_credentials(place, tmp_path):
    (tmp_path / "all").mkdir()
    place.write("all/hello.yaml", HELLO)
    place.write(
        "all/key.yaml",
        "apiVersion: noetl.io/v2\nkind: Credential\nmetadata: {name: key}\ntype: bearer\n"
        f"data: {{token: {SECRET}}}\n",
    )
    place.write("all/wrong.yaml", "apiVersion: noetl.io/v2\nkind: Playbook\n")
    place.write("db.json", json.dumps({"name": "db", "type": "postgres", "data": {"user": "u"}}))

    ran = place.run("register", "all", "db.json")

    assert ran.returncode == 2
    assert "wrong.yaml:1:1: " in ran.stderr
    assert SECRET not in ran.stderr
    names = [one["name"] for one in place.json("credential", "list")["credentials"]]
    assert names == ["db", "key"]
    assert place.json("catalog", "list")["entries"][0]["path"] == "tests/hello"


def test_without_a_server_the_audit_log_names_the_account_on_the_machine(place):
    place.write("hello.yaml", HELLO)
    place.run("register", "hello.yaml")
    place.run("run", "hello.yaml")
    place.run("credential", "set", "shop", f"password={SECRET}")
    place.run("credential", "show", "shop", "--reveal")
    place.run("credential", "delete", "shop")
    place.run("access", "token", "create", "robot", "--role", "admin")

    found = place.json("access", "audit")["entries"]

    assert [(one["who"], one["action"], one["target"]) for one in found] == [
        (f"local user {getpass.getuser()}", *one)
        for one in [
            ("token.created", "robot"),
            ("credential.deleted", "shop"),
            ("credential.read", "shop"),
            ("credential.put", "shop"),
            ("execution.start", "tests/hello"),
            ("playbook.register", "tests/hello version 1"),
        ]
    ]
    assert place.json("access", "audit", "--limit", "2")["entries"] == found[:2]


def test_people_read_the_audit_log_in_local_time_and_programs_in_utc(noetl):
    assert noetl("credential", "set", "shop", "token=1").code == 0
    told = noetl("access", "audit", TZ="Asia/Tokyo").out.splitlines()
    [entry, *_] = json.loads(noetl("access", "audit", "--json").out)["entries"]
    assert entry["at"].endswith("Z")
    written = datetime.fromisoformat(told[0].split()[0])
    assert written.utcoffset() == timedelta(hours=9)
    assert written == datetime.fromisoformat(entry["at"]).replace(microsecond=0)


def test_a_rotation_without_a_new_key_says_how_to_give_one(place):
    old, new = "5e" * 32, "6f" * 32
    place.run("credential", "set", "db", "password=1234", NOETL_SECRET_KEY=old)

    without = place.run("keys", "rotate", NOETL_SECRET_KEY=old)
    with_one = place.run("keys", "rotate", NOETL_SECRET_KEY=f"{new},{old}")

    assert "nothing to do" in without.stderr
    assert "write the new key in front of the old one" in without.stderr
    assert "1 credential encrypted with the new key" in with_one.stderr
