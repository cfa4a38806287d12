"""What every predictor promises, as checks that anyone can run on their own: one function per property.

Each takes a predictor and example episodes and raises `AssertionError` with a sentence that says what was promised
and by how much it was missed. The tests run all of them over everything registered; `failures` runs them over one
predictor.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from iclbench.episodes import Episodes, Points, take
from iclbench.predictions import Prediction
from iclbench.predictor import Predictor, State
from iclbench.records import TensorRecord


@dataclass(frozen=True)
class Tolerance:
    """How far two answers may be apart that should be equal: `absolute + relative * |expected|`."""

    absolute: float = 1e-5
    relative: float = 1e-4


@dataclass(frozen=True)
class Contract:
    """One property: its name, the check, and which predictors it is about."""

    name: str
    check: Callable[[Predictor, Episodes, Tolerance], None]
    applies: Callable[[Predictor], bool]


CONTRACTS: list[Contract] = []


def _contract(
    applies: Callable[[Predictor], bool] = lambda _: True,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def register(check: Callable[..., None]) -> Callable[..., None]:
        CONTRACTS.append(Contract(check.__name__, check, applies))
        return check

    return register


def failures(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = Tolerance()) -> dict[str, str]:
    """The contracts that `predictor` breaks on these episodes, with what went wrong; empty when it keeps them all."""
    broken = {}
    for contract in CONTRACTS:
        if contract.applies(predictor):
            try:
                contract.check(predictor, episodes, tolerance)
            except Exception as error:
                broken[contract.name] = str(error) or type(error).__name__
    return broken


def example_episodes(
    dim: int = 4, points: int = 9, targets: int = 3, outputs: int = 1, classes: int | None = None, seed: int = 0
) -> Episodes:
    """Three random episodes for the checks: noisy linear functions, or random labels when `classes` is given."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(3, points + targets, dim, generator=draw)
    if classes is None:
        y = x @ torch.randn(3, dim, outputs, generator=draw)
        y = y + 0.5 * torch.randn(y.shape, generator=draw)
    else:
        y = torch.randint(classes, x.shape[:2], generator=draw)
    every = Points.full(x, y)
    asked = every.span(points)
    return Episodes(context=every.span(0, points), targets=asked, scored=asked.mask, classes=classes)


# The two questions.


@_contract()
def answers_have_the_right_shape(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = Tolerance()) -> None:
    """One finite answer per prefix and per target."""
    context, x = episodes.context, _queries(episodes)
    for question, answer, count in (
        ("predict_next", _next(predictor, episodes, context), context.count),
        ("predict_targets", _targets(predictor, episodes, context, x), x.shape[1]),
    ):
        assert isinstance(answer, Prediction), f"{question} returns a {type(answer).__name__}, not a Prediction"
        for name, t in answer.tensors().items():
            expected = (len(context), count)
            assert t.shape[:2] == expected, f"{question}: '{name}' has shape {tuple(t.shape)}, not {expected} and more"
            assert bool(t.isfinite().all()), f"{question}: '{name}' is not finite"
        losses = answer.loss(context.y if question == "predict_next" else _asked(episodes).y)
        assert losses.shape == (len(context), count), f"{question}: the loss has shape {tuple(losses.shape)}"


@_contract()
def asking_twice_gives_the_same(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = Tolerance()) -> None:
    """Answers are deterministic."""
    first, second = (_next(predictor, episodes, episodes.context) for _ in range(2))
    _assert_close(first, second, Tolerance(0.0, 0.0), "predict_next gives another answer the second time")


@_contract()
def targets_do_not_see_each_other(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = Tolerance()) -> None:
    """A target's answer is the same alone and among others, wherever it stands."""
    context, x = episodes.context, _queries(episodes)
    together = _targets(predictor, episodes, context, x)
    for q in range(x.shape[1]):
        alone = _targets(predictor, episodes, context, x[:, q : q + 1])
        _assert_close(together.at(slice(q, q + 1)), alone, tolerance, f"answer {q} depends on other targets")
    backwards = _targets(predictor, episodes, context, x.flip(1))
    _assert_close(together, backwards.map(lambda t: t.flip(1)), tolerance, "answers depend on the order of the targets")


