"""Images as functions of pixel coordinates: which pixels, which images, on which scale."""

import gzip
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from iclbench.config.resolution import resolve_task
from iclbench.core.errors import DataError, UsageError
from iclbench.core.predictions import Gaussian, HeadSettings
from iclbench.core.settings import validate
from iclbench.families.images.glyphs import glyphs
from iclbench.families.images.image_completion import INTENSITY, ImageCompletion, ImageParameters, _distinct
from iclbench.families.images.image_sets import HELD_OUT, glyph_images
from iclbench.families.request import Request
from iclbench.sweep.grids import grid_runs


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


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
    """MNIST and EMNIST in their layouts; every image tells its file, its number and which way is up."""
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
    """The whole images as they are stored, `(B, size, size)`."""
    mean, std = INTENSITY[images]
    whole = (episodes.truth["display"][..., 0] * std + mean) * 255
    side = math.isqrt(whole.shape[1])
    return whole.round().long().reshape(-1, side, side)


def test_context_and_targets_are_all_pixels_of_the_image_once():
    episodes = SMALL.sample(Request(30, 28, stream()))
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


def test_a_part_of_the_other_pixels_can_be_asked():
    episodes = family(targets=20).sample(Request(40, 28, stream()))
    assert episodes.targets.counts.tolist() == [20] * 40
    for episode in range(40):
        context, asked = (p.x[episode][p.mask[episode]] for p in (episodes.context, episodes.targets))
        assert torch.cdist(context, asked).min() > 1e-3
        assert len(torch.unique(asked, dim=0)) == 20


def test_sizes_of_share_are_uniform_between_a_hundredth_and_a_fifth():
    episodes = family(size=28, classes=2).sample(Request(1600, 784, stream()))
    sizes = episodes.context.counts
    assert (sizes.min(), sizes.max()) == (7, 156)
    assert abs(sizes.double().mean() - 81.5) < 4 * math.sqrt((150**2 - 1) / 12 / 1600)
    numbers = torch.bincount((episodes.related.counts > 0).sum(1), minlength=4)
    assert (numbers - 400).abs().max() < 4 * math.sqrt(1600 * 3 / 16)
    related = episodes.related.counts[episodes.related.counts > 0]
    assert (related.min(), related.max()) == (7, 392)
    assert abs(related.double().mean() - 199.5) < 4 * math.sqrt((386**2 - 1) / 12 / len(related))


def test_sizes_of_cmab_leave_room_for_the_targets():
    """N ~ U[3, 197) and M ~ U[3, 200 - N), upper ends excluded."""
    episodes = family(size=28, sampling="cmab", max_related=0).sample(Request(6000, 196, stream()))
    context, targets = episodes.context.counts, episodes.targets.counts
    assert (context.min(), context.max(), targets.min()) == (3, 196, 3)
    assert ((context + targets) <= 199).all()
    assert (context + targets).max() == 199
    assert abs(context.double().mean() - 99.5) < 4 * math.sqrt((194**2 - 1) / 12 / 6000)
    few = targets[context == 3]
    assert abs(few.double().mean() - 99.5) < 4 * math.sqrt((194**2 - 1) / 12 / len(few))
    assert episodes.related is None


def test_points_bound_contexts_and_the_shift_fixes_them():
    assert SMALL.sample(Request(200, 9, stream())).context.counts.max() == 9
    exact = SMALL.sample(Request(20, 28, stream(), shift="points-100"))
    assert exact.context.counts.tolist() == [100] * 20
    assert exact.targets.counts.tolist() == [44] * 20
    with pytest.raises(UsageError, match="144 pixels and one must be left"):
        SMALL.sample(Request(2, 28, stream(), shift="points-144"))
    cmab = family(size=28, sampling="cmab", max_related=0).sample(Request(20, 196, stream(), shift="points-300"))
    assert cmab.context.counts.tolist() == [300] * 20
    assert (cmab.targets.counts >= 3).all()


