"""Tokenised texts, with the position in the text at which each token ends.

If the tokenizer adds a beginning-of-text token, each text has exactly one. No end-of-text token is added, because the
answer follows the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from iclbench.core.errors import DataError


@dataclass(frozen=True)
class Tokens:
    """The tokens of a text.

    Attributes:
        ids: token ids.
        ends: for each token, the number of characters of the text up to the end of the token; 0 for a beginning-of-text
            token. If a character consists of several tokens, all of them end after this character.
    """

    ids: tuple[int, ...]
    ends: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)


class Tokenizer:
    """A tokenizer of transformers.

    Raises:
        DataError: the tokenizer does not give character offsets. When it is called, the text has a token for which the
            model has no embedding.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, name: str) -> None:
        """Wrap a tokenizer.

        Args:
            tokenizer: a fast tokenizer of transformers.
            vocabulary: number of token embeddings of the model.
            name: name of the model, for error messages.
        """
        if not tokenizer.is_fast:
            raise DataError(
                f"the tokenizer of '{name}' does not give character offsets; give a checkpoint with a tokenizer.json",
                code="not-supported",
            )
        self._tokenizer, self._vocabulary, self._name = tokenizer, vocabulary, name
        self._backend = tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()

    def __call__(self, text: str) -> Tokens:
        encoding = self._backend.encode(text)
        all_ids, offsets = encoding.ids, encoding.offsets  # read once, since each access copies the list
        is_special = [bool(a) for a in encoding.special_tokens_mask]
        n_opening = is_special.index(False) if False in is_special else len(is_special)
        body = [i for i, special in enumerate(is_special) if not special]
        if not body:  # for an empty text, beginning and end tokens cannot be distinguished
            bos = self._tokenizer.bos_token_id
            return Tokens((bos,), (0,)) if bos is not None and bos in all_ids[:1] else Tokens((), ())
        opening_ids = all_ids[:n_opening]
        if opening_ids and all_ids[body[0]] == opening_ids[-1]:  # the text already begins with the opening token
            opening_ids = opening_ids[:-1]
        ids = (*opening_ids, *(all_ids[i] for i in body))
        if max(ids) >= self._vocabulary:
            raise DataError(
                f"the tokenizer of '{self._name}' uses token {max(ids)}, but the model has {self._vocabulary} token "
                "embeddings; give a checkpoint with a matching tokenizer",
                code="unreadable-file",
            )
        return Tokens(ids, (*[0] * len(opening_ids), *(offsets[i][1] for i in body)))

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of these tokens, without special tokens."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
