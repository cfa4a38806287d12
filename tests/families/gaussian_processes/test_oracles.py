"""The oracles against scikit-learn, SciPy and brute-force quadrature."""

import math

import numpy as np
import pytest
import torch
from scipy.special import i0
from scipy.stats import multivariate_normal, norm
from sklearn.gaussian_process import GaussianProcessRegressor, kernels

from iclbench.config.resolution import resolve_task
from iclbench.contracts import CONTRACTS, Tolerance, example_episodes
from iclbench.core.episodes import Episodes, Points, first_related
from iclbench.estimators.base import TaskFacts
from iclbench.evaluation.contestants import baselines
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.gaussian_processes.evidence import Evidence, Nodes
from iclbench.families.gaussian_processes.gp_mixture import GPMixture, GPParameters, KernelPrior
from iclbench.families.gaussian_processes.kernels import KERNELS, PERIODIC, RBF
from iclbench.families.gaussian_processes.oracles import BayesSettings, OracleBayes, OracleKernel, PeriodicMean
from iclbench.families.linear import Linear
from iclbench.families.request import Request
from tests.refusals import refused

# The prior is narrow, so that brute-force quadrature is fast.
NARROW = GPMixture(GPParameters(lengthscale=(0.7, 2.0), targets=8, max_related=2, related_points=(20, 30)))


def sklearn_kernel(kernel: int, lengthscale: float) -> kernels.Kernel:
    if kernel == RBF:
        return kernels.RBF(lengthscale)
    return kernels.ExpSineSquared(length_scale=math.sqrt(math.log(2)), periodicity=lengthscale)


def episodes_of(family: GPMixture = NARROW, count: int = 4, points: int = 12, seed: int = 0, **options) -> Episodes:
    episodes = family.sample(Request(count, points, torch.Generator().manual_seed(seed), **options))
    return episodes.to(dtype=torch.float64)


def bayes(family: GPMixture = NARROW, shift: str = "none", **settings) -> OracleBayes:
    return OracleBayes(BayesSettings(**settings), TaskFacts(family=family, shift=shift))