def test_related_images_are_different_others_of_the_same_label():
    episodes = SMALL.sample(Request(300, 28, stream(), related=3))
    related, own = episodes.truth["related_image"], episodes.truth["image"]
    assert torch.equal(related // 20, episodes.truth["label"].unsqueeze(1).expand(-1, 3)), "20 drawings of each class"
    everyone = torch.cat([own.unsqueeze(1), related], 1)
    assert (everyone.sort(1).values.diff(dim=1) > 0).all()
    drawn = glyphs(0, 4, 20, 12).reshape(80, 144)
    inputs = SMALL.display_inputs()
    for episode in range(5):
        for j in range(3):
            points = episodes.related.map(lambda t, e=episode, j=j: t[e, j])
            pixel = torch.cdist(points.x[points.mask], inputs).argmin(1)
            assert len(set(pixel.tolist())) == len(pixel)
            expected = torch.from_numpy(drawn[related[episode, j]]).float()[pixel] / 255
            torch.testing.assert_close(points.y[points.mask][:, 0], (expected - 0.067) / 0.22)


def test_a_seed_means_the_same_images_however_many_related_are_asked_for():
    whole = SMALL.sample(Request(20, 28, stream(), related=3))
    for count in (0, 1, 2, None):
        part = SMALL.sample(Request(20, 28, stream(), related=count))
        assert torch.equal(part.context.y, whole.context.y)
        assert torch.equal(part.targets.x, whole.targets.x)
        there = part.related.mask.any(-1)
        assert count is None or there.sum(1).tolist() == [count] * 20
        assert torch.equal(part.related.y[there], whole.related.y[there])
        assert not part.related.y[~there].any()


def test_distinct_numbers_are_uniform_among_those_not_taken():
    counts, taken = (
        torch.tensor([4, 6]).repeat_interleave(20_000),
        torch.tensor([[1], [0]]).repeat_interleave(20_000, 0),
    )
    drawn = _distinct(counts, 3, taken, stream())
    assert (torch.cat([drawn, taken], 1).sort(1).values.diff(dim=1) > 0).all()
    for rows, number, left in ((drawn[:20_000], 4, [0, 2, 3]), (drawn[20_000:], 6, [1, 2, 3, 4, 5])):
        for place in range(3):
            share = torch.bincount(rows[:, place], minlength=number)[left] / 20_000
            p = 1 / len(left)
            assert (share - p).abs().max() < 4 * math.sqrt(p * (1 - p) / 20_000)


def test_labels_are_equally_likely():
    label = SMALL.sample(Request(4000, 5, stream())).truth["label"]
    assert (torch.bincount(label) - 1000).abs().max() < 4 * math.sqrt(4000 * 3 / 16)


def test_evaluation_draws_other_drawings_of_the_same_characters():
    seen, held = (f.sample(Request(400, 28, stream())) for f in (SMALL, SMALL.held_out()))
    train, test = bytes_of(seen, "glyphs"), bytes_of(held, "glyphs")
    assert set(seen.truth["label"].tolist()) == set(held.truth["label"].tolist()) == {0, 1, 2, 3}
    assert not {t.numpy().tobytes() for t in train} & {t.numpy().tobytes() for t in test}
    expected = glyphs(0, 4, range(20, 20 + HELD_OUT), 12).reshape(-1, 12, 12)
    assert np.array_equal(expected[held.truth["image"]], test)
    assert torch.equal(
        SMALL.held_out().held_out().sample(Request(3, 5, stream())).context.y,
        SMALL.held_out().sample(Request(3, 5, stream())).context.y,
    )
    assert torch.equal(SMALL.sample(Request(400, 28, stream())).context.y, seen.context.y), (
        "the family itself still trains"
    )


def test_unseen_classes_and_other_labels():
    unseen = SMALL.held_out().sample(Request(100, 28, stream(), shift="unseen-classes"))
    assert set(unseen.truth["label"].tolist()) == {4, 5, 6, 7}
    same, other = (SMALL.sample(Request(400, 28, stream(), shift=s)) for s in ("none", "other-label"))
    assert torch.equal(same.targets.y, other.targets.y), "only the related images change"
    labels = other.truth["related_image"] // 20
    assert (labels == labels[:, :1]).all()
    away = (labels[:, 0] - other.truth["label"]) % 4
    assert torch.bincount(away, minlength=4)[0] == 0
    assert (torch.bincount(away)[1:] - 400 / 3).abs().max() < 4 * math.sqrt(400 * 2 / 9)


def test_scales_of_the_two_protocols():
    x = SMALL.display_inputs().double()
    torch.testing.assert_close(x.mean(0), torch.zeros(2, dtype=x.dtype), atol=1e-6, rtol=0)
    torch.testing.assert_close(x.square().mean(0), torch.ones(2, dtype=x.dtype))
    centred = family(sampling="cmab", max_related=0, budget=60)
    x, y = centred.display_inputs(), centred.sample(Request(50, 20, stream())).truth["display"]
    assert (x.min(), x.max(), y.min(), y.max()) == (-1, 1, -0.5, 0.5)
    assert torch.equal(x[:13, 1], torch.cat([x[::12, 0], x[:1, 0]])), "row by row: the first coordinate is the row"
    assert centred.normaliser == pytest.approx(0.22**2)
    whole = family(size=28, classes=50, drawings=30).sample(Request(1000, 5, stream())).truth["display"]
    assert abs(whole.mean()) < 0.1
    assert abs(whole.std() - 1) < 0.1


def test_mnist_trains_and_evaluates_on_its_own_files(folder):
    mnist = family(folder, images="mnist")
    for one, base in ((mnist, 0), (mnist.held_out(), 100)):
        found = one.sample(Request(100, 20, stream()))
        images = bytes_of(found, "mnist")
        assert (images[:, 0, 0] == base).all()
        assert torch.equal(images[:, 0, 1], found.truth["image"])
        assert torch.equal(found.truth["image"] % 3, found.truth["label"])
        assert (images[:, 2, 20] == 255).all()
    assert mnist.fingerprint != mnist.held_out().fingerprint
    assert mnist.fingerprint == family(folder, images="mnist").fingerprint


def test_emnist_is_turned_upright_and_its_letters_are_unseen(folder):
    emnist = family(folder, images="emnist")
    for one, base, shift, labels in (
        (emnist, 0, "none", range(10)),
        (emnist.held_out(), 100, "none", range(10)),
        (emnist.held_out(), 100, "unseen-classes", range(10, 47)),
    ):
        found = one.sample(Request(1000, 20, stream(), shift=shift))
        images = bytes_of(found, "emnist")
        assert (images[:, 0, 0] == base).all()
        assert (images[:, 20, 2] == 255).all()
        assert set(found.truth["label"].tolist()) == set(labels)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"images": "mnist", "size": 32}, "images of mnist are 28 x 28, got 32"),
        ({"images": "celeba"}, "max_related: images of celeba have no labels"),
        ({"images": "cifar"}, "'glyphs', 'mnist', 'emnist' or 'celeba'"),
        ({"sampling": "cmab", "size": 12}, "an image has 144 pixels, got 200"),
        ({"drawings": 3}, "drawings"),
    ],
)
def test_parameters_that_do_not_fit_are_one_clear_line(parameters, message):
    with pytest.raises(UsageError, match=message) as error:
        validate(ImageParameters, parameters, "card")
    assert "\n" not in str(error.value)


