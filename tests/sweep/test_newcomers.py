"""Whoever comes later to packed results of a task whose summary compares by episode."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
import tomli_w

from iclbench import tables
from iclbench.config.cards import load_task
from iclbench.core.context import Context
from iclbench.store.cells import Store
from iclbench.sweep.cells import SUMMARY, GridCell, grid_cells
from iclbench.sweep.pack import pack
from iclbench.sweep.plan import plan
from iclbench.sweep.work import work

SHIFTS = ("none", "ood-lengthscale")


def cells_of(folder: Path, *backbones: str) -> list[GridCell]:
    shipped = load_task("gp-mixture")[1]
    smoke = shipped.presets["smoke"].model_copy(update={"episodes": 12})
    few = {"baselines": ["zero", "mean"], "oracles": ["oracle-kernel"], "presets": {"smoke": smoke}}
    few["presets"]["smoke"].parameters.update({"targets": 8, "max_related": 1, "related_points": [4, 8]})
    task = folder / "few-processes.toml"
    task.write_text(tomli_w.dumps(shipped.model_copy(update=few).model_dump(mode="json", exclude_none=True)))
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
    for cell in plan(cells, Store(results)).todo:
        outcome = work(cell, Context(results))
        assert outcome.status == "done", (cell.run, outcome)


def comparing(results: Path) -> pd.DataFrame:
    """Scores, gaps and what follows from them, of everybody."""
    rows = tables.read_all("values", results)
    rows = rows[rows["metric"].isin(tables.COMPARING)]
    return rows.set_index([*tables.keys("values")]).sort_index()[["value", "low", "high"]].astype(float)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame]:
    """A folder with nothing but packed files, and what compared those in it when they were found."""
    folder = tmp_path_factory.mktemp("newcomers")
    cells = cells_of(folder, "cnp", "icicl-cnp")
    sweep(cells, folder / "swept")
    found = comparing(folder / "swept")
    pack(cells, Store(folder / "swept"), folder / "swept" / "reference")
    (folder / "clean").mkdir()
    (folder / "swept" / "reference").rename(folder / "clean" / "reference")
    return folder / "clean", found


@pytest.mark.slow
def test_alone_are_computed_and_summed_up_with_those_who_are_there(packed: tuple[Path, pd.DataFrame]) -> None:
    clean, before = packed
    cells = cells_of(clean.parent, "cnp", "icicl-cnp", "two-path-cnp")
    new = [cell for cell in cells if cell.run == SUMMARY or cell.contestant == "two-path-cnp"]
    assert list(plan(cells, Store(clean)).todo) == new and len(new) == 3
    sweep(cells, clean)
    assert plan(cells, Store(clean)).todo == ()
    pack(cells, Store(clean), clean / "reference")
    after = comparing(clean / "reference")
    runs = after.index.get_level_values("run")
    assert {"score", "gap", "log_likelihood_adjusted"} <= set(before.index.get_level_values("metric"))
    theirs = after[runs != "few-processes-two-path-cnp-few-smoke-s0"]
    pd.testing.assert_frame_equal(theirs, before, rtol=1e-12, atol=1e-14, check_exact=False)
    own = after[runs == "few-processes-two-path-cnp-few-smoke-s0"].reset_index()
    assert {(row.metric, row.shift) for row in own.itertuples()} >= {
        (metric, shift) for metric in ("score", "gap") for shift in SHIFTS
    }


def test_episodes_are_asked_for_where_an_oracle_has_likelihoods_and_all_metrics_of_them(
    packed: tuple[Path, pd.DataFrame], tmp_path: Path
) -> None:
    clean = Path(shutil.copytree(packed[0], tmp_path / "clean"))
    cells = [cell for cell in cells_of(clean.parent, "cnp", "icicl-cnp") if cell.kind == "evaluate"]
    cells = [cell for cell in cells if cell.run != SUMMARY]
    values, errors = (clean / "reference" / f"few-processes-smoke.{table}.parquet" for table in ("values", "errors"))
    rows = tables.read("values", values)
    skipped = rows[rows["metric"].eq("log_likelihood") & rows["n_related"].eq(0) & rows["axis"].isna()]
    skipped = skipped.drop_duplicates("run").assign(
        prompt_set="another", status="skipped", value=None, low=None, high=None, reason="makes no sense"
    )
    tables.write("values", tables.union("values", [rows, skipped]), values, {"packed": "few-processes-smoke"})
    assert all(Store(clean).has_episodes(cell) for cell in cells) and len(cells) == 5
    joint = tables.read("errors", errors)
    tables.write("errors", joint[joint["metric"].ne("log_likelihood_joint")], errors, {"packed": "few-processes-smoke"})
    without = {cell.contestant for cell in cells if not Store(clean).has_episodes(cell)}
    assert without == {"cnp", "icicl-cnp", "oracle-kernel"}


def test_errors_under_a_shift_are_those_of_which_likelihoods_are_compared(packed: tuple[Path, pd.DataFrame]) -> None:
    folder = packed[0] / "reference"
    errors = tables.read("errors", folder / "few-processes-smoke.errors.parquet")
    values = tables.read("values", folder / "few-processes-smoke.values.parquet")
    shifted = set(values.loc[values["shift"].eq("ood-lengthscale"), "prompt_set"])
    under = errors[errors["prompt_set"].isin(shifted)]
    by_likelihood = under["metric"].eq("log_likelihood")
    assert set(under["metric"]) == {"log_likelihood", "log_likelihood_joint", "squared_error"}
    assert set(under.loc[by_likelihood, "run"]) > {"few-processes-cnp-few-smoke-s0", "oracle-kernel"}
    assert set(under.loc[under["metric"].eq("squared_error"), "run"]) == {"zero", "mean"}
