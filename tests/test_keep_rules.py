"""How long executions are kept, as people write it."""

import pytest

from noetl.errors import BadSetting
from noetl.model.retention import keep_rules
from noetl.settings import Settings

DAY = 86400.0


def test_rules_are_ordered_from_the_most_particular_to_the_least():
    keep = keep_rules("90d, failed=180d, shop/=30d, shop/:failed=forever, shop/a=12h")

    assert [(rule.written, rule.seconds) for rule in keep.rules] == [
        ("shop/a", DAY / 2),
        ("shop/:failed", None),
        ("shop/", 30 * DAY),
        ("failed", 180 * DAY),
        ("", 90 * DAY),
    ]


@pytest.mark.parametrize(
    ("path", "status", "kept"),
    [
        ("bank/x", "COMPLETED", 90 * DAY),
        ("bank/x", "FAILED", 180 * DAY),
        ("bank/x", "CANCELLED", 90 * DAY),
        ("shop/x", "COMPLETED", 30 * DAY),
        ("shop/x", "FAILED", None),
        ("shop/abc", "FAILED", DAY / 2),
    ],
)
def test_the_longest_path_wins_then_the_one_that_names_failures(path, status, kept):
    keep = keep_rules("90d, failed=180d, shop/=30d, shop/:failed=forever, shop/a=12h")
    rule = keep.rule_for(path, status)

    assert rule is not None
    assert rule.seconds == kept


def test_without_rules_everything_is_kept():
    assert keep_rules("").rule_for("a", "COMPLETED") is None
    assert keep_rules("shop/=1d").rule_for("bank/a", "COMPLETED") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("soon", '"soon" is not a duration'),
        ("0d", '"0d" is not a duration'),
        ("-3d", '"-3d" is not a duration'),
        ("=3d", "names no path"),
        ("shop/:broken=3d", 'after the ":" comes `failed`'),
        ("3d, 4d", "said twice"),
        ("shop/=3d, shop/=4d", '"shop/" is said twice'),
    ],
)
def test_what_says_nothing_clear_is_refused_with_the_reason(text, why):
    with pytest.raises(ValueError, match=why):
        keep_rules(text)


def test_the_setting_is_checked_when_a_process_starts():
    assert Settings.from_environment({"NOETL_KEEP": "90d,shop/=30d"}).keep == "90d,shop/=30d"
    with pytest.raises(BadSetting, match=r"NOETL_KEEP is .* use the default \(none\)"):
        Settings.from_environment({"NOETL_KEEP": "90 days"})
