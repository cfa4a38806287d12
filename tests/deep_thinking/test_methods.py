"""Methods by name: contestant suffixes, hashes and errors."""

from __future__ import annotations

from typing import Any

import pytest

from iclbench.core.errors import UsageError
from iclbench.deep_thinking.methods import method
from iclbench.deep_thinking.settings import METHODS
from tests.refusals import refused


@pytest.mark.parametrize(
    ("name", "settings", "suffix"),
    [
        ("icl", {}, ""),
        ("repeat", {}, "+repeat-2"),
        ("repeat", {"times": 5}, "+repeat-5"),
        ("deep-thinking", {}, "+deep-thinking"),
        ("Deep_Thinking", {"eta": 0.01, "passes": 5}, "+deep-thinking"),
        ("deep-thinking", {"passes": 15, "eta": 0.1}, "+deep-thinking-eta-0.1-passes-15"),
        ("deep-thinking", {"eta": 1}, "+deep-thinking-eta-1"),
        ("deep-thinking", {"passes": "dev"}, "+deep-thinking-passes-dev"),
        ("deep-thinking", {"passes": "dev", "max_passes": 3}, "+deep-thinking-passes-dev-max-passes-3"),
        ("deep-thinking", {"positions": "reuse", "momentum": 0.9}, "+deep-thinking-momentum-0.9-positions-reuse"),
        ("deep-thinking", {"setting": "released"}, "+deep-thinking-released"),
        ("deep-thinking", {"setting": "released", "eta": 0.1}, "+deep-thinking-released-eta-0.1"),
        ("deep-thinking", {"setting": "released", "passes": 5}, "+deep-thinking-released-passes-5"),
    ],
)
def test_the_suffix_contains_the_method_and_all_settings_that_differ_from_the_default(
    name: str, settings: dict[str, Any], suffix: str
) -> None:
    assert method(name, settings).suffix == suffix


def test_methods_with_different_settings_have_different_hashes_and_suffixes() -> None:
    methods = [
        method("icl"),
        method("repeat"),
        method("repeat", {"times": 3}),
        *(
            method("deep-thinking", settings)
            for settings in (
                {},
                {"eta": 0.1},
                {"passes": 4},
                {"passes": "dev"},
                {"momentum": 0.9},
                {"positions": "reuse"},
                {"setting": "released"},
                {"trace": False},
            )
        ),
    ]
    assert len({m.hash for m in methods}) == len({m.suffix for m in methods}) == len(methods)
    assert method("deep-thinking", {"eta": 0.01}).hash == method("deep-thinking").hash
    assert set(METHODS) == {m.name for m in methods}


def test_unknown_methods_and_settings_for_plain_icl_are_refused() -> None:
    with refused("unknown-name", "'deep-thinkin'", "'deep-thinking'"):
        method("deep-thinkin")
    with refused("not-applicable", "'icl'", "'eta'"):
        method("icl", {"eta": 0.1})


@pytest.mark.parametrize(
    ("name", "settings", "names"),
    [
        ("deep-thinking", {"etta": 0.1}, ("'deep-thinking'", "'etta'", "'eta'")),
        ("deep-thinking", {"eta": -0.1}, ("eta", "-0.1")),
        ("deep-thinking", {"eta": float("inf")}, ("eta", "inf")),
        ("deep-thinking", {"eta": "much"}, ("eta", "'much'")),
        ("deep-thinking", {"passes": 0}, ("passes", "1", "dev", "0")),
        ("deep-thinking", {"passes": 2.5}, ("passes", "1", "dev", "2.5")),
        ("deep-thinking", {"passes": "test"}, ("passes", "dev", "'test'")),
        ("deep-thinking", {"passes": "best"}, ("passes", "'best'", "setting=released", "dev")),
        ("deep-thinking", {"max_passes": 3}, ("max_passes", "passes=dev")),
        ("deep-thinking", {"momentum": 1.0}, ("momentum", "1.0")),
        ("deep-thinking", {"setting": "release"}, ("setting", "'paper'", "'released'", "'release'")),
        ("repeat", {"times": 1}, ("times", "2", "1")),
    ],
)
def test_invalid_settings_are_refused_with_a_one_line_error(
    name: str, settings: dict[str, Any], names: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as error:
        method(name, settings)
    message = str(error.value)
    assert not [expected for expected in names if expected not in message], message
    assert "\n" not in message


def test_the_message_for_a_prompt_that_is_too_long_contains_the_lengths() -> None:
    plain, thinking = method("icl"), method("deep-thinking")
    assert plain.too_long(700, 40, 1024) == thinking.too_long(512, 40, 1024) == thinking.too_long(700, 40, None) == ""
    assert all(number in thinking.too_long(513, 40, 1024) for number in ("1026", "513", "1024"))
    for reading_method in (plain, thinking, method("repeat")):
        assert all(number in reading_method.too_long(40, 1000, 1024) for number in ("1040", "40", "1000"))
    assert method("deep-thinking", {"passes": 1}).too_long(700, 40, 1024) == ""
    assert method("repeat", {"times": 3}).times == 3
    assert [m.passes for m in (plain, thinking, method("deep-thinking", {"passes": "dev"}))] == [1, 5, 15]
