"""Mamba's selective scan (Gu and Dao 2023, equation 2 with the discretisation of their algorithm 2).

    h_t = exp(dt_t A) h_{t-1} + dt_t u_t B_t,        y_t = <C_t, h_t>

for every channel. The state h has shape `(B, S, D)`, so that channels are contiguous. `selective_scan` has
interchangeable back ends:

    torch      plain torch operations on any device, optimised for CPUs (`scan_torch`)
    triton     Triton kernels of iclbench, for CUDA (`scan_triton`)
    mamba-ssm  the CUDA extension of mamba-ssm, if it is installed (`scan_mamba_ssm`)
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.core.errors import UsageError

Backend = Literal["auto", "torch", "triton", "mamba-ssm"]

# On CUDA, `auto` selects the first of these that is available.
_CUDA_BACKENDS: tuple[Backend, ...] = ("triton", "mamba-ssm")


def selective_scan(
    u: Float[Tensor, "B T D"],
    dt: Float[Tensor, "B T D"],
    A: Float[Tensor, "D S"],
    B: Float[Tensor, "B T S"],
    C: Float[Tensor, "B T S"],
    h0: Float[Tensor, "B S D"] | None = None,
    backend: Backend = "auto",
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B S D"]]:
    """Scan a chunk of T >= 1 tokens. The result is differentiable with respect to every tensor.

    Args:
        u: inputs.
        dt: step sizes, positive (after softplus).
        A: diagonal state matrix of every channel, negative; S is the state dimension.
        B: input vectors.
        C: output vectors.
        h0: state before the chunk; None means zero.
        backend: `auto` selects the fastest back end for the device of `u` (see `resolve_backend`).

    Returns:
        The outputs, and the state after the chunk.

    Raises:
        UsageError: the back end is not available.
    """
    if h0 is None:
        h0 = u.new_zeros(u.shape[0], A.shape[1], A.shape[0])
    name = _resolve_cached(backend, u.device, A.dtype)
    if name == "triton":
        from iclbench.layers.scan import scan_triton

        return scan_triton.selective_scan(u, dt, A, B, C, h0)
    if name == "mamba-ssm":
        from iclbench.layers.scan import scan_mamba_ssm

        return scan_mamba_ssm.selective_scan(u, dt, A, B, C, h0)
    from iclbench.layers.scan import scan_torch

    return scan_torch.selective_scan(u, dt, A, B, C, h0)


def selective_peek(
    h: Float[Tensor, "B S D"],
    u: Float[Tensor, "B Q D"],
    dt: Float[Tensor, "B Q D"],
    A: Float[Tensor, "D S"],
    B: Float[Tensor, "B Q S"],
    C: Float[Tensor, "B Q S"],
) -> Float[Tensor, "B Q D"]:
    """Return the outputs of tokens, each read as the first token after the state `h`."""
    decay = torch.exp(dt.unsqueeze(2) * A.T)
    decayed = (C.unsqueeze(2) @ (decay * h.unsqueeze(1))).squeeze(2)
    return decayed + (B * C).sum(-1, keepdim=True) * (dt * u)


def resolve_backend(backend: Backend, device: torch.device, dtype: torch.dtype = torch.float32) -> Backend:
    """Return the back end for this device and precision. The CUDA kernels compute in float32, so `auto` selects torch
    for float64.

    Raises:
        UsageError: the back end is not available.
    """
    if backend == "auto":
        if device.type != "cuda" or dtype == torch.float64:
            return "torch"
        return next((name for name in _CUDA_BACKENDS if _module(name).unavailable() is None), "torch")
    if backend == "torch":
        return backend
    reason = _module(backend).unavailable()
    is_interpreted = backend == "triton" and os.environ.get("TRITON_INTERPRET") == "1"
    if reason is None and device.type != "cuda" and not is_interpreted:
        reason = f"the model is on {device.type}"
    if reason is None and dtype == torch.float64:
        reason = "its kernel has no float64"
    if reason is not None:
        raise UsageError(
            f"backbone.scan={backend} requires a CUDA device and its kernel ({reason}); use backbone.scan=auto",
            code="not-supported",
        )
    return backend


def _resolve_cached(backend: Backend, device: torch.device, dtype: torch.dtype) -> Backend:
    """Call `resolve_backend` with a cache; the result is a constant in compiled code."""
    return _cached_backend(backend, device, dtype)


_cached_backend = cache(resolve_backend)
# `torch.compiler.assume_constant_result` sets the same attribute, but imports the compiler, which takes two seconds.
_resolve_cached._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _module(backend: Backend) -> ModuleType:
    return import_module(f"iclbench.layers.scan.scan_{backend.replace('-', '_')}")
