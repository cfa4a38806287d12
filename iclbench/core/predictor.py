"""The interface of all predictors: backbones, estimators and oracles.

A predictor answers two questions: `predict_next` and `predict_targets`. It can also answer in three phases:
`condition`, `query` and `update`. A subclass implements one of the questions, or the phases, and inherits the rest.
Answers are instances of `Prediction`. All methods are batched over episodes, which must not influence each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from threading import Lock
from typing import Any, ClassVar, Literal, TypeVar
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.core.answers import check_answer
from iclbench.core.episodes import Episodes, Points, first_related, take
from iclbench.core.errors import UsageError
from iclbench.core.predictions import Prediction
from iclbench.core.records import TensorRecord, cat

# Type variables instead of `Self`, which beartype rejects in methods when it checks the shapes in signatures.
_Predictor = TypeVar("_Predictor", bound="Predictor")
_Oracle = TypeVar("_Oracle", bound="Oracle")

# A subclass must implement at least one of these methods. It inherits the others.
_ALTERNATIVE_METHODS = ("predict_next", "predict_targets", "query")


@dataclass(frozen=True)
class State(TensorRecord):
    """The state of a predictor after conditioning on points. It consists of batch-first tensors, which can be indexed,
    saved and measured."""

    def log_weight(self) -> Tensor | None:
        """Return the logarithms of the magnitudes of the sums over points in this state, `(batch, ...)`; None if the
        state has no such sums.

        `Predictor.remove` subtracts removed points from these sums. If a sum shrinks, the rounding errors of the larger
        sum remain. A sliding window therefore conditions on all its points again before these errors matter.
        """
        return None


@dataclass(frozen=True)
class StoredPoints(State):
    """The state of a predictor that stores only the points."""

    context: Points
    related: Points | None = None


class Predictor:
    """Base class of all predictors, which are conditioned on points and answer queries.

    Attributes:
        order: "causal" if answers may depend on the order of the points, otherwise "set".
        heads: names of the supported heads (`iclbench.core.heads`).
        uses_related: whether answers depend on related datasets. For a backbone class: whether its models use related
            datasets on tasks that have them.
        removes_points: whether points can be removed from a state (`remove`).
        joint: how the answer at a target may depend on the inputs of other targets: not at all ("apart"), on the set of
            these inputs ("exchangeable"), or also on their order ("ordered"). An answer never depends on the outputs of
            other targets.
        longest: maximum number of points in a sequence, including the query; None if unlimited.
    """

    order: ClassVar[Literal["causal", "set"]] = "set"
    heads: ClassVar[tuple[str, ...]] = ("point",)
    uses_related: bool = False
    removes_points: ClassVar[bool] = False
    joint: Literal["apart", "exchangeable", "ordered"] = "apart"
    longest: int | None = None

    def __init_subclass__(cls, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        is_implemented = [getattr(cls, name) is not getattr(Predictor, name) for name in _ALTERNATIVE_METHODS]
        if not (abstract or any(is_implemented)):
            raise TypeError(f"{cls.__name__} must implement one of {', '.join(_ALTERNATIVE_METHODS)}")

    def __new__(cls: type[_Predictor], *args: Any, **kwargs: Any) -> _Predictor:
        # `torch.nn.Module` is not an `abc.ABC`, so without this check Python would create instances of abstract
        # subclasses.
        if missing := abstract_methods(cls):
            owners = " and ".join(dict.fromkeys(owner for owner, _ in missing))
            raise UsageError(
                f"{cls.__module__}.{cls.__qualname__} does not implement {', '.join(name for _, name in missing)}, "
                f"which {owners} requires",
                code="plugin",
            )
        return super().__new__(cls)

    def too_long(self, examples: int) -> str | None:
        """Return the reason why the predictor cannot answer after this number of examples, or None if it can. Rows of
        skipped cells contain this reason."""
        if self.longest is None or examples < self.longest:
            return None
        return f"it takes in at most {self.longest - 1} examples and a query"

    def predict_next(
        self,
        points: Points,
        related: Points | None = None,
        *,
        x_query: Float[Tensor, "batch points dx"] | None = None,
        prefixes: Sequence[int] | None = None,
    ) -> Prediction:
        """For each prefix length n, predict the output at `x_query[:, n]` from the first n points.

        Args:
            points: `(batch, points, dim)`.
            related: related datasets, `(batch, sets, points, dim)`.
            x_query: one query per prefix (default: the next point, `points.x`).
            prefixes: prefix lengths in ascending order (default: 0 to points - 1).

        Returns:
            Predictions of shape `(batch, len(prefixes))`. They are arbitrary at positions whose point is masked.
        """
        x_query = points.x if x_query is None else x_query
        lengths = range(points.count) if prefixes is None else prefixes
        answers = [self.predict_targets(points.span(0, n), x_query[:, n : n + 1], related) for n in lengths]
        return join_positions(answers)

    def predict_targets(
        self, context: Points, x_target: Float[Tensor, "batch targets dx"], related: Points | None = None
    ) -> Prediction:
        """Predict the outputs at all `x_target` from the context. Answers do not depend on the outputs of other
        targets.

        Returns:
            Predictions of shape `(batch, targets)`.
        """
        if type(self).query is not Predictor.query:
            return self.query(self.condition(context, related), x_target)
        return self._targets_by_next(context, x_target, related)

    def predict_by_related(
        self,
        context: Points,
        x_target: Float[Tensor, "batch targets dx"],
        related: Points | None,
        counts: Sequence[int],
    ) -> Iterator[Prediction]:
        """Yield the answers of `predict_targets` with the first n related datasets, for each n in `counts`
        (ascending)."""
        for count in counts:
            yield self.predict_targets(context, x_target, first_related(related, count))

    def sample_targets(
        self,
        context: Points,
        x_target: Float[Tensor, "batch targets dx"],
        n: int,
        generator: torch.Generator,
        related: Points | None = None,
    ) -> Tensor:
        """Draw `n` joint samples of the predicted outputs at all targets, `(n, batch, targets, dy)`."""
        answer = self.predict_targets(context, x_target, related)
        check_answer(self, "predict_targets", answer, x_target.shape)
        return answer.sample(n, generator)

    def joint_scores(
        self,
        answer: Prediction,
        context: Points,
        targets: Points,
        scored: Bool[Tensor, "batch targets"],
        related: Points | None = None,
    ) -> dict[str, Float[Tensor, " batch"]]:
        """Return joint scores of the outputs at all targets, divided by the number of scored targets.

        By default, this is the joint log-likelihood if the answer defines one. Predictors that can compute a joint
        density in another way override this method.

        Args:
            answer: the answer of `predict_targets`.
            context: the context points of that call.
            targets: the targets with their true outputs.
            scored: a mask of the targets that count.
            related: the related datasets of that call.
        """
        joint = answer.joint_log_likelihood(targets.y, scored)
        return {} if joint is None else {"log_likelihood_joint": joint / scored.sum(1)}

    def informed(self, truth: dict[str, Tensor]) -> Predictor:
        """Return a predictor that may use the latent truth of the episodes. Only oracles use it; other predictors
        return themselves."""
        return self

    def ask(self, episodes: Episodes, question: str, prefixes: Sequence[int] | None = None) -> Prediction:
        """Answer the question "next" or "targets" for these episodes, using only their points."""
        context, queries, related = episodes.context, episodes.queries, episodes.related
        if question == "next":
            x_query = None if episodes.targets is None else queries.x
            answer = self.predict_next(context, related, x_query=x_query, prefixes=prefixes)
            positions = queries.count if prefixes is None else len(prefixes)
            check_answer(self, "predict_next", answer, (len(context), positions), queries.y)
        else:
            answer = self.predict_targets(context, queries.x, related)
            check_answer(self, "predict_targets", answer, queries.mask.shape, queries.y)
        return answer

    def condition(self, context: Points, related: Points | None = None) -> State:
        """Return the state after the context points. The context may be empty."""
        return StoredPoints(context, related)

    def query(self, state: Any, x: Float[Tensor, "batch targets dx"]) -> Prediction:
        """Answer each query independently, given a state, which is not changed."""
        return self.predict_targets(state.context, x, state.related)

    def update(self, state: Any, points: Points) -> State:
        """Return the state after additional points. It gives the same answers as conditioning on all points at once."""
        return StoredPoints(state.context.append(points), state.related)

    def remove(self, state: Any, points: Points) -> State:
        """Return the state without some of its points, for predictors that can remove points (`removes_points`).

        Raises:
            UsageError: this predictor cannot remove points.
        """
        raise UsageError(
            f"{type(self).__name__} cannot forget points; condition on the remaining points", code="not-applicable"
        )

    def _targets_by_next(self, context: Points, x_target: Tensor, related: Points | None) -> Prediction:
        """Answer each target with `predict_next`, by appending it to a copy of the context."""
        batch, targets = x_target.shape[:2]
        copies = context.repeat_interleave(targets)
        x = x_target.reshape(batch * targets, 1, x_target.shape[-1])
        blank = Points.full(x, copies.y.new_zeros(batch * targets, 1, *copies.y.shape[2:]))
        sequence, _ = copies.append(blank).compact()
        answer = self.predict_next(sequence, None if related is None else related.repeat_interleave(targets))
        check_answer(self, "predict_next", answer, sequence.mask.shape, sequence.y)
        query_position = copies.counts.unsqueeze(1)
        return answer.map(lambda t: take(t, query_position).reshape(batch, targets, *t.shape[2:]))


class Oracle(Predictor, abstract=True):
    """A predictor with access to the latent truth of the episodes.

    Attributes:
        truth: the truth of the episodes to predict; None before `informed`.
    """

    truth: dict[str, Tensor] | None = None

    def informed(self: _Oracle, truth: dict[str, Tensor]) -> _Oracle:
        informed_copy = copy(self)
        informed_copy.truth = truth
        return informed_copy


def abstract_methods(cls: type) -> list[tuple[str, str]]:
    """Return the abstract methods of a class in their order, as pairs of the declaring class and the method's name."""
    return [
        (f"{base.__module__}.{base.__qualname__}", name)
        for base in cls.__mro__
        for name, member in vars(base).items()
        if getattr(member, "__isabstractmethod__", False) and getattr(cls, name) is member
    ]


