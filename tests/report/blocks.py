"""Tables and figures of a report by name, and the texts of a table."""

from iclbench.report.blocks import Block, Figure, Table


def get_table(blocks: dict[str, Block], name: str) -> Table:
    block = blocks[name]
    assert isinstance(block, Table)
    return block


def get_figure(blocks: dict[str, Block], name: str) -> Figure:
    block = blocks[name]
    assert isinstance(block, Figure)
    return block


def cell_texts(block: Table) -> dict[str, dict[str, str]]:
    """Return the text of each cell by first column and header."""
    headers = [column.header for column in block.columns]
    return {row[0].text: dict(zip(headers, (cell.text for cell in row), strict=True)) for row in block.rows()}
