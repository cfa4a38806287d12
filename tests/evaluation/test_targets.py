"""The question `targets` against a naive loop, its averages over parts, gaps and examples."""

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
from iclbench.core.errors import UsageError
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
    """Standard normal, whatever was seen; an oracle that knows nothing."""

    heads = ("gaussian",)

    def predict_targets(self, context, x_target, related=None):
        return Gaussian(torch.zeros_like(x_target), torch.ones_like(x_target))


class Prophet(Oracle):
    """Knows the variance of the labels of every episode, which the truth tells here."""

    def informed(self, truth):
        return Prior()

    def predict_targets(self, context, x_target, related=None):
        raise NotImplementedError


def contestant(predictor: Predictor, name: str, kind: str = "backbone", **options: object) -> PredictorContestant:
    return PredictorContestant(
        name, name, kind, identity=name, seed=0 if kind == "backbone" else None, **options, predictor=predictor
    )


def test_every_related_dataset_is_there_in_a_prompt_set(prompts):
    assert prompts.episodes.related.mask.any(-1).all()


def test_scores_are_those_of_every_episode_asked_alone(prompts, model):
    found = scoring.target_scores(model, prompts)
    assert found.n_related == (0, 1, 2)
    for b in (0, 7, 19):
        one = prompts.episodes[b : b + 1]
        for n in found.n_related:
            with torch.no_grad():
                answer = model.predict_targets(one.context, one.targets.x, first_related(one.related, n))
            there = one.targets.mask[0].numpy()
            naive = {metric: score[0].numpy()[there].mean() for metric, score in answer.scores(one.targets.y).items()}
            for metric, expected in naive.items():
                scale = prompts.family.normaliser if metric == "squared_error" else 1.0
                assert found.scores[metric][b, n] == pytest.approx(expected / scale, abs=1e-5)


class Teller(Oracle):
    """Answers the length scale of the episode, which the truth tells."""

    heads = ("gaussian",)

    def __init__(self, known=None):
        self.known = known

    def informed(self, truth):
        return Teller(truth["lengthscale"])

    def predict_targets(self, context, x_target, related=None):
        mean = self.known.reshape(-1, 1, 1).expand(*x_target.shape[:2], 1)
        return Gaussian(mean, torch.ones_like(mean))


