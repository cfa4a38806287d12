"""Layer-wise linear probes of trained backbones, beside gradient descent (Grazzi et al. 2024, section 3.2)."""
