"""Quantities on the pages equal direct computations from the packed tables."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pytest import MonkeyPatch
from scipy import stats

from docs.quantities import (
    ROOT,
    Reference,
    accuracy_of_guesses,
    benchmark,
    is_equal,
    leaderboard,
    lowest_after_peak,
    packed_folder,
    published,
    tuning,
    verdict,
)
from iclbench.analysis.normalised import Contest
from iclbench.analysis.pairs import Difference
from iclbench.config.pairs import Pair
from iclbench.report.sections import named_pairs

pytestmark = pytest.mark.docs

# Packed rows of two small sweeps. The tests do not depend on their values.
PACKED = ROOT / "tests" / "fixtures" / "packed"


@pytest.fixture(scope="module")
def linear() -> Reference:
    return Reference(PACKED, ["linear"])


def test_files_are_selected_for_tasks_whose_names_share_a_prefix(tmp_path: Path) -> None:
    for name in ("linear-grid", "linear-10-small", "bursty-grid"):
        (tmp_path / f"{name}.values.parquet").touch()
    with packed_folder(tmp_path, ["linear", "linear-10"]) as results:
        assert {path.name for path in results.rglob("*.*")} == {
            "linear-grid.values.parquet",
            "linear-10-small.values.parquet",
        }


def values(task: str, preset: str) -> pd.DataFrame:
    return pd.read_parquet(PACKED / f"{task}-{preset}.values.parquet")


def test_a_lead_is_the_mean_of_paired_differences_with_a_student_t_interval(linear: Reference) -> None:
    errors = pd.read_parquet(PACKED / "linear-grid.errors.parquet").query("metric == 'squared_error'")
    prompts = values("linear", "grid").query("run == 'linear-mamba-grid-s0' and shift == 'none'")["prompt_set"].iloc[0]
    wide = errors[errors["prompt_set"] == prompts].pivot_table("value", "episode", "run").astype(float)
    gaps = wide[["linear-gpt2-grid-s0", "linear-gpt2-grid-s1"]].mean(axis=1) - wide[
        ["linear-mamba-grid-s0", "linear-mamba-grid-s1"]
    ].mean(axis=1)
    areas = values("linear", "grid").query("metric == 'auc' and shift == 'none'").set_index("run")["value"]
    gaps /= areas["zero"] - areas["ridge"]
    half = 1.9693 * gaps.std() / 256**0.5  # 97.5 % quantile of Student's t with 255 degrees of freedom
    lead = linear.lead("mamba", "gpt2", "linear")
    assert [lead.value, lead.low, lead.high] == pytest.approx(
        [gaps.mean(), gaps.mean() - half, gaps.mean() + half], abs=2e-5
    )
    expected_scores = [
        (areas["zero"] - areas[f"linear-mamba-grid-s{seed}"]) / (areas["zero"] - areas["ridge"]) for seed in (0, 1)
    ]
    assert linear.scores("mamba", "linear") == pytest.approx(expected_scores)
    assert linear.score("mamba", "linear") == pytest.approx(np.mean(expected_scores))


def test_extrapolation_is_the_ratio_of_errors_beyond_and_at_the_trained_length(linear: Reference) -> None:
    rows = values("linear", "grid").query("shift == 'points-48' and metric == 'squared_error' and contestant == 's4'")
    errors = rows.groupby("n_context")["value"].mean()
    assert linear.extrapolation_ratio("s4", tasks=["linear"]) == pytest.approx(errors[48] / errors[12])


def test_costs_are_averaged_and_cells_are_counted(linear: Reference) -> None:
    costs = pd.read_parquet(PACKED / "linear-grid.costs.parquet")
    flops = costs.query("contestant == 'tnp' and phase == 'update' and metric == 'flops' and n_points == 256")["value"]
    assert linear.cost("tnp", "linear", "update", "flops", 256) == pytest.approx(flops.mean())
    cells = pd.concat([pd.read_parquet(path) for path in PACKED.glob("linear-*.cells.parquet")])
    assert len(linear.cells("done", preset="grid")) == (cells["status"].eq("done") & cells["preset"].eq("grid")).sum()


def test_accuracies_are_computed_within_the_admissible_labels() -> None:
    rows = values("bursty", "small").query("evaluator == 'icl' and metric == 'accuracy_within_choices'")
    rows = rows[rows["axis"].isna()].set_index("run")["value"]
    expected = rows[[f"bursty-coqe-small-s{seed}" for seed in (0, 1, 2)]].mean()
    assert Reference(PACKED, ["bursty"]).accuracy("coqe", "icl", "small") == pytest.approx(expected)


def test_agreement_with_a_published_order_is_kendalls_tau(linear: Reference) -> None:
    order = ["s4", "tnp", "gpt2", "mamba"]
    scores = {model: linear.score(model, "linear") for model in order}
    pairs = [(a, b) for i, a in enumerate(order) for b in order[i + 1 :]]
    assert linear.agreement(order, "linear") == pytest.approx(
        np.mean([np.sign(scores[a] - scores[b]) for a, b in pairs])
    )


def test_agreements_between_seeds_and_under_shifts_are_kendalls_tau(linear: Reference) -> None:
    models = ["s4", "tnp", "gpt2", "mamba"]
    first, second = np.array([linear.scores(model, "linear") for model in models]).T
    assert linear.seed_agreement(models, "linear") == pytest.approx(stats.kendalltau(first, second).statistic)
    shifted, unshifted = np.array(
        [(linear.shifted(model, "linear", "points-48"), linear.score(model, "linear")) for model in models]
    ).T
    assert linear.shift_agreement(models, "linear", "points-48") == pytest.approx(
        stats.kendalltau(shifted, unshifted).statistic
    )


def test_shifts_with_a_lower_tau_than_two_seeds_are_listed(linear: Reference, monkeypatch: MonkeyPatch) -> None:
    taus = {"skewed": 0.5, "orthants": 0.8, "input-scale-2": 0.6, "isotropic": 0.1}
    monkeypatch.setitem(linear.__dict__, "quantities", {"CORE": ["mamba"], "FUNCTIONS": ["linear"]})
    monkeypatch.setattr(linear, "shift_agreement", lambda core, task, shift: taus[shift])
    monkeypatch.setattr(linear, "seed_agreement", lambda core, task: 0.7)
    assert linear.inputs_beyond_seeds() == [("linear", "skewed"), ("linear", "input-scale-2")]


def test_rankings_of_shorter_runs_are_computed_from_their_areas() -> None:
    reference, models = Reference(tasks=["quadratic"]), ["gpt2", "mamba", "s4d", "tnp", "cnp", "cmanp"]
    rows = pd.read_parquet(reference.packed / "quadratic-grid.values.parquet")
    rows = rows[rows["metric"].eq("auc") & rows["shift"].eq("none") & rows["evaluator"].eq("next")]
    rows = rows[rows["contestant"].isin(models)].assign(steps=rows["axis_value"].fillna(3000))
    areas = rows.pivot_table("value", "contestant", "steps").astype(float)
    assert list(areas.columns) == [750, 1500, 3000]

    def score(name: str) -> float:
        return reference.score(name, "quadratic")

    span = (areas.loc["gpt2", 3000] - areas.loc["mamba", 3000]) / (score("mamba") - score("gpt2"))
    for share, steps in ((0.25, 750), (0.5, 1500)):
        tau = stats.kendalltau(areas.loc[models, steps], areas.loc[models, 3000]).statistic
        assert reference.early_agreement(models, "quadratic", share) == pytest.approx(tau)
        lost = (areas.loc["tnp", steps] - areas.loc["tnp", 3000]) / span
        assert reference.score_after("tnp", "quadratic", share) == pytest.approx(score("tnp") - lost)
    seed_areas = rows[rows["contestant"].eq("tnp") & rows["axis_value"].eq(750)].set_index("run")["value"].astype(float)
    assert len(seed_areas) == 2
    best = score("tnp") - (seed_areas.min() - areas.loc["tnp", 3000]) / span
    assert reference.seed_scores_after("tnp", "quadratic", 0.25)[-1] == pytest.approx(best)
    # The expected area is interpolated linearly in the logarithm of operations, which are proportional to the steps.
    operations = {model: reference.cost(model, "quadratic", "train_step", "flops") for model in models}
    fewest = min(operations, key=lambda model: operations[model])
    at_compute = reference.at_compute(models, "quadratic")
    assert at_compute[fewest] == pytest.approx(score(fewest))
    steps = 3000 * operations[fewest] / operations["mamba"]
    low, high = (750, 1500) if steps < 1500 else (1500, 3000)
    area = np.interp(np.log(steps), np.log([low, high]), areas.loc["mamba", [low, high]])
    assert at_compute["mamba"] == pytest.approx(score("mamba") - (area - areas.loc["mamba", 3000]) / span)
    tau = stats.kendalltau(list(at_compute.values()), [score(model) for model in at_compute]).statistic
    assert len(at_compute) > 4 and reference.compute_agreement(models, "quadratic") == pytest.approx(tau)


def test_only_prespecified_pairs_are_compared_across_seeds(linear: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LookupError, match="mamba and cnp"):
        linear.pair("mamba", "cnp", "linear")
    with pytest.raises(LookupError, match=r"mamba and s4d .* seeds"):
        linear.pair("mamba", "s4d", "linear")
    assert linear.significant_pairs() == []
    a, b = np.random.default_rng(0).normal(size=(2, 8)) * [[1], [3]]
    monkeypatch.setattr(named_pairs, "scores_by_seed", lambda pair, contest: pd.DataFrame({"a": a, "b": b}, pair.seeds))
    difference = linear.pair("mamba", "s4d", "linear")
    interval = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert [difference.value, difference.low, difference.high] == pytest.approx(
        [a.mean() - b.mean(), interval.low, interval.high]
    )


@pytest.mark.parametrize(
    ("test", "offset", "is_found"), [("ranks", 10, True), ("ranks", 0.5, False), ("paired", 0.5, True)]
)
def test_other_tests_of_pairs_use_the_seeds_of_the_pair(
    test: str, offset: float, is_found: bool, linear: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A constant difference between seeds that is smaller than their spread is only significant in a paired test."""

    def scores_by_seed(pair: Pair, contest: Contest) -> pd.DataFrame:
        a = np.random.default_rng(0).normal(size=len(pair.seeds))
        is_shifted = (pair.a, contest.task.task) == ("mamba", "linear")
        b = a + np.resize([0.01, -0.01], len(a)) + (offset if is_shifted else 0)
        return pd.DataFrame({"a": a, "b": b}, pair.seeds)

    assert linear.significant_by(test) == linear.significant_by(test, "small") == []
    monkeypatch.setattr(named_pairs, "scores_by_seed", scores_by_seed)
    assert linear.significant_by(test) == ([("mamba", "s4d", "linear")] if is_found else [])