def test_an_oracle_is_told_the_truth_of_every_episode(prompts):
    asked, known = prompts.episodes.asked, prompts.episodes.truth["lengthscale"]
    expected = [((y[mask] - own) ** 2).mean() for y, mask, own in zip(asked.y, asked.mask, known, strict=True)]
    found = scoring.target_scores(Teller(), prompts).scores["squared_error"][:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    drawn = examples.predicted(contestant(Teller(), "teller", "oracle"), prompts).query("role == 'predicted'")
    np.testing.assert_allclose(
        drawn["value"].astype(float).groupby(drawn["episode"]).agg(["min", "max"]).T, [known[:4].numpy()] * 2
    )


def test_an_answer_is_scored_within_choices_only_where_there_are_some():
    labels, y = Categorical(torch.tensor([[[0.0, 1.0, 2.0]]])), torch.tensor([[1]])
    assert "accuracy_within_choices" not in labels.scores_within(y, None)
    found = labels.scores_within(y, torch.tensor([[True, True, False]]))
    assert (float(found["accuracy"]), float(found["accuracy_within_choices"])) == (0, 1)
    number = Gaussian(torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
    assert set(number.scores_within(torch.zeros(1, 1, 1), torch.ones(1, 3, dtype=torch.bool))) == {*Gaussian.metrics}


class Scaled(GPMixture):
    """A family whose normaliser is not 1, as that of every shipped task of targets at these sizes is."""

    normaliser = 4.0


def test_squared_errors_alone_are_divided_by_the_normaliser(prompts, tmp_path: Path):
    scaled = PromptSet(prompts.task, "smoke", given=Scaled(GPParameters(**prompts.task.parameters)))
    asked = scaled.episodes.asked
    outputs = [y[mask].numpy() for y, mask in zip(asked.y, asked.mask, strict=True)]
    plain = [np.mean(y**2) for y in outputs]
    likelihood = [norm.logpdf(y).mean() for y in outputs]
    found = scoring.target_scores(Prior(), scaled)
    assert found.normaliser == 4
    np.testing.assert_allclose(found.scores["squared_error"][:, 0], np.array(plain) / 4, rtol=1e-5)
    np.testing.assert_allclose(found.scores["log_likelihood"][:, 0], likelihood, rtol=1e-5)
    evaluate_cell(tmp_path, contestant(Prior(), "prior"), scaled)
    values = tables.read_all("values", tmp_path)
    normalisers = values.groupby("metric")["normaliser"].agg(set).to_dict()
    assert normalisers.pop("squared_error") == {4.0} and all(each == {1.0} for each in normalisers.values())
    (row,) = values[values["metric"].eq("squared_error") & values["axis"].isna()].to_dict("records")
    low, high = (float(end[0]) for end in bootstrap_interval(np.array(plain)[:, None] / 4, scaled.seed))
    assert [row["value"], row["low"], row["high"]] == pytest.approx([np.mean(plain) / 4, low, high], rel=1e-5)
    assert set(values["evaluator"]) == {"targets"} and set(values["status"]) == {"ok"}


def test_what_follows_from_all_contestants_of_targets_is_written(prompts, model, tmp_path: Path):
    """Gaps, scores and the points themselves; nothing of the kind that tests of a family have."""
    asked = PromptSet(prompts.task.model_copy(update={"oracles": ["prophet"]}), "smoke")
    zero = contestant(ESTIMATORS.get("zero")(), "zero", "baseline")
    for one in (contestant(Prophet(), "prophet", "oracle"), contestant(model, "model"), zero):
        evaluate_cell(tmp_path, one, asked)
    summarise(tmp_path, asked)
    folder = tmp_path / "tables" / asked.id
    assert sorted(path.name for path in (folder / "summary").iterdir()) == [
        "gaps.values.parquet",
        "scores.values.parquet",
    ]
    assert (folder / "prompts.examples.parquet").exists()


def test_of_the_question_next_only_scores_are_written(card_path: Path, tmp_path: Path):
    asked = PromptSet(resolve_task(str(card_path), "smoke")[0], "smoke")
    for name in ("zero", "least-squares"):
        kind = "baseline" if name == "zero" else "oracle"
        evaluate_cell(tmp_path, contestant(ESTIMATORS.get(name)(), name, kind), asked)
    summarise(tmp_path, asked)
    folder = tmp_path / "tables" / asked.id
    assert [path.name for path in (folder / "summary").iterdir()] == ["scores.values.parquet"]
    assert not (folder / "prompts.examples.parquet").exists()


def test_the_portions_in_which_episodes_are_computed_change_nothing(prompts, model, monkeypatch):
    whole = scoring.target_scores(model, prompts)
    monkeypatch.setattr(scoring, "_POINTS", 100)
    for metric, scores in scoring.target_scores(model, prompts).scores.items():
        np.testing.assert_allclose(scores, whole.scores[metric], atol=1e-5)


class Crowd(Prior):
    """Its mean is the number of targets that it is asked for together."""

    joint = "exchangeable"

    def predict_targets(self, context, x_target, related=None):
        self.asked = [*getattr(self, "asked", []), x_target]
        return Gaussian(torch.full_like(x_target[..., :1], x_target.shape[1]), torch.ones_like(x_target[..., :1]))


def test_who_answers_for_several_targets_together_is_asked_for_those_alone_that_are_there():
    cmab = {"images": "glyphs", "sampling": "cmab", "budget": 20, "max_related": 0, "episodes": 9, "points": 16}
    asked = PromptSet(resolve_task("image-completion", "smoke", cmab)[0], "smoke")
    targets, crowd = asked.episodes.asked, Crowd()
    assert len(targets.counts.unique()) > 2 and (targets.counts < targets.count).any()
    found = scoring.target_scores(crowd, asked).scores["log_likelihood"][:, 0]
    for b, n in enumerate(targets.counts.tolist()):
        expected = norm.logpdf(targets.y[b, targets.mask[b], 0].numpy(), loc=n).mean()
        assert found[b] == pytest.approx(expected, rel=1e-6)
    assert sum(x.shape[0] * x.shape[1] for x in crowd.asked) == targets.mask.sum()


def test_who_does_not_use_related_datasets_is_asked_once(prompts):
    assert scoring.target_scores(Prior(), prompts).n_related == (0,)


def test_the_means_of_the_parts_make_up_the_whole(prompts, model, tmp_path: Path):
    assert evaluate_cell(tmp_path, contestant(model, "model"), prompts) is None
    values = tables.read_all("values", tmp_path)
    rows = values[values["metric"].eq("log_likelihood") & values["n_related"].eq(1)]
    whole = rows[rows["axis"].isna()].iloc[0]
    for parts in (rows[rows["axis"].eq("n_context")], rows[rows["stratum"].notna()]):
        assert parts["n_episodes"].sum() == whole["n_episodes"] == 20
        assert np.average(parts["value"], weights=parts["n_episodes"]) == pytest.approx(whole["value"])
    assert set(rows["axis_value"].dropna()) <= {4.0, 16.0}
    counts = prompts.episodes.context.counts
    assert rows.set_index("axis_value")["n_episodes"][4.0] == int((counts <= 4).sum())


@pytest.mark.parametrize(("n", "end"), [(0, 0), (1, 4), (4, 4), (5, 16), (16, 16), (17, 64), (64, 64), (65, 256)])
def test_bins_of_context_sizes(n: int, end: int):
    assert targets.bin_end(n) == end


def test_only_the_first_episodes_are_asked_where_a_contestant_says_so(prompts, model, tmp_path: Path):
    few = contestant(model, "few", episodes=6)
    evaluate_cell(tmp_path, few, prompts)
    values, errors = tables.read_all("values", tmp_path), tables.read_all("errors", tmp_path)
    assert set(values[values["axis"].isna()]["n_episodes"]) == {6}
    assert set(errors["episode"]) == set(range(6))
    np.testing.assert_array_equal(
        errors.drop_duplicates("episode")["n_context"], prompts.episodes.context.counts[:6].numpy()
    )


class Short(Prior):
    """Takes in no context of more than four points."""

    longest = 5

    def predict_targets(self, context, x_target, related=None):
        assert int(context.counts.max()) <= 4
        return super().predict_targets(context, x_target, related)


def test_parts_with_longer_contexts_than_a_contestant_takes_are_skipped_rows(prompts, tmp_path: Path):
    """The bin up to four points is that of whoever takes all; nothing else has a number, and the cell is done."""
    for predictor in (Short(), Prior()):
        assert evaluate_cell(tmp_path, contestant(predictor, type(predictor).__name__), prompts) is None
    values = tables.read_all("values", tmp_path)
    values = values[values["metric"].eq("log_likelihood")].set_index(["run", "axis_value"])
    within = ["value", "low", "high", "n_episodes", "status"]
    assert values.loc[("Short", 4.0), within].tolist() == values.loc[("Prior", 4.0), within].tolist()
    missing = values[values["status"].eq("skipped")]
    assert len(values.loc["Short"]) == len(values.loc["Prior"]) == len(missing) + 1
    assert set(missing["reason"]) == {"it takes in at most 4 examples and a query"} and missing["value"].isna().all()
    assert set(tables.read_all("errors", tmp_path)["run"]) == {"Prior"}, "no pairs among the short ones alone"
    assert cells.is_done(tmp_path, contestant(Short(), "Short"), prompts)
    exact = PromptSet(prompts.task, "smoke", shift="points-12")
    evaluate_cell(tmp_path, contestant(Short(), "Short"), exact)
    rows = tables.read_all("values", tmp_path / "tables" / exact.id)
    assert rows[["metric", "status"]].to_numpy().tolist() == [["squared_error", "skipped"]]


def test_gaps_are_paired_by_episode(prompts, model, tmp_path: Path):
    task = prompts.task.model_copy(update={"oracles": ["prophet"]})
    same = PromptSet(task, "smoke")
    assert same.id == prompts.id
    evaluate_cell(tmp_path, contestant(Prophet(), "prophet", "oracle", episodes=15), same)
    evaluate_cell(tmp_path, contestant(model, "model"), same)
    gaps.write_gaps(PromptSetRows(tmp_path, same))
    values = tables.read_all("values", tmp_path).query("metric == 'gap'")
    assert set(values["run"]) == {"model"}
    errors = tables.read_all("errors", tmp_path).query("metric == 'log_likelihood'")
    table = errors.pivot_table(index="episode", columns=["run", "n_related"], values="value")
    for n in (0, 1, 2):
        own = values[values["axis"].isna() & values["n_related"].eq(n)].iloc[0]
        differences = (table[("prophet", 0)] - table[("model", n)]).dropna()
        assert own["n_episodes"] == len(differences) == 15
        assert own["value"] == pytest.approx(differences.mean())
        assert own["low"] < own["value"] < own["high"]
        assert own["kind"] == "backbone"


class Functions(Predictor):
    """Knows that every output is the same number, up to a little noise: standard normal, whatever was seen."""

    heads = ("gaussian",)

    def predict_targets(self, context, x_target, related=None):
        return JointGaussian(
            torch.zeros_like(x_target), torch.ones_like(x_target).unsqueeze(-1), torch.full_like(x_target, 0.1)
        )


def test_joint_scores_and_their_gaps_are_of_all_targets_of_an_episode(prompts, tmp_path: Path):
    task = prompts.task.model_copy(update={"oracles": ["functions"]})
    same = PromptSet(task, "smoke")
    evaluate_cell(tmp_path, contestant(Functions(), "functions", "oracle"), same)
    evaluate_cell(tmp_path, contestant(Prior(), "prior"), same)
    gaps.write_gaps(PromptSetRows(tmp_path, same))
    errors = tables.read_all("errors", tmp_path).pivot_table(index="episode", columns=["run", "metric"], values="value")
    y = same.episodes.targets.y[..., 0].double()
    covariance = torch.ones(y.shape[1], y.shape[1], dtype=torch.float64) + 0.01 * torch.eye(y.shape[1])
    exact = MultivariateNormal(torch.zeros(y.shape[1], dtype=torch.float64), covariance).log_prob(y) / y.shape[1]
    joint = errors[("functions", "log_likelihood_joint")].to_numpy(float)
    assert joint == pytest.approx(exact.numpy(), rel=1e-5)
    own = errors["prior"]
    assert own["log_likelihood_joint"].to_numpy(float) == pytest.approx(own["log_likelihood"].to_numpy(float), rel=1e-6)
    values = tables.read_all("values", tmp_path)
    found = values[values["metric"].eq("gap_joint") & values["axis"].isna()]
    assert found["run"].tolist() == ["prior"]
    assert found["value"].item() == pytest.approx((joint - own["log_likelihood_joint"]).mean())
    columns, lines = targets_board(values)
    assert columns == ["contestant", "log-likelihood", "gap to the oracle", "joint LL", "squared error"]
    (line,) = (line for line in lines if "prior" in line[0])
    assert line[3] == f"{own['log_likelihood_joint'].mean():.3f}"


def test_samples_of_the_first_episode_are_kept_and_hang_together_where_the_answer_does(prompts, tmp_path: Path):
    rows = {
        one: examples.predicted(contestant(predictor, one), prompts).query("role == 'drawn'")
        for one, predictor in (("functions", Functions()), ("prior", Prior()), ("counter", Counter()))
    }
    inputs = len(range(0, len(prompts.family.display_inputs()), examples.SPACING))
    for own in rows.values():
        assert set(own["episode"]) == {0} and set(own["n_related"]) == {0}
        assert own.groupby("set").size().tolist() == [inputs] * examples.DRAWS
    spread = {one: own.groupby("set")["value"].std().max() for one, own in rows.items()}
    assert spread["functions"] < 0.15 and spread["prior"] > 0.7
    assert rows["functions"].groupby("set")["value"].mean().std() > 0.3


@pytest.mark.slow
def test_all_gaps_are_over_the_episodes_that_every_oracle_was_asked(prompts, model, tmp_path: Path):
    """Otherwise the gap of the oracle that was asked fewer stands beside gaps on other episodes."""
    task = PromptSet(prompts.task.model_copy(update={"oracles": ["prophet", "second"]}), "smoke")
    evaluate_cell(tmp_path, contestant(Prophet(), "prophet", "oracle"), task)
    evaluate_cell(tmp_path, contestant(Prior(), "second", "oracle", episodes=7), task)
    evaluate_cell(tmp_path, contestant(model, "model"), task)
    gaps.write_gaps(PromptSetRows(tmp_path, task))
    values = tables.read_all("values", tmp_path).query("metric == 'gap' and n_related == 0")
    whole = values[values["axis"].isna()].set_index("run")
    assert whole["n_episodes"].to_dict() == {"model": 7, "second": 7}
    errors = tables.read_all("errors", tmp_path).query("metric == 'log_likelihood' and n_related == 0")
    table = errors.pivot_table(index="episode", columns="run", values="value")
    for run in ("model", "second"):
        assert whole["value"][run] == pytest.approx((table["prophet"] - table[run])[:7].mean())
    assert set(tables.read_all("values", tmp_path)["metric"]) >= {"gap"}
    assert not tables.read_all("values", tmp_path)["metric"].eq(gaps.ADJUSTED).any(), "no ceiling is known of this size"


def test_scores_are_adjusted_to_the_ceiling_of_the_task(prompts, model, tmp_path: Path, monkeypatch):
    def known(family: GPMixture, oracle: str, points: int, shift: str) -> Ceiling:
        assert (oracle, points, shift) == ("prophet", prompts.task.points, "none")
        return Ceiling(-0.25, 0.01)

    monkeypatch.setattr(GPMixture, "ceiling", known)
    task = PromptSet(prompts.task.model_copy(update={"oracles": ["prophet"]}), "smoke")
    evaluate_cell(tmp_path, contestant(Prophet(), "prophet", "oracle", episodes=12), task)
    evaluate_cell(tmp_path, contestant(model, "model"), task)
    gaps.write_gaps(PromptSetRows(tmp_path, task))
    rows = tables.read_all("values", tmp_path).query("metric == @gaps.ADJUSTED")
    errors = tables.read_all("errors", tmp_path).query("metric == 'log_likelihood' and episode < 12")
    means = errors.groupby(["run", "n_related"])["value"].mean()
    own = rows[rows["run"].eq("model")].set_index("n_related")
    assert list(own.index) == [0, 1, 2] and own["axis"].isna().all()
    for n in own.index:
        assert own["value"][n] == pytest.approx(means["model", n] - means["prophet", 0] - 0.25)
        assert own["low"][n] < own["value"][n] < own["high"][n]
    oracle = rows[rows["run"].eq("prophet")].iloc[0]
    assert (oracle["value"], oracle["low"], oracle["high"]) == pytest.approx((-0.25, -0.2696, -0.2304))


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 2])
def test_an_oracle_that_uses_related_datasets_stands_beside_who_has_as_many(model, tmp_path: Path, most: int):
    asked = resolve_task("gp-mixture", "smoke", SMALL | {"max_related": most})[0]
    task = PromptSet(asked.model_copy(update={"oracles": ["informed"]}), "smoke")
    evaluate_cell(tmp_path, contestant(model, "informed", "oracle"), task)
    evaluate_cell(tmp_path, contestant(model, "model"), task)
    evaluate_cell(tmp_path, contestant(Prior(), "prior"), task)
    gaps.write_gaps(PromptSetRows(tmp_path, task))
    values = tables.read_all("values", tmp_path).query("metric == 'gap'")
    assert set(values["n_related"]) == set(range(most + 1)) and set(values["run"]) == {"model", "prior"}
    assert (values.loc[values["run"].eq("model"), "value"] == 0).all() and set(values["normaliser"]) == {1.0}
    errors = tables.read_all("errors", tmp_path).query("metric == 'log_likelihood' and n_related == 0")
    means = errors.groupby("run")["value"].mean()
    own = values[values["run"].eq("prior") & values["axis"].isna()]
    assert own["value"].item() == pytest.approx(means["informed"] - means["prior"])
    path = tmp_path / "tables" / task.id / "summary" / "gaps.values.parquet"
    assert tables.metadata(path)["oracle"] == "informed"
    for run in ("model", "prior"):
        cells.cell_path(tmp_path, contestant(model, run), task, "errors").unlink()
    gaps.write_gaps(PromptSetRows(tmp_path, task))
    assert not path.exists(), "nobody is left who has a gap"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tnp", "aaa"])  # behind "summary" and before it
