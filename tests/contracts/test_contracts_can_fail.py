"""Each contract fails for a small predictor with one fault, and predictors without faults pass all contracts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from iclbench.contracts import CONTRACTS, example_episodes, failures
from iclbench.core.episodes import Episodes, Points
from iclbench.core.predictions import Point, Prediction
from iclbench.core.predictor import Predictor, State, StoredPoints


class Sound(Predictor):
    """Predicts the sum over context points of y (1 + x·x'), plus the sum of the inputs x' of the target. The prediction
    does not depend on the order of the context."""

    def predict_targets(self, context: Points, x_target: Tensor, related: Points | None = None) -> Point:
        y = context.y * context.mask.unsqueeze(-1)
        return Point(self.kernel(x_target, context.x) @ y + x_target.sum(-1, keepdim=True))

    def kernel(self, a: Tensor, b: Tensor) -> Tensor:
        return 1 + a @ b.mT


class SeesOtherTargets(Sound):
    def predict_targets(self, context: Points, x_target: Tensor, related: Points | None = None) -> Point:
        return super().predict_targets(context, x_target - x_target.mean(1, keepdim=True), related)


class JointDependsOnOrder(Sound):
    """A predictor with correct marginals. Its joint score gives later targets a higher weight."""

    def joint_scores(
        self, answer: Prediction, context: Points, targets: Points, scored: Tensor, related: Points | None = None
    ) -> dict[str, Tensor]:
        weights = torch.arange(targets.count, dtype=torch.float32)
        return {"log_likelihood_joint": (answer.point()[..., 0] * weights).sum(1)}


class SeesItsLabel(Sound):
    def predict_next(self, points: Points, related: Points | None = None, **options: Any) -> Point:
        answer = super().predict_next(points, related, **options)
        return answer if options else Point(answer.mean + points.y)


class SeesTheFuture(Sound):
    def predict_next(self, points: Points, related: Points | None = None, **options: Any) -> Point:
        answer = super().predict_next(points, related, **options)
        return answer if options else Point(answer.mean + points.y.sum(1, keepdim=True))


class SeesNeighbours(Sound):
    def predict_targets(self, context: Points, x_target: Tensor, related: Points | None = None) -> Point:
        answer = super().predict_targets(context, x_target, related).mean
        return Point(answer - answer.mean(0, keepdim=True))


class DependsOnOrder(Sound):
    def predict_targets(self, context: Points, x_target: Tensor, related: Points | None = None) -> Point:
        context, _ = context.compact()
        weights = torch.arange(context.count).reshape(1, -1, 1)
        return super().predict_targets(replace(context, y=context.y * weights), x_target, related)


class ReadsMaskedPoints(Sound):
    def predict_targets(self, context: Points, x_target: Tensor, related: Points | None = None) -> Point:
        return super().predict_targets(replace(context, mask=torch.ones_like(context.mask)), x_target, related)


class TwoAnswers(Sound):
    def predict_next(self, points: Points, related: Points | None = None, **options: Any) -> Point:
        answer = super().predict_next(points, related, **options)
        return answer if options else Point(2 * answer.mean)


class IgnoresQueries(Sound):
    def predict_next(self, points: Points, related: Points | None = None, **options: Any) -> Point:
        return super().predict_next(points, related, prefixes=options.get("prefixes"))


class IgnoresPrefixes(Sound):
    def predict_next(self, points: Points, related: Points | None = None, **options: Any) -> Point:
        answer = super().predict_next(points, related, x_query=options.get("x_query"))
        prefixes = options.get("prefixes")
        return answer if prefixes is None else answer.at(slice(0, len(prefixes)))


class NeedsContext(Sound):
    def predict_targets(self, context: Points, x_target: Tensor, related: Points | None = None) -> Point:
        answer = super().predict_targets(context, x_target, related).mean
        return Point(answer / context.counts.reshape(-1, 1, 1))


class ForgetsTheContext(Sound):
    def update(self, state: Any, points: Points) -> State:
        return StoredPoints(points, state.related)


class QueriesLeaveTraces(Sound):
    def query(self, state: Any, x: Tensor) -> Point:
        answer = self.predict_targets(state.context, x)
        state.context.y.add_(1.0)
        return answer


class LastLayerIsAnother(Sound):
    has_layers = True

    def predict_by_layer(self, context: Points, x_target: Tensor, related: Points | None = None) -> list[Point]:
        answer = self.predict_targets(context, x_target, related)
        return [answer, Point(1.01 * answer.mean)]


@dataclass(frozen=True)
class Summed(State):
    """A state whose tensor `total` has no batch axis."""

    context: Points
    total: Tensor
    episodes: int


class StateWithoutBatchAxis(Sound):
    def condition(self, context: Points, related: Points | None = None) -> State:
        return Summed(context, context.y.sum((0, 1)).expand(3, -1), len(context))

    def query(self, state: Any, x: Tensor) -> Point:
        return Point(self.predict_targets(state.context, x).mean[: state.episodes] * (state.episodes == len(x)))

    def update(self, state: Any, points: Points) -> State:
        return self.condition(state.context.append(points))


class Random(Sound):
    def predict_targets(self, context: Points, x_target: Tensor, related: Points | None = None) -> Point:
        return Point(torch.randn(*x_target.shape[:2], context.y.shape[-1]))


class Flat(Sound):
    def predict_targets(self, context: Points, x_target: Tensor, related: Points | None = None) -> Point:
        return Point(super().predict_targets(context, x_target, related).mean[:, :1])


class ReadsRelated(Sound):
    """Adds half of the corresponding sum over each related dataset."""

    uses_related = True

    def predict_targets(self, context: Points, x_target: Tensor, related: Points | None = None) -> Point:
        mean = super().predict_targets(context, x_target).mean
        return Point(mean if related is None else mean + self.related_sum(related, x_target))

    def related_sum(self, related: Points, x_target: Tensor) -> Tensor:
        y = related.y * related.mask.unsqueeze(-1)
        return 0.5 * (self.kernel(x_target.unsqueeze(1), related.x) @ y).sum(1)


class IgnoresRelated(ReadsRelated):
    def related_sum(self, related: Points, x_target: Tensor) -> Tensor:
        return x_target.new_zeros(1)


class CountsAbsentSets(ReadsRelated):
    def related_sum(self, related: Points, x_target: Tensor) -> Tensor:
        return super().related_sum(related, x_target) / related.mask.shape[1]


class ReadsNeighboursSets(ReadsRelated):
    def related_sum(self, related: Points, x_target: Tensor) -> Tensor:
        return super().related_sum(related, x_target) + super().related_sum(related, x_target).mean(0)


class FirstSetMattersMore(ReadsRelated):
    def related_sum(self, related: Points, x_target: Tensor) -> Tensor:
        return super().related_sum(related.map(lambda t: t[:, :1]), x_target) + super().related_sum(related, x_target)


class FirstPointMattersMore(ReadsRelated):
    def related_sum(self, related: Points, x_target: Tensor) -> Tensor:
        return super().related_sum(related.map(lambda t: t[:, :, :1]), x_target) + super().related_sum(
            related, x_target
        )


class Removes(Sound):
    """Removes points by adding the same points with negated outputs."""

    removes_points = True

    def remove(self, state: Any, points: Points) -> State:
        return self.update(state, replace(points, y=-points.y))


class RemovesHalf(Removes):
    def remove(self, state: Any, points: Points) -> State:
        return self.update(state, replace(points, y=-0.5 * points.y))


class Trained(Sound, nn.Module):
    """A backbone with one weight and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def kernel(self, a: Tensor, b: Tensor) -> Tensor:
        return self.scale * super().kernel(a, b)

    def loss(self, episodes: Episodes, progress: float, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        answer = self.predict_targets(episodes.context, episodes.queries.x)
        return answer.loss(episodes.queries.y).mean(), {}


class RaisesTheLoss(Trained):
    def loss(self, episodes: Episodes, progress: float, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        loss, parts = super().loss(episodes, progress, generator)
        return loss.detach() - (loss - loss.detach()) + 0 * loss, parts


class HasAnUnsavedWeight(Trained):
    """Uses a number that is not stored in the weights file and is different in a deep copy."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [1.0]

    def __deepcopy__(self, memo: dict[int, Any]) -> HasAnUnsavedWeight:
        other = HasAnUnsavedWeight()
        other.hidden = [self.hidden[0] + 1]
        return other

    def kernel(self, a: Tensor, b: Tensor) -> Tensor:
        return self.hidden[0] * super().kernel(a, b)


FAULTY_PREDICTORS = {
    "answers_have_the_right_shape": Flat,
    "answers_are_deterministic": Random,
    "targets_do_not_see_each_other": SeesOtherTargets,
    "the_order_of_the_targets_changes_nothing": JointDependsOnOrder,
    "no_answer_sees_its_own_label": SeesItsLabel,
    "later_points_change_nothing": SeesTheFuture,
    "batch_neighbours_change_nothing": SeesNeighbours,
    "the_order_of_the_context_changes_nothing": DependsOnOrder,
    "masks_equal_truncation": ReadsMaskedPoints,
    "the_two_questions_agree": TwoAnswers,
    "separate_queries_are_answered": IgnoresQueries,
    "selected_prefixes_are_answered": IgnoresPrefixes,
    "an_empty_context_works": NeedsContext,
    "condition_and_query_equal_predict_targets": QueriesLeaveTraces,
    "update_equals_conditioning_on_everything": ForgetsTheContext,
    "states_can_be_indexed_and_saved": StateWithoutBatchAxis,
    "removing_points_undoes_updating": RemovesHalf,
    "related_datasets_have_an_effect": IgnoresRelated,
    "absent_related_datasets_equal_none": CountsAbsentSets,
    "related_datasets_of_batch_neighbours_change_nothing": ReadsNeighboursSets,
    "the_order_of_related_datasets_changes_nothing": FirstSetMattersMore,
    "the_order_within_a_related_dataset_changes_nothing": FirstPointMattersMore,
    "the_last_layer_is_the_answer": LastLayerIsAnother,
    "a_gradient_step_lowers_the_loss": RaisesTheLoss,
    "saved_weights_give_the_same_answers": HasAnUnsavedWeight,
}


@pytest.mark.parametrize("predictor", [Sound, Trained, Removes, ReadsRelated])
def test_a_predictor_without_faults_passes_all_contracts(predictor: type[Predictor]) -> None:
    assert failures(predictor(), example_episodes(related=3)) == {}


@pytest.mark.parametrize(("contract", "predictor"), FAULTY_PREDICTORS.items())
def test_a_predictor_with_one_fault_fails_the_contract(contract: str, predictor: type[Predictor]) -> None:
    broken = failures(predictor(), example_episodes(related=3))
    assert contract in broken
    assert len(broken[contract]) > 20, "the message of a failure should be a sentence"


def test_every_contract_has_a_predictor_that_breaks_it() -> None:
    assert {contract.name for contract in CONTRACTS} == set(FAULTY_PREDICTORS)
