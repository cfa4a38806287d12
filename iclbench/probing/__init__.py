"""Probes of trained backbones: every layer compared with gradient descent (Grazzi et al. 2024, section 3.2), the rank
of the predictions and the sample representation (CoQE, theorem 3.10 and figure 6)."""
