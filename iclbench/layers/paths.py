"""What sampling target by target needs: draws by given random numbers, and attention to a context that all paths share
and to what each path has drawn before."""

from __future__ import annotations

from functools import singledispatch

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.predictions import Categorical, Gaussian, Mixture, Point, Prediction
from iclbench.layers.attention import KeysValues


@singledispatch
def draw(answer: Prediction, uniform: Float[Tensor, " S"], normal: Float[Tensor, "S dy"]) -> Tensor:
    """One output of each prediction `(B, S)`, by numbers that all episodes share: `(B, S, dy)`, labels `(B, S)`.

    Args:
        answer: what is drawn from.
        uniform: from 0 to 1, for what is discrete.
        normal: standard normal.
    """
    raise TypeError(f"nothing can be drawn from a {type(answer).__name__}")


@draw.register
def _(answer: Point, uniform: Tensor, normal: Tensor) -> Tensor:
    return answer.mean


@draw.register
def _(answer: Gaussian, uniform: Tensor, normal: Tensor) -> Tensor:
    return answer.mean + answer.std * normal


@draw.register
def _(answer: Mixture, uniform: Tensor, normal: Tensor) -> Tensor:
    component = _index(answer.logits, uniform)[..., None, None].expand(*answer.means.shape[:2], 1, -1)
    mean, std = (t.expand_as(answer.means).gather(2, component).squeeze(2) for t in (answer.means, answer.stds))
    return mean + std * normal


@draw.register
def _(answer: Categorical, uniform: Tensor, normal: Tensor) -> Tensor:
    return _index(answer.logits, uniform)


def _index(logits: Float[Tensor, "B S K"], uniform: Float[Tensor, " S"]) -> Int[Tensor, "B S"]:
    """Where the cumulative probabilities pass the numbers."""
    passed = logits.softmax(-1).cumsum(-1) <= uniform.unsqueeze(-1)
    return passed[..., :-1].sum(-1)


class PathMemory:
    """Keys and values, in one layer, of what each of S paths has drawn; the context is the same for all paths.

    Args:
        context: its keys and values.
        paths: S.
        longest: tokens that a path can take.
    """

    def __init__(self, context: KeysValues, paths: int, longest: int) -> None:
        batch, heads, _, size = context.keys.shape
        self.context = context
        self.keys, self.values = (context.keys.new_empty(batch, heads, paths, longest, size) for _ in range(2))
        self.length = 0

    def add(self, token: KeysValues) -> None:
        """Take in one more token of every path, `(B, H, S, C)`."""
        self.keys[:, :, :, self.length], self.values[:, :, :, self.length] = token.keys, token.values
        self.length += 1

    def read(self, q: Float[Tensor, "B H SR C"]) -> Float[Tensor, "B H SR C"]:
        """What the heads of R rows of each path read of the context and of the path's own tokens, at least one."""
        q = q * q.shape[-1] ** -0.5
        shared, (paths, size) = q @ self.context.keys.mT, (self.keys.shape[2], self.context.keys.shape[2])
        if self.context.mask is not None:
            shared = shared.masked_fill(~self.context.mask[:, None, None], -torch.inf)
        own_scores = q.unflatten(2, (paths, -1)) @ self.keys[:, :, :, : self.length].mT
        weights = torch.cat([shared.unflatten(2, (paths, -1)), own_scores], -1).softmax(-1)
        context_values = weights[..., :size].flatten(2, 3) @ self.context.values
        return context_values + (weights[..., size:] @ self.values[:, :, :, : self.length]).flatten(2, 3)