def test_context_sizes_with_the_smaller_error_are_those_of_the_mean_errors(linear: Reference) -> None:
    rows = pd.read_parquet(PACKED / "linear-grid.values.parquet")
    rows = rows[rows["metric"].eq("squared_error") & rows["evaluator"].eq("next") & rows["shift"].eq("none")]
    rows = rows[rows["n_context"].notna() & rows["axis"].isna()]
    means = rows.pivot_table("value", "n_context", "contestant", aggfunc="mean").astype(float)
    expected = [int(n) for n in means.index[means["gpt2"] < means["tnp"]]]
    assert linear.smaller_errors("gpt2", "tnp", "linear", "grid") == expected
    assert 0 < len(expected) < len(means)
    with pytest.raises(LookupError, match="gpt2 and cnp"):
        linear.smaller_errors("gpt2", "cnp", "linear", "grid")


def test_hours_are_the_sum_over_training_cells(linear: Reference) -> None:
    cells = pd.read_parquet(PACKED / "linear-grid.cells.parquet").query("kind == 'train' and status == 'done'")
    assert linear.hours() == pytest.approx(cells["seconds"].sum() / 3600)


def test_the_cost_of_models_is_the_sum_over_their_runs(linear: Reference) -> None:
    cells = pd.read_parquet(PACKED / "linear-grid.cells.parquet").query("kind == 'train' and status == 'done'")
    cells = cells[cells["contestant"].isin(["mamba", "gpt2"])]
    expense = linear.expense(["mamba", "gpt2"], "linear")
    assert expense.runs == len(cells)
    assert expense.hours == pytest.approx(cells["seconds"].sum() / 3600)
    assert np.isnan(expense.flops), "the fixture has no training operations"
    with pytest.raises(LookupError, match="cnp-of-mine"):
        linear.expense(["mamba", "cnp-of-mine"], "linear")


