"""Images as functions of pixel coordinates: their pixels, related images, splits and scales."""

import gzip
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from iclbench.config.resolution import resolve_task
from iclbench.core.predictions import Gaussian, HeadSettings
from iclbench.families.images.glyphs import glyphs
from iclbench.families.images.image_completion import INTENSITY, ImageCompletion, ImageParameters, _distinct_numbers
from iclbench.families.images.image_sets import HELD_OUT_DRAWINGS, glyph_images
from iclbench.families.request import Request
from iclbench.sweep.grids import grid_runs
from tests.families.sampling import new_generator
from tests.refusals import refused


def family(folder=None, **parameters):
    small = {"size": 12, "classes": 4, "drawings": 20} if parameters.get("images", "glyphs") == "glyphs" else {}
    return ImageCompletion(ImageParameters(**{**small, **parameters}), folder)


SMALL = family()


def write_idx(path, array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    content = header + array.astype(np.uint8).tobytes()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """MNIST and EMNIST in their public layouts. Pixels encode the file, number and orientation of their image."""
    root = tmp_path_factory.mktemp("data")
    for name, prefix, base, classes in (
        ("mnist", "train", 0, 3),
        ("mnist", "t10k", 100, 3),
        ("emnist", "emnist-balanced-train", 0, 47),
        ("emnist", "emnist-balanced-test", 100, 47),
    ):
        labels = np.arange(5 * classes) % classes
        images = np.zeros((len(labels), 28, 28), np.uint8)
        images[:, 0, 0] = base
        images[:, 0, 1] = np.arange(len(labels)) % 250
        images[:, 2, 20] = 255
        write_idx(root / name / f"{prefix}-images-idx3-ubyte.gz", images)
        write_idx(root / name / f"{prefix}-labels-idx1-ubyte.gz", labels)
    return root


def bytes_of(episodes, images):
    """Return the stored pixels of complete images, `(B, size, size)`."""
    mean, std = INTENSITY[images]
    pixels = (episodes.truth["display"][..., 0] * std + mean) * 255
    side = math.isqrt(pixels.shape[1])
    return pixels.round().long().reshape(-1, side, side)


def test_every_pixel_is_either_context_or_target():
    episodes = SMALL.sample(Request(30, 28, new_generator()))
    inputs = SMALL.display_inputs()
    for episode in range(30):
        context, targets = (p[episode] for p in (episodes.context, episodes.targets))
        x = torch.cat([context.x[context.mask], targets.x[targets.mask]])
        y = torch.cat([context.y[context.mask], targets.y[targets.mask]])
        pixel = torch.cdist(x, inputs).argmin(1)
        assert sorted(pixel.tolist()) == list(range(144))
        assert torch.equal(inputs[pixel], x)
        assert torch.equal(episodes.truth["display"][episode, pixel], y)
    assert torch.equal(episodes.scored, episodes.targets.mask)


def test_the_parameter_targets_sets_the_number_of_targets():
    episodes = family(targets=20).sample(Request(40, 28, new_generator()))
    assert episodes.targets.counts.tolist() == [20] * 40
    for episode in range(40):
        context, targets = (p.x[episode][p.mask[episode]] for p in (episodes.context, episodes.targets))
        assert torch.cdist(context, targets).min() > 1e-3
        assert len(torch.unique(targets, dim=0)) == 20


def test_with_sampling_share_context_sizes_are_uniform_between_1_and_20_percent_of_the_pixels():
    episodes = family(size=28, classes=2).sample(Request(1600, 784, new_generator()))
    sizes = episodes.context.counts
    assert (sizes.min(), sizes.max()) == (7, 156)
    assert abs(sizes.double().mean() - 81.5) < 4 * math.sqrt((150**2 - 1) / 12 / 1600)
    numbers = torch.bincount((episodes.related.counts > 0).sum(1), minlength=4)
    assert (numbers - 400).abs().max() < 4 * math.sqrt(1600 * 3 / 16)
    related = episodes.related.counts[episodes.related.counts > 0]
    assert (related.min(), related.max()) == (7, 392)
    assert abs(related.double().mean() - 199.5) < 4 * math.sqrt((386**2 - 1) / 12 / len(related))


def test_with_sampling_cmab_context_sizes_leave_room_for_the_targets():
    """There are N ~ U[3, 197) context points and M ~ U[3, 200 - N) targets."""
    episodes = family(size=28, sampling="cmab", max_related=0).sample(Request(6000, 196, new_generator()))
    context, targets = episodes.context.counts, episodes.targets.counts
    assert (context.min(), context.max(), targets.min()) == (3, 196, 3)
    assert ((context + targets) <= 199).all()
    assert (context + targets).max() == 199
    assert abs(context.double().mean() - 99.5) < 4 * math.sqrt((194**2 - 1) / 12 / 6000)
    with_smallest_context = targets[context == 3]
    error = math.sqrt((194**2 - 1) / 12 / len(with_smallest_context))
    assert abs(with_smallest_context.double().mean() - 99.5) < 4 * error
    assert episodes.related is None


def test_the_number_of_points_limits_the_context_and_the_shift_points_sets_its_size():
    assert SMALL.sample(Request(200, 9, new_generator())).context.counts.max() == 9
    exact = SMALL.sample(Request(20, 28, new_generator(), shift="points-100"))
    assert exact.context.counts.tolist() == [100] * 20
    assert exact.targets.counts.tolist() == [44] * 20
    with refused("bad-value", "'points-144'", 144):
        SMALL.sample(Request(2, 28, new_generator(), shift="points-144"))
    cmab = family(size=28, sampling="cmab", max_related=0).sample(Request(20, 196, new_generator(), shift="points-300"))
    assert cmab.context.counts.tolist() == [300] * 20
    assert (cmab.targets.counts >= 3).all()


def test_related_images_are_different_images_of_the_same_label():
    episodes = SMALL.sample(Request(300, 28, new_generator(), related=3))
    related, image = episodes.truth["related_image"], episodes.truth["image"]
    assert torch.equal(related // 20, episodes.truth["label"].unsqueeze(1).expand(-1, 3)), "20 drawings of each class"
    images = torch.cat([image.unsqueeze(1), related], 1)
    assert (images.sort(1).values.diff(dim=1) > 0).all()
    pixels = glyphs(0, 4, 20, 12).reshape(80, 144)
    inputs = SMALL.display_inputs()
    for episode in range(5):
        for j in range(3):
            points = episodes.related.map(lambda t, e=episode, j=j: t[e, j])
            pixel = torch.cdist(points.x[points.mask], inputs).argmin(1)
            assert len(set(pixel.tolist())) == len(pixel)
            expected = torch.from_numpy(pixels[related[episode, j]]).float()[pixel] / 255
            torch.testing.assert_close(points.y[points.mask][:, 0], (expected - 0.067) / 0.22)


def test_the_number_of_related_images_does_not_change_the_other_images():
    full = SMALL.sample(Request(20, 28, new_generator(), related=3))
    for count in (0, 1, 2, None):
        reduced = SMALL.sample(Request(20, 28, new_generator(), related=count))
        assert torch.equal(reduced.context.y, full.context.y)
        assert torch.equal(reduced.targets.x, full.targets.x)
        is_present = reduced.related.mask.any(-1)
        assert count is None or is_present.sum(1).tolist() == [count] * 20
        assert torch.equal(reduced.related.y[is_present], full.related.y[is_present])
        assert not reduced.related.y[~is_present].any()


def test_distinct_numbers_are_drawn_uniformly_from_those_that_are_not_excluded():
    counts, excluded = (
        torch.tensor([4, 6]).repeat_interleave(20_000),
        torch.tensor([[1], [0]]).repeat_interleave(20_000, 0),
    )
    numbers = _distinct_numbers(counts, 3, excluded, new_generator())
    assert (torch.cat([numbers, excluded], 1).sort(1).values.diff(dim=1) > 0).all()
    for rows, count, remaining in ((numbers[:20_000], 4, [0, 2, 3]), (numbers[20_000:], 6, [1, 2, 3, 4, 5])):
        for position in range(3):
            share = torch.bincount(rows[:, position], minlength=count)[remaining] / 20_000
            p = 1 / len(remaining)
            assert (share - p).abs().max() < 4 * math.sqrt(p * (1 - p) / 20_000)


def test_labels_are_equally_likely():
    label = SMALL.sample(Request(4000, 5, new_generator())).truth["label"]
    assert (torch.bincount(label) - 1000).abs().max() < 4 * math.sqrt(4000 * 3 / 16)


def test_evaluation_uses_different_drawings_of_the_training_characters():
    training, evaluation = (f.sample(Request(400, 28, new_generator())) for f in (SMALL, SMALL.held_out()))
    train, test = bytes_of(training, "glyphs"), bytes_of(evaluation, "glyphs")
    assert set(training.truth["label"].tolist()) == set(evaluation.truth["label"].tolist()) == {0, 1, 2, 3}
    assert not {t.numpy().tobytes() for t in train} & {t.numpy().tobytes() for t in test}
    expected = glyphs(0, 4, range(20, 20 + HELD_OUT_DRAWINGS), 12).reshape(-1, 12, 12)
    assert np.array_equal(expected[evaluation.truth["image"]], test)
    assert torch.equal(
        SMALL.held_out().held_out().sample(Request(3, 5, new_generator())).context.y,
        SMALL.held_out().sample(Request(3, 5, new_generator())).context.y,
    )
    repeated = SMALL.sample(Request(400, 28, new_generator()))
    assert torch.equal(repeated.context.y, training.context.y), "held_out does not change the family"


def test_the_shift_unseen_classes_changes_all_images_and_other_label_only_related_images():
    unseen = SMALL.held_out().sample(Request(100, 28, new_generator(), shift="unseen-classes"))
    assert set(unseen.truth["label"].tolist()) == {4, 5, 6, 7}
    same, other = (SMALL.sample(Request(400, 28, new_generator(), shift=s)) for s in ("none", "other-label"))
    assert torch.equal(same.targets.y, other.targets.y), "only the related images change"
    labels = other.truth["related_image"] // 20
    assert (labels == labels[:, :1]).all()
    offset = (labels[:, 0] - other.truth["label"]) % 4
    assert torch.bincount(offset, minlength=4)[0] == 0
    assert (torch.bincount(offset)[1:] - 400 / 3).abs().max() < 4 * math.sqrt(400 * 2 / 9)


def test_inputs_and_intensities_have_the_scale_of_their_protocol():
    x = SMALL.display_inputs().double()
    torch.testing.assert_close(x.mean(0), torch.zeros(2, dtype=x.dtype), atol=1e-6, rtol=0)
    torch.testing.assert_close(x.square().mean(0), torch.ones(2, dtype=x.dtype))
    centred = family(sampling="cmab", max_related=0, budget=60)
    x, y = centred.display_inputs(), centred.sample(Request(50, 20, new_generator())).truth["display"]
    assert (x.min(), x.max(), y.min(), y.max()) == (-1, 1, -0.5, 0.5)
    assert torch.equal(x[:13, 1], torch.cat([x[::12, 0], x[:1, 0]])), "row by row: the first coordinate is the row"
    assert centred.normaliser == pytest.approx(0.22**2)
    intensities = family(size=28, classes=50, drawings=30).sample(Request(1000, 5, new_generator())).truth["display"]
    assert abs(intensities.mean()) < 0.1
    assert abs(intensities.std() - 1) < 0.1


def test_training_and_evaluation_on_mnist_use_its_training_and_test_files(folder):
    mnist = family(folder, images="mnist")
    for part, base in ((mnist, 0), (mnist.held_out(), 100)):
        episodes = part.sample(Request(100, 20, new_generator()))
        images = bytes_of(episodes, "mnist")
        assert (images[:, 0, 0] == base).all()
        assert torch.equal(images[:, 0, 1], episodes.truth["image"])
        assert torch.equal(episodes.truth["image"] % 3, episodes.truth["label"])
        assert (images[:, 2, 20] == 255).all()
    assert mnist.fingerprint != mnist.held_out().fingerprint
    assert mnist.fingerprint == family(folder, images="mnist").fingerprint


def test_emnist_is_upright_and_its_letters_are_unseen_classes(folder):
    emnist = family(folder, images="emnist")
    for part, base, shift, labels in (
        (emnist, 0, "none", range(10)),
        (emnist.held_out(), 100, "none", range(10)),
        (emnist.held_out(), 100, "unseen-classes", range(10, 47)),
    ):
        episodes = part.sample(Request(1000, 20, new_generator(), shift=shift))
        images = bytes_of(episodes, "emnist")
        assert (images[:, 0, 0] == base).all()
        assert (images[:, 20, 2] == 255).all()
        assert set(episodes.truth["label"].tolist()) == set(labels)


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"images": "mnist", "size": 32}, "size: .*mnist.*32"),
        ({"images": "celeba"}, "max_related: .*celeba"),
        ({"images": "cifar"}, "images"),
        ({"sampling": "cmab", "size": 12}, "budget: .*144.*200"),
        ({"drawings": 3}, "drawings"),
    ],
)
def test_invalid_parameters_are_refused(parameters, name):
    with pytest.raises(ValidationError, match=name):
        ImageParameters.model_validate(parameters)


