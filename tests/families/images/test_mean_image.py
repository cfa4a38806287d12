"""The mean of the images that are trained on, against NumPy's moments and whoever else reads no context."""

import numpy as np
import pytest
import torch

from iclbench.contracts import CONTRACTS, Tolerance, example_episodes
from iclbench.core.errors import UsageError
from iclbench.core.predictions import Gaussian
from iclbench.core.task import TaskFacts
from iclbench.families.images.glyphs import glyphs
from iclbench.families.images.image_completion import INTENSITY, ImageCompletion, ImageParameters
from iclbench.families.images.image_sets import ImageSet
from iclbench.families.images.mean_image import MeanImage, MeanImageSettings
from iclbench.families.linear import Linear
from iclbench.families.request import Request
from tests.contracts.cases import check_contracts

SMALL = ImageParameters(size=12, classes=4, drawings=20)


def told(family, floor=0.1):
    return MeanImage(MeanImageSettings(floor=floor), TaskFacts(family=family))


def whole(family):
    """The answer at every pixel, without a floor."""
    context = example_episodes(dim=2, points=3).context.span(0, 1)[:1]
    return told(family, floor=0.0).predict_targets(context, family.display_inputs().unsqueeze(0))


@pytest.mark.parametrize("part", ["held_out", "validation"])
def test_moments_are_those_of_the_drawings_that_are_trained_on(part: str) -> None:
    family = getattr(ImageCompletion(SMALL), part)()
    found = whole(family)
    mean, std = INTENSITY["glyphs"]
    drawn = (glyphs(0, range(4), range(20), 12).reshape(80, 144) / 255 - mean) / std
    np.testing.assert_allclose(found.mean[0, :, 0].numpy(), drawn.mean(0), atol=1e-6)
    np.testing.assert_allclose(found.std[0, :, 0].numpy(), drawn.std(0), atol=1e-3)


def test_a_label_of_few_images_counts_as_much_as_one_of_many() -> None:
    """Training draws a label first, here one of seven images and one of three, which come in no order."""
    pixels = np.random.default_rng(0).integers(0, 256, (10, 64, 3), dtype=np.uint8)
    labels = np.array([5, 9, 5, 5, 9, 5, 5, 9, 5, 5])
    family = ImageCompletion(ImageParameters(images="celeba", size=8, sampling="cmab", budget=20, max_related=0))
    family._loaded["train"] = ImageSet(pixels, labels)
    found = whole(family)
    scaled = pixels / 255 - 0.5
    few, many = scaled[labels == 9], scaled[labels == 5]
    mean = (few.mean(0) + many.mean(0)) / 2
    variance = ((few - mean) ** 2).mean(0) / 2 + ((many - mean) ** 2).mean(0) / 2
    np.testing.assert_allclose(found.mean[0].numpy(), mean, atol=1e-6)
    np.testing.assert_allclose(found.std[0].numpy(), np.sqrt(variance), atol=1e-5)


@pytest.mark.parametrize("sampling", ["share", "cmab"])
def test_every_input_is_the_pixel_that_it_was_made_from(sampling: str) -> None:
    family = ImageCompletion(ImageParameters(size=12, sampling=sampling, budget=40))
    x = family.display_inputs()
    assert torch.equal(family.pixel_at(x), torch.arange(144))
    assert torch.equal(family.pixel_at(x + 0.4 / family._unit), torch.arange(144))
    assert family.pixel_at(torch.tensor([[-99.0, 99.0]])) == 11


def test_who_ignores_the_context_does_no_better_on_what_is_trained_on() -> None:
    """In squared error no other image, in log-likelihood no other Gaussian with this floor."""
    family = ImageCompletion(SMALL)
    episodes = family.sample(Request(4000, 28, torch.Generator().manual_seed(3)))
    targets = episodes.targets
    best = told(family).predict_targets(episodes.context, targets.x)

    def scores(answer):
        there = targets.mask
        error = (answer.mean - targets.y).square().squeeze(-1)[there].mean()
        return float(error), float(answer.log_likelihood(targets.y)[there].mean())

    error, log_likelihood = scores(best)
    floored = best.std == 0.1
    assert 0.1 < floored.float().mean() < 0.9
    shift = torch.where(family.pixel_at(targets.x) % 2 == 0, 0.1, -0.1).unsqueeze(-1)
    assert scores(Gaussian(best.mean + shift, best.std))[0] > error + 0.005
    for mean, std in (
        (best.mean + shift, best.std),
        (best.mean, (best.std * 0.8).clamp(min=0.1)),
        (best.mean, best.std * 1.25),
    ):
        assert scores(Gaussian(mean, std))[1] < log_likelihood - 0.005


def test_the_context_changes_nothing_and_neither_does_the_shift() -> None:
    family = ImageCompletion(SMALL).held_out()
    unseen, seen = (
        told(family).predict_targets(episodes.context, family.display_inputs().expand(5, -1, -1), episodes.related)
        for episodes in (
            family.sample(Request(5, 28, torch.Generator().manual_seed(seed), shift=shift))
            for seed, shift in enumerate(("unseen-classes", "none"))
        )
    )
    assert torch.equal(unseen.mean, seen.mean)
    assert torch.equal(unseen.std, seen.std)


def test_contracts() -> None:
    episodes = example_episodes(dim=2, points=7)
    level = told(ImageCompletion(SMALL))
    check_contracts(
        [contract for contract in CONTRACTS if contract.is_about(level, episodes)], level, episodes, Tolerance()
    )


def test_a_task_of_another_family_is_refused() -> None:
    with pytest.raises(UsageError, match="family image-completion only"):
        MeanImage(facts=TaskFacts(family=Linear(Linear.Parameters(dim=2))))
