"""The two oracles of the Gaussian-process task, and a reference for models that have not learned periods.

`oracle-kernel` has access to the kernel of every episode and returns the exact posterior, which related datasets cannot
improve. `oracle-bayes` has access only to the distribution of kernels and infers the kernel from context and related
datasets: it averages the posteriors under a grid of kernels, the nodes (`evidence.Nodes`), with the nodes' posterior
weights. In expectation, no predictor has a better log-density, and no Gaussian head is better than the Gaussian with
the mean and variance of this mixture. Under shifts to a single kernel, `oracle-bayes` still assumes a distribution
(`GPMixture.assumed_prior`), and the related datasets of most `mismatch-*` shifts mislead it, so it is only a baseline
under these shifts (`GPMixture.is_oracle_optimal`). `periodic-mean` also has access to the kernel, but predicts only the
mean of periodic functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError
from iclbench.core.joint import JointGaussian
from iclbench.core.predictions import Mixture, Prediction
from iclbench.core.predictor import Oracle, State
from iclbench.core.settings import BaseSettings, NoSettings, PositiveInt
from iclbench.core.task import TaskFacts
from iclbench.families.family_predictor import FamilyPredictor
from iclbench.families.gaussian_processes.evidence import Evidence, Nodes
from iclbench.families.gaussian_processes.gp_mixture import GPMixture
from iclbench.families.gaussian_processes.kernels import PERIODIC, mean_variance
from iclbench.families.gaussian_processes.posterior import joint_posterior, posterior

# The largest total posterior mass of the dropped nodes.
MAX_DROPPED_MASS = 1e-5
# Number of kernels whose posteriors are computed at once, which limits memory.
_NODES_AT_ONCE = 256

_Settings = TypeVar("_Settings", bound=BaseSettings)


class _GPOracle(FamilyPredictor[_Settings], abstract=True):
    """Base of the oracles; raises `UsageError` for other families."""

    family_class, family_name = GPMixture, "gp-mixture"
    family: GPMixture

    def __init__(self, settings: _Settings | None = None, facts: TaskFacts | None = None, seed: int = 0) -> None:
        super().__init__(settings, facts, seed)
        self.noise = self.family.parameters.noise


@dataclass(frozen=True)
class KernelState(State):
    """The context and the kernel of every episode."""

    context: Points
    kernel: Int[Tensor, " B"]
    lengthscale: Float[Tensor, " B"]


class OracleKernel(_GPOracle[NoSettings], Oracle):
    """The exact posterior of noisy outputs under the true kernel."""

    heads = ("gaussian",)

    def condition(self, context: Points, related: Points | None = None) -> KernelState:
        if self.truth is None:
            raise UsageError(
                "oracle-kernel requires the kernels; call informed(episodes.truth) first", code="missing-value"
            )
        return KernelState(context, self.truth["kernel"], self.truth["lengthscale"])

    def query(self, state: KernelState, x: Float[Tensor, "B Q 1"]) -> JointGaussian:
        mean, tril = joint_posterior(state.kernel, state.lengthscale, state.context, x, self.noise)
        return JointGaussian.from_tril(mean.to(x.dtype).unsqueeze(-1), tril.to(x.dtype))

    def update(self, state: KernelState, points: Points) -> KernelState:
        return KernelState(state.context.append(points), state.kernel, state.lengthscale)


@dataclass(frozen=True)
class MeanState(KernelState):
    """`KernelState` with the mean of every function over a period (not used for RBF kernels)."""

    mean: Float[Tensor, " B"]


class PeriodicMean(OracleKernel):
    """A predictor that equals `oracle-kernel` for RBF functions and predicts the true mean of periodic functions.

    Models that have learned smooth functions but not periods score similarly. On periodic functions, the mean score of
    this predictor is -log(2 pi e (1 - p_0 + sigma²)) / 2 = -1.214, where p_0 is the variance of the mean
    (`kernels.mean_variance`).
    """

    def condition(self, context: Points, related: Points | None = None) -> MeanState:
        state = super().condition(context, related)
        assert self.truth is not None
        return MeanState(state.context, state.kernel, state.lengthscale, self.truth["mean"])

    def query(self, state: MeanState, x: Float[Tensor, "B Q 1"]) -> JointGaussian:  # type: ignore[override]
        """Return the posterior for RBF functions, and independent outputs around the mean for periodic functions."""
        rbf_prediction = super().query(state, x)
        is_periodic = (state.kernel == PERIODIC)[:, None, None]
        mean, std = state.mean[:, None, None], math.sqrt(1 - mean_variance() + self.noise**2)
        return JointGaussian(
            torch.where(is_periodic, mean.to(x.dtype), rbf_prediction.mean),
            rbf_prediction.factor.masked_fill(is_periodic.unsqueeze(-1), 0.0),
            torch.where(is_periodic, std, rbf_prediction.std).to(x.dtype),
        )

    def update(self, state: MeanState, points: Points) -> MeanState:  # type: ignore[override]
        return replace(state, context=state.context.append(points))


class BayesSettings(BaseSettings):
    """Settings of `oracle-bayes`.

    Attributes:
        rbf_nodes: approximate number of RBF kernels, whose lengthscales l are equidistant in log l.
        spacing: largest distance between neighbouring periodic kernels in 2 pi / l.
        components: largest number of periodic kernels in a prediction.
        episodes: number of evaluated episodes, from the start of the prompt set; 0 selects all of them.
    """

    rbf_nodes: PositiveInt = 400
    spacing: Annotated[float, Field(gt=0, le=1)] = 0.00235
    components: PositiveInt = 1024
    episodes: Annotated[int, Field(ge=0)] = 128


class OracleBayes(_GPOracle[BayesSettings]):
    """The predictive distribution given context and related datasets, averaged over the posterior of kernels."""

    Settings = BayesSettings
    heads = ("mixture",)
    uses_related = True

    def predict_targets(
        self, context: Points, x_target: Float[Tensor, "B Q 1"], related: Points | None = None
    ) -> Mixture:
        count = 0 if related is None else related.mask.shape[1]
        return next(self.predict_by_related(context, x_target, related, [count]))

    def predict_by_related(
        self, context: Points, x_target: Float[Tensor, "B Q 1"], related: Points | None, counts: Sequence[int]
    ) -> Iterator[Mixture]:
        """Yield a prediction with the first n related datasets for every n in `counts`, which must not decrease. The
        evidence of every dataset is computed once."""
        log_weights = self._nodes.log_prior + self._evidence_of(context)
        next_set = 0
        for count in counts:
            while related is not None and next_set < min(count, related.mask.shape[1]):
                log_weights = log_weights + self._evidence_of(related[:, next_set])
                next_set += 1
            yield self._predict(log_weights.log_softmax(1), context, x_target)

    def joint_scores(
        self,
        answer: Prediction,
        context: Points,
        targets: Points,
        scored: Bool[Tensor, "B Q"],
        related: Points | None = None,
    ) -> dict[str, Float[Tensor, " B"]]:
        """Return the exact joint score per target. The joint density is the evidence of context and targets divided by
        the evidence of the context."""
        context_log_weights = self._posterior(context, related)
        joint_evidence = self._evidence_of(context.append(replace(targets, mask=targets.mask & scored)))
        joint_log_weights = context_log_weights - self._evidence_of(context) + joint_evidence
        log_density = joint_log_weights.logsumexp(1) - context_log_weights.logsumexp(1)
        return {"log_likelihood_joint": log_density / scored.sum(1)}

    def sample_targets(
        self,
        context: Points,
        x_target: Float[Tensor, "B Q 1"],
        n: int,
        generator: torch.Generator,
        related: Points | None = None,
    ) -> Float[Tensor, "n B Q 1"]:
        """Draw a kernel from its posterior, then outputs from their posterior under this kernel."""
        weights = self._posterior(context, related).softmax(1)
        episodes = []
        for b, node in enumerate(torch.multinomial(weights, n, replacement=True, generator=generator)):
            copies = context[b : b + 1].map(lambda t: t.expand(n, *t.shape[1:]))
            x = x_target[b].expand(n, -1, -1)
            kernel, lengthscale = self._nodes.kernel[node], self._nodes.lengthscale[node]
            mean, tril = joint_posterior(kernel, lengthscale, copies, x, self.noise)
            noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype)
            episodes.append(mean + (tril @ noise.unsqueeze(-1)).squeeze(-1))
        return torch.stack(episodes, 1).unsqueeze(-1).to(x_target.dtype)

    def _posterior(self, context: Points, related: Points | None) -> Float[Tensor, "B S"]:
        """Return the unnormalised posterior log weights of the nodes."""
        log_weights = self._nodes.log_prior + self._evidence_of(context)
        if related is not None:
            for index in range(related.mask.shape[1]):
                log_weights = log_weights + self._evidence_of(related[:, index])
        return log_weights

    @cached_property
    def _nodes(self) -> Nodes:
        return Nodes.of(self.family.assumed_prior(self.facts.shift), self.settings.rbf_nodes, self.settings.spacing)

    @cached_property
    def _evidence(self) -> Evidence:
        return Evidence(self._nodes, self.noise, self.family.span)

    @cached_property
    def _evidence_by_data(self) -> dict[bytes, Float[Tensor, "B S"]]:
        """Cache with the evidence of recent datasets, which is needed for every number of related datasets and for
        joint scores."""
        return {}

    def _evidence_of(self, points: Points) -> Float[Tensor, "B S"]:
        """Return the log evidence of one dataset per episode at every node."""
        key = b"".join(t.cpu().numpy().tobytes() for t in points.tensors().values())
        if key not in self._evidence_by_data:
            datasets = zip(points.x[..., 0], points.y[..., 0], points.mask, strict=True)
            evidence = torch.stack([self._evidence(x[mask], y[mask]) for x, y, mask in datasets])
            while len(self._evidence_by_data) > self.family.related_sets + 1:
                del self._evidence_by_data[next(iter(self._evidence_by_data))]
            self._evidence_by_data[key] = evidence
        return self._evidence_by_data[key]

    def _predict(self, log_weights: Float[Tensor, "B S"], context: Points, x: Float[Tensor, "B Q 1"]) -> Mixture:
        """Return a mixture with one component per node, padded with components that have the logit -inf."""
        components = [self._components(w) for w in log_weights]
        shape = (*x.shape[:2], max(len(node) for node, _ in components))
        logits, means, stds = x.new_full(shape, -torch.inf), x.new_zeros(shape), x.new_ones(shape)
        for episode, (node, logit) in enumerate(components):
            points = context[episode][context.mask[episode]]
            parts = [self._posterior_under(chunk, points, x[episode]) for chunk in node.split(_NODES_AT_ONCE)]
            mean, std = (torch.cat(tensors).T for tensors in zip(*parts, strict=True))
            logits[episode, :, : len(node)] = logit.to(x.dtype)
            means[episode, :, : len(node)] = mean.to(x.dtype)
            stds[episode, :, : len(node)] = std.to(x.dtype)
        return Mixture(logits, means.unsqueeze(-1), stds.unsqueeze(-1))

    def _posterior_under(
        self, nodes: Int[Tensor, " K"], context: Points, x: Float[Tensor, "Q 1"]
    ) -> tuple[Float[Tensor, "K Q"], Float[Tensor, "K Q"]]:
        """Return the posterior means and standard deviations of one episode under each of these nodes."""
        copies = context.map(lambda t: t.expand(len(nodes), *t.shape))
        kernel, lengthscale = self._nodes.kernel[nodes], self._nodes.lengthscale[nodes]
        return posterior(kernel, lengthscale, copies, x.expand(len(nodes), *x.shape), self.noise)

    def _components(self, log_weights: Float[Tensor, " S"]) -> tuple[Int[Tensor, " K"], Float[Tensor, " K"]]:
        """Return the nodes of the prediction and their log weights.

        Nodes with weights below `MAX_DROPPED_MASS` / S are dropped. If more than `components` periodic nodes remain,
        groups of neighbours are replaced by the node at their centre of mass. The posterior is then so broad that the
        nodes of a group predict similar outputs.
        """
        nodes = (log_weights > math.log(MAX_DROPPED_MASS / len(log_weights))).nonzero().squeeze(1)
        periodic_nodes = nodes[self._nodes.kernel[nodes] == PERIODIC]
        if len(periodic_nodes) <= self.settings.components:
            return nodes, log_weights[nodes]
        group_size = math.ceil(len(periodic_nodes) / self.settings.components)
        padded = torch.nn.functional.pad(
            log_weights[periodic_nodes], (0, -len(periodic_nodes) % group_size), value=-torch.inf
        )
        groups = padded.unflatten(0, (-1, group_size))
        central_index = (groups.softmax(1) * torch.arange(group_size)).sum(1).round().long()
        central_nodes = periodic_nodes[central_index + group_size * torch.arange(len(groups))]
        rbf_nodes = nodes[self._nodes.kernel[nodes] != PERIODIC]
        return torch.cat([rbf_nodes, central_nodes]), torch.cat([log_weights[rbf_nodes], groups.logsumexp(1)])
