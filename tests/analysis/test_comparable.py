"""Selection of comparable rows, detection of retrained runs, and names of the variants of a backbone."""

from collections.abc import Iterable

import pandas as pd
import pytest

from iclbench import tables
from iclbench.analysis.comparable import (
    drop_other_prompt_sets,
    drop_other_scales,
    name_variants,
    retrained_runs,
    trained_lengths,
    variant_name,
)


def rows(runs: Iterable[tuple[str, int, str | None]], backbone: str = "coqe") -> pd.DataFrame:
    """Return a table with a row for each triple of run, seed and variant."""
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


def concat(*parts: pd.DataFrame) -> pd.DataFrame:
    """The rows of several frames, with the column types of the table."""
    return tables.frame("values", pd.concat(parts, ignore_index=True))


def names(values: pd.DataFrame) -> list[str]:
    return name_variants(values)["contestant"].tolist()


def used_prompt_sets(values: pd.DataFrame) -> tuple[list[str], tuple[str, ...]]:
    """The prompt set of every used row, and the messages about unused prompt sets."""
    kept_rows, lines = drop_other_prompt_sets(values)
    assert kept_rows.columns.tolist() == values.columns.tolist()
    assert kept_rows.index.tolist() == list(range(len(kept_rows)))
    return kept_rows["prompt_set"].tolist(), lines


def test_local_runs_with_different_settings_replace_packed_runs() -> None:
    packed = rows([("same", 0, "a"), ("other", 0, "a"), ("packed-only", 0, "a"), ("unknown", 0, None)])
    local = rows([("same", 0, "a"), ("other", 0, "b"), ("unknown", 0, "c")])
    replaced, (line,) = retrained_runs(packed, local)
    assert replaced == {"other"}
    assert all(name in line for name in ("bursty", "small", "'other'"))
    # Metrics that compare contestants are recomputed when any contestant changes, so they do not show that a run was
    # retrained.
    for metric in tables.COMPARISON_METRICS:
        compared = pd.concat([local, rows([("other", 0, "a")]).assign(metric=metric)], ignore_index=True)
        assert retrained_runs(packed, compared)[0] == {"other"}
        compared = rows([("same", 0, "b")]).assign(metric=metric)
        assert retrained_runs(rows([("same", 0, "a")]), compared)[0] == set()


def test_local_runs_with_different_values_replace_packed_runs() -> None:
    packed = pd.concat([rows([("same", 0, "a")]), rows([("same", 0, "a")]).assign(prompt_set="q")], ignore_index=True)
    for value, low, high, replaced in (
        (0.5, None, None, set()),
        (0.5 + 1e-6, 0.4, 0.6, set()),
        (0.55, 0.4, 0.6, {"same"}),
        (0.55, None, None, {"same"}),
    ):
        local = rows([("same", 0, "a")]).assign(value=value, low=low, high=high)
        assert retrained_runs(packed, tables.frame("values", local))[0] == replaced


def test_scores_on_a_different_scale_are_removed() -> None:
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
    assert "mine" in line and "two" not in line and comparable.index.tolist() == [0, 1, 2, 3]
    assert drop_other_scales(comparable)[1] == ()
    for factor, removed in ((1 + 1e-6, set()), (1.01, {"mine"})):  # rounding differs between machines
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


def test_variants_with_equal_names_are_distinguished_by_their_hashes() -> None:
    variants = rows([("bursty-coqe-small-s0", 0, "aaaa1111"), ("bursty-coqe-small-s1", 1, "bbbb2222")])
    assert names(variants) == ["coqe (aaaa)", "coqe (bbbb)"]


def test_variants_of_one_backbone_do_not_rename_another() -> None:
    varied = rows([("bursty-coqe-small-s0", 0, "a"), ("bursty-coqe-paper-small-s0", 0, "b")])
    other = rows([("bursty-gpt2-small-s0", 0, "c"), ("bursty-gpt2-small-s1", 1, "c")], "gpt2")
    assert names(pd.concat([varied, other], ignore_index=True)) == ["coqe", "coqe-paper", "gpt2", "gpt2"]


@pytest.mark.parametrize("variant", ["a", None])
def test_runs_with_equal_variant_and_seed_are_separate_contestants_named_after_the_runs(variant: str | None) -> None:
    assert names(rows([("left", 0, variant), ("right", 0, variant)])) == ["left", "right"]


