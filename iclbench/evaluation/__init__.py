"""Evaluation of all contestants on the same prompt sets: scores with intervals, errors of single episodes, costs."""
