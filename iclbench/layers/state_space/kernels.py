"""The equations of structured state spaces: HiPPO matrices, discretisation and convolution kernels.

A channel is x' = A x + B u, y = C x, sampled in steps of dt. A real system of order N has N/2 complex modes, one of
each conjugate pair: y = 2 Re(C x). Sources: Gu et al. 2022a (S4, arXiv 2111.00396) and 2022b (S4D, arXiv 2206.11893).
Letters: `n` = N/2 modes, D channels, T tokens.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Complex, Float
from torch import Tensor

Spectrum = Literal["lin", "legs", "inv"]


def hippo_legs(order: int) -> tuple[Float[Tensor, "N N"], Float[Tensor, " N"]]:
    """Return A and B of HiPPO-LegS (S4, equation 2), in float64."""
    n = torch.arange(order, dtype=torch.float64)
    root = torch.sqrt(2 * n + 1)
    return -torch.tril(torch.outer(root, root), -1) - torch.diag(n + 1), root


def normal_low_rank(
    order: int,
) -> tuple[Complex[Tensor, " n"], Complex[Tensor, " n"], Complex[Tensor, " n"], Complex[Tensor, "N n"]]:
    """Decompose HiPPO-LegS into a normal matrix minus a matrix of rank one (S4, theorem 1).

    Returns:
        w, P, B and V in complex128, for the modes with a positive imaginary part, in ascending order. Together with the
            conjugate modes, A = V (diag(w) - P P*) V*, where V is unitary and P and B are expressed in its basis.
    """
    A, B = hippo_legs(order)
    P = torch.sqrt(torch.arange(order, dtype=torch.float64) + 0.5)
    # A + P P^T is -1/2 plus a skew-symmetric matrix, whose eigenvalues are imaginary and come in pairs.
    skew = A + torch.outer(P, P) + 0.5 * torch.eye(order, dtype=torch.float64)
    imaginary, V = torch.linalg.eigh(-1j * skew)
    imaginary, V = imaginary[order // 2 :], V[:, order // 2 :]
    w = torch.complex(torch.full_like(imaginary, -0.5), imaginary)
    return w, V.mH @ P.to(V.dtype), V.mH @ B.to(V.dtype), V


def spectrum(init: Spectrum, order: int) -> Complex[Tensor, " n"]:
    """Return the initial eigenvalues of S4D: S4D-Lin (S4D, equation 9), the normal part of LegS, or S4D-Inv (equation
    8)."""
    n = torch.arange(order // 2, dtype=torch.float64)
    if init == "legs":
        return normal_low_rank(order)[0]
    imaginary = math.pi * n if init == "lin" else order / math.pi * (order / (2 * n + 1) - 1)
    return torch.complex(torch.full_like(n, -0.5), imaginary)


# Diagonal systems (S4D), zero-order hold.


def zero_order_hold(
    A: Complex[Tensor, "D n"], C: Complex[Tensor, "D n"], dt: Float[Tensor, " D"]
) -> tuple[Complex[Tensor, "D n"], Complex[Tensor, "D n"]]:
    """Return log a and c, where a is the discrete A, and c is 2 C times the discrete B for B = 1. The system is then
    x <- a x + u, y = Re(sum over modes of c x)."""
    log_a = A * dt[:, None]
    return log_a, 2 * C * torch.expm1(log_a) / A


def powers(
    log_a: Complex[Tensor, "D n"], exponents: Float[Tensor, " T"]
) -> tuple[Float[Tensor, "D n T"], Float[Tensor, "D n T"]]:
    """Return the real and imaginary parts of a to the power of each exponent, given log a."""
    modulus = torch.exp(log_a.real[..., None] * exponents)
    angle = log_a.imag[..., None] * exponents
    return modulus * torch.cos(angle), modulus * torch.sin(angle)


def diagonal_kernel(
    log_a: Complex[Tensor, "D n"], c: Complex[Tensor, "D n"], length: int
) -> Float[Tensor, "D {length}"]:
    """Compute K[t] = Re(sum over modes of c a^t), a Vandermonde product (S4D, section 3.2).

    With t = i m + j, it is one small matrix product of c a^(i m) and a^j, which requires 2 sqrt(T) powers per mode
    instead of T.
    """
    columns = math.isqrt(length - 1) + 1
    rows = -(-length // columns)
    step = torch.arange(max(columns, rows), dtype=log_a.real.dtype, device=log_a.device)
    real, imaginary = powers(log_a, step[:columns])
    row_powers = torch.complex(*powers(log_a, step[:rows] * columns)) * c[..., None]
    product = torch.bmm(torch.cat([row_powers.real, -row_powers.imag], 1).mT, torch.cat([real, imaginary], 1))
    return product.flatten(1)[:, :length]


# Normal plus low-rank systems (S4), bilinear.


def real_form(
    w: Complex[Tensor, " n"], P: Complex[Tensor, " n"], B: Complex[Tensor, " n"], C: Complex[Tensor, "D n"]
) -> tuple[Float[Tensor, "N N"], Float[Tensor, " N"], Float[Tensor, "D N"]]:
    """Return the real A, B and C of the same system with the state (Re x, Im x).

    On one half of the spectrum, (diag(w) - P P*) x = w x - 2 P Re(P* x); the other half is its conjugate.
    """
    re, im = torch.diag(w.real), torch.diag(w.imag)
    rotation = torch.cat([torch.cat([re, -im], 1), torch.cat([im, re], 1)])
    p = torch.cat([P.real, P.imag])
    return rotation - 2 * torch.outer(p, p), torch.cat([B.real, B.imag]), 2 * torch.cat([C.real, -C.imag], 1)


def bilinear(
    A: Float[Tensor, "N N"], B: Float[Tensor, " N"], dt: Float[Tensor, " D"]
) -> tuple[Float[Tensor, "D N N"], Float[Tensor, "D N"]]:
    """Return the discrete A and B of every channel (S4, equation 3)."""
    identity = torch.eye(len(A), dtype=A.dtype, device=A.device)
    half = dt[:, None, None] / 2 * A
    right = torch.cat([identity + half, dt[:, None, None] * B[:, None]], 2)
    solution = torch.linalg.solve(identity - half, right)
    return solution[..., :-1], solution[..., -1]


def krylov(A: Float[Tensor, "D N N"], b: Float[Tensor, "D N"], count: int) -> Float[Tensor, "D N {count}"]:
    """Compute the columns b, A b, A² b, ... by doubling: each step multiplies all columns so far by a power of A."""
    columns = b.unsqueeze(-1)
    while columns.shape[-1] < count:
        columns = torch.cat([columns, torch.bmm(A, columns)], 2)
        A = A @ A if columns.shape[-1] < count else A
    return columns[..., :count]


def low_rank_kernel(
    w: Complex[Tensor, " n"],
    P: Complex[Tensor, " n"],
    B: Complex[Tensor, " n"],
    C: Complex[Tensor, "D n"],
    dt: Float[Tensor, " D"],
    length: int,
) -> Float[Tensor, "D {length}"]:
    """Compute the kernel from its generating function at the roots of unity (S4, algorithm 1).

    `C` is C~ = C (I - A^length) with the discrete A. The length is odd, so that no root is -1 and
    g = 2/dt (1 - z)/(1 + z) = i s is finite. s is real, and so is all arithmetic on the `(D, n, T/2)` Cauchy terms:
    a mode and its conjugate add up to 2 (i s Re(v) - Re(v w*)) / (|w|² - s² - 2 i s Re(w)).
    """
    angle = math.pi / length * torch.arange(length // 2 + 1, dtype=dt.dtype, device=dt.device)
    s = (2 / dt[:, None] * torch.tan(angle)).unsqueeze(2)
    modulus = w.abs()
    real, imaginary = (modulus - s) * (modulus + s), -2 * s * w.real
    inverse = (real.square() + imaginary.square()).reciprocal()
    v = torch.stack(torch.broadcast_tensors(C * B, C * P, P.conj() * B, P.conj() * P), 2)
    numerators = torch.cat([v.real, (v * w.conj()[:, None]).real], 2)
    re, im = torch.bmm(real * inverse, numerators), torch.bmm(imaginary * inverse, numerators)
    sums = 2 * (torch.complex(-re[..., 4:], im[..., 4:]) + torch.complex(im[..., :4], re[..., :4]) * s)
    cb, cp, pb, pp = sums.unbind(2)
    # 2 / (1 + z) = 1 + i tan(angle)
    prefactor = torch.complex(torch.ones_like(angle), torch.tan(angle))
    return torch.fft.irfft(prefactor * (cb - cp * pb / (1 + pp)), n=length)
