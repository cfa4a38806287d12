"""Related datasets from files."""

from pathlib import Path

import pytest
import torch

from iclbench.backbones.base import Backbone, TaskShape
from iclbench.core.errors import IclbenchError
from iclbench.registry import BACKBONES
from iclbench.streaming.lines import LineFormat
from iclbench.streaming.related import read_related

COLUMNS = LineFormat.of(TaskShape(x_dim=1, points=9), 3e38)


def model(name: str, related: int) -> Backbone:
    cls = BACKBONES.get(name)
    return cls(cls.Settings(width=8), TaskShape(x_dim=1, points=9, related=related))


def files(folder: Path, *texts: str) -> list[Path]:
    paths = [folder / f"{i}.csv" for i in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return paths


def test_one_dataset_per_file_padded_to_the_longest(tmp_path: Path) -> None:
    found = read_related(model("icicl-cnp", 2), files(tmp_path, "x,y\n1,2\n3,4\n", "5,6\n"), COLUMNS)
    assert found.x.tolist() == [[[[1], [3]], [[5], [0]]]]
    assert found.y.tolist() == [[[[2], [4]], [[6], [0]]]]
    assert found.mask.tolist() == [[[True, True], [True, False]]]


@pytest.mark.parametrize(
    ("name", "related", "texts", "message"),
    [
        ("cnp", 2, ["1,2"], "this model does not use related datasets"),
        ("icicl-cnp", 0, ["1,2"], "this model does not use related datasets"),
        ("icicl-cnp", 1, ["1,2", "3,4"], "2 datasets, but this model was trained with 1 at most"),
        ("icicl-cnp", 1, ["1,2,3"], "0.csv, line 1: 3 columns instead of 2; write x1,y1"),
        ("icicl-cnp", 1, ["1,2\n3,?"], "0.csv, line 2: a query; related datasets hold points only"),
        ("icicl-cnp", 1, ["x,y\n"], "0.csv holds no point"),
    ],
)
def test_what_is_refused(name: str, related: int, texts: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(IclbenchError) as raised:
        read_related(model(name, related), files(tmp_path, *texts), COLUMNS)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(IclbenchError, match=r"cannot read .*none\.csv"):
        read_related(model("icicl-cnp", 1), [tmp_path / "none.csv"], COLUMNS)


def test_the_precision_is_the_models(tmp_path: Path) -> None:
    assert read_related(model("icicl-cnp", 1).double(), files(tmp_path, "1,2"), COLUMNS).x.dtype == torch.float64
