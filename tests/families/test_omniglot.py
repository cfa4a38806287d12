"""Real Omniglot: complete archives or folders are read in order, everything else is one clear line."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from iclbench import png
from iclbench.errors import DataError
from iclbench.families import omniglot
from iclbench.families.omniglot import read_omniglot, reduced

PARTS = {"images_background": 3, "images_evaluation": 2}


@pytest.fixture(autouse=True)
def fewer_classes(monkeypatch):
    monkeypatch.setattr(omniglot, "CLASSES", PARTS)


def drawing(number):
    """Paper 255, ink 0; as many inked pixels as the number says."""
    image = np.full((105, 105), 255, np.uint8)
    image.flat[:number] = 0
    return png.encode(image)


def contents(part):
    """Names and files; class c, drawing d has 100 c + d + 1 pixels of ink."""
    base = 3 if part == "images_evaluation" else 0
    for c in range(PARTS[part]):
        for d in range(20):
            name = f"{part}/Alphabet_{c // 2}/character{c % 2 + 1:02}/{c:04}_{d + 1:02}.png"
            yield name, drawing(100 * (base + c) + d + 1)


def write(folder, skip=(), extra=(), unpacked=()):
    folder.mkdir(exist_ok=True)
    for part in PARTS:
        files = [*((n, b) for n, b in contents(part) if n not in skip), *((n, b) for n, b in extra if part in n)]
        if part in unpacked:
            for name, data in files:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(data)
            continue
        with zipfile.ZipFile(folder / f"{part}.zip", "w") as archive:
            for name, data in reversed(files):
                archive.writestr(name, data)
    return folder


@pytest.mark.parametrize("unpacked", [(), ("images_background",), ("images_background", "images_evaluation")])
def test_archives_and_folders_hold_the_same_classes_in_order(tmp_path, unpacked):
    found = read_omniglot(write(tmp_path / "omniglot", unpacked=unpacked))
    assert found.shape == (5, 20, 105, 105)
    expected = 100 * np.arange(5)[:, None] + np.arange(20) + 1
    assert np.array_equal((found == 255).sum((2, 3)), expected)
    assert set(np.unique(found)) == {0, 255}


FIRST = "images_background/Alphabet_0/character01/0000_01.png"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"skip": [FIRST]}, r"drawing 01 of 'Alphabet_0/character01' is missing"),
        (
            {"skip": [n for n, _ in contents("images_background") if "Alphabet_1" in n]},
            "holds 2 characters, expected 3",
        ),
        ({"extra": [("../images_background/x.png", b"")]}, "leads out of the folder"),
        ({"skip": [FIRST], "extra": [(FIRST, b"no image")]}, r"cannot read '.*0000_01.png' \(not a PNG file\)"),
        ({"skip": [FIRST], "extra": [(FIRST, png.encode(np.zeros((9, 8), np.uint8)))]}, "9 x 8 pixels, expected 105"),
    ],
)
def test_what_is_incomplete_is_one_clear_line(tmp_path, change, message):
    folder = write(tmp_path / "omniglot", **change)
    with pytest.raises(DataError, match=message) as error:
        read_omniglot(folder)
    assert "\n" not in str(error.value)
    assert "images_background" in str(error.value)


def test_missing_and_damaged_archives_say_where_to_get_them(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*images_background.zip: No such file.*brendenlake"):
        read_omniglot(tmp_path)
    (tmp_path / "images_background.zip").write_bytes(b"PK not really")
    with pytest.raises(DataError, match="not a sound zip archive"):
        read_omniglot(tmp_path)


def test_reduction_averages_areas():
    image = np.random.default_rng(0).integers(0, 256, (2, 12, 12), dtype=np.uint8)
    expected = image.reshape(2, 4, 3, 4, 3).mean((2, 4)).round()
    assert np.abs(reduced(image, 4) - expected).max() <= 1
    third = reduced(np.pad(np.full((1, 2, 2), 90, np.uint8), ((0, 0), (0, 1), (0, 1))), 2)
    assert third[0].tolist() == [[90, 30], [30, 10]], "a pixel half on either side counts for both"


@pytest.mark.slow
@pytest.mark.skipif("ICLBENCH_DATA" not in os.environ, reason="ICLBENCH_DATA is not set: real Omniglot is elsewhere")
def test_real_omniglot(monkeypatch):
    monkeypatch.setattr(omniglot, "CLASSES", {"images_background": 964, "images_evaluation": 659})
    found = read_omniglot(Path(os.environ["ICLBENCH_DATA"]) / "omniglot")
    assert found.shape == (1623, 20, 105, 105)
    assert 0.07 < found.mean() / 255 < 0.09
