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
from tests.golden.answers import KINDS, answers, read_stored

MISSING = "run: python -m tests.golden"
CHANGED = (
    "if this is intended, raise its code in iclbench/registry.py (for a class that is not merged yet, delete its line "
    f"in the JSON files of tests/golden), then {MISSING}"
)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, numbers in KINDS.items() for name in numbers])
def test_answers_equal_the_golden_answers(kind: str, name: str) -> None:
    entry = read_stored(kind).get(name)
    assert entry is not None, f"no golden answers of {name}; {MISSING}"
    assert entry["number"] == KINDS[kind][name], f"the golden answers of {name} have another code version; {MISSING}"
    current_answers = answers(kind, name)
    assert current_answers.keys() == entry["answers"].keys(), f"the questions for {name} have changed; {MISSING}"
    for question, values in current_answers.items():
        np.testing.assert_allclose(
            values, entry["answers"][question], rtol=2e-4, atol=2e-5, err_msg=f"{name}, {question}: {CHANGED}"
        )


@pytest.mark.parametrize("model", sorted(defaults.defaults()))
def test_a_default_changes_only_with_the_code_version(model: str) -> None:
    """Identities omit settings with default values, so a changed default needs a new code version."""
    stored_entry = defaults.read_stored().get(model)
    assert stored_entry is not None, f"the defaults of {model} are not stored; {MISSING}"
    current_entry = defaults.through_json(defaults.defaults())[model]
    changed_defaults = {
        key: (value, current_entry["defaults"].get(key))
        for key, value in stored_entry["defaults"].items()
        if value != current_entry["defaults"].get(key)
    }
    owners = defaults.owners_with_equal_code(stored_entry, current_entry)
    assert not changed_defaults or not owners, f"{changed_defaults} of {', '.join(owners)}: {CHANGED}"
    assert stored_entry == current_entry, f"the stored defaults of {model} are out of date; {MISSING}"


def test_only_missing_answers_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed answers of an unchanged code version are not stored, so the tests above fail."""
    monkeypatch.setattr(golden, "_path", lambda kind: tmp_path / f"{kind}.json")
    monkeypatch.setattr(golden, "_questions", lambda kind, name: current_answers.keys())
    monkeypatch.setattr(golden, "answers", lambda kind, name: current_answers)

    def write(code: int) -> list[str]:
        monkeypatch.setitem(KINDS, "estimators", {"zero": code})
        return golden.write_missing("estimators")

    current_answers = {"a": [1.0]}
    assert write(1) == ["zero"] and write(1) == []
    current_answers = {"a": [2.0], "b": [3.0]}
    assert write(1) == ["zero"] and read_stored("estimators")["zero"]["answers"] == {"a": [1.0], "b": [3.0]}
    assert write(2) == ["zero"] and read_stored("estimators")["zero"] == {"number": 2, "answers": current_answers}


def test_a_changed_default_is_written_only_if_all_classes_have_a_new_code_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "PATH", tmp_path / "defaults.json")
    monkeypatch.setattr(defaults, "defaults", lambda: {"m:S": {"codes": codes, "defaults": current_defaults}})
    defaults.PATH.write_text('{"m:S": {"codes": {"x": 1, "y": 1}, "defaults": {"a": 1}}}')
    codes, current_defaults = {"x": 1, "y": 1}, {"a": 2, "b": 3}
    assert defaults.write_missing() == ["m:S"] and defaults.read_stored()["m:S"]["defaults"] == {"a": 1, "b": 3}
    codes = {"x": 2, "y": 1}
    assert defaults.write_missing() == ["m:S"] and defaults.read_stored()["m:S"]["defaults"] == {"a": 1, "b": 3}
    codes = {"x": 3, "y": 2, "z": 1}
    assert defaults.write_missing() == ["m:S"] and defaults.read_stored()["m:S"]["defaults"] == current_defaults


def test_the_stub_imports_all_registered_architectures() -> None:
    text = stub.PATH.read_text()
    assert stub.with_architectures(text) == text, MISSING
    incomplete_stub = text.replace("from .api.architectures import GPT2 as GPT2\n", "")
    assert incomplete_stub != text and stub.with_architectures(incomplete_stub) == text


def test_generated_cards_are_valid(tmp_path: Path) -> None:
    path = tmp_path / "relu.toml"
    path.write_text(cards.task("relu-network"))
    _, card = load_task(str(path))
    assert (card.family, card.oracles) == ("relu-network", []) and set(card.presets) == set(PRESETS)
    path.write_text(cards.baseline("lasso"))
    assert load_baseline(str(path))[1].estimator == "lasso"