def test_gaps_and_scores_say_of_a_contestant_what_its_other_rows_say(prompts, model, tmp_path: Path, name: str):
    for each in (contestant(model, name, trained_on="elsewhere"), *baselines(prompts, ["oracle-kernel", "zero"])):
        evaluate_cell(tmp_path, each, prompts)
    summarise(tmp_path, prompts)
    values = tables.read_all("values", tmp_path).query("run == @name")
    assert {"gap", "score", "log_likelihood"} <= set(values["metric"])
    assert values[["trained_on", "context_order"]].drop_duplicates().to_numpy().tolist() == [["elsewhere", "set"]]


def test_a_task_without_an_oracle_has_no_gaps(prompts, model, tmp_path: Path):
    task = prompts.task.model_copy(update={"oracles": []})
    evaluate_cell(tmp_path, contestant(model, "model"), PromptSet(task, "smoke"))
    gaps.write_gaps(PromptSetRows(tmp_path, PromptSet(task, "smoke")))
    assert not list(tmp_path.rglob("gaps*"))


def test_examples_hold_the_points_and_what_was_predicted(prompts, model, tmp_path: Path):
    evaluate_cell(tmp_path, contestant(model, "model"), prompts)
    examples.write_prompts(tmp_path, prompts)
    path = tmp_path / "tables" / prompts.id / "prompts.examples.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    examples.write_prompts(tmp_path, prompts)
    assert path.read_bytes() == whole, "damaged, and made again"
    rows = tables.read_all("examples", tmp_path)
    points = rows[rows["run"].eq("prompts") & rows["episode"].eq(2)]
    context = prompts.episodes.context
    mine = points[points["role"].eq("context")]
    assert mine["value"].to_numpy(float) == pytest.approx(context.y[2][context.mask[2]].squeeze(-1).numpy())
    assert set(points["role"]) >= {"context", "target", "related"}
    assert set(points["set"].dropna()) == {0, 1}
    predicted = rows[rows["run"].eq("model") & rows["role"].eq("predicted")]
    drawn = predicted[predicted["episode"].eq(2) & predicted["n_related"].eq(2)].sort_values("point")
    inputs = prompts.family.display_inputs()
    one = prompts.episodes[2:3]
    with torch.no_grad():
        answer = model.predict_targets(one.context, inputs.unsqueeze(0), one.related)
    assert drawn["value"].to_numpy(float) == pytest.approx(answer.mean[0, :, 0].numpy(), abs=1e-5)
    assert (drawn["high"] - drawn["low"]).to_numpy(float) == pytest.approx(
        2 * 1.6448536 * answer.std[0, :, 0].numpy(), rel=1e-4
    )


