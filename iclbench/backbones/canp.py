"""Conditional attentive neural process, as in the releases of BNP (Lee et al. 2020) and TNP (Nguyen and Grover 2022):
the attentive neural process (Kim et al. 2019) with a deterministic encoder instead of the latent one.

Targets attend to context points after self-attention, with queries and keys that depend only on the inputs. A second
encoder, with separate self-attention, takes the mean over the points.
"""

from __future__ import annotations

from iclbench.backbones.two_path_np import AttentiveSettings, TwoPathNP
from iclbench.layers.encoder_pairs import AttentivePair


class CANP(TwoPathNP[AttentiveSettings]):
    """The published models have 331,906 parameters for Gaussian processes, 414,978 for EMNIST and 465,542 for CelebA.

    Differences from the released code:

    - Masked points are not keys of self-attention; in the released code the pooling encoder ignores the mask.
    - For an empty context, the attention output and the mean are 0; in the released code they are NaN.
    - `pre_depth` sets the depth of the values and of the layers before the mean; `post_depth` sets the depth of
      queries, keys and the layers after the mean. The published settings agree with this; the released code has four
      separate settings.
    - The loss scores the targets; the released code also scores context points (as with `task.context_targets=true`).
    - The standard deviation is computed as in all other models; in the released code it is 0.1 + 0.9 softplus
      (`spread=bounded-0.1`).
    """

    Settings = AttentiveSettings
    Pair = AttentivePair
