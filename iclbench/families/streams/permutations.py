"""Groups of all permutations of a few objects, whose elements are numbered in lexicographic order.

Element 0 is the identity. The product of two elements is the permutation that applies the first element and then the
second one.
"""

from __future__ import annotations

from functools import cache
from itertools import permutations

import torch
from jaxtyping import Float, Int
from torch import Tensor

IDENTITY = 0


@cache
def elements(objects: int) -> list[tuple[int, ...]]:
    """Return all permutations. A permutation p moves the object at place i to place p[i]."""
    return list(permutations(range(objects)))


def adjacent_transpositions(objects: int) -> list[int]:
    """Return the numbers of the elements that swap two neighbouring places. They generate the group."""
    places = list(range(objects))
    swaps = [(*places[:i], i + 1, i, *places[i + 2 :]) for i in range(objects - 1)]
    return [elements(objects).index(swap) for swap in swaps]


@cache
def multiplication_table(objects: int, device: torch.device) -> Int[Tensor, "K K"]:
    """Return the products of all pairs of elements. Entry (a, b) applies a first."""
    number = {element: index for index, element in enumerate(elements(objects))}
    rows = [[number[tuple(b[place] for place in a)] for b in number] for a in number]
    return torch.tensor(rows, device=device)


def running_products(tokens: Int[Tensor, "B N"], objects: int) -> Int[Tensor, "B N_and_1"]:
    """Return the products of the first 0, 1, ..., N elements of each word."""
    table = multiplication_table(objects, tokens.device)
    products = [tokens.new_full((len(tokens),), IDENTITY)]
    for element in tokens.T.contiguous():
        index = torch.add(element, products[-1], alpha=len(table))
        products.append(table.flatten().index_select(0, index))
    return torch.stack(products, 1)


def word_distributions(generators: list[int], length: int, objects: int) -> Float[Tensor, "length_and_1 K"]:
    """Return the distributions of the products of 0, 1, ..., `length` independent uniform generators, in float64."""
    table = multiplication_table(objects, torch.device("cpu"))
    # The predecessor of element a under a generator is the element whose product with the generator is a.
    # Multiplication by a generator permutes the elements, so `argsort` of its column of the table gives predecessors.
    predecessors = table[:, generators].argsort(0)
    rows = [torch.zeros(len(table), dtype=torch.float64)]
    rows[0][IDENTITY] = 1
    for _ in range(length):
        rows.append(rows[-1][predecessors].mean(1))
    return torch.stack(rows)
