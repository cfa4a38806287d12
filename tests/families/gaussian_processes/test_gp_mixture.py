"""Episodes of `gp-mixture` against the documented distributions of kernels, lengthscales, sizes and inputs."""

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy import stats

from iclbench.config.resolution import resolve_task
from iclbench.core.episodes import Episodes
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.gaussian_processes.gp_mixture import GPMixture, GPParameters
from iclbench.families.gaussian_processes.kernels import PERIODIC, RBF
from iclbench.families.request import Request
from tests.families.sampling import is_stratified
from tests.refusals import refused


def build_family(**parameters: object) -> GPMixture:
    return GPMixture(GPParameters.model_validate(parameters))


def draw(episodes: int = 4000, points: int = 64, seed: int = 0, family: GPMixture | None = None, **options) -> Episodes:
    family = family or build_family(targets=3, max_related=2, related_points=(5, 9))
    return family.sample(Request(episodes, points, torch.Generator().manual_seed(seed), **options))


def kernel_values(kernel: int, lengthscale: float, d: np.ndarray) -> np.ndarray:
    if kernel == RBF:
        return np.exp(-0.5 * (d / lengthscale) ** 2)
    return np.exp(-2 * np.sin(np.pi * d / lengthscale) ** 2 / np.log(2))


def assert_mean(values: np.ndarray, expected: float = 0.0) -> None:
    """Assert that the mean equals `expected` within five standard errors."""
    assert abs(values.mean() - expected) < 5 * values.std() / math.sqrt(len(values))


@pytest.mark.parametrize(("shift", "kernel", "scale"), [("rbf-0.8", RBF, 0.8), ("periodic-1.7", PERIODIC, 1.7)])
def test_context_and_targets_share_a_function_and_related_datasets_have_different_ones(shift, kernel, scale) -> None:
    episodes = draw(8000, 8, shift=f"{shift}+points-8", related=2)
    x, y = episodes.context.x[:, 0, 0].numpy(), episodes.context.y[:, 0, 0].numpy()
    x_target, y_target = episodes.targets.x[:, 0, 0].numpy(), episodes.targets.y[:, 0, 0].numpy()
    assert_mean(y**2, 1.04)
    assert_mean(y_target**2, 1.04)
    # Products are weighted by the kernel, so that a wrong sign or scale does not average out.
    expected = kernel_values(kernel, scale, x - x_target)
    assert_mean((y * y_target - expected) * expected)
    x_related, y_related = (t[:, 0, :, 0].numpy() for t in (episodes.related.x, episodes.related.y))
    expected = kernel_values(kernel, scale, x_related[:, 0] - x_related[:, 1])
    assert_mean((y_related[:, 0] * y_related[:, 1] - expected) * expected)
    assert_mean(y * y_related[:, 0] * kernel_values(kernel, scale, x - x_related[:, 0]))
    x_second, y_second = (t[:, 1, 0, 0].numpy() for t in (episodes.related.x, episodes.related.y))
    assert_mean(y_related[:, 0] * y_second * kernel_values(kernel, scale, x_related[:, 0] - x_second))


def test_frozen_prompts_are_stratified_by_kernel_lengthscale_and_context_size() -> None:
    """Without stratification, a set of 256 prompts had 140 periodic and 116 RBF kernels, and its ceiling was too high
    by 0.036."""
    task, _ = resolve_task("gp-mixture", "small", {"targets": 2, "max_related": 1})
    episodes = PromptSet(task, "small").episodes
    kernels, lengthscales = episodes.truth["kernel"].numpy(), episodes.truth["lengthscale"].numpy()
    sizes = episodes.context.counts.numpy()
    for start in range(0, 256, 64):  # the first 64 or 128 prompts are stratified, too
        block = slice(start, start + 64)
        for kernel in (RBF, PERIODIC):
            has_kernel = kernels[block] == kernel
            assert has_kernel.sum() == 32
            assert is_stratified(np.log(lengthscales[block][has_kernel] / 0.25) / np.log(16))
            assert is_stratified((sizes[block][has_kernel] - 0.5) / 64)
    assert abs(np.corrcoef(np.log(lengthscales), sizes)[0, 1]) < 0.2, "strata are paired independently"
    assert not (np.diff(kernels) >= 0).all() and not (np.diff(lengthscales) >= 0).all(), "the order is random"


