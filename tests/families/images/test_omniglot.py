"""Reading Omniglot: complete archives and folders are read in order, and everything else is refused."""

import os
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from iclbench.core import png
from iclbench.families.images import array_cache, omniglot
from iclbench.families.images.omniglot import load_omniglot, read_omniglot, shrink
from tests.refusals import refused

PARTS = {"images_background": 3, "images_evaluation": 2}


@pytest.fixture(autouse=True)
def fewer_classes(monkeypatch):
    monkeypatch.setattr(omniglot, "CLASSES", PARTS)


def drawing(number):
    """Return a PNG file of a drawing with `number` pixels of ink (ink is 0, paper 255)."""
    image = np.full((105, 105), 255, np.uint8)
    image.flat[:number] = 0
    return png.encode(image)


def files_of_part(part):
    """Return names and contents of the files of a part. Drawing d of class c has 100 c + d + 1 pixels of ink."""
    base = 3 if part == "images_evaluation" else 0
    for c in range(PARTS[part]):
        for d in range(20):
            name = f"{part}/Alphabet_{c // 2}/character{c % 2 + 1:02}/{base + c + 1:04}_{d + 1:02}.png"
            yield name, drawing(100 * (base + c) + d + 1)


def write(folder, skip=(), extra=(), unpacked=()):
    folder.mkdir(exist_ok=True)
    for part in PARTS:
        files = [*((n, b) for n, b in files_of_part(part) if n not in skip), *((n, b) for n, b in extra if part in n)]
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
    images = read_omniglot(write(tmp_path / "omniglot", unpacked=unpacked))
    assert images.shape == (5, 20, 105, 105)
    expected = 100 * np.arange(5)[:, None] + np.arange(20) + 1
    assert np.array_equal((images == 255).sum((2, 3)), expected)
    assert set(np.unique(images)) == {0, 255}


FIRST = "images_background/Alphabet_0/character01/0001_01.png"


@pytest.mark.parametrize(
    ("change", "code", "names"),
    [
        ({"skip": [FIRST]}, "bad-data", ["01", "'Alphabet_0/character01'"]),
        ({"skip": [n for n, _ in files_of_part("images_background") if "Alphabet_1" in n]}, "bad-data", [2, 3, "0003"]),
        ({"extra": [("../images_background/x.png", b"")]}, "bad-data", ["'../images_background/x.png'"]),
        ({"skip": [FIRST], "extra": [(FIRST, b"no image")]}, "unreadable-file", [FIRST]),
        (
            {"skip": [FIRST], "extra": [(FIRST, png.encode(np.zeros((9, 8), np.uint8)))]},
            "bad-data",
            [FIRST, "9 x 8", "105 x 105"],
        ),
    ],
)
def test_incomplete_archives_are_refused(tmp_path, change, code, names):
    folder = write(tmp_path / "omniglot", **change)
    with refused(code, "images_background", *names):
        read_omniglot(folder)


def test_errors_for_missing_and_damaged_archives_name_their_source(tmp_path):
    with refused("missing-data", tmp_path / "images_background.zip", "brendenlake", "--data-dir"):
        read_omniglot(tmp_path)
    (tmp_path / "images_background.zip").write_bytes(b"PK not really")
    with refused("unreadable-file", tmp_path / "images_background.zip", "brendenlake"):
        read_omniglot(tmp_path)


def test_the_error_for_a_damaged_drawing_names_it(tmp_path):
    folder = write(tmp_path / "omniglot")
    path = folder / "images_background.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files_of_part("images_background"):
            archive.writestr(name, data)
        start, length = archive.getinfo(FIRST).header_offset + 30 + len(FIRST), archive.getinfo(FIRST).compress_size
    damaged = bytearray(path.read_bytes())
    damaged[start : start + length] = b"\xff" * length
    path.write_bytes(damaged)
    with refused("unreadable-file", path, f"'{FIRST}'"):
        read_omniglot(folder)


def test_the_error_for_a_broken_link_names_it(tmp_path):
    folder = write(tmp_path / "omniglot", unpacked=("images_background",))
    (folder / FIRST).unlink()
    (folder / FIRST).symlink_to(tmp_path / "nowhere")
    with refused("missing-file", folder / FIRST):
        load_omniglot(folder, 105)


def test_shrinking_an_image_averages_areas():
    image = np.random.default_rng(0).integers(0, 256, (2, 12, 12), dtype=np.uint8)
    expected = image.reshape(2, 4, 3, 4, 3).mean((2, 4)).round()
    assert np.abs(shrink(image, 4) - expected).max() <= 1
    reduced_image = shrink(np.pad(np.full((1, 2, 2), 90, np.uint8), ((0, 0), (0, 1), (0, 1))), 2)
    assert reduced_image[0].tolist() == [[90, 30], [30, 10]], "the middle pixel counts half for each side"


@pytest.mark.parametrize(
    ("name", "size"),
    [("images_background/bomb.png", 200_000), (FIRST, 65_537)],
)
def test_files_larger_than_a_drawing_are_refused_before_they_are_read(tmp_path, name, size):
    folder = write(tmp_path / "omniglot", skip=[FIRST], extra=[(name, bytes(size))])
    with refused("too-large", f"'{name}'", f"{size:,}"):
        read_omniglot(folder)