class Counter(Predictor):
    """Answers the number of related datasets that it is given."""

    heads = ("gaussian",)
    uses_related = True

    def predict_targets(self, context, x_target, related=None):
        count = 0 if related is None else related.mask.shape[1]
        return Gaussian(torch.full_like(x_target, count), torch.ones_like(x_target))


class Broken(Counter):
    """Has no number for the last target of an episode with more than eight context points and two related datasets."""

    def predict_targets(self, context, x_target, related=None):
        answer = super().predict_targets(context, x_target, related)
        std = answer.std.clone()
        if related is not None and related.mask.shape[1] == 2:
            std[context.counts > 8, -1] = torch.nan
        return Gaussian(answer.mean, std)


def test_what_is_not_finite_fails_the_means_over_it_and_the_others_stay(tmp_path: Path):
    asked = PromptSet(resolve_task("gp-mixture", "smoke", SMALL)[0], "smoke")
    assert evaluate_cell(tmp_path, contestant(Counter(), "sound"), asked) is None
    broken = contestant(Broken(), "broken")
    reason = evaluate_cell(tmp_path, broken, asked)
    assert reason is not None and reason.startswith("log_likelihood is nan in ") and "2 related datasets" in reason
    assert not cells.is_done(tmp_path, broken, asked)
    values = tables.read_all("values", tmp_path)
    keys = ["metric", "n_related", "axis", "axis_value"]
    found, sound = (values[values["run"].eq(name)].set_index(keys).sort_index() for name in ("broken", "sound"))
    assert found.index.equals(sound.index), "no row is lost"
    status = found.reset_index()
    hit = status["n_related"].eq(2) & ~(status["axis"].eq("n_context") & status["axis_value"].le(4)).fillna(False)
    assert set(status.loc[status["status"].eq("failed"), "n_related"]) == {2}
    assert status.loc[hit & status["axis"].isna(), "status"].eq("failed").all()
    assert status.loc[~hit, "status"].eq("ok").all() and set(status.loc[hit, "reason"].dropna()) == {reason}
    good = found["status"].eq("ok")
    pd.testing.assert_frame_equal(found[good][["value", "low", "high"]], sound[good][["value", "low", "high"]])
    errors = tables.read_all("errors", tmp_path)
    assert set(errors.loc[errors["run"].eq("broken"), "n_related"]) == {0, 1}, "nothing of it is paired"
    lines = {line[0]: line[1:] for line in targets_board(values)[1]}
    assert lines["[bold]broken[/bold]"] == [*lines["[bold]sound[/bold]"][:2], "failed", "failed"]