def test_a_claim_replicates_only_if_its_condition_holds() -> None:
    assert verdict(True) == "replicates at preset grid"
    assert verdict(np.bool_(False), "small") == "does not replicate at preset small"
    with pytest.raises(TypeError):
        verdict(0.3)  # type: ignore[arg-type]
    assert is_equal(Difference(0.01, -0.04, 0.04), 0.05)
    assert not is_equal(Difference(0.01, -0.04, 0.06), 0.05)
    assert lowest_after_peak([0.1, 0.9, 0.4, 0.6]) == 0.4
    assert lowest_after_peak([0.1, 0.9]) == 0.9


def test_a_published_number_must_match_a_single_entry_of_the_card() -> None:
    assert published("gp-mixture", "icicl-tnp", n_related=1, shift="none") == -0.499
    assert published("sst2", "GPT2-Large+deep-thinking") == 0.857
    assert published("simple", "Mamba-2.8B", n_context=5) == 0.85
    with pytest.raises(LookupError, match="numbers of icicl-tnp"):
        published("gp-mixture", "icicl-tnp")


def test_the_comparison_with_published_numbers_agrees_with_the_card_and_the_tables() -> None:
    reference = Reference(tasks=["gp-mixture"])
    rows = reference.published_comparison("gp-mixture").set_index(["contestant", "shift", "n_related"])
    packed = pd.read_parquet(ROOT / "results" / "reference" / "gp-mixture-grid.values.parquet")
    ours = packed.query("contestant == 'pt-tnp' and metric == 'log_likelihood_adjusted' and shift == 'none'")
    ours = ours[ours["axis"].isna() & ours["n_context"].isna()]
    assert rows.loc[("pt-tnp", "none", 0), "published"] == -0.598
    assert rows.loc[("pt-tnp", "none", 0), "grid"] == pytest.approx(ours["value"].mean())
    costs = pd.read_parquet(ROOT / "results" / "reference" / "gp-mixture-grid.costs.parquet")
    flops = costs.query("contestant == 'pt-tnp' and phase == 'train' and metric == 'flops'")["value"].mean()
    expense = reference.expense(["pt-tnp"], "gp-mixture")
    assert expense.flops == pytest.approx(expense.runs * flops)


