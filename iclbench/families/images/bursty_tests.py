"""Names and descriptions of the tests of bursty sequences.

A model can answer a query from the labels in context (in-context learning) or from the label of the class in training
(in-weight learning). Some tests are those of Chan et al. 2022 (arXiv 2205.05055); all are described in
`iclbench.families.images.bursty`, and those of vectors in `iclbench.families.bursty_vectors`.
"""

from __future__ import annotations

from iclbench.core.meaning import Meaning

_CHANCE_OF_TRAINING_LABELS = "1 / training labels"

ICL = Meaning(
    "ICL",
    "four items of each of two new classes, labelled at random: the labels are only in the context",
    0.5,
    "1/2",
)
ICL_PAIRED = Meaning(
    "ICL, paired",
    "each ICL sequence is repeated with its two labels exchanged, and a pair is right only if both answers are. "
    "Repeating the label at a fixed position of the context scores 1/2",
    0.25,
    "1/4",
    finer=True,
)
IWL = Meaning(
    "IWL",
    "no item in the context has the class of the query: the label is only in the weights",
    None,
    _CHANCE_OF_TRAINING_LABELS,
)
IWL_MACRO = Meaning(
    "IWL, macro", "IWL with all classes equally frequent as queries", None, _CHANCE_OF_TRAINING_LABELS, finer=True
)
IWL_COMMON = Meaning("IWL, common", "IWL of the most frequent classes", None, _CHANCE_OF_TRAINING_LABELS, finer=True)
IWL_RARE = Meaning(
    "IWL, rare", "IWL of all except the most frequent classes", None, _CHANCE_OF_TRAINING_LABELS, finer=True
)
IWL_NEW_DRAWINGS = Meaning(
    "IWL, new drawings", "IWL on drawings that were not used in training", None, _CHANCE_OF_TRAINING_LABELS, finer=True
)
FLIP = Meaning(
    "flip",
    "two trained classes with exchanged labels: above 1/2 the model follows the context, below 1/2 its weights",
    0.5,
    "1/2",
    finer=True,
)
