"""Cells: what a grid card stands for, and hashes that change with what rows depend on and with nothing else."""

from pathlib import Path
from typing import Any

import pytest
import tomli_w

from iclbench.sweep.cells import SUMMARY, GridCell, grid_cells
from iclbench.sweep.grids import grid_runs
from tests.conftest import small_card
from tests.sweep.conftest import tiny_grid


def hashes(cells: list[GridCell]) -> dict[tuple[object, ...], str]:
    """By what each cell is about."""
    return {(cell.kind, cell.run, cell.task, cell.options.get("probe")): cell.hash for cell in cells}


def changed(before: list[GridCell], after: list[GridCell]) -> set[tuple[str, str]]:
    """Kind and run of cells whose hash is another one."""
    old, new = hashes(before), hashes(after)
    assert old.keys() == new.keys()
    return {(str(key[0]), str(key[1])) for key in old if old[key] != new[key]}


def one_task(folder: Path, grid: dict[str, Any] | None = None, **card: object) -> list[GridCell]:
    """The cells of one backbone on one task of two baselines and an oracle."""
    folder.mkdir(exist_ok=True)
    task = folder / "tiny.toml"
    task.write_text(tomli_w.dumps(small_card(**card)))
    asked = {
        "summary": "one",
        "tasks": [str(task)],
        "backbones": ["gpt2"],
        "presets": ["smoke"],
        "seeds": [0],
        "evaluate": {"shifts": ["orthants", "noisy"]},
        "probe": {},
        "cost": {"points": [4, 6]},
        **(grid or {}),
    }
    path = folder / "one.toml"
    path.write_text(tomli_w.dumps(asked))
    return grid_cells([str(path)])


RUN = "tiny-gpt2-smoke-s0"
EVERYONE = {("evaluate", name) for name in ("zero", "mean", "knn-3", "least-squares", RUN, SUMMARY)}


def test_overrides_without_any_leave_the_runs_as_they_are(tmp_path: Path) -> None:
    plain, none = (one_task(tmp_path, {"overrides": given}) for given in ({}, {"smoke": {}}))
    assert [cell.hash for cell in none] == [cell.hash for cell in plain]


def test_every_run_baseline_and_probe_is_a_cell_and_one_sums_up(tmp_path: Path) -> None:
    cells = one_task(tmp_path)
    assert {(cell.kind, cell.run) for cell in cells} == EVERYONE | {(k, RUN) for k in ("train", "probe", "cost")}
    assert len({cell.hash for cell in cells}) == len(cells) == 9
    by_name = {(cell.kind, cell.run): cell for cell in cells}
    train, summary = by_name["train", RUN], by_name["evaluate", SUMMARY]
    for kind in ("evaluate", "probe"):
        assert by_name[kind, RUN].needs == (train.hash,)
    assert by_name["cost", RUN].needs == (), "weights do not matter to what a backbone costs"
    assert set(summary.needs) == {by_name[key].hash for key in EVERYONE - {("evaluate", SUMMARY)}}
    assert by_name["evaluate", RUN].options["shifts"] == ["none", "orthants", "noisy-1"]
    assert by_name["cost", RUN].options["points"] == [4, 6, 8]
    assert [cell.run for cell in cells].index(SUMMARY) == 8


def test_notes_names_of_files_and_orders_change_no_hash(tmp_path: Path) -> None:
    before = one_task(tmp_path / "a")
    turned = {"evaluate": {"shifts": ["noisy", "orthants"]}, "cost": {"points": [6, 4]}, "notes": "turned around"}
    after = one_task(tmp_path / "b", turned, notes="a note", summary="another", source="a paper")
    assert not changed(before, after)


@pytest.mark.parametrize(
    ("grid", "card", "expected"),
    [
        # What is trained: the run, and what sums it up.
        (
            {},
            {"presets": {"train": {"lr": 2e-3}}},
            {(kind, RUN) for kind in ("train", "evaluate", "probe", "cost")} | {("evaluate", SUMMARY)},
        ),
        # How long it is evaluated: nothing that is trained.
        ({}, {"presets": {"episodes": 64}}, EVERYONE | {("probe", RUN)}),
        ({"evaluate": {"shifts": ["orthants"]}}, {}, EVERYONE),
        ({"evaluate": {"shifts": ["orthants", "noisy"], "seed": 1}}, {}, EVERYONE),
        ({"cost": {"points": [4]}}, {}, {("cost", RUN)}),
        ({"probe": {"contexts": {"smoke": [4]}}}, {}, {("probe", RUN)}),
        # Who is the ceiling: kinds, gaps and scores, and the levels beside a probe.
        (
            {},
            {"oracles": [], "baselines": ["zero", "mean", "knn-3", "least-squares"]},
            {("evaluate", "least-squares"), ("evaluate", SUMMARY), ("probe", RUN)},
        ),
        # Published numbers are rows of the summary.
        (
            {},
            {"published": [{"contestant": "gpt2", "value": 0.1, "source": "a", "read": "b"}]},
            {("evaluate", SUMMARY)},
        ),
    ],
)
def test_a_hash_changes_with_what_the_rows_depend_on(
    tmp_path: Path, grid: dict[str, Any], card: dict[str, Any], expected: set[tuple[str, str]]
) -> None:
    before = one_task(tmp_path / "a")
    smoke: dict[str, Any] = small_card()["presets"]["smoke"]  # type: ignore[index]
    changes = card.pop("presets", {})
    train = smoke["train"] | changes.pop("train", {})
    after = one_task(tmp_path / "b", grid, presets={"smoke": smoke | changes | {"train": train}}, **card)
    assert changed(before, after) == expected


