"""Tables and scores of token streams: a row per position, and a row for the mean over scored positions."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from iclbench import tables
from iclbench.analysis.episode_scores import EpisodeScores
from iclbench.analysis.slices import Results
from iclbench.cli.summary import leaderboard as board
from iclbench.cli.summary import score_notes
from iclbench.config.resolution import resolve_run, resolve_task
from iclbench.core.context import Context
from iclbench.evaluation.contestants import adapt_to_task, backbone, baselines
from iclbench.evaluation.curves import learning_curve
from iclbench.evaluation.evaluate import canonical_shifts, evaluate, evaluate_run
from iclbench.evaluation.monitor import Monitor
from iclbench.evaluation.prompts import PromptSet
from iclbench.evaluation.solutions import Solutions
from iclbench.store.runs import Run, create
from iclbench.training.run import train
from tests.refusals import refused


def prompts_of(task: str, shift: str = "none", **parameters: object) -> PromptSet:
    return PromptSet(resolve_task(task, "smoke", parameters)[0], "smoke", shift)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of two steps on `recall`."""
    results = tmp_path_factory.mktemp("results")
    run = create(results, resolve_run("recall", "gru", "smoke", 0, ["train.steps=2"]), "gru")
    train(run, monitor=Monitor)
    return run


@pytest.fixture(scope="module")
def values(run: Run) -> pd.DataFrame:
    """The rows of the run and all baselines on `recall`, without published numbers."""
    results = run.path.parents[1]
    list(evaluate_run(Context(results), run))
    rows = tables.read_all("values", results / "tables")
    return rows[rows["kind"].ne("published")]


def test_rows_without_a_context_size_are_means_over_scored_positions(values: pd.DataFrame) -> None:
    prompts = prompts_of("recall")
    scored = prompts.episodes.scored.numpy()
    (bigram,) = baselines(prompts, ["bigram"])
    curve = learning_curve(bigram.predictor, prompts)
    rows = values[values["run"].eq("bigram") & values["n_context"].isna()].set_index("metric")["value"]
    for name in ("cross_entropy", "accuracy"):
        assert rows[name] == pytest.approx(curve.scores[name][scored].mean(), rel=1e-12)
    assert rows["auc"] == rows["cross_entropy"]
    positions = values[values["run"].eq("bigram") & values["metric"].eq("accuracy")]["n_context"].dropna()
    assert sorted(positions) == np.flatnonzero(scored.any(0)).tolist()


def test_uniform_probabilities_score_0_and_the_dictionary_scores_1(values: pd.DataFrame) -> None:
    rows = values[values["metric"].eq("score")].set_index("run")["value"]
    assert rows["uniform"] == 0 and rows["oracle-recall"] == pytest.approx(1, abs=1e-9)
    assert 0 < rows["bigram"] < 1
    uniform = values[values["run"].eq("uniform") & values["metric"].eq("auc")]["value"].iloc[0]
    assert uniform == pytest.approx(np.log(257))
    assert set(values.loc[values["metric"].eq("score"), "score_of"]) == {"cross_entropy"}


def test_distances_equal_scipy_and_a_solution_has_distance_0_from_itself() -> None:
    from scipy.stats import entropy

    prompts = prompts_of("markov")
    names = ["unigram", "bigram"]
    unigram, bigram = (contestant.predictor for contestant in baselines(prompts, names))
    distances = Solutions(prompts, names).distances(bigram)
    assert np.abs(distances["bigram"]).max() < 1e-12
    answers = (predictor.ask(prompts.episodes, "next") for predictor in (unigram, bigram))
    p, q = (answer.logits.double().softmax(-1).numpy() for answer in answers)
    np.testing.assert_allclose(distances["unigram"], entropy(p, q, axis=-1).mean(1), rtol=1e-10)


def test_distances_are_averaged_over_scored_positions_only() -> None:
    prompts = prompts_of("recall")
    (uniform,) = baselines(prompts, ["uniform"])
    distances = Solutions(prompts, ["oracle-recall"]).distances(uniform.predictor)
    # At a scored position, the oracle assigns probability 1 to a single token.
    np.testing.assert_allclose(distances["oracle-recall"], np.log(257), rtol=1e-6)


