"""Bootstrapping attentive neural process (Lee et al. 2020): bootstraps of the conditional attentive neural process."""

from __future__ import annotations

from iclbench.backbones.bootstrap_np import BootstrapNP, BootstrapSettings
from iclbench.backbones.two_path_np import AttentiveSettings
from iclbench.layers.encoder_pairs import AttentivePair


class BANPSettings(AttentiveSettings, BootstrapSettings):
    """Settings of banp. The defaults are the published sizes for Gaussian processes."""


class BANP(BootstrapNP[BANPSettings]):
    """The published models have 364,674 parameters for Gaussian processes, 447,746 for EMNIST and 498,310 for CelebA.

    The encoders differ from the released code as in `canp` (masks, empty contexts, two depths); bootstraps and training
    differ as in `bnp`.
    """

    Settings = BANPSettings
    Pair = AttentivePair