def valid_points(points: Points) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the valid points of every set as NumPy arrays."""
    return [(x[m].numpy(), y[m, 0].numpy()) for x, y, m in zip(points.x, points.y, points.mask, strict=True)]


@pytest.mark.parametrize("shift", ["none", "ood-lengthscale"])
def test_oracle_kernel_equals_the_posterior_computed_by_scikit_learn(shift: str) -> None:
    family = GPMixture(GPParameters(targets=10))
    episodes = episodes_of(family, 16, 40, shift=shift)
    oracle = OracleKernel(None, TaskFacts(family=family))
    prediction = oracle.informed(episodes.truth).predict_targets(episodes.context, episodes.targets.x)
    for e, (x, y) in enumerate(valid_points(episodes.context)):
        kernel = sklearn_kernel(int(episodes.truth["kernel"][e]), float(episodes.truth["lengthscale"][e]))
        gp = GaussianProcessRegressor(kernel, alpha=0.04, optimizer=None).fit(x, y)
        mean, std = gp.predict(episodes.targets.x[e].numpy(), return_std=True)
        np.testing.assert_allclose(prediction.mean[e, :, 0], mean, atol=1e-6)
        np.testing.assert_allclose(prediction.marginals.std[e, :, 0], np.sqrt(std**2 + 0.04), atol=1e-6)
    assert set(episodes.truth["kernel"].tolist()) == {RBF, PERIODIC}


def test_periodic_mean_has_the_score_of_the_closed_form() -> None:
    """At every input, f minus its mean has variance 1 - p_0, where p_0 = I_0(1/lambda) e^(-1/lambda). The best Gaussian
    around the mean has the expected log-likelihood -log(2 pi e (1 - p_0 + sigma²)) / 2. For RBF functions, the
    prediction is the exact posterior."""
    family = GPMixture(GPParameters(targets=2, max_related=0))
    episodes = episodes_of(family, 6000, 4)
    answer, best = (
        cls(None, TaskFacts(family=family))
        .informed(episodes.truth)
        .predict_targets(episodes.context, episodes.targets.x)
        for cls in (PeriodicMean, OracleKernel)
    )
    periodic = episodes.truth["kernel"] == PERIODIC
    assert torch.equal(answer.mean[~periodic], best.mean[~periodic])
    assert torch.equal(answer.marginals.std[~periodic], best.marginals.std[~periodic])
    scores = answer.marginals.log_likelihood(episodes.targets.y).mean(1)[periodic]
    expected = -0.5 * math.log(2 * math.pi * math.e * (1 - i0(1 / math.log(2)) * math.exp(-1 / math.log(2)) + 0.04))
    assert expected == pytest.approx(-1.214, abs=5e-4)
    assert abs(scores.mean().item() - expected) < 4 * scores.std().item() / len(scores) ** 0.5


def test_the_mean_in_the_truth_is_the_mean_over_one_period() -> None:
    """The mean over 20 equally spaced points of one period is exact for ten harmonics."""
    family = GPMixture(GPParameters(kernels=("periodic",), lengthscale=(1, 1), max_related=0))
    truth = family.sample(Request(50, 4, torch.Generator().manual_seed(0))).truth
    np.testing.assert_allclose(truth["display"][:, :20, 0].double().mean(1), truth["mean"], atol=1e-6)
    assert (family.sample(Request(50, 4, torch.Generator().manual_seed(0), shift="rbf-1")).truth["mean"] == 0).all()


def test_oracle_kernel_predicts_the_prior_for_an_empty_context() -> None:
    episodes = episodes_of()
    oracle = OracleKernel(None, TaskFacts(family=NARROW)).informed(episodes.truth)
    answer = oracle.predict_targets(episodes.context.span(0, 0), episodes.targets.x)
    assert not answer.mean.any() and torch.allclose(answer.marginals.std, torch.tensor(1.04).double().sqrt())


@pytest.mark.parametrize("shift", ["none", "ood-lengthscale"])
def test_the_joint_score_of_oracle_kernel_equals_the_density_computed_by_scipy(shift: str) -> None:
    family = GPMixture(GPParameters(targets=10))
    episodes = episodes_of(family, 12, 9, shift=shift)
    oracle = OracleKernel(None, TaskFacts(family=family)).informed(episodes.truth)
    targets, scored = episodes.targets, torch.rand(12, 10, generator=torch.Generator().manual_seed(1)) < 0.7
    answer = oracle.predict_targets(episodes.context, targets.x)
    scores = oracle.joint_scores(answer, episodes.context, targets, scored)["log_likelihood_joint"]
    scored_points = [(x[m], y[m]) for (x, y), m in zip(valid_points(targets), scored.numpy(), strict=True)]
    for e, ((x, y), (xt, yt)) in enumerate(zip(valid_points(episodes.context), scored_points, strict=True)):
        kernel = sklearn_kernel(int(episodes.truth["kernel"][e]), float(episodes.truth["lengthscale"][e]))
        gram = kernel(np.concatenate([x, xt])) + 0.04 * np.eye(len(x) + len(xt))
        n = len(x)
        gain = gram[n:, :n] @ np.linalg.inv(gram[:n, :n])
        exact = multivariate_normal(gain @ y, gram[n:, n:] - gain @ gram[:n, n:]).logpdf(yt)
        assert float(scores[e]) == pytest.approx(exact / len(xt), abs=1e-6)


def test_the_joint_score_of_oracle_bayes_follows_the_chain_rule() -> None:
    """The joint score is the sum over targets of their scores given the context and all earlier targets."""
    oracle = bayes(rbf_nodes=60, spacing=0.02, components=10_000)
    episodes = episodes_of(count=3)
    targets, related = episodes.targets, episodes.related
    for related_sets in (None, first_related(related, 2)):
        answer = oracle.predict_targets(episodes.context, targets.x, related_sets)
        scores = oracle.joint_scores(answer, episodes.context, targets, targets.mask, related_sets)
        context, total = episodes.context, torch.zeros(3, dtype=torch.float64)
        for q in range(targets.count):
            target = targets.span(q, q + 1)
            total += oracle.predict_targets(context, target.x, related_sets).log_likelihood(target.y)[:, 0]
            context = context.append(target)
        torch.testing.assert_close(scores["log_likelihood_joint"], total / targets.count, atol=2e-4, rtol=0)


# Contracts that query a subset of the episodes do not apply, because these oracles have the truth of all episodes.
@pytest.mark.parametrize(
    "name",
    [
        "answers_have_the_right_shape",
        "answers_are_deterministic",
        "targets_do_not_see_each_other",
        "the_order_of_the_targets_changes_nothing",
        "no_answer_sees_its_own_label",
        "later_points_change_nothing",
        "an_empty_context_works",
        "condition_and_query_equal_predict_targets",
        "update_equals_conditioning_on_everything",
        "states_can_be_indexed_and_saved",
    ],
)
@pytest.mark.parametrize("cls", [OracleKernel, PeriodicMean])
def test_oracles_with_access_to_the_kernel_fulfil_the_contracts(cls: type[OracleKernel], name: str) -> None:
    kernels, means = torch.tensor([0, 1, 0]), torch.tensor([0.0, 0.3, 0.0]).double()
    truth = {"kernel": kernels, "lengthscale": torch.tensor([0.5, 2.0, 1.0]).double(), "mean": means}
    oracle = cls(None, TaskFacts(family=NARROW)).informed(truth)
    contract = next(c for c in CONTRACTS if c.name == name)
    contract.check(oracle, example_episodes(dim=1, points=7), Tolerance())


@pytest.mark.parametrize("shift", ["none", "ood-lengthscale"])
def test_the_evidence_of_a_node_equals_the_density_computed_by_scipy(shift: str) -> None:
    family = GPMixture(GPParameters(targets=1))
    nodes = Nodes.of(family.prior(shift), 60, 0.02)
    evidence = Evidence(nodes, 0.2, family.span)
    episodes = episodes_of(family, 2, 4, shift=shift, related=1)
    for x, y in valid_points(episodes.related.map(lambda t: t[:, 0])):
        values = evidence(torch.tensor(x[:, 0]), torch.tensor(y))
        for s in range(0, len(values), 41):
            covariance = sklearn_kernel(int(nodes.kernel[s]), float(nodes.lengthscale[s]))(x) + 0.04 * np.eye(len(x))
            assert abs(values[s] - multivariate_normal(cov=covariance).logpdf(y)) < 1e-3


@pytest.mark.parametrize("shift", ["none", "ood-lengthscale"])
@pytest.mark.parametrize("kernel", [RBF, PERIODIC], ids=KERNELS)
def test_nodes_have_the_prior_distribution(shift: str, kernel: int) -> None:
    """Under the prior, the log-lengthscale is uniform. The nodes reproduce its first three moments."""
    prior = GPMixture(GPParameters()).prior(shift)
    nodes = Nodes.of(prior, 400, 0.00235)
    weight = nodes.log_prior.exp()[nodes.kernel == kernel].numpy()
    logs = nodes.lengthscale[nodes.kernel == kernel].log().numpy()
    u = np.concatenate([np.linspace(math.log(a), math.log(b), 100_001) for a, b in prior.intervals])
    assert abs(weight.sum() - 0.5) < 1e-12
    for moment in (1, 2, 3):
        assert abs((weight * logs**moment).sum() / 0.5 - (u**moment).mean()) < 1e-3


def test_a_prior_with_a_single_kernel_has_a_single_node() -> None:
    for kernel in (RBF, PERIODIC):
        nodes = Nodes.of(KernelPrior.single_kernel(kernel, 1.3), 400, 0.00235)
        assert nodes.kernel.tolist() == [kernel] and math.isclose(float(nodes.lengthscale), 1.3)


# A grid of log-lengthscales that is fine relative to the posteriors below, the kernels of both types on this grid, and
# their weights in the trapezoidal rule.
LOGS = np.linspace(math.log(0.7), math.log(2.0), 401)
GRID = [sklearn_kernel(kernel, math.exp(log)) for kernel in (RBF, PERIODIC) for log in LOGS]
TRAPEZOID = np.tile([0.5, *np.ones(len(LOGS) - 2), 0.5], 2)


def log_evidence(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    covariance = np.array([k(x) for k in GRID]) + 0.04 * np.eye(len(x))
    _, logdet = np.linalg.slogdet(covariance)
    fit = (y * np.linalg.solve(covariance, np.tile(y[:, None], (len(GRID), 1, 1)))[..., 0]).sum(1)
    return -0.5 * (fit + logdet + len(y) * math.log(2 * math.pi))


def predictions(x: np.ndarray, y: np.ndarray, x_target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation under every kernel of the grid."""
    means, variances = [], []
    for k in GRID:
        inverse, cross = np.linalg.inv(k(x) + 0.04 * np.eye(len(x))), k(x, x_target)
        means.append(cross.T @ inverse @ y)
        variances.append(1.04 - (cross * (inverse @ cross)).sum(0))
    return np.array(means), np.sqrt(variances)


