"""Filters that make text. Same results as Jinja's, but every length is known before it is made."""

from __future__ import annotations

import html
import re
from textwrap import wrap
from urllib.parse import quote_from_bytes

from noetl.templates.errors import EvaluationFailed
from noetl.templates.evaluation import Evaluation, kind_of, whole
from noetl.templates.operators import formatted

WIDTH_MAX = 1_000_000
WRAP_TEXT_MAX = 65_536
WRAP_WORD_MAX = 1_000
STRIP_MAX = 100
TRUNCATE_LEEWAY = 5

WORD_BEGINNING = re.compile(r"([-\s({\[<]+)")
WORD = re.compile(r"\w+")


def capitalize(run: Evaluation, value: object) -> str:
    return run.made(run.text(value).capitalize())


def lower(run: Evaluation, value: object) -> str:
    return run.made(run.text(value).lower())


def upper(run: Evaluation, value: object) -> str:
    return run.made(run.text(value).upper())


def title(run: Evaluation, value: object) -> str:
    text = run.text(value)
    run.charge(len(text))
    parts = WORD_BEGINNING.split(text)
    return run.made("".join(part[0].upper() + part[1:].lower() for part in parts if part))


def string(run: Evaluation, value: object) -> str:
    return run.text(value)


def trim(run: Evaluation, value: object, chars: object = None) -> str:
    return run.made(run.text(value).strip(strippable(run, chars)))


def strippable(run: Evaluation, chars: object) -> str | None:
    """The characters to strip: few enough, since each of them is tried at each position."""
    if chars is None:
        return None
    text = run.text(chars)
    if len(text) > STRIP_MAX:
        raise EvaluationFailed(f"at most {STRIP_MAX} different characters can be stripped")
    return text


def center(run: Evaluation, value: object, width: object = 80) -> str:
    size = whole(width, "the width", 0, WIDTH_MAX)
    text = run.text(value)
    run.charge_text(max(size, len(text)))
    return text.center(size)


def indent(
    run: Evaluation,
    value: object,
    width: object = 4,
    first: object = False,
    blank: object = False,
) -> str:
    margin = width if isinstance(width, str) else " " * whole(width, "the width", 0, WIDTH_MAX)
    text = run.text(value)
    run.charge_text(len(text))
    lines = (text + "\n").splitlines()
    run.charge_text(len(lines) * (len(margin) + 1))
    rest = [margin + line if line or blank else line for line in lines[1:]]
    head = margin + lines[0] if first else lines[0]
    return "\n".join([head, *rest])


def replace(run: Evaluation, value: object, old: object, new: object, count: object = None) -> str:
    text, before, after = run.text(value), run.text(old), run.text(new)
    most = -1 if count is None else whole(count, "the count", -1, WIDTH_MAX)
    return replaced(run, text, before, after, most)


def replaced(run: Evaluation, text: str, old: str, new: str, count: int) -> str:
    """`text.replace` after paying for the result; also the method of that name."""
    run.charge_reading(text)
    found = text.count(old)
    if count >= 0:
        found = min(found, count)
    run.charge_text(len(text) + found * max(0, len(new) - len(old)))
    return text.replace(old, new, count)


def format_text(run: Evaluation, value: object, *args: object, **kwargs: object) -> str:
    if args and kwargs:
        raise EvaluationFailed("format takes either values in order or values by name, not both")
    return formatted(run, run.text(value), kwargs or args)


def truncate(
    run: Evaluation,
    value: object,
    length: object = 255,
    killwords: object = False,
    end: object = "...",
    leeway: object = None,
) -> str:
    text, tail = run.text(value), run.text(end)
    size = whole(length, "the length", len(tail), WIDTH_MAX)
    slack = TRUNCATE_LEEWAY if leeway is None else whole(leeway, "the leeway", 0, WIDTH_MAX)
    if len(text) <= size + slack:
        return text
    kept = text[: size - len(tail)]
    if not killwords:
        kept = kept.rsplit(" ", 1)[0]
    return run.made(kept + tail)


