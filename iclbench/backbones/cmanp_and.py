"""CMANP-AND, "autoregressive not-diagonal" (Feng et al. 2024, "Memory Efficient Neural Processes via Constant Memory
Attention Block", the later version of CMANP's paper): CMANP with a joint Gaussian over all targets.

In training, all targets of an episode have one joint Gaussian. For the score, targets are split into blocks. Each block
has a joint Gaussian, and its true outputs update the state (in constant time) before the next block is predicted. By
the chain rule, the product over blocks is also a joint density. It uses true outputs (teacher forcing), and with
`block=1` it is autoregressive. A prediction is one Gaussian over all queries, given only the context. The differences
from the released code are those of `cmanp` and `tnp_nd`, and the following:

- The network for the means replaces CMANP's predictor, which the released code creates but does not use. This saves
  8,578 parameters for dy = 1 and 9,094 for dy = 3.
- Blocks are formed per episode, from the scored targets.

The model has 1,452,373 parameters for (dx, dy) = (1, 1), 1,452,501 for (2, 1), 1,458,047 for (2, 3).
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.backbones.cmanp import CMANP, CMANPSettings
from iclbench.backbones.joint_targets import JointSettings, JointTargets
from iclbench.core.episodes import Points
from iclbench.core.predictions import Prediction
from iclbench.core.settings import PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.running_softmax import RunningSoftmax


class CMANPANDSettings(CMANPSettings, JointSettings):
    """Settings of the constant-memory model with joint targets."""

    block: PositiveInt = 100
    """Targets per Gaussian in the joint log-likelihood; their true outputs update the state before the next block."""


class CMANPAND(JointTargets[CMANPANDSettings], CMANP[CMANPANDSettings]):
    """CMANP with a joint Gaussian over all targets (head `gaussian`). Its means and its covariance are computed from
    the targets' vectors."""

    Settings: ClassVar[type[CMANPANDSettings]] = CMANPANDSettings

    def __init__(self, settings: CMANPANDSettings, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        if self.covariance is not None:
            # The norm of CMANP's predictor, which is applied before the means and the covariance.
            self.norm = nn.LayerNorm(settings.width)
            self.joint = "ordered"  # scores depend on the order, because it determines the blocks

    def hidden(self, state: RunningSoftmax, x: Float[Tensor, "B Q Dx"]) -> Float[Tensor, "B Q D"]:
        latents = list(self.latents_by_layer(state))
        chunks = [x] if torch.is_grad_enabled() else x.split(self.settings.chunk, 1)
        return torch.cat([list(self.query_layers(latents, chunk))[-1] for chunk in chunks], 1)

    def decode(self, hidden: Float[Tensor, "B Q D"], mask: Bool[Tensor, "B Q"] | None = None) -> Prediction:
        return super().decode(hidden if self.covariance is None else self.norm(hidden), mask)

    def query(self, state: RunningSoftmax, x: Float[Tensor, "B Q Dx"]) -> Prediction:
        return super().query(state, x) if self.covariance is None else self.decode(self.hidden(state, x))

    def joint_scores(
        self,
        answer: Prediction,
        context: Points,
        targets: Points,
        scored: Bool[Tensor, "B Q"],
        related: Points | None = None,
    ) -> dict[str, Float[Tensor, " B"]]:
        """Return the joint log-likelihood per target: the sum over blocks, each of which is scored given the context
        and the true outputs of the blocks before it."""
        if self.covariance is None:
            return super().joint_scores(answer, context, targets, scored, related)
        scored_targets, _ = replace(targets, mask=scored).compact()
        state, block = self.condition(context), self.settings.block
        joint = torch.zeros(len(context), dtype=torch.float64, device=scored_targets.x.device)
        for start in range(0, scored_targets.count, block):
            block_targets = scored_targets.span(start, start + block)
            joint = joint + self.log_likelihood(state, block_targets)
            if start + block < scored_targets.count:
                state = self.update(state, block_targets)
        score = joint / scored_targets.counts
        return {"log_likelihood_joint": score, "log_likelihood_teacher_forced": score}
