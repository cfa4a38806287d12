"""The notebook runs as it is written, and the model of the tour learns."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = json.loads((ROOT / "examples" / "tour.ipynb").read_text())
# What takes time in it, and the same with few steps.
SHORTENED = {"steps=500": "steps=20", 'name="tour", ': 'name="tour", steps=20, '}


def left_behind(folder: Path, shortened: dict[str, str]) -> dict[str, Any]:
    """The names that the notebook leaves behind, its cells run one after the other in an empty folder."""
    cells = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    for written, short in shortened.items():
        assert sum(cell.count(written) for cell in cells) == 1
        cells = [cell.replace(written, short) for cell in cells]
    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for cell in cells:
            exec(cell, found)
        assert Path("results/report/index.html").is_file()
    assert found["mean"].shape == found["std"].shape == (3,)
    assert found["run"].finished and (found["frame"]["run"] == "tour").any()
    return found


@pytest.mark.slow
def test_every_cell_of_the_notebook_runs(tmp_path: Path) -> None:
    scope = left_behind(tmp_path, SHORTENED)
    assert scope["history"]["step"].iloc[-1] == 20


# It trains for most of a minute.
@pytest.mark.slow
def test_the_notebook_runs_and_its_model_beats_zero_by_a_third_of_the_way_to_the_oracle(tmp_path: Path) -> None:
    scope = left_behind(tmp_path, {})
    scores: pd.DataFrame = scope["scores"]
    score = scores.query("metric == 'score' and contestant == 'mamba' and shift == 'none'").iloc[0]
    assert score["low"] > 1 / 3
    assert scope["history"]["step"].iloc[-1] == 500
