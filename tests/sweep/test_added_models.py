"""Adding models to packed results of a task whose summary compares contestants episode by episode."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
import tomli_w

from iclbench import tables
from iclbench.config.cards import load_task
from iclbench.core.context import Context
from iclbench.store.cells import CellStore
from iclbench.sweep.cells import SUMMARY, GridCell, grid_cells
from iclbench.sweep.pack import pack
from iclbench.sweep.plan import make_plan
from iclbench.sweep.work import work

SHIFTS = ("none", "ood-lengthscale")


def cells_of(folder: Path, *backbones: str) -> list[GridCell]:
    shipped = load_task("gp-mixture")[1]
    smoke = shipped.presets["smoke"]
    parameters = smoke.parameters | {"targets": 8, "max_related": 1, "related_points": [4, 8]}
    smoke = smoke.model_copy(update={"episodes": 12, "parameters": parameters})
    changes = {"baselines": ["zero", "mean"], "oracles": ["oracle-kernel"], "presets": {"smoke": smoke}}
    task = folder / "few-processes.toml"
    task.write_text(tomli_w.dumps(shipped.model_copy(update=changes).model_dump(mode="json", exclude_none=True)))
    card = {
        "summary": "functions of Gaussian processes",
        "tasks": [str(task)],
        "backbones": list(backbones),
        "presets": ["smoke"],
        "seeds": [0],
        "overrides": {"smoke": {"few": ["train.steps=4"]}},
        "evaluate": {"shifts": ["ood-lengthscale"]},
    }
    path = folder / "grid.toml"
    path.write_text(tomli_w.dumps(card))
    return grid_cells([str(path)])


def sweep(cells: list[GridCell], results: Path) -> None:
    for cell in make_plan(cells, CellStore(results)).todo:
        outcome = work(cell, Context(results))
        assert outcome.status == "done", (cell.run, outcome)


def comparisons(results: Path) -> pd.DataFrame:
    """Return the scores, gaps and adjusted log-likelihoods of all contestants."""
    rows = tables.read_all("values", results)
    rows = rows[rows["metric"].isin(tables.COMPARISON_METRICS)]
    return rows.set_index([*tables.key_columns("values")]).sort_index()[["value", "low", "high"]].astype(float)


@pytest.fixture(scope="module")
def packed_results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame]:
    """Return a folder that contains only packed files, and the scores of all contestants before packing."""
    folder = tmp_path_factory.mktemp("added")
    cells = cells_of(folder, "cnp", "icicl-cnp")
    sweep(cells, folder / "swept")
    scores = comparisons(folder / "swept")
    pack(cells, CellStore(folder / "swept"), folder / "swept" / "reference")
    (folder / "clean").mkdir()
    (folder / "swept" / "reference").rename(folder / "clean" / "reference")
    return folder / "clean", scores


@pytest.mark.slow
def test_only_the_added_model_and_the_summary_are_computed(packed_results: tuple[Path, pd.DataFrame]) -> None:
    clean, before = packed_results
    cells = cells_of(clean.parent, "cnp", "icicl-cnp", "two-path-cnp")
    added = [cell for cell in cells if cell.run == SUMMARY or cell.contestant == "two-path-cnp"]
    assert list(make_plan(cells, CellStore(clean)).todo) == added and len(added) == 3
    sweep(cells, clean)
    assert make_plan(cells, CellStore(clean)).todo == ()
    pack(cells, CellStore(clean), clean / "reference")
    after = comparisons(clean / "reference")
    runs = after.index.get_level_values("run")
    assert {"score", "gap", "log_likelihood_adjusted"} <= set(before.index.get_level_values("metric"))
    other_rows = after[runs != "few-processes-two-path-cnp-few-smoke-s0"]
    pd.testing.assert_frame_equal(other_rows, before, rtol=1e-12, atol=1e-14, check_exact=False)
    added_rows = after[runs == "few-processes-two-path-cnp-few-smoke-s0"].reset_index()
    assert {(row.metric, row.shift) for row in added_rows.itertuples()} >= {
        (metric, shift) for metric in ("score", "gap") for shift in SHIFTS
    }


@pytest.mark.slow
def test_a_packed_cell_has_episode_scores_only_if_all_likelihood_metrics_have_errors(
    packed_results: tuple[Path, pd.DataFrame], tmp_path: Path
) -> None:
    clean = Path(shutil.copytree(packed_results[0], tmp_path / "clean"))
    cells = [cell for cell in cells_of(clean.parent, "cnp", "icicl-cnp") if cell.kind == "evaluate"]
    cells = [cell for cell in cells if cell.run != SUMMARY]
    values, errors = (clean / "reference" / f"few-processes-smoke.{table}.parquet" for table in ("values", "errors"))
    rows = tables.read("values", values)
    skipped = rows[rows["metric"].eq("log_likelihood") & rows["n_related"].eq(0) & rows["axis"].isna()]
    skipped = skipped.drop_duplicates("run").assign(
        prompt_set="another", status="skipped", value=None, low=None, high=None, reason="not applicable"
    )
    tables.write("values", tables.union("values", [rows, skipped]), values, {"packed": "few-processes-smoke"})
    assert all(CellStore(clean).has_episode_scores(cell) for cell in cells) and len(cells) == 5
    error_rows = tables.read("errors", errors)
    tables.write(
        "errors", error_rows[error_rows["metric"].ne("log_likelihood_joint")], errors, {"packed": "few-processes-smoke"}
    )
    incomplete = {cell.contestant for cell in cells if not CellStore(clean).has_episode_scores(cell)}
    assert incomplete == {"cnp", "icicl-cnp", "oracle-kernel"}


def test_squared_errors_under_a_shift_are_packed_only_for_point_predictors(
    packed_results: tuple[Path, pd.DataFrame],
) -> None:
    folder = packed_results[0] / "reference"
    errors = tables.read("errors", folder / "few-processes-smoke.errors.parquet")
    values = tables.read("values", folder / "few-processes-smoke.values.parquet")
    shifted = set(values.loc[values["shift"].eq("ood-lengthscale"), "prompt_set"])
    shifted_errors = errors[errors["prompt_set"].isin(shifted)]
    by_likelihood = shifted_errors["metric"].eq("log_likelihood")
    assert set(shifted_errors["metric"]) == {"log_likelihood", "log_likelihood_joint", "squared_error"}
    assert set(shifted_errors.loc[by_likelihood, "run"]) > {"few-processes-cnp-few-smoke-s0", "oracle-kernel"}
    assert set(shifted_errors.loc[shifted_errors["metric"].eq("squared_error"), "run"]) == {"zero", "mean"}