def test_rows_without_a_variant_belong_to_the_variant_of_their_run() -> None:
    values = rows([("bursty-coqe-small-s0", 0, "a"), ("bursty-coqe-small-s1", 1, "a")])
    without_variant = values.assign(variant=pd.NA, evaluator="iwl").astype(values.dtypes)
    assert set(names(pd.concat([values, without_variant], ignore_index=True))) == {"coqe"}


def test_evaluating_a_run_on_a_longer_task_does_not_change_its_training_length() -> None:
    """Two variants are trained with the same number of examples, and one of them is evaluated on a longer task."""
    trained = rows([("x-s0", 0, "aaaa1111"), ("y-s1", 1, "bbbb2222")]).assign(n_context=10)
    transferred = rows([("x-s0", 0, "aaaa1111")]).assign(contestant="coqe@bursty", trained_on="bursty")
    longer = pd.concat([transferred, rows([("long-s0", 0, "cccc")])]).assign(task="long", n_context=40, prompt_set="q")
    renamed = name_variants(pd.concat([trained, longer], ignore_index=True).astype(trained.dtypes))
    assert renamed.loc[renamed["task"].eq("bursty"), "contestant"].tolist() == ["x", "y"]


def test_a_run_that_was_trained_on_another_task_gets_the_length_of_its_longest_prompts() -> None:
    """One of the two variants also has rows on prompts of unknown length."""
    varied = rows([("x-s0", 0, "aaaa"), ("y-s0", 0, "bbbb")]).assign(
        contestant="coqe@u", trained_on="u", prompt_set="q"
    )
    unknown = varied.iloc[:1].assign(prompt_set="r", shift="far")
    trained = rows([("long-s0", 0, "cccc")], "gpt2").assign(n_context=40, prompt_set="q")
    assert names(concat(varied, unknown, trained)) == ["x@u", "y@u", "x@u", "gpt2"]


def test_spans_that_differ_by_rounding_are_one_scale() -> None:
    """The spans 1 and 1 + 1e-8 count as equal, so most scores (8 of 13) have this span."""
    spans = [1.0] * 4 + [1.0 + 1e-8] * 4 + [0.5] * 5
    scores = rows([(f"run-{i}", 0, "a") for i in range(len(spans))])
    scores = scores.assign(metric="score", score_of="squared_error", score_one="ridge", normaliser=spans)
    comparable, (line,) = drop_other_scales(scores)
    assert comparable["run"].tolist() == [f"run-{i}" for i in range(8)]
    assert all(f"run-{i}" in line for i in range(8, 13))
    unsorted_spans = [1.0, 0.5, 1.0 + 2e-8, 0.5, 1.0 + 1e-8]
    assert len(drop_other_scales(scores.iloc[:5].assign(normaliser=unsorted_spans))[0]) == 3


@pytest.mark.parametrize(
    ("span", "other", "is_same"), [(1.0, 1.00009, True), (1.0, 1.00011, False), (1e-9, 2e-9, False)]
)
def test_spans_of_one_scale_differ_by_less_than_one_in_ten_thousand(span: float, other: float, is_same: bool) -> None:
    """Of four runs, the first and the last have the same span, and the span of the third run is unknown. An unknown
    span differs from all known spans."""
    scores = rows([(name, 0, "a") for name in ("one", "two", "three", "four")])
    scores = scores.assign(metric="score", score_of="squared_error", score_one="ridge")
    comparable, lines = drop_other_scales(scores.assign(normaliser=[span, other, None, span]))
    assert comparable["run"].tolist() == (["one", "two", "four"] if is_same else ["one", "four"])
    assert ["two" in line for line in lines] == [not is_same] and all("three" in line for line in lines)


def test_scores_without_a_prompt_set_are_compared_with_one_another() -> None:
    scores = rows([(f"run-{i}", 0, "a") for i in range(3)]).assign(
        metric="score", prompt_set=pd.Series([pd.NA] * 3, dtype="string")
    )
    scores = scores.assign(score_of="squared_error", score_one=["ridge", "ridge", "knn-3"], normaliser=1.0)
    comparable, lines = drop_other_scales(scores)
    assert comparable["run"].tolist() == ["run-0", "run-1"]
    assert ["run-2" in line for line in lines] == [True]


