"""The selective scan in plain torch, optimised for CPUs: sequential in time, in place, tiled over the batch.

The state of a tile fits into the cache. For the backward pass, the inputs and the state before every eighth step are
saved, and the states between them are recomputed. The forward pass and the backward pass are each one operation for
autograd and `torch.compile`. exp is computed with exp2, which takes half the time on a CPU; the factor 1 / ln 2 is
merged into A.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

# State elements per tile of the batch: 512 KiB in float32.
_TILE = 131_072
# Steps between two saved states.
_STRIDE = 8
# With fewer channels, a batched product takes longer than a multiplication and a sum.
_FEW_CHANNELS = 256


def selective_scan(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
    """Run `scan.selective_scan` in plain torch, in the precision of A."""
    with torch.autocast(u.device.type, enabled=False):
        y, last, _ = _forward(*(t.to(A.dtype) for t in (u, dt, A, B, C, h0)))
    return y, last


# Schemas are explicit, because run-time type checkers may change annotations.
@torch.library.custom_op(
    "iclbench::selective_scan",
    mutates_args=(),
    schema="(Tensor u, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor h0) -> (Tensor, Tensor, Tensor)",
)
def _forward(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs, the last state, and the states before steps 0, 8, 16, ... as `(B, K, S, D)`."""
    rate = A.T.contiguous() / math.log(2)
    y, last = torch.empty_like(u, memory_format=torch.contiguous_format), torch.empty_like(h0)
    saved = h0.new_empty(len(u), -(-u.shape[1] // _STRIDE), *h0.shape[1:])
    for tile in _tiles(h0):
        h = h0[tile].clone()
        decay, product = torch.empty_like(h), torch.empty_like(h)
        dts, inputs, ys = dt[tile].unbind(1), (dt[tile] * u[tile]).unbind(1), y[tile].unbind(1)
        columns, rows = B[tile].unsqueeze(3).unbind(1), C[tile].unsqueeze(3).unbind(1)
        for t in range(u.shape[1]):
            if t % _STRIDE == 0:
                saved[tile, t // _STRIDE] = h
            torch.mul(dts[t].unsqueeze(1), rate, out=decay)
            h.mul_(decay.exp2_()).addcmul_(columns[t], inputs[t].unsqueeze(1))
            _sum_states(rows[t], h, product, ys[t])
        last[tile] = h
    return y, last, saved


@torch.library.custom_op(
    "iclbench::selective_scan_backward",
    mutates_args=(),
    schema="(Tensor u, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor saved, Tensor grad_y, Tensor grad_last) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _backward(
    u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, saved: Tensor, grad_y: Tensor, grad_last: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of u, dt, A, B, C and h0.

    Let g_t be the gradient of h_t, including the gradient through later steps, and x_t = dt_t u_t. Then dB_t = g_t x_t,
    dC_t = h_t dy_t, dx_t = <B_t, g_t>, and the log-decay dt_t A has gradient g_t exp(dt_t A) h_{t-1}.
    """
    a = A.T.contiguous()
    rate = a / math.log(2)
    grad_x, grad_dt = torch.empty_like(u), torch.empty_like(u)
    grad_B, grad_C = torch.empty_like(B), torch.empty_like(C)
    grad_a, grad_h0 = torch.zeros_like(a), torch.empty_like(grad_last)
    steps = u.shape[1]
    for tile in _tiles(grad_last):
        g = grad_last[tile].clone()
        product, tile_grad_a = torch.empty_like(g), torch.zeros_like(g)
        states = [torch.empty_like(g) for _ in range(_STRIDE + 1)]
        decays = [torch.empty_like(g) for _ in range(_STRIDE)]
        dts, inputs, gys = (t.unsqueeze(2).unbind(1) for t in (dt[tile], dt[tile] * u[tile], grad_y[tile]))
        columns, rows = B[tile].unsqueeze(3).unbind(1), C[tile].unsqueeze(3).unbind(1)
        gBs, gCs, gxs, gdts = (t[tile].unbind(1) for t in (grad_B, grad_C, grad_x, grad_dt))
        for start in reversed(range(0, steps, _STRIDE)):
            stop = min(start + _STRIDE, steps)
            states[0].copy_(saved[tile, start // _STRIDE])
            for i, t in enumerate(range(start, stop)):
                torch.mul(dts[t], rate, out=decays[i])
                torch.mul(states[i], decays[i].exp2_(), out=states[i + 1])
                states[i + 1].addcmul_(columns[t], inputs[t])
            for i, t in reversed(list(enumerate(range(start, stop)))):
                g.addcmul_(rows[t], gys[t])
                _sum_channels(gys[t], states[i + 1], product, gCs[t])
                _sum_channels(inputs[t], g, product, gBs[t])
                _sum_states(columns[t], g, product, gxs[t])
                g.mul_(decays[i])
                torch.mul(g, states[i], out=product)
                tile_grad_a.addcmul_(product, dts[t])
                torch.sum(product.mul_(a), 1, out=gdts[t])
        grad_a += tile_grad_a.sum(0)
        grad_h0[tile] = g
    return grad_x * dt, grad_dt.addcmul_(grad_x, u), grad_a.T.contiguous(), grad_B, grad_C, grad_h0


@_forward.register_fake
def _(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    saved = h0.new_empty(len(u), -(-u.shape[1] // _STRIDE), *h0.shape[1:])
    return torch.empty_like(u, memory_format=torch.contiguous_format), torch.empty_like(h0), saved


@_backward.register_fake
def _(
    u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, saved: Tensor, grad_y: Tensor, grad_last: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    a, b, c, d, e, f = (torch.empty_like(t) for t in (u, dt, A, B, C, grad_last))
    return a, b, c, d, e, f


def _setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:5], output[2])


def _differentiate(ctx: Any, grad_y: Tensor, grad_last: Tensor, grad_saved: Tensor) -> tuple[Tensor, ...]:
    return _backward(*ctx.saved_tensors, grad_y.contiguous(), grad_last.contiguous())


_forward.register_autograd(_differentiate, setup_context=_setup_context)


def _sum_states(column: Tensor, h: Tensor, scratch: Tensor, out: Tensor) -> None:
    """Compute out[b, d] = sum over s of column[b, s, 0] h[b, s, d]. With few channels, the overhead of `bmm`
    dominates."""
    if h.shape[2] < _FEW_CHANNELS:
        torch.sum(torch.mul(column, h, out=scratch), 1, out=out)
    else:
        torch.bmm(column.mT, h, out=out.unsqueeze(1))


def _sum_channels(row: Tensor, h: Tensor, scratch: Tensor, out: Tensor) -> None:
    """Compute out[b, s] = sum over d of row[b, 0, d] h[b, s, d]."""
    if h.shape[2] < _FEW_CHANNELS:
        torch.sum(torch.mul(row, h, out=scratch), 2, out=out)
    else:
        torch.bmm(row, h.mT, out=out.unsqueeze(1))


def _tiles(h: Tensor) -> Iterator[slice]:
    """Yield slices of the batch whose states fit into the cache."""
    size = max(1, _TILE // max(1, h[0].numel() if len(h) else 1))
    return (slice(start, start + size) for start in range(0, len(h), size))