def test_shifts_that_do_not_apply_are_refused(folder):
    with refused("not-applicable", "'unseen-classes'", "mnist", "glyphs", "emnist"):
        family(folder, images="mnist").parse_shift("unseen-classes")
    with refused("not-applicable", "'other-label'", "task.max_related"):
        family(max_related=0).parse_shift("other-label")
    with refused("not-applicable", "'orthants'", "unseen-classes"):
        SMALL.parse_shift("orthants")


def test_errors_for_missing_data_name_their_source(tmp_path):
    with refused("missing-data", "--data-dir", "ICLBENCH_DATA", "'mnist'"):
        family(images="mnist").sample(Request(1, 5, new_generator()))
    with refused("missing-data", tmp_path / "mnist" / "train-images-idx3-ubyte.gz", "MNIST", "--data-dir"):
        family(tmp_path, images="mnist").sample(Request(1, 5, new_generator()))


def test_files_with_different_numbers_of_images_and_labels_are_refused(folder, tmp_path):
    write_idx(tmp_path / "mnist" / "train-images-idx3-ubyte", np.zeros((4, 28, 28)))
    write_idx(tmp_path / "mnist" / "train-labels-idx1-ubyte", np.arange(5))
    with refused("bad-data", tmp_path / "mnist", "4 x 28 x 28", 5):
        family(tmp_path, images="mnist").sample(Request(1, 5, new_generator()))


