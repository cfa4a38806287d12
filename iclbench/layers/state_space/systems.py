"""Structured state spaces as modules: D independent channels, each a linear system of order N.

The state matrix A has two parametrisations, one per subclass. Both provide the convolution kernel of a complete
sequence from a zero state, for training, and the matrices of several steps, for continuing from a state. The state of a
channel is real: (Re x, Im x) of the N/2 complex modes. Complex parameters are stored as real pairs on a last axis of
size 2.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn

from iclbench.layers.state_space import kernels

# Steps per chunk when a sequence continues from a state.
_CHUNK = 128


@dataclass(frozen=True)
class UnrolledSystem:
    """The linear maps of T steps.

    Attributes:
        kernel: convolution kernel from inputs to outputs, `(D, T)`.
        state_to_outputs: matrix from the state before the steps to the outputs, `(D, N, T)`.
        inputs_to_state: matrix from the inputs to the state after the steps, `(D, T, N)`.
        advance: function from the state before the steps to the state after them, `(D, B, N)`, for inputs of 0.
    """

    kernel: Tensor
    state_to_outputs: Tensor
    inputs_to_state: Tensor
    advance: Callable[[Tensor], Tensor]


class StateSpace(nn.Module, ABC):
    """Independent linear systems. The initial step sizes dt are log-uniform in a range, and the initial C is complex
    normal.

    Attributes:
        longest: length of the longest kernel; None means any length.
    """

    def __init__(self, width: int, state: int, dt_range: tuple[float, float], longest: int | None = None) -> None:
        super().__init__()
        self.longest = longest
        low, high = (math.log(dt) for dt in dt_range)
        self.log_dt = nn.Parameter(low + (high - low) * torch.rand(width))
        self.C = nn.Parameter(torch.randn(width, state // 2, 2) * math.sqrt(0.5))

    @abstractmethod
    def time_scale_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that set time scales; they have a separate learning rate and no weight decay."""

    @abstractmethod
    def kernel(self, length: int) -> Float[Tensor, "D {length}"]:
        """Return the convolution kernel from a zero state."""

    @abstractmethod
    def unroll(self, length: int) -> UnrolledSystem:
        """Return the linear maps of `length` steps."""

    def reuse_system(self) -> contextlib.AbstractContextManager[object]:
        """Return a context manager in which `unroll` may reuse the discrete system. The parameters must not change
        inside it."""
        return contextlib.nullcontext()

    def resume(
        self, u: Float[Tensor, "D B T"], state: Float[Tensor, "D B N"], convolve: Callable[[Tensor, Tensor], Tensor]
    ) -> tuple[Float[Tensor, "D B T"], Float[Tensor, "D B N"]]:
        """Return the outputs of a sequence that follows a state, and the state after the sequence, in time linear in
        its length."""
        outputs, chunked_length = [], u.shape[2] - u.shape[2] % _CHUNK
        for segment, length in (
            (u[..., :chunked_length], _CHUNK),
            (u[..., chunked_length:], u.shape[2] - chunked_length),
        ):
            if segment.shape[2]:
                y, state = self._chunks(segment, length, state, convolve)
                outputs.append(y)
        return torch.cat(outputs, 2), state

    def _chunks(
        self, u: Float[Tensor, "D B T"], length: int, state: Float[Tensor, "D B N"], convolve: Callable[..., Tensor]
    ) -> tuple[Float[Tensor, "D B T"], Float[Tensor, "D B N"]]:
        """Return the outputs and the last state for chunks of equal length. All chunks are computed at once, except for
        the states between them."""
        steps, chunks = self.unroll(length), u.shape[2] // length
        inputs = u.unflatten(2, (chunks, length)).transpose(1, 2).flatten(1, 2)
        before = []
        for increment in torch.bmm(inputs, steps.inputs_to_state).chunk(chunks, 1):
            before.append(state)
            state = steps.advance(state) + increment
        y = torch.baddbmm(convolve(inputs, steps.kernel), torch.cat(before, 1), steps.state_to_outputs)
        return y.unflatten(1, (chunks, -1)).transpose(1, 2).flatten(2), state


class DiagonalStateSpace(StateSpace):
    """S4D: A is diagonal and B is 1, discretised with a zero-order hold. The discrete B is absorbed into C."""

    def __init__(self, width: int, state: int, dt_range: tuple[float, float], init: kernels.Spectrum) -> None:
        super().__init__(width, state, dt_range)
        A = kernels.spectrum(init, state).expand(width, -1)
        self.log_A_real = nn.Parameter((-A.real).log().float())
        self.A_imag = nn.Parameter(A.imag.float().clone())

    def time_scale_parameters(self) -> list[nn.Parameter]:
        return [self.log_dt, self.log_A_real, self.A_imag]

    def kernel(self, length: int) -> Float[Tensor, "D {length}"]:
        return kernels.diagonal_kernel(*self._discrete(), length)

    def unroll(self, length: int) -> UnrolledSystem:
        log_a, c = self._discrete()
        exponents = torch.arange(length + 1, dtype=self.C.dtype, device=self.C.device)
        re, im = kernels.powers(log_a, exponents)
        weighted = c[..., None] * torch.complex(re, im)

        def advance(state: Float[Tensor, "D B N"]) -> Float[Tensor, "D B N"]:
            (x, y), (a, b) = state.chunk(2, 2), (re[:, None, :, -1], im[:, None, :, -1])
            return torch.cat([a * x - b * y, b * x + a * y], 2)

        return UnrolledSystem(
            kernel=weighted.real.sum(1)[:, :-1],
            state_to_outputs=torch.cat([weighted.real, -weighted.imag], 1)[..., 1:],
            inputs_to_state=torch.cat([re, im], 1)[..., :-1].flip(2).mT,
            advance=advance,
        )

    def _discrete(self) -> tuple[Complex[Tensor, "D n"], Complex[Tensor, "D n"]]:
        A = torch.complex(-torch.exp(self.log_A_real), self.A_imag)
        return kernels.zero_order_hold(A, torch.view_as_complex(self.C), torch.exp(self.log_dt))


