"""Texts as tokens, with the character at which each token ends.

Exactly one token of beginning where the tokenizer has that habit, none of end: what follows a prompt is its answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from iclbench.core.errors import DataError


@dataclass(frozen=True)
class Tokens:
    """A text in tokens.

    Attributes:
        ids: numbers of the tokens.
        ends: how many characters of the text each token and those before it spell; 0 for one that opens the text. The
            pieces of a character that takes several tokens all end behind it.
    """

    ids: tuple[int, ...]
    ends: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)


class Tokenizer:
    """A tokenizer of transformers.

    Raises:
        DataError: it cannot say where in the text a token ends, or the model knows fewer tokens than it.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, name: str) -> None:
        """`vocabulary`: how many tokens the model has embeddings of."""
        if not tokenizer.is_fast:
            raise DataError(
                f"the tokenizer of '{name}' does not say where in a text its tokens end; give a checkpoint that has a "
                "tokenizer.json"
            )
        self._tokenizer, self._vocabulary, self._name = tokenizer, vocabulary, name
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()

    def __call__(self, text: str) -> Tokens:
        encoding = self._backend.encode(text)
        all_ids, offsets = encoding.ids, encoding.offsets  # each a list of its own whenever it is asked for
        is_special = [bool(a) for a in encoding.special_tokens_mask]
        opening = is_special.index(False) if False in is_special else len(is_special)
        body = [i for i, special in enumerate(is_special) if not special]
        if not body:  # the beginning and the end of an empty text are the same
            bos = self._tokenizer.bos_token_id
            return Tokens((bos,), (0,)) if bos is not None and bos in all_ids[:1] else Tokens((), ())
        opening_ids = all_ids[:opening]
        if opening_ids and all_ids[body[0]] == opening_ids[-1]:  # the text brings its own
            opening_ids = opening_ids[:-1]
        ids = (*opening_ids, *(all_ids[i] for i in body))
        if max(ids) >= self._vocabulary:
            raise DataError(
                f"the tokenizer of '{self._name}' has a token {max(ids)} and its model knows {self._vocabulary}; they "
                "do "
                "not belong together"
            )
        return Tokens(ids, (*[0] * len(opening_ids), *(offsets[i][1] for i in body)))

    def text(self, ids: Sequence[int]) -> str:
        """The text of these tokens, without tokens of beginning and end."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
