"""Many contracts of one predictor in one test: thousands of tests of a few milliseconds would take as long again."""

from __future__ import annotations

from collections.abc import Iterable

from iclbench.contracts import Contract, Tolerance
from iclbench.core.episodes import Episodes
from iclbench.core.predictor import Predictor


def check(contracts: Iterable[Contract], predictor: Predictor, episodes: Episodes, tolerance: Tolerance) -> None:
    """Check those that are about this kind of predictor.

    Raises:
        ExceptionGroup: one error for every contract that is broken, with its name.
    """
    errors = []
    for contract in contracts:
        if contract.applies(predictor):
            try:
                contract.check(predictor, episodes, tolerance)
            except Exception as error:
                error.add_note(f"contract: {contract.name}")
                errors.append(error)
    if errors:
        raise ExceptionGroup(f"{len(errors)} contracts are broken", errors)