class LowRankStateSpace(StateSpace):
    """S4: A is HiPPO-LegS in normal-plus-low-rank form, discretised with the bilinear method. All channels share A, P
    and B.

    The parameter `C` holds C~ = C (I - A^L), which the generating function requires for a kernel of length L; shorter
    kernels are prefixes of this kernel. To continue from a state, C is recovered and the dense discrete system is
    computed; its A has shape `(D, N, N)`. If gradients are disabled, the system is cached until a parameter changes.
    """

    longest: int

    def __init__(self, width: int, state: int, dt_range: tuple[float, float], tokens: int) -> None:
        super().__init__(width, state, dt_range, longest=tokens)
        w, P, B, _ = kernels.normal_low_rank(state)
        self.log_w_real = nn.Parameter((-w.real).log().float())
        self.w_imag = nn.Parameter(w.imag.float())
        self.P, self.B = (nn.Parameter(torch.view_as_real(v).float()) for v in (P, B))
        self._last_system: tuple[list[Tensor], tuple[Tensor, Tensor, Tensor]] | None = None
        self._cached_system: tuple[Tensor, Tensor, Tensor] | None = None
        with torch.no_grad():
            A, _, C = self._bilinear()
            self.C.copy_(_complex_row(C - _times(C, torch.matrix_power(A, self._period))))

    @property
    def _period(self) -> int:
        """The length L, which the generating function requires to be odd."""
        return self.longest + 1 - self.longest % 2

    def time_scale_parameters(self) -> list[nn.Parameter]:
        return [self.log_dt, self.log_w_real, self.w_imag, self.P, self.B]

    def kernel(self, length: int) -> Float[Tensor, "D {length}"]:
        return kernels.low_rank_kernel(*self._modes(), torch.exp(self.log_dt), self._period)[:, :length]

    def unroll(self, length: int) -> UnrolledSystem:
        A, B, C = self._system()
        columns = kernels.krylov(A, B, length)
        power = torch.matrix_power(A, length).mT
        return UnrolledSystem(
            kernel=_times(C, columns),
            state_to_outputs=kernels.krylov(A.mT, _times(C, A), length),
            inputs_to_state=columns.flip(2).mT,
            advance=lambda state: torch.bmm(state, power),
        )

    @contextlib.contextmanager
    def reuse_system(self) -> Iterator[None]:
        self._cached_system = self._system()
        try:
            yield
        finally:
            self._cached_system = None

    def _modes(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        w = torch.complex(-torch.exp(self.log_w_real), self.w_imag)
        P, B, C = (torch.view_as_complex(v) for v in (self.P, self.B, self.C))
        return w, P, B, C

    def _system(self) -> tuple[Float[Tensor, "D N N"], Float[Tensor, "D N"], Float[Tensor, "D N"]]:
        if self._cached_system is not None:
            return self._cached_system
        if torch.is_grad_enabled():
            return self._dense_system()
        current = list(self.parameters())
        if self._last_system is None or not all(map(_is_unchanged, self._last_system[0], current)):
            self._last_system = [p.detach().clone() for p in current], self._dense_system()
        return self._last_system[1]

    def _dense_system(self) -> tuple[Float[Tensor, "D N N"], Float[Tensor, "D N"], Float[Tensor, "D N"]]:
        """Return the discrete A, B and C, computed in float64 because I - A^L is nearly singular for small steps."""
        A, B, stored_C = self._bilinear()
        complement = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device) - torch.matrix_power(A, self._period)
        C = torch.linalg.solve(complement.mT, stored_C)
        dtype = self.C.dtype
        return A.to(dtype), B.to(dtype), C.to(dtype)

    def _bilinear(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the discrete A and B, and the stored C, in real form and float64."""
        A, B, C = kernels.real_form(*(v.to(torch.complex128) for v in self._modes()))
        return *kernels.bilinear(A, B, torch.exp(self.log_dt.double())), C


def _is_unchanged(a: Tensor, b: Tensor) -> bool:
    return (a.dtype, a.device) == (b.dtype, b.device) and torch.equal(a, b)


def _times(row: Float[Tensor, "D N"], matrix: Float[Tensor, "D N K"]) -> Float[Tensor, "D K"]:
    return torch.bmm(row.unsqueeze(1), matrix).squeeze(1)


def _complex_row(C: Float[Tensor, "D N"]) -> Float[Tensor, "D n 2"]:
    """Convert C from its real form (2 Re C, -2 Im C) to complex numbers, stored as real pairs."""
    re, im = C.chunk(2, 1)
    return torch.stack([re, -im], 2) / 2