def test_shifts_that_do_not_apply_say_why(folder):
    with pytest.raises(UsageError, match="no classes that are left out of training; glyphs and emnist do"):
        family(folder, images="mnist").parse_shift("unseen-classes")
    with pytest.raises(UsageError, match=r"no related images; raise task.max_related"):
        family(max_related=0).parse_shift("other-label")
    with pytest.raises(UsageError, match=r"does not apply to this task; known: .*unseen-classes"):
        SMALL.parse_shift("orthants")


def test_missing_data_says_where_it_belongs(tmp_path):
    with pytest.raises(DataError, match="--data-dir or ICLBENCH_DATA at the folder that holds 'mnist'"):
        family(images="mnist").sample(Request(1, 5, stream()))
    with pytest.raises(DataError, match=r"mnist/train-images-idx3-ubyte.gz is not there; put the files of the MNIST"):
        family(tmp_path, images="mnist").sample(Request(1, 5, stream()))


def test_files_that_do_not_belong_together_are_refused(folder, tmp_path):
    write_idx(tmp_path / "mnist" / "train-images-idx3-ubyte", np.zeros((4, 28, 28)))
    write_idx(tmp_path / "mnist" / "train-labels-idx1-ubyte", np.arange(5))
    with pytest.raises(DataError, match="4 x 28 x 28 and 5 labels"):
        family(tmp_path, images="mnist").sample(Request(1, 5, stream()))
    write_idx(tmp_path / "mnist" / "train-labels-idx1-ubyte", np.array([0, 0, 0, 1]))
    with pytest.raises(DataError, match=r"label 1 has 1 image\(s\), an episode needs 4; lower task.max_related"):
        family(tmp_path, images="mnist").sample(Request(1, 5, stream()))


