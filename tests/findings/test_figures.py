"""The figures of the README show what the packed tables have."""

import pytest

from iclbench.report.blocks import Figure
from iclbench.report.sections import heat_map
from tests.findings.figures import FIGURES, FOLDER, drawn
from tests.findings.quantities import Reference


@pytest.mark.parametrize("name", FIGURES)
def test_every_cell_of_a_heat_map_is_that_of_the_tables(name: str, reference: Reference) -> None:
    section = heat_map.section(reference.results)
    assert section is not None
    data = {block.name: block.data for block in section.walk() if isinstance(block, Figure)}[name]
    cells = data.set_index(["row", "contestant"])["label"].to_dict()
    assert drawn((FOLDER / f"{name}.svg").read_text()) == cells, "`make figures` draws it anew"
