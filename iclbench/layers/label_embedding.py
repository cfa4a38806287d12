"""Embeddings of class labels for models that read labels as tokens."""

from __future__ import annotations

from torch import nn

# Of the code of Chan et al. 2022 (modules/embedding.py) and, after it, of CoQE. With PyTorch's 1 the label is most of
# its token's vector, models memorise what each label means, and no in-context learning emerges.
START_STD = 0.02


def label_embedding(classes: int, width: int) -> nn.Embedding:
    """A vector per class, from a normal distribution of standard deviation `START_STD`, truncated at two of them."""
    embedding = nn.Embedding(classes, width)
    nn.init.trunc_normal_(embedding.weight, std=START_STD, a=-2 * START_STD, b=2 * START_STD)
    return embedding
