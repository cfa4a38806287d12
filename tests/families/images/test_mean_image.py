"""`mean-image` against moments computed by NumPy and against other predictions that ignore the context."""

import numpy as np
import pytest
import torch

from iclbench.contracts import CONTRACTS, Tolerance, example_episodes
from iclbench.core.predictions import Gaussian
from iclbench.core.task import TaskFacts
from iclbench.families.images.glyphs import glyphs
from iclbench.families.images.image_completion import INTENSITY, ImageCompletion, ImageParameters
from iclbench.families.images.image_sets import ImageSet
from iclbench.families.images.mean_image import MeanImage, MeanImageSettings
from iclbench.families.linear import Linear
from iclbench.families.request import Request
from tests.contracts.cases import check_contracts
from tests.refusals import refused

SMALL = ImageParameters(size=12, classes=4, drawings=20)


def mean_image(family, floor=0.1):
    return MeanImage(MeanImageSettings(floor=floor), TaskFacts(family=family))


def predict_all_pixels(family):
    """Return the prediction at every pixel, without a lower bound on the standard deviation."""
    context = example_episodes(dim=2, points=3).context.span(0, 1)[:1]
    return mean_image(family, floor=0.0).predict_targets(context, family.display_inputs().unsqueeze(0))


@pytest.mark.parametrize("part", ["held_out", "validation"])
def test_moments_are_computed_from_the_training_drawings(part: str) -> None:
    family = getattr(ImageCompletion(SMALL), part)()
    prediction = predict_all_pixels(family)
    mean, std = INTENSITY["glyphs"]
    drawings = (glyphs(0, range(4), range(20), 12).reshape(80, 144) / 255 - mean) / std
    np.testing.assert_allclose(prediction.mean[0, :, 0].numpy(), drawings.mean(0), atol=1e-6)
    np.testing.assert_allclose(prediction.std[0, :, 0].numpy(), drawings.std(0), atol=1e-3)


def test_labels_have_equal_weights_whatever_their_number_of_images() -> None:
    """Training draws a label first. One label has seven images and the other has three, in mixed order."""
    pixels = np.random.default_rng(0).integers(0, 256, (10, 64, 3), dtype=np.uint8)
    labels = np.array([5, 9, 5, 5, 9, 5, 5, 9, 5, 5])
    family = ImageCompletion(ImageParameters(images="celeba", size=8, sampling="cmab", budget=20, max_related=0))
    family._image_sets["train"] = ImageSet(pixels, labels)
    prediction = predict_all_pixels(family)
    scaled = pixels / 255 - 0.5
    few, many = scaled[labels == 9], scaled[labels == 5]
    mean = (few.mean(0) + many.mean(0)) / 2
    variance = ((few - mean) ** 2).mean(0) / 2 + ((many - mean) ** 2).mean(0) / 2
    np.testing.assert_allclose(prediction.mean[0].numpy(), mean, atol=1e-6)
    np.testing.assert_allclose(prediction.std[0].numpy(), np.sqrt(variance), atol=1e-5)


@pytest.mark.parametrize("sampling", ["share", "cmab"])
def test_pixel_at_inverts_display_inputs(sampling: str) -> None:
    family = ImageCompletion(ImageParameters(size=12, sampling=sampling, budget=40))
    x = family.display_inputs()
    assert torch.equal(family.pixel_at(x), torch.arange(144))
    assert torch.equal(family.pixel_at(x + 0.4 / family._pixels_per_unit), torch.arange(144))
    assert family.pixel_at(torch.tensor([[-99.0, 99.0]])) == 11


def test_no_other_prediction_without_context_scores_better_on_training_images() -> None:
    """No other predicted image has a lower squared error, and no other Gaussian with this minimum standard deviation
    has a higher log-likelihood."""
    family = ImageCompletion(SMALL)
    episodes = family.sample(Request(4000, 28, torch.Generator().manual_seed(3)))
    targets = episodes.targets
    best = mean_image(family).predict_targets(episodes.context, targets.x)

    def scores(prediction):
        error = (prediction.mean - targets.y).square().squeeze(-1)[targets.mask].mean()
        return float(error), float(prediction.log_likelihood(targets.y)[targets.mask].mean())

    error, log_likelihood = scores(best)
    has_floor = best.std == 0.1
    assert 0.1 < has_floor.float().mean() < 0.9
    shift = torch.where(family.pixel_at(targets.x) % 2 == 0, 0.1, -0.1).unsqueeze(-1)
    assert scores(Gaussian(best.mean + shift, best.std))[0] > error + 0.005
    for mean, std in (
        (best.mean + shift, best.std),
        (best.mean, (best.std * 0.8).clamp(min=0.1)),
        (best.mean, best.std * 1.25),
    ):
        assert scores(Gaussian(mean, std))[1] < log_likelihood - 0.005


def test_predictions_depend_neither_on_the_context_nor_on_the_shift() -> None:
    family = ImageCompletion(SMALL).held_out()
    unseen, seen = (
        mean_image(family).predict_targets(
            episodes.context, family.display_inputs().expand(5, -1, -1), episodes.related
        )
        for episodes in (
            family.sample(Request(5, 28, torch.Generator().manual_seed(seed), shift=shift))
            for seed, shift in enumerate(("unseen-classes", "none"))
        )
    )
    assert torch.equal(unseen.mean, seen.mean)
    assert torch.equal(unseen.std, seen.std)


def test_the_baseline_passes_the_contracts() -> None:
    episodes = example_episodes(dim=2, points=7)
    baseline = mean_image(ImageCompletion(SMALL))
    contracts = [contract for contract in CONTRACTS if contract.is_checkable(baseline, episodes)]
    check_contracts(contracts, baseline, episodes, Tolerance())


def test_other_families_are_refused() -> None:
    with refused("not-applicable", "mean-image", "image-completion"):
        MeanImage(facts=TaskFacts(family=Linear(Linear.Parameters(dim=2))))
