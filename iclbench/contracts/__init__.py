"""What every predictor promises, as checks that anyone can run on their own: one function per property.

Each takes a predictor and example episodes and raises `AssertionError` with a sentence that says what was promised
and by how much it was missed. The tests run all of them over everything registered; `failures` runs them over one
predictor.
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