def join_positions(answers: Sequence[Prediction]) -> Prediction:
    """Join predictions for consecutive positions along axis 1. The result has only marginal distributions."""
    if len(answers) == 1:
        return answers[0]
    positions_first = [answer.marginals.map(lambda t: t.transpose(0, 1)) for answer in answers]
    return cat(positions_first).map(lambda t: t.transpose(0, 1))


# The number of running `eval_mode` blocks for each module that was in training mode before them.
_EVAL_COUNTS: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
_EVAL_COUNTS_LOCK = Lock()


@contextmanager
def eval_mode(predictor: Predictor) -> Iterator[None]:
    """Put a model in eval mode within the block, and restore its mode afterwards.

    If several threads use the model, the last one to leave the block restores the mode.
    """
    modules = list(predictor.modules()) if isinstance(predictor, nn.Module) else []
    with _EVAL_COUNTS_LOCK:
        training_modules = [module for module in modules if module.training or module in _EVAL_COUNTS]
        for module in training_modules:
            _EVAL_COUNTS[module] = _EVAL_COUNTS.get(module, 0) + 1
            module.training = False
    try:
        yield
    finally:
        with _EVAL_COUNTS_LOCK:
            for module in training_modules:
                _EVAL_COUNTS[module] -= 1
                if not _EVAL_COUNTS[module]:
                    del _EVAL_COUNTS[module]
                    module.training = True