def test_drawn_examples_say_how_many_related_datasets_were_seen():
    many = PromptSet(resolve_task("gp-mixture", "smoke", SMALL | {"max_related": 3})[0], "smoke")
    rows = examples.predicted(contestant(Counter(), "counter"), many).query("role == 'predicted'")
    assert (rows["value"] == rows["n_related"]).all()
    assert sorted(rows["n_related"].unique()) == [0, 1, 3], "none, one and all"
    alone = examples.predicted(contestant(Prior(), "prior"), many)
    assert alone["n_related"].unique().tolist() == [0], "who does not use them is drawn without"


@pytest.mark.parametrize("kind", [Point, Gaussian, Mixture])
def test_the_band_drawn_around_an_answer_is_its_interval(prompts, kind):
    """Of 0 ± 1 and 4 ± 1 in equal parts the 5 % quantile is the 10 % quantile of 0 ± 1, but for 1e-8 of the other."""

    class Answer(Predictor):
        heads = ("mixture",)

        def predict_targets(self, context, x_target, related=None):
            zero = torch.zeros_like(x_target)
            means = torch.stack([zero, zero + 4], -2)
            mixture = (0 * means[..., 0], means, 0 * means + 1)
            return kind(*{Point: (zero,), Gaussian: (zero, zero + 1), Mixture: mixture}[kind])

    rows = examples.predicted(contestant(Answer(), "answer"), prompts)
    drawn = [None if pd.isna(rows[name].iloc[0]) else float(rows[name].iloc[0]) for name in ("value", "low", "high")]
    expected = {
        Point: [0, None, None],
        Gaussian: [0, *norm.interval(0.9)],
        Mixture: [2, norm.ppf(0.1), 4 + norm.ppf(0.9)],
    }
    assert drawn == pytest.approx(expected[kind], abs=1e-3)


