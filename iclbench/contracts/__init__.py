"""The contracts of predictors: one check for each property that predictors must have.

A check runs a predictor on example episodes. If the predictor lacks the property, the check raises `AssertionError`
with a message that describes the violation and its size. The tests run all checks on all registered predictors, and
`failures` runs them on one predictor.
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
