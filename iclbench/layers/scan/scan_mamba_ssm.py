"""The selective scan by the CUDA extension of mamba-ssm, `selective_scan_cuda`, where it was built and loads.

Its kernel starts from a zero state and has no gradient through the last state. S tokens at either end give it both:

- before the sequence, the s-th sets state s: B = e_s and dt u = h0, with a dt so small that nothing decays meanwhile;
- after it, the s-th reads state s: C = e_s, and dt = 0 leaves the state as it is.

The former's dt is a power of two, so nothing is rounded. Layouts and the order of the arguments are those of
mamba-ssm's `selective_scan_interface.py`: `(B, D, T)` for u and dt, `(B, 1, S, T)` for B and C. The arithmetic is in
float32. Each direction is one operation for autograd and `torch.compile`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.core.errors import UsageError

_EXTENSION = "selective_scan_cuda"
# exp(_STILL A) is 1 in float32 for every |A| below 2^24.
_STILL = 2.0**-50
# Of the extension: tokens per kept state, and the most states.
_CHUNK, _STATES = 2048, 256


def unavailable() -> str | None:
    """Why this kernel cannot be had here; None where it can.

    That `mamba_ssm` can be imported says nothing; that the extension is found does not say that it loads: it may have
    been built for another torch or CUDA.
    """
    try:
        import_module(_EXTENSION)
    except (ImportError, OSError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == _EXTENSION:
            return f"the extension '{_EXTENSION}' of mamba-ssm is not installed"
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return f"the extension '{_EXTENSION}' of mamba-ssm is found but does not load: {reason}"
    return None


def selective_scan(
    u: Float[Tensor, "B T D"],
    dt: Float[Tensor, "B T D"],
    A: Float[Tensor, "D S"],
    B: Float[Tensor, "B T S"],
    C: Float[Tensor, "B T S"],
    h0: Float[Tensor, "B S D"],
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B S D"]]:
    """`scan.selective_scan` with the kernels of mamba-ssm.

    Raises:
        UsageError: more states than the kernel knows.
    """
    if A.shape[1] > _STATES:
        raise UsageError(
            f"backbone.state={A.shape[1]}: mamba-ssm's kernel has {_STATES} states at most; use backbone.scan=auto"
        )
    y, last, _ = _forward(u, dt, A, B, C, h0)
    return y, last


# Schemas are spelt out: annotations may be rewritten by run-time type checkers.
@torch.library.custom_op(
    "iclbench::selective_scan_mamba_ssm",
    mutates_args=(),
    schema="(Tensor u, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor h0) -> (Tensor, Tensor, Tensor)",
)
def _forward(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, last state, and what the kernel keeps for the way back."""
    out, kept, *_ = import_module(_EXTENSION).fwd(*_extended(u, dt, A, B, C, h0), None, None, None, False)
    _, y, last = _split(out, A.shape[1])
    return y.to(u.dtype).contiguous(), last.contiguous(), kept


@torch.library.custom_op(
    "iclbench::selective_scan_mamba_ssm_backward",
    mutates_args=(),
    schema="(Tensor u, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor h0, Tensor kept, Tensor grad_y, "
    "Tensor grad_last) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _backward(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    h0: Tensor,
    kept: Tensor,
    grad_y: Tensor,
    grad_last: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients of u, dt, A, B, C and h0."""
    grad_out = torch.cat([torch.zeros_like(grad_last), grad_y, grad_last], 1).float().mT.contiguous()
    tokens = _extended(u, dt, A, B, C, h0)
    gradients = import_module(_EXTENSION).bwd(*tokens, None, None, None, grad_out, kept, None, None, False, False)
    grad_u, grad_dt, grad_A, grad_B, grad_C = gradients[:5]
    grad_h0, grad_u, _ = _split(grad_u, A.shape[1])
    grads = (
        grad_u,
        _split(grad_dt, A.shape[1])[1],
        grad_A,
        _split(grad_B.squeeze(1), A.shape[1])[1],
        _split(grad_C.squeeze(1), A.shape[1])[1],
        grad_h0 / _STILL,
    )
    return tuple(g.to(t.dtype).contiguous() for g, t in zip(grads, (u, dt, A, B, C, h0), strict=True))


def _extended(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor) -> tuple[Tensor, ...]:
    """u, dt, A, B, C as the kernel takes them, with the tokens that set and read the state."""
    nothing = torch.zeros_like(h0, dtype=torch.float32)
    unit = torch.eye(A.shape[1], device=A.device).expand(len(u), -1, -1)
    u, dt, B, C = (
        torch.cat(parts, 1).mT.contiguous()
        for parts in (
            [h0.float() / _STILL, u.float(), nothing],
            [torch.full_like(nothing, _STILL), dt.float(), nothing],
            [unit, B.float(), torch.zeros_like(unit)],
            [torch.zeros_like(unit), C.float(), unit],
        )
    )
    return u, dt, A.float().contiguous(), B.unsqueeze(1), C.unsqueeze(1)


def _split(extended: Tensor, states: int) -> tuple[Tensor, Tensor, Tensor]:
    """`(B, X, S + T + S)` as tokens first: those that set the state, the sequence, those that read it."""
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
    kept: Tensor,
    grad_y: Tensor,
    grad_last: Tensor,
) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in (u, dt, A, B, C, h0))


def _remember(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, output[2])


def _differentiate(ctx: Any, grad_y: Tensor, grad_last: Tensor, grad_kept: Tensor) -> tuple[Tensor, ...]:
    return _backward(*ctx.saved_tensors, grad_y, grad_last)


_forward.register_autograd(_differentiate, setup_context=_remember)