def test_scales_are_compared_within_one_contest() -> None:
    """Two scores that differ in any column that identifies a contest may have different scales."""
    score = rows([("one", 0, "a")]).assign(metric="score", score_of="squared_error", score_one="ridge", normaliser=1.0)
    other = rows([("two", 0, "a")]).assign(metric="score", score_of="squared_error", score_one="knn-3", normaliser=2.0)
    assert len(drop_other_scales(concat(score, other))[1]) == 1
    for contest in ({"task": "u"}, {"preset": "grid"}, {"shift": "s"}, {"evaluator": "iwl"}, {"prompt_set": "q"}):
        assert drop_other_scales(concat(score, other.assign(**contest)))[1] == ()


def test_the_scale_with_the_most_runs_is_used_and_published_scores_have_no_scale() -> None:
    score = rows([("one", 0, "a"), ("two", 0, "a")]).assign(metric="score", score_of="squared_error", normaliser=1.0)
    main = score.assign(score_one="ridge")
    scores_of_one_run = [rows([("three", 0, "a")]).assign(metric="score", n_related=n) for n in range(3)]
    other = concat(*scores_of_one_run).assign(score_of="squared_error", score_one="knn-3", normaliser=1.0)
    published = concat(*(part.assign(run="p", kind="published") for part in scores_of_one_run))
    comparable, (line,) = drop_other_scales(concat(main, other, published))
    assert comparable["run"].tolist() == ["one", "two", "p", "p", "p"]
    assert all(name in line for name in ("bursty", "small", "none", "three"))
    # Of two scales with one run each, the first predictor and the smaller span are used.
    tied = concat(main.iloc[:1].assign(score_one="knn-3", normaliser=2.0), main.iloc[1:])
    assert drop_other_scales(tied)[0]["run"].tolist() == ["one"]
    tied = concat(main.iloc[:1].assign(normaliser=2.0), main.iloc[1:])
    assert drop_other_scales(tied)[0]["run"].tolist() == ["two"]


def test_the_prompt_set_of_most_runs_is_used() -> None:
    """Prompt sets are compared by their number of runs, not of rows: two runs outweigh three rows of one run."""
    many = concat(*(rows([("old", 0, "a")]).assign(prompt_set="a", metric=metric) for metric in ("x", "y", "z")))
    two = rows([("one", 0, "a"), ("two", 1, "a")])
    prompt_sets, (line,) = used_prompt_sets(concat(many, two))
    assert prompt_sets == ["p", "p"]
    assert all(name in line for name in ("bursty", "small", "none", "icl", "(a)", "1 run ", "evaluate"))
    prompt_sets, (line,) = used_prompt_sets(concat(two, two.assign(run=["three", "four"], prompt_set="b")))
    assert prompt_sets == ["b", "b"] and "2 runs" in line and "(p)" in line
    three = concat(two, *(rows([("old", 0, "a")]).assign(prompt_set=name) for name in "zy"))
    assert [name in line for name, line in zip("yz", used_prompt_sets(three)[1], strict=True)] == [True, True]


def test_messages_about_unused_prompt_sets_are_sorted_by_task_and_prompt_set() -> None:
    """The number of runs does not change the order: the prompt set z has more runs than y and q."""
    runs = rows([(f"run-{i}", i, "a") for i in range(6)])
    prompt_sets = {"t": ["p", "p", "p", "z", "z", "y"], "s": ["p", "p", "p", "p", "p", "q"]}
    values = concat(*(runs.assign(task=task, prompt_set=names) for task, names in prompt_sets.items()))
    _, lines = used_prompt_sets(values)
    assert [name in line for name, line in zip(("(q)", "(y)", "(z)"), lines, strict=True)] == [True] * 3


def test_published_rows_and_rows_without_prompts_are_used() -> None:
    two = rows([("one", 0, "a"), ("two", 1, "a")])
    published = two.assign(kind="published", prompt_set="q", run=["five", "six"])
    without_prompts = two.assign(prompt_set=pd.NA)
    assert used_prompt_sets(concat(two, published, without_prompts)) == (["p", "p", "q", "q", pd.NA, pd.NA], ())
    others = two.assign(run=["three", "four"], prompt_set="b")
    assert used_prompt_sets(concat(two, published.assign(prompt_set="p"), others))[0] == ["p", "p", "b", "b"]
    assert used_prompt_sets(concat(without_prompts, two, others))[0] == [pd.NA, pd.NA, "b", "b"]