def wordwrap(
    run: Evaluation,
    value: object,
    width: object = 79,
    break_long_words: object = True,
    wrapstring: object = None,
    break_on_hyphens: object = True,
) -> str:
    text = run.text(value)
    size = whole(width, "the width", 1, WIDTH_MAX)
    between = "\n" if wrapstring is None else run.text(wrapstring)
    run.charge(10 * len(text))
    if len(text) > WRAP_TEXT_MAX or any(len(word) > WRAP_WORD_MAX for word in text.split()):
        raise EvaluationFailed(
            f"wordwrap takes at most {WRAP_TEXT_MAX:,} characters in words of at most "
            f"{WRAP_WORD_MAX:,}"
        )
    paragraphs = [
        wrap(
            line,
            width=size,
            expand_tabs=False,
            replace_whitespace=False,
            break_long_words=bool(break_long_words),
            break_on_hyphens=bool(break_on_hyphens),
        )
        for line in text.splitlines()
    ]
    run.charge_text(len(text) + len(between) * sum(max(1, len(lines)) for lines in paragraphs))
    return between.join(between.join(lines) for lines in paragraphs)


def wordcount(run: Evaluation, value: object) -> int:
    text = run.text(value)
    count = sum(1 for _ in WORD.finditer(text))
    run.charge(count + len(text) // 10)
    return count


def escape(run: Evaluation, value: object) -> str:
    text = run.text(value)
    run.charge_text(len(text) + 5 * sum(text.count(sign) for sign in "&<>'\""))
    escaped = text.replace("&", "&amp;").replace(">", "&gt;").replace("<", "&lt;")
    return escaped.replace("'", "&#39;").replace('"', "&#34;")


def striptags(run: Evaluation, value: object) -> str:
    text = _without(run, _without(run, run.text(value), "<!--", "-->"), "<", ">")
    run.charge(len(text) // 2)
    return run.made(html.unescape(" ".join(text.split())))


def _without(run: Evaluation, text: str, opening: str, closing: str) -> str:
    """The text less everything from an opening to the next closing, in one pass."""
    run.charge_reading(text)
    kept, position = [], 0
    while (start := text.find(opening, position)) >= 0:
        end = text.find(closing, start)
        if end < 0:
            break
        run.charge(1)
        kept.append(text[position:start])
        position = end + len(closing)
    kept.append(text[position:])
    return run.made("".join(kept))


def urlencode(run: Evaluation, value: object) -> str:
    if isinstance(value, dict):
        pairs: list[object] = list(value.items())
    elif isinstance(value, list | tuple):
        pairs = list(value)
    else:
        return _quoted(run, value, "/")
    run.charge(1 + len(pairs))
    texts = []
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise EvaluationFailed("urlencode needs text, a mapping, or a list of pairs")
        key, part = pair
        texts.append(f"{_quoted(run, key, '')}={_quoted(run, part, '')}".replace("%20", "+"))
    return run.made("&".join(texts))


def _quoted(run: Evaluation, value: object, safe: str) -> str:
    data = value if isinstance(value, bytes) else run.text(value).encode()
    run.charge_text(3 * len(data))
    return quote_from_bytes(data, safe)


def filesizeformat(run: Evaluation, value: object, binary: object = False) -> str:
    try:
        size = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise EvaluationFailed(f"filesizeformat needs a number, not {kind_of(value)}") from None
    base = 1024 if binary else 1000
    if size == 1:
        return "1 Byte"
    if size < base:
        return f"{int(size)} Bytes"
    step = next((step for step in range(1, 8) if size < base ** (step + 1)), 8)
    prefix = "kMGTPEZY"[step - 1]
    named = f"{prefix.upper()}iB" if binary else f"{prefix}B"
    return f"{base * size / base ** (step + 1):.1f} {named}"
