"""Attentive neural process (Kim et al. 2019), as the BNP (Lee et al. 2020) and TNP (Nguyen and Grover 2022) releases
have it: targets attend to the context and read a latent mean of points that have read one another."""

from __future__ import annotations

from iclbench.backbones.latent_np import LatentNP, LatentNPSettings
from iclbench.backbones.two_path_np import AttentiveSettings
from iclbench.layers.encoder_pairs import AttentivePair


class ANPSettings(AttentiveSettings, LatentNPSettings):
    """Published sizes for Gaussian processes."""


class ANP(LatentNP[ANPSettings]):
    """Published sizes have 348,418 parameters for Gaussian processes, 431,490 for EMNIST and 482,054 for CelebA.

    What differs from the released code: what does of `canp` in the encoders (masks, no context, two depths), and of
    `np` in training and answers.
    """

    Settings = ANPSettings
    Pair = AttentivePair
