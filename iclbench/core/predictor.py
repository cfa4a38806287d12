"""The contract that every contestant fulfils: backbones, estimators and oracles.

Two questions, three phases. A subclass writes one of `predict_next` and `predict_targets` (or the phases) and gets the
rest. Every answer is a `Prediction`; everything is batched over episodes and no episode may influence another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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

_Own = TypeVar("_Own", bound="Predictor")

# Whoever writes one of these gets the others from the base class.
_ONE_OF = ("predict_next", "predict_targets", "query")


@dataclass(frozen=True)
class State(TensorRecord):
    """The state of a predictor after the points it was conditioned on. Batch-first tensors; can be indexed, saved,
    measured."""

    def log_weight(self) -> Tensor | None:
        """Logarithm of how large the sums over points are that this state consists of, part by part, batch
        first.

        What `Predictor.remove` leaves is a difference of such sums: where they fall while points go, rounding errors of
        the larger ones stay, and a sliding window conditions afresh in time. None: nothing is known of it.
        """
        return None


@dataclass(frozen=True)
class StoredPoints(State):
    """The state of a predictor that stores only the points."""

    context: Points
    related: Points | None = None


class Predictor:
    """Something that is conditioned on points and answers queries.

    Attributes:
        order: "causal" when the answer may depend on the order of the points, "set" when it may not.
        heads: the kinds of prediction it can give.
        uses_related: whether related datasets change its answers; of a backbone's class, whether they do on tasks that
            have them.
        removes_points: whether `remove` is written: states can forget points again.
        joint: whether the answer at a target may depend on the inputs of the targets that are asked with it: not at all
            ("apart"), but not on their order ("exchangeable"), on their order, too ("ordered"). It never depends on
            their outputs.
        longest: points of the longest sequence it can take in, the query included; None where there is no limit.
    """

    order: ClassVar[Literal["causal", "set"]] = "set"
    heads: ClassVar[tuple[str, ...]] = ("point",)
    uses_related: bool = False
    removes_points: ClassVar[bool] = False
    joint: Literal["apart", "exchangeable", "ordered"] = "apart"
    longest: int | None = None

    def __init_subclass__(cls, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        written = [getattr(cls, name) is not getattr(Predictor, name) for name in _ONE_OF]
        if not (abstract or any(written)):
            raise TypeError(f"{cls.__name__} must write one of {', '.join(_ONE_OF)}")

    def __new__(cls: type[_Own], *args: Any, **kwargs: Any) -> _Own:
        # Here, since a `torch.nn.Module` is no `abc.ABC`: of its subclasses Python makes instances without a method.
        if missing := abstract_methods(cls):
            asking = " and ".join(dict.fromkeys(owner for owner, _ in missing))
            raise UsageError(
                f"{cls.__module__}.{cls.__qualname__} does not write {', '.join(name for _, name in missing)}, which "
                f"{asking} asks for"
            )
        return super().__new__(cls)

    def too_long(self, examples: int) -> str | None:
        """Why nothing can be asked after so many examples, as the row says that is skipped; None: it can."""
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
        """For every prefix length n, predict the output at `x_query[:, n]` from the first n points.

        Args:
            points: `(batch, points, dim)`.
            related: further datasets, `(batch, sets, points, dim)`.
            x_query: one query per prefix; None asks for the next point itself, `points.x`.
            prefixes: the prefix lengths to answer, ascending; None: 0 to points - 1.

        Returns:
            Predictions of shape `(batch, len(prefixes))`. At a position whose point is masked the answer means nothing.
        """
        x_query = points.x if x_query is None else x_query
        lengths = range(points.count) if prefixes is None else prefixes
        answers = [self.predict_targets(points.span(0, n), x_query[:, n : n + 1], related) for n in lengths]
        return join_positions(answers)

    def predict_targets(
        self, context: Points, x_target: Float[Tensor, "batch targets dx"], related: Points | None = None
    ) -> Prediction:
        """Predict the outputs at all `x_target` from one context; no target sees another's output.

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
        """`predict_targets` with only the first n related datasets, for each n of `counts`, ascending."""
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
        """`n` draws of the outputs at all targets together, `(n, batch, targets, dy)`, from what is predicted."""
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
        """Scores of the outputs at all targets together, per target that counts: the joint log-likelihood where there
        is one. Who knows a joint density that its answer does not give writes its own.

        Args:
            answer: what `predict_targets` has answered.
            context: the points that it was given.
            targets: what was asked, and what is true.
            scored: the targets that count.
            related: the related datasets that it was given.
        """
        joint = answer.joint_log_likelihood(targets.y, scored)
        return {} if joint is None else {"log_likelihood_joint": joint / scored.sum(1)}

    def informed(self, truth: dict[str, Tensor]) -> Predictor:
        """The predictor for exactly the episodes whose latent truth this is: itself, but for an oracle."""
        return self

    def ask(self, episodes: Episodes, question: str, prefixes: Sequence[int] | None = None) -> Prediction:
        """Put `question` ("next" or "targets") about these episodes; nothing but the points is shown."""
        context, queries, related = episodes.context, episodes.asked, episodes.related
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
        """Take in the context (possibly empty) and keep what later queries need."""
        return StoredPoints(context, related)

    def query(self, state: Any, x: Float[Tensor, "batch targets dx"]) -> Prediction:
        """Answer every query from the state, each on its own; the state does not change."""
        return self.predict_targets(state.context, x, state.related)

    def update(self, state: Any, points: Points) -> State:
        """The state after further points; equals conditioning on all of them at once."""
        return StoredPoints(state.context.append(points), state.related)

    def remove(self, state: Any, points: Points) -> State:
        """The state without points that were learned before, for a predictor that `removes_points`.

        Raises:
            UsageError: this one cannot.
        """
        raise UsageError(f"{type(self).__name__} cannot forget points; condition on the points that should stay")

    def _targets_by_next(self, context: Points, x_target: Tensor, related: Points | None) -> Prediction:
        """Each target becomes the last point of its own copy of the context."""
        batch, targets = x_target.shape[:2]
        copies = context.repeat_interleave(targets)
        x = x_target.reshape(batch * targets, 1, x_target.shape[-1])
        blank = Points.full(x, copies.y.new_zeros(batch * targets, 1, *copies.y.shape[2:]))
        sequence, _ = copies.append(blank).compact()
        answer = self.predict_next(sequence, None if related is None else related.repeat_interleave(targets))
        check_answer(self, "predict_next", answer, sequence.mask.shape, sequence.y)
        last_place = copies.counts.unsqueeze(1)
        return answer.map(lambda t: take(t, last_place).reshape(batch, targets, *t.shape[2:]))


