"""Slices, built from hand-made rows: training lengths, prompt sets and failed seeds."""

import pandas as pd
import pytest

from iclbench import tables
from iclbench.analysis.episode_scores import EpisodeScores
from iclbench.analysis.slices import Results, Slice, is_branch
from tests.analysis.hand_made import FAILED, MODEL, ZERO, results_of, slice_of

TARGETS = {"evaluator": "targets", "metric": "squared_error", "n_related": 0}


def test_baselines_get_the_training_length_of_hidden_models_on_the_same_prompts() -> None:
    curves = {"evaluator": "next", "metric": "squared_error"}
    hidden = [MODEL | curves | {"n_context": n} for n in (0, 8)]
    assert results_of([ZERO | curves | {"n_context": 0}], hidden=hidden).trained_lengths.tolist() == [8]
    assert results_of([ZERO | curves | {"n_context": 0}]).trained_lengths.isna().all()


def test_the_prompt_set_of_targets_is_the_one_without_a_shift() -> None:
    rows = [ZERO | TARGETS | {"shift": "noisy-1", "prompt_set": "q"}, ZERO | TARGETS]
    assert slice_of(*rows).target_prompt_set == "p"
    assert slice_of(rows[0]).target_prompt_set is None
    without_prompts = MODEL | TARGETS | {"prompt_set": None}
    assert slice_of(without_prompts, *rows).target_prompt_set == "p"


def test_a_failed_evaluation_of_a_branch_does_not_remove_the_values_of_the_run() -> None:
    failed = FAILED | {"n_related": None}
    branch_row = MODEL | TARGETS | failed | {"axis": "branch", "axis_value": 10}
    other_seed = MODEL | TARGETS | failed | {"run": "m-s1"}
    for failed_row, contestants in ((branch_row, ["m", "zero"]), (other_seed, ["zero"])):
        task = slice_of(MODEL | TARGETS, ZERO | TARGETS, failed_row)
        assert sorted(task.targets["contestant"]) == contestants


def test_rows_without_failed_contestants_are_numbered_from_0() -> None:
    failed = MODEL | TARGETS | FAILED
    other_seed = MODEL | TARGETS | {"run": "m-s1"}
    task = slice_of(failed, other_seed, ZERO | TARGETS, ZERO | TARGETS | {"shift": "noisy-1"})
    successful_rows = task.without_failed(task.rows[task.rows["status"].eq("ok")])
    assert successful_rows.index.tolist() == [0, 1] and successful_rows.columns.tolist() == task.rows.columns.tolist()
    assert task.targets.index.tolist() == [0, 1]
    assert set(task.targets.columns) == {*task.targets_by_run.columns, "evaluator"}


def test_costs_for_a_training_length_are_from_its_runs_and_exclude_evaluations_of_other_lengths() -> None:
    """Costs of training steps do not depend on the length of an evaluation."""
    curves = {"evaluator": "next", "metric": "squared_error"}
    runs = [MODEL | curves | {"run": run, "contestant": run, "n_context": n} for run, n in (("short", 4), ("long", 8))]
    cost = {"task": "t", "preset": "smoke", "metric": "seconds", "value": 1.0, "device": "cpu", "version": "0"}
    cost |= {"threads": 1}
    costs = [
        cost | {"run": run, "contestant": run, "phase": phase, "n_points": n}
        for run in ("short", "long")
        for phase, n in (("evaluate", 4), ("evaluate", 8), ("evaluate", None), ("train_step", 4))
    ]
    results = Results(tables.frame("values", runs), EpisodeScores((), set()), tables.frame("costs", costs))
    actual = Slice(results, "t", "smoke", 8).costs
    assert actual[["run", "phase", "n_points"]].to_numpy().tolist() == [
        ["long", "evaluate", 8],
        ["long", "evaluate", pd.NA],
        ["long", "train_step", 4],
    ]
    assert len(Slice(results, "t", "smoke").costs) == 8


NEXT = {"evaluator": "next", "metric": "squared_error"}
DIVERGED = FAILED | {"evaluator": "train", "metric": "loss", "axis": "train_step", "axis_value": 5, "prompt_set": None}
ICL = {"evaluator": "icl", "metric": "accuracy_within_choices"}


def contestants(rows: pd.DataFrame) -> list[str]:
    return sorted(rows["contestant"])