def test_runs_of_one_configuration_and_two_names_are_two_cells(tmp_path: Path) -> None:
    """Their rows say different runs, whoever trains first."""
    variants = {"smoke": {"own": [], "same": ["train.lr=1e-3"]}}
    trained = [cell for cell in one_task(tmp_path, {"overrides": variants}) if cell.kind == "train"]
    assert [cell.run for cell in trained] == [RUN, "tiny-gpt2-same-smoke-s0"]
    assert trained[0].config == trained[1].config
    assert trained[0].hash != trained[1].hash


def test_two_grids_share_the_cells_that_both_ask_for(tmp_path: Path) -> None:
    narrow = tiny_grid(tmp_path, probe=None)
    both = tmp_path / "both.toml"
    both.write_text(narrow.read_text().replace('"cnp"', '"tnp"'))
    apart = [grid_cells([str(path)]) for path in (narrow, both)]
    together = {cell.hash for cell in grid_cells([str(narrow), str(both)])}
    shared = {cell.hash for cell in apart[0]} & {cell.hash for cell in apart[1]}
    assert {cell.run for cell in apart[0] if cell.hash in shared} == {
        "zero",
        "mean",
        "knn-3",
        "least-squares",
        "tiny-linear-gpt2-smoke-s0",
        "tiny-quadratic-gpt2-smoke-s0",
    }
    summaries = {cell.hash for cell in (*apart[0], *apart[1]) if cell.run == SUMMARY}
    assert {cell.hash for cell in (*apart[0], *apart[1])} - summaries == together - {
        cell.hash for cell in grid_cells([str(narrow), str(both)]) if cell.run == SUMMARY
    }


def test_baselines_answer_everything_that_any_run_is_asked_on_prompts_of_one_seed(tmp_path: Path) -> None:
    more = [
        {
            "tasks": [str(tmp_path / "tiny.toml")],
            "backbones": ["cnp"],
            "presets": ["smoke"],
            "seeds": [0],
            "evaluate": {"shifts": ["noisy"], "baselines": ["zero"]},
        },
        {
            "tasks": [str(tmp_path / "tiny.toml")],
            "backbones": ["tnp"],
            "presets": ["smoke"],
            "seeds": [0],
            "evaluate": {"seed": 1, "baselines": ["zero"]},
        },
    ]
    cells = one_task(tmp_path, {"evaluate": {"shifts": ["orthants"]}, "more": more})
    asked = [cell.options for cell in cells if cell.run == "zero"]
    assert asked == [
        {"shifts": ["none", "orthants", "noisy-1"], "evaluators": [], "seed": 0},
        {"shifts": ["none"], "evaluators": [], "seed": 1},
    ]
    assert [cell.options["shifts"] for cell in cells if cell.run == "knn-3"] == [["none", "orthants"]]
    assert [cell.options["seed"] for cell in cells if cell.run == SUMMARY] == [0, 1]


def test_a_pair_that_makes_no_sense_keeps_its_cells_with_the_reason_and_nobody_waits_for_them(tmp_path: Path) -> None:
    without = [{"tasks": [str(tmp_path / "tiny.toml")], "backbones": ["icicl-cnp"], "reason": "no related datasets"}]
    cells = one_task(tmp_path, {"backbones": ["gpt2", "icicl-cnp"], "without": without})
    none = [cell for cell in cells if cell.contestant == "icicl-cnp"]
    assert {cell.kind for cell in none} == {"train", "evaluate", "probe", "cost"}
    assert {cell.reason for cell in none} == {"no related datasets"}
    (summary,) = [cell for cell in cells if cell.run == SUMMARY]
    assert not {cell.hash for cell in none} & set(summary.needs)


def test_a_baseline_that_cannot_answer_the_task_makes_no_sense_and_nobody_waits_for_it(tmp_path: Path) -> None:
    """One list of baselines may stand over tasks of numbers and of labels; oracles stand beside it."""
    cells = one_task(tmp_path, {"evaluate": {"baselines": ["zero", "majority"]}})
    by_name = {cell.run: cell for cell in cells if cell.kind == "evaluate"}
    why = "baseline 'majority' predicts class labels, task 'tiny' asks for numbers"
    assert by_name["majority"].reason == why and by_name["zero"].reason is None
    assert set(by_name[SUMMARY].needs) == {by_name[name].hash for name in ("least-squares", "zero", RUN)}
    (run,) = grid_runs(str(tmp_path / "one.toml"))
    assert "--baseline least-squares --baseline zero" in " ".join(run.commands()) and "majority" not in " ".join(
        run.commands()
    )


def test_a_baseline_of_the_users_own_is_found_by_its_path(tmp_path: Path) -> None:
    own = tmp_path / "nearest.toml"
    own.write_text(tomli_w.dumps({"estimator": "knn", "summary": "mine", "settings": {"k": 1}}))
    cells = one_task(tmp_path, {"evaluate": {"baselines": ["zero", str(own)]}})
    (mine,) = [cell for cell in cells if cell.run == "nearest"]
    assert mine.baseline == str(own)
    own.write_text(tomli_w.dumps({"estimator": "knn", "summary": "mine", "settings": {"k": 2}}))
    again = one_task(tmp_path, {"evaluate": {"baselines": ["zero", str(own)]}})
    assert {cell.hash for cell in again if cell.run == "nearest"} != {mine.hash}
