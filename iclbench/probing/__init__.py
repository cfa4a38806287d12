"""Probes of trained backbones: comparison of layers with gradient descent (Grazzi et al. 2024, section 3.2), rank of
the predictions, and sample representation (CoQE, theorem 3.10 and figure 6)."""