def test_best_rates_and_expected_scores_agree_with_the_packed_trials() -> None:
    reference = Reference(tasks=["sparse-linear"])
    trials = pd.read_parquet(reference.packed / "sparse-linear-grid.trials.parquet").query("contestant == 'gpt2'")
    means = trials.groupby("lr")["value"].mean()
    rates = reference.rates("sparse-linear")
    assert rates.best_rate("gpt2") == means.idxmin() and rates.expected_score("gpt2", 1) == pytest.approx(means.mean())
    with pytest.raises(LookupError, match="tabular has no trials"):
        reference.rates("tabular")


def test_a_benchmark_number_is_read_from_its_table(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        "# A\n\n| what | seed | ours | ratio |\n| --- | --- | --- | --- |\n| a batch | 0 | 1,204.5 [3, 4] | 8.0x |\n"
        "| | 1 | −2 | |\n"
    )
    assert benchmark("a.md", "a batch", "ours", tmp_path) == 1204.5
    assert benchmark("a.md", "a batch", "ratio", tmp_path) == 8.0
    assert benchmark("a.md", ("a batch", "1"), "ours", tmp_path) == -2
    for row, column in (("another", "ours"), ("a batch", "theirs"), (("a batch", "1"), "ratio")):
        with pytest.raises(LookupError, match="no number"):
            benchmark("a.md", row, column, tmp_path)