def test_there_is_a_slice_for_each_measured_task_preset_and_training_length() -> None:
    curve = MODEL | NEXT
    rows = [
        curve | {"task": "u", "run": "u-m-s0", "n_context": 4, "prompt_set": "u"},
        curve | {"run": "n-s0", "contestant": "n", "n_context": 16, "prompt_set": "q"},
        curve | {"n_context": 8},
        curve | {"preset": "grid", "run": "g-s0", "n_context": 4, "prompt_set": "r"},
        ZERO | NEXT | {"task": "v", "kind": "published", "n_context": 4},
        ZERO | NEXT | {"n_context": 8},
        ZERO | NEXT | {"n_context": 16, "prompt_set": "q"},
        ZERO | NEXT | {"n_context": 2, "prompt_set": "s"},
    ]
    results = results_of(rows)
    assert results.slice_keys == [("t", "grid", None), ("t", "smoke", 8), ("t", "smoke", 16), ("u", "smoke", None)]
    assert [(task.task, task.preset, task.length) for task in results.slices] == results.slice_keys
    assert results.trained_lengths_by_run == {"u-m-s0": 4, "m-s0": 8, "n-s0": 16, "g-s0": 4}
    overall, short, long = (Slice(results, "t", "smoke", n) for n in (None, 8, 16))
    assert [task.id for task in (overall, short)] == ["t-smoke", "t-smoke-trained-8"]
    assert [task.name for task in (overall, short)] == ["t", "t (8)"]
    assert overall.title in short.title and "8" in short.title and "t" in overall.title and "smoke" in overall.title
    assert len(overall.rows) == 5 and "Results" not in repr(overall)
    # Rows without a known length belong to every slice.
    assert short.rows[["run", "n_context"]].to_numpy().tolist() == [["m-s0", 8], ["zero", 8], ["zero", 2]]
    assert long.rows[["run", "n_context"]].to_numpy().tolist() == [["n-s0", 16], ["zero", 16], ["zero", 2]]


def test_the_training_length_of_a_slice_is_the_maximum_over_its_runs() -> None:
    runs = [MODEL | NEXT | {"run": f"m-s{n}", "n_context": n, "prompt_set": str(n)} for n in (4, 8, 6)]
    other = MODEL | NEXT | {"run": "n-s0", "n_context": 16, "prompt_set": "q", "task": "u"}
    transferred = other | {"task": "t", "trained_on": "u", "contestant": "m@u", "prompt_set": "8"}
    task = slice_of(*runs, other, transferred, MODEL | NEXT | {"run": "unknown-s0", "prompt_set": "r"})
    assert task.trained_length == 8
    assert task.results.trained_lengths_by_run == {"m-s4": 4, "m-s8": 8, "m-s6": 6, "n-s0": 16}
    assert slice_of(ZERO | NEXT | {"n_context": 4}).trained_length is None


def test_contestants_are_grouped_by_their_columns() -> None:
    columns = {"model": "m", "backbone": "m"}
    rows = [
        MODEL | NEXT,
        MODEL | NEXT | {"run": "w-s0", "contestant": "m-wide"},
        MODEL | NEXT | {"run": "m-s0+dt", "contestant": "m+dt", "method": "+dt", "backbone": "m+dt"},
        MODEL | NEXT | {"run": "u-s0", "contestant": "m@u", "trained_on": "u", "backbone": "n"},
        MODEL | NEXT | {"run": "v-s0", "task": "v"},
        MODEL | NEXT | {"run": "g-s0", "preset": "grid"},
        ZERO | NEXT | {"model": "zero", "backbone": "zero"},
        ZERO | NEXT | {"kind": "published", "run": "paper", "contestant": "paper", "backbone": "x"},
    ]
    rows = [columns | row for row in rows]
    frame = tables.frame("values", [{k: v for k, v in row.items() if k != "backbone"} for row in rows])
    frame = frame.assign(backbone=[row["backbone"] for row in rows])
    results = Results(frame, EpisodeScores((), set()), tables.frame("costs", []))
    assert results.method_contestants == {"m+dt"}
    assert results.other_training_tasks == {"m@u": "u"}
    assert results.variants == {"m-wide"}
    assert results.backbones == {"smoke": {"t": ["m"], "v": ["m"]}, "grid": {"t": ["m"]}}
    assert results.published_rows["run"].tolist() == ["paper"]
    task = Slice(results, "t", "smoke")
    assert task.models == dict.fromkeys(("m", "m-wide", "m+dt", "m@u", "paper"), "m") | {"zero": "zero"}
    assert task.kinds == dict.fromkeys(("m", "m-wide", "m+dt", "m@u"), "backbone") | {"zero": "baseline"}
    assert task.runs_by_backbone == {"m": ["m-s0"], "m+dt": ["m-s0+dt"], "m-wide": ["w-s0"], "m@u": ["u-s0"]}
    assert task.published_rows["run"].tolist() == ["paper"]
    assert Slice(results, "v", "smoke").published_rows.empty


