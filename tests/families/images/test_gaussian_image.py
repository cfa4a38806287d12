"""`gaussian-image` and `class-mixture` against NumPy formulas for single episodes."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from iclbench.contracts import CONTRACTS, Tolerance, example_episodes
from iclbench.core.episodes import Episodes
from iclbench.core.task import TaskFacts
from iclbench.families.images.class_mixture import ClassMixture, ClassMixtureSettings
from iclbench.families.images.gaussian_image import GaussianImage, GaussianImageSettings
from iclbench.families.images.glyphs import glyphs
from iclbench.families.images.image_completion import INTENSITY, ImageCompletion, ImageParameters
from iclbench.families.images.image_sets import ImageSet
from iclbench.families.linear import Linear
from iclbench.families.request import Request
from tests.contracts.cases import check_contracts
from tests.refusals import refused

CLASSES, DRAWINGS, SIZE, FLOOR = 4, 20, 12, 0.2
GLYPHS = ImageCompletion(ImageParameters(size=SIZE, classes=CLASSES, drawings=DRAWINGS, targets=9, max_related=2))
FACTS = TaskFacts(family=GLYPHS)
MEAN, STD = INTENSITY["glyphs"]
TRAINING_IMAGES = (
    glyphs(0, range(CLASSES), range(DRAWINGS), SIZE).reshape(CLASSES, DRAWINGS, SIZE**2) / 255 - MEAN
) / STD


def sample(episodes: int, seed: int = 0, related: int = 2, shift: str = "none") -> Episodes:
    generator = torch.Generator().manual_seed(seed)
    return GLYPHS.held_out().sample(Request(episodes, 20, generator, shift=shift, related=related))


def conditional_gaussian(
    mean: np.ndarray, covariance: np.ndarray, observed: np.ndarray, y: np.ndarray, targets: np.ndarray
):
    """Compute mean and standard deviation of the target pixels by the block formula with an explicit inverse."""
    noisy = covariance + FLOOR**2 * np.eye(len(covariance))
    gain = covariance[np.ix_(targets, observed)] @ np.linalg.inv(noisy[np.ix_(observed, observed)])
    variance = noisy[np.ix_(targets, targets)] - gain @ covariance[np.ix_(observed, targets)]
    return mean[targets] + gain @ (y - mean[observed]), np.sqrt(np.diag(variance))


def observations(points, index) -> tuple[np.ndarray, np.ndarray]:
    mask = points.mask[index]
    return GLYPHS.pixel_at(points.x[index])[mask].numpy(), points.y[index][mask][:, 0].double().numpy()


def test_gaussian_image_is_the_conditional_gaussian_of_the_training_images() -> None:
    episodes = sample(6)
    prediction = GaussianImage(GaussianImageSettings(floor=FLOOR), FACTS).predict_targets(
        episodes.context, episodes.targets.x, episodes.related
    )
    images = TRAINING_IMAGES.reshape(-1, SIZE**2)
    moments = images.mean(0), np.cov(images.T, bias=True)
    for b in range(6):
        targets = GLYPHS.pixel_at(episodes.targets.x[b]).numpy()
        mean, std = conditional_gaussian(*moments, *observations(episodes.context, b), targets)
        np.testing.assert_allclose(prediction.mean[b, :, 0], mean, atol=1e-5)
        np.testing.assert_allclose(prediction.std[b, :, 0], std, atol=1e-5)


@pytest.mark.parametrize("related", [0, 2])
@pytest.mark.parametrize("shrinkage", [0.0, 0.3, 1.0])
def test_class_mixture_is_the_posterior_over_classes(related: int, shrinkage: float) -> None:
    episodes = sample(5, related=related)
    settings = ClassMixtureSettings(floor=FLOOR, shrinkage=shrinkage)
    prediction = ClassMixture(settings, FACTS).predict_targets(episodes.context, episodes.targets.x, episodes.related)
    means, covariances = (
        TRAINING_IMAGES.mean(1),
        np.stack([np.cov(drawings.T, bias=True) for drawings in TRAINING_IMAGES]),
    )
    covariances = (1 - shrinkage) * covariances + shrinkage * covariances.mean(0)
    noise = FLOOR**2 * np.eye(SIZE**2)
    for b in range(5):
        targets = GLYPHS.pixel_at(episodes.targets.x[b]).numpy()
        sets = [observations(episodes.context, b)]
        sets += [observations(episodes.related, (b, j)) for j in range(related)]
        evidence = np.array(
            [
                sum(multivariate_normal(m[i], (s + noise)[np.ix_(i, i)]).logpdf(y) for i, y in sets)
                for m, s in zip(means, covariances, strict=True)
            ]
        )
        weights = np.exp(evidence - logsumexp(evidence))
        class_means = [
            conditional_gaussian(m, s, *sets[0], targets)[0] for m, s in zip(means, covariances, strict=True)
        ]
        np.testing.assert_allclose(prediction.mean[b, :, 0], weights @ np.stack(class_means), atol=1e-4)
        np.testing.assert_allclose(prediction.logits[b, 0].softmax(-1), weights, atol=1e-4)


def test_gaussian_image_gives_classes_equal_weights_and_predicts_colours_jointly() -> None:
    """One label has seven images and the other has three. The colours of a pixel are correlated."""
    rng = np.random.default_rng(0)
    grey = rng.integers(60, 190, (10, 64, 1))
    pixels = (grey + rng.integers(-20, 20, (10, 64, 3))).astype(np.uint8)
    labels = np.array([5, 9, 5, 5, 9, 5, 5, 9, 5, 5])
    family = ImageCompletion(ImageParameters(images="celeba", size=8, sampling="cmab", budget=20, max_related=0))
    family._image_sets["train"] = ImageSet(pixels, labels)
    values = (pixels / 255 - 0.5).reshape(10, -1)
    weights = np.where(labels == 9, 1 / 3, 1 / 7) / 2
    mean = weights @ values
    covariance = (values - mean).T * weights @ (values - mean)
    x = family.display_inputs()
    context = example_episodes(dim=2, points=5, outputs=3).context.span(0, 5)[:1]
    context.x[0], observed = x[[3, 9, 30, 31, 60]], np.array([3, 9, 30, 31, 60])
    prediction = GaussianImage(GaussianImageSettings(floor=FLOOR), TaskFacts(family=family)).predict_targets(
        context, x[None, :7]
    )
    numbers = (observed[:, None] * 3 + np.arange(3)).flatten()
    expected = conditional_gaussian(mean, covariance, numbers, context.y[0].double().numpy().flatten(), np.arange(21))
    np.testing.assert_allclose(prediction.mean[0].flatten(), expected[0], atol=1e-5)
    np.testing.assert_allclose(prediction.std[0].flatten(), expected[1], atol=1e-5)


def test_related_images_from_a_different_class_mislead_class_mixture() -> None:
    error = {}
    for shift in ("none", "other-label"):
        episodes = sample(200, 3, shift=shift)
        prediction = ClassMixture(facts=FACTS).predict_targets(episodes.context, episodes.targets.x, episodes.related)
        error[shift] = float((prediction.mean - episodes.targets.y)[episodes.targets.mask].square().mean())
    assert error["other-label"] > 1.5 * error["none"]


@pytest.mark.parametrize("baseline", [GaussianImage, ClassMixture])
def test_baselines_pass_the_contracts(baseline: type) -> None:
    episodes = example_episodes(dim=2, points=7)
    predictor = baseline(facts=FACTS)
    contracts = [contract for contract in CONTRACTS if contract.is_checkable(predictor, episodes)]
    assert len(contracts) > 5
    check_contracts(contracts, predictor, episodes, Tolerance())


@pytest.mark.parametrize(("baseline", "name"), [(GaussianImage, "gaussian-image"), (ClassMixture, "class-mixture")])
def test_other_families_are_refused(baseline: type, name: str) -> None:
    with refused("not-applicable", name, "image-completion"):
        baseline(facts=TaskFacts(family=Linear(Linear.Parameters(dim=2))))


def test_images_that_have_no_classes_or_are_too_large_are_refused() -> None:
    faces = ImageParameters(images="celeba", size=64, sampling="cmab", max_related=0)
    facts = TaskFacts(family=ImageCompletion(faces))
    with refused("not-applicable", "class-mixture", "celeba"):
        ClassMixture(facts=facts)
    episodes = example_episodes(dim=2, points=3, outputs=3)
    with refused("not-applicable", "4096", "12288", "task.size"):
        GaussianImage(facts=facts).predict_targets(episodes.context, episodes.context.x)
