"""Related datasets from files."""

from pathlib import Path

import pytest
import torch

from iclbench.backbones.base import Backbone, TaskShape
from iclbench.registry import BACKBONES
from iclbench.streaming.lines import LineFormat
from iclbench.streaming.related import read_related
from tests.refusals import refused

FORMAT = LineFormat.of(TaskShape(x_dim=1, points=9), 3e38)


def model(name: str, related: int) -> Backbone:
    cls = BACKBONES.get(name)
    return cls(cls.Settings(width=8), TaskShape(x_dim=1, points=9, related=related))


def write_files(folder: Path, *texts: str) -> list[Path]:
    paths = [folder / f"{i}.csv" for i in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return paths


def test_each_file_is_a_dataset_padded_to_the_longest_one(tmp_path: Path) -> None:
    points = read_related(model("icicl-cnp", 2), write_files(tmp_path, "x,y\n1,2\n3,4\n", "5,6\n"), FORMAT)
    assert points.x.tolist() == [[[[1], [3]], [[5], [0]]]]
    assert points.y.tolist() == [[[[2], [4]], [[6], [0]]]]
    assert points.mask.tolist() == [[[True, True], [True, False]]]


@pytest.mark.parametrize(
    ("name", "related", "texts", "code", "names"),
    [
        ("cnp", 2, ["1,2"], "not-applicable", ("--related",)),
        ("icicl-cnp", 0, ["1,2"], "not-applicable", ("--related",)),
        ("icicl-cnp", 1, ["1,2", "3,4"], "not-applicable", ("--related", 2, 1)),
        ("icicl-cnp", 1, ["1,2,3"], "bad-data", ("0.csv", "line 1", "3 columns", "x1,y1")),
        ("icicl-cnp", 1, ["1,2\n3,?"], "bad-data", ("0.csv", "line 2")),
        ("icicl-cnp", 1, ["x,y\n"], "bad-data", ("0.csv", "--related")),
    ],
)
def test_unsupported_and_invalid_related_datasets_are_refused(
    name: str, related: int, texts: list[str], code: str, names: tuple[object, ...], tmp_path: Path
) -> None:
    with refused(code, *names):
        read_related(model(name, related), write_files(tmp_path, *texts), FORMAT)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with refused("missing-file", tmp_path / "none.csv", "--related"):
        read_related(model("icicl-cnp", 1), [tmp_path / "none.csv"], FORMAT)


def test_related_datasets_have_the_precision_of_the_model(tmp_path: Path) -> None:
    assert read_related(model("icicl-cnp", 1).double(), write_files(tmp_path, "1,2"), FORMAT).x.dtype == torch.float64
