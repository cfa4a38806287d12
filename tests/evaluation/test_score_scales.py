"""Which contestants score 0 and 1 if others are missing, failed, equally good or not significantly better."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from iclbench import tables
from iclbench.families.base import Evaluator
from tests.evaluation.test_scores import Rows, accuracies, areas, compute_scores, compute_scores_in_test, prompts, row
from tests.texts import words

NEXT = prompts("next", "point", baselines=["zero", "knn", "better"])


def references(folder: Path, values: Rows) -> set[str]:
    """Return the references that score 1 in the score rows that are computed from `values`."""
    baselines = [str(value["run"]) for value in values if value["kind"] == "baseline"]
    score_rows = compute_scores(folder, prompts("next", "point", baselines=baselines), values)
    return set() if score_rows is None else set(score_rows["score_one"])


def as_failed(row: dict[str, object]) -> dict[str, object]:
    return row | {"value": None, "low": None, "high": None, "status": "failed", "reason": "out of luck"}


def test_scores_require_an_oracle_or_a_baseline_besides_zero(tmp_path: Path) -> None:
    assert references(tmp_path, areas(zero=("baseline", 0.9), gpt2=("backbone", 0.2))) == set()
    # No error is smaller than 0.
    assert references(tmp_path, areas(zero=("baseline", 0.0), knn=("baseline", 0.0))) == set()


def test_the_reason_names_only_oracles_that_failed_or_are_worse_than_zero(tmp_path: Path) -> None:
    zero, lost, worse, knn, gpt2 = areas(
        zero=("baseline", 0.9),
        lost=("oracle", 0.1),
        worse=("oracle", 1.2),
        knn=("baseline", 0.5),
        gpt2=("backbone", 0.3),
    )
    (one,) = references(tmp_path, [zero, as_failed(lost), worse, knn, as_failed(gpt2)])
    assert one.startswith("knn (") and {"lost", "worse", "zero"} <= words(one) and "gpt2" not in words(one)
    (one,) = references(tmp_path / "alone", [zero, as_failed(lost), gpt2])
    assert one.startswith("no error (") and "lost" in words(one) and "zero" not in words(one)


def test_a_baseline_whose_interval_reaches_the_zero_predictor_does_not_score_one(tmp_path: Path) -> None:
    zero = areas(zero=("baseline", 0.9))
    first, second = (row(name, "baseline", "next", "auc", value) for name, value in (("first", 0.5), ("second", 0.6)))
    assert references(tmp_path / "beyond", [*zero, first, second]) == {"first"}
    for high in (0.9, 0.95):
        ones = references(tmp_path / str(high), [*zero, first | {"high": high}, second])
        assert ones == {"no error"}, "only the interval of the best baseline counts"


def test_a_baseline_with_access_to_the_truth_does_not_score_one(tmp_path: Path) -> None:
    zero, knn = areas(zero=("baseline", 0.9), knn=("baseline", 0.5))
    periodic_mean = row("periodic-mean", "baseline", "next", "auc", 0.1)
    assert references(tmp_path, [zero, knn, periodic_mean]) == {"knn"}


def test_scales_are_set_without_related_datasets_and_do_not_depend_on_row_order(tmp_path: Path) -> None:
    error_values = {("zero", 0): 0.9, ("knn", 3): 0.1, ("knn", 0): 0.5, ("gpt2", 3): 0.3, ("gpt2", 0): 0.7}
    kinds = {"zero": "baseline", "knn": "baseline", "gpt2": "backbone"}
    rows = [row(run, kinds[run], "targets", "squared_error", v, n_related=n) for (run, n), v in error_values.items()]
    for name, ordered_rows in (("more-first", rows), ("more-last", rows[::-1])):
        score_rows = compute_scores(tmp_path / name, prompts("targets", "point", baselines=["knn"]), ordered_rows)
        assert score_rows is not None
        expected = {key: (0.9 - error) / 0.4 for key, error in error_values.items()}
        assert score_rows["value"].to_dict() == pytest.approx(expected)


def test_ties_between_baselines_or_oracles_are_broken_by_a_fixed_rule(tmp_path: Path) -> None:
    baselines = areas(zero=("baseline", 0.9), b=("baseline", 0.5), a=("baseline", 0.5))
    assert references(tmp_path / "baselines", baselines) == {"a"}
    oracles = areas(zero=("baseline", 0.9), b=("oracle", 0.5), a=("oracle", 0.5), c=("oracle", 0.2))
    assert references(tmp_path / "oracles", oracles) == {"b"}, "the oracle with the least information"
    touching = areas(zero=("baseline", 0.9), equal=("oracle", 0.9), knn=("baseline", 0.5))
    (one,) = references(tmp_path / "touching", touching)
    assert one.startswith("knn (") and {"equal", "zero"} <= words(one)


@pytest.mark.parametrize("error", [0.9, 0.9 * (1 - 1e-12), 0.9 * (1 + 1e-12)])
def test_no_score_is_defined_if_the_oracle_and_all_baselines_equal_the_zero_predictor(
    error: float, tmp_path: Path
) -> None:
    """An oracle with more information does not score 1, because a model cannot have this information."""
    values = areas(
        zero=("baseline", 0.9),
        knn=("baseline", 0.9),
        given=("oracle", 0.4),
        bayes=("oracle", error),
        gpt2=("backbone", 1.2),
    )
    score_rows = compute_scores(tmp_path, prompts("next", "point", baselines=["knn"]), values)
    assert score_rows is not None and len(score_rows) == 5
    assert set(score_rows["status"]) == {"skipped"} and score_rows[["value", "low", "high"]].isna().all(axis=None)
    (reason,) = set(score_rows["reason"])
    assert reason.startswith("zero and bayes have the same normalised squared error")
    assert references(tmp_path / "better", [value for value in values if value["run"] != "bayes"]) == {"given"}


def test_contestants_in_packed_results_can_set_the_scale(tmp_path: Path) -> None:
    """Packed scores, and packed rows on different prompt sets, have no effect."""
    zero, knn, better, other = areas(
        zero=("baseline", 0.9), knn=("baseline", 0.5), better=("baseline", 0.4), other=("baseline", 0.1)
    )
    packed_score = row("knn", "baseline", "next", "score", 0.3)
    pack = [better, other | {"prompt_set": "others"}, packed_score, knn | {"value": 0.2}]
    tables.write("values", pack, tmp_path / "reference" / tables.packed_file_name("values", "task", "small"), {})
    tables.write("values", [other], tmp_path / "reference" / tables.packed_file_name("values", "another", "small"), {})
    score_rows = compute_scores(tmp_path, NEXT, [zero, knn])
    assert score_rows is not None and set(score_rows["reason"]) == {"squared_error: 1 is better"}
    assert score_rows.droplevel("n_related")["value"].to_dict() == pytest.approx(
        {"zero": 0, "knn": 0.4 / 0.5, "better": 1}
    )
    assert set(score_rows["metric"]) == {"score"}


def likelihoods(oracle: float) -> tuple[Rows, Rows]:
    """Return rows of `values` and `errors`. The zero predictor has an error of 1, and the oracle has the given
    log-likelihood.
    """
    means = {("zero", "squared_error"): 1.0, ("bayes", "log_likelihood"): oracle, ("knn", "squared_error"): 0.5}
    kinds = {"zero": "baseline", "bayes": "oracle", "knn": "baseline"}
    values = [row(run, kinds[run], "targets", metric, v, n_related=0) for (run, metric), v in means.items()]
    errors: Rows = [
        {
            "run": run,
            "prompt_set": "prompts",
            "metric": metric,
            "n_context": 4,
            "n_related": 0,
            "episode": i,
            "value": v,
        }
        for (run, metric), v in means.items()
        for i in range(4)
    ]
    return values, errors


def test_an_oracle_scores_one_only_if_its_likelihood_exceeds_that_of_a_constant_prediction(tmp_path: Path) -> None:
    constant = -0.5 * float(np.log(2 * np.pi * np.e))
    prompt_set = prompts("targets", "gaussian", baselines=["zero", "knn"])
    score_rows = compute_scores(tmp_path / "better", prompt_set, *likelihoods(constant + 1))
    assert score_rows is not None and set(score_rows["reason"]) == {"log_likelihood: 1 is bayes"}
    for name, difference in (("equal", 0.0), ("less", 1.0)):
        score_rows = compute_scores(tmp_path / name, prompt_set, *likelihoods(constant - difference))
        assert score_rows is not None and set(score_rows["reason"]) == {"squared_error: 1 is knn"}


@pytest.mark.parametrize("missing", ["zero", "bayes"])
def test_likelihoods_have_no_scores_without_errors_per_episode(missing: str, tmp_path: Path) -> None:
    """Packed results can have fewer rows than a new evaluation."""
    values, errors = likelihoods(0.0)
    assert (
        compute_scores(tmp_path, prompts("targets", "gaussian"), values, [e for e in errors if e["run"] != missing])
        is None
    )


def test_packed_rows_of_a_different_run_with_the_same_name_have_no_effect(tmp_path: Path) -> None:
    zero, knn, gpt2 = areas(zero=("baseline", 0.9), knn=("baseline", 0.5), gpt2=("backbone", 0.3))
    pack = [gpt2 | {"variant": "old"}]
    tables.write("values", pack, tmp_path / "reference" / tables.packed_file_name("values", "task", "small"), {})
    for name, variant, runs in (("other", "new", {"zero", "knn"}), ("same", "old", {"zero", "knn", "gpt2"})):
        shutil.copytree(tmp_path / "reference", tmp_path / name / "reference")
        local_row = as_failed(gpt2) | {"variant": variant, "metric": "squared_error", "n_context": 3}
        score_rows = compute_scores(tmp_path / name, NEXT, [zero, knn, local_row])
        assert score_rows is not None and set(score_rows.index.get_level_values("run")) == runs


def test_a_failed_oracle_does_not_set_the_scale_of_squared_errors(tmp_path: Path) -> None:
    values = [
        row("zero", "baseline", "targets", "squared_error", 0.8, n_related=0),
        as_failed(row("bayes", "oracle", "targets", "squared_error", 0.1)),
        row("tnp", "backbone", "targets", "squared_error", 0.4, n_related=0),
    ]
    score_rows = compute_scores(tmp_path, prompts("targets", "gaussian"), values)
    assert score_rows is not None and set(score_rows["score_of"]) == {"squared_error"}
    (one,) = set(score_rows["score_one"])
    assert one.startswith("no error (") and "bayes" in words(one)


def test_classification_has_scores_only_in_tests(tmp_path: Path) -> None:
    values = [row(name, "baseline", "targets", "squared_error", 0.8, n_related=0) for name in ("zero", "knn")]
    assert compute_scores(tmp_path, prompts("targets", "categorical"), values) is None


def test_rows_of_strata_do_not_set_the_scale(tmp_path: Path) -> None:
    values = accuracies(pixel_1nn=("baseline", 0.9), gpt2=("backbone", 0.7))
    stratum = values[0] | {"run": "stratum", "value": 1.0, "axis": "stratum:easy"}
    score_rows = compute_scores_in_test(tmp_path, Evaluator(0.5), [*values, stratum])
    assert score_rows is not None and score_rows["value"].to_dict() == pytest.approx({"pixel-1nn": 1, "gpt2": 0.5})
