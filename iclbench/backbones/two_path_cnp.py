"""The conditional neural process of the BNP and TNP releases, which their tables call CNP. It has two pooling encoders,
whereas the CNP of Garnelo et al. 2018 (`cnp`) has one."""

from __future__ import annotations

from iclbench.backbones.pooled_np import PooledNP
from iclbench.backbones.two_path_np import TwoPathSettings


class TwoPathCNP(PooledNP[TwoPathSettings]):
    """The published models have 215,682 parameters for Gaussian processes, 298,626 for EMNIST and 349,190 for CelebA.

    Differences from the released code:

    - The mean over an empty set is 0; in the released code it is NaN.
    - The loss scores the targets; the released code also scores context points (as with `task.context_targets=true`).
    - The standard deviation is computed as in all other models; in the released code it is 0.1 + 0.9 softplus
      (`spread=bounded-0.1`).
    """

    Settings = TwoPathSettings