@pytest.mark.parametrize(
    ("columns", "others", "are_compared"),
    [
        ({}, {"task": "u"}, False),
        ({}, {"preset": "grid"}, False),
        ({}, {"shift": "noisy-1"}, False),
        ({}, {"evaluator": "iwl"}, False),
        ({}, {"axis": "train_step", "axis_value": 10}, False),
        ({}, {"axis": "branch", "axis_value": 10}, True),
        ({"evaluator": "next"}, {"evaluator": "targets"}, True),
        ({"evaluator": "next"}, {"evaluator": "train"}, True),
        ({"evaluator": "next"}, {"evaluator": "icl"}, False),
        ({"evaluator": "probe", "n_context": 4}, {"evaluator": "gamma_search", "n_context": 4}, True),
        ({"evaluator": "probe", "n_context": 4}, {"evaluator": "probe", "n_context": 8}, False),
        ({"evaluator": "probe", "n_context": 4}, {"evaluator": "rank", "n_context": 4}, False),
        ({"evaluator": "rank", "n_context": 4}, {"evaluator": "rank", "n_context": 4}, True),
        ({"evaluator": "rank"}, {"evaluator": "representation"}, False),
        ({"evaluator": "solutions"}, {"evaluator": "solutions"}, True),
    ],
)
def test_prompt_sets_are_compared_within_one_group(
    columns: dict[str, object], others: dict[str, object], are_compared: bool
) -> None:
    main = rows([("one", 0, "a"), ("two", 1, "a")]).assign(**columns)
    other = rows([("three", 2, "a")]).assign(**columns | others, prompt_set="q")
    prompt_sets, lines = used_prompt_sets(concat(main, other))
    assert prompt_sets == (["p", "p"] if are_compared else ["p", "p", "q"])
    assert len(lines) == are_compared


def test_the_message_about_an_unused_prompt_set_names_the_step_to_repeat() -> None:
    main = rows([("one", 0, "a"), ("two", 1, "a")])
    for columns, command in (
        ({"evaluator": "probe", "n_context": 4}, "probe"),
        ({"axis": "train_step", "axis_value": 10}, "train"),
        ({"axis": "train_step", "axis_value": 10, "evaluator": "solutions"}, "evaluate"),
        ({}, "evaluate"),
    ):
        other = main.iloc[:1].assign(run="three", prompt_set="q")
        _, (line,) = used_prompt_sets(concat(*(part.assign(**columns) for part in (main, other))))
        assert [word for word in ("probe", "train", "evaluate") if word in line.split("(q)")[1].split()] == [command]
        assert ("in training" in line) == ("axis" in columns)
        assert ("probe of n = 4" in line) == (command == "probe")


def test_prompt_sets_of_different_training_lengths_are_used_unless_the_number_of_examples_is_fixed() -> None:
    short = rows([("one", 0, "a"), ("two", 1, "a")]).assign(evaluator="next", n_context=8)
    long = rows([("three", 0, "b")]).assign(evaluator="next", n_context=16, prompt_set="q")
    assert used_prompt_sets(concat(short, long)) == (["p", "p", "q"], ())
    assert used_prompt_sets(concat(short.assign(n_context=1), long.assign(n_context=pd.NA))) == (["p", "p", "q"], ())
    equal = long.assign(n_context=8)
    assert used_prompt_sets(concat(short, equal))[0] == ["p", "p"]
    extrapolated = [part.assign(shift="points-64", extrapolated_to=64) for part in (short, long)]
    assert used_prompt_sets(concat(short, long, *extrapolated))[0] == ["p", "p", "q", "p", "p"]
    probes = [part.assign(evaluator="probe", n_context=4) for part in (short, long)]
    assert used_prompt_sets(concat(short, long, *probes))[0] == ["p", "p", "q", "p", "p"]


