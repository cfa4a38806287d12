"""Costs: parameters, state, time, memory and floating-point operations (FLOPs)."""

from iclbench.moved import handed_on

# The names of version 0.1.0, whose evaluation.costs was a module.
__getattr__ = handed_on(__name__, "iclbench.evaluation.costs.costs")
