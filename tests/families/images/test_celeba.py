"""Reading CelebA from its public layout. Most tests replace the image decoder."""

import numpy as np
import pytest
import torch
from PIL import Image

from iclbench.families.images import celeba
from iclbench.families.images.image_completion import ImageCompletion, ImageParameters
from iclbench.families.request import Request
from tests.families.sampling import new_generator
from tests.refusals import refused


@pytest.fixture
def folder(tmp_path):
    """A folder with five faces. Image i belongs to partition i % 3."""
    (tmp_path / "celeba" / "img_align_celeba").mkdir(parents=True)
    for i in range(1, 6):
        (tmp_path / "celeba" / "img_align_celeba" / f"{i:06}.jpg").write_bytes(b"jpeg" * i)
    lines = [f"{i:06}.jpg {i % 3}\n" for i in range(1, 6)]
    (tmp_path / "celeba" / "list_eval_partition.txt").write_text("".join(lines))
    return tmp_path


@pytest.fixture
def decoded_names(monkeypatch):
    """Replace the decoder, and record the names of decoded images. Pixels of image i have the channels i, 2i and 3i."""
    names = []

    def decode(path, size):
        names.append(path.name)
        return np.full((size, size, 3), np.arange(1, 4) * int(path.stem), dtype=np.uint8)

    monkeypatch.setattr(celeba, "_decode", decode)
    return names


def build_family(folder, size=16):
    return ImageCompletion(
        ImageParameters(images="celeba", size=size, sampling="cmab", budget=60, max_related=0), folder
    )


def test_training_uses_partitions_0_and_1_and_decodes_images_once(folder, decoded_names):
    for family, numbers in ((build_family(folder), {1, 3, 4}), (build_family(folder).held_out(), {2, 5})):
        decoded_names.clear()
        for _ in range(3):
            episodes = family.sample(Request(30, 56, new_generator()))
        assert sorted(decoded_names) == [f"{n:06}.jpg" for n in sorted(numbers)]
        channels = ((episodes.truth["display"] + 0.5) * 255).round()
        assert set(channels[:, 0, 0].tolist()) == numbers
        assert torch.equal(channels, channels[..., :1] * torch.arange(1, 4))
    assert episodes.context.y.shape == (30, 56, 3)
    assert build_family(folder).fingerprint != build_family(folder).held_out().fingerprint


@pytest.mark.parametrize(
    ("change", "code", "names"),
    [
        (lambda f: (f / "list_eval_partition.txt").unlink(), "missing-data", ["list_eval_partition.txt"]),
        (lambda f: (f / "list_eval_partition.txt").write_bytes(b"\xff\xfe"), "bad-syntax", ["list_eval_partition.txt"]),
        (lambda f: (f / "list_eval_partition.txt").write_text("../000001.jpg 0\n"), "bad-syntax", ["celeba"]),
        (lambda f: (f / "list_eval_partition.txt").write_text("000001.jpg 2\n"), "bad-data", ["0 or 1"]),
        (lambda f: (f / "img_align_celeba" / "000004.jpg").unlink(), "missing-data", ["000004.jpg", "img_align"]),
    ],
)
def test_bad_layouts_are_refused(folder, decoded_names, change, code, names):
    change(folder / "celeba")
    with refused(code, *names):
        build_family(folder).sample(Request(1, 56, new_generator()))


def test_the_complete_image_is_resized_to_a_square(tmp_path):
    """Linear ramps along rows and columns stay linear from edge to edge. Pixel i of 32 is centred at row
    (i + 1/2) 218 / 32 - 1/2, and analogously for the 178 columns."""
    rows, columns = np.mgrid[:218, :178]
    pixels = np.stack([rows, columns, np.full_like(rows, 50)], -1).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "face.png")
    face = celeba._decode(tmp_path / "face.png", 32).astype(float)
    assert face.shape == (32, 32, 3)
    centres = (np.arange(32) + 0.5) / 32
    assert np.abs(face[..., 0] - (218 * centres - 0.5)[:, None]).max() < 2
    assert np.abs(face[..., 1] - (178 * centres - 0.5)[None]).max() < 2
    assert (face[..., 2] == 50).all()
    Image.fromarray(pixels[:178]).save(tmp_path / "square.png")
    with refused("bad-data", "square.png", "178 x 178", "178 x 218"):
        celeba._decode(tmp_path / "square.png", 32)
    (tmp_path / "face.jpg").write_bytes(b"no image")
    with refused("unreadable-file", "face.jpg"):
        celeba._decode(tmp_path / "face.jpg", 32)
