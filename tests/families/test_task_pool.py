"""Pools of truths: sampling, parameters, identities, fresh truths, the oracle, and distances from known solutions."""

import numpy as np
import pytest
import torch

from iclbench.config.resolution import RunConfig, resolve_run, resolve_task
from iclbench.core.task import TaskFacts
from iclbench.estimators.pool_oracle import PoolOracle
from iclbench.evaluation.contestants import baselines, contestant_of_predictor
from iclbench.evaluation.evaluate import evaluate
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.linear import NoisyLinear, PooledLinear
from iclbench.families.request import Request
from iclbench.store import identity
from tests.refusals import refused


def pooled(**parameters: object) -> NoisyLinear:
    return NoisyLinear(NoisyLinear.Parameters(**{"dim": 4, "pool": 8, "noise": 0.5, **parameters}))


def draw(family, shift="none", episodes=64, points=5, seed=0):
    return family.sample(Request(episodes, points, torch.Generator().manual_seed(seed), shift=shift))


def config(*overrides: str, task: str = "noisy-linear", seed: int = 0) -> RunConfig:
    return resolve_run(task, "gpt2", "smoke", seed, overrides)


def is_in_pool(family, weights):
    return (weights[:, None] == family.pool).all(2).any(1)


def test_episodes_draw_truths_from_the_pool_with_replacement() -> None:
    family = pooled()
    weights = draw(family, episodes=400).truth["weights"]
    counts = (weights[:, None] == family.pool).all(2).sum(0)
    assert is_in_pool(family, weights).all()
    assert counts.sum() == 400 and counts.min() > 20 and counts.max() < 80, "about 50 episodes for each truth"
    assert family.pool.shape == (8, 4)


def test_the_pool_depends_only_on_its_seed_and_size() -> None:
    family = pooled()
    assert torch.equal(family.pool, pooled(noise=2.0).pool) and torch.equal(family.pool, pooled(pool_seed=0).pool)
    assert not torch.equal(family.pool, pooled(pool_seed=1).pool)
    for seed in (1, 2):  # the seed of a run determines only the indices
        assert is_in_pool(family, draw(family, seed=seed).truth["weights"]).all()


def test_the_truths_of_a_large_pool_are_standard_normal() -> None:
    pool = pooled(pool=20_000).pool
    assert pool.mean().abs() < 0.02 and (pool.var() - 1).abs() < 0.02


@pytest.mark.parametrize("dim", [1, 4])
def test_fresh_truths_are_never_in_the_pool(dim: int) -> None:
    # In one dimension, some single-precision numbers are drawn twice.
    family = pooled(dim=dim, pool=200_000)
    weights = draw(family, "fresh", episodes=20_000, points=1).truth["weights"]
    assert not torch.isin(weights[:, 0], family.pool[:, 0]).any()
    assert len(weights.unique(dim=0)) > 19_000
    assert (weights.var() - 1).abs() < 0.05


def test_without_a_pool_both_distributions_draw_new_truths() -> None:
    family, plain = pooled(pool="all"), draw(pooled(pool="all"))
    fresh = draw(family, "fresh")
    assert family.pool is None
    assert torch.equal(plain.context.y, fresh.context.y)
    assert torch.equal(draw(pooled(), "fresh").truth["weights"], plain.truth["weights"])


def test_defaults_are_not_part_of_configurations_and_identities() -> None:
    plain = config()
    assert "pool" not in plain.task.parameters and "pool_seed" not in plain.task.parameters
    assert identity.run_id(config("task.pool=all")) == identity.run_id(plain)
    pool = identity.run_id(config("task.pool=4"))
    assert identity.run_id(config("task.pool=4", "task.pool_seed=0")) == pool
    assert len({pool, identity.run_id(plain), identity.run_id(config("task.pool=4", "task.pool_seed=1"))}) == 3
    prompts = {PromptSet(c.task, "smoke").id for c in (plain, config("task.pool=4"), config("task.pool=8"))}
    assert len(prompts) == 3


def test_identities_of_runs_without_a_pool_have_not_changed() -> None:
    """The values were computed before pools were added."""
    ids = [identity.run_id(config(task=task)) for task in ("linear", "noisy-linear")]
    assert ids == ["0885abd493e2", "1454bd594474"]


def test_runs_of_all_seeds_share_the_pool() -> None:
    first, second = (config("task.pool=4", seed=seed) for seed in (0, 1))
    assert torch.equal(first.task.build().pool, second.task.build().pool)
    assert PromptSet(first.task, "smoke").id == PromptSet(second.task, "smoke").id


@pytest.mark.parametrize("value", ["0", "-3", "2.5", "true", "many"])
def test_an_invalid_size_is_refused(value: str) -> None:
    with refused("bad-value", "pool", value.capitalize() if value == "true" else value):
        config(f"task.pool={value}")


def test_a_pool_that_exceeds_the_memory_and_a_seed_without_a_pool_are_refused() -> None:
    with refused("bad-value", "pool", "89,478,485"):
        config("task.pool=100000000")
    with refused("bad-value", "pool_seed"):
        config("task.pool_seed=1")
    with refused("unknown-name", "pool"):
        config("task.pool=4", task="skewed-linear")