def test_labels_with_too_few_images_are_refused(folder, tmp_path):
    write_idx(tmp_path / "mnist" / "train-images-idx3-ubyte", np.zeros((4, 28, 28)))
    write_idx(tmp_path / "mnist" / "train-labels-idx1-ubyte", np.array([0, 0, 0, 1]))
    with refused("bad-data", "label 1", 1, 4, "task.max_related"):
        family(tmp_path, images="mnist").sample(Request(1, 5, new_generator()))


@pytest.mark.skipif("ICLBENCH_DATA" not in os.environ, reason="needs real MNIST: ICLBENCH_DATA is not set")
def test_real_mnist_has_the_assumed_scale_and_orientation():
    mnist = family(Path(os.environ["ICLBENCH_DATA"]), images="mnist")
    episodes = mnist.sample(Request(2000, 156, new_generator()))
    intensities = episodes.truth["display"]
    assert abs(intensities.mean()) < 0.03
    assert abs(intensities.std() - 1) < 0.03
    assert set(episodes.truth["label"].tolist()) == set(range(10))
    # A zero has a hole, so images of zeros are on average darker at the centre than images of ones.
    centre = bytes_of(episodes, "mnist")[:, 13:15, 13:15].double().mean((1, 2))
    assert centre[episodes.truth["label"] == 0].mean() < 0.3 * centre[episodes.truth["label"] == 1].mean()
    test = mnist.held_out().sample(Request(200, 156, new_generator()))
    assert episodes.truth["image"].max() >= 10_000 > test.truth["image"].max()


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["share", "cmab"])
def test_the_normaliser_is_the_variance_of_the_intensities(sampling):
    """The normaliser equals the variance of the pixels of many images on the scale of the task."""
    family = ImageCompletion(ImageParameters(sampling=sampling))
    episodes = family.sample(Request(400, 200, new_generator()))
    intensities = torch.cat([points.y[points.mask] for points in (episodes.context, episodes.targets)])
    assert float(intensities.var()) == pytest.approx(family.normaliser, rel=0.03)