def test_ceilings_agree_with_an_independent_prototype() -> None:
    for shift, value, error in (("none", -0.290, 0.004), ("ood-lengthscale", -0.351, 0.005)):
        ceiling = build_family(targets=7).ceiling("oracle-kernel", 64, shift)
        assert ceiling is not None and abs(ceiling.value - value) < 3 * math.hypot(error, ceiling.error)
        assert ceiling.error <= 0.001
    assert build_family(noise=0.3).ceiling("oracle-kernel", 64) is None, "the ceiling is for the default noise"
    assert build_family().ceiling("oracle-bayes", 64) is None and build_family().ceiling("oracle-kernel", 63) is None
    assert build_family().ceiling("oracle-kernel", 64, "points-64") is None


@pytest.mark.slow
def test_stratified_episodes_have_the_distribution_of_independent_episodes() -> None:
    family = build_family(targets=1, max_related=0)
    draws = [family.sample_prompts(Request(6, 64, torch.Generator().manual_seed(seed))) for seed in range(400)]
    for position in (0, 5):  # all positions of a block have the same distribution
        episodes = [d[position : position + 1] for d in draws]
        assert_mean(np.array([d.truth["kernel"].item() for d in episodes], float), 0.5)
        scales = [math.log(d.truth["lengthscale"].item() / 0.25) / math.log(16) for d in episodes]
        assert stats.kstest(scales, "uniform").pvalue > 1e-3
        assert stats.kstest([(d.context.counts.item() - 0.5) / 64 for d in episodes], "uniform").pvalue > 1e-3
    odd = family.sample_prompts(Request(7, 64, torch.Generator().manual_seed(0))).truth["kernel"]
    assert odd.sum() in (3, 4)
    ood = family.sample_prompts(Request(64, 64, torch.Generator().manual_seed(0), shift="ood-lengthscale")).truth
    assert ood["kernel"].sum() == 32 and ((ood["lengthscale"] < 0.25) | (ood["lengthscale"] > 4)).all()


def test_kernels_and_lengthscales_have_the_documented_distributions() -> None:
    truth = draw().truth
    assert_mean(truth["kernel"].double().numpy(), 0.5)
    expected = stats.uniform(math.log(0.25), math.log(16))
    for kernel in (RBF, PERIODIC):
        logs = truth["lengthscale"][truth["kernel"] == kernel].log().numpy()
        assert stats.kstest(logs, expected.cdf).pvalue > 1e-3
    outside = draw(shift="ood-lengthscale").truth["lengthscale"].log().numpy()
    below = outside[outside < 0]
    assert_mean((outside < 0).astype(float), 0.5)
    assert stats.kstest(below, stats.uniform(math.log(0.1), math.log(2.5)).cdf).pvalue > 1e-3
    assert stats.kstest(outside[outside > 0], stats.uniform(math.log(4), math.log(2.5)).cdf).pvalue > 1e-3


def test_sizes_and_inputs_have_the_documented_distributions() -> None:
    episodes = draw()
    sizes = episodes.context.counts
    assert stats.chisquare(torch.bincount(sizes, minlength=65)[1:]).pvalue > 1e-3
    numbers = episodes.related.mask.any(-1).sum(1)
    assert stats.chisquare(torch.bincount(numbers, minlength=3)).pvalue > 1e-3
    related_sizes = episodes.related.counts[:, 0]
    assert stats.chisquare(torch.bincount(related_sizes[related_sizes > 0], minlength=10)[5:]).pvalue > 1e-3
    for points, low, high in ((episodes.context, -2, 2), (episodes.targets, -4, 4), (episodes.related, -4, 4)):
        x = points.x[points.mask][:4000, 0].numpy()
        assert stats.kstest(x, stats.uniform(low, high - low).cdf).pvalue > 1e-3


