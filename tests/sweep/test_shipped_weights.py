"""Evaluating the shipped weights gives the packed values."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from iclbench import tables
from iclbench.config.cards import cards_folder
from iclbench.core.errors import DataError
from iclbench.evaluation.contestants import backbone
from iclbench.evaluation.evaluate import evaluate
from iclbench.evaluation.prompts import PromptSet
from iclbench.store import archives

PACKED = cards_folder("grids").parent / "results" / "reference"
ARCHIVES = sorted(PACKED.glob("*.weights.safetensors"))
# One archive for each kind of task. `make test-slow` tests all runs.
FAST_GROUPS = {"bursty-vectors-grid", "gp-mixture-grid", "linear-grid"}
RUNS = [
    pytest.param(
        path, name, marks=() if n == 0 and path.name.split(".")[0] in FAST_GROUPS else pytest.mark.slow, id=name
    )
    for path in ARCHIVES
    for n, name in enumerate(archives.entries(path))
]


@pytest.mark.parametrize(("archive", "name"), RUNS)
def test_shipped_weights_give_the_packed_values(archive: Path, name: str, tmp_path: Path) -> None:
    packed = tables.read("values", archive.with_name(archive.name.replace("weights.safetensors", "values.parquet")))
    packed = packed[packed["run"].eq(name) & packed["shift"].eq("none") & packed["axis"].isna()]
    packed = packed[packed["evaluator"].isin(["next", "targets"]) & ~packed["metric"].isin(tables.COMPARISON_METRICS)]
    run = archives.find(tmp_path, f"{archive.parent.name}/{name}")
    data = os.environ.get("ICLBENCH_DATA")
    try:
        prompts = PromptSet(run.config.task, run.config.preset, data_dir=Path(data) if data else None)
        prompts_id = prompts.id  # reads the data
    except DataError:
        if data is not None:
            raise
        pytest.skip("ICLBENCH_DATA is not set, and the task needs a data set")
    assert set(packed["prompt_set"]) == {prompts_id}
    computed = evaluate([backbone(run)], prompts)
    key = ["metric", "n_context", "n_related", "axis", "axis_value", "stratum"]
    merged = packed.merge(computed, on=key, suffixes=("_packed", ""))
    assert len(merged) == len(packed) > 0
    # Rounding differs between processors.
    assert merged["value"].tolist() == pytest.approx(merged["value_packed"].tolist(), rel=1e-3, abs=1e-5)


def test_shipped_weights_take_less_than_30_megabytes() -> None:
    assert 0 < sum(path.stat().st_size for path in ARCHIVES) < 30e6
    for path in ARCHIVES:
        archives.check(path)