def test_oracle_bayes_equals_brute_force_quadrature() -> None:
    episodes = episodes_of(count=2, shift="points-12", related=2)
    sets = [
        valid_points(episodes.context),
        *(valid_points(episodes.related.map(lambda t, j=j: t[:, j])) for j in range(2)),
    ]
    oracle = bayes(components=10_000)
    answers = list(oracle.predict_by_related(episodes.context, episodes.targets.x, episodes.related, [0, 1, 2]))
    for e in range(2):
        x, y = episodes.targets.x[e].numpy(), episodes.targets.y[e, :, 0].numpy()
        mean, std = predictions(*sets[0][e], x)
        evidence = 0.0
        for points, answer in zip(sets, answers, strict=True):
            evidence = evidence + log_evidence(*points[e])
            weights = TRAPEZOID * np.exp(evidence - evidence.max())
            weights /= weights.sum()
            np.testing.assert_allclose(answer.mean[e, :, 0], weights @ mean, atol=2e-4)
            log_density = np.log(weights @ norm.pdf(y, mean, std))
            np.testing.assert_allclose(answer.log_likelihood(episodes.targets.y)[e], log_density, atol=2e-3)


@pytest.mark.parametrize("kernel_index", [RBF, PERIODIC], ids=KERNELS)
def test_for_a_single_type_of_kernel_oracles_equal_quadrature_and_scikit_learn(kernel_index: int) -> None:
    """`oracle-bayes` equals brute-force quadrature over kernels of this type, and `oracle-kernel` equals the posterior
    computed by scikit-learn."""
    family = GPMixture(NARROW.parameters.model_copy(update={"kernels": (KERNELS[kernel_index],)}))
    episodes = episodes_of(family, count=2, shift="points-12", related=1)
    assert episodes.truth["kernel"].tolist() == [kernel_index, kernel_index]
    oracle, kernel_oracle = bayes(family, components=10_000), OracleKernel(None, TaskFacts(family=family))
    answer = oracle.predict_targets(episodes.context, episodes.targets.x, episodes.related)
    exact = kernel_oracle.informed(episodes.truth).predict_targets(episodes.context, episodes.targets.x)
    sets = [valid_points(episodes.context), valid_points(episodes.related.map(lambda t: t[:, 0]))]
    rows = slice(kernel_index * len(LOGS), (kernel_index + 1) * len(LOGS))
    for e in range(2):
        x = episodes.targets.x[e].numpy()
        evidence = sum(log_evidence(*points[e])[rows] for points in sets)
        weights = TRAPEZOID[rows] * np.exp(evidence - evidence.max())
        mean = predictions(*sets[0][e], x)[0][rows]
        np.testing.assert_allclose(answer.mean[e, :, 0], weights @ mean / weights.sum(), atol=2e-4)
        kernel = sklearn_kernel(kernel_index, float(episodes.truth["lengthscale"][e]))
        gp = GaussianProcessRegressor(kernel, alpha=0.04, optimizer=None).fit(*sets[0][e])
        np.testing.assert_allclose(exact.mean[e, :, 0], gp.predict(x), atol=1e-6)