def test_a_leaderboard_has_the_numbers_of_each_contestant(tmp_path: Path) -> None:
    (tmp_path / "some.md").write_text(
        "# Models\n\n```\nothers, small, shift none (others-0)\ncontestant  R²\n```\n\n```\n"
        "tables, small, shift points-50 (tables-1)\n"
        "contestant            R²  mean rank  90 % coverage\n"
        "ridge       0.345 ±0.368       2.00\n"
        "cells      -0.036 ±0.013       1.33          0.896\n"
        "intervals and ranks are over 2 tables (autos, wine); mean ranks that differ by less than 5.20 are not "
        "significantly different\n\nautos: 159 rows\n```\n"
    )
    board = leaderboard("some.md", "tables", tmp_path)
    assert board.rows == {
        "ridge": {"R²": 0.345, "mean rank": 2.0},
        "cells": {"R²": -0.036, "mean rank": 1.33, "90 % coverage": 0.896},
    }
    assert (board.tables, board.critical_difference) == (["autos", "wine"], 5.2)
    assert board.column("90 % coverage") == {"cells": 0.896}
    with pytest.raises(LookupError, match="absent"):
        leaderboard("some.md", "absent", tmp_path)


def test_training_runs_are_counted_for_each_model(linear: Reference) -> None:
    cells = pd.concat([pd.read_parquet(path) for path in PACKED.glob("linear-*.cells.parquet")])
    cells = cells.query("kind == 'train' and preset == 'grid' and status == 'done'")
    counts = cells.groupby("contestant")["seed"].nunique()
    assert linear.run_counts(["mamba", "mamba"], "linear") == str(counts["mamba"])
    different = [counts.idxmin(), counts.idxmax()]
    expected = list(dict.fromkeys(str(counts[model]) for model in different))
    assert linear.run_counts(different, "linear") == " and ".join(expected)
    assert linear.run_counts(different, "linear", over="prompts") == str(counts.min())
    with pytest.raises(LookupError, match="absent"):
        linear.run_counts(["absent"], "linear")


def test_a_rate_is_found_with_the_task_of_its_trials() -> None:
    assert tuning("quadratic", "mamba").on == "linear"
    assert tuning("sparse-linear", "gpt2-learned").on == ""  # chosen on the task itself
    with pytest.raises(LookupError, match="absent"):
        tuning("linear", "absent")


def test_the_accuracy_of_guesses_equals_that_of_a_simulation() -> None:
    """With 16 pairs of independent values among 64 and 16 queries of random pairs."""
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(2000):
        values = rng.integers(0, 64, 16)
        counts = np.bincount(values, minlength=64)
        for answer in values[rng.integers(0, 16, 16)]:
            hits.append(counts.argmax() == answer)
            counts[answer] += 1
    assert accuracy_of_guesses("recall", "pairs-16") == pytest.approx(float(np.mean(hits)), abs=0.01)