@pytest.mark.parametrize(
    ("task", "cap"), [("image-completion-emnist", 2.0768), ("image-completion-celeba32", math.inf)]
)
def test_likelihoods_are_capped_as_in_the_released_code(task, cap):
    """In the released code of CMAB, standard deviations are 0.05 + 0.95 softplus(r) on EMNIST, so the cap is
    log N(0; 0, 0.05²). On CelebA, they are exp(r), which has no positive lower bound. The floors of the tasks give the
    same caps."""
    for preset in ("small", "paper"):
        floor = resolve_task(task, preset)[0].floor
        narrowest = Gaussian.from_raw(torch.tensor([0.0, -60.0], dtype=torch.float64), 1, HeadSettings(floor))
        maximum = narrowest.log_likelihood(torch.zeros(1, dtype=torch.float64)).item()
        assert maximum == pytest.approx(cap, abs=1e-3) if math.isfinite(cap) else maximum > 10


@pytest.mark.parametrize(("size", "batch"), [(32, 100), (64, 50), (128, 25)])
def test_training_on_celeba_has_200_epochs_of_partitions_0_and_1(size, batch):
    run = next(
        r for r in grid_runs("cmab-table-2-celeba", "paper") if r.task == f"image-completion-celeba{size}"
    ).config
    assert run.train.batch == batch
    assert run.train.steps == 200 * math.ceil((162_770 + 19_867) / batch)


