"""Many contracts of one predictor in one test: thousands of tests of a few milliseconds would take as long again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from iclbench.contracts import CONTRACTS, Contract, Tolerance
from iclbench.core.episodes import Episodes
from iclbench.core.predictor import Predictor


def picked(cases: Iterable[tuple[Any, ...]], left: Callable[..., bool]) -> list[Any]:
    """Every case with the contracts that are asked in every run, and once more with those that are left to
    `make test-slow`, as `left` of a case and a contract says."""
    found = []
    for case in cases:
        for slow in (False, True):
            contracts = [contract for contract in CONTRACTS if left(*case, contract) == slow]
            marks = [pytest.mark.slow] if slow else []
            name = "-".join([*map(str, case), *(["left"] if slow else [])])
            found += [pytest.param(*case, contracts, marks=marks, id=name)] if contracts else []
    return found


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
