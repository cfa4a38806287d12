"""What a model shows of itself on a handful of tokens when it is loaded: that it is causal, and whether its memory,
read out and put back, gives the logits of one plain pass. Architectures differ in positions, masks and caches, and
mistakes there are silent."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.errors import DataError, NonFiniteError

# Largest difference relative to the largest logit: two ways of computing the same differ by rounding, a wrong position
# or mask by more.
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
_TOLERANCE_HALF = 5e-2
_TOKENS = 8


class Model(Protocol):
    """The methods of `LanguageModel` that the checks use."""

    name: str
    model_type: str
    dtype: torch.dtype
    vocabulary: int

    def logits(self, *args: Any, **kwargs: Any) -> Tensor: ...
    def read(self, *args: Any, **kwargs: Any) -> Any: ...
    def greedy(self, *args: Any, **kwargs: Any) -> list[list[int]]: ...


def causal(model: Model) -> None:
    """Raises `DataError` where logits are not finite, or change with a token that follows."""
    ids = sample(model)
    changed = ids.clone()
    changed[0, -1] = ids[0, 0]
    logits, changed_logits = plain(model, ids), plain(model, changed)
    if not bool(logits.isfinite().all()):
        raise DataError(
            f"'{model.name}' gives numbers that are not finite in {str(model.dtype).removeprefix('torch.')}; give "
            "--dtype float32, or the checkpoint is damaged"
        )
    if not _is_close(model, logits[:, :-1], changed_logits[:, :-1]):
        raise DataError(
            f"'{model.name}' sees the tokens behind the one that it predicts; give a causal language model, such as "
            "GPT-2 or Llama"
        )


def keeps(model: Model) -> bool:
    """Whether logits at chosen places can be had without the others."""
    ids = sample(model)
    places = torch.tensor([[5, 2]])
    try:
        selected = model.logits(ids, torch.ones_like(ids, dtype=torch.bool), keep=places)
    except (TypeError, RuntimeError, IndexError):
        return False
    expected = plain(model, ids)[:, places[0]]
    return selected.shape == expected.shape and _is_close(model, selected, expected)


def choosable(logits: Float[Tensor, "B V"]) -> None:
    """Raises `NonFiniteError` where there is no most probable token; single ones may be -inf, which rules them out."""
    if not logits.amax(-1).isfinite().all():
        raise NonFiniteError("the model's logits are not finite: there is no next token")


def generates(model: Model) -> bool:
    """Whether transformers' cache gives the logits of one plain pass, to each of two rows (RWKV's mixes them up)."""
    half, step_logits = _TOKENS // 2, list[Tensor]()
    ids = sample(model).view(2, half)
    try:
        written = model.greedy(ids, 2, lambda answer: False, step_logits.append)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):  # an architecture's own code
        return False
    sequence = torch.cat([ids, torch.tensor(written)[:, :1]], 1)
    return _is_close(model, torch.stack(step_logits, 1), plain(model, sequence)[:, -2:])


def memory(model: Model) -> str:
    """Why the model's memory cannot be used, as a clause; empty: it gives the logits of one plain pass."""
    ids, half = sample(model), _TOKENS // 2
    late = ids[:, half:].expand(2, -1)
    mask = torch.ones_like(late, dtype=torch.bool)
    mask[1, 2:] = False
    try:
        continued = model.logits(late, mask, model.read(ids[:, :half]))
    except Exception as error:  # whatever a model does that has a cache of another kind
        return f"{model.model_type} cannot go on from keys and values ({type(error).__name__})"
    expected = plain(model, ids)[:, half:]
    if _is_close(model, continued[:1], expected) and _is_close(model, continued[1:, :2], expected[:, :2]):
        return ""
    return f"{model.model_type} predicts something else from keys and values than from the whole text"


def placed(model: Model) -> bool:
    """Whether what is remembered depends on the positions that are given."""
    ids = sample(model)
    at_zero, at_one = model.read(ids, first=0), model.read(ids, first=1)
    return any(not torch.equal(a, b) for a, b in zip(at_zero.keys, at_one.keys, strict=True))


def sample(model: Model) -> Int[Tensor, "1 T"]:
    """Different tokens from all over the vocabulary."""
    return torch.linspace(1, model.vocabulary - 1, _TOKENS).long()[None]


def plain(model: Model, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
    return model.logits(ids, torch.ones_like(ids, dtype=torch.bool))


def _is_close(model: Model, a: Float[Tensor, "B T V"], b: Float[Tensor, "B T V"]) -> bool:
    return bool((a - b).abs().max() <= _TOLERANCE.get(model.dtype, _TOLERANCE_HALF) * b.abs().max())
