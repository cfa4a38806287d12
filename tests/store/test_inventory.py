"""Scores of runs are listed by task and read only from undamaged tables."""

from pathlib import Path

from iclbench import tables
from iclbench.store import inventory


def test_a_table_with_a_changed_number_gives_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "curve.values.parquet"
    required = {name: "a" for name, (_, optional, _) in tables.SCHEMAS["values"].items() if not optional}
    row = required | {"kind": "backbone", "status": "ok", "value": 0.5}
    tables.write("values", [row], path, {})
    assert list(inventory.read_rows(path, ("run", "value"))) == [{"run": "a", "value": 0.5}]
    content, half = path.read_bytes(), b"\x00\x00\x00\x00\x00\x00\xe0\x3f"
    assert half in content
    path.write_bytes(content.replace(half, b"\x00\x00\x00\x00\x00\x00\xc0\x3f"))  # 0.125 in little-endian bytes
    assert list(inventory.read_rows(path, ("run", "value"))) == []


def test_scores_on_a_user_table_are_listed_separately(tmp_path: Path) -> None:
    required = {name: "a" for name, (_, optional, _) in tables.SCHEMAS["values"].items() if not optional}
    for task, value in (("csv-a", 0.25), ("linear", 0.5)):  # the folder of the user's table is read first
        row = required | {"task": task, "kind": "backbone", "status": "ok", "shift": "none", "metric": "score"}
        path = tmp_path / "tables" / task / "summary" / "scores.values.parquet"
        path.parent.mkdir(parents=True)
        tables.write("values", [row | {"value": value}], path, {})
    assert inventory.scores(tmp_path) == {("a", "csv-a"): 0.25, ("a", "linear"): 0.5}
