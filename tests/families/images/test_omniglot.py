"""Real Omniglot: complete archives or folders are read in order, everything else is one clear line."""

import os
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from iclbench.core import png
from iclbench.core.errors import DataError
from iclbench.families.images import array_cache, omniglot
from iclbench.families.images.omniglot import load_omniglot, read_omniglot, reduced

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
            name = f"{part}/Alphabet_{c // 2}/character{c % 2 + 1:02}/{base + c + 1:04}_{d + 1:02}.png"
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


FIRST = "images_background/Alphabet_0/character01/0001_01.png"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"skip": [FIRST]}, r"drawing 01 of 'Alphabet_0/character01' is missing"),
        (
            {"skip": [n for n, _ in contents("images_background") if "Alphabet_1" in n]},
            "holds 2 characters, expected 3; number 0003 is missing",
        ),
        ({"extra": [("../images_background/x.png", b"")]}, "leads out of the folder"),
        ({"skip": [FIRST], "extra": [(FIRST, b"no image")]}, r"cannot read '.*0001_01.png' \(not a PNG file\)"),
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


def test_a_drawing_that_does_not_inflate_is_named(tmp_path):
    folder = write(tmp_path / "omniglot")
    path = folder / "images_background.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents("images_background"):
            archive.writestr(name, data)
        start, length = archive.getinfo(FIRST).header_offset + 30 + len(FIRST), archive.getinfo(FIRST).compress_size
    damaged = bytearray(path.read_bytes())
    damaged[start : start + length] = b"\xff" * length
    path.write_bytes(damaged)
    with pytest.raises(DataError, match=f"cannot read '{FIRST}'"):
        read_omniglot(folder)


def test_a_link_that_leads_nowhere_is_named(tmp_path):
    folder = write(tmp_path / "omniglot", unpacked=("images_background",))
    (folder / FIRST).unlink()
    (folder / FIRST).symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match=f"cannot read .*{FIRST}: No such file"):
        load_omniglot(folder, 105)


def test_reduction_averages_areas():
    image = np.random.default_rng(0).integers(0, 256, (2, 12, 12), dtype=np.uint8)
    expected = image.reshape(2, 4, 3, 4, 3).mean((2, 4)).round()
    assert np.abs(reduced(image, 4) - expected).max() <= 1
    third = reduced(np.pad(np.full((1, 2, 2), 90, np.uint8), ((0, 0), (0, 1), (0, 1))), 2)
    assert third[0].tolist() == [[90, 30], [30, 10]], "a pixel half on either side counts for both"


@pytest.mark.parametrize(
    ("name", "size"),
    [("images_background/bomb.png", 200_000), (FIRST, 65_537)],
)
def test_what_is_larger_than_any_drawing_is_refused_before_it_is_read(tmp_path, name, size):
    folder = write(tmp_path / "omniglot", skip=[FIRST], extra=[(name, bytes(size))])
    with pytest.raises(DataError, match=rf"'{name}' has {size:,} bytes unpacked, more than any drawing"):
        read_omniglot(folder)


def test_many_files_that_are_too_large_together_are_refused(tmp_path, monkeypatch):
    folder = write(tmp_path / "omniglot")
    monkeypatch.setattr(omniglot, "_LARGEST_PART", 5000)
    with pytest.raises(DataError, match=r"background.zip has [\d,]+ bytes unpacked, expected 5,000 at most"):
        read_omniglot(folder)


