"""Metrics over all targets of an episode, compared with scikit-learn, SciPy and quadrature."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad
from sklearn.metrics import r2_score, roc_auc_score

from iclbench.core.metrics import METRICS
from iclbench.core.predictions import Categorical, Gaussian, Mixture, Point
from iclbench.core.set_metrics import SET_METRICS, set_scores

ALL_METRICS = tuple(SET_METRICS)
GENERATOR = np.random.default_rng(0)


def full_mask(batch: int, targets: int) -> torch.Tensor:
    return torch.ones(batch, targets, dtype=torch.bool)


@pytest.mark.parametrize("classes", [2, 4])
def test_the_roc_auc_matches_scikit_learn(classes: int) -> None:
    """Some probabilities are equal, and some targets are masked."""
    logits = torch.from_numpy(GENERATOR.normal(size=(5, 60, classes)))
    logits[:, 1::2] = logits[:, ::2]
    y = torch.from_numpy(GENERATOR.integers(classes, size=(5, 60)))
    y[:, :classes] = torch.arange(classes)
    scored = full_mask(5, 60)
    scored[:, 50:] = False
    areas = set_scores(Categorical(logits), y, scored, ["roc_auc"])["roc_auc"]
    probabilities = logits.softmax(-1).numpy()[:, :50]
    for area, p, label in zip(areas, probabilities, y.numpy()[:, :50], strict=True):
        expected = roc_auc_score(label, p[:, 1]) if classes == 2 else roc_auc_score(label, p, multi_class="ovr")
        assert float(area) == pytest.approx(expected, abs=1e-12)


def test_the_roc_auc_ignores_labels_that_are_inadmissible_or_absent() -> None:
    """Two of five labels are admissible, so the result is the binary area."""
    logits = torch.from_numpy(GENERATOR.normal(size=(1, 30, 5)))
    logits[..., 3] += 10
    y = torch.from_numpy(GENERATOR.integers(2, size=(1, 30)))
    choices = torch.tensor([[True, True, False, False, False]])
    area = set_scores(Categorical(logits).within(choices), y, full_mask(1, 30), ["roc_auc"])["roc_auc"]
    score = logits[0, :, 1] - logits[0, :, 0]
    assert float(area[0]) == pytest.approx(roc_auc_score(y[0].numpy(), score.numpy()))


def test_the_roc_auc_is_undefined_if_all_targets_have_one_class() -> None:
    logits, y = torch.zeros(2, 4, 3), torch.tensor([[1, 1, 1, 1], [0, 1, 0, 1]])
    areas = set_scores(Categorical(logits), y, full_mask(2, 4), ["roc_auc"])["roc_auc"]
    assert math.isnan(float(areas[0])) and float(areas[1]) == 0.5


def test_the_calibration_error_matches_a_loop_over_bins() -> None:
    logits = torch.from_numpy(2 * GENERATOR.normal(size=(3, 200, 3)))
    y = torch.from_numpy(GENERATOR.integers(3, size=(3, 200)))
    errors = set_scores(Categorical(logits), y, full_mask(3, 200), ["calibration_error"])["calibration_error"]
    for error, episode_logits, label in zip(errors, logits, y, strict=True):
        confidence, predicted = (t.numpy() for t in episode_logits.softmax(-1).max(-1))
        expected = 0.0
        for number in range(10):
            members = (confidence > number / 10) & (confidence <= (number + 1) / 10)
            if members.any():
                accuracy = (predicted == label.numpy())[members].mean()
                expected += members.mean() * abs(accuracy - confidence[members].mean())
        assert float(error) == pytest.approx(expected, abs=1e-12)


def test_the_calibration_error_of_a_calibrated_predictor_is_small() -> None:
    p = torch.from_numpy(GENERATOR.uniform(0.02, 0.98, size=(1, 40_000)))
    y = torch.bernoulli(p, generator=torch.Generator().manual_seed(0)).long()
    answers = {
        name: Categorical(torch.stack([torch.zeros_like(p), scale * torch.logit(p)], -1))
        for name, scale in (("calibrated", 1), ("confident", 3))
    }
    errors = {
        name: float(set_scores(answer, y, full_mask(1, 40_000), ["calibration_error"])["calibration_error"])
        for name, answer in answers.items()
    }
    assert errors["calibrated"] < 0.01 < 0.1 < errors["confident"]


def test_r_squared_matches_scikit_learn() -> None:
    y, mean = (torch.from_numpy(GENERATOR.normal(size=(4, 20, 1))) for _ in range(2))
    scored = full_mask(4, 20)
    scored[:, 15:] = False
    values = set_scores(Point(mean), y, scored, ["r_squared"])["r_squared"]
    expected = [r2_score(a[:15, 0], b[:15, 0]) for a, b in zip(y.numpy(), mean.numpy(), strict=True)]
    np.testing.assert_allclose(values, expected, rtol=1e-12)
    constant = set_scores(Point(mean), torch.ones_like(y), scored, ["r_squared"])["r_squared"]
    assert constant.isnan().all()


def quadrature(cumulative, y: float) -> float:
    below = quad(lambda t: cumulative(t) ** 2, -40, y, limit=200)[0]
    return below + quad(lambda t: (1 - cumulative(t)) ** 2, y, 40, limit=200)[0]


def test_the_crps_is_the_integral_of_the_squared_difference_of_distribution_functions() -> None:
    y = torch.tensor([[[0.3], [-2.0], [4.0]]], dtype=torch.float64)
    mean, std = (torch.tensor([[[a], [b], [c]]], dtype=torch.float64) for a, b, c in ((0, 1, -1), (1, 0.5, 2)))
    for position in range(3):
        place = (slice(None), slice(position, position + 1))
        gaussian = Gaussian(mean[place], std[place])
        value = set_scores(gaussian, y[place], full_mask(1, 1), ["crps"])["crps"]
        exact = stats.norm(float(mean[0, position]), float(std[0, position]))
        assert float(value) == pytest.approx(quadrature(exact.cdf, float(y[0, position])), rel=1e-6)
    logits, means, stds = torch.tensor([0.3, -0.4]), torch.tensor([-1.0, 2.0]), torch.tensor([0.5, 1.5])
    mixture = Mixture(
        *(t.double().reshape(1, 1, 2, *shape) for t, shape in ((logits, ()), (means, (1,)), (stds, (1,))))
    )
    weights = logits.softmax(0).tolist()

    def cumulative(t: float) -> float:
        return sum(w * stats.norm.cdf(t, m, s) for w, m, s in zip(weights, means.tolist(), stds.tolist(), strict=True))

    value = set_scores(mixture, y[:, :1], full_mask(1, 1), ["crps"])["crps"]
    assert float(value) == pytest.approx(quadrature(cumulative, 0.3), rel=1e-5)


def test_the_crps_of_a_point_prediction_is_its_absolute_error() -> None:
    y, mean = torch.tensor([[[1.0], [2.0]]]), torch.tensor([[[0.5], [4.0]]])
    assert float(set_scores(Point(mean), y, full_mask(1, 2), ["crps"])["crps"]) == pytest.approx(1.25)


def test_set_metrics_depend_on_the_kind_of_prediction_and_each_has_an_entry_in_the_registry() -> None:
    assert METRICS.keys() >= SET_METRICS.keys()
    labels = set_scores(Categorical(torch.zeros(1, 3, 2)), torch.tensor([[0, 1, 1]]), full_mask(1, 3), ALL_METRICS)
    numbers = set_scores(Point(torch.zeros(1, 3, 1)), torch.randn(1, 3, 1), full_mask(1, 3), ALL_METRICS)
    assert labels.keys() == {"roc_auc", "calibration_error"} and numbers.keys() == {"r_squared", "crps"}