@_contract()
def no_answer_sees_its_own_label(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = Tolerance()) -> None:
    """The answer for n does not move when label n changes."""
    context = episodes.context
    expected = _next(predictor, episodes, context)
    for n in range(context.count):
        y = context.y.clone()
        y[:, n] = _other(y[:, n], episodes.classes)
        moved = _next(predictor, episodes, replace(context, y=y))
        _assert_close(
            moved.at(slice(0, n + 1)),
            expected.at(slice(0, n + 1)),
            tolerance,
            f"an answer up to {n} changes with label {n}",
        )


@_contract()
def later_points_change_nothing(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = Tolerance()) -> None:
    """The answer for n does not move when points after n change."""
    context = episodes.context
    expected = _next(predictor, episodes, context)
    for n in range(context.count - 1):
        x, y = context.x.clone(), context.y.clone()
        x[:, n + 1 :] = 3 - 2 * x[:, n + 1 :]
        y[:, n + 1 :] = _other(y[:, n + 1 :], episodes.classes)
        moved = _next(predictor, episodes, replace(context, x=x, y=y))
        _assert_close(
            moved.at(slice(0, n + 1)),
            expected.at(slice(0, n + 1)),
            tolerance,
            f"points after {n} change an earlier answer",
        )


@_contract()
def batch_neighbours_change_nothing(
    predictor: Predictor, episodes: Episodes, tolerance: Tolerance = Tolerance()
) -> None:
    """Every episode gets the answers it would get alone."""
    context, x = episodes.context, _queries(episodes)
    ahead, asked = _next(predictor, episodes, context), _targets(predictor, episodes, context, x)
    for b in range(len(episodes)):
        one = slice(b, b + 1)
        alone = episodes[one]
        message = f"answers for episode {b} depend on its batch neighbours"
        _assert_close(ahead[one], _next(predictor, alone, context[one]), tolerance, message)
        _assert_close(asked[one], _targets(predictor, alone, context[one], x[one]), tolerance, message)


@_contract(lambda predictor: predictor.order == "set")
def the_order_of_the_context_changes_nothing(
    predictor: Predictor, episodes: Episodes, tolerance: Tolerance = Tolerance()
) -> None:
    """A set model gives the same answers whatever the order of its context."""
    context, x = episodes.context, _queries(episodes)
    order = torch.randperm(context.count, generator=torch.Generator().manual_seed(0)).to(x.device)
    shuffled = context.map(lambda t: t[:, order])
    _assert_close(
        _targets(predictor, episodes, shuffled, x),
        _targets(predictor, episodes, context, x),
        tolerance,
        "it calls itself a set model, but its answers depend on the order of the context",
    )


@_contract()
def masks_equal_truncation(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = Tolerance()) -> None:
    """Masked points, anywhere in the context and different ones per episode, are as if they were not there."""
    context, x = episodes.context, _queries(episodes)
    where = torch.stack(
        [torch.randperm(2 * context.count, generator=torch.Generator().manual_seed(b)) for b in range(len(context))]
    )
    places = where[:, : context.count].sort(1).values.to(x.device)
    noise = torch.full_like(context.x.repeat(1, 2, 1), 7.0)
    labels = context.y.repeat(1, 2, *[1] * (context.y.dim() - 2)).roll(1, 1)
    padded = Points(
        _put(noise, places, context.x),
        _put(labels, places, context.y),
        _put(torch.zeros_like(context.mask).repeat(1, 2), places, context.mask),
    )
    _assert_close(
        _targets(predictor, episodes, padded, x),
        _targets(predictor, episodes, context, x),
        tolerance,
        "predict_targets: masked points change the answers",
    )
    _assert_close(
        _next(predictor, episodes, padded).map(lambda t: take(t, places)),
        _next(predictor, episodes, context),
        tolerance,
        "predict_next: masked points change the answers at the others",
    )


@_contract()
def the_two_questions_agree(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = Tolerance()) -> None:
    """`predict_next` is `predict_targets` asked at each prefix."""
    context = episodes.context
    ahead = _next(predictor, episodes, context)
    for n in range(context.count):
        asked = _targets(predictor, episodes, context.span(0, n), context.x[:, n : n + 1])
        _assert_close(ahead.at(slice(n, n + 1)), asked, tolerance, f"the two questions differ after {n} points")


