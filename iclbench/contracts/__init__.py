"""The contracts of predictors: checks of the properties that every predictor must have, one function per property.

A check of a predictor on example episodes raises `AssertionError` with a message that describes the property and the
size of the deviation. The tests run all checks on all registered predictors; `failures` runs them on one predictor.
"""

from iclbench.contracts import backbones, phases, questions, related
from iclbench.contracts.contract import CONTRACTS, Contract, Tolerance, example_episodes, failures

__all__ = [
    "CONTRACTS",
    "Contract",
    "Tolerance",
    "backbones",
    "example_episodes",
    "failures",
    "phases",
    "questions",
    "related",
]
