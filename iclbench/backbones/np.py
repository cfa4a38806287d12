"""Neural process (Garnelo et al. 2018b, "Neural processes"), as in the releases of BNP (Lee et al. 2020) and TNP
(Nguyen and Grover 2022): a deterministic path and a latent path, each with a mean over points."""

from __future__ import annotations

from iclbench.backbones.latent_np import LatentNP, LatentNPSettings
from iclbench.backbones.pooled_np import PooledNP


class NP(PooledNP[LatentNPSettings], LatentNP[LatentNPSettings]):
    """The published models have 232,194 parameters for Gaussian processes, 315,138 for EMNIST and 365,702 for CelebA.

    Differences from the released code:

    - The mean over an empty set is 0; in the released code it is NaN.
    - The loss scores the targets; the released code also scores context points (as with `reconstruct=all`).
      `task.context_targets=true` is rejected, because the latent encoder would see every context point twice.
    - The loss of each episode is divided by its number of points, and the losses are averaged over episodes; in the
      released code, all episodes of a batch have the same number of points.
    - Predictions sample z with one table of random numbers for all episodes; the released code draws new numbers each
      time.
    - The standard deviation is computed as in all other models; in the released code it is 0.1 + 0.9 softplus
      (`spread=bounded-0.1`).
    """

    Settings = LatentNPSettings
