"""The selective scan with the CUDA extension of mamba-ssm, `selective_scan_cuda`.

The kernel starts from a zero state and computes no gradient through the last state. S additional tokens at each end of
the sequence provide an initial state and this gradient:

- before the sequence, the s-th token sets state s: B = e_s and dt u = h0, with a dt so small that the state does not
  decay in float32;
- after the sequence, the s-th token reads state s: C = e_s, and with dt = 0 the state does not change.

The small dt is a power of two, so that it causes no rounding. Layouts and the order of the arguments are those of
mamba-ssm's `selective_scan_interface.py`: `(B, D, T)` for u and dt, `(B, 1, S, T)` for B and C. The arithmetic is in
float32. The forward pass and the backward pass are each one operation for autograd and `torch.compile`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.core.errors import UsageError

_EXTENSION = "selective_scan_cuda"
# exp(_TINY_STEP A) is 1 in float32 for every |A| below 2^24.
_TINY_STEP = 2.0**-50
# Constants of the extension: tokens per saved state, and the largest number of states.
_CHUNK, _MAX_STATES = 2048, 256


def unavailable() -> str | None:
    """Return the reason why this kernel is not available; None if it is available.

    The package `mamba_ssm` can be imported without its extension, and an extension that was built for another version
    of torch or CUDA does not load.
    """
    try:
        import_module(_EXTENSION)
    except (ImportError, OSError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == _EXTENSION:
            return f"the extension '{_EXTENSION}' of mamba-ssm is not installed"
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return f"the extension '{_EXTENSION}' of mamba-ssm does not load: {reason}"
    return None


def selective_scan(
    u: Float[Tensor, "B T D"],
    dt: Float[Tensor, "B T D"],
    A: Float[Tensor, "D S"],
    B: Float[Tensor, "B T S"],
    C: Float[Tensor, "B T S"],
    h0: Float[Tensor, "B S D"],
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B S D"]]:
    """Run `scan.selective_scan` with the kernels of mamba-ssm.

    Raises:
        UsageError: the state is larger than the kernel supports.
    """
    if A.shape[1] > _MAX_STATES:
        raise UsageError(
            f"backbone.state={A.shape[1]}: mamba-ssm's kernel supports at most {_MAX_STATES} states; use "
            "backbone.scan=auto",
            code="not-supported",
        )
    y, last, _ = _forward(u, dt, A, B, C, h0)
    return y, last


# Schemas are explicit, because run-time type checkers may change annotations.
@torch.library.custom_op(
    "iclbench::selective_scan_mamba_ssm",
    mutates_args=(),
    schema="(Tensor u, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor h0) -> (Tensor, Tensor, Tensor)",
)
def _forward(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs, the last state, and the tensor that the kernel saves for the backward pass."""
    out, saved, *_ = import_module(_EXTENSION).fwd(*_add_state_tokens(u, dt, A, B, C, h0), None, None, None, False)
    _, y, last = _split(out, A.shape[1])
    return y.to(u.dtype).contiguous(), last.contiguous(), saved


@torch.library.custom_op(
    "iclbench::selective_scan_mamba_ssm_backward",
    mutates_args=(),
    schema="(Tensor u, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor h0, Tensor saved, Tensor grad_y, "
    "Tensor grad_last) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _backward(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    h0: Tensor,
    saved: Tensor,
    grad_y: Tensor,
    grad_last: Tensor,
) -> tuple[Tensor, ...]:
    """Return the gradients of u, dt, A, B, C and h0."""
    grad_out = torch.cat([torch.zeros_like(grad_last), grad_y, grad_last], 1).float().mT.contiguous()
    tokens = _add_state_tokens(u, dt, A, B, C, h0)
    gradients = import_module(_EXTENSION).bwd(*tokens, None, None, None, grad_out, saved, None, None, False, False)
    grad_u, grad_dt, grad_A, grad_B, grad_C = gradients[:5]
    grad_h0, grad_u, _ = _split(grad_u, A.shape[1])
    grads = (
        grad_u,
        _split(grad_dt, A.shape[1])[1],
        grad_A,
        _split(grad_B.squeeze(1), A.shape[1])[1],
        _split(grad_C.squeeze(1), A.shape[1])[1],
        grad_h0 / _TINY_STEP,
    )
    return tuple(g.to(t.dtype).contiguous() for g, t in zip(grads, (u, dt, A, B, C, h0), strict=True))


def _add_state_tokens(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor) -> tuple[Tensor, ...]:
    """Return u, dt, A, B and C in the kernel's layout, with additional tokens that set and read the state."""
    zeros = torch.zeros_like(h0, dtype=torch.float32)
    unit = torch.eye(A.shape[1], device=A.device).expand(len(u), -1, -1)
    u, dt, B, C = (
        torch.cat(pieces, 1).mT.contiguous()
        for pieces in (
            [h0.float() / _TINY_STEP, u.float(), zeros],
            [torch.full_like(zeros, _TINY_STEP), dt.float(), zeros],
            [unit, B.float(), torch.zeros_like(unit)],
            [torch.zeros_like(unit), C.float(), unit],
        )
    )
    return u, dt, A.float().contiguous(), B.unsqueeze(1), C.unsqueeze(1)


def _split(extended: Tensor, states: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split `(B, X, S + T + S)` into three tensors `(B, tokens, X)`: the tokens that set the state, the sequence, and
    the tokens that read the state."""
    start, middle, end = extended.mT.tensor_split([states, extended.shape[2] - states], 1)
    return start, middle, end


@_forward.register_fake
def _(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    states = A.shape[1]
    chunks = -(-(u.shape[1] + 2 * states) // _CHUNK)
    y = torch.empty_like(u, memory_format=torch.contiguous_format)
    last = torch.empty_like(h0, dtype=torch.float32, memory_format=torch.contiguous_format)
    return y, last, last.new_empty(len(u), u.shape[2], chunks, 2 * states)


@_backward.register_fake
def _(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    h0: Tensor,
    saved: Tensor,
    grad_y: Tensor,
    grad_last: Tensor,
) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in (u, dt, A, B, C, h0))


def _setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, output[2])


def _differentiate(ctx: Any, grad_y: Tensor, grad_last: Tensor, grad_saved: Tensor) -> tuple[Tensor, ...]:
    return _backward(*ctx.saved_tensors, grad_y, grad_last)


_forward.register_autograd(_differentiate, setup_context=_setup_context)
