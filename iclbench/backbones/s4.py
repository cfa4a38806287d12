"""S4 and S4D: a linear time-invariant state space for each channel, and a gated linear layer that mixes the channels
(Gu et al. 2022a, 2022b).

The sizes are those of Grazzi et al. 2024, appendix A.1.1: 24 blocks of width 435; their S4 is S4D-Lin. A block has
the layers of the reference code (state-spaces/s4, `s4d.py` with its example model): the system with a skip term D u,
GELU, a linear layer to twice the width with GLU, a residual connection, and a norm after it. Read-in and read-out are
linear.

Blocks store tensors with channels first, `(D, B, T)`, and pass views of them to each other, so that convolution, mixing
and norm need no transposition.
"""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from iclbench.backbones.base import SMALLEST_BUDGET, BackboneSettings
from iclbench.backbones.recurrent import BlockState, RecurrentBackbone, RecurrentBlock
from iclbench.core.episodes import Episodes, Points
from iclbench.core.predictions import Prediction
from iclbench.core.seeds import global_draws
from iclbench.core.settings import Decay, PositiveFloat, PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.channels_first import ChannelNorm
from iclbench.layers.long_convolution import long_convolution
from iclbench.layers.mixers.mixer import full_precision
from iclbench.layers.state_space.kernels import Spectrum
from iclbench.layers.state_space.systems import DiagonalStateSpace, LowRankStateSpace, StateSpace


class S4Settings(BackboneSettings):
    """Sizes, initial step sizes and learning rate of the state spaces."""

    layers: PositiveInt = 24
    """State-space blocks."""
    width: PositiveInt = 435
    """Width D of a token; each channel has a state space."""
    state: Annotated[int, Field(gt=0, le=1024, multiple_of=2)] = 64
    """Size N of the real state per channel."""
    dt_min: PositiveFloat = 1e-3
    """Lower bound of the initial step sizes dt, which are log-uniform."""
    dt_max: PositiveFloat = 1e-1
    """Upper bound of the initial step sizes dt."""
    dropout: Decay = 0.0
    """Dropout rate in training, on the output of every state space and of every mixing layer."""
    rate_factor: PositiveFloat = 1.0
    """Ratio of the learning rate of A, B and dt to the learning rate of other parameters. A, B and dt have no weight
    decay."""

    @model_validator(mode="after")
    def _check_dt_range(self) -> S4Settings:
        if self.dt_min > self.dt_max:
            raise ValueError(f"dt_min = {self.dt_min} is above dt_max = {self.dt_max}")
        return self


class S4DSettings(S4Settings):
    """Settings of S4 with a diagonal state matrix."""

    init: Spectrum = "lin"
    """Initial eigenvalues: lin (S4D-Lin, -1/2 + iπn), legs (HiPPO-LegS), inv (S4D-Inv)."""


