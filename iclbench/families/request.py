"""The request that a family draws episodes for."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import torch


@dataclass(frozen=True)
class Request:
    """A batch of episodes to be drawn.

    Attributes:
        episodes: how many.
        points: context points per episode (families with variable contexts: at most so many). For the question `next`
            the last of them is only ever asked, so a trained length of 40 examples needs 41 points.
        generator: where all randomness comes from; its device is where the tensors live.
        active_dims: a curriculum's input dimensions in use; the others are 0. None: all.
        shift: a named change of the distribution, `none` for none.
        related: exactly so many related datasets in every episode; None: a number drawn per episode. Given the same
            generator, all else is the same whatever this says.
        before: of a prompt set, so many episodes are drawn by the requests before this one. Families that have only so
            many episodes go on behind them, so that none comes twice while there are others.
    """

    episodes: int
    points: int
    generator: torch.Generator
    _: KW_ONLY
    active_dims: int | None = None
    shift: str = "none"
    related: int | None = None
    before: int = 0
