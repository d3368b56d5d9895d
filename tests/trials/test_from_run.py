"""What a test made of a run says: its stand-ins answer exactly what the tools answered."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from noetl.templates import Scope, compile_value
from noetl.trials.from_run import quoted, written
from tests.effort import generated

PIECES = ("{{", "}}", "{% raw %}", "{%- endraw -%}", "{%", "%}", "{#", " 1 + 1 ", '"', "\\", "\n")


@generated(100)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3)).map("".join))
@example("{% endraw %}{{ 1 + 1 }}{% raw %}")
@example("a {{ b }}\nc\n")
@example("a {{ b }}\r\nc\r")
@example("\u2028 \x85 \U0001f600 {{ '}}' }} endraw")
def test_a_text_is_answered_as_it_was_whatever_stands_in_it(text):
    assert compile_value(quoted(text)).render(Scope({}), "a stand-in") == text


@pytest.mark.parametrize("text", ["2026-01-01", "0o7", "1e3", "=", "<<", "~", " x ", "\ta\n"])
def test_a_text_is_read_back_as_a_text(text):
    assert yaml.safe_load(written({"result": text})) == {"result": text}
