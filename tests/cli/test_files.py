"""From names to texts and back: every file done, none half."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from noetl.cli.files import Source, Unreadable, replace, source, sources

PLAYBOOK = "apiVersion: noetl.io/v2\nkind: Playbook\n"


def names(*given: Path | str) -> list[str]:
    return [os.path.basename(found.name) for found in sources([str(name) for name in given])]


@pytest.mark.parametrize(
    "text",
    [
        PLAYBOOK,
        f"# a comment\n---\n{PLAYBOOK}",
        '"apiVersion": "noetl.io/v2"\n',
        "{apiVersion: noetl.io/v2}",
        '# json\n{\n  "apiVersion": "noetl.io/v1"}',
        "kind: Playbook\napiVersion:   'noetl.io/v2'\n",
    ],
)
def test_a_directory_yields_what_says_it_is_a_playbook(tmp_path, text):
    (tmp_path / "p.yaml").write_text(text)

    assert names(tmp_path) == ["p.yaml"]


def test_a_directory_is_searched_deeply_in_order_and_without_what_is_none_of_ours(tmp_path):
    for name in ("b/two.yml", "a.yaml", "b/one.yaml", ".git/x.yaml", "b/.hidden.yaml", "a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(PLAYBOOK)
    (tmp_path / "compose.yaml").write_text("services:\n  apiVersion: noetl.io/v2\n")
    (tmp_path / "latin.yaml").write_bytes(b"title: \xe9\n")

    assert names(tmp_path) == ["a.yaml", "one.yaml", "two.yml"]


def test_a_pipe_in_a_directory_is_left_alone_and_a_link_to_nothing_is_told(tmp_path):
    (tmp_path / "a.yaml").write_text(PLAYBOOK)
    os.mkfifo(tmp_path / "b.yaml")  # It would be waited for: nobody writes to it.
    (tmp_path / "c.yaml").symlink_to("nowhere")
    (tmp_path / "d.yaml").symlink_to("n" * 300)  # No file can have that name.

    [good, *dangling] = sources([str(tmp_path)])

    assert good.name == str(tmp_path / "a.yaml")
    assert [one.name for one in dangling] == [str(tmp_path / name) for name in ("c.yaml", "d.yaml")]
    assert all(isinstance(one, Unreadable) for one in dangling)


def test_a_directory_without_playbooks_is_not_silently_fine(tmp_path):
    [nothing] = sources([str(tmp_path)])

    assert isinstance(nothing, Unreadable)
    assert "no playbook in this directory" in nothing.reason


def test_a_file_named_twice_is_read_once(tmp_path):
    (tmp_path / "a.yaml").write_text(PLAYBOOK)
    (tmp_path / "same.yaml").symlink_to("a.yaml")

    assert names(tmp_path / "a.yaml", tmp_path, tmp_path / "a.yaml") == ["a.yaml"]


def test_what_cannot_be_read_is_told_and_the_rest_is_read(tmp_path):
    (tmp_path / "latin.yaml").write_bytes(PLAYBOOK.encode() + b"# caf\xe9\n")
    (tmp_path / "good.yaml").write_text(PLAYBOOK)
    given = [str(tmp_path / name) for name in ("missing.yaml", "latin.yaml", "good.yaml")]

    missing, latin, good = sources(given)

    assert isinstance(missing, Unreadable)
    assert missing.reason == "there is no such file"
    assert isinstance(latin, Unreadable)
    assert "not UTF-8: byte 0xe9 on line 3" in latin.reason
    assert isinstance(good, Source)
    assert good.text == PLAYBOOK


def test_a_byte_order_mark_is_no_part_of_the_text_and_line_ends_are(tmp_path):
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfa: 1\r\n")

    [source] = sources([str(tmp_path / "a.yaml")])

    assert isinstance(source, Source)
    assert source.text == "a: 1\r\n"


def test_an_endless_file_is_refused():
    [endless] = sources(["/dev/zero"])

    assert isinstance(endless, Unreadable)
    assert "more than" in endless.reason


def test_replacing_keeps_mode_and_link_and_leaves_nothing_behind(tmp_path):
    target, link = tmp_path / "target.yaml", tmp_path / "link.yaml"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to("target.yaml")

    replace(link, "new")

    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.yaml", "target.yaml"]


def test_a_read_only_file_is_left_alone(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("old")
    path.chmod(0o444)

    with pytest.raises(PermissionError):
        replace(path, "new")

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_misspelt_file_is_answered_with_the_one_beside_it(tmp_path):
    (tmp_path / "orders.yaml").write_text("")

    near = source(str(tmp_path / "order.yaml"))
    far = source(str(tmp_path / "invoices.yaml"))
    nowhere = source(str(tmp_path / "nowhere" / "orders.yaml"))

    assert near.reason == f"there is no such file (did you mean {tmp_path / 'orders.yaml'}?)"
    assert far.reason == nowhere.reason == "there is no such file"
