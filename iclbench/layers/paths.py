"""Tools for sampling targets one after another: draws from predictions with given random numbers, and a memory for
attention. A path is one sequence of sampled targets. All paths share the context; each path also attends to its own
earlier draws."""

from __future__ import annotations

from functools import singledispatch

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.bar import Bar
from iclbench.core.predictions import Categorical, Gaussian, Mixture, Point, Prediction
from iclbench.layers.attention import KeysAndValues


@singledispatch
def draw(answer: Prediction, uniform: Float[Tensor, " S"], normal: Float[Tensor, "S dy"]) -> Tensor:
    """Draw one sample from each of the predictions, `(B, S)`. Samples have shape `(B, S, dy)`, or `(B, S)` for labels.
    All episodes share the random numbers.

    Args:
        answer: the predictions.
        uniform: numbers from 0 to 1, for labels and for the components of mixtures.
        normal: standard normal numbers, for real outputs.

    Raises:
        TypeError: this type of prediction cannot be sampled.
    """
    raise TypeError(f"predictions of type {type(answer).__name__} cannot be sampled")


@draw.register
def _(answer: Point, uniform: Tensor, normal: Tensor) -> Tensor:
    return answer.mean


@draw.register
def _(answer: Gaussian, uniform: Tensor, normal: Tensor) -> Tensor:
    return answer.mean + answer.std * normal


@draw.register
def _(answer: Mixture, uniform: Tensor, normal: Tensor) -> Tensor:
    component = _sample_class(answer.logits, uniform)[..., None, None].expand(*answer.means.shape[:2], 1, -1)
    mean, std = (t.expand_as(answer.means).gather(2, component).squeeze(2) for t in (answer.means, answer.stds))
    return mean + std * normal


@draw.register
def _(answer: Bar, uniform: Tensor, normal: Tensor) -> Tensor:
    return answer.transport(normal)


@draw.register
def _(answer: Categorical, uniform: Tensor, normal: Tensor) -> Tensor:
    return _sample_class(answer.logits, uniform)


def _sample_class(logits: Float[Tensor, "B S K"], uniform: Float[Tensor, " S"]) -> Int[Tensor, "B S"]:
    """Return the first class at which the cumulative probability exceeds the uniform number."""
    is_below = logits.softmax(-1).cumsum(-1) <= uniform.unsqueeze(-1)
    return is_below[..., :-1].sum(-1)


class PathMemory:
    """The keys and values of one layer, for the context, which all S paths share, and for the draws of each path.

    Args:
        context: keys and values of the context.
        paths: number of paths S.
        longest: largest number of tokens of a path.
    """

    def __init__(self, context: KeysAndValues, paths: int, longest: int) -> None:
        batch, heads, _, size = context.keys.shape
        self.context = context
        self.keys, self.values = (context.keys.new_empty(batch, heads, paths, longest, size) for _ in range(2))
        self.length = 0

    def add(self, token: KeysAndValues) -> None:
        """Append one token to every path, `(B, H, S, C)`."""
        self.keys[:, :, :, self.length], self.values[:, :, :, self.length] = token.keys, token.values
        self.length += 1

    def read(self, q: Float[Tensor, "B H SR C"]) -> Float[Tensor, "B H SR C"]:
        """Compute the attention of R rows of each path to the context and to the tokens of the path. Each path must
        have at least one token."""
        q = q * q.shape[-1] ** -0.5
        context_scores, (paths, size) = q @ self.context.keys.mT, (self.keys.shape[2], self.context.keys.shape[2])
        if self.context.mask is not None:
            context_scores = context_scores.masked_fill(~self.context.mask[:, None, None], -torch.inf)
        path_scores = q.unflatten(2, (paths, -1)) @ self.keys[:, :, :, : self.length].mT
        weights = torch.cat([context_scores.unflatten(2, (paths, -1)), path_scores], -1).softmax(-1)
        context_values = weights[..., :size].flatten(2, 3) @ self.context.values
        return context_values + (weights[..., size:] @ self.values[:, :, :, : self.length]).flatten(2, 3)
