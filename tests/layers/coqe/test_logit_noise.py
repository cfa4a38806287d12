"""Logit noise in training: how it grows, and which logits receive it."""

import pytest
import torch

from iclbench.backbones.coqe import CoQESettings
from iclbench.layers.coqe.logit_noise import LogitNoise

# Steps in a run of 100,000 steps. Up to each step, the mean and the standard deviation grow by
# max(0, floor((step - 1e4) / 1e4)) in the released code, and by step // 1e4 in the paper.
STEPS = [0, 9_999, 10_000, 19_999, 20_000, 29_999, 30_000, 70_000, 99_999]


@pytest.mark.parametrize("step", STEPS)
def test_growth_matches_the_released_code_and_the_paper(step: int) -> None:
    released, paper = CoQESettings().logit_noise, CoQESettings(variant="paper", noise=3.0).logit_noise
    growth = max(0, (step - 10_000) // 10_000)
    assert released is not None and paper is not None
    assert released.at(step / 100_000) == (5.0 + growth, 3.0 + growth)
    assert paper.at(step / 100_000) == (3.0 + step // 10_000, 1.0 + step // 10_000)


def test_growth_and_the_steps_at_which_it_occurs_are_configurable() -> None:
    noise = CoQESettings(noise=2.0, noise_std=0.5, noise_growth=0.25, noise_every=0.5, noise_first=0.0).logit_noise
    assert noise is not None
    assert [noise.at(p) for p in (0.0, 0.49, 0.5, 0.99)] == [(2.25, 0.75), (2.25, 0.75), (2.5, 1.0), (2.5, 1.0)]
    constant = CoQESettings(noise_growth=0.0).logit_noise
    assert constant is not None and constant.at(0.99) == (5.0, 3.0)
    assert CoQESettings(noise=0.0).logit_noise is None


def noise(where: str, std: float = 2.0, share: float = 0.924) -> LogitNoise:
    return LogitNoise(mean=5.0, std=std, growth=0.0, every=0.1, first=0.0, where=where, share=share)


def test_noise_is_added_to_the_1500_lowest_of_1623_logits() -> None:
    static = torch.randn(4, 2, 1_623, generator=torch.Generator().manual_seed(0))
    present = torch.zeros(4, 1, 1_623, dtype=torch.bool)
    drawn_noise = noise("lowest").draw(static, present, 0.0, torch.Generator().manual_seed(1))
    assert (drawn_noise != 0).sum(-1).unique().tolist() == [1_500]
    highest_with = static.where(drawn_noise != 0, torch.tensor(-torch.inf)).amax(-1)
    lowest_without = static.where(drawn_noise == 0, torch.tensor(torch.inf)).amin(-1)
    assert (highest_with < lowest_without).all()
    values = drawn_noise[drawn_noise != 0]
    assert abs(values.mean() - 5) < 3 * 2 / values.numel() ** 0.5
    assert abs(values.std() - 2) < 3 * 2 / (2 * values.numel()) ** 0.5


def test_noise_is_added_to_classes_in_the_context_or_to_all_classes() -> None:
    static = torch.randn(3, 2, 11, generator=torch.Generator().manual_seed(0))
    present = torch.rand(3, 1, 11, generator=torch.Generator().manual_seed(2)) < 0.4
    drawn_noise = noise("present").draw(static, present, 0.0, torch.Generator().manual_seed(1))
    assert torch.equal(drawn_noise != 0, present.expand(-1, 2, -1))
    assert noise("all").draw(static, present, 0.0, torch.Generator().manual_seed(1)).all()