class S4Block(RecurrentBlock):
    """A state space with a skip term, channel mixing, a residual connection and a norm. Its state is the state of the
    system, `(B, D, N)`."""

    def __init__(self, system: StateSpace, settings: S4Settings) -> None:
        super().__init__()
        self.system = system
        self.D = nn.Parameter(torch.randn(settings.width))
        self.mix = nn.Linear(settings.width, 2 * settings.width)
        self.norm = ChannelNorm(settings.width)
        self.dropout = nn.Dropout(settings.dropout)
        self.state_size = settings.state

    def start(self, batch: int) -> BlockState:
        return (self.D.new_zeros(batch, len(self.D), self.state_size),)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        u = self._channels_first(x)
        return self._finish_block(u, self._from_zero_state(u))

    def resume(
        self, x: Float[Tensor, "B T D"], state: BlockState, mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T D"], BlockState]:
        u = self._channels_first(x)
        if mask is not None:
            u = u.masked_fill(~mask, 0.0)  # a masked token has no input, so it does not change a zero state
        y, after = self._continue(u, state)
        return self._finish_block(u, y), after

    def peek(self, queries: Float[Tensor, "B Q D"], state: BlockState) -> Float[Tensor, "B Q D"]:
        u = self._channels_first(queries)
        with full_precision(u):
            step = self.system.unroll(1)
            from_state = torch.bmm(state[0].transpose(0, 1), step.state_to_outputs)
            y = from_state + self._with_skip(step.kernel)[:, :, None] * u
        return self._finish_block(u, y)

    def fork(
        self, x: Float[Tensor, "B T D"], queries: Float[Tensor, "B N D"], state: BlockState | None = None
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B N D"], BlockState | None]:
        """Return outputs and state as in the base class. Because the system is linear, a change of the last input
        changes the output by the difference times the kernel at lag 0."""
        u, query_inputs = self._channels_first(x), self._channels_first(queries)
        y, after = (self._from_zero_state(u), None) if state is None else self._continue(u, state)
        with full_precision(u):
            kernel = self._with_skip(self.system.kernel(1))[:, :, None]
            query_y = y[..., ::2] + kernel * (query_inputs - u[..., ::2])
        return self._finish_block(u, y), self._finish_block(query_inputs, query_y), after

    def _channels_first(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "D B T"]:
        """Return the tokens with channels first, in the precision of the parameters. Outputs of another S4 block are
        not copied."""
        return x.to(self.D.dtype).permute(2, 0, 1).contiguous()

    def _from_zero_state(self, u: Float[Tensor, "D B T"]) -> Float[Tensor, "D B T"]:
        """Return the outputs of a sequence from a zero state."""
        longest_kernel = self.system.longest
        if longest_kernel is not None and u.shape[2] > longest_kernel:
            return self._continue(u, self.start(u.shape[1]))[0]
        with full_precision(u):
            return long_convolution(u, self._with_skip(self.system.kernel(u.shape[2])))

    def _continue(self, u: Float[Tensor, "D B T"], state: BlockState) -> tuple[Float[Tensor, "D B T"], BlockState]:
        """Return the outputs of a chunk that follows a state, and the state after the chunk."""
        with full_precision(u):
            y, after = self.system.resume(u, state[0].transpose(0, 1), self._convolve)
        return y, (after.transpose(0, 1).contiguous(),)

    def _convolve(self, u: Float[Tensor, "D B T"], kernel: Float[Tensor, "D T"]) -> Float[Tensor, "D B T"]:
        return long_convolution(u, self._with_skip(kernel))

    def _with_skip(self, kernel: Float[Tensor, "D T"]) -> Float[Tensor, "D T"]:
        """Return the kernel plus D at lag 0, which adds the skip term D u to the output."""
        return kernel + F.pad(self.D[:, None], (0, kernel.shape[1] - 1))

    def _finish_block(self, u: Float[Tensor, "D B T"], y: Float[Tensor, "D B T"]) -> Float[Tensor, "B T D"]:
        """Apply the layers after the system, token by token."""
        activations = self.dropout(F.gelu(y)).flatten(1)
        mixed = F.glu(torch.addmm(self.mix.bias[:, None], self.mix.weight, activations), 0)
        with full_precision(u):
            normed = self.norm(u.flatten(1) + self.dropout(mixed))
        return normed.view(u.shape).permute(1, 2, 0)


_Settings = TypeVar("_Settings", bound=S4Settings)


class _S4Backbone(RecurrentBackbone[_Settings], abstract=True):
    """A stack of S4 blocks with systems of one class."""

    @classmethod
    def at_budget(cls, budget: int, shape: TaskShape) -> dict[str, Any]:
        """Return the settings for a budget. The state size is 64, as in the paper, which is larger than in selective
        models. In the smallest models, it is 16."""
        return super().at_budget(budget, shape) | {"state": 16 if budget < SMALLEST_BUDGET else 64}

    def __init__(self, settings: _Settings, shape: TaskShape) -> None:
        blocks = (S4Block(self.system(settings, shape), settings) for _ in range(settings.layers))
        super().__init__(settings, shape, settings.width, blocks)

    @staticmethod
    def system(settings: _Settings, shape: TaskShape) -> StateSpace:
        """Create the system of one block."""
        raise NotImplementedError

    def predict_targets(
        self, context: Points, x_target: Float[Tensor, "batch targets dx"], related: Points | None = None
    ) -> Prediction:
        with contextlib.ExitStack() as stack:
            for block in self._blocks():
                assert isinstance(block, S4Block)
                stack.enter_context(block.system.reuse_system())
            return super().predict_targets(context, x_target, related)

    def finish(self, hidden: Float[Tensor, "B Q D"]) -> Float[Tensor, "B Q D"]:
        """Return the hidden vectors unchanged, because blocks end with a norm."""
        return hidden

    def parameter_groups(self) -> list[dict[str, Any]]:
        time_scale_parameters = [
            p for block in self._blocks() if isinstance(block, S4Block) for p in block.system.time_scale_parameters()
        ]
        time_scale_ids = {id(p) for p in time_scale_parameters}
        other_parameters = [p for p in self.parameters() if id(p) not in time_scale_ids]
        return [
            {"params": other_parameters},
            {"params": time_scale_parameters, "lr_factor": self.settings.rate_factor, "weight_decay": 0.0},
        ]

    @property
    def shares_batches(self) -> bool:
        return not self.settings.dropout

    def loss(
        self, episodes: Episodes, progress: float, generator: torch.Generator
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        if not self.settings.dropout:
            return super().loss(episodes, progress, generator)
        with global_draws(generator):
            return super().loss(episodes, progress, generator)


class S4D(_S4Backbone[S4DSettings]):
    """State spaces with a diagonal state matrix, discretised with a zero-order hold."""

    Settings = S4DSettings

    @staticmethod
    def system(settings: S4DSettings, shape: TaskShape) -> StateSpace:
        return DiagonalStateSpace(settings.width, settings.state, (settings.dt_min, settings.dt_max), settings.init)


class S4(_S4Backbone[S4Settings]):
    """State spaces with the normal-plus-low-rank form of HiPPO-LegS, discretised with the bilinear method."""

    Settings = S4Settings

    @staticmethod
    def system(settings: S4Settings, shape: TaskShape) -> StateSpace:
        return LowRankStateSpace(settings.width, settings.state, (settings.dt_min, settings.dt_max), 2 * shape.points)
