"""Data formats: recognised by file name or media type, and how to decode each."""

from __future__ import annotations

import base64
import csv
import io
import re
from codecs import BOM_UTF8
from typing import Any
from xml.etree import ElementTree as Xml

import msgspec

from noetl.tools.plain_data import numbered, read_json, read_ndjson

TEXT_TYPES = frozenset(
    ["application/javascript", "application/graphql", "application/sql", "application/yaml"]
)
csv.field_size_limit(2**31 - 1)  # The limit is that of the whole.
_ENTITIES = re.compile(rb"<!ENTITY", re.IGNORECASE)


ENDINGS = {
    "csv": (".csv", ".tsv", ".txt"),
    "ndjson": (".ndjson", ".jsonl"),
    "json": (".json",),
    "parquet": (".parquet", ".parq"),
    "arrow": (".arrow", ".feather", ".ipc"),
}


def form_of(name: str) -> str | None:
    """The format of a file by its extension; of a compressed one by the extension before that."""
    plain = name.lower().partition("?")[0].removesuffix(".gz").removesuffix(".zst")
    return next((form for form, ends in ENDINGS.items() if plain.endswith(ends)), None)


class Unreadable(ValueError):
    """The content is not in the declared format."""


def decoded(body: bytes, content_type: str, form: str) -> Any:
    """The content as a plain value. Raises Unreadable. Empty content is None."""
    media, charset = _media(content_type)
    form = form_of_media(media) if form == "auto" else form
    if not body:
        return None
    try:
        match form:
            case "json":
                return read_json(body.removeprefix(BOM_UTF8))
            case "ndjson":
                return read_ndjson(body.removeprefix(BOM_UTF8).decode(charset))
            case "csv":
                return csv_rows(body.decode(charset))
            case "xml":
                return _tree(body)
            case "text":
                return body.decode(charset)
    except (msgspec.DecodeError, UnicodeDecodeError, LookupError, csv.Error, Xml.ParseError) as e:
        raise Unreadable(f"it is not {form}: {e}") from e
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    return base64.b64encode(body).decode("ascii")


def _media(content_type: str) -> tuple[str, str]:
    media, _, parameters = content_type.partition(";")
    charset = re.search(r"charset\s*=\s*\"?([^\";\s]+)", parameters, re.IGNORECASE)
    return media.strip().lower(), charset.group(1) if charset else "utf-8"


def form_of_media(content_type: str) -> str:
    """The format of a media type; `bytes` if it names none."""
    media, _ = _media(content_type)
    if media in ("application/json", "text/json") or media.endswith("+json"):
        return "json"
    if media in ("application/x-ndjson", "application/ndjson", "application/jsonl", "text/ndjson"):
        return "ndjson"
    if media == "text/csv":
        return "csv"
    if media in ("application/xml", "text/xml") or media.endswith("+xml"):
        return "xml"
    if media.startswith("text/") or media in TEXT_TYPES:
        return "text"
    return "bytes"


def csv_rows(text: str) -> list[dict[str, Any]]:
    """The lines of a CSV text by the names in its first one. Raises csv.Error."""
    reader = csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
    reader.fieldnames = numbered(reader.fieldnames or ())
    rows: list[dict[str, Any]] = []
    for row in reader:
        if None in row:
            raise csv.Error(f"line {reader.line_num} has more fields than the first line names")
        rows.append(row)
    return rows


def _tree(body: bytes) -> dict[str, Any]:
    # XML bombs are made of entities that a document declares itself.
    if _ENTITIES.search(body):
        raise Unreadable("it declares entities of its own, which are not expanded")
    root = Xml.fromstring(body)  # noqa: S314 - entities are refused above
    return {_tag(root.tag): _element(root)}


def _element(element: Xml.Element) -> Any:
    """Attributes as `@name`, children by name (a list if repeated), text as `#text` or alone."""
    found: dict[str, Any] = {f"@{_tag(name)}": value for name, value in element.attrib.items()}
    for child in element:
        name, value = _tag(child.tag), _element(child)
        if name not in found:
            found[name] = value
        elif isinstance(found[name], list):
            found[name].append(value)
        else:
            found[name] = [found[name], value]
    text = (element.text or "").strip()
    if not found:
        return text or None
    return found | {"#text": text} if text else found


def _tag(name: str) -> str:
    return name.rpartition("}")[2]
