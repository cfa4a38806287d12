"""Comparable rows, repetitions of runs, and the names of variants of a backbone."""

from collections.abc import Iterable

import pandas as pd
import pytest

from iclbench import tables
from iclbench.analysis.comparable import drop_other_scales, name_variants, retrained_runs


def rows(runs: Iterable[tuple[str, int, str | None]], backbone: str = "coqe") -> pd.DataFrame:
    """A row for every run, seed and variant."""
    return tables.frame(
        "values",
        [
            {
                "run": run,
                "task": "bursty",
                "family": "bursty",
                "contestant": backbone,
                "kind": "backbone",
                "preset": "small",
                "seed": seed,
                "variant": variant,
                "shift": "none",
                "evaluator": "icl",
                "metric": "accuracy",
                "value": 0.5,
                "n_episodes": 8,
                "status": "ok",
                "prompt_set": "p",
                "card": "c",
                "version": "0",
            }
            for run, seed, variant in runs
        ],
    )


def names(values: pd.DataFrame) -> list[str]:
    return name_variants(values)["contestant"].tolist()


def test_local_runs_with_other_settings_replace_packed_runs() -> None:
    packed = rows([("same", 0, "a"), ("other", 0, "a"), ("packed-only", 0, "a"), ("unknown", 0, None)])
    local = rows([("same", 0, "a"), ("other", 0, "b"), ("unknown", 0, "c")])
    replaced, (line,) = retrained_runs(packed, local)
    assert replaced == {"other"}
    assert all(name in line for name in ("bursty", "small", "'other'"))
    # Metrics that compare contestants also use packed rows, so that new rows of them do not mean that a run is new.
    for metric in tables.COMPARISON_METRICS:
        compared = pd.concat([local, rows([("other", 0, "a")]).assign(metric=metric)], ignore_index=True)
        assert retrained_runs(packed, compared)[0] == {"other"}
        compared = rows([("same", 0, "b")]).assign(metric=metric)
        assert retrained_runs(rows([("same", 0, "a")]), compared)[0] == set()


def test_local_runs_with_other_weights_replace_packed_runs() -> None:
    packed = pd.concat([rows([("same", 0, "a")]), rows([("same", 0, "a")]).assign(prompt_set="q")], ignore_index=True)
    for value, low, high, replaced in (
        (0.5, None, None, set()),
        (0.5 + 1e-6, 0.4, 0.6, set()),
        (0.55, 0.4, 0.6, {"same"}),
        (0.55, None, None, {"same"}),
    ):
        local = rows([("same", 0, "a")]).assign(value=value, low=low, high=high)
        assert retrained_runs(packed, tables.frame("values", local))[0] == replaced


def test_scores_on_another_scale_are_not_comparable() -> None:
    scores = rows([(name, 0, "a") for name in ("one", "two", "three")])
    scores = scores.assign(metric="score", reason="squared_error: 1 is ridge", normaliser=0.5)
    other = rows([("mine", 0, "b")]).assign(metric="score", reason="squared_error: 1 is knn-3", normaliser=0.4)
    accuracy = rows([("mine", 0, "b")])
    comparable, (line,) = drop_other_scales(pd.concat([scores, other, accuracy], ignore_index=True))
    assert comparable[["run", "metric"]].to_numpy().tolist() == [
        ["one", "score"],
        ["two", "score"],
        ["three", "score"],
        ["mine", "accuracy"],
    ]
    assert "mine" in line and "two" not in line
    assert drop_other_scales(comparable)[1] == ()
    for factor, removed in ((1 + 1e-6, set()), (1.01, {"mine"})):  # another machine rounds differently
        similar = other.assign(score_one="ridge", reason="squared_error: 1 is ridge", normaliser=0.5 * factor)
        values = pd.concat([scores, similar], ignore_index=True)
        assert set(values["run"]) - set(drop_other_scales(values)[0]["run"]) == removed


def test_a_single_variant_has_the_name_of_its_backbone() -> None:
    assert names(rows([("bursty-coqe-small-s0", 0, "a"), ("bursty-coqe-small-s1", 1, "a")])) == ["coqe", "coqe"]


