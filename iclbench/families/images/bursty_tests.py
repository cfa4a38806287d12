"""The tests of bursty sequences in words.

A query can be answered from the labels in context (in context) or from the labels that its class had all through
training (in weights). The tests are those of Chan et al. 2022 (arXiv 2205.05055) and of the bursty protocol.
"""

from __future__ import annotations

from iclbench.core.meaning import Meaning

_ONE_LABEL = "1 / training labels"

ICL = Meaning(
    "ICL",
    "classes never trained, four images of each of two, labelled at random: only the context can tell",
    0.5,
    "1/2",
)
ICL_PAIRED = Meaning(
    "ICL, paired",
    "each ICL sequence a second time with its two labels exchanged; right only if both are. Repeating the label of "
    "one place in the context, whatever the images, gets 1/2",
    0.25,
    "1/4",
    finer=True,
)
IWL = Meaning("IWL", "no context image of the query's class: only the weights can tell", None, _ONE_LABEL)
IWL_MACRO = Meaning("IWL, macro", "IWL with every class asked equally often", None, _ONE_LABEL, finer=True)
IWL_COMMON = Meaning("IWL, common", "IWL of the most frequent classes", None, _ONE_LABEL, finer=True)
IWL_RARE = Meaning("IWL, rare", "IWL of all other classes", None, _ONE_LABEL, finer=True)
IWL_NEW_DRAWINGS = Meaning(
    "IWL, new drawings", "IWL by drawings that were kept from training", None, _ONE_LABEL, finer=True
)
FLIP = Meaning(
    "flip",
    "trained classes with the two labels exchanged: above 1/2 the context wins, below it the weights",
    0.5,
    "1/2",
    finer=True,
)
