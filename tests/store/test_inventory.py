"""What a list of runs says is read off tables that are as they were written."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from iclbench import tables
from iclbench.store import inventory


def test_no_number_is_taken_from_a_table_with_a_flipped_bit(tmp_path: Path) -> None:
    path = tmp_path / "curve.values.parquet"
    needed = {name: "a" for name, (_, optional, _) in tables.SCHEMAS["values"].items() if not optional}
    row = needed | {"kind": "backbone", "status": "ok", "value": 0.5}
    tables.write("values", [row], path, {})
    assert list(inventory.rows(path, ("run", "value"))) == [{"run": "a", "value": 0.5}]
    data, half = path.read_bytes(), b"\x00\x00\x00\x00\x00\x00\xe0\x3f"
    assert half in data
    path.write_bytes(data.replace(half, b"\x00\x00\x00\x00\x00\x00\xc0\x3f"))  # 0.125
    assert list(inventory.rows(path, ("run", "value"))) == []


def test_the_loss_of_a_finished_run_is_the_one_that_was_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = [
        {"metric": "loss", "axis": "train_step", "axis_value": step, "value": value, "normaliser": 20.0}
        for step, value in ((2.0, 0.25), (1.0, 0.5))
    ]
    for found, loss in ((curve, 5.0), ([], None), ([curve[0] | {"value": None}], None)):
        monkeypatch.setattr(inventory, "rows", lambda path, columns, found=found: iter(found))
        assert inventory.loss(SimpleNamespace(finished=True, path=Path())) == loss
