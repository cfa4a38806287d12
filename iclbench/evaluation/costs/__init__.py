"""Costs: parameters, state, time, memory and floating-point operations (FLOPs)."""