class Oracle(Predictor, abstract=True):
    """A predictor that may read how the episodes were made."""

    def informed(self, truth: dict[str, Tensor]) -> Predictor:
        raise NotImplementedError


def abstract_methods(cls: type) -> list[tuple[str, str]]:
    """The methods that a class has yet to write, each behind the class that asks for it, in their order there."""
    return [
        (f"{base.__module__}.{base.__qualname__}", name)
        for base in cls.__mro__
        for name, member in vars(base).items()
        if getattr(member, "__isabstractmethod__", False) and getattr(cls, name) is member
    ]


def join_positions(answers: Sequence[Prediction]) -> Prediction:
    """Predictions for consecutive positions as one prediction, joined along axis 1; what was asked apart has no joint
    distribution."""
    if len(answers) == 1:
        return answers[0]
    flipped = [answer.marginals.map(lambda t: t.transpose(0, 1)) for answer in answers]
    return cat(flipped).map(lambda t: t.transpose(0, 1))


# How many threads use a module that is in training mode otherwise.
_USES: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
_USES_LOCK = Lock()


@contextmanager
def as_used(predictor: Predictor) -> Iterator[None]:
    """A module is in eval mode within, as runs are, and in the mode that it was in afterwards: one that is evaluated
    while it trains is left as it was. Of threads that use one model, the last one restores the mode."""
    modules = list(predictor.modules()) if isinstance(predictor, nn.Module) else []
    with _USES_LOCK:
        used = [module for module in modules if module.training or module in _USES]
        for module in used:
            _USES[module] = _USES.get(module, 0) + 1
            module.training = False
    try:
        yield
    finally:
        with _USES_LOCK:
            for module in used:
                _USES[module] -= 1
                if not _USES[module]:
                    del _USES[module]
                    module.training = True