def test_per_batch_gives_all_episodes_of_a_batch_the_same_kernel_and_sizes() -> None:
    episodes = draw(16, family=build_family(per_batch=True, targets=4))
    for values in (
        episodes.truth["kernel"],
        episodes.truth["lengthscale"],
        episodes.context.counts,
        episodes.related.mask.any(-1).sum(1),
    ):
        assert len(values.unique()) == 1
    assert len(episodes.context.y[:, 0].unique()) == 16


def test_per_batch_does_not_apply_to_held_out_episodes() -> None:
    episodes = draw(16, family=build_family(per_batch=True, targets=4).held_out())
    assert len(episodes.truth["lengthscale"].unique()) == 16


@pytest.mark.parametrize(
    ("shift", "kernel", "scale"),
    [("same", PERIODIC, 1.85), ("rbf", RBF, 0.52), ("near", PERIODIC, 1.76), ("far", PERIODIC, 0.28)],
)
def test_mismatch_shifts_set_the_process_of_related_datasets(shift, kernel, scale) -> None:
    episodes = draw(8000, 4, shift=f"mismatch-{shift}+points-4", related=1)
    assert (episodes.truth["kernel"] == PERIODIC).all() and (episodes.truth["lengthscale"] == 1.85).all()
    for points, expected_kernel, lengthscale in (
        (episodes.context, PERIODIC, 1.85),
        (episodes.related.map(lambda t: t[:, 0]), kernel, scale),
    ):
        x, y = (t[:, :2, 0].double().numpy() for t in (points.x, points.y))
        expected = kernel_values(expected_kernel, lengthscale, x[:, 0] - x[:, 1])
        assert_mean((y[:, 0] * y[:, 1] - expected) * expected)
        other = kernel_values(PERIODIC, 1.0, x[:, 0] - x[:, 1])
        assert_mean((y[:, 0] * y[:, 1] - expected) * other)


def test_mismatch_shifts_do_not_change_the_context() -> None:
    same, far = (draw(8, shift=f"mismatch-{name}") for name in ("same", "far"))
    assert torch.equal(same.context.y, far.context.y) and not torch.equal(same.related.y, far.related.y)


def test_the_displayed_function_passes_through_the_targets() -> None:
    family = build_family(noise=1e-6, targets=20)
    episodes = draw(8, family=family, shift="rbf-3")
    grid = family.display_inputs()[:, 0].numpy()
    for x, y, display in zip(episodes.targets.x, episodes.targets.y, episodes.truth["display"], strict=True):
        np.testing.assert_allclose(np.interp(x[:, 0], grid, display[:, 0]), y[:, 0], atol=1e-3)


def test_tasks_can_have_a_single_kernel() -> None:
    episodes = draw(50, family=build_family(kernels=("periodic",), targets=2, max_related=0))
    assert (episodes.truth["kernel"] == PERIODIC).all() and episodes.related is None


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"lengthscale": (4.0, 0.25)}, "lengthscale: "),
        ({"related_points": (128, 64)}, "related_points: "),
        ({"ood_lengthscale": (0.3, 10.0)}, "ood_lengthscale: "),
        ({"noise": 0.0}, "noise"),
        ({"kernels": ("matern",)}, "kernels"),
        ({"kernels": ()}, "kernels"),
    ],
)
def test_invalid_parameters_are_refused(parameters: dict, name: str) -> None:
    with pytest.raises(ValidationError, match=name):
        build_family(**parameters)


@pytest.mark.parametrize(
    ("shift", "code"),
    [
        ("rbf-0.001", "bad-value"),
        ("periodic-2000", "bad-value"),
        ("orthants", "not-applicable"),
        ("rbf", "missing-value"),
    ],
)
def test_invalid_shifts_are_refused(shift: str, code: str) -> None:
    with refused(code, f"'{shift}'"):
        draw(2, shift=shift)
