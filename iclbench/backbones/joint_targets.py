"""Base class of TNP-ND and CMANP-AND: one joint Gaussian over all targets, which is trained and scored by its joint
density.

With a Gaussian head, a `CovarianceNet` computes the covariance from the targets' vectors; with other heads, the
backbone is identical to its base class. For a single target, the prediction is the joint Gaussian of its outputs.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from iclbench.backbones.set_backbone import SetBackbone, SetSettings
from iclbench.core.episodes import Episodes, Points
from iclbench.core.joint import JointGaussian
from iclbench.core.predictions import Prediction
from iclbench.core.task import TaskShape
from iclbench.layers.covariance_net import Covariance, CovarianceNet
from iclbench.layers.perceptron import perceptron


class JointSettings(SetSettings):
    """Settings of the covariance of all targets."""

    covariance: Covariance = "tril"
    """Covariance of the targets, computed from a predicted matrix P: tril (Cholesky factor tril(P P^T), as released; it
    depends on the order of the targets) or low-rank (P P^T + D with a diagonal D, independent of the order). D is
    exp(r) only with spread=exp; in the released code it is always exp(r). Only for the head gaussian."""


_Settings = TypeVar("_Settings", bound=JointSettings)


class JointTargets(SetBackbone[_Settings], abstract=True):
    """Joint training and scores. A subclass lists this class before a backbone, whose settings must have `heads` and
    `hidden`, the hidden width of feed-forward networks."""

    def __init__(self, settings: Any, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        self.covariance: CovarianceNet | None = None
        if shape.head == "gaussian":
            width, hidden, head = settings.width, settings.hidden, replace(shape.head_settings, spread=settings.spread)
            self.decoder = perceptron(width, hidden, shape.outputs)
            self.covariance = CovarianceNet(width, settings.heads, hidden, shape.outputs, settings.covariance, head)
            self.joint = "ordered" if settings.covariance == "tril" else "exchangeable"

    @abstractmethod
    def hidden(self, state: Any, x: Float[Tensor, "B Q Dx"]) -> Float[Tensor, "B Q D"]:
        """Return the targets' vectors after the last layer, which do not depend on other targets."""

    def decode(self, hidden: Float[Tensor, "B Q D"], mask: Bool[Tensor, "B Q"] | None = None) -> Prediction:
        """Return the joint prediction from the targets' vectors. Targets do not attend to targets outside the mask."""
        if self.covariance is None:
            return super().decode(hidden)
        return self.covariance(hidden, self.decoder(hidden), mask)

    def log_likelihood(self, state: Any, targets: Points) -> Float[Tensor, " B"]:
        """Return the joint log-density of all valid targets, in their order."""
        assert self.covariance is not None
        answer = self.decode(self.hidden(state, targets.x), targets.mask)
        assert isinstance(answer, JointGaussian)
        return self.covariance.log_likelihood(answer, targets.y, targets.mask)

    def loss(
        self, episodes: Episodes, progress: float, generator: torch.Generator
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        """Return the negative joint log-likelihood per target, averaged over episodes."""
        if self.covariance is None:
            return super().loss(episodes, progress, generator)
        context, targets, weights = self.training_split(episodes, generator)
        joint = self.log_likelihood(self.condition(context, episodes.related), targets)
        loss = weights.mean((-joint / targets.counts.clamp(min=1)).to(weights.by_episode))
        return loss, {"loss": loss.detach()}

    def joint_scores(
        self,
        answer: Prediction,
        context: Points,
        targets: Points,
        scored: Bool[Tensor, "B Q"],
        related: Points | None = None,
    ) -> dict[str, Float[Tensor, " B"]]:
        """Return the joint log-likelihood of the scored targets, divided by their number. Other targets have no
        effect."""
        if self.covariance is None:
            return super().joint_scores(answer, context, targets, scored, related)
        joint = self.log_likelihood(self.condition(context, related), replace(targets, mask=scored))
        return {"log_likelihood_joint": joint / scored.sum(1)}