@pytest.mark.parametrize("inputs", [1, 2, 3])
def test_the_first_two_coordinates_of_every_valid_point_are_kept(inputs: int):
    x, y = torch.arange(12.0).reshape(2, 2, 3)[..., :inputs], torch.tensor([[[1.0, 2.0], [3, 4]], [[5, 6], [7, 8]]])
    about = dict.fromkeys(("run", "task", "contestant", "kind", "preset", "shift", "prompt_set", "version"), "a")
    rows = examples._rows(about | {"role": "context"}, x, y, torch.tensor([[True, True], [False, True]]))
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
def test_an_answer_that_is_no_number_fails_the_cell_whatever_the_episode(prompts, tmp_path: Path, answer):
    class Broken(Prior):
        def predict_targets(self, context, x_target, related=None):
            mean = torch.zeros_like(x_target)
            mean[-3:] = answer
            return Gaussian(mean, torch.ones_like(mean))

    assert evaluate_cell(tmp_path, contestant(Prior(), "broken"), prompts) is None
    reason = evaluate_cell(tmp_path, contestant(Broken(), "broken"), prompts)
    for table in ("errors", "examples"):
        assert tables.read_all(table, tmp_path).empty, "nothing of the sound answers that were there before is left"
    assert reason is not None and "3 of 20 episodes, first in episode 17 with 0 related datasets" in reason


