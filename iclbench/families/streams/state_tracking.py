"""State tracking: the running product of a word over a group, one token per element of the group.

The groups are all permutations of two objects (Z2, whose words are parities of bits), three objects (S3) or five
objects (S5). After each token, a model predicts the product of all tokens so far, which is the identity before the
first token. Products of words over S5 are complete for NC1, so Transformers and linear state-space models, which are in
TC0, cannot compute them at all lengths unless TC0 = NC1 (Merrill et al. 2024, arXiv 2404.08819). Linear recurrences of
finite precision cannot compute parities if all eigenvalues of their transitions are positive (Grazzi et al. 2024, arXiv
2411.12537).

In other streams, the next element is predicted. Here, the prediction after n tokens is a label of these n tokens, and
labels are not elements of the stream. This needs no new question: with the question `next`, `Episodes.targets` contains
one query per prefix, and the labels are the outputs of these queries. The context contains only tokens, so models never
read a product. With products in the context, the task would be trivial, since the next product depends only on the last
product and the next token.

Tokens are numbers of elements of the group, as in the released code of Merrill et al. and of Siems et al. (2025,
DeltaProduct, arXiv 2502.10297).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from iclbench.core.episodes import Episodes, Points
from iclbench.core.settings import BaseSettings
from iclbench.families.request import Request
from iclbench.families.streams.base import ProbeTarget, StreamFamily
from iclbench.families.streams.permutations import adjacent_transpositions, running_products

# Number of permuted objects of each group.
OBJECTS = {"Z2": 2, "S3": 3, "S5": 5}


class StateTrackingParameters(BaseSettings):
    """The group and the elements that are tokens.

    Attributes:
        group: all permutations of two (`Z2`), three (`S3`) or five (`S5`) objects.
        generators: all elements of the group (`all`), or only those that swap two neighbouring places (`adjacent`).
            Tokens are independent and uniform over these elements.
    """

    group: Literal["Z2", "S3", "S5"] = "S3"
    generators: Literal["all", "adjacent"] = "all"


class StateTracking(StreamFamily):
    """Sequences of tokens with one label per prefix, the product of the tokens of the prefix; the question is `next`.

    `targets.y[:, n]` is the product of the first n tokens, and all prefixes except the empty one are scored. Tokens and
    products have the same numbers. `truth["products"]` contains the products of 0, 1, ..., N tokens. Longer words start
    with the same tokens as shorter words from the same generator.

    With adjacent transpositions, the number of tokens determines the sign of the product, so half of the elements are
    excluded. In Z2, there is only one adjacent transposition, so all words of a length are equal.
    """

    Parameters = StateTrackingParameters
    predicts_labels = True
    oracles = frozenset({"oracle-product"})
    parameters: StateTrackingParameters

    def __init__(self, parameters: StateTrackingParameters, data_dir: Path | None = None) -> None:
        super().__init__(parameters, data_dir)
        self.objects = OBJECTS[parameters.group]
        self.classes: int = math.factorial(self.objects)

    @property
    def generators(self) -> list[int]:
        """The elements that are tokens."""
        if self.parameters.generators == "adjacent":
            return adjacent_transpositions(self.objects)
        return list(range(self.classes))

    def probe_targets(self, episodes: Episodes, elements: int, shift: str = "none") -> dict[str, ProbeTarget]:
        """Return the targets `product`, which is the product of the first tokens, and `previous_element`."""
        product = ProbeTarget.of_all(episodes.truth["products"][:, elements])
        return {"product": product, **super().probe_targets(episodes, elements, shift)}

    def sample(self, request: Request) -> Episodes:
        self.parse_shift(request.shift)
        generator, shape = request.generator, (request.points, request.episodes)
        index = torch.randint(len(self.generators), shape, generator=generator, device=generator.device)
        tokens = torch.tensor(self.generators, device=generator.device)[index].T.contiguous()
        products = running_products(tokens, self.objects)
        context = _points(tokens)
        scored = context.mask.clone()
        scored[:, 0] = False
        return Episodes(
            context=context,
            targets=_points(products[:, :-1]),
            scored=scored,
            classes=self.classes,
            truth={"products": products},
        )


def _points(y: Tensor) -> Points:
    return Points.full(torch.empty((*y.shape, 0), device=y.device), y)