@pytest.mark.slow
def test_related_datasets_determine_the_kernel() -> None:
    family = GPMixture(GPParameters(max_related=2, targets=40))
    episodes = episodes_of(family, 8, 32, related=2)
    kernel_oracle = OracleKernel(None, TaskFacts(family=family)).informed(episodes.truth)
    best = kernel_oracle.predict_targets(episodes.context, episodes.targets.x).log_likelihood(episodes.targets.y)
    oracle = bayes(family, rbf_nodes=200, spacing=0.005, components=300)
    answers = oracle.predict_by_related(episodes.context, episodes.targets.x, episodes.related, [0, 2])
    without, with_two = (a.scores(episodes.targets.y) for a in answers)
    assert (best - without["log_likelihood"]).mean() > 0.03
    for metric in ("log_likelihood", "log_likelihood_gaussian"):
        assert abs((best - with_two[metric]).mean()) < 0.015


def test_a_mixture_with_fewer_components_gives_similar_predictions() -> None:
    episodes = episodes_of(count=4, points=3)
    full, reduced = (bayes(components=n).predict_targets(episodes.context, episodes.targets.x) for n in (10_000, 300))
    assert reduced.logits.shape[-1] < full.logits.shape[-1]
    assert (reduced.mean - full.mean).abs().max() < 0.01
    y = episodes.targets.y
    assert (reduced.log_likelihood(y) - full.log_likelihood(y)).abs().max() < 0.02