def test_methods_on_prompts_of_a_removed_run_are_not_averaged_with_those_on_the_prompts_of_another_run() -> None:
    """The prompts of the removed run have no known training length, so its methods would be in all slices."""
    run = rows([("one", 0, "a")]).assign(evaluator="next", n_context=8)
    zero = run.assign(run="zero", contestant="zero", kind="baseline", variant=pd.NA)
    orphans = concat(*(zero.assign(prompt_set="q", run=name, n_context=4) for name in ("zero", "mean")))
    prompt_sets, (line,) = used_prompt_sets(concat(run, zero, orphans))
    assert prompt_sets == ["p", "p"]
    assert all(name in line for name in ("bursty", "small", "none", "(q)", "2 runs", "evaluate"))
    assert used_prompt_sets(concat(run, zero, orphans.assign(shift="noisy-1")))[0] == ["p", "p", "q", "q"]
    assert used_prompt_sets(orphans) == (["q", "q"], ())
    # The failed row of a run is kept, because reports show its message.
    failed = run.assign(run="two", prompt_set="q", status="failed", reason="r", value=pd.NA, n_context=pd.NA)
    assert used_prompt_sets(concat(run, zero, orphans, failed))[0] == ["p", "p", "q"]


def test_distances_from_solutions_of_runs_with_different_training_lengths_are_not_joined() -> None:
    short, long = (
        rows([(name, 0, "a")]).assign(evaluator="next", n_context=n, prompt_set=name)
        for name, n in (("p", 8), ("q", 16))
    )
    distances = [
        part.assign(evaluator="solutions", axis="train_step", axis_value=10, n_context=pd.NA) for part in (short, long)
    ]
    assert used_prompt_sets(concat(short, long, *distances)) == (["p", "q", "p", "q"], ())
    # The training length of a run that was not evaluated is unknown.
    prompt_sets, (line,) = used_prompt_sets(concat(short, *distances))
    assert prompt_sets == ["p", "p"] and "(q)" in line and line.endswith("evaluate again")
    prompt_sets, (line,) = used_prompt_sets(concat(*distances))
    assert prompt_sets == ["p"] and "(q)" in line and line.endswith("evaluate again")
    other_prompts = distances[0].assign(run="o", prompt_set="o")
    prompt_sets, (line,) = used_prompt_sets(
        concat(short, long.assign(run="o", n_context=8, prompt_set="p"), distances[0], other_prompts)
    )
    assert "train again" in line


def test_rows_on_data_that_differ_from_the_training_data_are_not_used() -> None:
    main = rows([("one", 0, "a")]).assign(data="glyphs=omniglot")
    other = main.assign(run="two", trained_data="f1nger", data="glyphs=mine", prompt_set="q")
    other_score = other.assign(run="three", metric="score")
    kept_rows, (line,) = drop_other_prompt_sets(concat(main, other, other_score))
    assert kept_rows["run"].tolist() == ["one"]
    assert all(name in line for name in ("bursty", "small", "q", "glyphs=mine", "f1nger"))
    assert len(drop_other_prompt_sets(concat(main, other, other_score.assign(prompt_set="r")))[1]) == 2


def test_the_training_length_is_the_largest_context_size_of_the_curve_without_a_shift() -> None:
    run = rows([("m-s0", 0, "a")], "m").assign(evaluator="next", metric="squared_error")
    curve = concat(*(run.assign(n_context=n) for n in (0, 8, 4)))
    longer = [
        run.assign(shift="points-64", n_context=64, prompt_set="far"),
        run.assign(axis="n_context", axis_value=16, n_context=16, prompt_set="bins"),
        run.assign(evaluator="probe", n_context=32, prompt_set="probes"),
    ]
    baseline = run.assign(run="zero", contestant="zero", kind="baseline", n_context=0)
    transferred = run.assign(run="n-s0", contestant="n@u", trained_on="u", n_context=2)
    unknown = [run.assign(run="o-s0", contestant="o", n_context=pd.NA), baseline.assign(prompt_set="q")]
    lengths = trained_lengths(concat(curve, *longer, baseline, transferred, *unknown))
    assert lengths.dtype == "Int64"
    assert lengths.tolist() == [8, 8, 8, 8, 8, 8, 8, 8, pd.NA, pd.NA]


