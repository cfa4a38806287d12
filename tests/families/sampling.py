"""Random generators, and conversions and properties of sampled episodes."""

from dataclasses import replace

import numpy as np
import torch

from iclbench.core.episodes import Episodes


def new_generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def in_float64(episodes: Episodes) -> Episodes:
    """Convert contexts to float64, so that predictions are in float64, too."""
    return replace(episodes, context=episodes.context.to(dtype=torch.float64))


def is_stratified(u: np.ndarray) -> bool:
    """Return whether each of n equal intervals of [0, 1) contains exactly one of the n numbers."""
    return bool((np.sort(np.floor(u * len(u))) == np.arange(len(u))).all())