@_contract()
def shifted_queries_are_answered(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = Tolerance()) -> None:
    """With `x_query`, the answer for n is about `x_query[:, n]` and leaves no trace in the next ones."""
    context = episodes.context
    queries = 2 * context.x.flip(1)
    ahead = predictor.predict_next(context, episodes.related, x_query=queries)
    for n in range(context.count):
        asked = _targets(predictor, episodes, context.span(0, n), queries[:, n : n + 1])
        _assert_close(ahead.at(slice(n, n + 1)), asked, tolerance, f"x_query: wrong answer after {n} points")


@_contract()
def chosen_prefixes_are_answered(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = Tolerance()) -> None:
    """With `prefixes`, the answers are those of the full question at these lengths, in their order."""
    context = episodes.context
    chosen = [0, 1, context.count // 2, context.count - 1]
    queries = context.x.flip(1)
    for x_query in (None, queries):
        every = predictor.predict_next(context, episodes.related, x_query=x_query)
        some = predictor.predict_next(context, episodes.related, x_query=x_query, prefixes=chosen)
        _assert_close(some, every.at(torch.tensor(chosen)), tolerance, f"prefixes={chosen} is not answered as asked")


@_contract()
def an_empty_context_works(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = Tolerance()) -> None:
    """Without any point there still are finite answers, the same whether nothing is there or everything is masked."""
    context, x = episodes.context, _queries(episodes)
    empty = _targets(predictor, episodes, context.span(0, 0), x)
    for name, t in empty.tensors().items():
        assert bool(t.isfinite().all()), f"'{name}' is not finite for an empty context"
    masked = replace(context, mask=torch.zeros_like(context.mask))
    _assert_close(_targets(predictor, episodes, masked, x), empty, tolerance, "all masked is not the same as empty")


# The three phases.


@_contract()
def phases_equal_the_question(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = Tolerance()) -> None:
    """Conditioning once and querying, twice, is `predict_targets`; a query does not change the state."""
    context, x = episodes.context, _queries(episodes)
    expected = _targets(predictor, episodes, context, x)
    state = predictor.condition(context, episodes.related)
    _assert_close(predictor.query(state, x), expected, tolerance, "condition and query differ from predict_targets")
    _assert_close(predictor.query(state, x), expected, tolerance, "a query changes the state")


@_contract()
def update_equals_conditioning_on_everything(
    predictor: Predictor, episodes: Episodes, tolerance: Tolerance = Tolerance()
) -> None:
    """Points may come in any portions, starting from none."""
    context, x = episodes.context, _queries(episodes)
    expected = _targets(predictor, episodes, context, x)
    for cuts in ([0, 1], [context.count // 2], [0, 2, 3]):
        edges = [*cuts, context.count]
        state = predictor.condition(context.span(0, edges[0]), episodes.related)
        for start, stop in pairwise(edges):
            state = predictor.update(state, context.span(start, stop))
        answer = predictor.query(state, x)
        _assert_close(answer, expected, tolerance, f"updating at {cuts} differs from conditioning on everything")


@_contract()
def states_can_be_indexed_and_saved(
    predictor: Predictor, episodes: Episodes, tolerance: Tolerance = Tolerance()
) -> None:
    """Part of a state answers for its episodes; a state read back from a file answers as before."""
    context, x = episodes.context, _queries(episodes)
    state = predictor.condition(context, episodes.related)
    assert isinstance(state, State), f"condition returns a {type(state).__name__}, not a State"
    assert state.nbytes > 0, "the state says that it takes no memory"
    expected = predictor.query(state, x)
    index = torch.tensor([len(context) - 1, 0])
    _assert_close(
        predictor.query(state[index], x[index]), expected[index], tolerance, "part of a state answers otherwise"
    )
    with tempfile.TemporaryDirectory() as folder:
        state.save(Path(folder) / "state.safetensors")
        loaded = type(state).load(Path(folder) / "state.safetensors")
    _assert_close(predictor.query(loaded, x), expected, tolerance, "a saved and loaded state answers otherwise")


# Backbones with layers.


@_contract(lambda predictor: bool(getattr(predictor, "layered", False)))
def the_last_layer_is_the_answer(predictor: Any, episodes: Episodes, tolerance: Tolerance = Tolerance()) -> None:
    """Decoded, the last layer's output at the targets is what `predict_targets` answers."""
    context, x = episodes.context, _queries(episodes)
    with torch.no_grad():
        layers = predictor.predict_by_layer(context, x, episodes.related)
    expected = _targets(predictor, episodes, context, x)
    _assert_close(layers[-1], expected, tolerance, "the last layer's answer differs from predict_targets")


# Trainable backbones.


def _is_trainable(predictor: Predictor) -> bool:
    return isinstance(predictor, nn.Module) and hasattr(predictor, "loss")


@_contract(_is_trainable)
def a_gradient_step_lowers_the_loss(
    predictor: Predictor, episodes: Episodes, tolerance: Tolerance = Tolerance()
) -> None:
    """A small step along the negative gradient, on the same batch with the same noise, lowers the loss."""
    trained = copy.deepcopy(predictor)
    assert isinstance(trained, nn.Module)
    before = _loss(trained, episodes)
    before.backward()
    moved = [(p, p.grad) for p in trained.parameters() if p.grad is not None]
    assert moved, "the loss reaches no parameter"
    norm = torch.stack([gradient.norm() for _, gradient in moved]).norm()
    assert bool(norm.isfinite()) and norm > 0, f"the gradient's norm is {norm.item()}"
    with torch.no_grad():
        for p, gradient in moved:
            p.sub_(1e-3 * gradient / norm)
        after = _loss(trained, episodes)
    assert after < before, f"the loss went from {before.item():.6g} to {after.item():.6g}"


@_contract(_is_trainable)
def saved_weights_give_the_same_answers(
    predictor: Predictor, episodes: Episodes, tolerance: Tolerance = Tolerance()
) -> None:
    """Weights written to a file and read into another instance bring its answers along."""
    from safetensors.torch import load_model, save_model

    other = copy.deepcopy(predictor)
    assert isinstance(predictor, nn.Module) and isinstance(other, nn.Module)
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    with tempfile.TemporaryDirectory() as folder:
        save_model(predictor, f"{folder}/weights.safetensors")
        load_model(other, f"{folder}/weights.safetensors")
    expected = _next(predictor, episodes, episodes.context)
    _assert_close(_next(other, episodes, episodes.context), expected, tolerance, "loaded weights give other answers")


# Helpers.


def _next(predictor: Predictor, episodes: Episodes, points: Points) -> Prediction:
    with torch.no_grad():
        return predictor.predict_next(points, episodes.related)


def _targets(predictor: Predictor, episodes: Episodes, context: Points, x: Tensor) -> Prediction:
    with torch.no_grad():
        return predictor.predict_targets(context, x, episodes.related)


def _asked(episodes: Episodes) -> Points:
    assert episodes.targets is not None, "the checks need episodes with targets"
    return episodes.targets


def _queries(episodes: Episodes) -> Tensor:
    return _asked(episodes).x


def _loss(predictor: Any, episodes: Episodes) -> Tensor:
    return predictor.loss(episodes, 1.0, torch.Generator(episodes.context.x.device).manual_seed(0))[0]


def _other(y: Tensor, classes: int | None) -> Tensor:
    """Labels that differ everywhere."""
    return 3 - 2 * y if classes is None else (y + 1) % classes


def _put(into: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """`values` at the given positions of axis 1."""
    index = places.reshape(*places.shape, *[1] * (into.dim() - 2)).expand(values.shape)
    return into.scatter(1, index, values)


def _assert_close(found: TensorRecord, expected: TensorRecord, tolerance: Tolerance, message: str) -> None:
    pairs = zip(found.tensors().items(), expected.tensors().values(), strict=True)
    for (name, a), b in pairs:
        assert a.shape == b.shape, f"{message}: '{name}' has shape {tuple(a.shape)}, expected {tuple(b.shape)}"
        off = (a - b).abs()
        far = off.max().item() if off.numel() else 0.0
        within = bool((off <= tolerance.absolute + tolerance.relative * b.abs()).all())
        assert within, f"{message}: '{name}' is off by {far:.3g}"