def test_archives_whose_unpacked_size_is_too_large_are_refused(tmp_path, monkeypatch):
    folder = write(tmp_path / "omniglot")
    monkeypatch.setattr(omniglot, "_MAX_PART_BYTES", 5000)
    with refused("too-large", "images_background.zip", "5,000"):
        read_omniglot(folder)


def test_files_are_not_unpacked_beyond_the_size_declared_in_the_archive(tmp_path):
    folder = write(tmp_path / "omniglot", skip=[FIRST])
    with zipfile.ZipFile(folder / "images_background.zip", "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(FIRST, bytes(50_000_000))
        archive.getinfo(FIRST).file_size = 300
    tracemalloc.start()
    with refused("unreadable-file", "0001_01.png"):
        read_omniglot(folder)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_drawings_with_one_name_are_refused(tmp_path):
    write(tmp_path)
    with zipfile.ZipFile(tmp_path / "images_background.zip", "a") as archive:
        archive.writestr(archive.namelist()[-1], drawing(1))
    with refused("duplicate", "images_background.zip"):
        read_omniglot(tmp_path)


def test_an_unsupported_compression_is_refused(tmp_path):
    folder = write(tmp_path / "omniglot", skip=[FIRST])
    with zipfile.ZipFile(folder / "images_background.zip", "a", zipfile.ZIP_LZMA) as archive:
        archive.writestr(FIRST, drawing(1))
    with refused("not-supported", f"'{FIRST}'"):
        read_omniglot(folder)


class TestCache:
    """Images are cached, cached images are never out of date, and the cache is optional."""

    @pytest.fixture(autouse=True)
    def cache(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        return tmp_path / "cache" / "iclbench"

    @pytest.fixture
    def read_calls(self, monkeypatch):
        calls = []
        monkeypatch.setattr(omniglot, "read_omniglot", lambda folder: calls.append(1) or read_omniglot(folder))
        return calls

    @pytest.mark.parametrize("size", [105, 28])
    @pytest.mark.parametrize("unpacked", [(), ("images_background",)])
    def test_images_are_read_only_once(self, tmp_path, cache, read_calls, size, unpacked):
        folder = write(tmp_path / "omniglot", unpacked=unpacked)
        first, second = load_omniglot(folder, size), load_omniglot(folder, size)
        assert len(read_calls) == 1 and len(list(cache.iterdir())) == 1
        assert np.array_equal(first, second) and first.dtype == second.dtype == np.uint8
        assert np.array_equal(first, read_omniglot(folder) if size == 105 else shrink(read_omniglot(folder), 28))

    @pytest.mark.parametrize("unpacked", [(), ("images_background",)])
    def test_changed_data_are_read(self, tmp_path, read_calls, unpacked):
        folder = write(tmp_path / "omniglot", unpacked=unpacked)
        load_omniglot(folder, 105)
        changed = write(tmp_path / "omniglot", skip=[FIRST], extra=[(FIRST, drawing(5000))], unpacked=unpacked)
        assert (load_omniglot(changed, 105)[0, 0] == 255).sum() == 5000
        assert len(read_calls) == 2

    @pytest.mark.parametrize("damage", [b"", b"no array", b"cut"])
    def test_a_damaged_cache_is_rewritten(self, tmp_path, cache, read_calls, damage):
        folder = write(tmp_path / "omniglot")
        first = load_omniglot(folder, 28)
        (cached,) = cache.iterdir()
        cached.write_bytes(cached.read_bytes()[:-40] if damage == b"cut" else damage)
        for _ in range(2):
            assert np.array_equal(load_omniglot(folder, 28), first)
        assert len(read_calls) == 2, "read, read again, then cached"

    def test_the_cache_is_in_the_data_folder_if_no_cache_folder_exists(self, tmp_path, cache, read_calls):
        cache.parent.write_text("a file where a folder should be")
        folder = write(tmp_path / "omniglot")
        load_omniglot(folder, 28), load_omniglot(folder, 28)
        assert len(read_calls) == 1 and len(list(folder.glob("omniglot-28-*.npz"))) == 1

    def test_images_are_read_without_a_cache_if_no_file_can_be_written(self, tmp_path, cache, read_calls, monkeypatch):
        def refuse(path):
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(array_cache, "atomic", refuse)
        folder = write(tmp_path / "omniglot")
        assert np.array_equal(load_omniglot(folder, 28), load_omniglot(folder, 28))
        assert len(read_calls) == 2


@pytest.mark.slow
@pytest.mark.skipif("ICLBENCH_DATA" not in os.environ, reason="needs real Omniglot: ICLBENCH_DATA is not set")
def test_real_omniglot(monkeypatch):
    monkeypatch.setattr(omniglot, "CLASSES", {"images_background": 964, "images_evaluation": 659})
    images = read_omniglot(Path(os.environ["ICLBENCH_DATA"]) / "omniglot")
    assert images.shape == (1623, 20, 105, 105)
    assert 0.07 < images.mean() / 255 < 0.09
