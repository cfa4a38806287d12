"""The contracts of families: one check for each property that families must have."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.config.cards import load_baseline
from iclbench.contracts import phases, questions
from iclbench.contracts.contract import Tolerance
from iclbench.core.episodes import Episodes
from iclbench.core.errors import UsageError
from iclbench.core.events import CENSORED
from iclbench.core.guard import guarded
from iclbench.core.predictor import Predictor
from iclbench.core.settings import validate
from iclbench.families.base import Family, FunctionFamily
from iclbench.families.request import Request
from iclbench.families.shifts import Kind, Shift
from iclbench.families.streams.base import StreamFamily
from iclbench.registry import ESTIMATORS

EPISODES, POINTS = 16, 8
_LARGEST_POINTS = 1024


def draw(
    family: Family, episodes: int = EPISODES, points: int | None = None, seed: int = 0, **options: object
) -> Episodes:
    """Sample episodes with a new generator with this seed. By default, each episode has `points_of(family)` points."""
    points = points_of(family) if points is None else points
    return family.sample(Request(episodes, points, torch.Generator().manual_seed(seed), **options))  # type: ignore[arg-type]


def points_of(family: Family, smallest: int = POINTS, fits_all_sizes: bool = True) -> int:
    """Return the number of points to sample: `smallest`, doubled until the family accepts it.

    Args:
        family: the family.
        smallest: the smallest number.
        fits_all_sizes: whether episodes of this number of points must have space for all sizes in the ranges of the
            parameters, such as all numbers of pairs of `recall`. Training requires this.
    """
    points = smallest
    while points < _LARGEST_POINTS and not family.accepts(points, "none" if fits_all_sizes else f"points-{points}"):
        points *= 2
    return points


def shifts_of(family: Family) -> list[str]:
    """Return `none`, a shift with a number of points, and one shift of each kind of the family."""
    return [
        "none",
        Shift().with_examples(12).name,
        *(_shift_name(name, kind) for name, kind in sorted(family.shift_kinds.items())),
    ]


def combined_shifts_of(family: Family) -> list[str]:
    """Return combinations of two shifts, for all pairs of kinds that change different aspects."""
    kinds = family.shift_kinds.items()
    pairs = [pair for pair in combinations(kinds, 2) if not set(pair[0][1].aspects) & set(pair[1][1].aspects)]
    return ["+".join(_shift_name(name, kind) for name, kind in pair) for pair in pairs]


def _shift_name(name: str, kind: Kind) -> str:
    if kind.number is None:
        return name
    return f"{name}-2" if kind.number.largest >= 2 else f"{name}-{kind.number.largest / 2:g}"


def episodes_have_the_declared_shapes_and_types(family: Family) -> None:
    """Tensors have the shape (batch, points, dim), inputs are float32, masks are boolean, and labels are valid
    classes."""
    episodes = draw(family)
    context, points = episodes.context, points_of(family)
    assert context.x.shape == (EPISODES, points, family.x_dim), f"x has shape {tuple(context.x.shape)}"
    assert context.x.dtype == torch.float32, f"x is {context.x.dtype}"
    assert context.mask.dtype == torch.bool, f"the mask is {context.mask.dtype}"
    if family.classes is None:
        assert context.y.shape == (EPISODES, points, family.y_dim), f"y has shape {tuple(context.y.shape)}"
    else:
        assert context.y.shape == (EPISODES, points), f"labels have shape {tuple(context.y.shape)}"
        assert ((context.y >= 0) & (context.y < family.classes)).all(), "a label is not one of the classes"
    assert episodes.scored.shape == episodes.queries.mask.shape, "`scored` does not have the shape of the query points"
    assert not (episodes.scored & ~episodes.queries.mask).any(), "a masked point is scored"
    assert episodes.scored.any(1).all(), "an episode has no scored point"
    assert family.x_shape is None or math.prod(family.x_shape) == family.x_dim, "x_shape does not fit x_dim"
    assert bool(family.questions) and family.questions <= {"next", "targets"}, f"unknown questions {family.questions}"
    assert "next" in family.questions or episodes.targets is not None, (
        "the question is targets, but the episodes have no targets"
    )


def events_are_gaps_marks_and_times(family: Family) -> None:
    """Gaps are positive, times are their cumulative sums, and marks are integers below `marks`. A censored point is the
    last point of its sequence and is not scored. (For families of events.)"""
    if family.marks is None:
        return
    episodes = draw(family)
    y, valid = episodes.context.y.double(), episodes.context.mask
    assert family.y_dim == y.shape[-1] == 3, f"an event is (gap, mark, time), but y has {y.shape[-1]} columns"
    gap, mark, time = y.unbind(-1)
    assert (gap > 0)[valid].all(), "a gap is not positive"
    assert ((time - gap.masked_fill(~valid, 0).cumsum(1)).abs() <= 1e-4 * time.abs())[valid].all(), (
        "a time is not the sum of the gaps so far"
    )
    is_event = valid & (mark != CENSORED)
    is_mark = (mark == mark.round()) & (mark >= 0) & (mark < family.marks)
    assert is_mark[is_event].all(), "a mark is not one of the marks"
    is_censored = valid & ~is_event
    assert not (is_censored & episodes.scored).any(), "a censored point is scored"
    has_successor = valid.flip(1).cumsum(1).flip(1) > 1
    assert not (is_censored & has_successor).any(), "a point is after a censored one"


def every_listed_shift_can_be_sampled(family: Family) -> None:
    """Single shifts and combinations of two give finite, batch-first tensors. For the question `next`, there is one
    query per prefix."""
    for shift in [*shifts_of(family), *combined_shifts_of(family)]:
        episodes = draw(family, shift=shift)
        for name, tensor in episodes.tensors().items():
            assert len(tensor) == EPISODES, f"{shift}: {name} is not batch-first"
            assert not tensor.is_floating_point() or tensor.isfinite().all(), f"{shift}: {name} is not finite"
        assert episodes.scored.any(), f"{shift}: no point is scored"
        assert family.noise_to_signal(shift) >= 0, f"{shift}: noise_to_signal is negative"
        if "next" in family.questions:
            assert episodes.queries.x.shape == episodes.context.x.shape, f"{shift}: there is not one query per prefix"


def the_seed_determines_the_episodes(family: Family) -> None:
    """The same seed gives the same episodes, and a different seed gives different ones. The global random state does
    not change."""
    before = torch.get_rng_state()
    for shift in shifts_of(family):
        sample, repeated_sample, other_sample = (draw(family, seed=seed, shift=shift).tensors() for seed in (3, 3, 4))
        assert sample.keys() == repeated_sample.keys(), f"{shift}: a second sample has different tensors"
        assert all(torch.equal(sample[k], repeated_sample[k]) for k in sample), (
            f"{shift}: the same seed gives different episodes"
        )
        assert not family.x_dim or not torch.equal(sample["context.x"], other_sample["context.x"]), (
            f"{shift}: two seeds give the same inputs"
        )
        assert not torch.equal(sample["context.y"], other_sample["context.y"]), (
            f"{shift}: two seeds give the same outputs"
        )
    assert torch.equal(torch.get_rng_state(), before), "sampling draws from torch's global generator"


def episodes_differ_from_each_other(family: Family) -> None:
    """No two episodes of a batch are the same. Longer streams are sampled, since short streams of few tokens may be
    equal."""
    episodes = draw(family, points=points_of(family, 4 * POINTS) if family.is_stream else None)
    labels = torch.cat([episodes.context.y.flatten(1), episodes.queries.y.flatten(1)], 1)
    assert len(torch.unique(labels, dim=0)) == EPISODES, "two episodes have the same outputs"


def every_number_of_points_can_be_sampled(family: Family) -> None:
    """Episodes can be sampled with every number of points that the family accepts, and they have this number of
    points."""
    for points in filter(family.accepts, (1, 2, 3, 30, points_of(family))):
        episodes = draw(family, episodes=2, points=points)
        assert episodes.context.count == points, f"{episodes.context.count} points instead of {points}"
        assert episodes.context.y.isfinite().all(), f"{points} points: an output is not finite"


def the_truth_is_not_empty(family: Family) -> None:
    """The truth has at least one tensor, and all its tensors are batch-first."""
    truth = draw(family).truth
    assert truth, "the truth is empty"
    assert all(len(tensor) == EPISODES for tensor in truth.values()), "the truth is not batch-first"


def a_curriculum_zeroes_the_inputs_it_has_not_reached(family: Family) -> None:
    """Input dimensions beyond `active_dims` are 0. With all dimensions active, inputs are the same as without a
    curriculum. (For the question `next` with inputs.)"""
    if "next" not in family.questions or not family.x_dim:
        return
    for active in (1, 2, family.x_dim):
        x = draw(family, active_dims=active).context.x
        assert not x[..., active:].any(), f"active_dims={active}: a later dimension is not 0"
        assert x[..., :active].any(), f"active_dims={active}: all dimensions are 0"
    x_all = draw(family, active_dims=family.x_dim).context.x
    assert torch.equal(x_all, draw(family).context.x), "all dimensions active and no curriculum give different inputs"


def the_variance_of_noiseless_labels_is_the_normaliser(family: Family) -> None:
    """The mean of y² equals `normaliser` within four standard errors over independent episodes. (For families of
    functions.)"""
    if not isinstance(family, FunctionFamily):
        return
    episodes = draw(family, episodes=6000, points=3)
    mean_squares = family.apply(episodes.truth, episodes.context.x).double().square().mean(1)
    difference = float(mean_squares.mean() - family.normaliser)
    error = float(mean_squares.std()) / math.sqrt(len(mean_squares))
    assert abs(difference) < 4 * error, (
        f"E y² is {mean_squares.mean():.4g} ± {error:.2g}, the normaliser {family.normaliser:.4g}"
    )


def functions_see_neither_other_points_nor_neighbours(family: Family) -> None:
    """Outputs for a subset of episodes and points equal the outputs within the complete batch. (For families of
    functions.)"""
    if not isinstance(family, FunctionFamily):
        return
    episodes = draw(family)
    outputs = family.apply(episodes.truth, episodes.context.x)
    subset = episodes[2:4]
    subset_outputs = family.apply(subset.truth, subset.context.x[:, 1:3])
    assert torch.allclose(subset_outputs, outputs[2:4, 1:3], atol=1e-5, rtol=1e-5), (
        "an output depends on other points or episodes"
    )


def contexts_have_the_requested_sizes(family: Family) -> None:
    """Contexts have at most the requested number of points, and exactly N points with the shift `points-N`. (For the
    question `targets`, because `next` uses every prefix.)"""
    if "targets" not in family.questions:
        return
    sizes = draw(family, points=30).context.counts
    assert ((sizes >= 1) & (sizes <= 30)).all(), f"contexts of {sizes.tolist()} points instead of at most 30"
    for count in (3, 20):
        shift = Shift().with_examples(count).name
        sizes = draw(family, points=count, shift=shift).context.counts
        assert (sizes == count).all(), f"{shift}: contexts of {sizes.tolist()} points"


def related_datasets_change_nothing_else(family: Family) -> None:
    """The requested number of related datasets, which is at most `related_sets`, does not change the context, the
    targets or the values of related datasets."""
    max_related = family.related_sets
    all_episodes = draw(family, related=max_related)
    if not max_related:
        assert all_episodes.related is None, "there are related datasets, but `related_sets` is 0"
        return
    assert all_episodes.related is not None, "the episodes have no related datasets, but `related_sets` is positive"
    for count in (None, *range(max_related)):
        episodes = draw(family, related=count)
        for name, tensor in episodes.tensors().items():
            is_same = name.startswith("related.") or torch.equal(tensor, all_episodes.tensors()[name])
            assert is_same, f"related={count}: {name} differs from that with related={max_related}"
        assert episodes.related is not None and episodes.related.mask.shape == all_episodes.related.mask.shape, (
            f"related={count}: related datasets have different padding than with related={max_related}"
        )
        valid = episodes.related.mask
        for name in ("x", "y", "mask"):
            values, expected = (getattr(related, name)[valid] for related in (episodes.related, all_episodes.related))
            assert torch.equal(values, expected), (
                f"related={count}: datasets differ from those with related={max_related}"
            )


def related_datasets_have_the_requested_number(family: Family) -> None:
    """With `related=n`, every episode has exactly n related datasets, followed by absent ones. With `related=None`, the
    number may differ between episodes. No dataset has more than `related_points` points, if the family sets this
    limit."""
    max_related = family.related_sets
    if not max_related:
        return
    for count in (None, *range(max_related + 1)):
        related = draw(family, related=count).related
        assert related is not None and related.mask.shape[:2] == (EPISODES, max_related), (
            "related datasets are not padded to `related_sets`"
        )
        assert related.x.shape[-1] == family.x_dim, f"related inputs have {related.x.shape[-1]} dimensions"
        largest = int(related.mask.sum(-1).max())
        assert largest <= (family.related_points or largest), f"{largest} points are more than `related_points`"
        is_present = related.mask.any(-1)
        assert not (is_present[:, 1:] & ~is_present[:, :-1]).any(), "an absent dataset is before a present one"
        numbers = is_present.sum(1)
        assert count is None or (numbers == count).all(), f"related={count} gives {numbers.tolist()}"


def strata_are_parts_of_the_episodes(family: Family) -> None:
    """Each stratum is a boolean mask over the episodes."""
    episodes = draw(family)
    for name, mask in family.strata(episodes).items():
        assert mask.shape == (EPISODES,) and mask.dtype == torch.bool, f"stratum {name} is not a mask over episodes"


def no_baseline_beats_a_listed_oracle(family: Family) -> None:
    """No simple baseline has an error that is smaller than an oracle's by more than four standard errors, paired by
    episode.

    The error is the negative log-likelihood for events, the cross-entropy for labels, and otherwise the squared error.
    """
    oracles = sorted(name for name in family.oracles if family.lists_oracle(name))
    if not oracles:
        return
    # Related datasets are removed, since they would take most of the time.
    episode_count = 4 * EPISODES if "next" in family.questions else EPISODES
    points = max(POINTS, min(2 * family.x_dim, 48)) if family.x_dim else points_of(family, 4 * POINTS)
    episodes = replace(draw(family, episode_count, points), related=None)
    baselines = _simple_baselines(family)
    oracle_errors = {name: errors for name in oracles if (errors := _oracle_errors(family, name, episodes)) is not None}
    baseline_errors = {name: _errors(family, name, episodes) for name in baselines} if oracle_errors else {}
    for oracle, errors_of_oracle in oracle_errors.items():
        for name, errors in baseline_errors.items():
            gaps = errors_of_oracle - errors
            # Large gaps are clamped, because the oracle may fail in a few episodes. This lowers the mean gap.
            gaps = gaps.clamp(max=gaps.quantile(0.75))
            lead, error = float(gaps.mean()), float(gaps.std()) / math.sqrt(len(gaps))
            assert lead <= 4 * error + 1e-9, f"{name} beats the oracle {oracle} by at least {lead:.3g} ± {error:.2g}"


def streams_have_no_inputs(family: Family) -> None:
    """Elements have no inputs, the only question is `next`, episodes have labels of prefixes only if the family says
    so, and targets of probes have a value and a mask per episode. (For families of streams.)"""
    if not isinstance(family, StreamFamily):
        assert not family.is_stream, "is_stream is set, but the class does not derive from StreamFamily"
        return
    episodes = draw(family)
    assert family.x_dim == 0, f"x_dim is {family.x_dim}"
    assert family.questions == {"next"}, f"questions are {sorted(family.questions)}"
    has_labels = episodes.targets is not None
    expected = family.predicts_labels
    assert has_labels == expected, f"predicts_labels is {expected}, but the episodes have labels: {has_labels}"
    if episodes.targets is not None:
        sizes = episodes.targets.count, episodes.context.count
        assert sizes[0] == sizes[1], "the episodes have {} labels of {} prefixes".format(*sizes)
    for name, target in family.probe_targets(episodes, episodes.context.count - 1).items():
        assert len(target.values) == EPISODES, f"the probe target {name} is not batch-first"
        assert target.is_defined.shape == (EPISODES,), f"the probe target {name} has no mask over episodes"
        assert target.is_defined.dtype == torch.bool, f"the mask of the probe target {name} is not boolean"


def later_elements_change_no_oracle(family: Family) -> None:
    """A listed oracle predicts an element from earlier elements only. (For families of streams, and oracles without
    access to the truth.)"""
    _check_oracles_of_streams(family, questions.later_points_change_nothing)


def batch_neighbours_change_no_oracle(family: Family) -> None:
    """The answers of a listed oracle do not depend on other sequences of the batch. (For families of streams, and
    oracles without access to the truth.)"""
    _check_oracles_of_streams(family, questions.batch_neighbours_change_nothing)


def updates_of_oracles_equal_conditioning(family: Family) -> None:
    """After updates with the parts of a sequence, a listed oracle gives the same answers as after conditioning on the
    complete sequence. (For families of streams, and oracles without access to the truth.)"""
    _check_oracles_of_streams(family, phases.update_equals_conditioning_on_everything)


def _check_oracles_of_streams(family: Family, check: Callable[[Predictor, Episodes, Tolerance], None]) -> None:
    """Check a contract of predictors for each listed oracle of a family of streams that does not use the truth."""
    if not family.is_stream:
        return
    count = points_of(family, fits_all_sizes=False)
    episodes = draw(family, episodes=3, points=count)
    context, last_point = episodes.context.span(0, count - 1), episodes.context.span(count - 1)
    episodes = replace(episodes, context=context, targets=last_point, scored=last_point.mask)
    for name in sorted(name for name in family.oracles if family.lists_oracle(name)):
        try:
            oracle = _baseline(family, name)
        except UsageError:
            continue  # the oracle does not support the parameters of the family
        if oracle.informed(episodes.truth) is not oracle:
            continue
        try:
            check(oracle, episodes, Tolerance(2e-5, 1e-4))
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


# Baselines with which oracles are compared. Each baseline is fast, and accurate for some functions.
_SIMPLE_BASELINES = ("zero", "mean", "averaging", "knn-3", "least-squares", "ridge-1e-1", "lasso-1e-2", "gp-rbf")
_SIMPLE_EVENT_BASELINES = ("poisson", "renewal", "markov-marks")
_SIMPLE_VECTOR_BASELINES = ("zero", "mean", "last-value", "ar-2", "ar-4")
_SIMPLE_TOKEN_BASELINES = ("uniform", "unigram", "bigram", "trigram")
# Baselines of streams whose targets are labels of prefixes.
_SIMPLE_LABEL_BASELINES = ("uniform",)


def _simple_baselines(family: Family) -> tuple[str, ...]:
    if family.marks is not None:
        return _SIMPLE_EVENT_BASELINES
    if family.x_dim:
        return _SIMPLE_BASELINES
    if family.classes is None:
        return _SIMPLE_VECTOR_BASELINES
    return _SIMPLE_LABEL_BASELINES if family.predicts_labels else _SIMPLE_TOKEN_BASELINES


def _oracle_errors(family: Family, oracle: str, episodes: Episodes) -> Float[Tensor, " B"] | None:
    """Return the errors of an oracle, or None if it does not support the parameters of the family.

    For example, an oracle may not support random features in place of shared ones, or an average over millions of
    supports.
    """
    try:
        return _errors(family, oracle, episodes)
    except UsageError:
        return None


def _baseline(family: Family, baseline: str) -> Predictor:
    """Build a baseline with the facts of the family."""
    _, card = load_baseline(baseline)
    estimator = ESTIMATORS.get(card.estimator)
    settings = validate(estimator.Settings, card.settings, f"baseline '{baseline}'")
    predictor: Predictor = estimator(settings, family.facts())
    return predictor


def _errors(family: Family, baseline: str, episodes: Episodes) -> Float[Tensor, " B"]:
    """Return the error of a baseline in each episode: the mean squared error divided by the normaliser, the negative
    log-likelihood for events, or the cross-entropy for labels."""
    predictor = _baseline(family, baseline)
    question = "next" if "next" in family.questions else "targets"
    answer = predictor.informed(episodes.truth).ask(episodes.without_truth(), question)
    if family.marks is None and family.classes is None:
        losses = (answer.point() - episodes.queries.y).double().square().sum(-1) / family.normaliser
    else:
        losses = answer.loss(episodes.queries.y).double()
    return losses.masked_fill(~episodes.scored, 0).sum(1) / episodes.scored.sum(1)


_CONTRACTS = [
    episodes_have_the_declared_shapes_and_types,
    events_are_gaps_marks_and_times,
    every_listed_shift_can_be_sampled,
    the_seed_determines_the_episodes,
    episodes_differ_from_each_other,
    every_number_of_points_can_be_sampled,
    the_truth_is_not_empty,
    a_curriculum_zeroes_the_inputs_it_has_not_reached,
    the_variance_of_noiseless_labels_is_the_normaliser,
    functions_see_neither_other_points_nor_neighbours,
    contexts_have_the_requested_sizes,
    related_datasets_change_nothing_else,
    related_datasets_have_the_requested_number,
    strata_are_parts_of_the_episodes,
    streams_have_no_inputs,
    later_elements_change_no_oracle,
    batch_neighbours_change_no_oracle,
    updates_of_oracles_equal_conditioning,
    no_baseline_beats_a_listed_oracle,
]
FAMILY_CONTRACTS = [guarded(contract) for contract in _CONTRACTS]
