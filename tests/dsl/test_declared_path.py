"""The path of a document, read from its head alone."""

from __future__ import annotations

import pytest

from noetl.dsl.read import declared_path


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("metadata: {name: a, path: x/a}", "x/a"),
        ("metadata:\n  path: 'x/a'\n  name: a\nworkflow: [oops", "x/a"),
        ("metadata: {name: a,\n  path: x/a}", "x/a"),
        ("metadata: {name: a}\nworkflow:\n  - tool: {path: x/b}\n", "a"),
        ("metadata: {labels: {path: x/b}, name: a}", "a"),
        ("metadata: {tags: [path, x/b], path: x/a}", "x/a"),
        ("workflow:\n  - step: a\n    path: x/b\nmetadata: {path: x/a}", "x/a"),
        ("name: a\npath: x/a\nworkflow: []", "x/a"),
        ("path: x/b\nmetadata: {path: x/a}", "x/a"),
        ("x: &one {path: x/b}\ny: *one\nmetadata: {path: x/a}", "x/a"),
        ("\ufeffmetadata: {path: x/a}", "x/a"),
        ("name: compose\nservices: {}", None),
        ("- metadata: {path: x/a}", None),
        ("%TAG ! tag:x:\n---\nmetadata: {path: x/a}", None),
        ("metadata: {path: [x]}", None),
        ("a text", None),
        ("", None),
    ],
)
def test_the_path_is_that_of_the_metadata(text: str, path: str | None):
    assert declared_path(text) == path
