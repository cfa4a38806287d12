"""Bootstrapping attentive neural process (Lee et al. 2020): bootstraps of the conditional attentive neural process."""

from __future__ import annotations

from iclbench.backbones.bootstrap_np import BootstrapNP, BootstrapSettings
from iclbench.backbones.two_path_np import AttentiveSettings
from iclbench.layers.encoder_pairs import AttentivePair


class BANPSettings(AttentiveSettings, BootstrapSettings):
    """Published sizes for Gaussian processes."""


class BANP(BootstrapNP[BANPSettings]):
    """The published models have 364,674 parameters for Gaussian processes, 447,746 for EMNIST and 498,310 for CelebA.

    Differences from the released code are those of `canp` in the encoders (masks, no context, two depths), and of `bnp`
    in bootstraps and training.
    """

    Settings = BANPSettings
    Pair = AttentivePair
