"""Oracles that are significantly worse than a contestant are reported, with the winners and the difference."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from iclbench import __version__, tables
from iclbench.analysis.episode_scores import EpisodeScores
from iclbench.analysis.oracles import BeatenOracle, beaten_oracles, lower_end
from iclbench.cli.summary import oracle_notes, score_notes
from iclbench.core.metrics import metric
from iclbench.report.blocks import Text
from iclbench.report.data import load_results
from iclbench.report.sections import leaderboard, targets
from tests.analysis.hand_made import SHARED

EPISODES, SIZES = 40, (0, 1, 2)
PROMPTS = "t-smoke-none-0"
# The kind of every contestant and its scores by episode.
Contestants = dict[str, tuple[str, np.ndarray]]


def write_results(
    folder: Path,
    contestants: Contestants,
    question: str = "next",
    metric: str = "squared_error",
    factors_of_models: Sequence[float] = (1.0,),
) -> Path:
    """Write a results folder with these scores of single episodes, `(episodes,)`, at every context size. For
    the question `targets`, write scores for every number of related datasets instead, with one factor for each number:
    the scores of models are multiplied by the factor, and the scores of oracles are divided by it."""
    values, errors = [], []
    for run, (kind, scores) in contestants.items():
        shared = SHARED | {"run": run, "contestant": run, "kind": kind, "evaluator": question, "prompt_set": PROMPTS}
        shared |= {"version": __version__, "n_episodes": EPISODES}
        by_related = [{"n_related": n} for n in range(len(factors_of_models))]
        keys = [{"n_context": n} for n in SIZES] if question == "next" else by_related
        values += [shared | key | {"metric": metric, "value": float(scores.mean())} for key in keys]
        exponent = {"backbone": 1, "oracle": -1}.get(kind, 0)
        factors = [factor**exponent for factor in factors_of_models] if question == "targets" else [1.0] * len(keys)
        if question == "next":
            values.append(shared | {"metric": "auc", "value": float(scores.mean())})
        errors += [
            {"run": run, "prompt_set": PROMPTS, "metric": metric, "n_context": 4, "episode": i}
            | key
            | {"value": v * factor}
            for key, factor in zip(keys, factors, strict=True)
            for i, v in enumerate(scores)
        ]
    tables.write("values", values, folder / "tables" / PROMPTS / "all.values.parquet", {})
    tables.write("errors", errors, folder / "tables" / PROMPTS / "all.errors.parquet", {})
    return folder


def beaten(folder: Path) -> list[BeatenOracle]:
    errors = EpisodeScores([tables.read_all("errors", folder)], {PROMPTS})
    return beaten_oracles(tables.read_all("values", folder), errors)


@pytest.fixture
def contestants() -> Contestants:
    """Errors of contestants. The oracle ridge is not optimal: 3-NN and a model are significantly better."""
    rng = np.random.default_rng(0)
    difficulty = rng.gamma(2.0, 1.0, EPISODES)
    return {
        "ridge": ("oracle", difficulty + 1.0),
        "knn-3": ("baseline", difficulty + 0.5 + 0.2 * rng.normal(size=EPISODES)),
        "model": ("backbone", difficulty + 0.8 + 0.2 * rng.normal(size=EPISODES)),
        "zero": ("baseline", 2 * difficulty + 2.0),
        "lucky": ("baseline", difficulty + 0.95 + 0.4 * rng.normal(size=EPISODES)),
    }


def test_contestants_that_beat_an_oracle_are_reported_with_the_paired_difference(
    contestants: Contestants, tmp_path: Path
) -> None:
    (defeat,) = beaten(write_results(tmp_path, contestants))
    assert (defeat.oracle, defeat.winners) == ("ridge", ("knn-3", "model"))
    gaps = contestants["ridge"][1] - contestants["knn-3"][1]
    # Four contestants share a family-wise error rate of 5 %.
    half = stats.t.ppf(1 - 0.05 / 4 / 2, EPISODES - 1) * gaps.std(ddof=1) / np.sqrt(EPISODES)
    assert defeat.value == pytest.approx(gaps.mean())
    assert defeat.low == pytest.approx(gaps.mean() - half)
    assert defeat.has_backbone
    assert all(name in defeat.line for name in ("ridge", "knn-3", f"{gaps.mean():.3f}", "model", "iclbench check"))
    (defeat,) = beaten(write_results(tmp_path / "pair", {name: contestants[name] for name in ("ridge", "knn-3")}))
    assert "iclbench check" not in defeat.line  # the advice applies only to models
    half = stats.t.ppf(1 - 0.05 / 2, EPISODES - 1) * gaps.std(ddof=1) / np.sqrt(EPISODES)
    assert defeat.low == pytest.approx(gaps.mean() - half)
    equal = {"a": contestants["ridge"], "b": ("baseline", contestants["ridge"][1])}
    assert not beaten(write_results(tmp_path / "equal", equal))


def test_the_message_names_the_oracle_and_all_winners() -> None:
    for winners in (("ab",), ("ab", "cd"), ("ab", "cd", "ef")):
        line = BeatenOracle("ridge", winners, 0.25, 0.125, "squared error").line
        assert all(text in line for text in ("ridge", "0.250", "0.125", "squared error", *winners))
        assert line.endswith(winners[-1] if len(winners) > 1 else "squared error")


def test_each_oracle_adds_comparisons_to_the_correction(contestants: Contestants, tmp_path: Path) -> None:
    (defeat,) = beaten(write_results(tmp_path, contestants | {"true": ("oracle", contestants["knn-3"][1] - 1.0)}))
    gaps = contestants["ridge"][1] - contestants["knn-3"][1]
    half = stats.t.ppf(1 - 0.05 / (4 * 2) / 2, EPISODES - 1) * gaps.std(ddof=1) / np.sqrt(EPISODES)
    assert defeat.oracle == "ridge" and defeat.low == pytest.approx(gaps.mean() - half)


def test_outliers_do_not_hide_that_an_oracle_is_worse(contestants: Contestants, tmp_path: Path) -> None:
    outliers = contestants["ridge"][1].copy()
    outliers[:2] += 400.0
    (defeat,) = beaten(write_results(tmp_path, contestants | {"ridge": ("oracle", outliers)}))
    assert defeat.winners[:1] == ("knn-3",) and defeat.value > 20 > 1 > defeat.low > 0


def test_the_lower_end_is_the_larger_of_the_lower_ends_for_the_mean_and_for_the_winsorised_mean() -> None:
    """The upper quartile of 0, 1, 2, 3 and 900 is 3."""
    for gaps, winsorised in (([0, 1, 2, 3, 900], [0, 1, 2, 3, 3]), ([10, 11, 10, 11], [10, 11, 10, 11])):
        for level in (0.95, 0.99):
            expected = stats.t.interval(level, len(gaps) - 1, np.mean(winsorised), stats.sem(winsorised))[0]
            assert lower_end(np.array(gaps, float), level) == pytest.approx(expected)
    negative = np.array([-9.0, -1.0, -1.0, -1.0, 0.0])
    assert lower_end(negative) == pytest.approx(stats.t.interval(0.95, 4, negative.mean(), stats.sem(negative))[0])


def test_a_contestant_that_is_better_in_most_episodes_but_worse_on_average_does_not_win(
    contestants: Contestants, tmp_path: Path
) -> None:
    gaps = np.where(np.arange(EPISODES) < 36, 0.1, -1.0)
    assert gaps.mean() < 0
    ridge = contestants["ridge"]
    assert not beaten(write_results(tmp_path, {"ridge": ridge, "model": ("backbone", ridge[1] - gaps)}))


def test_an_optimal_oracle_is_not_reported(contestants: Contestants, tmp_path: Path) -> None:
    with_true_oracle = contestants | {"ridge": ("oracle", contestants["lucky"][1] - 0.5)}
    assert not beaten(write_results(tmp_path, with_true_oracle))


def test_a_higher_log_likelihood_is_better(contestants: Contestants, tmp_path: Path) -> None:
    (defeat,) = beaten(write_results(tmp_path / "positive", contestants, "targets", "log_likelihood"))
    assert (defeat.oracle, defeat.winners, defeat.measure) == ("ridge", ("zero",), "log-likelihood")
    negative = {run: (kind, -scores) for run, (kind, scores) in contestants.items()}
    (defeat,) = beaten(write_results(tmp_path / "negative", negative, "targets", "log_likelihood"))
    assert defeat.winners == ("knn-3", "model")


def test_point_predictions_are_compared_by_squared_error(contestants: Contestants, tmp_path: Path) -> None:
    (defeat,) = beaten(write_results(tmp_path, contestants, "targets"))
    assert (defeat.winners, defeat.measure) == (("knn-3", "model"), "squared error")


def test_contestants_are_compared_at_the_largest_number_of_related_datasets(
    contestants: Contestants, tmp_path: Path
) -> None:
    """The model is worse than the oracle with no and with one related dataset, and better with two."""
    two = {name: contestants[name] for name in ("ridge", "model")}
    (defeat,) = beaten(write_results(tmp_path / "better", two, "targets", factors_of_models=(9.0, 9.0, 1.0)))
    assert defeat.winners == ("model",)
    assert not beaten(write_results(tmp_path / "worse", two, "targets", factors_of_models=(1.0, 1.0, 9.0)))
    assert beaten(write_results(tmp_path / "one", two, "targets", factors_of_models=(9.0, 1.0)))


@pytest.mark.slow
def test_terminal_and_report_show_the_same_message(contestants: Contestants, tmp_path: Path) -> None:
    folder = write_results(tmp_path, contestants)
    (line,) = oracle_notes(folder, tables.read_all("values", folder))
    results = load_results(folder)
    section = leaderboard.section(results.slices[0])
    assert section is not None
    (text,) = (block for block in section.walk() if isinstance(block, Text))
    assert text.items == (line,) and "ridge" in line
    targets_slice = load_results(write_results(tmp_path / "targets", contestants, "targets")).slices[0]
    section = targets.section(targets_slice)
    assert section is not None and any(isinstance(block, Text) for block in section.walk())


@pytest.mark.parametrize("reference", ["knn-3 (the oracle ridge failed)", "no error"])
@pytest.mark.parametrize("with_oracle", [True, False])
def test_score_notes_name_the_reference_for_score_1_unless_it_is_a_contestant(
    reference: str, with_oracle: bool, contestants: Contestants, tmp_path: Path
) -> None:
    values = tables.read_all("values", write_results(tmp_path, {run: contestants[run] for run in ("ridge", "zero")}))
    values = values if with_oracle else values[values["kind"].ne("oracle")]
    score = values.iloc[:1].assign(metric="score", score_one=reference)
    (line,) = score_notes(pd.concat([values, score]))
    assert reference in line
    assert score_notes(pd.concat([values, score.assign(score_one=values["run"].iloc[0])])) == []


def tables_in(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    return tables.read_all("values", folder), tables.read_all("errors", folder)


def beaten_in(values: pd.DataFrame, errors: pd.DataFrame) -> list[BeatenOracle]:
    return beaten_oracles(values, EpisodeScores([errors], {PROMPTS}))


def test_only_successful_models_and_baselines_count_as_comparisons(contestants: Contestants, tmp_path: Path) -> None:
    values, errors = tables_in(write_results(tmp_path, contestants))
    expected = beaten_in(values, errors)
    row = values[values["run"].eq("zero")].iloc[:1].assign(run="x", contestant="x")
    others = [
        row.assign(status="failed", reason="r", value=pd.NA),
        row.assign(axis="branch", axis_value=10),
        row.assign(prompt_set=pd.NA),
        row.assign(kind="published"),
    ]
    for other in others:
        assert beaten_in(tables.frame("values", pd.concat([values, other])), errors) == expected
    (defeat,) = beaten_in(tables.frame("values", pd.concat([values, row])), errors)
    assert defeat.low < expected[0].low, "an additional baseline makes the interval wider"


def test_oracles_are_sorted_by_name_and_so_are_equally_good_winners(contestants: Contestants, tmp_path: Path) -> None:
    equal = dict.fromkeys(("b", "a"), ("baseline", contestants["knn-3"][1]))
    oracles = dict.fromkeys(("ridge", "bayes"), contestants["ridge"])
    defeats = beaten(write_results(tmp_path, {**equal, **oracles, "model": ("backbone", contestants["zero"][1])}))
    assert [(defeat.oracle, defeat.winners) for defeat in defeats] == [("bayes", ("a", "b")), ("ridge", ("a", "b"))]
    better = {"z": ("baseline", contestants["knn-3"][1] - 0.1), "ridge": contestants["ridge"]}
    (best_first,) = beaten(write_results(tmp_path / "better", {**equal, **better}))
    assert best_first.winners == ("z", "a", "b")
    # The noisy baseline has a larger mean difference and a smaller lower end.
    errors, noise = contestants["ridge"][1], 0.5 * (-1) ** np.arange(EPISODES)
    two = {"exact": ("baseline", errors - 0.5), "noisy": ("baseline", errors - 0.6 + noise)}
    (noisy_first,) = beaten(write_results(tmp_path / "noisy", {"ridge": contestants["ridge"], **two}))
    assert noisy_first.winners == ("noisy", "exact") and noisy_first.low < 0.5
    assert not any(defeat.has_backbone for defeat in defeats)


def test_the_message_about_areas_under_curves_names_their_metric(contestants: Contestants, tmp_path: Path) -> None:
    for metric_name, label in (("squared_error", "squared error"), ("nll", metric("nll").label)):
        (defeat,) = beaten(write_results(tmp_path / metric_name, contestants, metric=metric_name))
        assert defeat.measure.endswith(f" {label}") and "normalised" not in defeat.measure


@pytest.mark.parametrize("question", ["next", "targets"])
def test_without_scores_of_single_episodes_no_oracle_is_beaten(
    question: str, contestants: Contestants, tmp_path: Path
) -> None:
    values, errors = tables_in(write_results(tmp_path, contestants, question))
    for run, expected in (("zero", [("knn-3", "model")]), ("knn-3", [("model",)]), ("ridge", [])):
        assert [defeat.winners for defeat in beaten_in(values, errors[errors["run"].ne(run)])] == expected
    assert not beaten_in(values[values["kind"].eq("oracle")], errors)


def test_scores_are_averaged_over_the_seeds_of_a_contestant(contestants: Contestants, tmp_path: Path) -> None:
    """The first of two seeds is better than the oracle, but the mean of both seeds is not."""
    ridge = contestants["ridge"][1]
    two = {"ridge": ("oracle", ridge), "m-s0": ("backbone", ridge - 1.0), "m-s1": ("backbone", ridge + 1.1)}
    for question in ("next", "targets"):
        values, errors = tables_in(write_results(tmp_path / question, two, question))
        values["contestant"] = values["contestant"].replace({"m-s0": "m", "m-s1": "m"})
        assert not beaten_in(values, errors)
        assert beaten_in(values[values["run"].ne("m-s1")], errors)


def test_oracles_that_ignore_related_datasets_are_compared_with_models_that_use_them(
    contestants: Contestants, tmp_path: Path
) -> None:
    """The errors are e for an oracle without related datasets, and 0.1 e for the model with two related datasets."""
    two = {"ridge": contestants["ridge"], "model": ("backbone", contestants["ridge"][1])}
    values, errors = tables_in(write_results(tmp_path, two, "targets", factors_of_models=(1.8, 0.9, 0.1)))
    oracle_without_related = [rows[rows["run"].ne("ridge") | rows["n_related"].eq(0)] for rows in (values, errors)]
    oracle_without_related[1] = oracle_without_related[1].assign(
        value=errors["value"].mask(errors["run"].eq("ridge"), errors["value"] * 1.8)
    )
    (defeat,) = beaten_in(*oracle_without_related)
    assert defeat.value == pytest.approx(0.9 * contestants["ridge"][1].mean())
    # Without related datasets, the errors are e / 1.8 for an oracle that can use them, and 1.8 e for the model.
    model_without = [rows[rows["run"].ne("model") | rows["n_related"].eq(0)] for rows in (values, errors)]
    assert not beaten_in(*model_without)


def test_contestants_without_a_likelihood_are_compared_by_squared_error(
    contestants: Contestants, tmp_path: Path
) -> None:
    point = {name: contestants[name] for name in ("ridge", "knn-3")}
    likelihoods = {"ridge": ("oracle", -contestants["ridge"][1]), "model": ("backbone", -contestants["model"][1])}
    parts = [
        tables_in(write_results(tmp_path / "errors", point, "targets")),
        tables_in(write_results(tmp_path / "likelihoods", likelihoods, "targets", "log_likelihood")),
    ]
    values, errors = (pd.concat(frames, ignore_index=True) for frames in zip(*parts, strict=True))
    (defeat,) = beaten_in(values, errors)
    assert (defeat.winners, defeat.measure) == (("knn-3", "model"), "squared error")
    assert beaten_in(values[values["run"].ne("knn-3")], errors)[0].measure == "log-likelihood"