def test_an_archive_that_lies_about_a_size_is_not_unpacked_beyond_it(tmp_path):
    folder = write(tmp_path / "omniglot", skip=[FIRST])
    with zipfile.ZipFile(folder / "images_background.zip", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(FIRST, bytes(50_000_000))
        archive.getinfo(FIRST).file_size = 300
    tracemalloc.start()
    with pytest.raises(DataError, match=r"0001_01\.png"):
        read_omniglot(folder)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_drawings_of_one_name_are_refused(tmp_path):
    write(tmp_path)
    with zipfile.ZipFile(tmp_path / "images_background.zip", "a") as archive:
        archive.writestr(archive.namelist()[-1], drawing(1))
    with pytest.raises(DataError, match=r"images_background\.zip holds two files of one name"):
        read_omniglot(tmp_path)


def test_an_unusual_compression_is_refused(tmp_path):
    folder = write(tmp_path / "omniglot", skip=[FIRST])
    with zipfile.ZipFile(folder / "images_background.zip", "a", zipfile.ZIP_LZMA) as archive:
        archive.writestr(FIRST, drawing(1))
    with pytest.raises(DataError, match=r"'.*0001_01.png' is compressed in an unusual way"):
        read_omniglot(folder)


class TestKeptFile:
    """What was read once is kept; what is kept is never out of date, and never needed."""

    @pytest.fixture(autouse=True)
    def cache(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        return tmp_path / "cache" / "iclbench"

    @pytest.fixture
    def counted(self, monkeypatch):
        calls = []
        monkeypatch.setattr(omniglot, "read_omniglot", lambda folder: calls.append(1) or read_omniglot(folder))
        return calls

    @pytest.mark.parametrize("size", [105, 28])
    @pytest.mark.parametrize("unpacked", [(), ("images_background",)])
    def test_the_second_time_nothing_is_read(self, tmp_path, cache, counted, size, unpacked):
        folder = write(tmp_path / "omniglot", unpacked=unpacked)
        first, second = load_omniglot(folder, size), load_omniglot(folder, size)
        assert len(counted) == 1 and len(list(cache.iterdir())) == 1
        assert np.array_equal(first, second) and first.dtype == second.dtype == np.uint8
        assert np.array_equal(first, read_omniglot(folder) if size == 105 else reduced(read_omniglot(folder), 28))

    @pytest.mark.parametrize("unpacked", [(), ("images_background",)])
    def test_other_data_are_read_anew(self, tmp_path, counted, unpacked):
        folder = write(tmp_path / "omniglot", unpacked=unpacked)
        load_omniglot(folder, 105)
        changed = write(tmp_path / "omniglot", skip=[FIRST], extra=[(FIRST, drawing(5000))], unpacked=unpacked)
        assert (load_omniglot(changed, 105)[0, 0] == 255).sum() == 5000
        assert len(counted) == 2

    @pytest.mark.parametrize("damage", [b"", b"no array", b"cut"])
    def test_a_damaged_file_is_made_again(self, tmp_path, cache, counted, damage):
        folder = write(tmp_path / "omniglot")
        first = load_omniglot(folder, 28)
        (kept,) = cache.iterdir()
        kept.write_bytes(kept.read_bytes()[:-40] if damage == b"cut" else damage)
        for _ in range(2):
            assert np.array_equal(load_omniglot(folder, 28), first)
        assert len(counted) == 2, "made once, made again, then kept"

    def test_it_lies_beside_the_data_where_there_is_no_cache(self, tmp_path, cache, counted):
        cache.parent.write_text("a file where a folder should be")
        folder = write(tmp_path / "omniglot")
        load_omniglot(folder, 28), load_omniglot(folder, 28)
        assert len(counted) == 1 and len(list(folder.glob("omniglot-28-*.npz"))) == 1

    def test_everything_works_where_nothing_can_be_written(self, tmp_path, cache, counted, monkeypatch):
        def refuse(path):
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(array_cache, "atomic", refuse)
        folder = write(tmp_path / "omniglot")
        assert np.array_equal(load_omniglot(folder, 28), load_omniglot(folder, 28))
        assert len(counted) == 2


@pytest.mark.slow
@pytest.mark.skipif("ICLBENCH_DATA" not in os.environ, reason="ICLBENCH_DATA is not set: real Omniglot is elsewhere")
def test_real_omniglot(monkeypatch):
    monkeypatch.setattr(omniglot, "CLASSES", {"images_background": 964, "images_evaluation": 659})
    found = read_omniglot(Path(os.environ["ICLBENCH_DATA"]) / "omniglot")
    assert found.shape == (1623, 20, 105, 105)
    assert 0.07 < found.mean() / 255 < 0.09
