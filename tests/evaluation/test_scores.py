"""Normalised scores of small tables against NumPy: contestants that score 0 and 1, and the episodes used."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from iclbench import __version__, tables
from iclbench.evaluation.bootstrap import bootstrap_interval
from iclbench.evaluation.prompt_set_rows import PromptSetRows
from iclbench.evaluation.prompts import PromptSet
from iclbench.evaluation.scores import write_scores
from iclbench.families.base import Evaluator
from tests.texts import words

EPISODES = 40
# The baselines of the task card.
BASELINES = ["zero", "mean-image", "knn-3"]
Rows = list[dict[str, object]]


def prompts(
    question: str, head: str, evaluator: str = "", baselines: Sequence[str] = BASELINES, **family_fields: Any
) -> Any:
    """Build a prompt set with the properties that scores depend on."""
    family = SimpleNamespace(**{"y_dim": 1, "normaliser": 1.0, **family_fields})
    task = SimpleNamespace(name="task", question=question, head=head, baselines=baselines)
    return create_autospec(
        PromptSet,
        headline="squared_error",
        id="prompts",
        evaluator=evaluator,
        task=task,
        preset="small",
        seed=0,
        family=family,
    )


def row(
    run: str, kind: str, evaluator: str, metric: str, value: float, half_width: float = 0.05, **columns: object
) -> dict[str, object]:
    return {
        "run": run,
        "task": "t",
        "family": "f",
        "contestant": run,
        "kind": kind,
        "preset": "smoke",
        "shift": "none",
        "evaluator": evaluator,
        "metric": metric,
        "value": value,
        "low": value - half_width,
        "high": value + half_width,
        "n_episodes": EPISODES,
        "normaliser": 1.0,
        "status": "ok",
        "prompt_set": "prompts",
        "card": "c",
        "version": __version__,
        **columns,
    }


def reference(score_rows: pd.DataFrame) -> tuple[str, set[str]]:
    """Return the name of the reference that scores 1, and the words of the remark on oracles that follows it."""
    (one,) = set(score_rows["score_one"])
    name, _, remark = str(one).partition(" (")
    return name, words(remark)


def compute_scores(folder: Path, prompt_set: Any, values: Rows, errors: Rows | None = None) -> pd.DataFrame | None:
    """Write these tables, and return the scores that are computed from them, by run and number of related datasets."""
    tables.write("values", values, folder / "tables" / "prompts" / "all.values.parquet", {})
    if errors:
        tables.write("errors", errors, folder / "tables" / "prompts" / "all.errors.parquet", {})
    write_scores(PromptSetRows(folder, prompt_set))
    path = folder / "tables" / "prompts" / "summary" / "scores.values.parquet"
    return tables.read("values", path).set_index(["run", "n_related"]) if path.exists() else None


def areas(**values: tuple[str, float]) -> Rows:
    return [row(run.replace("_", "-"), kind, "next", "auc", value) for run, (kind, value) in values.items()]


def test_the_zero_predictor_scores_0_the_oracle_scores_1_and_intervals_are_scaled(tmp_path: Path) -> None:
    values = areas(
        zero=("baseline", 0.9),
        ridge=("oracle", 0.1),
        knn_3=("baseline", 0.5),
        lucky=("baseline", 0.05),
        gpt2=("backbone", 0.2),
        diverged=("backbone", 3.0),
    )
    score_rows = compute_scores(tmp_path, prompts("next", "point"), values)
    assert score_rows is not None
    score = score_rows.droplevel("n_related")
    assert score["value"].to_dict() == pytest.approx(
        {"zero": 0, "ridge": 1, "knn-3": 0.5, "lucky": 0.85 / 0.8, "gpt2": 0.7 / 0.8, "diverged": -2.1 / 0.8}
    )
    assert (score.loc["gpt2", "low"], score.loc["gpt2", "high"]) == pytest.approx((0.65 / 0.8, 0.75 / 0.8))
    assert score["normaliser"].tolist() == pytest.approx(6 * [0.8])
    assert set(score["reason"]) == {"squared_error: 1 is ridge"}


def curve(run: str, *errors: float, n_episodes: int = EPISODES) -> Rows:
    """Return rows of mean errors after 0, 1, 3 and 4 examples. The last row is a mean over `n_episodes` episodes."""
    sizes = [0, 1, 3, 4][: len(errors)]
    rows = [row(run, "baseline", "next", "squared_error", error) for error in errors]
    rows[-1]["n_episodes"] = n_episodes
    return [columns | {"n_context": size} for columns, size in zip(rows, sizes, strict=True)]


def test_without_an_oracle_the_pointwise_best_task_baseline_scores_1(tmp_path: Path) -> None:
    """The area covers the sizes at which all episodes are scored. A baseline that is not on the card is ignored, and
    the reason gives the number of missing baselines."""
    heights = {"knn-3": (0.9, 0.5, 0.4), "pixel-1nn": (0.6, 0.7, 0.1), "plug-in": (0.0, 0.0, 0.0)}
    sizes = np.array([0.0, 1.0, 3.0])
    area_of = {run: float(np.trapezoid(height, sizes) / 3) for run, height in heights.items()}
    values = [row("zero", "baseline", "next", "auc", 1.0), row("gpt2", "backbone", "next", "auc", 0.4)]
    for run, height in heights.items():
        values += [row(run, "baseline", "next", "auc", area_of[run]), *curve(run, *height, 0.0, n_episodes=9)]
    prompt_set = prompts("next", "point", baselines=["zero", "knn-3", "pixel-1nn"])
    score_rows = compute_scores(tmp_path / "both", prompt_set, values)
    best = float(np.trapezoid(np.minimum(heights["knn-3"], heights["pixel-1nn"]), sizes) / 3)
    assert best < min(area_of["knn-3"], area_of["pixel-1nn"])
    assert score_rows is not None and set(score_rows["score_one"]) == {"the best baseline at each context size"}
    score = score_rows.droplevel("n_related")["value"]
    assert score["gpt2"] == pytest.approx(0.6 / (1 - best)) and score["plug-in"] == pytest.approx(1 / (1 - best))
    without = [value for value in values if value["run"] != "knn-3"]
    score_rows = compute_scores(tmp_path / "one", prompt_set, without)
    name = "the best baseline at each context size (1 of 2 baselines are missing)"
    assert score_rows is not None and set(score_rows["score_one"]) == {name}
    assert score_rows.droplevel("n_related")["value"]["pixel-1nn"] == pytest.approx(1)


def test_a_baseline_scores_1_only_if_it_is_significantly_better_than_zero(tmp_path: Path) -> None:
    better = areas(zero=("baseline", 0.9), knn_3=("baseline", 0.5), mean=("baseline", 0.8), gpt2=("backbone", 0.4))
    score_rows = compute_scores(tmp_path / "better", prompts("next", "point"), [*better, *curve("knn-3", 0.6, 0.4)])
    assert score_rows is not None
    assert set(score_rows["reason"]) == {"squared_error: 1 is the best baseline at each context size"}
    assert score_rows.droplevel("n_related")["value"]["gpt2"] == pytest.approx(0.5 / 0.4)
    doubtful = areas(zero=("baseline", 0.9), knn_3=("baseline", 0.88), gpt2=("backbone", 0.45))
    score_rows = compute_scores(tmp_path / "doubtful", prompts("next", "point"), doubtful)
    assert score_rows is not None and set(score_rows["score_one"]) == {"no error"}
    assert score_rows.droplevel("n_related")["value"]["gpt2"] == pytest.approx(0.5)


@pytest.mark.parametrize(("mean_image", "zero_error"), [(0.8, 0.8), (0.95, 0.9)])
def test_the_better_of_zero_and_mean_image_scores_0_and_neither_scores_1(
    mean_image: float, zero_error: float, tmp_path: Path
) -> None:
    values = areas(
        zero=("baseline", 0.9), mean_image=("baseline", mean_image), knn_3=("baseline", 1.5), gpt2=("backbone", 0.6)
    )
    score_rows = compute_scores(tmp_path, prompts("next", "point"), values)
    assert score_rows is not None and set(score_rows["score_one"]) == {"no error"}
    assert score_rows.droplevel("n_related")["value"]["gpt2"] == pytest.approx((zero_error - 0.6) / zero_error)
    score_rows = compute_scores(
        tmp_path, prompts("next", "point"), [*values[:2], *areas(knn_3=("baseline", 0.5)), *values[3:]]
    )
    assert score_rows is not None and set(score_rows["score_one"]) == {"knn-3"}
    assert score_rows.droplevel("n_related")["value"]["gpt2"] == pytest.approx((zero_error - 0.6) / (zero_error - 0.5))


def test_a_baseline_with_a_single_episode_is_not_significantly_better_than_zero(tmp_path: Path) -> None:
    values = areas(zero=("baseline", 0.9), knn_3=("baseline", 0.5), gpt2=("backbone", 0.45))
    without_intervals = [value | {"low": None, "high": None, "n_episodes": 1} for value in values]
    score_rows = compute_scores(tmp_path, prompts("next", "point"), without_intervals)
    assert score_rows is not None and set(score_rows["score_one"]) == {"no error"}
    assert score_rows["low"].isna().all() and score_rows["high"].isna().all()
    assert score_rows.droplevel("n_related")["value"]["gpt2"] == pytest.approx(0.5)


def test_old_scores_are_removed_if_contestants_cannot_be_compared(tmp_path: Path) -> None:
    prompt_set = prompts("next", "point")
    assert compute_scores(tmp_path, prompt_set, areas(zero=("baseline", 0.9), knn_3=("baseline", 0.5))) is not None
    assert compute_scores(tmp_path, prompt_set, areas(gpt2=("backbone", 0.2))) is None


def test_failed_oracles_and_oracles_worse_than_zero_are_named_but_do_not_score_1(tmp_path: Path) -> None:
    prompt_set = prompts("next", "point")
    worse = areas(zero=("baseline", 0.9), ridge=("oracle", 1.2), knn_3=("baseline", 0.5), gpt2=("backbone", 0.3))
    score_rows = compute_scores(tmp_path / "best", prompt_set, worse)
    assert score_rows is not None
    one, remark = reference(score_rows)
    assert one == "knn-3" and {"ridge", "zero"} <= remark
    score = score_rows.droplevel("n_related")["value"].to_dict()
    assert score == pytest.approx({"zero": 0, "ridge": -0.3 / 0.4, "knn-3": 1, "gpt2": 0.6 / 0.4})
    without_knn = compute_scores(
        tmp_path / "without", prompt_set, [value for value in worse if value["run"] != "knn-3"]
    )
    assert without_knn is not None and reference(without_knn) == ("no error", remark)
    failed = areas(zero=("baseline", 0.9), ridge=("oracle", 0.1), knn_3=("baseline", 0.5))
    failed[1] |= {"value": None, "low": None, "high": None, "status": "failed", "reason": "squared_error is nan"}
    score_rows = compute_scores(tmp_path / "failed", prompt_set, failed)
    assert score_rows is not None and set(score_rows.index.get_level_values("run")) == {"zero", "knn-3"}
    one, remark = reference(score_rows)
    assert one == "knn-3" and {"ridge", "failed"} <= remark and "zero" not in remark


def test_an_oracle_better_than_zero_scores_1_and_one_worse_than_zero_is_named(tmp_path: Path) -> None:
    values = areas(zero=("baseline", 0.9), claimed=("oracle", 1.2), bayes=("oracle", 0.1), gpt2=("backbone", 0.5))
    score_rows = compute_scores(tmp_path, prompts("next", "point"), values)
    assert score_rows is not None
    one, remark = reference(score_rows)
    assert one == "bayes" and {"claimed", "zero"} <= remark


@pytest.fixture
def likelihoods() -> tuple[Rows, Rows, dict[tuple[str, int], np.ndarray]]:
    """Rows of `values` and `errors` for two oracles, a model and two baselines, and the scores in these rows by run and
    number of related datasets. The oracle that infers the kernel predicts only the first half of the episodes."""
    rng = np.random.default_rng(3)
    difficulty = rng.normal(size=EPISODES)
    n_episodes = {"given-kernel": EPISODES, "inferring": EPISODES // 2}
    scores = {
        ("given-kernel", 0): -0.3 + 0.2 * difficulty,
        ("inferring", 0): -0.8 + 0.3 * difficulty,
        ("inferring", 2): -0.5 + 0.3 * difficulty,
        ("icicl", 0): -1.2 + 0.3 * difficulty,
        ("icicl", 2): -1.0 + 0.4 * difficulty,
    }
    squared = {("zero", 0): 1 + rng.random(EPISODES), ("knn", 0): 0.5 + rng.random(EPISODES)}
    kinds = {"given-kernel": "oracle", "inferring": "oracle", "icicl": "backbone"}
    kinds |= {"zero": "baseline", "knn": "baseline"}
    values, errors = [], []
    for metric, table in (("log_likelihood", scores), ("squared_error", squared)):
        for (run, related), all_scores in table.items():
            run_scores = all_scores[: n_episodes.get(run, EPISODES)]
            values.append(row(run, kinds[run], "targets", metric, run_scores.mean(), n_related=related))
            errors += [
                {
                    "run": run,
                    "prompt_set": "prompts",
                    "metric": metric,
                    "n_context": 4,
                    "n_related": related,
                    "episode": i,
                    "value": v,
                }
                for i, v in enumerate(run_scores)
            ]
    return values, errors, scores | squared


def test_likelihoods_are_scored_on_the_episodes_of_the_oracle_that_infers_the_kernel(
    likelihoods: tuple[Rows, Rows, dict[tuple[str, int], np.ndarray]], tmp_path: Path
) -> None:
    values, errors, scores = likelihoods
    score_rows = compute_scores(tmp_path, prompts("targets", "gaussian", normaliser=2.0), values, errors)
    assert score_rows is not None and set(score_rows["reason"]) == {"log_likelihood: 1 is inferring"}
    half = {key: run_scores[: EPISODES // 2] for key, run_scores in scores.items()}

    def constant(key: tuple[str, int]) -> float:
        """Return the mean log-density of a Gaussian whose variance equals the mean squared error."""
        variance = 2.0 * half[key].mean()
        targets = np.sqrt(variance) * np.array([-1.0, 1.0])
        return float(norm(0, np.sqrt(variance)).logpdf(targets).mean())

    guess, best = constant(("zero", 0)), half["inferring", 0].mean()
    expected = {key: (half[key].mean() - guess) / (best - guess) for key in half if key[0] not in ("zero", "knn")}
    expected |= {("zero", 0): 0.0, ("knn", 0): (constant(("knn", 0)) - guess) / (best - guess)}
    assert score_rows["value"].to_dict() == pytest.approx(expected)
    assert set(score_rows["n_episodes"]) == {EPISODES // 2}
    inside = (score_rows["low"] < score_rows["value"]) & (score_rows["value"] < score_rows["high"])
    assert inside.all()
    # The interval of a mean extends about two standard errors to each side.
    width = 2 * 1.96 * half["icicl", 2].std() / np.sqrt(EPISODES / 2) / (best - guess)
    assert score_rows.loc[("icicl", 2), "high"] - score_rows.loc[("icicl", 2), "low"] == pytest.approx(width, rel=0.2)


def test_without_an_oracle_targets_are_scored_by_squared_error(tmp_path: Path) -> None:
    values = [
        row("zero", "baseline", "targets", "squared_error", 0.8, n_related=0),
        row("knn-3", "baseline", "targets", "squared_error", 0.4, n_related=0),
        row("tnp", "backbone", "targets", "squared_error", 0.5, n_related=0),
        row("tnp", "backbone", "targets", "squared_error", 0.2, n_related=2),
        row("tnp", "backbone", "targets", "log_likelihood", -0.7, n_related=0),
        row("tnp", "backbone", "targets", "squared_error", 0.1, n_related=0, axis="stratum:easy"),
    ]
    score_rows = compute_scores(tmp_path, prompts("targets", "gaussian"), values)
    assert score_rows is not None and len(score_rows) == 4
    assert score_rows["value"][("tnp", 0)] == pytest.approx(0.75)
    assert score_rows["value"][("tnp", 2)] == pytest.approx(1.5)


def test_in_tests_guessing_scores_0_and_the_best_possible_answer_scores_1(tmp_path: Path) -> None:
    tests = {
        "icl": Evaluator(0.5),
        "iwl": Evaluator(0.1, answer_source="weights"),
        "flip": Evaluator(0.5, answer_source="either"),
    }
    score_rows = {}
    for name in tests:
        values = [
            row(run, kind, name, "accuracy_within_choices", value, n_related=0)
            for run, kind, value in (
                ("chance", "baseline", tests[name].chance),
                ("pixel-1nn", "baseline", 0.9),
                ("gpt2", "backbone", 0.7),
            )
        ]
        prompt_set = prompts("targets", "categorical", name, ["pixel-1nn"], evaluators=lambda: tests)
        score_rows[name] = compute_scores(tmp_path / name, prompt_set, values)
    icl, iwl = score_rows["icl"], score_rows["iwl"]
    assert icl is not None and iwl is not None and score_rows["flip"] is None
    assert icl["value"].to_dict() == pytest.approx({("chance", 0): 0, ("pixel-1nn", 0): 1, ("gpt2", 0): 0.5})
    assert iwl["value"][("gpt2", 0)] == pytest.approx(0.6 / 0.9)
    assert set(iwl["reason"]) == {"accuracy_within_choices: 1 is always right"}


def accuracies(**values: tuple[str, float]) -> Rows:
    return [
        row(run.replace("_", "-"), kind, "icl", "accuracy_within_choices", value, n_related=0)
        for run, (kind, value) in values.items()
    ]


def compute_scores_in_test(folder: Path, test: Evaluator, values: Rows) -> pd.DataFrame | None:
    baselines = ["chance", "pixel-1nn", "b-worse", "b-first", "b-same"]
    prompt_set = prompts("targets", "categorical", "icl", baselines, evaluators=lambda: {"icl": test})
    score_rows = compute_scores(folder, prompt_set, values)
    return None if score_rows is None else score_rows.droplevel("n_related")


def test_in_tests_the_best_baseline_scores_1_rather_than_guessing_or_a_model(tmp_path: Path) -> None:
    values = accuracies(
        chance=("baseline", 0.99),
        plug_in=("baseline", 0.97),
        b_worse=("baseline", 0.7),
        b_first=("baseline", 0.9),
        b_same=("baseline", 0.9),
        gpt2=("backbone", 0.95),
    )
    score_rows = compute_scores_in_test(tmp_path, Evaluator(0.5), values)
    assert score_rows is not None and set(score_rows["reason"]) == {"accuracy_within_choices: 1 is b-first"}
    assert score_rows["value"]["b-worse"] == pytest.approx(0.5)
    assert score_rows["value"]["gpt2"] == pytest.approx(0.45 / 0.4)


@pytest.mark.parametrize("ends", [{"low": 0.5}, {"low": None, "high": None}], ids=["touches guessing", "no interval"])
def test_a_baseline_that_is_not_significantly_better_than_guessing_does_not_score_1(tmp_path: Path, ends: dict) -> None:
    values = accuracies(pixel_1nn=("baseline", 0.6), gpt2=("backbone", 0.75))
    values[0] |= ends
    score_rows = compute_scores_in_test(tmp_path, Evaluator(0.5), values)
    assert score_rows is not None and set(score_rows["reason"]) == {"accuracy_within_choices: 1 is always right"}
    assert score_rows["value"]["gpt2"] == pytest.approx(0.5)


def test_only_tests_of_in_context_learning_require_a_baseline_to_score_1(
    tmp_path: Path,
) -> None:
    values = accuracies(chance=("baseline", 0.5), gpt2=("backbone", 0.75))
    assert compute_scores_in_test(tmp_path / "context", Evaluator(0.5), values) is None
    score_rows = compute_scores_in_test(tmp_path / "weights", Evaluator(0.5, answer_source="weights"), values[1:])
    assert score_rows is not None and score_rows["value"]["gpt2"] == pytest.approx(0.5)
    other_metric = [row("gpt2", "backbone", "icl", "accuracy", 0.7, n_related=0)]
    assert compute_scores_in_test(tmp_path / "other", Evaluator(0.5, answer_source="weights"), other_metric) is None


def test_point_predictions_are_scored_as_gaussians_with_constant_variance(
    likelihoods: tuple[Rows, Rows, dict[tuple[str, int], np.ndarray]], tmp_path: Path
) -> None:
    """For two outputs, the log-density is twice the log-density of one output with half the squared error. A high error
    is a low likelihood, so the ends of the interval are swapped.
    """
    values, errors, scores = likelihoods
    one_oracle = [[one for one in rows if one["run"] != "inferring"] for rows in (values, errors)]
    score_rows = compute_scores(tmp_path, prompts("targets", "gaussian", normaliser=2.0, y_dim=2), *one_oracle)
    assert score_rows is not None and set(score_rows["reason"]) == {"log_likelihood: 1 is given-kernel"}
    assert set(score_rows["n_episodes"]) == {EPISODES}, "the oracle predicts all episodes"

    def constant(error: float) -> float:
        variance = 2.0 * error / 2
        return float(2 * norm(0, np.sqrt(variance)).logpdf(np.sqrt(variance) * np.array([-1.0, 1.0])).mean())

    guess, best = constant(scores["zero", 0].mean()), scores["given-kernel", 0].mean()
    low, high = (float(end[0]) for end in bootstrap_interval(scores["knn", 0][:, None], seed=0))
    expected = [(constant(error) - guess) / (best - guess) for error in (scores["knn", 0].mean(), high, low)]
    assert score_rows.loc[("knn", 0), ["value", "low", "high"]].tolist() == pytest.approx(expected)
    low, high = (float(end[0]) for end in bootstrap_interval(scores["icicl", 2][:, None], seed=0))
    assert score_rows.loc[("icicl", 2), ["low", "high"]].tolist() == pytest.approx(
        [(end - guess) / (best - guess) for end in (low, high)]
    )


def test_contestants_that_lack_some_common_episodes_have_no_score(
    likelihoods: tuple[Rows, Rows, dict[tuple[str, int], np.ndarray]], tmp_path: Path
) -> None:
    values, errors, _ = likelihoods
    few_errors = [one | {"run": "a-few"} for one in errors if (one["run"], one["n_related"]) == ("icicl", 0)][:5]
    few_errors += [one | {"run": "b-few"} for one in errors if one["run"] == "knn"][:5]
    few_values = [
        row("a-few", "backbone", "targets", "log_likelihood", 9.0, n_related=0),
        row("b-few", "baseline", "targets", "squared_error", 0.0, n_related=0),
    ]
    score_rows = compute_scores(
        tmp_path, prompts("targets", "gaussian"), [*few_values, *values], [*few_errors, *errors]
    )
    assert score_rows is not None
    assert set(score_rows.index.get_level_values("run")) == {"given-kernel", "inferring", "icicl", "zero", "knn"}


def test_likelihoods_without_the_zero_predictor_have_no_score(
    likelihoods: tuple[Rows, Rows, dict[tuple[str, int], np.ndarray]], tmp_path: Path
) -> None:
    values, errors, _ = likelihoods
    without_zero = [[one for one in rows if one["run"] != "zero"] for rows in (values, errors)]
    assert compute_scores(tmp_path, prompts("targets", "gaussian"), *without_zero) is None
