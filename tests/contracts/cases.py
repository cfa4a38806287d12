"""Check many contracts of a predictor in one test. With thousands of separate tests of a few milliseconds, the overhead
of pytest would be as large as the time of the checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from iclbench.contracts import CONTRACTS, Contract, Tolerance
from iclbench.core.episodes import Episodes
from iclbench.core.predictor import Predictor

# Estimators for a single family, with which they are tested. `iclbench check` advises checking the family, which has a
# contract about its oracles.
ONE_FAMILY_ESTIMATORS = {
    "gp-kernel-oracle",
    "gp-periodic-mean",
    "gp-bayes-oracle",
    "climate-oracle",
    "event-oracle",
    "event-bayes-oracle",
    "mean-image",
    "gaussian-image",
    "class-mixture",
    "recall-oracle",
    "recall-vector-oracle",
    "kalman-oracle",
    "bayes-kalman-oracle",
    "chain-oracle",
    "chain-bayes-oracle",
    "table-gp-oracle",
    "table-gp-prior-oracle",
    "product-oracle",
    "product-token-count",
}


def split_cases(cases: Iterable[tuple[Any, ...]], is_slow: Callable[..., bool]) -> list[Any]:
    """Return parameters for pytest. Every case occurs with the contracts that `make test` checks, and again with those
    that only `make test-slow` checks.

    Args:
        cases: arguments of the test, without the contracts.
        is_slow: function of the arguments of a case and a contract that returns whether only `make test-slow` checks
            this contract of the case.
    """
    parameters = []
    for case in cases:
        for slow in (False, True):
            contracts = [contract for contract in CONTRACTS if is_slow(*case, contract) == slow]
            marks = [pytest.mark.slow] if slow else []
            name = "-".join([*map(str, case), *(["slow"] if slow else [])])
            parameters += [pytest.param(*case, contracts, marks=marks, id=name)] if contracts else []
    return parameters


def check_contracts(
    contracts: Iterable[Contract], predictor: Predictor, episodes: Episodes, tolerance: Tolerance
) -> None:
    """Check the contracts that apply to the predictor.

    Raises:
        ExceptionGroup: if contracts are broken, with one error for each, which has its name.
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
