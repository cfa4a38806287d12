"""Conditional attentive neural process, as the BNP (Lee et al. 2020) and TNP (Nguyen and Grover 2022) releases have it:
the attentive neural process (Kim et al. 2019) with a deterministic encoder in place of the latent one.

Context points read one another; targets attend to them by their inputs, and a second encoder, with self-attention of
its own, takes the mean.
"""

from __future__ import annotations

from iclbench.backbones.two_path_np import AttentiveSettings, TwoPathNP
from iclbench.layers.encoder_pairs import AttentivePair


class CANP(TwoPathNP[AttentiveSettings]):
    """Published sizes have 331,906 parameters for Gaussian processes, 414,978 for EMNIST and 465,542 for CelebA.

    What differs from the released code:

    - Masked points are no keys of self-attention; there the pooling encoder's self-attention knows no mask.
    - Without context, attention and the mean are 0; there they are not numbers.
    - Values and the layers before the mean have one depth (`pre_depth`), queries, keys and the layers behind the mean
      another (`post_depth`), as in all published settings; there they are four numbers.
    - Loss: of the targets. There context points are asked, too: `task.context_targets=true`.
    - Standard deviation: that of all models here. There 0.1 + 0.9 softplus: `spread=bounded-0.1`.
    """

    Settings = AttentiveSettings
    Pair = AttentivePair
