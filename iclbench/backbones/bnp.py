"""Bootstrapping neural process (Lee et al. 2020): bootstraps of the two-path CNP."""

from __future__ import annotations

from iclbench.backbones.bootstrap_np import BootstrapNP, BootstrapSettings


class BNP(BootstrapNP[BootstrapSettings]):
    """Published sizes have 248,450 parameters for Gaussian processes, 331,394 for EMNIST and 381,958 for CelebA.

    What differs from the released code:

    - Points are in an order of their own before indices are drawn, and those of answers are drawn by fixed numbers;
      there by new numbers each time.
    - The mean of no point is 0; there it is not a number.
    - Loss: of the targets. There context points are asked, too: `task.context_targets=true`.
    - Standard deviation: that of all models here. There 0.1 + 0.9 softplus: `spread=bounded-0.1`.
    - Heads other than one Gaussian, which are not there: see the head of `bootstrap_np`.
    """

    Settings = BootstrapSettings