@pytest.mark.slow
@pytest.mark.parametrize("grid", ["cmab-table-2-emnist", "cmab-table-2-celeba"])
def test_latent_models_in_the_grids_of_table_2_use_the_normed_residual(grid):
    latent_runs = [run for run in grid_runs(grid) if run.backbone in ("lbanp", "cmanp")]
    assert {run.backbone for run in latent_runs} == {"lbanp", "cmanp"}
    assert all(run.config.backbone.settings["residual"] == "normed" for run in latent_runs)


def test_training_test_and_unseen_glyphs_do_not_overlap() -> None:
    parts = {part: glyph_images(part, 3, 4, 8, jitter=1.0) for part in ("train", "test", "unseen")}
    pixels = {
        part: {image.numpy().tobytes() for image in images._pixels[torch.device("cpu")]}
        for part, images in parts.items()
    }
    assert not pixels["train"] & pixels["test"] and not (pixels["train"] | pixels["test"]) & pixels["unseen"]
    assert [set(images.labels.tolist()) for images in parts.values()] == [{0, 1, 2}, {0, 1, 2}, {3, 4, 5}]


def test_validation_uses_separate_glyph_drawings_or_mnist_training_images() -> None:
    parts = [family(drawings=20), family(drawings=20).validation(), family(drawings=20).held_out()]
    train, validation, test = (
        {image.numpy().tobytes() for image in part.sample(Request(64, 9, new_generator())).truth["display"]}
        for part in parts
    )
    assert not train & validation and not validation & test
    assert len({part.fingerprint for part in parts}) == 3
    assert family(images="mnist").validation()._part == "train"
