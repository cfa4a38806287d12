"""Which runs are repetitions of one another, and what variants of one backbone are called."""

from collections.abc import Iterable

import pandas as pd
import pytest

from iclbench import tables
from iclbench.analysis.comparable import name_variants, on_one_line, trained_again


def rows(runs: Iterable[tuple[str, int, str | None]], backbone: str = "coqe") -> pd.DataFrame:
    """A row for every run, seed and hash of what was trained."""
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


def test_packed_runs_that_were_trained_otherwise_here_are_named() -> None:
    packed = rows([("same", 0, "a"), ("other", 0, "a"), ("elsewhere", 0, "a"), ("old", 0, None)])
    own = rows([("same", 0, "a"), ("other", 0, "b"), ("old", 0, "c")])
    again, lines = trained_again(packed, own)
    assert again == {"other"}
    assert len(lines) == 1
    assert lines[0].startswith("bursty · small: packed rows of run 'other' left out")
    # What was scored together with packed rows is no training of the user's.
    for metric in tables.COMPARING:
        together = pd.concat([own, rows([("other", 0, "a")]).assign(metric=metric)], ignore_index=True)
        assert trained_again(packed, together)[0] == {"other"}
        known = rows([("same", 0, "b")]).assign(metric=metric)
        assert trained_again(rows([("same", 0, "a")]), known)[0] == set()


def test_packed_rows_of_equal_settings_and_other_weights_are_those_of_another_run() -> None:
    """Rows of an own run are not completed by those of packed weights, which answer otherwise."""
    packed = pd.concat([rows([("same", 0, "a")]), rows([("same", 0, "a")]).assign(prompt_set="q")], ignore_index=True)
    for value, low, high, others in (
        (0.5, None, None, set()),
        (0.5 + 1e-6, 0.4, 0.6, set()),
        (0.55, 0.4, 0.6, {"same"}),
        (0.55, None, None, {"same"}),
    ):
        own = rows([("same", 0, "a")]).assign(value=value, low=low, high=high)
        assert trained_again(packed, tables.frame("values", own))[0] == others


def test_scores_of_one_contest_lie_on_one_line() -> None:
    scores = rows([(name, 0, "a") for name in ("one", "two", "three")])
    scores = scores.assign(metric="score", reason="squared_error: 1 is ridge", normaliser=0.5)
    other = rows([("mine", 0, "b")]).assign(metric="score", reason="squared_error: 1 is knn-3", normaliser=0.4)
    whole = pd.concat([scores, other, rows([("mine", 0, "b")])], ignore_index=True)
    kept, lines = on_one_line(whole)
    assert kept[["run", "metric"]].to_numpy().tolist() == [
        ["one", "score"],
        ["two", "score"],
        ["three", "score"],
        ["mine", "accuracy"],
    ]
    assert len(lines) == 1 and "scores of mine left out" in lines[0]
    assert on_one_line(kept)[1] == ()
    elsewhere = other.assign(score_one="ridge", reason="squared_error: 1 is ridge", normaliser=0.5 * (1 + 1e-6))
    for span, left in ((1 + 1e-6, ()), (1.01, ("mine",))):
        both = pd.concat([scores, elsewhere.assign(normaliser=0.5 * span)], ignore_index=True)
        assert set(both["run"]) - set(on_one_line(both)[0]["run"]) == set(left), "machines round differently"


def test_one_variant_keeps_the_name_of_its_backbone() -> None:
    assert names(rows([("bursty-coqe-small-s0", 0, "a"), ("bursty-coqe-small-s1", 1, "a")])) == ["coqe", "coqe"]


def test_variants_are_named_after_what_their_runs_share() -> None:
    """Seeds of two digits share a digit that is no part of the name; a single run loses its own seed."""
    found = names(
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
    assert found == ["coqe", "coqe", "coqe-noise-5", "mine", "x-s1"]


def test_variants_that_would_share_a_name_carry_their_hashes() -> None:
    found = names(rows([("bursty-coqe-small-s0", 0, "aaaa1111"), ("bursty-coqe-small-s1", 1, "bbbb2222")]))
    assert found == ["coqe (aaaa)", "coqe (bbbb)"]


def test_other_backbones_are_left_alone() -> None:
    varied = rows([("bursty-coqe-small-s0", 0, "a"), ("bursty-coqe-paper-small-s0", 0, "b")])
    other = rows([("bursty-gpt2-small-s0", 0, "c"), ("bursty-gpt2-small-s1", 1, "c")], "gpt2")
    found = names(pd.concat([varied, other], ignore_index=True))
    assert found == ["coqe", "coqe-paper", "gpt2", "gpt2"]


@pytest.mark.parametrize("variant", ["a", None])
def test_runs_of_one_variant_and_seed_go_by_their_own_names(variant: str | None) -> None:
    assert names(rows([("left", 0, variant), ("right", 0, variant)])) == ["left", "right"]


def test_rows_without_the_hash_belong_to_the_variant_of_their_run() -> None:
    """The rows of a run that an older version wrote."""
    values = rows([("bursty-coqe-small-s0", 0, "a"), ("bursty-coqe-small-s1", 1, "a")])
    older = values.assign(variant=pd.NA, evaluator="iwl").astype(values.dtypes)
    assert set(names(pd.concat([values, older], ignore_index=True))) == {"coqe"}


def test_what_a_run_is_asked_about_on_another_task_does_not_make_it_another_length() -> None:
    """Two variants with one number of examples, of which one also met a longer task that others were trained on."""
    here = rows([("x-s0", 0, "aaaa1111"), ("y-s1", 1, "bbbb2222")]).assign(n_context=10)
    there = rows([("x-s0", 0, "aaaa1111")]).assign(contestant="coqe@bursty", trained_on="bursty")
    longer = pd.concat([there, rows([("long-s0", 0, "cccc")])]).assign(task="long", n_context=40, prompt_set="q")
    found = name_variants(pd.concat([here, longer], ignore_index=True).astype(here.dtypes))
    assert found.loc[found["task"].eq("bursty"), "contestant"].tolist() == ["x", "y"]


def test_spans_that_differ_by_rounding_stand_for_one_line() -> None:
    """More were measured against another span than against either rounding alone."""
    spans = [1.0] * 4 + [1.0 + 1e-8] * 4 + [0.5] * 5
    scores = rows([(f"run-{i}", 0, "a") for i in range(len(spans))])
    scores = scores.assign(metric="score", score_of="squared_error", score_one="ridge", normaliser=spans)
    kept, (line,) = on_one_line(scores)
    assert kept["run"].tolist() == [f"run-{i}" for i in range(8)]
    assert "scores of run-10, run-11, run-12, run-8, run-9 left out" in line