def test_the_runs_of_a_backbone_are_sorted() -> None:
    rows = [MODEL | NEXT | {"run": f"m-s{seed}", "n_context": n} for seed in (2, 0, 1) for n in (0, 1)]
    assert slice_of(*rows).runs_by_backbone == {"m": ["m-s0", "m-s1", "m-s2"]}


def test_extrapolations_and_related_processes_are_read_from_the_columns_of_shifts() -> None:
    rows = [
        ZERO | NEXT,
        *(
            ZERO | NEXT | {"shift": "far+points-64", "distribution": "far", "extrapolated_to": 64, "n_context": n}
            for n in (0, 1)
        ),
        ZERO | NEXT | {"shift": "points-64", "distribution": "none", "extrapolated_to": 64},
        ZERO | NEXT | {"shift": "mismatch-far", "distribution": "mismatch-far", "related_from": "far"},
    ]
    task = slice_of(*rows)
    assert task.extrapolations == {"far+points-64": ("far", 64), "points-64": ("none", 64)}
    assert task.related_processes == {"mismatch-far": "far"}


def test_failed_rows_exclude_branches_diagnostics_and_training() -> None:
    rows = [
        MODEL | NEXT,
        MODEL | NEXT | FAILED | {"n_context": 4},
        MODEL | TARGETS | FAILED | {"status": "skipped"},
        MODEL | NEXT | FAILED | {"axis": "branch", "axis_value": 10},
        MODEL | FAILED | {"evaluator": "rank", "metric": "effective_rank"},
        MODEL | DIVERGED,
    ]
    assert slice_of(*rows).failed_rows.index.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("finished", "diverged", "is_removed"),
    [
        ({}, {}, False),
        ({}, {"variant": "a"}, True),
        ({}, {"variant": None}, True),
        ({}, {"variant": "a", "evaluator": "next"}, False),
        ({}, {"variant": "a", "status": "ok", "value": 1.0}, False),
        ({"axis": "train_step", "axis_value": 5}, {}, True),
        ({"evaluator": "rank", "metric": "effective_rank"}, {}, True),
        (FAILED, {}, True),
        ({"kind": "baseline"}, {}, True),
        ({"contestant": "n"}, {}, True),
    ],
)
def test_a_diverged_run_removes_its_contestant_unless_a_run_of_another_variant_was_evaluated(
    finished: dict[str, object], diverged: dict[str, object], is_removed: bool
) -> None:
    run = MODEL | NEXT | {"variant": "a"} | finished
    task = slice_of(run, MODEL | DIVERGED | {"run": "m-s1", "variant": "b"} | diverged, ZERO | NEXT)
    assert len(task.diverged_rows) == is_removed
    names = set(task.without_diverged(task.rows)["contestant"])
    assert ("m" in names) == (not is_removed) and "zero" in names


@pytest.mark.parametrize(
    ("changes", "is_removed"), [({"n_context": 8}, False), (FAILED | {"n_context": 8}, True), ({"metric": "auc"}, True)]
)
def test_in_a_slice_with_a_length_only_runs_of_known_length_count_as_evaluated(
    changes: dict[str, object], is_removed: bool
) -> None:
    run = MODEL | NEXT | {"variant": "a"} | changes
    task = slice_of(run, MODEL | DIVERGED | {"run": "m-s1", "variant": "b"}, length=8)
    assert len(task.diverged_rows) == is_removed


def test_methods_on_a_diverged_model_are_removed_and_mentioned_in_the_note() -> None:
    rows = [
        MODEL | DIVERGED | {"run": "m-s1"},
        MODEL | NEXT | {"run": "m-s0+dt", "contestant": "m+dt", "method": "+dt"},
        MODEL | NEXT | {"run": "n-s0+dt", "contestant": "n+dt", "method": "+dt"},
        ZERO | NEXT,
    ]
    task = slice_of(*rows)
    assert contestants(task.without_diverged(task.rows)) == ["n+dt", "zero"]
    assert "m, m+dt" in task.diverged_note and "n+dt" not in task.diverged_note
    assert slice_of(*rows[1:]).diverged_note == ""


