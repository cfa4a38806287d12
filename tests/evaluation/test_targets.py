"""The question `targets`: scores, means over subsets, gaps and examples against explicit loops."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm
from torch.distributions import MultivariateNormal

from iclbench import tables
from iclbench.backbones.base import TaskShape
from iclbench.backbones.icicl_tnp import ICICLTNP
from iclbench.cli.summary import targets_board
from iclbench.config.resolution import resolve_task
from iclbench.core.episodes import first_related
from iclbench.core.joint import JointGaussian
from iclbench.core.predictions import Categorical, Gaussian, Mixture, Point
from iclbench.core.predictor import Oracle, Predictor
from iclbench.evaluation import cells, examples, gaps, scoring, targets
from iclbench.evaluation.bootstrap import bootstrap_interval
from iclbench.evaluation.contestants import PredictorContestant, baselines
from iclbench.evaluation.evaluate import evaluate_cell, summarise
from iclbench.evaluation.prompt_set_rows import PromptSetRows
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.base import Ceiling
from iclbench.families.gaussian_processes.gp_mixture import GPMixture, GPParameters
from iclbench.registry import ESTIMATORS
from tests.refusals import refused

SMALL = {"episodes": 20, "points": 12, "targets": 5, "max_related": 2, "related_points": [4, 9]}


@pytest.fixture(scope="module")
def prompts() -> PromptSet:
    return PromptSet(resolve_task("gp-mixture", "smoke", SMALL)[0], "smoke")


@pytest.fixture(scope="module")
def model() -> ICICLTNP:
    torch.manual_seed(0)
    settings = ICICLTNP.Settings(width=16, layers=2, heads=2, pseudo_tokens=4)
    return ICICLTNP(settings, TaskShape(x_dim=1, points=12, head="gaussian", question="targets", related=2)).eval()


class Prior(Predictor):
    """Predicts a standard normal distribution."""

    heads = ("gaussian",)

    def predict_targets(self, context, x_target, related=None):
        return Gaussian(torch.zeros_like(x_target), torch.ones_like(x_target))


class Prophet(Oracle):
    """An oracle that becomes `Prior` when it is given the truth."""

    def informed(self, truth):
        return Prior()

    def predict_targets(self, context, x_target, related=None):
        raise NotImplementedError


def contestant(predictor: Predictor, name: str, kind: str = "backbone", **options: object) -> PredictorContestant:
    return PredictorContestant(
        name, name, kind, identity=name, seed=0 if kind == "backbone" else None, **options, predictor=predictor
    )


def test_every_prompt_has_the_maximum_number_of_related_datasets(prompts):
    assert prompts.episodes.related.mask.any(-1).all()


def test_scores_of_a_batch_equal_scores_of_single_episodes(prompts, model):
    all_scores = scoring.target_scores(model, prompts)
    assert all_scores.n_related == (0, 1, 2)
    for b in (0, 7, 19):
        one = prompts.episodes[b : b + 1]
        for n in all_scores.n_related:
            with torch.no_grad():
                answer = model.predict_targets(one.context, one.targets.x, first_related(one.related, n))
            mask = one.targets.mask[0].numpy()
            means = {metric: score[0].numpy()[mask].mean() for metric, score in answer.scores(one.targets.y).items()}
            for metric, expected in means.items():
                scale = prompts.family.normaliser if metric == "squared_error" else 1.0
                assert all_scores.scores[metric][b, n] == pytest.approx(expected / scale, abs=1e-5)


class Lengthscale(Oracle):
    """Predicts the true lengthscale of the episode."""

    heads = ("gaussian",)

    def __init__(self, lengthscale=None):
        self.lengthscale = lengthscale

    def informed(self, truth):
        return Lengthscale(truth["lengthscale"])

    def predict_targets(self, context, x_target, related=None):
        mean = self.lengthscale.reshape(-1, 1, 1).expand(*x_target.shape[:2], 1)
        return Gaussian(mean, torch.ones_like(mean))


def test_an_oracle_gets_the_truth_of_each_episode(prompts):
    queries, scales = prompts.episodes.queries, prompts.episodes.truth["lengthscale"]
    expected = [((y[mask] - scale) ** 2).mean() for y, mask, scale in zip(queries.y, queries.mask, scales, strict=True)]
    actual = scoring.target_scores(Lengthscale(), prompts).scores["squared_error"][:, 0]
    np.testing.assert_allclose(actual, expected, rtol=1e-4)
    rows = examples.prediction_rows(contestant(Lengthscale(), "lengthscale", "oracle"), prompts).query(
        "role == 'predicted'"
    )
    np.testing.assert_allclose(
        rows["value"].astype(float).groupby(rows["episode"]).agg(["min", "max"]).T, [scales[:4].numpy()] * 2
    )


def test_only_labels_with_choices_have_an_accuracy_within_choices():
    labels, y = Categorical(torch.tensor([[[0.0, 1.0, 2.0]]])), torch.tensor([[1]])
    assert "accuracy_within_choices" not in labels.scores_within(y, None)
    scores = labels.scores_within(y, torch.tensor([[True, True, False]]))
    assert (float(scores["accuracy"]), float(scores["accuracy_within_choices"])) == (0, 1)
    number = Gaussian(torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
    assert set(number.scores_within(torch.zeros(1, 1, 1), torch.ones(1, 3, dtype=torch.bool))) == {*Gaussian.metrics}


class Uniform(Predictor):
    """Predicts equal probabilities of all classes of the task."""

    heads = ("categorical",)

    def predict_targets(self, context, x_target, related=None):
        return Categorical(torch.zeros(*x_target.shape[:2], 3))


def test_labels_that_a_real_table_does_not_have_get_no_probability():
    task = resolve_task("real-tables-classes", "smoke", {"tables": ["breast-cancer", "iris"], "episodes": 4})[0]
    prompts = PromptSet(task, "smoke")
    counts = prompts.episodes.choices.sum(1)
    assert sorted(set(counts.tolist())) == [2, 3]
    scores = scoring.target_scores(Uniform(), prompts).scores
    np.testing.assert_allclose(scores["cross_entropy"][:, 0], counts.double().log(), rtol=1e-6)


class Scaled(GPMixture):
    """A family whose normaliser is not 1. All shipped tasks with the question `targets` have the normaliser 1."""

    normaliser = 4.0


def test_only_squared_errors_are_divided_by_the_normaliser(prompts, tmp_path: Path):
    scaled = PromptSet(prompts.task, "smoke", built_family=Scaled(GPParameters(**prompts.task.parameters)))
    queries = scaled.episodes.queries
    outputs = [y[mask].numpy() for y, mask in zip(queries.y, queries.mask, strict=True)]
    plain = [np.mean(y**2) for y in outputs]
    likelihood = [norm.logpdf(y).mean() for y in outputs]
    scores = scoring.target_scores(Prior(), scaled)
    assert scores.normaliser == 4
    np.testing.assert_allclose(scores.scores["squared_error"][:, 0], np.array(plain) / 4, rtol=1e-5)
    np.testing.assert_allclose(scores.scores["log_likelihood"][:, 0], likelihood, rtol=1e-5)
    evaluate_cell(tmp_path, contestant(Prior(), "prior"), scaled)
    values = tables.read_all("values", tmp_path)
    normalisers = values.groupby("metric")["normaliser"].agg(set).to_dict()
    assert normalisers.pop("squared_error") == {4.0} and all(values == {1.0} for values in normalisers.values())
    (row,) = values[values["metric"].eq("squared_error") & values["axis"].isna()].to_dict("records")
    low, high = (float(end[0]) for end in bootstrap_interval(np.array(plain)[:, None] / 4, scaled.seed))
    assert [row["value"], row["low"], row["high"]] == pytest.approx([np.mean(plain) / 4, low, high], rel=1e-5)
    assert set(values["evaluator"]) == {"targets"} and set(values["status"]) == {"ok"}


def test_summaries_for_targets_have_gaps_scores_and_points_of_examples(prompts, model, tmp_path: Path):
    """The chance level is written only for the tests of a family."""
    with_oracle = PromptSet(prompts.task.model_copy(update={"oracles": ["prophet"]}), "smoke")
    zero = contestant(ESTIMATORS.get("zero")(), "zero", "baseline")
    for one in (contestant(Prophet(), "prophet", "oracle"), contestant(model, "model"), zero):
        evaluate_cell(tmp_path, one, with_oracle)
    summarise(tmp_path, with_oracle)
    folder = tmp_path / "tables" / with_oracle.id
    assert sorted(path.name for path in (folder / "summary").iterdir()) == [
        "gaps.values.parquet",
        "scores.values.parquet",
    ]
    assert (folder / "prompts.examples.parquet").exists()


def test_summaries_for_next_have_only_scores(card_path: Path, tmp_path: Path):
    next_prompts = PromptSet(resolve_task(str(card_path), "smoke")[0], "smoke")
    for name in ("zero", "least-squares"):
        kind = "baseline" if name == "zero" else "oracle"
        evaluate_cell(tmp_path, contestant(ESTIMATORS.get(name)(), name, kind), next_prompts)
    summarise(tmp_path, next_prompts)
    folder = tmp_path / "tables" / next_prompts.id
    assert [path.name for path in (folder / "summary").iterdir()] == ["scores.values.parquet"]
    assert not (folder / "prompts.examples.parquet").exists()


def test_scores_do_not_depend_on_the_block_size(prompts, model, monkeypatch):
    expected = scoring.target_scores(model, prompts)
    monkeypatch.setattr(scoring, "_POINTS_PER_PASS", 100)
    for metric, scores in scoring.target_scores(model, prompts).scores.items():
        np.testing.assert_allclose(scores, expected.scores[metric], atol=1e-5)


def test_a_block_has_as_many_episodes_as_fit_and_at_least_one(prompts, monkeypatch):
    episodes = prompts.episodes
    plain = replace(episodes, related=None)
    points = plain.context.count + plain.queries.count
    monkeypatch.setattr(scoring, "_POINTS_PER_PASS", 10 * points)
    assert [len(block) for block in scoring.blocks(plain)] == [10, 10]
    monkeypatch.setattr(scoring, "_POINTS_PER_PASS", points - 1)
    assert [len(block) for block in scoring.blocks(plain)] == [1] * 20
    related = episodes.related.mask.shape[1] * episodes.related.mask.shape[2]
    monkeypatch.setattr(scoring, "_POINTS_PER_PASS", 10 * (points + related))
    assert [len(block) for block in scoring.blocks(episodes)] == [10, 10]


class TargetCount(Prior):
    """Predicts the number of targets in the call."""

    joint = "exchangeable"

    def __init__(self) -> None:
        self.calls: list[torch.Tensor] = []

    def predict_targets(self, context, x_target, related=None):
        self.calls.append(x_target)
        return Gaussian(torch.full_like(x_target[..., :1], x_target.shape[1]), torch.ones_like(x_target[..., :1]))


def test_a_joint_predictor_is_evaluated_without_padding():
    cmab = {"images": "glyphs", "sampling": "cmab", "budget": 20, "max_related": 0, "episodes": 9, "points": 16}
    padded = PromptSet(resolve_task("image-completion", "smoke", cmab)[0], "smoke")
    targets, predictor = padded.episodes.queries, TargetCount()
    assert len(targets.counts.unique()) > 2 and (targets.counts < targets.count).any()
    scores = scoring.target_scores(predictor, padded).scores["log_likelihood"][:, 0]
    for b, n in enumerate(targets.counts.tolist()):
        expected = norm.logpdf(targets.y[b, targets.mask[b], 0].numpy(), loc=n).mean()
        assert scores[b] == pytest.approx(expected, rel=1e-6)
    assert sum(x.shape[0] * x.shape[1] for x in predictor.calls) == targets.mask.sum()


def test_a_predictor_that_does_not_use_related_datasets_is_evaluated_once(prompts):
    assert scoring.target_scores(Prior(), prompts).n_related == (0,)


def test_the_weighted_mean_over_subsets_is_the_mean_over_all_episodes(prompts, model, tmp_path: Path):
    assert evaluate_cell(tmp_path, contestant(model, "model"), prompts) is None
    values = tables.read_all("values", tmp_path)
    rows = values[values["metric"].eq("log_likelihood") & values["n_related"].eq(1)]
    mean = rows[rows["axis"].isna()].iloc[0]
    for subsets in (rows[rows["axis"].eq("n_context")], rows[rows["stratum"].notna()]):
        assert subsets["n_episodes"].sum() == mean["n_episodes"] == 20
        assert np.average(subsets["value"], weights=subsets["n_episodes"]) == pytest.approx(mean["value"])
    assert set(rows["axis_value"].dropna()) <= {4.0, 16.0}
    counts = prompts.episodes.context.counts
    assert rows.set_index("axis_value")["n_episodes"][4.0] == int((counts <= 4).sum())


@pytest.mark.parametrize(("n", "end"), [(0, 0), (1, 4), (4, 4), (5, 16), (16, 16), (17, 64), (64, 64), (65, 256)])
def test_bins_of_context_sizes_end_at_powers_of_4(n: int, end: int):
    assert targets.bin_end(n) == end


def test_a_contestant_with_a_limited_number_of_episodes_is_evaluated_on_the_first_ones(prompts, model, tmp_path: Path):
    few = contestant(model, "few", episodes=6)
    evaluate_cell(tmp_path, few, prompts)
    values, errors = tables.read_all("values", tmp_path), tables.read_all("errors", tmp_path)
    assert set(values[values["axis"].isna()]["n_episodes"]) == {6}
    assert set(errors["episode"]) == set(range(6))
    np.testing.assert_array_equal(
        errors.drop_duplicates("episode")["n_context"], prompts.episodes.context.counts[:6].numpy()
    )


class Short(Prior):
    """Supports contexts of at most four points."""

    longest = 5

    def predict_targets(self, context, x_target, related=None):
        assert int(context.counts.max()) <= 4
        return super().predict_targets(context, x_target, related)


def test_means_over_too_long_contexts_are_skipped(prompts, tmp_path: Path):
    """The bin of up to four points has the same values as without the limit, and the cell is done."""
    for predictor in (Short(), Prior()):
        assert evaluate_cell(tmp_path, contestant(predictor, type(predictor).__name__), prompts) is None
    values = tables.read_all("values", tmp_path)
    values = values[values["metric"].eq("log_likelihood")].set_index(["run", "axis_value"])
    columns = ["value", "low", "high", "n_episodes", "status"]
    assert values.loc[[("Short", 4.0)], columns].to_numpy().tolist() == (
        values.loc[[("Prior", 4.0)], columns].to_numpy().tolist()
    )
    missing = values[values["status"].eq("skipped")]
    assert len(values.loc["Short"]) == len(values.loc["Prior"]) == len(missing) + 1
    assert set(missing["reason"]) == {Short().too_long(5)} and missing["value"].isna().all()
    assert set(tables.read_all("errors", tmp_path)["run"]) == {"Prior"}, (
        "a contestant with skipped episodes is not compared"
    )
    assert cells.is_done(tmp_path, contestant(Short(), "Short"), prompts)
    exact = PromptSet(prompts.task, "smoke", shift="points-12")
    evaluate_cell(tmp_path, contestant(Short(), "Short"), exact)
    rows = tables.read_all("values", tmp_path / "tables" / exact.id)
    assert rows[["metric", "status"]].to_numpy().tolist() == [["squared_error", "skipped"]]


def test_gaps_are_paired_by_episode(prompts, model, tmp_path: Path):
    task = prompts.task.model_copy(update={"oracles": ["prophet"]})
    with_oracle = PromptSet(task, "smoke")
    assert with_oracle.id == prompts.id
    evaluate_cell(tmp_path, contestant(Prophet(), "prophet", "oracle", episodes=15), with_oracle)
    evaluate_cell(tmp_path, contestant(model, "model"), with_oracle)
    gaps.write_gaps(PromptSetRows(tmp_path, with_oracle))
    values = tables.read_all("values", tmp_path).query("metric == 'gap'")
    assert set(values["run"]) == {"model"}
    errors = tables.read_all("errors", tmp_path).query("metric == 'log_likelihood'")
    table = errors.pivot_table(index="episode", columns=["run", "n_related"], values="value")
    for n in (0, 1, 2):
        gap_row = values[values["axis"].isna() & values["n_related"].eq(n)].iloc[0]
        differences = (table[("prophet", 0)] - table[("model", n)]).dropna()
        assert gap_row["n_episodes"] == len(differences) == 15
        assert gap_row["value"] == pytest.approx(differences.mean())
        assert gap_row["low"] < gap_row["value"] < gap_row["high"]
        assert gap_row["kind"] == "backbone"


class Functions(Predictor):
    """Predicts that all outputs equal one standard normal variable, plus noise with standard deviation 0.1."""

    heads = ("gaussian",)

    def predict_targets(self, context, x_target, related=None):
        return JointGaussian(
            torch.zeros_like(x_target), torch.ones_like(x_target).unsqueeze(-1), torch.full_like(x_target, 0.1)
        )


def test_joint_scores_and_gaps_use_the_joint_density_of_all_targets(prompts, tmp_path: Path):
    task = prompts.task.model_copy(update={"oracles": ["functions"]})
    with_oracle = PromptSet(task, "smoke")
    evaluate_cell(tmp_path, contestant(Functions(), "functions", "oracle"), with_oracle)
    evaluate_cell(tmp_path, contestant(Prior(), "prior"), with_oracle)
    gaps.write_gaps(PromptSetRows(tmp_path, with_oracle))
    errors = tables.read_all("errors", tmp_path).pivot_table(index="episode", columns=["run", "metric"], values="value")
    y = with_oracle.episodes.targets.y[..., 0].double()
    covariance = torch.ones(y.shape[1], y.shape[1], dtype=torch.float64) + 0.01 * torch.eye(y.shape[1])
    exact = MultivariateNormal(torch.zeros(y.shape[1], dtype=torch.float64), covariance).log_prob(y) / y.shape[1]
    joint = errors[("functions", "log_likelihood_joint")].to_numpy(float)
    assert joint == pytest.approx(exact.numpy(), rel=1e-5)
    prior_errors = errors["prior"]
    assert prior_errors["log_likelihood_joint"].to_numpy(float) == pytest.approx(
        prior_errors["log_likelihood"].to_numpy(float), rel=1e-6
    )
    values = tables.read_all("values", tmp_path)
    gap_rows = values[values["metric"].eq("gap_joint") & values["axis"].isna()]
    assert gap_rows["run"].tolist() == ["prior"]
    assert gap_rows["value"].item() == pytest.approx((joint - prior_errors["log_likelihood_joint"]).mean())
    columns, lines = targets_board(values)
    assert columns == ["contestant", "log-likelihood", "gap to the oracle", "joint LL", "squared error"]
    (line,) = (line for line in lines if "prior" in line[0])
    assert line[3] == f"{prior_errors['log_likelihood_joint'].mean():.3f}"


def test_examples_have_joint_samples_of_the_first_episode(prompts, tmp_path: Path):
    rows = {
        name: examples.prediction_rows(contestant(predictor, name), prompts).query("role == 'drawn'")
        for name, predictor in (("functions", Functions()), ("prior", Prior()), ("counter", Counter()))
    }
    inputs = len(range(0, len(prompts.family.display_inputs()), examples.SPACING))
    for samples in rows.values():
        assert set(samples["episode"]) == {0} and set(samples["n_related"]) == {0}
        assert samples.groupby("set").size().tolist() == [inputs] * examples.DRAWS
    spread = {name: samples.groupby("set")["value"].std().max() for name, samples in rows.items()}
    assert spread["functions"] < 0.15 and spread["prior"] > 0.7
    assert rows["functions"].groupby("set")["value"].mean().std() > 0.3


@pytest.mark.slow
def test_gaps_are_averaged_over_the_episodes_that_all_oracles_predicted(prompts, model, tmp_path: Path):
    """Otherwise, the gaps in a table would be means over different episodes."""
    with_oracles = PromptSet(prompts.task.model_copy(update={"oracles": ["prophet", "second"]}), "smoke")
    evaluate_cell(tmp_path, contestant(Prophet(), "prophet", "oracle"), with_oracles)
    evaluate_cell(tmp_path, contestant(Prior(), "second", "oracle", episodes=7), with_oracles)
    evaluate_cell(tmp_path, contestant(model, "model"), with_oracles)
    gaps.write_gaps(PromptSetRows(tmp_path, with_oracles))
    values = tables.read_all("values", tmp_path).query("metric == 'gap' and n_related == 0")
    means = values[values["axis"].isna()].set_index("run")
    assert means["n_episodes"].to_dict() == {"model": 7, "second": 7}
    errors = tables.read_all("errors", tmp_path).query("metric == 'log_likelihood' and n_related == 0")
    table = errors.pivot_table(index="episode", columns="run", values="value")
    for run in ("model", "second"):
        assert means["value"][run] == pytest.approx((table["prophet"] - table[run])[:7].mean())
    assert set(tables.read_all("values", tmp_path)["metric"]) >= {"gap"}
    assert not tables.read_all("values", tmp_path)["metric"].eq(gaps.ADJUSTED).any(), "the ceiling is not known"


def test_scores_are_adjusted_for_the_ceiling_of_the_task(prompts, model, tmp_path: Path, monkeypatch):
    def ceiling(family: GPMixture, oracle: str, points: int, shift: str) -> Ceiling:
        assert (oracle, points, shift) == ("prophet", prompts.task.points, "none")
        return Ceiling(-0.25, 0.01)

    monkeypatch.setattr(GPMixture, "ceiling", ceiling)
    with_oracles = PromptSet(prompts.task.model_copy(update={"oracles": ["prophet"]}), "smoke")
    evaluate_cell(tmp_path, contestant(Prophet(), "prophet", "oracle", episodes=12), with_oracles)
    evaluate_cell(tmp_path, contestant(model, "model"), with_oracles)
    gaps.write_gaps(PromptSetRows(tmp_path, with_oracles))
    rows = tables.read_all("values", tmp_path).query("metric == @gaps.ADJUSTED")
    errors = tables.read_all("errors", tmp_path).query("metric == 'log_likelihood' and episode < 12")
    means = errors.groupby(["run", "n_related"])["value"].mean()
    model_rows = rows[rows["run"].eq("model")].set_index("n_related")
    assert list(model_rows.index) == [0, 1, 2] and model_rows["axis"].isna().all()
    for n in model_rows.index:
        assert model_rows["value"][n] == pytest.approx(means["model", n] - means["prophet", 0] - 0.25)
        assert model_rows["low"][n] < model_rows["value"][n] < model_rows["high"][n]
    oracle = rows[rows["run"].eq("prophet")].iloc[0]
    assert (oracle["value"], oracle["low"], oracle["high"]) == pytest.approx((-0.25, -0.2696, -0.2304))


@pytest.mark.slow
@pytest.mark.parametrize("max_related", [1, 2])
def test_contestant_and_oracle_are_compared_at_the_same_number_of_related_datasets(
    model, tmp_path: Path, max_related: int
):
    config = resolve_task("gp-mixture", "smoke", SMALL | {"max_related": max_related})[0]
    with_oracles = PromptSet(config.model_copy(update={"oracles": ["informed"]}), "smoke")
    evaluate_cell(tmp_path, contestant(model, "informed", "oracle"), with_oracles)
    evaluate_cell(tmp_path, contestant(model, "model"), with_oracles)
    evaluate_cell(tmp_path, contestant(Prior(), "prior"), with_oracles)
    gaps.write_gaps(PromptSetRows(tmp_path, with_oracles))
    values = tables.read_all("values", tmp_path).query("metric == 'gap'")
    assert set(values["n_related"]) == set(range(max_related + 1)) and set(values["run"]) == {"model", "prior"}
    assert (values.loc[values["run"].eq("model"), "value"] == 0).all() and set(values["normaliser"]) == {1.0}
    errors = tables.read_all("errors", tmp_path).query("metric == 'log_likelihood' and n_related == 0")
    means = errors.groupby("run")["value"].mean()
    prior_gaps = values[values["run"].eq("prior") & values["axis"].isna()]
    assert prior_gaps["value"].item() == pytest.approx(means["informed"] - means["prior"])
    path = tmp_path / "tables" / with_oracles.id / "summary" / "gaps.values.parquet"
    assert tables.metadata(path)["oracle"] == "informed"
    for run in ("model", "prior"):
        cells.cell_path(tmp_path, contestant(model, run), with_oracles, "errors").unlink()
    gaps.write_gaps(PromptSetRows(tmp_path, with_oracles))
    assert not path.exists(), "no contestant has a gap"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tnp", "aaa"])  # names after and before "summary" in alphabetical order
def test_rows_of_gaps_and_scores_have_the_columns_of_their_contestant(prompts, model, tmp_path: Path, name: str):
    for one in (contestant(model, name, trained_on="elsewhere"), *baselines(prompts, ["oracle-kernel", "zero"])):
        evaluate_cell(tmp_path, one, prompts)
    summarise(tmp_path, prompts)
    values = tables.read_all("values", tmp_path).query("run == @name")
    assert {"gap", "score", "log_likelihood"} <= set(values["metric"])
    assert values[["trained_on", "context_order"]].drop_duplicates().to_numpy().tolist() == [["elsewhere", "set"]]


def test_a_task_without_an_oracle_has_no_gaps(prompts, model, tmp_path: Path):
    task = prompts.task.model_copy(update={"oracles": []})
    evaluate_cell(tmp_path, contestant(model, "model"), PromptSet(task, "smoke"))
    gaps.write_gaps(PromptSetRows(tmp_path, PromptSet(task, "smoke")))
    assert not list(tmp_path.rglob("gaps*"))


def test_examples_contain_points_and_predictions(prompts, model, tmp_path: Path):
    evaluate_cell(tmp_path, contestant(model, "model"), prompts)
    examples.write_prompts(tmp_path, prompts)
    path = tmp_path / "tables" / prompts.id / "prompts.examples.parquet"
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    examples.write_prompts(tmp_path, prompts)
    assert path.read_bytes() == content, "a damaged file is rewritten"
    rows = tables.read_all("examples", tmp_path)
    points = rows[rows["run"].eq("prompts") & rows["episode"].eq(2)]
    context = prompts.episodes.context
    context_rows = points[points["role"].eq("context")]
    assert context_rows["value"].to_numpy(float) == pytest.approx(context.y[2][context.mask[2]].squeeze(-1).numpy())
    assert set(points["role"]) >= {"context", "target", "related"}
    assert set(points["set"].dropna()) == {0, 1}
    predicted = rows[rows["run"].eq("model") & rows["role"].eq("predicted")]
    model_rows = predicted[predicted["episode"].eq(2) & predicted["n_related"].eq(2)].sort_values("point")
    inputs = prompts.family.display_inputs()
    one = prompts.episodes[2:3]
    with torch.no_grad():
        answer = model.predict_targets(one.context, inputs.unsqueeze(0), one.related)
    assert model_rows["value"].to_numpy(float) == pytest.approx(answer.mean[0, :, 0].numpy(), abs=1e-5)
    assert (model_rows["high"] - model_rows["low"]).to_numpy(float) == pytest.approx(
        2 * 1.6448536 * answer.std[0, :, 0].numpy(), rel=1e-4
    )


class Counter(Predictor):
    """Predicts the number of related datasets."""

    heads = ("gaussian",)
    uses_related = True

    def predict_targets(self, context, x_target, related=None):
        count = 0 if related is None else related.mask.shape[1]
        return Gaussian(torch.full_like(x_target, count), torch.ones_like(x_target))


class Broken(Counter):
    """Predicts NaN for the last target if there are more than eight context points and two related datasets."""

    def predict_targets(self, context, x_target, related=None):
        answer = super().predict_targets(context, x_target, related)
        std = answer.std.clone()
        if related is not None and related.mask.shape[1] == 2:
            std[context.counts > 8, -1] = torch.nan
        return Gaussian(answer.mean, std)


def test_only_means_over_nonfinite_scores_fail(tmp_path: Path):
    prompts = PromptSet(resolve_task("gp-mixture", "smoke", SMALL)[0], "smoke")
    assert evaluate_cell(tmp_path, contestant(Counter(), "sound"), prompts) is None
    broken = contestant(Broken(), "broken")
    reason = evaluate_cell(tmp_path, broken, prompts)
    assert reason is not None and "log_likelihood is nan" in reason and "2 related datasets" in reason
    assert not cells.is_done(tmp_path, broken, prompts)
    values = tables.read_all("values", tmp_path)
    keys = ["metric", "n_related", "axis", "axis_value"]
    nan_rows, sound = (values[values["run"].eq(name)].set_index(keys).sort_index() for name in ("broken", "sound"))
    assert nan_rows.index.equals(sound.index), "a broken contestant has the same rows as a sound one"
    rows = nan_rows.reset_index()
    is_affected = rows["n_related"].eq(2) & ~(rows["axis"].eq("n_context") & rows["axis_value"].le(4)).fillna(False)
    assert set(rows.loc[rows["status"].eq("failed"), "n_related"]) == {2}
    assert rows.loc[is_affected & rows["axis"].isna(), "status"].eq("failed").all()
    assert rows.loc[~is_affected, "status"].eq("ok").all()
    assert set(rows.loc[is_affected, "reason"].dropna()) == {reason}
    is_ok = nan_rows["status"].eq("ok")
    pd.testing.assert_frame_equal(nan_rows[is_ok][["value", "low", "high"]], sound[is_ok][["value", "low", "high"]])
    errors = tables.read_all("errors", tmp_path)
    assert set(errors.loc[errors["run"].eq("broken"), "n_related"]) == {0, 1}, "failed scores are not compared"
    lines = {line[0]: line[1:] for line in targets_board(values)[1]}
    assert lines["[bold]broken[/bold]"] == [*lines["[bold]sound[/bold]"][:2], "failed", "failed"]


def test_examples_are_predicted_with_zero_one_and_all_related_datasets():
    prompts = PromptSet(resolve_task("gp-mixture", "smoke", SMALL | {"max_related": 3})[0], "smoke")
    rows = examples.prediction_rows(contestant(Counter(), "counter"), prompts).query("role == 'predicted'")
    assert (rows["value"] == rows["n_related"]).all()
    assert sorted(rows["n_related"].unique()) == [0, 1, 3], (
        "predictions are made with none, one and all of the related datasets"
    )
    rows_without = examples.prediction_rows(contestant(Prior(), "prior"), prompts)
    assert rows_without["n_related"].unique().tolist() == [0], "the predictor does not use related datasets"


@pytest.mark.parametrize("kind", [Point, Gaussian, Mixture])
def test_the_band_of_an_example_is_the_predicted_90_percent_interval(prompts, kind):
    """The 5 % quantile of an equal mixture of N(0, 1) and N(4, 1) is about the 10 % quantile of N(0, 1)."""

    class Answer(Predictor):
        heads = ("mixture",)

        def predict_targets(self, context, x_target, related=None):
            zero = torch.zeros_like(x_target)
            means = torch.stack([zero, zero + 4], -2)
            mixture = (0 * means[..., 0], means, 0 * means + 1)
            return kind(*{Point: (zero,), Gaussian: (zero, zero + 1), Mixture: mixture}[kind])

    rows = examples.prediction_rows(contestant(Answer(), "answer"), prompts)
    band = [None if pd.isna(rows[name].iloc[0]) else float(rows[name].iloc[0]) for name in ("value", "low", "high")]
    expected = {
        Point: [0, None, None],
        Gaussian: [0, *norm.interval(0.9)],
        Mixture: [2, norm.ppf(0.1), 4 + norm.ppf(0.9)],
    }
    assert band == pytest.approx(expected[kind], abs=1e-3)


@pytest.mark.parametrize("inputs", [1, 2, 3])
def test_examples_contain_the_first_two_coordinates_of_all_valid_points(inputs: int):
    x, y = torch.arange(12.0).reshape(2, 2, 3)[..., :inputs], torch.tensor([[[1.0, 2.0], [3, 4]], [[5, 6], [7, 8]]])
    columns = dict.fromkeys(("run", "task", "contestant", "kind", "preset", "shift", "prompt_set", "version"), "a")
    rows = examples._rows(columns | {"role": "context"}, x, y, torch.tensor([[True, True], [False, True]]))
    assert rows[["episode", "point", "output"]].to_numpy(int).tolist() == [
        [0, 0, 0],
        [0, 0, 1],
        [0, 1, 0],
        [0, 1, 1],
        [1, 1, 0],
        [1, 1, 1],
    ]
    assert rows["value"].tolist() == [1, 2, 3, 4, 7, 8]
    assert rows["x1"].tolist() == [0, 0, 3, 3, 9, 9]
    assert rows["x2"].tolist() == [1, 1, 4, 4, 10, 10] if inputs > 1 else rows["x2"].isna().all()


@pytest.mark.parametrize("answer", [float("nan"), float("inf")])
def test_a_nonfinite_prediction_fails_the_cell(prompts, tmp_path: Path, answer):
    class Broken(Prior):
        def predict_targets(self, context, x_target, related=None):
            mean = torch.zeros_like(x_target)
            mean[-3:] = answer
            return Gaussian(mean, torch.ones_like(mean))

    assert evaluate_cell(tmp_path, contestant(Prior(), "broken"), prompts) is None
    reason = evaluate_cell(tmp_path, contestant(Broken(), "broken"), prompts)
    for table in ("errors", "examples"):
        assert tables.read_all(table, tmp_path).empty, "the rows of the previous evaluation are removed"
    names = ("3 of 20 episodes", "episode 17", "0 related datasets")
    assert reason is not None and all(name in reason for name in names)


@pytest.mark.parametrize("table", ["examples", "errors"])
def test_a_cell_with_a_missing_file_is_not_done(prompts, model, tmp_path: Path, table: str):
    one = contestant(model, "model")
    evaluate_cell(tmp_path, one, prompts)
    assert cells.is_done(tmp_path, one, prompts)
    cells.cell_path(tmp_path, one, prompts, table).unlink()
    assert not cells.is_done(tmp_path, one, prompts)


def test_a_failed_cell_has_one_failed_row_with_its_question(prompts, tmp_path: Path):
    class Broken(Prior):
        def predict_targets(self, context, x_target, related=None):
            raise RuntimeError("out of luck")

    reason = evaluate_cell(tmp_path, contestant(Broken(), "broken"), prompts)
    assert reason is not None and "Broken.predict_targets" in reason and "RuntimeError: out of luck" in reason
    row = tables.read("values", cells.cell_path(tmp_path, contestant(Broken(), "broken"), prompts)).iloc[0]
    assert (row["evaluator"], row["status"], pd.isna(row["value"])) == ("targets", "failed", True)
    assert row["metric"] == "squared_error"


@pytest.mark.parametrize(("task", "metric"), [("bursty", "accuracy"), ("linear", "squared_error")])
def test_a_failed_cell_has_the_headline_metric_of_its_task(task: str, metric: str, tmp_path: Path):
    prompts = PromptSet(resolve_task(task, "smoke")[0], "smoke")
    assert prompts.headline == metric

    def work():
        raise RuntimeError("out of luck")

    one = contestant(Prior(), "broken")
    shared = cells.shared_columns(one, prompts, "next")
    assert cells.compute_cell(tmp_path, one, prompts, shared, work) == "RuntimeError: out of luck"
    assert tables.read_all("values", tmp_path)["metric"].tolist() == [metric]


def test_a_predictor_that_does_not_support_removing_points_refuses_it(prompts):
    with refused("not-applicable", "Prior"):
        Prior().remove(None, prompts.episodes.context)


def test_scores_are_averaged_over_scored_targets_only():
    scores = torch.tensor([[1.0, 7.0, 3.0], [float("nan"), 5.0, 2.0]])
    scored = torch.tensor([[True, False, True], [False, True, False]])
    assert scoring._mean(scores, scored).tolist() == [2.0, 5.0]
