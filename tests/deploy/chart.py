"""Renders our Helm chart without Helm, which no package registry has.

It knows only what the chart uses: values by path, `range` over a mapping, `if`, `not`, `quote`,
`toJson` and `add`. Anything else in a template is an error, so that the chart stays as simple as
this page can check.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parent.parent.parent / "deploy" / "helm" / "noetl"
_TAG = re.compile(r"(?P<trim>\s*)\{\{(?P<minus>-?)\s*(?P<code>.*?)\s*\}\}")


def rendered(release: str, changes: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Every Kubernetes object of the chart, with these values over its own."""
    values = _merged(yaml.safe_load((CHART / "values.yaml").read_text()), changes or {})
    root = {"Release": {"Name": release}, "Values": values}
    found: list[dict[str, Any]] = []
    for path in sorted((CHART / "templates").glob("*.yaml")):
        text = "".join(_render(iter(_tokens(path.read_text())), {"": root, "$": root}))
        found += [part for part in yaml.safe_load_all(text) if part]
    return found


def _merged(below: Any, above: Any) -> Any:
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    both = {key: _merged(value, above.get(key, value)) for key, value in below.items()}
    return {**above, **both}


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    end = 0
    for tag in _TAG.finditer(text):
        start = tag.start() if tag["minus"] else tag.start("trim") + len(tag["trim"])
        yield "text", text[end:start]
        yield "code", tag["code"]
        end = tag.end()
    yield "text", text[end:]


def _render(tokens: Iterator[tuple[str, str]], names: dict[str, Any]) -> Iterator[str]:
    for kind, token in tokens:
        if kind == "text":
            yield token
        elif token == "end":
            return
        elif token.startswith("range "):
            key, value, source = re.fullmatch(r"range \$(\w+), \$(\w+) := (.+)", token).groups()  # type: ignore[union-attr]
            body = list(_body(tokens))
            for found, part in sorted(_value(source, names).items()):
                yield from _render(iter(body), {**names, f"${key}": found, f"${value}": part})
        elif token.startswith("if "):
            body = list(_body(tokens))
            if _value(token.removeprefix("if "), names):
                yield from _render(iter(body), names)
        else:
            yield _text(_value(token, names))


def _body(tokens: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    depth = 1
    for kind, token in tokens:
        if kind == "code":
            depth += token.startswith(("range ", "if ")) - (token == "end")
            if depth == 0:
                return
        yield kind, token
    raise ValueError("a range or if without its end")


def _value(code: str, names: dict[str, Any]) -> Any:
    words = code.split()
    match words:
        case [path, "|", "quote"]:
            return json.dumps(_text(_value(path, names)))
        case ["toJson", path, "|", "quote"]:
            return json.dumps(json.dumps(_value(path, names)))
        case ["toJson", path]:
            return json.dumps(_value(path, names))
        case ["not", path]:
            return not _value(path, names)
        case ["add", path, number]:
            return _value(path, names) + int(number)
        case [path]:
            name, *parts = path.split(".")
            found = names[name]
            for part in parts:
                found = found[part]
            return found
    raise ValueError(f"the chart uses {code!r}, which this page cannot check")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