CURVES = [MODEL | NEXT | {"run": f"m-s{seed}", "n_context": n, "value": seed + n} for seed in (0, 1) for n in (0, 1)]
NO_CURVES = [
    ZERO | NEXT | {"kind": "published", "run": "paper", "n_context": 0},
    ZERO | NEXT | {"n_context": 0, "axis": "branch", "axis_value": 10},
    ZERO | {"evaluator": "rank", "metric": "effective_rank", "n_context": 0},
    ZERO | NEXT | {"metric": "auc"},
]


def test_curves_are_available_for_single_runs_and_as_means_over_runs() -> None:
    task = slice_of(*CURVES, *NO_CURVES, MODEL | NEXT | FAILED | {"run": "m-s2", "n_context": 2})
    assert task.curves[["n_context", "value", "runs"]].to_numpy().tolist() == [[0, 0.5, 2], [1, 1.5, 2]]
    assert task.curves_by_run[["run", "n_context", "value"]].to_numpy().tolist() == [
        [f"m-s{seed}", n, seed + n] for seed in (0, 1) for n in (0, 1)
    ]
    assert set(task.curves) == set(task.curves_by_run) and set(task.summaries) == {*task.curves} - {"n_context"}


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({"n_context": 1}, [0]),
        ({}, []),
        ({"metric": "auc"}, [0, 1]),
        ({"shift": "noisy-1"}, [0, 1]),
        ({"evaluator": "icl"}, [0, 1]),
        (DIVERGED, []),
    ],
)
def test_means_of_curves_omit_context_sizes_at_which_a_run_failed(changes: dict[str, object], sizes: list[int]) -> None:
    zero = [ZERO | NEXT | {"n_context": n} for n in (0, 1)]
    curves = slice_of(*CURVES, *zero, MODEL | NEXT | FAILED | {"run": "m-s2"} | changes).curves
    assert curves.loc[curves["contestant"].eq("m"), "n_context"].tolist() == sizes
    assert curves["contestant"].eq("zero").sum() == 2 and curves.index.tolist() == list(range(len(curves)))


def test_summaries_are_numbers_for_whole_curves() -> None:
    area = {"evaluator": "next", "metric": "auc"}
    rows = [
        *(MODEL | area | {"run": f"m-s{seed}", "value": float(seed)} for seed in (0, 1)),
        MODEL | area | {"run": "n-s0", "contestant": "n"},
        ZERO | area,
        ZERO | area | {"metric": "score"},
        ZERO | NEXT | {"n_context": 4},
        ZERO | area | {"n_related": 0, "evaluator": "targets"},
        ZERO | area | {"kind": "published", "run": "paper"},
        ZERO | area | {"axis": "branch", "axis_value": 10},
        ZERO | area | {"evaluator": "solutions"},
        MODEL | NEXT | FAILED | {"run": "n-s1", "contestant": "n", "n_context": 4},
    ]
    frame = slice_of(*rows).summaries
    assert frame[["metric", "kind", "contestant", "value"]].to_numpy().tolist() == [
        ["auc", "backbone", "m", 0.5],
        ["auc", "baseline", "zero", 1.0],
        ["score", "baseline", "zero", 1.0],
    ]


TARGET_SCORES = [
    *(
        MODEL | TARGETS | {"run": f"m-s{seed}", "n_related": n, "value": seed + 2.0 * n}
        for seed in (0, 1)
        for n in (0, 1)
    ),
    ZERO | TARGETS,
]


def test_scores_of_targets_are_means_over_runs_at_every_number_of_related_datasets() -> None:
    task = slice_of(
        *TARGET_SCORES,
        ZERO | TARGETS | {"axis": "stratum:a", "stratum": "a", "value": 2.0},
        ZERO | TARGETS | {"axis": "n_context", "axis_value": 4, "value": 3.0},
        ZERO | TARGETS | {"axis": "branch", "axis_value": 10},
        ZERO | TARGETS | {"kind": "published", "run": "paper"},
        ZERO | TARGETS | {"n_related": None, "metric": "accuracy"},
        ZERO | TARGETS | {"evaluator": "icl"},
        MODEL | TARGETS | FAILED | {"run": "m-s2", "n_related": 2},
    )
    means = task.targets.sort_values(["contestant", "n_related", "value"])
    assert means[["contestant", "n_related", "value", "runs"]].to_numpy().tolist() == [
        ["m", 0, 0.5, 2],
        ["m", 1, 2.5, 2],
        ["zero", 0, 1.0, 1],
        ["zero", 0, 2.0, 1],
        ["zero", 0, 3.0, 1],
    ]
    assert len(task.targets_by_run) == 7


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({"n_related": None}, []),
        ({"n_related": 1}, [0]),
        ({"n_related": 1, "metric": "log_likelihood"}, [0, 1]),
        ({"n_related": 1, "shift": "noisy-1"}, [0, 1]),
        ({"n_related": None, "shift": "noisy-1"}, [0, 1]),
        ({"n_related": None, "evaluator": "icl"}, [0, 1]),
        ({"n_related": 1, "axis": "n_context", "axis_value": 4}, [0, 1]),
        ({"n_related": None, "status": "skipped"}, [0, 1]),
        (DIVERGED | {"n_related": None}, []),
    ],
)
def test_scores_of_targets_omit_numbers_of_related_datasets_at_which_a_run_failed(
    changes: dict[str, object], counts: list[int]
) -> None:
    means = slice_of(*TARGET_SCORES, MODEL | TARGETS | FAILED | {"run": "m-s2"} | changes).targets
    assert means.loc[means["contestant"].eq("m"), "n_related"].tolist() == counts
    assert means["contestant"].eq("zero").sum() == 1


