"""Attentive neural process (Kim et al. 2019), as in the releases of BNP (Lee et al. 2020) and TNP (Nguyen and Grover
2022): targets attend to the context and read a latent variable, which is inferred from the mean over context points
after self-attention."""

from __future__ import annotations

from iclbench.backbones.latent_np import LatentNP, LatentNPSettings
from iclbench.backbones.two_path_np import AttentiveSettings
from iclbench.layers.encoder_pairs import AttentivePair


class ANPSettings(AttentiveSettings, LatentNPSettings):
    """Settings of anp. The defaults are the published sizes for Gaussian processes."""


class ANP(LatentNP[ANPSettings]):
    """The published models have 348,418 parameters for Gaussian processes, 431,490 for EMNIST and 482,054 for CelebA.

    The encoders differ from the released code as in `canp` (masks, empty contexts, two depths); training and
    predictions differ as in `np`.
    """

    Settings = ANPSettings
    Pair = AttentivePair
