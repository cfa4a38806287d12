"""What every family promises, as checks that anyone can run on their own; the counterpart of `iclbench.contracts`."""

from __future__ import annotations

import math

import torch

from iclbench.episodes import Episodes
from iclbench.families.base import Family, FunctionFamily
from iclbench.families.shifts import NUMBERED

EPISODES, POINTS = 16, 8


def draw(family: Family, episodes: int = EPISODES, points: int = POINTS, seed: int = 0, **options: object) -> Episodes:
    """Episodes from a generator of their own."""
    return family.sample(episodes, points, torch.Generator().manual_seed(seed), **options)  # type: ignore[arg-type]


def shifts_of(family: Family) -> list[str]:
    """Every shift the family lists, with a number where it takes one."""
    return ["none", "points-12", *(f"{kind}-2" if kind in NUMBERED else kind for kind in sorted(family.shift_kinds))]


def episodes_have_the_declared_shapes_and_types(family: Family) -> None:
    """`(batch, points, dim)`, float32 inputs, boolean masks, labels within the classes."""
    episodes = draw(family)
    context = episodes.context
    assert context.x.shape == (EPISODES, POINTS, family.x_dim), f"x has shape {tuple(context.x.shape)}"
    assert context.x.dtype == torch.float32, f"x is {context.x.dtype}"
    assert context.mask.dtype == torch.bool, f"the mask is {context.mask.dtype}"
    if family.classes is None:
        assert context.y.shape == (EPISODES, POINTS, family.y_dim), f"y has shape {tuple(context.y.shape)}"
    else:
        assert context.y.shape == (EPISODES, POINTS), f"labels have shape {tuple(context.y.shape)}"
        assert ((context.y >= 0) & (context.y < family.classes)).all(), "a label lies outside the classes"
    assert episodes.scored.shape == episodes.asked.mask.shape, "`scored` does not fit the asked points"
    assert not (episodes.scored & ~episodes.asked.mask).any(), "only points that are there are scored"
    assert episodes.scored.any(1).all(), "an episode has nothing to score"
    assert family.x_shape is None or math.prod(family.x_shape) == family.x_dim, "x_shape does not unfold x"


def every_listed_shift_can_be_sampled(family: Family) -> None:
    """Finite, batch-first, with one query per prefix."""
    for shift in shifts_of(family):
        episodes = draw(family, shift=shift)
        for name, tensor in episodes.tensors().items():
            assert len(tensor) == EPISODES, f"{shift}: {name} is not batch-first"
            assert not tensor.is_floating_point() or tensor.isfinite().all(), f"{shift}: {name} is not finite"
        assert episodes.scored.any(), f"{shift}: nothing is scored"
        assert family.noise_to_signal(shift) >= 0, f"{shift}: noise_to_signal is negative"
        assert episodes.asked.x.shape == episodes.context.x.shape, f"{shift}: not one query per prefix"


def the_generator_decides_everything(family: Family) -> None:
    """The same generator gives the same episodes, another seed others; the global random state stays as it was."""
    before = torch.get_rng_state()
    for shift in shifts_of(family):
        once, again, other = (draw(family, seed=seed, shift=shift).tensors() for seed in (3, 3, 4))
        assert once.keys() == again.keys(), f"{shift}: other tensors the second time"
        assert all(torch.equal(once[k], again[k]) for k in once), f"{shift}: one seed gives two sets of episodes"
        assert not torch.equal(once["context.x"], other["context.x"]), f"{shift}: two seeds give the same inputs"
        assert not torch.equal(once["context.y"], other["context.y"]), f"{shift}: two seeds give the same outputs"
    assert torch.equal(torch.get_rng_state(), before), "sampling draws from torch's global generator"


def episodes_differ_from_each_other(family: Family) -> None:
    """No two episodes of a batch are the same."""
    labels = draw(family).context.y.flatten(1)
    assert len(torch.unique(labels, dim=0)) == EPISODES, "two episodes have the same outputs"


def every_number_of_points_can_be_sampled(family: Family) -> None:
    """From a single point on."""
    for points in (1, 2, 3, 30):
        episodes = draw(family, episodes=2, points=points)
        assert episodes.context.count == points, f"asked for {points} points, got {episodes.context.count}"
        assert episodes.context.y.isfinite().all(), f"{points} points: an output is not finite"


def the_truth_is_there_for_oracles(family: Family) -> None:
    """What generated the episodes, batch-first."""
    truth = draw(family).truth
    assert truth, "the truth is empty"
    assert all(len(tensor) == EPISODES for tensor in truth.values()), "the truth is not batch-first"


def a_curriculum_zeroes_the_inputs_it_has_not_reached(family: Family) -> None:
    """Dimensions beyond `active_dims` are 0; all dimensions active is no curriculum."""
    for active in (1, 2, family.x_dim):
        x = draw(family, active_dims=active).context.x
        assert not x[..., active:].any(), f"active_dims={active}: a later dimension is not 0"
        assert x[..., :active].any(), f"active_dims={active}: everything is 0"
    whole = draw(family, active_dims=family.x_dim).context.x
    assert torch.equal(whole, draw(family).context.x), "all dimensions active is not the same as no curriculum"


def the_variance_of_noiseless_labels_is_the_normaliser(family: Family) -> None:
    """Over independent episodes, to four standard errors; families of functions only."""
    if not isinstance(family, FunctionFamily):
        return
    episodes = draw(family, episodes=6000, points=3)
    each = family.apply(episodes.truth, episodes.context.x).double().square().mean(1)
    off, error = float(each.mean() - family.normaliser), float(each.std()) / math.sqrt(len(each))
    assert abs(off) < 4 * error, f"E y² is {each.mean():.4g} ± {error:.2g}, the normaliser {family.normaliser:.4g}"


def functions_see_neither_other_points_nor_neighbours(family: Family) -> None:
    """A part of the episodes and points has the outputs it has within the whole; families of functions only."""
    if not isinstance(family, FunctionFamily):
        return
    episodes = draw(family)
    whole = family.apply(episodes.truth, episodes.context.x)
    part = episodes[2:4]
    alone = family.apply(part.truth, part.context.x[:, 1:3])
    assert torch.allclose(alone, whole[2:4, 1:3], atol=1e-5, rtol=1e-5), "an output depends on other points or episodes"


FAMILY_CONTRACTS = [
    episodes_have_the_declared_shapes_and_types,
    every_listed_shift_can_be_sampled,
    the_generator_decides_everything,
    episodes_differ_from_each_other,
    every_number_of_points_can_be_sampled,
    the_truth_is_there_for_oracles,
    a_curriculum_zeroes_the_inputs_it_has_not_reached,
    the_variance_of_noiseless_labels_is_the_normaliser,
    functions_see_neither_other_points_nor_neighbours,
]