@pytest.mark.skipif("ICLBENCH_DATA" not in os.environ, reason="ICLBENCH_DATA is not set: real MNIST is elsewhere")
def test_real_mnist():
    mnist = family(Path(os.environ["ICLBENCH_DATA"]), images="mnist")
    found = mnist.sample(Request(2000, 156, stream()))
    whole = found.truth["display"]
    assert abs(whole.mean()) < 0.03
    assert abs(whole.std() - 1) < 0.03
    assert set(found.truth["label"].tolist()) == set(range(10))
    # A zero has a hole: the middle of its mean image is darker than that of a one.
    middle = bytes_of(found, "mnist")[:, 13:15, 13:15].double().mean((1, 2))
    assert middle[found.truth["label"] == 0].mean() < 0.3 * middle[found.truth["label"] == 1].mean()
    test = mnist.held_out().sample(Request(200, 156, stream()))
    assert found.truth["image"].max() >= 10_000 > test.truth["image"].max()


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["share", "cmab"])
def test_the_normaliser_is_the_variance_of_the_intensities_that_are_predicted(sampling):
    """Of pixels from many images, on the scale of the task: about 1 where they are standardised."""
    whole = ImageCompletion(ImageParameters(sampling=sampling))
    drawn = whole.sample(Request(400, 200, stream()))
    there = torch.cat([points.y[points.mask] for points in (drawn.context, drawn.targets)])
    assert float(there.var()) == pytest.approx(whole.normaliser, rel=0.03)


# The CMAB paper's table 2: what its released code trains.


@pytest.mark.parametrize(
    ("task", "cap"), [("image-completion-emnist", 2.0768), ("image-completion-celeba32", math.inf)]
)
def test_likelihoods_are_capped_where_the_released_code_caps_them(task, cap):
    """0.05 + 0.95 softplus on EMNIST: log N(0; 0, 0.05²) at most; an exponential on CelebA."""
    for preset in ("small", "paper"):
        floor = resolve_task(task, preset)[0].floor
        surest = Gaussian.from_raw(torch.tensor([0.0, -60.0], dtype=torch.float64), 1, HeadSettings(floor))
        best = surest.log_likelihood(torch.zeros(1, dtype=torch.float64)).item()
        assert best == pytest.approx(cap, abs=1e-3) if math.isfinite(cap) else best > 10


@pytest.mark.parametrize(("size", "batch"), [(32, 100), (64, 50), (128, 25)])
def test_celeba_is_trained_on_for_200_epochs_of_partitions_0_and_1(size, batch):
    run = next(
        r for r in grid_runs("cmab-table-2-celeba", "paper") if r.task == f"image-completion-celeba{size}"
    ).config
    assert run.train.batch == batch
    assert run.train.steps == 200 * math.ceil((162_770 + 19_867) / batch)


# The other card says it in the same way, and to resolve its 270 runs takes seconds.
@pytest.mark.slow
@pytest.mark.parametrize("grid", ["cmab-table-2-emnist", pytest.param("cmab-table-2-celeba", marks=pytest.mark.slow)])
def test_models_of_the_table_carry_the_norm_in_their_residual_branch(grid):
    latent = [run for run in grid_runs(grid) if run.backbone in ("lbanp", "cmanp")]
    assert {run.backbone for run in latent} == {"lbanp", "cmanp"}
    assert all(run.config.backbone.settings["residual"] == "normed" for run in latent)


def test_glyphs_to_evaluate_on_are_other_drawings_and_unseen_classes_other_characters() -> None:
    parts = {part: glyph_images(part, 3, 4, 8, jitter=1.0) for part in ("train", "test", "unseen")}
    shown = {
        part: {image.numpy().tobytes() for image in images._pixels[torch.device("cpu")]}
        for part, images in parts.items()
    }
    assert not shown["train"] & shown["test"] and not (shown["train"] | shown["test"]) & shown["unseen"]
    assert [set(images.labels.tolist()) for images in parts.values()] == [{0, 1, 2}, {0, 1, 2}, {3, 4, 5}]


def test_drawings_to_choose_by_are_neither_trained_nor_asked() -> None:
    """Of real images, which are all trained on or asked, those that are trained on."""
    parts = [family(drawings=20), family(drawings=20).validation(), family(drawings=20).held_out()]
    shown = [
        {image.numpy().tobytes() for image in part.sample(Request(64, 9, stream())).truth["display"]} for part in parts
    ]
    assert not shown[0] & shown[1] and not shown[1] & shown[2]
    assert len({part.fingerprint for part in parts}) == 3
    assert family(images="mnist").validation()._part == "train"
