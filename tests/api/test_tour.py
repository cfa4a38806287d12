"""The notebook runs as it is written, and the model of the tour learns."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = json.loads((ROOT / "examples" / "tour.ipynb").read_text())


@pytest.fixture(scope="module")
def scope(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The names that the notebook leaves behind, its cells run one after the other in an empty folder."""
    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("tour"))
        for cell in NOTEBOOK["cells"]:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), found)
        assert Path("results/report/index.html").is_file()
    return found


def test_the_notebook_runs_and_its_model_beats_zero_by_a_third_of_the_way_to_the_oracle(scope: dict[str, Any]) -> None:
    scores: pd.DataFrame = scope["scores"]
    score = scores.query("metric == 'score' and contestant == 'mamba' and shift == 'none'").iloc[0]
    assert score["low"] > 1 / 3
    assert scope["history"]["step"].iloc[-1] == 500 and scope["mean"].shape == scope["std"].shape == (3,)
    assert scope["run"].finished and (scope["frame"]["run"] == "tour").any()
