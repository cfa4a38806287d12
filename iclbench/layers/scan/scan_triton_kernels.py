"""The forward and backward pass of the selective scan in Triton, for one chunk.

A program holds BLOCK_T tokens of BLOCK_D channels of one episode in registers and loops over the S states. Over time,
the recurrence is an associative scan over pairs (decay, added term) (Blelloch 1990). All sums are in float32 and in a
fixed order: each program writes its contribution to a shared gradient separately, and the caller adds up the
contributions.

Only `scan_triton` imports this module, because it needs Triton. Tensors are contiguous with the layout of `scan`;
offsets have 64 bits. Rows after the end of the chunk are masked to dt = 0: their decay is 1 and they add 0.
"""

# Triton compiles the source code of the functions, so their arguments have no Python types, and they must not be
# wrapped.
from typing import no_type_check

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
@no_type_check
def _combine(decay, value, next_decay, next_value):
    return decay * next_decay, next_decay * value + next_value


@triton.jit
@no_type_check
def forward_chunk(
    u,
    dt,
    A,
    B,
    C,
    h0,
    y,
    last,
    start,
    stop,
    T,
    D,
    S: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Compute the outputs `y` of the tokens from `start` to `stop`, and the state `last` after them.

    `h0` is the state before the tokens.
    """
    blocks = tl.cdiv(D, BLOCK_D)
    b = (tl.program_id(0) // blocks).to(tl.int64)
    d = tl.program_id(0) % blocks * BLOCK_D + tl.arange(0, BLOCK_D)
    t = start + tl.arange(0, BLOCK_T)
    row = b * T + t
    tile = row[:, None] * D + d[None, :]
    token, channel = t < stop, d < D
    inside = token[:, None] & channel[None, :]
    first, final = (t == start)[:, None], (t == stop - 1)[:, None]

    step = tl.load(dt + tile, inside, 0.0).to(tl.float32)
    x = step * tl.load(u + tile, inside, 0.0).to(tl.float32)
    out = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    for s in range(S):
        rate = tl.load(A + d * S + s, channel, 0.0) * _LOG2_E
        column = tl.load(B + row * S + s, token, 0.0).to(tl.float32)
        readout = tl.load(C + row * S + s, token, 0.0).to(tl.float32)
        state = (b * S + s) * D + d
        initial_state = tl.load(h0 + state, channel, 0.0)
        decay = tl.exp2(step * rate[None, :])
        added = x * column[:, None] + tl.where(first, decay * initial_state[None, :], 0.0)
        _, h = tl.associative_scan((decay, added), 0, _combine)
        out += h * readout[:, None]
        tl.store(last + state, tl.sum(tl.where(final, h, 0.0), 0), channel)
    tl.store(y + tile, out, inside)


@triton.jit
@no_type_check
def backward_chunk(
    u,
    dt,
    A,
    B,
    C,
    h0,
    grad_y,
    grad_last,
    grad_u,
    grad_dt,
    grad_A,
    grad_B,
    grad_C,
    grad_h0,
    start,
    stop,
    T,
    D,
    S: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Compute the gradients of the tokens from `start` to `stop` from the gradient of the state after them.

    `grad_A` has one term per episode, `(B, D, S)`. `grad_B` and `grad_C` have one term per block of channels, with
    shape `(B, blocks, T, S)`.

    The gradient g_t of h_t is g_t = C_t dy_t + decay_{t+1} g_{t+1}, a scan from the end. The log-decay dt_t A has
    gradient g_t z_t, where z_t = decay_t h_{t-1} is the decayed state. A separate scan computes z_t = decay_t (z_{t-1}
    + dt_{t-1} u_{t-1} B_{t-1}), because the difference of h_t and its added term loses digits if the decay is strong.
    """
    blocks = tl.cdiv(D, BLOCK_D)
    block = tl.program_id(0) % blocks
    b = (tl.program_id(0) // blocks).to(tl.int64)
    d = block * BLOCK_D + tl.arange(0, BLOCK_D)
    t = start + tl.arange(0, BLOCK_T)
    row = b * T + t
    tile = row[:, None] * D + d[None, :]
    token, channel = t < stop, d < D
    follows, precedes = token & (t > start), t < stop - 1
    inside = token[:, None] & channel[None, :]
    inside_follows, inside_precedes = follows[:, None] & channel[None, :], precedes[:, None] & channel[None, :]
    first, final = (t == start)[:, None], (t == stop - 1)[:, None]

    step = tl.load(dt + tile, inside, 0.0).to(tl.float32)
    value = tl.load(u + tile, inside, 0.0).to(tl.float32)
    dy = tl.load(grad_y + tile, inside, 0.0).to(tl.float32)
    step_next = tl.load(dt + tile + D, inside_precedes, 0.0).to(tl.float32)
    x_previous = tl.load(dt + tile - D, inside_follows, 0.0).to(tl.float32)
    x_previous *= tl.load(u + tile - D, inside_follows, 0.0).to(tl.float32)
    grad_x = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    grad_step = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    for s in range(S):
        a = tl.load(A + d * S + s, channel, 0.0)
        rate = (a * _LOG2_E)[None, :]
        column = tl.load(B + row * S + s, token, 0.0).to(tl.float32)[:, None]
        column_previous = tl.load(B + (row - 1) * S + s, follows, 0.0).to(tl.float32)[:, None]
        readout = tl.load(C + row * S + s, token, 0.0).to(tl.float32)[:, None]
        state = (b * S + s) * D + d
        initial_state = tl.load(h0 + state, channel, 0.0)[None, :]
        grad_last_state = tl.load(grad_last + state, channel, 0.0)[None, :]

        decay = tl.exp2(step * rate)
        undecayed_input = x_previous * column_previous + tl.where(first, initial_state, 0.0)
        _, decayed = tl.associative_scan((decay, decay * undecayed_input), 0, _combine)
        added_grad = dy * readout + tl.where(final, grad_last_state, 0.0)
        _, g = tl.associative_scan((tl.exp2(step_next * rate), added_grad), 0, _combine, reverse=True)

        partial = ((b * blocks + block) * T + t) * S + s
        tl.store(grad_B + partial, tl.sum(g * step * value, 1), token)
        tl.store(grad_C + partial, tl.sum((decayed + step * value * column) * dy, 1), token)
        tl.store(grad_h0 + state, tl.sum(tl.where(first, decay * g, 0.0), 0), channel)
        grad_log = g * decayed
        tl.store(grad_A + (b * D + d) * S + s, tl.sum(grad_log * step, 0), channel)
        grad_step += grad_log * a[None, :]
        grad_x += g * column
    tl.store(grad_u + tile, grad_x * step, inside)
    tl.store(grad_dt + tile, grad_step + grad_x * value, inside)
