"""Embeddings of class labels for models that read labels as tokens."""

from __future__ import annotations

from torch import nn

# As in the code of Chan et al. 2022 (modules/embedding.py) and of CoQE. With PyTorch's standard deviation of 1, the
# label dominates its token, models memorise the meaning of each label, and in-context learning does not emerge.
INITIAL_STD = 0.02


def label_embedding(classes: int, width: int) -> nn.Embedding:
    """Create an embedding with one vector per class, drawn from a normal distribution with standard deviation
    `INITIAL_STD` that is truncated at two standard deviations."""
    embedding = nn.Embedding(classes, width)
    nn.init.trunc_normal_(embedding.weight, std=INITIAL_STD, a=-2 * INITIAL_STD, b=2 * INITIAL_STD)
    return embedding
