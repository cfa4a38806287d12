"""What every registered family promises, also those of third parties."""

import math

import numpy as np
import pytest
import torch

from iclbench.families.base import FunctionFamily
from iclbench.families.shifts import NUMBERED
from iclbench.registry import FAMILIES

POINTS = 8


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """Two small tables, for families that need data."""
    folder = tmp_path_factory.mktemp("data") / "tabular"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name, features in (("narrow", 2), ("wide", 30)):
        x = rng.normal(size=(300, features))
        y = x.sum(1, keepdims=True) + rng.normal(size=(300, 1))
        np.savetxt(folder / f"{name}.csv", np.hstack([x, y]), delimiter=",")
    return folder.parent


@pytest.fixture(params=FAMILIES.names())
def family(request, data_dir):
    cls = FAMILIES.get(request.param)
    return cls(cls.Parameters(), data_dir)


def draw(family, episodes=16, points=POINTS, seed=0, **options):
    return family.sample(episodes, points, torch.Generator().manual_seed(seed), **options)


def shifts_of(family):
    return ["none", "points-12", *(f"{kind}-2" if kind in NUMBERED else kind for kind in sorted(family.shift_kinds))]


def test_episodes_have_the_shapes_and_types_that_the_family_declares(family):
    episodes = draw(family)
    context = episodes.context
    assert context.x.shape == (16, POINTS, family.x_dim)
    assert context.x.dtype == torch.float32
    assert context.mask.shape == (16, POINTS)
    assert context.mask.dtype == torch.bool
    if family.classes is None:
        assert context.y.shape == (16, POINTS, family.y_dim)
    else:
        assert context.y.shape == (16, POINTS)
        assert ((context.y >= 0) & (context.y < family.classes)).all()
    assert episodes.scored.shape == episodes.asked.mask.shape
    assert not (episodes.scored & ~episodes.asked.mask).any(), "only points that are there are scored"
    assert episodes.scored.any(1).all()
    assert (family.x_shape is None) or math.prod(family.x_shape) == family.x_dim


def test_every_shift_that_a_family_lists_can_be_sampled(family):
    for shift in shifts_of(family):
        episodes = draw(family, shift=shift)
        for name, tensor in episodes.tensors().items():
            assert len(tensor) == 16, f"{shift}: {name} is not batch-first"
            assert not tensor.is_floating_point() or tensor.isfinite().all(), f"{shift}: {name}"
        assert episodes.scored.any(), shift
        assert family.noise_to_signal(shift) >= 0
        # For the question `next` there is one query per prefix.
        assert episodes.asked.x.shape == episodes.context.x.shape


def test_the_same_generator_gives_the_same_episodes_and_another_seed_gives_others(family):
    for shift in shifts_of(family):
        once, again, other = (draw(family, seed=seed, shift=shift).tensors() for seed in (3, 3, 4))
        assert once.keys() == again.keys()
        assert all(torch.equal(once[k], again[k]) for k in once), shift
        assert not torch.equal(once["context.x"], other["context.x"])
        assert not torch.equal(once["context.y"], other["context.y"])


def test_episodes_differ_from_each_other_and_can_be_indexed(family):
    episodes = draw(family)
    assert len(torch.unique(episodes.context.y.flatten(1), dim=0)) == 16
    assert torch.equal(episodes[3:5].context.x, episodes.context.x[3:5])
    assert len(episodes[3:5].without_truth().tensors()) == len(episodes.tensors()) - len(episodes.truth)


def test_every_number_of_points_can_be_sampled(family):
    for points in (1, 2, 3, 30):
        episodes = draw(family, episodes=2, points=points)
        assert episodes.context.count == points
        assert episodes.context.y.isfinite().all()


def test_sampling_leaves_the_global_random_state_alone(family):
    before = torch.get_rng_state()
    draw(family)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_truth_is_there_for_oracles(family):
    truth = draw(family).truth
    assert truth
    assert all(len(tensor) == 16 for tensor in truth.values())


def test_a_curriculum_zeroes_the_inputs_it_has_not_reached(family):
    for active in (1, 2, family.x_dim):
        context = draw(family, active_dims=active).context
        assert not context.x[..., active:].any()
        assert context.x[..., :active].any()
    assert torch.equal(draw(family, active_dims=family.x_dim).context.x, draw(family).context.x)


def test_the_variance_of_noiseless_labels_is_the_normaliser(family):
    """Over independent episodes, to about four standard errors."""
    if not isinstance(family, FunctionFamily):
        pytest.skip("labels are not a function of the family's own; see its own tests")
    episodes = draw(family, episodes=6000, points=3)
    each = family.apply(episodes.truth, episodes.context.x).double().square().mean(1)
    assert abs(each.mean() - family.normaliser) < 4 * each.std() / math.sqrt(len(each))


def test_no_function_sees_other_points_or_its_batch_neighbours(family):
    if not isinstance(family, FunctionFamily):
        pytest.skip("not a family of functions")
    episodes = draw(family)
    whole = family.apply(episodes.truth, episodes.context.x)
    part = episodes[2:4]
    torch.testing.assert_close(family.apply(part.truth, part.context.x[:, 1:3]), whole[2:4, 1:3], atol=1e-5, rtol=1e-5)


@pytest.mark.cuda
def test_episodes_live_on_the_generators_device(family):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    for shift in shifts_of(family):
        episodes = family.sample(4, POINTS, torch.Generator("cuda").manual_seed(0), shift=shift)
        assert all(t.is_cuda for t in episodes.tensors().values())


@pytest.mark.cuda
def test_what_belongs_to_the_task_is_the_same_on_every_device():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    cls = FAMILIES.get("relu-network")
    shared = cls(cls.Parameters(dim=5, hidden=10, shared_hidden=True))
    hidden = [shared.sample(2, 3, torch.Generator(d).manual_seed(0)).truth["hidden"].cpu() for d in ("cpu", "cuda")]
    assert torch.equal(*hidden)
