"""Checks of a loaded model on a few tokens: whether it is causal, and whether its keys and values, passed back in as a
memory, give the same logits as one forward pass over the complete text. Architectures differ in positions, masks and
caches, and mistakes in their use raise no errors."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.errors import DataError, NonFiniteError

# Maximum difference relative to the largest logit. Rounding errors are smaller, and the effects of wrong positions or
# masks are larger.
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
_TOLERANCE_HALF = 5e-2
_TOKENS = 8


@runtime_checkable
class Model(Protocol):
    """The methods of `LanguageModel` that the checks use."""

    name: str
    model_type: str
    dtype: torch.dtype
    vocabulary: int

    def logits(self, *args: Any, **kwargs: Any) -> Tensor: ...
    def read(self, *args: Any, **kwargs: Any) -> Any: ...
    def greedy(self, *args: Any, **kwargs: Any) -> list[list[int]]: ...


def check_causal(model: Model) -> None:
    """Raise `DataError` if the logits of a model are not finite or depend on later tokens."""
    ids = sample_tokens(model)
    changed_ids = ids.clone()
    changed_ids[0, -1] = ids[0, 0]
    logits, changed_logits = plain_logits(model, ids), plain_logits(model, changed_ids)
    if not bool(logits.isfinite().all()):
        raise DataError(
            f"the logits of '{model.name}' are not finite in {str(model.dtype).removeprefix('torch.')}; pass --dtype "
            "float32, or check whether the checkpoint is damaged",
            code="not-finite",
        )
    if not _is_close(model, logits[:, :-1], changed_logits[:, :-1]):
        raise DataError(
            f"the predictions of '{model.name}' depend on later tokens; give a causal language model, such as GPT-2 or "
            "Llama",
            code="not-applicable",
        )


def can_select_positions(model: Model) -> bool:
    """Return whether the model can compute the logits of selected positions without computing other logits."""
    ids = sample_tokens(model)
    positions = torch.tensor([[5, 2]])
    try:
        selected = model.logits(ids, torch.ones_like(ids, dtype=torch.bool), keep=positions)
    except (TypeError, RuntimeError, IndexError):
        return False
    expected = plain_logits(model, ids)[:, positions[0]]
    return selected.shape == expected.shape and _is_close(model, selected, expected)


def check_logits(logits: Float[Tensor, "B V"]) -> None:
    """Raise `NonFiniteError` if the largest logit is not finite. Other logits may be -inf, which excludes their
    tokens."""
    if not logits.amax(-1).isfinite().all():
        raise NonFiniteError("the model's logits are not finite, so no next token can be chosen")


def can_generate(model: Model) -> bool:
    """Return whether generation with transformers' cache gives the same logits as a forward pass over the complete
    texts. Two rows are tested, because RWKV mixes up rows."""
    half, step_logits = _TOKENS // 2, list[Tensor]()
    ids = sample_tokens(model).view(2, half)
    try:
        new_tokens = model.greedy(ids, 2, lambda answer: False, step_logits.append)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):  # errors of the architecture's code
        return False
    sequence = torch.cat([ids, torch.tensor(new_tokens)[:, :1]], 1)
    return _is_close(model, torch.stack(step_logits, 1), plain_logits(model, sequence)[:, -2:])


def memory_obstacle(model: Model) -> str:
    """Return why the model's keys and values cannot be used as a memory, as a clause; empty if they give the same
    logits as a forward pass over the complete text."""
    ids, half = sample_tokens(model), _TOKENS // 2
    second_half = ids[:, half:].expand(2, -1)
    mask = torch.ones_like(second_half, dtype=torch.bool)
    mask[1, 2:] = False
    try:
        continued = model.logits(second_half, mask, model.read(ids[:, :half]))
    except Exception as error:  # a model with another kind of cache can raise any error
        return f"{model.model_type} cannot continue from keys and values ({type(error).__name__})"
    expected = plain_logits(model, ids)[:, half:]
    if _is_close(model, continued[:1], expected) and _is_close(model, continued[1:, :2], expected[:, :2]):
        return ""
    return f"{model.model_type} gives different predictions from keys and values than from the complete text"


def uses_positions(model: Model) -> bool:
    """Return whether the model's keys depend on the positions that are passed to the model."""
    ids = sample_tokens(model)
    at_zero, at_one = model.read(ids, first=0), model.read(ids, first=1)
    return any(not torch.equal(a, b) for a, b in zip(at_zero.keys, at_one.keys, strict=True))


def sample_tokens(model: Model) -> Int[Tensor, "1 T"]:
    """Return a few tokens that are spread evenly over the vocabulary."""
    return torch.linspace(1, model.vocabulary - 1, _TOKENS).long()[None]


def plain_logits(model: Model, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
    return model.logits(ids, torch.ones_like(ids, dtype=torch.bool))


def _is_close(model: Model, a: Float[Tensor, "B T V"], b: Float[Tensor, "B T V"]) -> bool:
    return bool((a - b).abs().max() <= _TOLERANCE.get(model.dtype, _TOLERANCE_HALF) * b.abs().max())
