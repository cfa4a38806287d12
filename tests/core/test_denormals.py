"""Denormal numbers are flushed to 0 inside `flush_denormals`, in recurrences and in training."""

from __future__ import annotations

import sys

import pytest
import torch

from iclbench.config.resolution import resolve_run
from iclbench.core.denormals import flush_denormals
from iclbench.layers.linear_recurrence import Terms, full_pass
from iclbench.training.fit import Training, fit

DENORMAL = 1e-39


def has_denormals() -> bool:
    return float(torch.tensor(DENORMAL) * 1.0) > 0.0 and sys.float_info.min * 0.5 > 0.0


def test_flush_denormals_restores_the_mode_of_the_thread() -> None:
    assert has_denormals()
    with flush_denormals():
        assert not has_denormals()
        with flush_denormals():
            assert not has_denormals()
        assert not has_denormals()
    assert has_denormals()
    with pytest.raises(KeyError), flush_denormals():
        raise KeyError
    assert has_denormals()


def test_a_recurrence_flushes_denormals() -> None:
    """Without flushing, a recurrence with strong decay takes five times as long on some processors."""
    one, tiny = torch.ones(1, 1, 4, 2), torch.full((1, 1, 4, 2), DENORMAL, requires_grad=True)
    answers = full_pass(Terms(one, one, tiny))
    answers.backward(torch.full_like(answers, DENORMAL))
    assert has_denormals() and tiny.grad is not None
    assert answers.eq(0.0).all() and tiny.grad.eq(0.0).all()


def test_training_flushes_denormals() -> None:
    config = resolve_run("linear", "gpt2", "smoke", seed=0, overrides=["train.steps=1"])
    observations: list[bool] = []

    def observe(training: Training) -> None:
        observations.append(has_denormals())

    fit(config.build(config.task.build()), config.task, config.train, [observe])
    assert observations == [False] and has_denormals()