def test_solutions_are_not_compared_on_events() -> None:
    with refused("not-applicable", "solutions"):
        Solutions(prompts_of("point-process"), ["poisson"])


def test_measuring_distances_during_training_does_not_change_the_weights(tmp_path: Path) -> None:
    run = create(tmp_path, resolve_run("markov", "gru", "smoke", 0, ["train.steps=4", "train.evaluate_every=2"]), "on")
    train(run, monitor=Monitor)
    silent = create(tmp_path, resolve_run("markov", "gru", "smoke", 0, ["train.steps=4"]), "off")
    train(silent, monitor=Monitor)
    for name, weight in run.load().state_dict().items():
        assert torch.equal(weight, silent.load().state_dict()[name])
    rows = tables.read("values", run.path / "values.parquet")
    rows = rows[rows["evaluator"].eq("solutions")]
    assert set(rows["metric"]) == {"kl_to_uniform", "kl_to_unigram", "kl_to_bigram"}
    assert sorted(set(rows["axis_value"])) == [2, 4]
    (last,) = rows[rows["axis_value"].eq(4) & rows["metric"].eq("kl_to_bigram")]["value"]
    distances = Solutions(prompts_of("markov"), ["bigram"]).distances(run.load())
    assert last == pytest.approx(distances["bigram"].mean())


def test_only_leaderboards_of_token_streams_list_accuracies(values: pd.DataFrame) -> None:
    """Event sequences also have accuracies (of marks), but no cross-entropies."""
    columns, rows = board(values)
    assert {"accuracy", "score"} <= set(columns)
    assert all(len(row) == len(columns) for row in rows)
    event_values = values.assign(metric=values["metric"].replace("cross_entropy", "nll"))
    assert "accuracy" not in board(event_values)[0]


def test_a_run_on_tokens_is_refused_on_vectors(run: Run) -> None:
    task = resolve_task("linear-system", "smoke", {})[0]
    with refused("not-applicable", "classes: none, in training: 257"):
        adapt_to_task(backbone(run), run, task, task.build())


def test_linear_systems_with_a_single_element_have_no_score() -> None:
    """After one element, the mean over all angles is 0, so the Bayesian prediction is that of `zero`. The errors of all
    contestants are in the leaderboard."""
    task = resolve_task("linear-system", "smoke", {"points": 1})[0]
    prompts = PromptSet(task, "smoke")
    rows = evaluate(baselines(prompts, ["zero", "last-value", "ar-2", *task.oracles]), prompts)
    scores = rows[rows["metric"].eq("score")]
    assert len(scores) == 5 and scores["value"].isna().all() and set(scores["status"]) == {"skipped"}
    assert "zero and oracle-bayes-kalman" in scores["reason"].iloc[0]
    columns, lines = board(rows)
    by_name = {line[0]: dict(zip(columns, line, strict=True)) for line in lines}
    assert len(by_name) == 5 and all(line["area"] and not line["score"] for line in by_name.values())
    (note,) = score_notes(rows)
    assert "zero and oracle-bayes-kalman" in note
    (task_slice,) = Results(rows, EpisodeScores((), set()), tables.frame("costs", [])).slices
    assert len(set(task_slice.curves["contestant"])) == len(set(task_slice.summaries["contestant"])) == 5
    assert task_slice.undefined_score("next") == scores["reason"].iloc[0]


@pytest.mark.parametrize("name", ["recall", "recall-vectors", "markov", "linear-system"])
def test_episodes_above_the_size_limit_are_refused_before_they_are_sampled(name: str) -> None:
    task = resolve_task(name, "smoke", {})[0]
    with refused("too-large", "64 episodes", "--max-bytes"):
        canonical_shifts(task, ["points-1000000000"])
    with refused("too-large", "10,000,000,000 episodes", "--max-bytes"):
        prompts_of(name).draw("prompts", 10_000_000_000, 32)