def dmmse(family, x, y, query, sigma):
    """Return the posterior mean over the pool, with likelihoods computed by SciPy."""
    from scipy.special import logsumexp
    from scipy.stats import norm

    pool = family.pool.double().numpy()
    log_likelihoods = norm.logpdf(y, loc=pool @ x.T, scale=sigma).sum(1)
    return float(np.exp(log_likelihoods - logsumexp(log_likelihoods)) @ pool @ query)


@pytest.mark.parametrize(("points", "pool"), [(12, 1), (12, 8), (256, 300)])
def test_the_oracle_equals_brute_force_for_every_prefix(points: int, pool: int) -> None:
    family = pooled(pool=pool)
    data = draw(family, "fresh", episodes=3, points=points).context.to(dtype=torch.float64)
    prediction = PoolOracle(facts=TaskFacts(family=family)).predict_next(data).mean
    x, y = data.x.numpy(), data.y[..., 0].numpy()
    expected = [[dmmse(family, x[b, :n], y[b, :n], x[b, n], 0.5) for n in range(points)] for b in range(3)]
    np.testing.assert_allclose(prediction[..., 0].numpy(), expected, rtol=0, atol=1e-10)
    assert prediction.isfinite().all()


def test_the_oracle_knows_the_shift_and_the_scale_of_the_labels() -> None:
    family = pooled(renormalise=True)
    shift = "weight-scale-2+noisy-1.5"
    data = draw(family, shift, episodes=4, points=9).context.to(dtype=torch.float64)
    prediction = PoolOracle(facts=TaskFacts(family=family, shift=shift)).predict_next(data).mean
    # Without the factor of `renormalise`, labels are 2 w·x + N(0, 1.5²), which are twice w·x + N(0, 0.75²).
    factor = 2 * np.sqrt(4 / (4 + 1.5**2))
    x, y = data.x.numpy(), data.y[..., 0].numpy() / factor
    expected = [[factor * dmmse(family, x[b, :n], y[b, :n], x[b, n], 0.75) for n in range(9)] for b in range(4)]
    np.testing.assert_allclose(prediction[..., 0].numpy(), expected, rtol=0, atol=1e-10)


def test_one_noiseless_point_identifies_the_truth() -> None:
    family = PooledLinear(PooledLinear.Parameters(dim=4, pool=50))
    episodes = draw(family)
    prediction = PoolOracle(facts=TaskFacts(family=family)).predict_next(episodes.context).mean
    torch.testing.assert_close(prediction[:, 1:].float(), episodes.context.y[:, 1:], rtol=1e-4, atol=1e-4)


def test_the_oracle_needs_a_pool() -> None:
    with refused("not-applicable", "PoolOracle", "task.pool"):
        PoolOracle(facts=TaskFacts(family=pooled(pool="all")))
    with refused("not-applicable", "PoolOracle", "task.pool"):
        PoolOracle(facts=TaskFacts(family=None))


def kinds(shift: str, **parameters: object) -> dict[str, str]:
    task, _ = resolve_task("noisy-linear", "smoke", {"episodes": 2, **parameters})
    prompts = PromptSet(task, "smoke", shift)
    return {contestant.name: contestant.kind for contestant in baselines(prompts) if contestant.name in OPTIMA}


OPTIMA = ("ridge", "oracle-pool")


def test_each_oracle_is_optimal_for_one_distribution() -> None:
    assert kinds("none") == {"ridge": "oracle"}
    assert kinds("none", pool=4) == {"ridge": "baseline", "oracle-pool": "oracle"}
    assert kinds("noisy-2", pool=4) == {"ridge": "baseline", "oracle-pool": "oracle"}
    assert kinds("fresh", pool=4) == {"ridge": "oracle", "oracle-pool": "baseline"}
    assert kinds("fresh+noisy-2", pool=4) == {"ridge": "oracle", "oracle-pool": "baseline"}


@pytest.mark.parametrize(
    ("pool", "shift", "names"),
    [(4, "none", OPTIMA), (4, "fresh", OPTIMA), ("all", "none", ()), ("all", "fresh", ("ridge",))],
)
def test_distances_are_squared_differences_of_predictions(pool: int | str, shift: str, names: tuple[str, ...]) -> None:
    task, _ = resolve_task("noisy-linear", "smoke", {"episodes": 8, "pool": pool, "dim": 4})
    prompts = PromptSet(task, "smoke", shift)
    (ridge,) = baselines(prompts, ["ridge"])
    values = evaluate([contestant_of_predictor("mine", ridge.predictor)], prompts)
    rows = values[values["evaluator"].eq("solutions")].set_index("metric")
    assert set(rows.index) == {f"squared_distance_to_{name}" for name in names}
    assert set(rows["axis"]) <= {"pool"} and set(rows["axis_value"].dropna()) == ({4.0} if pool == 4 else set())
    for name in names:
        (other,) = baselines(prompts, [name])
        answers = [p.predict_next(prompts.episodes.context).mean for p in (ridge.predictor, other.predictor)]
        expected = float((answers[0] - answers[1]).double().square().mean()) / 4
        assert rows.loc[f"squared_distance_to_{name}", "value"] == pytest.approx(expected, rel=1e-5, abs=1e-12)
    assert not set(values.loc[values["evaluator"].eq("next"), "metric"]) & set(rows.index)
