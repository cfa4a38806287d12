"""CelebA's public layout; a stand-in decodes where images do not matter."""

import numpy as np
import pytest
import torch
from PIL import Image

from iclbench.core.errors import DataError
from iclbench.families.images import celeba
from iclbench.families.images.image_completion import ImageCompletion, ImageParameters
from iclbench.families.request import Request


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def folder(tmp_path):
    """Five faces; image i belongs to partition i % 3."""
    (tmp_path / "celeba" / "img_align_celeba").mkdir(parents=True)
    for i in range(1, 6):
        (tmp_path / "celeba" / "img_align_celeba" / f"{i:06}.jpg").write_bytes(b"jpeg" * i)
    lines = [f"{i:06}.jpg {i % 3}\n" for i in range(1, 6)]
    (tmp_path / "celeba" / "list_eval_partition.txt").write_text("".join(lines))
    return tmp_path


@pytest.fixture
def decoded(monkeypatch):
    """Every pixel of image i has the channels i, 2i and 3i; the list says what was decoded."""
    calls = []

    def decode(path, size):
        calls.append(path.name)
        return np.full((size, size, 3), np.arange(1, 4) * int(path.stem), dtype=np.uint8)

    monkeypatch.setattr(celeba, "_decode", decode)
    return calls


def faces(folder, size=16):
    return ImageCompletion(
        ImageParameters(images="celeba", size=size, sampling="cmab", budget=60, max_related=0), folder
    )


def test_partitions_0_and_1_are_trained_on_2_is_evaluated_on_and_every_image_is_decoded_once(folder, decoded):
    for family, numbers in ((faces(folder), {1, 3, 4}), (faces(folder).held_out(), {2, 5})):
        decoded.clear()
        for _ in range(3):
            episodes = family.sample(Request(30, 56, stream()))
        assert sorted(decoded) == [f"{n:06}.jpg" for n in sorted(numbers)]
        channels = ((episodes.truth["display"] + 0.5) * 255).round()
        assert set(channels[:, 0, 0].tolist()) == numbers
        assert torch.equal(channels, channels[..., :1] * torch.arange(1, 4))
    assert episodes.context.y.shape == (30, 56, 3)
    assert faces(folder).fingerprint != faces(folder).held_out().fingerprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "list_eval_partition.txt").unlink(), "cannot read .*list_eval_partition.txt: No such file"),
        (lambda f: (f / "list_eval_partition.txt").write_bytes(b"\xff\xfe"), "not a list of file names"),
        (lambda f: (f / "list_eval_partition.txt").write_text("../000001.jpg 0\n"), "not a list of file names"),
        (lambda f: (f / "list_eval_partition.txt").write_text("000001.jpg 2\n"), "no image of partition 0 or 1"),
        (lambda f: (f / "img_align_celeba" / "000004.jpg").unlink(), r"000004.jpg is not there; expected img_align"),
    ],
)
def test_a_bad_layout_is_one_clear_line(folder, decoded, change, message):
    change(folder / "celeba")
    with pytest.raises(DataError, match=message) as error:
        faces(folder).sample(Request(1, 56, stream()))
    assert "\n" not in str(error.value)


def test_the_whole_image_is_squeezed_into_a_square(tmp_path):
    """Ramps down the rows and along the columns stay ramps, from edge to edge: pixel i of 32 is centred at
    (i + 1/2) 218 / 32 - 1/2 of the rows, and at the same with 178 of the columns."""
    rows, columns = np.mgrid[:218, :178]
    pixels = np.stack([rows, columns, np.full_like(rows, 50)], -1).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "face.png")
    found = celeba._decode(tmp_path / "face.png", 32).astype(float)
    assert found.shape == (32, 32, 3)
    centres = (np.arange(32) + 0.5) / 32
    assert np.abs(found[..., 0] - (218 * centres - 0.5)[:, None]).max() < 2
    assert np.abs(found[..., 1] - (178 * centres - 0.5)[None]).max() < 2
    assert (found[..., 2] == 50).all()
    Image.fromarray(pixels[:178]).save(tmp_path / "square.png")
    with pytest.raises(DataError, match="178 x 178 pixels, expected 178 x 218"):
        celeba._decode(tmp_path / "square.png", 32)
    (tmp_path / "face.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match="cannot read the image"):
        celeba._decode(tmp_path / "face.jpg", 32)