def test_variants_are_named_after_the_common_words_of_their_runs() -> None:
    """A common first digit of two seeds is not part of the name, and neither is the seed of a single run."""
    variants = names(
        rows(
            [
                ("bursty-coqe-small-s10", 10, "a"),
                ("bursty-coqe-small-s12", 12, "a"),
                ("bursty-coqe-noise-5-small-s1", 1, "b"),
                ("mine-s3", 3, "c"),
                ("x-s1", 2, "d"),
            ]
        )
    )
    assert variants == ["coqe", "coqe", "coqe-noise-5", "mine", "x-s1"]


def test_variants_with_equal_names_get_their_hashes() -> None:
    variants = rows([("bursty-coqe-small-s0", 0, "aaaa1111"), ("bursty-coqe-small-s1", 1, "bbbb2222")])
    assert names(variants) == ["coqe (aaaa)", "coqe (bbbb)"]


def test_variants_of_one_backbone_do_not_rename_another() -> None:
    varied = rows([("bursty-coqe-small-s0", 0, "a"), ("bursty-coqe-paper-small-s0", 0, "b")])
    other = rows([("bursty-gpt2-small-s0", 0, "c"), ("bursty-gpt2-small-s1", 1, "c")], "gpt2")
    assert names(pd.concat([varied, other], ignore_index=True)) == ["coqe", "coqe-paper", "gpt2", "gpt2"]


@pytest.mark.parametrize("variant", ["a", None])
def test_runs_with_equal_variant_and_seed_have_the_names_of_the_runs(variant: str | None) -> None:
    assert names(rows([("left", 0, variant), ("right", 0, variant)])) == ["left", "right"]


def test_rows_without_a_variant_belong_to_that_of_their_run() -> None:
    values = rows([("bursty-coqe-small-s0", 0, "a"), ("bursty-coqe-small-s1", 1, "a")])
    without_variant = values.assign(variant=pd.NA, evaluator="iwl").astype(values.dtypes)
    assert set(names(pd.concat([values, without_variant], ignore_index=True))) == {"coqe"}


def test_the_evaluation_on_a_longer_task_does_not_change_the_trained_length() -> None:
    """Two variants are trained with the same number of examples, and one of them is evaluated on a longer task."""
    trained = rows([("x-s0", 0, "aaaa1111"), ("y-s1", 1, "bbbb2222")]).assign(n_context=10)
    transferred = rows([("x-s0", 0, "aaaa1111")]).assign(contestant="coqe@bursty", trained_on="bursty")
    longer = pd.concat([transferred, rows([("long-s0", 0, "cccc")])]).assign(task="long", n_context=40, prompt_set="q")
    renamed = name_variants(pd.concat([trained, longer], ignore_index=True).astype(trained.dtypes))
    assert renamed.loc[renamed["task"].eq("bursty"), "contestant"].tolist() == ["x", "y"]


def test_spans_that_differ_by_rounding_are_one_scale() -> None:
    """The spans 1 and 1 + 1e-8 count as one, so that most scores (8 of 13) have this span."""
    spans = [1.0] * 4 + [1.0 + 1e-8] * 4 + [0.5] * 5
    scores = rows([(f"run-{i}", 0, "a") for i in range(len(spans))])
    scores = scores.assign(metric="score", score_of="squared_error", score_one="ridge", normaliser=spans)
    comparable, (line,) = drop_other_scales(scores)
    assert comparable["run"].tolist() == [f"run-{i}" for i in range(8)]
    assert all(f"run-{i}" in line for i in range(8, 13))


def test_scores_without_a_prompt_set_are_compared_with_one_another() -> None:
    scores = rows([(f"run-{i}", 0, "a") for i in range(3)]).assign(
        metric="score", prompt_set=pd.Series([pd.NA] * 3, dtype="string")
    )
    scores = scores.assign(score_of="squared_error", score_one=["ridge", "ridge", "knn-3"], normaliser=1.0)
    comparable, lines = drop_other_scales(scores)
    assert comparable["run"].tolist() == ["run-0", "run-1"]
    assert ["run-2" in line for line in lines] == [True]
