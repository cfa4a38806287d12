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
        generator: the source of all randomness; the episodes are on its device.
        active_dims: a curriculum's input dimensions in use; the others are 0. None: all.
        shift: a named change of the distribution, `none` for none.
        related: exact number of related datasets in every episode; None: a number drawn per episode. Nothing else in
        the episodes depends on it.
        before: number of episodes that earlier requests of the prompt set draw. A family with finitely many episodes
        continues after them, so that none repeats before all are used.
    """

    episodes: int
    points: int
    generator: torch.Generator
    _: KW_ONLY
    active_dims: int | None = None
    shift: str = "none"
    related: int | None = None
    before: int = 0
