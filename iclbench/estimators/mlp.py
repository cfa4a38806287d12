"""A two-layer ReLU network that is trained from scratch on each prefix of each episode (Garg et al. 2022).

The networks for a group of prefixes are trained together, with one batched matrix product per layer, explicit gradients
and fused Adam. Deviation from the paper: the loss is the mean over the points of one network. The code of Garg et al.
also averages over the batch of prompts, which divides gradients by the batch size. Because of Adam's epsilon, the
predictions of that code depend on the batch size.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.seeds import generator
from iclbench.core.settings import BaseSettings, PositiveFloat, PositiveInt
from iclbench.estimators.base import Estimator

# Number of networks that are trained together: enough for efficient batches, and few enough for the processor's cache.
_GROUP_SIZE = 64

Network = tuple[Tensor, Tensor, Tensor, Tensor]


class NetworkSettings(BaseSettings):
    """Settings of full-batch training.

    Attributes:
        width: width of the hidden layer (default: the width of the networks that the task samples).
        steps: number of steps (50 in the CoQE paper).
        lr: learning rate.
    """

    width: PositiveInt | None = None
    steps: PositiveInt = 100
    lr: PositiveFloat = 5e-3


class TwoLayerNetwork(Estimator[NetworkSettings]):
    """A network with one hidden layer, trained with Adam; initial weights depend on the seed and the prefix length."""

    Settings = NetworkSettings
    libraries = ("torch",)
    dtype = torch.float32

    def answer(
        self,
        x: Float[Tensor, "B N Dx"],
        y: Float[Tensor, "B N"],
        lengths: Int[Tensor, "#B P"],
        queries: Float[Tensor, "B P Q Dx"],
    ) -> Float[Tensor, "B P Q"]:
        lengths = lengths.expand(len(x), -1)
        answers = queries.new_zeros(queries.shape[:3])
        # Prefixes are sorted by length, so that groups need little padding.
        order = lengths.flatten().argsort(stable=True)
        order = order[lengths.flatten()[order] > 0]
        for start in range(0, len(order), _GROUP_SIZE):
            group = order[start : start + _GROUP_SIZE]
            episode, prefix = group // lengths.shape[1], group % lengths.shape[1]
            counts = lengths[episode, prefix]
            longest = int(counts.max())
            initial = self.initial_weights(counts, x.shape[-1])
            network = train(
                initial, x[episode, :longest], y[episode, :longest], counts, self.settings.steps, self.settings.lr
            )
            answers[episode, prefix] = forward(network, queries[episode, prefix])
        return answers

    def initial_weights(self, counts: Int[Tensor, " M"], dim: int) -> Network:
        """Return initial weights of M networks, uniform in ±1/sqrt(fan-in) as in torch.nn.Linear.

        Each prefix length has its own random stream.
        """
        width = self.settings.width or self.facts.hidden_width
        distinct_counts, index = counts.unique(return_inverse=True)
        total = (dim + 2) * width + 1
        samples = torch.stack(
            [torch.rand(total, generator=generator(self.seed, "mlp", n)) for n in distinct_counts.tolist()]
        )
        uniform = (2 * samples - 1).to(device=counts.device)[index]
        inner, outer = uniform.split([(dim + 1) * width, width + 1], 1)
        hidden, bias = (inner / math.sqrt(dim)).split([dim * width, width], 1)
        output, offset = (outer / math.sqrt(width)).split([width, 1], 1)
        return hidden.unflatten(1, (dim, width)), bias.unsqueeze(1), output.unsqueeze(2), offset.unsqueeze(2)


def forward(network: Network, x: Float[Tensor, "M N Dx"]) -> Float[Tensor, "M N"]:
    """Return the outputs of M networks, each for its own inputs."""
    hidden, bias, output, offset = network
    return torch.baddbmm(offset, torch.baddbmm(bias, x, hidden).relu_(), output).squeeze(2)


def train(
    network: Network,
    x: Float[Tensor, "M N Dx"],
    y: Float[Tensor, "M N"],
    counts: Int[Tensor, " M"],
    steps: int,
    lr: float,
) -> Network:
    """Train M networks with Adam, each on the mean squared error over its first `counts` points.

    Args:
        network: hidden weights `(M, Dx, H)`, biases `(M, 1, H)`, output weights `(M, H, 1)` and offset `(M, 1, 1)`.
        x: inputs.
        y: outputs.
        counts: number of points of each network.
        steps: number of full-batch steps.
        lr: learning rate.

    Returns:
        The trained weights, in the same shapes as `network`.
    """
    hidden, bias, output, offset = network
    # The bias is the weight of an additional input that is always 1, so its gradient is part of the matrix product.
    inner = torch.cat([hidden, bias], 1)
    outer, offset = output.clone(), offset.clone()
    adam = torch.optim.Adam([inner, outer, offset], lr=lr, fused=True)
    extended_x = torch.cat([x, torch.ones_like(x[..., :1])], 2)
    in_prefix = torch.arange(x.shape[1], device=x.device) < counts.unsqueeze(1)
    coefficient = (2 * in_prefix / counts.unsqueeze(1)).to(x.dtype).unsqueeze(2)
    target = y.unsqueeze(2)
    for _ in range(steps):
        activations = torch.bmm(extended_x, inner).relu_()
        error = torch.baddbmm(offset, activations, outer).sub_(target).mul_(coefficient)
        outer.grad, offset.grad = activations.mT @ error, error.sum(1, keepdim=True)
        # The gradient of ReLU is 1 where its output is positive. `activations` is overwritten.
        hidden_gradient = activations.gt_(0).mul_(error).mul_(outer.mT)
        inner.grad = extended_x.mT @ hidden_gradient
        adam.step()
    return inner[:, :-1], inner[:, -1:], outer, offset