def test_rank_and_representation_rows_exclude_contestants_with_a_failed_run() -> None:
    rank = {"evaluator": "rank", "metric": "effective_rank", "axis": "layer", "axis_value": 1}
    rows = [
        MODEL | rank,
        MODEL | rank | {"evaluator": "representation", "metric": "r_squared"},
        MODEL | rank | {"run": "n-s0", "contestant": "n"},
        MODEL | rank | FAILED | {"run": "n-s1", "contestant": "n"},
        MODEL | rank | {"run": "n-s0", "contestant": "n", "evaluator": "representation", "metric": "r_squared"},
        MODEL | rank | {"evaluator": "probe"},
        MODEL | rank | {"run": "d-s0", "contestant": "d"},
        MODEL | DIVERGED | {"run": "d-s1", "contestant": "d"},
    ]
    assert slice_of(*rows).rank_and_representation_rows.index.tolist() == [0, 1, 4]


def test_branches_are_a_mask_without_missing_values() -> None:
    mask = is_branch(tables.frame("values", [ZERO | NEXT | {"axis": axis} for axis in ("branch", None, "layer")]))
    assert mask.dtype == bool and mask.tolist() == [True, False, False]


def test_probes_omit_runs_on_prompts_where_one_of_their_layers_failed() -> None:
    probe = {"evaluator": "probe", "metric": "r_squared", "axis": "layer", "n_context": 4}
    rows = [
        MODEL | probe | {"axis_value": 0},
        MODEL | probe | {"axis_value": 0, "evaluator": "gamma_search"},
        MODEL | probe | {"axis_value": 0, "n_context": 8},
        MODEL | probe | {"axis_value": 0, "shift": "noisy-1"},
        MODEL | probe | {"axis_value": 0, "prompt_set": "q"},
        MODEL | probe | {"axis_value": 0, "run": "m-s1"},
        MODEL | probe | {"axis_value": 0, "evaluator": "rank"},
    ]
    assert slice_of(*rows).probes.index.tolist() == [0, 1, 2, 3, 4, 5]
    assert slice_of(*rows, MODEL | probe | FAILED | {"axis_value": 1}).probes.index.tolist() == [2, 3, 4, 5]


def test_accuracies_are_those_on_tests_without_a_shift() -> None:
    rows = [
        MODEL | ICL,
        MODEL | ICL | {"axis": "train_step", "axis_value": 10, "value": 0.5},
        MODEL | ICL | {"evaluator": "targets"},
        ZERO | ICL,
        *(
            ZERO | ICL | {"value": 9.0} | changes
            for changes in (
                {"metric": "accuracy"},
                {"evaluator": "next"},
                {"evaluator": "probe"},
                {"shift": "noisy-1"},
                {"axis": "layer", "axis_value": 1},
                {"kind": "published", "run": "paper"},
            )
        ),
        MODEL | ICL | FAILED | {"run": "m-s1"},
        MODEL | ICL | {"run": "d-s0", "contestant": "d"},
        MODEL | DIVERGED | {"run": "d-s1", "contestant": "d"},
    ]
    frame = slice_of(*rows).accuracies_by_run
    assert frame[["evaluator", "run", "value"]].to_numpy().tolist() == [
        ["icl", "m-s0", 0.5],
        ["icl", "m-s0", 1.0],
        ["icl", "zero", 1.0],
        ["targets", "m-s0", 1.0],
    ]
    assert frame["axis"].dropna().tolist() == ["train_step"]