def test_episodes_are_independent_and_masked_or_empty_sets_are_ignored() -> None:
    episodes = episodes_of(count=3, related=2)
    x, y = episodes.targets.x, episodes.targets.y
    oracle = bayes(rbf_nodes=50, spacing=0.02)
    batch = oracle.predict_targets(episodes.context, x, episodes.related).log_likelihood(y)
    single = oracle.predict_targets(episodes[1:2].context, x[1:2], episodes[1:2].related).log_likelihood(y[1:2])
    assert torch.allclose(batch[1:2], single, atol=1e-9)
    expected = oracle.predict_targets(episodes.context, x, first_related(episodes.related, 1)).log_likelihood(y)
    mask = episodes.related.mask.clone()
    mask[:, 1] = False
    masked = Points(episodes.related.x, episodes.related.y, mask)
    assert torch.allclose(oracle.predict_targets(episodes.context, x, masked).log_likelihood(y), expected, atol=1e-9)
    prior = oracle.predict_targets(episodes.context.span(0, 0), x)
    assert prior.log_likelihood(y).isfinite().all()
    assert torch.allclose(prior.std, torch.tensor(1.04).double().sqrt(), atol=1e-9)


def test_the_prior_that_oracle_bayes_assumes_depends_on_the_shift() -> None:
    family = GPMixture(GPParameters())
    for shift, expected in {
        "none": "none",
        "points-100": "none",
        "ood-lengthscale": "ood-lengthscale",
        "mismatch-far": "none",
        "periodic-1.85": "none",
        "rbf-5.19": "ood-lengthscale",
        "periodic-0.24": "ood-lengthscale",
    }.items():
        assert family.assumed_prior(shift) == family.prior(expected), shift


@pytest.mark.parametrize(
    ("shift", "kinds"),
    [
        ("none", ["oracle", "oracle"]),
        ("points-4", ["oracle", "oracle"]),
        ("ood-lengthscale", ["oracle", "oracle"]),
        ("mismatch-same", ["oracle", "baseline"]),
        ("mismatch-near", ["oracle", "baseline"]),
        ("mismatch-far", ["oracle", "baseline"]),
        ("mismatch-rbf+points-4", ["oracle", "baseline"]),
        ("rbf-1", ["oracle", "baseline"]),
        ("periodic-0.24", ["oracle", "baseline"]),
    ],
)
def test_oracle_bayes_is_an_oracle_only_if_its_assumed_prior_is_true(shift: str, kinds: list[str]) -> None:
    prompts = PromptSet(resolve_task("gp-mixture", "smoke")[0], "smoke", shift=shift)
    assert [baseline.kind for baseline in baselines(prompts, ["oracle-kernel", "oracle-bayes"])] == kinds


def test_related_datasets_from_a_different_process_mislead_oracle_bayes() -> None:
    """`oracle-bayes` predicts better without the related datasets."""
    shift = "mismatch-rbf"
    episodes = episodes_of(count=16, shift=shift, related=2)
    oracle = bayes(shift=shift, rbf_nodes=40, spacing=0.05)
    without_related, with_related = (
        oracle.predict_targets(episodes.context, episodes.targets.x, related).log_likelihood(episodes.targets.y).mean()
        for related in (None, episodes.related)
    )
    assert with_related < without_related - 0.1


def test_invalid_uses_of_oracles_are_refused() -> None:
    linear = Linear(Linear.Parameters())
    for cls in (OracleKernel, OracleBayes):
        with refused("not-applicable", cls.__name__, "gp-mixture"):
            cls(None, TaskFacts(family=linear))
    episodes = episodes_of()
    with refused("missing-value", "oracle-kernel", "informed"):
        OracleKernel(None, TaskFacts(family=NARROW)).predict_targets(episodes.context, episodes.targets.x)
    stretched = Points(10 * episodes.context.x, episodes.context.y, episodes.context.mask)
    with refused("bad-value", 8):
        bayes(rbf_nodes=5, spacing=0.5).predict_targets(stretched, episodes.targets.x)


def test_samples_of_oracle_bayes_are_functions_that_match_its_predicted_moments() -> None:
    oracle = bayes(rbf_nodes=60, spacing=0.02, components=10_000)
    episodes = episodes_of(count=2)
    x = episodes.targets.x.clone()
    x[:, 1] = x[:, 0] + 1e-3
    answer = oracle.predict_targets(episodes.context, x)
    draws = oracle.sample_targets(episodes.context, x, 20_000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(draws.mean(0), answer.mean, atol=0.04, rtol=0)
    torch.testing.assert_close(draws.std(0), answer.std, atol=0.04, rtol=0)
    # Two outputs at almost the same input differ only by their noise.
    torch.testing.assert_close(
        (draws[:, :, 1] - draws[:, :, 0]).std(0), torch.full((2, 1), 0.08**0.5).double(), atol=0.01, rtol=0
    )
