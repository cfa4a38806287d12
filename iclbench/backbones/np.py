"""Neural process (Garnelo et al. 2018b, "Neural processes"), as the BNP (Lee et al. 2020) and TNP (Nguyen and Grover
2022) releases have it: a deterministic mean and a latent one."""

from __future__ import annotations

from iclbench.backbones.latent_np import LatentNP, LatentNPSettings
from iclbench.backbones.pooled_np import PooledNP


class NP(PooledNP[LatentNPSettings], LatentNP[LatentNPSettings]):
    """Published sizes have 232,194 parameters for Gaussian processes, 315,138 for EMNIST and 365,702 for CelebA.

    What differs from the released code:

    - The mean of no point is 0; there it is not a number.
    - Training scores the targets. There context points too: `reconstruct=all`. (`task.context_targets=true` is
      refused: the latent encoder would see every context point twice.)
    - The loss is a mean over episodes, each divided by its own number of points, of which there all of a batch have
      equally many.
    - Answers draw z by one table of numbers, the same for all episodes; there by new numbers each time.
    - Standard deviation: that of all models here. There 0.1 + 0.9 softplus: `spread=bounded-0.1`.
    """

    Settings = LatentNPSettings
