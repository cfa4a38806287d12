"""The notebook of the tour runs without errors, and its model learns."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = json.loads((ROOT / "examples" / "tour.ipynb").read_text())
# Replacements that shorten the training in the notebook.
SHORTENED = {"steps=500": "steps=20", 'name="tour", ': 'name="tour", steps=20, '}


def run_notebook(folder: Path, replacements: dict[str, str]) -> dict[str, Any]:
    """Run all cells of the notebook in an empty folder, and return its global variables."""
    cells = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    for code, replacement in replacements.items():
        assert sum(cell.count(code) for cell in cells) == 1
        cells = [cell.replace(code, replacement) for cell in cells]
    scope: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for cell in cells:
            exec(cell, scope)
        assert Path("results/report/index.html").is_file()
    assert scope["mean"].shape == scope["std"].shape == (3,)
    assert scope["run"].is_finished and (scope["frame"]["run"] == "tour").any()
    return scope


@pytest.mark.slow
def test_every_cell_of_the_notebook_runs(tmp_path: Path) -> None:
    scope = run_notebook(tmp_path, SHORTENED)
    assert scope["history"]["step"].iloc[-1] == 20


@pytest.mark.slow
def test_the_model_of_the_notebook_scores_above_one_third(tmp_path: Path) -> None:
    scope = run_notebook(tmp_path, {})
    scores: pd.DataFrame = scope["scores"]
    score = scores.query("metric == 'score' and contestant == 'mamba' and shift == 'none'").iloc[0]
    assert score["low"] > 1 / 3
    assert scope["history"]["step"].iloc[-1] == 500
