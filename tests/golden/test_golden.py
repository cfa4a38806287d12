"""A class whose answers change needs a new code version, so that cached results always belong to the current code.

Answers are compared with a tolerance because instruction sets round differently. Changed formulas have far larger
effects.
"""

from pathlib import Path

import numpy as np
import pytest

from iclbench.config.cards import PRESETS, load_baseline, load_task
from tests.golden import answers as golden
from tests.golden import cards, defaults, stub
from tests.golden.answers import KINDS, answers, stored

MISSING = "run: python -m tests.golden"
CHANGED = (
    "if this is intended, raise its code in iclbench/registry.py (for a class that is not merged yet, delete its line "
    f"in the JSON files of tests/golden), then {MISSING}"
)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, numbers in KINDS.items() for name in numbers])
def test_answers_equal_the_golden_answers(kind: str, name: str) -> None:
    entry = stored(kind).get(name)
    assert entry is not None, f"no golden answers of {name}; {MISSING}"
    assert entry["number"] == KINDS[kind][name], f"the golden answers of {name} have another code version; {MISSING}"
    today = answers(kind, name)
    assert today.keys() == entry["answers"].keys(), f"the questions for {name} have changed; {MISSING}"
    for question, values in today.items():
        np.testing.assert_allclose(
            values, entry["answers"][question], rtol=2e-4, atol=2e-5, err_msg=f"{name}, {question}: {CHANGED}"
        )


@pytest.mark.parametrize("model", sorted(defaults.defaults()))
def test_a_default_changes_only_with_the_code_version(model: str) -> None:
    """Identities omit settings with default values, so a changed default needs a new code version."""
    stored = defaults.stored().get(model)
    assert stored is not None, f"the defaults of {model} are not stored; {MISSING}"
    today = defaults.plain(defaults.defaults())[model]
    changed = {
        key: (value, today["defaults"].get(key))
        for key, value in stored["defaults"].items()
        if value != today["defaults"].get(key)
    }
    unraised = defaults.have_equal_code(stored, today)
    assert not changed or not unraised, f"{changed} of {', '.join(unraised)}: {CHANGED}"
    assert stored == today, f"the stored defaults of {model} are out of date; {MISSING}"


def test_only_missing_answers_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed answers of an unchanged code version are not stored, so the tests above fail."""
    monkeypatch.setattr(golden, "_path", lambda kind: tmp_path / f"{kind}.json")
    monkeypatch.setattr(golden, "_questions", lambda kind, name: today.keys())
    monkeypatch.setattr(golden, "answers", lambda kind, name: today)

    def write(code: int) -> list[str]:
        monkeypatch.setitem(KINDS, "estimators", {"zero": code})
        return golden.write_missing("estimators")

    today = {"a": [1.0]}
    assert write(1) == ["zero"] and write(1) == []
    today = {"a": [2.0], "b": [3.0]}
    assert write(1) == ["zero"] and stored("estimators")["zero"]["answers"] == {"a": [1.0], "b": [3.0]}
    assert write(2) == ["zero"] and stored("estimators")["zero"] == {"number": 2, "answers": today}


def test_a_changed_default_is_written_only_if_all_classes_have_a_new_code_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "PATH", tmp_path / "defaults.json")
    monkeypatch.setattr(defaults, "defaults", lambda: {"m:S": {"codes": codes, "defaults": today}})
    defaults.PATH.write_text('{"m:S": {"codes": {"x": 1, "y": 1}, "defaults": {"a": 1}}}')
    codes, today = {"x": 1, "y": 1}, {"a": 2, "b": 3}
    assert defaults.write_missing() == ["m:S"] and defaults.stored()["m:S"]["defaults"] == {"a": 1, "b": 3}
    codes = {"x": 2, "y": 1}
    assert defaults.write_missing() == ["m:S"] and defaults.stored()["m:S"]["defaults"] == {"a": 1, "b": 3}
    codes = {"x": 3, "y": 2, "z": 1}
    assert defaults.write_missing() == ["m:S"] and defaults.stored()["m:S"]["defaults"] == today


def test_the_stub_imports_all_registered_architectures() -> None:
    text = stub.PATH.read_text()
    assert stub.with_architectures(text) == text, MISSING
    without = text.replace("from .api.architectures import GPT2 as GPT2\n", "")
    assert without != text and stub.with_architectures(without) == text


def test_generated_cards_are_valid(tmp_path: Path) -> None:
    path = tmp_path / "relu.toml"
    path.write_text(cards.task("relu-network"))
    _, card = load_task(str(path))
    assert (card.family, card.oracles) == ("relu-network", []) and set(card.presets) == set(PRESETS)
    path.write_text(cards.baseline("lasso"))
    assert load_baseline(str(path))[1].estimator == "lasso"
