"""Contracts of the questions `next` and `targets`: what answers may depend on, and how the two questions are
related."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool
from torch import Tensor

from iclbench.contracts.contract import (
    DEFAULT,
    Tolerance,
    ask_next,
    ask_targets,
    assert_close,
    contract,
    different_outputs,
    insert_points,
    targets_of,
)
from iclbench.core.episodes import Episodes, Points, take
from iclbench.core.predictions import Prediction
from iclbench.core.predictor import Oracle, Predictor


@contract()
def answers_have_the_right_shape(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT) -> None:
    """There is one finite answer per prefix and per target, and one loss per answer."""
    context, x = episodes.context, targets_of(episodes).x
    for question, answer, count in (
        ("predict_next", ask_next(predictor, episodes, context), context.count),
        ("predict_targets", ask_targets(predictor, episodes, context, x), x.shape[1]),
    ):
        for name, t in answer.tensors().items():
            expected = (len(context), count)
            assert t.shape[:2] == expected, (
                f"{question}: '{name}' has shape {tuple(t.shape)}, which does not start with {expected}"
            )
            assert bool(t.isfinite().all()), f"{question}: '{name}' is not finite"
        losses = answer.loss(context.y if question == "predict_next" else targets_of(episodes).y)
        assert losses.shape == (len(context), count), f"{question}: the loss has shape {tuple(losses.shape)}"


@contract()
def answers_are_deterministic(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT) -> None:
    """Repeated calls of `predict_next` give exactly the same answers."""
    answer, repeated_answer = (ask_next(predictor, episodes, episodes.context) for _ in range(2))
    assert_close(answer, repeated_answer, Tolerance(0.0, 0.0), "predict_next is not deterministic")


@contract(lambda predictor: predictor.joint == "apart")
def targets_do_not_see_each_other(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT) -> None:
    """The answer at a target does not depend on the other targets or on its position among them."""
    context, x = episodes.context, targets_of(episodes).x
    joint_answer = ask_targets(predictor, episodes, context, x)
    for q in range(x.shape[1]):
        single_answer = ask_targets(predictor, episodes, context, x[:, q : q + 1])
        assert_close(joint_answer.at(slice(q, q + 1)), single_answer, tolerance, f"answer {q} depends on other targets")


@contract(lambda predictor: predictor.joint != "ordered")
def the_order_of_the_targets_changes_nothing(
    predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT
) -> None:
    """If the targets are permuted, their answers are permuted in the same way, and the joint scores of all targets do
    not change."""
    context, targets = episodes.context, targets_of(episodes)
    reversed_targets = targets.map(lambda t: t.flip(1))
    message = "answers depend on the order of the targets"
    expected = ask_targets(predictor, episodes, context, targets.x)
    answer = ask_targets(predictor, episodes, context, reversed_targets.x)
    assert_close(answer.map(lambda t: t.flip(1)), expected, tolerance, message)
    scores, reversed_scores = (_joint_scores(predictor, episodes, order) for order in (targets, reversed_targets))
    for name, score in scores.items():
        difference = (reversed_scores[name] - score).abs().max().item()
        assert difference <= tolerance.absolute + tolerance.relative * score.abs().max(), (
            f"{message}: {name} is off by {difference:.3g}"
        )


def _joint_scores(predictor: Predictor, episodes: Episodes, targets: Points) -> dict[str, Tensor]:
    context, related = episodes.context, episodes.related
    with torch.no_grad():
        answer = predictor.predict_targets(context, targets.x, related)
        return predictor.joint_scores(answer, context, targets, targets.mask, related)


@contract()
def no_answer_sees_its_own_label(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT) -> None:
    """The answers up to point n do not depend on label n."""
    count = episodes.context.count
    is_changed = torch.eye(count, dtype=torch.bool)
    expected, changed_answers = _changed_answers(predictor, episodes, is_changed, change_inputs=False)
    for n in range(count):
        prefix, message = slice(0, n + 1), f"an answer up to {n} changes with label {n}"
        assert_close(changed_answers[n].at(prefix), expected.at(prefix), tolerance, message)


@contract()
def later_points_change_nothing(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT) -> None:
    """The answers up to point n do not depend on later points."""
    count = episodes.context.count
    is_changed = torch.ones(count, count, dtype=torch.bool).triu(1)[:-1]
    expected, changed_answers = _changed_answers(predictor, episodes, is_changed, change_inputs=True)
    for n in range(count - 1):
        prefix, message = slice(0, n + 1), f"points after {n} change an earlier answer"
        assert_close(changed_answers[n].at(prefix), expected.at(prefix), tolerance, message)


def _changed_answers(
    predictor: Predictor, episodes: Episodes, is_changed: Bool[Tensor, "cases N"], change_inputs: bool
) -> tuple[Prediction, list[Prediction]]:
    """Return the answers, and for each case the answers with different labels (and inputs) at the changed points.

    All cases are evaluated in one batch, which requires that episodes do not affect each other (see
    `batch_neighbours_change_nothing`). An oracle is evaluated with one batch per case, because it has access to the
    truth of these episodes only.
    """
    size, changed_answers = len(episodes), []
    for cases in is_changed.to(episodes.context.x.device).split(
        1 if isinstance(predictor, Oracle) else len(is_changed)
    ):
        copies = episodes[torch.arange(size, device=cases.device).repeat(len(cases))]
        x, y, changed_points = copies.context.x, copies.context.y, cases.repeat_interleave(size, 0)
        y = torch.where(
            changed_points.reshape(*changed_points.shape, *[1] * (y.dim() - 2)), different_outputs(y, episodes), y
        )
        if change_inputs:
            x = torch.where(changed_points.unsqueeze(-1), 3 - 2 * x, x)
        answer = ask_next(predictor, copies, replace(copies.context, x=x, y=y))
        changed_answers += [answer[case * size : (case + 1) * size] for case in range(len(cases))]
    return ask_next(predictor, episodes, episodes.context), changed_answers


@contract()
def batch_neighbours_change_nothing(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT) -> None:
    """The answers for an episode do not depend on the other episodes of its batch."""
    context, x = episodes.context, targets_of(episodes).x
    next_answer, target_answer = ask_next(predictor, episodes, context), ask_targets(predictor, episodes, context, x)
    for b in range(len(episodes)):
        row = slice(b, b + 1)
        single_episode = episodes[row]
        message = f"answers for episode {b} depend on its batch neighbours"
        assert_close(next_answer[row], ask_next(predictor, single_episode, context[row]), tolerance, message)
        assert_close(
            target_answer[row], ask_targets(predictor, single_episode, context[row], x[row]), tolerance, message
        )


@contract(lambda predictor: predictor.order == "set")
def the_order_of_the_context_changes_nothing(
    predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT
) -> None:
    """The answers of a set model do not depend on the order of the context."""
    context, x = episodes.context, targets_of(episodes).x
    order = torch.randperm(context.count, generator=torch.Generator().manual_seed(0)).to(x.device)
    shuffled_context = context.map(lambda t: t[:, order])
    assert_close(
        ask_targets(predictor, episodes, shuffled_context, x),
        ask_targets(predictor, episodes, context, x),
        tolerance,
        "the answers of a model with order 'set' depend on the order of the context",
    )


@contract()
def masks_equal_truncation(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT) -> None:
    """Masked points do not change the answers, even at positions that differ between episodes."""
    context, x = episodes.context, targets_of(episodes).x
    orders = torch.stack(
        [torch.randperm(2 * context.count, generator=torch.Generator().manual_seed(b)) for b in range(len(context))]
    )
    positions = orders[:, : context.count].sort(1).values.to(x.device)
    filler_x = torch.full_like(context.x.repeat(1, 2, 1), 7.0)
    filler_y = context.y.repeat(1, 2, *[1] * (context.y.dim() - 2)).roll(1, 1)
    padded_context = Points(
        insert_points(filler_x, positions, context.x),
        insert_points(filler_y, positions, context.y),
        insert_points(torch.zeros_like(context.mask).repeat(1, 2), positions, context.mask),
    )
    assert_close(
        ask_targets(predictor, episodes, padded_context, x),
        ask_targets(predictor, episodes, context, x),
        tolerance,
        "predict_targets: masked points change the answers",
    )
    assert_close(
        ask_next(predictor, episodes, padded_context).map(lambda t: take(t, positions)),
        ask_next(predictor, episodes, context),
        tolerance,
        "predict_next: masked points change the answers at other points",
    )


@contract()
def the_two_questions_agree(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT) -> None:
    """`predict_next` gives the same answers as `predict_targets` with each prefix as the context."""
    context = episodes.context
    next_answer = ask_next(predictor, episodes, context)
    for n in range(context.count):
        target_answer = ask_targets(predictor, episodes, context.span(0, n), context.x[:, n : n + 1])
        assert_close(
            next_answer.at(slice(n, n + 1)), target_answer, tolerance, f"the two questions differ after {n} points"
        )


@contract()
def separate_queries_are_answered(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT) -> None:
    """With `x_query`, answer n is the prediction at `x_query[:, n]` after n points, and queries do not change later
    answers."""
    context = episodes.context
    queries = 2 * context.x.flip(1)
    next_answer = predictor.predict_next(context, episodes.related, x_query=queries).marginals
    for n in range(context.count):
        target_answer = ask_targets(predictor, episodes, context.span(0, n), queries[:, n : n + 1])
        assert_close(
            next_answer.at(slice(n, n + 1)), target_answer, tolerance, f"x_query: wrong answer after {n} points"
        )


@contract()
def selected_prefixes_are_answered(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT) -> None:
    """With `prefixes`, the answers are those after the prefixes of these lengths, in the given order."""
    context = episodes.context
    prefixes = [0, 1, context.count // 2, context.count - 1]
    queries = context.x.flip(1)
    for x_query in (None, queries):
        all_answers = predictor.predict_next(context, episodes.related, x_query=x_query).marginals
        answer = predictor.predict_next(context, episodes.related, x_query=x_query, prefixes=prefixes).marginals
        assert_close(
            answer,
            all_answers.at(torch.tensor(prefixes)),
            tolerance,
            f"prefixes={prefixes} gives answers that differ from those of all prefixes",
        )


@contract()
def an_empty_context_works(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT) -> None:
    """Answers without context are finite, and equal the answers for a context in which all points are masked."""
    context, x = episodes.context, targets_of(episodes).x
    empty_answer = ask_targets(predictor, episodes, context.span(0, 0), x)
    for name, t in empty_answer.tensors().items():
        assert bool(t.isfinite().all()), f"'{name}' is not finite for an empty context"
    masked_context = replace(context, mask=torch.zeros_like(context.mask))
    assert_close(
        ask_targets(predictor, episodes, masked_context, x),
        empty_answer,
        tolerance,
        "a masked context and an empty one give different answers",
    )
