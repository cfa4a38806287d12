"""Numbers below the least normal one count as 0 where that is asked for, and nowhere else."""

from __future__ import annotations

import sys

import pytest
import torch

from iclbench.config.resolution import resolve_run
from iclbench.core.denormals import flushed
from iclbench.layers.linear_recurrence import Terms, full_pass
from iclbench.training.fit import Training, fit

DENORMAL = 1e-39


def kept() -> bool:
    return float(torch.tensor(DENORMAL) * 1.0) > 0.0 and sys.float_info.min * 0.5 > 0.0


def test_the_thread_is_left_as_it_was() -> None:
    assert kept()
    with flushed():
        assert not kept()
        with flushed():
            assert not kept()
        assert not kept()
    assert kept()
    with pytest.raises(KeyError), flushed():
        raise KeyError
    assert kept()


def test_a_recurrence_has_none() -> None:
    """Some processors take five times as long for one whose decays are strong."""
    one, tiny = torch.ones(1, 1, 4, 2), torch.full((1, 1, 4, 2), DENORMAL, requires_grad=True)
    answers = full_pass(Terms(one, one, tiny))
    answers.backward(torch.full_like(answers, DENORMAL))
    assert kept() and tiny.grad is not None
    assert answers.eq(0.0).all() and tiny.grad.eq(0.0).all()


def test_a_training_has_none() -> None:
    config = resolve_run("linear", "gpt2", "smoke", seed=0, overrides=["train.steps=1"])
    seen: list[bool] = []

    def look(training: Training) -> None:
        seen.append(kept())

    fit(config.build(config.task.build()), config.task, config.train, [look])
    assert seen == [False] and kept()
