"""Letters and lists of letters, as in Hendel et al. (arXiv 2310.15916): tasks whose answers code can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from string import ascii_lowercase, ascii_uppercase
from typing import Literal

from iclbench.core.settings import BaseSettings
from iclbench.language.tasks.pools import Example, Pool, Reader

LENGTHS = (2, 3, 4)
# Of every length; there are 676 of two letters.
LISTS = 600


class GeneratedParameters(BaseSettings):
    kind: Literal["to-upper", "to-lower", "next-letter", "previous-letter", "list-first", "list-last"]


class Generated(Reader):
    """Every input is a possible query and a possible demonstration."""

    Parameters = GeneratedParameters

    def read(self, subset: str | None = None) -> Pool:
        inputs, answer = _KINDS[self.parameters.kind]
        examples = tuple(Example(x, answer(x)) for x in inputs())
        return Pool(examples, examples)


def _lists() -> Iterator[str]:
    """Different lists with commas; lengths are equally frequent, letters may come again, as in the released code."""
    # Imported here, so that listing tasks needs neither.
    import numpy as np

    from iclbench.core.seeds import stream_seed

    rng = np.random.default_rng(stream_seed(0, "language-lists"))
    for length in LENGTHS:
        lists: dict[str, None] = {}
        while len(lists) < LISTS:
            lists.setdefault(",".join(ascii_lowercase[i] for i in rng.integers(26, size=length)))
        yield from lists


# Inputs of every kind, and what is right.
_KINDS: dict[str, tuple[Callable[[], Iterator[str]], Callable[[str], str]]] = {
    "to-upper": (lambda: iter(ascii_lowercase), str.upper),
    "to-lower": (lambda: iter(ascii_uppercase), str.lower),
    "next-letter": (lambda: iter(ascii_lowercase[:-1]), lambda x: chr(ord(x) + 1)),
    "previous-letter": (lambda: iter(ascii_lowercase[1:]), lambda x: chr(ord(x) - 1)),
    "list-first": (_lists, lambda x: x.split(",")[0]),
    "list-last": (_lists, lambda x: x.split(",")[-1]),
}