@pytest.mark.parametrize("table", ["examples", "errors"])
def test_a_cell_of_which_a_file_is_gone_is_done_again(prompts, model, tmp_path: Path, table: str):
    one = contestant(model, "model")
    evaluate_cell(tmp_path, one, prompts)
    assert cells.is_done(tmp_path, one, prompts)
    cells.cell_path(tmp_path, one, prompts, table).unlink()
    assert not cells.is_done(tmp_path, one, prompts)


def test_a_failed_cell_is_a_row_of_the_question(prompts, tmp_path: Path):
    class Broken(Prior):
        def predict_targets(self, context, x_target, related=None):
            raise RuntimeError("out of luck")

    reason = evaluate_cell(tmp_path, contestant(Broken(), "broken"), prompts)
    assert reason is not None and reason.endswith("Broken.predict_targets raised RuntimeError: out of luck")
    row = tables.read("values", cells.cell_path(tmp_path, contestant(Broken(), "broken"), prompts)).iloc[0]
    assert (row["evaluator"], row["status"], pd.isna(row["value"])) == ("targets", "failed", True)
    assert row["metric"] == "squared_error"


@pytest.mark.parametrize(("task", "metric"), [("bursty", "accuracy"), ("linear", "squared_error")])
def test_the_metric_of_a_cell_without_any_number_is_that_of_its_task(task: str, metric: str, tmp_path: Path):
    """By which the report knows what is missing."""
    asked = PromptSet(resolve_task(task, "smoke")[0], "smoke")
    assert asked.headline == metric

    def work():
        raise RuntimeError("out of luck")

    one = contestant(Prior(), "broken")
    assert cells.compute_cell(tmp_path, one, asked, cells.row(one, asked, "next"), work) == "RuntimeError: out of luck"
    assert tables.read_all("values", tmp_path)["metric"].tolist() == [metric]


def test_a_predictor_that_cannot_forget_says_so(prompts):
    with pytest.raises(UsageError, match="Prior cannot forget points"):
        Prior().remove(None, prompts.episodes.context)


def test_targets_that_do_not_count_are_no_part_of_the_mean():
    scores = torch.tensor([[1.0, 7.0, 3.0], [float("nan"), 5.0, 2.0]])
    scored = torch.tensor([[True, False, True], [False, True, False]])
    assert scoring._mean(scores, scored).tolist() == [2.0, 5.0]
