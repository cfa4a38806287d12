"""The figures in the README agree with the packed tables."""

from pathlib import Path

import pytest

from docs.draw_figures import FOLDER, draw, figures, lines, numbers
from docs.quantities import ROOT, packed_folder
from iclbench.report.blocks import Figure

pytestmark = pytest.mark.docs


@pytest.fixture(scope="module")
def drawn_figures() -> dict[str, Figure]:
    with packed_folder(ROOT / "results" / "reference") as folder:
        return figures(folder)


def test_every_cell_of_the_heat_map_equals_the_tables(drawn_figures: dict[str, Figure]) -> None:
    data = drawn_figures["heat-map-grid"].data
    cells = data[data["panel"].eq(data["panel"].iloc[0])].set_index(["row", "contestant"])["label"].to_dict()
    assert numbers((FOLDER / "heat-map-grid.svg").read_text()) == cells, "`make figures` redraws the figure"


@pytest.mark.parametrize(
    ("name", "contestants"),
    [("extrapolation-small", {"gpt2", "mamba", "s4d", "ridge"}), ("classes", {"gpt2", "mamba", "s4d", "tnp"})],
)
def test_lines_equal_the_tables(
    name: str, contestants: set[str], drawn_figures: dict[str, Figure], tmp_path: Path
) -> None:
    (path,) = draw({name: drawn_figures[name]}, tmp_path)
    drawn = lines(path.read_text())
    assert contestants < drawn.keys()
    assert lines((FOLDER / f"{name}.svg").read_text()) == drawn, "`make figures` redraws the figure"
