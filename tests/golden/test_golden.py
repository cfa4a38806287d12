"""Whoever changes what something of ours answers raises its number: kept results must not stand for other code.

Answers are compared loosely, since instruction sets round differently; any change of a formula is far larger.
"""

import json
from pathlib import Path

import numpy as np
import pytest

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
