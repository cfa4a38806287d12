"""Bootstrapping neural process (Lee et al. 2020): bootstraps of the two-path CNP."""

from __future__ import annotations

from iclbench.backbones.bootstrap_np import BootstrapNP, BootstrapSettings


class BNP(BootstrapNP[BootstrapSettings]):
    """The published models have 248,450 parameters for Gaussian processes, 331,394 for EMNIST and 381,958 for CelebA.

    Differences from the released code:

    - Indices are drawn for points in their canonical order, and predictions use fixed random numbers; the released code
      draws new numbers each time.
    - The mean over an empty set is 0; in the released code it is NaN.
    - The loss scores the targets; the released code also scores context points (as with `task.context_targets=true`).
    - The standard deviation is computed as in all other models; in the released code it is 0.1 + 0.9 softplus
      (`spread=bounded-0.1`).
    - Heads other than the Gaussian are available (see `bootstrap_np`).
    """

    Settings = BootstrapSettings
