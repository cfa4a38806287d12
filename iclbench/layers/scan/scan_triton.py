"""The selective scan as Triton kernels, for CUDA.

The forward pass and the backward pass launch one kernel per chunk of at most 128 tokens, and the host passes the state
from chunk to chunk. The inputs and the states between chunks are saved for the backward pass. The backward pass does
not use atomic additions, so that equal inputs give bit-identical gradients. Inputs may have any floating type; the
arithmetic is in float32. Each of the two passes is one operation for autograd and `torch.compile`.

For tests, the kernels also run on a CPU, slowly, if `TRITON_INTERPRET=1` is set before Triton is imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

# Channels and warps per program, tokens per chunk.
CHANNELS, WARPS, CHUNK = 8, 4, 128
# Smallest number of tokens in a block. Blocks are powers of two, so that few kernels are compiled.
_SHORTEST = 16


def unavailable() -> str | None:
    """Return the reason why these kernels are not available; None if they are available."""
    if find_spec("triton") is None:
        return "triton is not installed"
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        return "no CUDA device is available"
    return None


def selective_scan(
    u: Float[Tensor, "B T D"],
    dt: Float[Tensor, "B T D"],
    A: Float[Tensor, "D S"],
    B: Float[Tensor, "B T S"],
    C: Float[Tensor, "B T S"],
    h0: Float[Tensor, "B S D"],
    *,
    channels: int = CHANNELS,
    warps: int = WARPS,
    chunk: int = CHUNK,
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B S D"]]:
    """Run `scan.selective_scan` with the Triton kernels of iclbench.

    Args:
        u, dt, A, B, C, h0: as in `scan.selective_scan`.
        channels: number of channels per program, a power of two.
        warps: number of warps per program, a power of two.
        chunk: largest number of tokens per launch, a power of two.
    """
    y, last, _ = _forward(u, dt, A, B, C, h0, channels, warps, chunk)
    return y, last


# Schemas are explicit, because run-time type checkers may change annotations.
@torch.library.custom_op(
    "iclbench::selective_scan_triton",
    mutates_args=(),
    schema="(Tensor u, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor h0, int channels, int warps, int chunk) -> "
    "(Tensor, Tensor, Tensor)",
)
def _forward(
    u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor, channels: int, warps: int, chunk: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs, the last state, and the states between chunks as `(chunks - 1, B, S, D)`."""
    from iclbench.layers.scan.scan_triton_kernels import forward_chunk

    u, dt, A, B, C, h0 = _kernel_layout(u, dt, A, B, C, h0)
    y, last, between = _outputs(u, h0, chunk)
    states = [h0, *between, last]
    for c, (start, stop) in enumerate(_chunks(u, chunk)):
        with torch.cuda.device_of(u):
            forward_chunk[_grid(u, channels)](
                u,
                dt,
                A,
                B,
                C,
                states[c],
                y,
                states[c + 1],
                start,
                stop,
                *u.shape[1:],
                A.shape[1],
                _block(u, chunk),
                channels,
                num_warps=warps,
            )
    return y, last, between


@torch.library.custom_op(
    "iclbench::selective_scan_triton_backward",
    mutates_args=(),
    schema="(Tensor u, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor h0, Tensor between, Tensor grad_y, "
    "Tensor grad_last, int channels, int warps, int chunk) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _backward(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    h0: Tensor,
    between: Tensor,
    grad_y: Tensor,
    grad_last: Tensor,
    channels: int,
    warps: int,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of u, dt, A, B, C and h0."""
    from iclbench.layers.scan.scan_triton_kernels import backward_chunk

    types = [t.dtype for t in (A, B, C, h0)]
    u, dt, A, B, C, h0 = _kernel_layout(u, dt, A, B, C, h0)
    grad_y, g = grad_y.contiguous(), grad_last.float().contiguous()
    (batch, tokens, width), states = u.shape, A.shape[1]
    grad_u, grad_dt, grad_A = torch.empty_like(u), torch.empty_like(dt), torch.zeros_like(A)
    parts_A = A.new_empty(batch, width, states)
    parts_B, parts_C = A.new_empty(2, batch, -(-width // channels), tokens, states)
    states_before = [h0, *between]
    for c, (start, stop) in reversed(list(enumerate(_chunks(u, chunk)))):
        grad_before = torch.empty_like(g)
        with torch.cuda.device_of(u):
            backward_chunk[_grid(u, channels)](
                u,
                dt,
                A,
                B,
                C,
                states_before[c],
                grad_y,
                g,
                grad_u,
                grad_dt,
                parts_A,
                parts_B,
                parts_C,
                grad_before,
                start,
                stop,
                tokens,
                width,
                states,
                _block(u, chunk),
                channels,
                num_warps=warps,
            )
        grad_A += parts_A.sum(0)
        g = grad_before
    other_grads = (t.to(dtype) for t, dtype in zip((grad_A, parts_B.sum(1), parts_C.sum(1), g), types, strict=True))
    return grad_u, grad_dt, *other_grads


@_forward.register_fake
def _(
    u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor, channels: int, warps: int, chunk: int
) -> tuple[Tensor, Tensor, Tensor]:
    return _outputs(u, h0, chunk)


@_backward.register_fake
def _(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    h0: Tensor,
    between: Tensor,
    grad_y: Tensor,
    grad_last: Tensor,
    channels: int,
    warps: int,
    chunk: int,
) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in (u, dt, A, B, C, h0))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:6], output[2])
    ctx.sizes = inputs[6:]


def _differentiate(ctx: Any, grad_y: Tensor, grad_last: Tensor, grad_between: Tensor) -> tuple[Tensor | None, ...]:
    return *_backward(*ctx.saved_tensors, grad_y, grad_last, *ctx.sizes), None, None, None


_forward.register_autograd(_differentiate, setup_context=_setup_context)


def _outputs(u: Tensor, h0: Tensor, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    """Allocate tensors for the outputs, the last state and the states between chunks."""
    y = torch.empty_like(u, memory_format=torch.contiguous_format)
    last = torch.empty_like(h0, dtype=torch.float32, memory_format=torch.contiguous_format)
    return y, last, last.new_empty((u.shape[1] - 1) // chunk, *last.shape)


def _kernel_layout(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor) -> tuple[Tensor, ...]:
    """Convert tensors to the layout of the kernels; they are copied only if their layout is different."""
    return *(t.contiguous() for t in (u, dt)), A.float().contiguous(), *(t.contiguous() for t in (B, C, h0.float()))


def _chunks(u: Tensor, chunk: int) -> Iterator[tuple[int, int]]:
    tokens = u.shape[1]
    return ((start, min(start + chunk, tokens)) for start in range(0, tokens, chunk))


def _grid(u: Tensor, channels: int) -> tuple[int]:
    return (u.shape[0] * -(-u.shape[2] // channels),)


def _block(u: Tensor, chunk: int) -> int:
    """Return the number of rows of a program: the smallest power of two, of at least 16, that holds the longest
    chunk."""
    return min(chunk, max(_SHORTEST, 1 << (u.shape[1] - 1).bit_length()))