def test_methods_have_no_training_length_if_runs_of_different_lengths_share_their_prompts() -> None:
    run = rows([("m-s0", 0, "a")], "m").assign(evaluator="next", metric="squared_error", n_context=8)
    longer = run.assign(run="n-s0", n_context=16)
    baselines = [run.assign(run=name, kind="baseline", prompt_set=name) for name in ("p", "q", "r")]
    shared = [run.assign(prompt_set="q", shift="s"), longer.assign(prompt_set="q", shift="s")]
    values = concat(run, longer.assign(prompt_set="r"), *shared, *baselines)
    values.index += 10
    lengths = trained_lengths(values)
    assert lengths.index.tolist() == values.index.tolist()
    assert lengths.tolist() == [8, 16, 8, 16, 8, pd.NA, 16]


def test_runs_with_different_training_lengths_are_not_variants_of_each_other() -> None:
    short = rows([("x-s0", 0, "aaaa"), ("x-s1", 1, "aaaa")]).assign(n_context=8)
    long = rows([("y-s0", 0, "bbbb")]).assign(n_context=16, prompt_set="q")
    assert names(concat(short, long)) == ["coqe"] * 3
    assert names(concat(short, long.assign(n_context=8))) == ["x", "x", "y"]
    assert names(concat(short.assign(n_context=1), long.assign(n_context=pd.NA))) == ["coqe"] * 3


def test_each_task_and_preset_has_its_own_variants() -> None:
    varied = rows([("x-s0", 0, "aaaa"), ("y-s0", 0, "bbbb")])
    for columns in ({"task": "u"}, {"preset": "grid"}):
        assert names(concat(varied, rows([("x-s0", 0, "aaaa")]).assign(**columns))) == ["x", "y", "coqe"]


def test_if_a_variant_repeats_a_seed_each_of_its_runs_is_a_contestant_named_after_the_run() -> None:
    values = rows([("left", 0, "a"), ("right", 0, "a"), ("third", 1, "a"), ("x-s0", 0, "b"), ("x-s1", 1, "b")])
    assert names(values) == ["left", "right", "third", "x", "x"]
    assert names(values.iloc[:3]) == ["left", "right", "third"]


def test_renamed_variants_keep_the_suffixes_for_another_training_task_and_for_a_method() -> None:
    varied = rows([("bursty-coqe-small-s0", 0, "a"), ("bursty-coqe-wide-small-s0", 0, "b")])
    varied = varied.assign(model="coqe")
    on_other_task = varied.assign(contestant="coqe@u", trained_on="u", task="v")
    methods = varied.assign(
        contestant="coqe+deep-thinking", method="+deep-thinking", run=varied["run"] + "+deep-thinking"
    )
    renamed = name_variants(concat(varied, on_other_task, methods))
    assert renamed["contestant"].tolist() == [
        "coqe",
        "coqe-wide",
        "bursty-coqe@u",
        "bursty-coqe-wide@u",
        "coqe+deep-thinking",
        "coqe-wide+deep-thinking",
    ]
    assert renamed["backbone"].tolist() == [*["coqe"] * 4, *["coqe+deep-thinking"] * 2]
    assert renamed["contestant"].dtype == varied["contestant"].dtype


def test_classical_methods_are_not_renamed() -> None:
    methods = rows([("left", 0, None), ("right", 0, None)], "knn-3").assign(kind="baseline")
    untrained = rows([("left", 0, None), ("right", 0, None)]).assign(seed=pd.NA)
    assert names(methods) == ["knn-3"] * 2
    assert names(concat(untrained, rows([("x-s0", 0, "a"), ("y-s0", 0, "b")]))) == ["coqe", "coqe", "x", "y"]


def test_a_variant_whose_runs_have_no_words_in_common_is_named_after_the_alphabetically_first_run() -> None:
    assert variant_name(["right", "left"], [0, 1], "bursty", "small") == "left"
    assert variant_name(["right+m", "left+m"], [0, 1], "bursty", "small", "+m") == "left+m"
    assert variant_name(["bursty-x-small-s0", "bursty-x-small-s1"], [0, 1], "bursty", "small") == "x"


def test_variants_with_unique_names_get_no_hash() -> None:
    values = rows([("x-s0", 0, "aaaa1"), ("x-s1", 1, None), ("y-s2", 2, "cccc1")])
    assert names(values) == ["x (aaaa)", "x (unknown)", "y"]
