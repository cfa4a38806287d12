"""Whoever changes what something of ours answers raises its number: kept results must not stand for other code.

Answers are compared loosely, since instruction sets round differently; any change of a formula is far larger.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.golden import defaults
from tests.golden.answers import KINDS, answers

KEPT = {kind: json.loads((Path(__file__).parent / f"{kind}.json").read_text()) for kind in KINDS}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, numbers in KINDS.items() for name in numbers])
def test_answers_are_those_of_the_number_that_stands_in_hashes(kind: str, name: str) -> None:
    kept, number = KEPT[kind][name], KINDS[kind][name]
    advice = (
        f"if this is meant, raise its code in iclbench/config/registry.py and run: python -m tests.golden {kind} {name}"
    )
    assert kept["number"] == number, f"{name} has number {number}, its kept answers {kept['number']}: {advice}"
    found = answers(kind, name)
    assert found.keys() == kept["answers"].keys(), advice
    for question, values in found.items():
        np.testing.assert_allclose(
            values, kept["answers"][question], rtol=2e-4, atol=2e-5, err_msg=f"{name}, {question}: {advice}"
        )


@pytest.mark.parametrize("model", sorted(defaults.defaults()))
def test_a_default_changes_with_the_code(model: str) -> None:
    """Identities leave out what equals its default: another default under the same code would take over old results."""
    stored = json.loads(defaults.PATH.read_text()).get(model)
    today = defaults.plain(defaults.defaults())[model]
    advice = "raise the code of its class in iclbench/config/registry.py, then run: python -m tests.golden.defaults"
    assert stored is not None, f"new settings: run python -m tests.golden.defaults ({model})"
    if stored["codes"] == today["codes"]:
        changed = {key: (value, today["defaults"].get(key)) for key, value in stored["defaults"].items()}
        assert all(before == after for before, after in changed.values()), f"{changed}: {advice}"
    assert stored == today, f"run python -m tests.golden.defaults ({model})"
