"""Algorithmic tasks on letters and lists of letters, as in Hendel et al. (arXiv 2310.15916)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from string import ascii_lowercase, ascii_uppercase
from typing import Literal

from iclbench.core.settings import BaseSettings
from iclbench.language.tasks.pools import Example, Pool, Reader

LENGTHS = (2, 3, 4)
# Number of lists of each length. Only 676 lists of two letters exist.
LISTS = 600


class GeneratedParameters(BaseSettings):
    """Parameters of the reader `generated`; `kind` is the task."""

    kind: Literal["to-upper", "to-lower", "next-letter", "previous-letter", "list-first", "list-last"]


class Generated(Reader):
    """Generates the examples. Each example can be a query or a demonstration."""

    Parameters = GeneratedParameters

    def read(self, subset: str | None = None) -> Pool:
        inputs, answer = _KINDS[self.parameters.kind]
        examples = tuple(Example(x, answer(x)) for x in inputs())
        return Pool(examples, examples)


def _lists() -> Iterator[str]:
    """Yield distinct lists of letters, separated by commas. As in the released code, all lengths are equally frequent,
    and letters may repeat within a list."""
    # These imports are slow, and commands that only list tasks do not need them.
    import numpy as np

    from iclbench.core.seeds import stream_seed

    rng = np.random.default_rng(stream_seed(0, "language-lists"))
    for length in LENGTHS:
        lists: dict[str, None] = {}
        while len(lists) < LISTS:
            lists.setdefault(",".join(ascii_lowercase[i] for i in rng.integers(26, size=length)))
        yield from lists


# The inputs of each task, and the function that gives the correct answer.
_KINDS: dict[str, tuple[Callable[[], Iterator[str]], Callable[[str], str]]] = {
    "to-upper": (lambda: iter(ascii_lowercase), str.upper),
    "to-lower": (lambda: iter(ascii_uppercase), str.lower),
    "next-letter": (lambda: iter(ascii_lowercase[:-1]), lambda x: chr(ord(x) + 1)),
    "previous-letter": (lambda: iter(ascii_lowercase[1:]), lambda x: chr(ord(x) - 1)),
    "list-first": (_lists, lambda x: x.split(",")[0]),
    "list-last": (_lists, lambda x: x.split(",")[-1]),
}
