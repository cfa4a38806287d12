"""Methods by name: what a contestant is called, what makes two of them different, and what is refused in one line."""

from __future__ import annotations

from typing import Any

import pytest

from iclbench.core.errors import UsageError
from iclbench.deep_thinking.methods import method
from iclbench.deep_thinking.settings import METHODS


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
def test_a_contestant_is_named_after_the_method_and_what_is_unusual_about_it(
    name: str, settings: dict[str, Any], suffix: str
) -> None:
    assert method(name, settings).suffix == suffix


def test_methods_with_other_settings_have_other_hashes_and_names() -> None:
    chosen = [
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
    assert len({each.hash for each in chosen}) == len({each.suffix for each in chosen}) == len(chosen)
    assert method("deep-thinking", {"eta": 0.01}).hash == method("deep-thinking").hash
    assert set(METHODS) == {each.name for each in chosen}


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("deep-thinkin", {}, "unknown method 'deep-thinkin'; did you mean 'deep-thinking'?"),
        ("icl", {"eta": 0.1}, "method 'icl' has no settings, got 'eta'"),
        ("deep-thinking", {"etta": 0.1}, "method 'deep-thinking': unknown key 'etta'; did you mean 'eta'"),
        ("deep-thinking", {"eta": -0.1}, "eta: expected greater than or equal to 0, got -0.1"),
        ("deep-thinking", {"eta": float("inf")}, "eta: expected a finite number"),
        ("deep-thinking", {"eta": "much"}, "eta: expected a valid number, got 'much'"),
        ("deep-thinking", {"passes": 0}, "passes: expected a number of passes from 1 on, or dev, got 0"),
        ("deep-thinking", {"passes": 2.5}, "passes: expected a number of passes from 1 on, or dev, got 2.5"),
        ("deep-thinking", {"passes": "test"}, "or dev, got 'test'"),
        ("deep-thinking", {"passes": "best"}, "looks at the evaluation data"),
        ("deep-thinking", {"max_passes": 3}, "max_passes is the largest of passes=dev"),
        ("deep-thinking", {"momentum": 1.0}, "momentum: expected less than 1, got 1.0"),
        ("deep-thinking", {"setting": "release"}, "setting: expected 'paper' or 'released', got 'release'"),
        ("repeat", {"times": 1}, "times: expected greater than or equal to 2, got 1"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        method(name, settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_too_long_is_said_with_the_numbers_before_anything_is_computed() -> None:
    plain, thinking = method("icl"), method("deep-thinking")
    assert plain.too_long(700, 40, 1024) == thinking.too_long(512, 40, 1024) == thinking.too_long(700, 40, None) == ""
    assert (
        thinking.too_long(513, 40, 1024)
        == "Deep-Thinking needs 1026 tokens (513 of demonstrations, twice), it takes 1024"
    )
    for each in (plain, thinking, method("repeat")):
        assert "the prompt needs 1040 tokens (40 of demonstrations, 1000 of the query" in each.too_long(40, 1000, 1024)
    assert method("deep-thinking", {"passes": 1}).too_long(700, 40, 1024) == ""
    assert method("repeat", {"times": 3}).times == 3
    assert [m.passes for m in (plain, thinking, method("deep-thinking", {"passes": "dev"}))] == [1, 5, 15]
