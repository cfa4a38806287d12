"""The conditional neural process of the BNP and TNP releases, which tables of that family call CNP: two pooled encoders
side by side where Garnelo et al. 2018 (`cnp`) have one."""

from __future__ import annotations

from iclbench.backbones.pooled_np import PooledNP
from iclbench.backbones.two_path_np import TwoPathSettings


class TwoPathCNP(PooledNP[TwoPathSettings]):
    """Published sizes have 215,682 parameters for Gaussian processes, 298,626 for EMNIST and 349,190 for CelebA.

    What differs from the released code:

    - The mean of no point is 0; there it is not a number.
    - Loss: of the targets. There context points are asked, too: `task.context_targets=true`.
    - Standard deviation: that of all models here. There 0.1 + 0.9 softplus: `spread=bounded-0.1`.
    """

    Settings = TwoPathSettings
