"""Backbones: trainable architectures, one file each, and their base classes. Their layers are in `iclbench.layers`.

The letters in all signatures have these meanings:

    B episodes            N context points      Q targets           J related datasets
    T tokens              D width               H heads             L layers
    M pseudo-tokens or latents                  Dx, Dy input and output dimension
"""
