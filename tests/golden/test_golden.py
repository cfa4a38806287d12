"""A class that answers differently has another code: cached results never belong to other code.

Answers are compared loosely, since instruction sets round differently; any change of a formula is far larger.
"""

import numpy as np
import pytest

from tests.golden import defaults
from tests.golden.answers import KINDS, answers, stored

MISSING = "run: python -m tests.golden"
CHANGED = f"if this is intended, raise its code in iclbench/config/registry.py, then {MISSING}"


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, numbers in KINDS.items() for name in numbers])
def test_answers_are_those_of_the_code_in_hashes(kind: str, name: str) -> None:
    known = stored(kind).get(name)
    assert known is not None, f"no golden answers of {name}; {MISSING}"
    assert known["number"] == KINDS[kind][name], f"the golden answers of {name} are those of another code; {MISSING}"
    today = answers(kind, name)
    assert today.keys() == known["answers"].keys(), f"the questions to {name} are others; {MISSING}"
    for question, values in today.items():
        np.testing.assert_allclose(
            values, known["answers"][question], rtol=2e-4, atol=2e-5, err_msg=f"{name}, {question}: {CHANGED}"
        )


@pytest.mark.parametrize("model", sorted(defaults.defaults()))
def test_a_default_changes_with_the_code(model: str) -> None:
    """Identities leave out what equals its default: another default under the same code would take over old results."""
    stored = defaults.stored().get(model)
    assert stored is not None, f"the defaults of {model} are not stored; {MISSING}"
    today = defaults.plain(defaults.defaults())[model]
    if stored["codes"] == today["codes"]:
        changed = {key: (value, today["defaults"].get(key)) for key, value in stored["defaults"].items()}
        assert all(before == after for before, after in changed.values()), f"{changed}: {CHANGED}"
    assert stored == today, f"the stored defaults of {model} are not those of today; {MISSING}"
