"""Structured state spaces against NumPy and SciPy in float64: HiPPO, discretisation, kernels and states."""

import math

import numpy as np
import pytest
import torch
from scipy.linalg import block_diag
from scipy.signal import cont2discrete
from torch import Tensor

from iclbench.layers.state_space import kernels
from iclbench.layers.state_space.systems import DiagonalStateSpace, LowRankStateSpace, StateSpace

ORDER, STEPS = 64, (1e-3, 1e-2, 1e-1)


def random(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(0))


def discrete(A: np.ndarray, B: np.ndarray, dt: float, method: str) -> tuple[np.ndarray, np.ndarray]:
    """Return A and B, discretised by SciPy."""
    zeros = np.zeros((1, len(A))), np.zeros((1, 1))
    A, B, *_ = cont2discrete((A, B[:, None], *zeros), dt, method)
    return A, B[:, 0]


def impulse_response(A: np.ndarray, B: np.ndarray, C: np.ndarray, length: int) -> Tensor:
    response, x = [], B
    for _ in range(length):
        response.append(C @ x)
        x = A @ x
    return torch.tensor(np.array(response))


def test_hippo_legs_has_the_eigenvalues_minus_one_to_minus_n() -> None:
    A, _ = kernels.hippo_legs(ORDER)
    eigenvalues = np.sort(np.linalg.eigvals(A.numpy()).real)
    np.testing.assert_allclose(eigenvalues, -np.arange(ORDER, 0, -1.0), rtol=0, atol=1e-10)


def test_hippo_legs_is_a_normal_matrix_minus_a_rank_one_matrix() -> None:
    """The real matrices are reconstructed from half of the eigenvalues and their complex conjugates."""
    A, B = kernels.hippo_legs(ORDER)
    w, P, b, V = (torch.cat([half, half.conj()], -1) for half in kernels.normal_low_rank(ORDER))
    rebuilt = V @ (torch.diag(w) - torch.outer(P, P.conj())) @ V.mH
    torch.testing.assert_close(rebuilt, A.to(rebuilt.dtype), atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(V @ b, B.to(rebuilt.dtype), atol=1e-12, rtol=1e-12)
    assert bool((w.real == -0.5).all())


def test_the_real_form_has_the_eigenvalues_of_hippo_legs() -> None:
    """The order is small, because the eigenvalues of HiPPO are ill-conditioned."""
    w, P, B, _ = kernels.normal_low_rank(8)
    A, *_ = kernels.real_form(w, P, B, random(1, 4, dtype=torch.complex128))
    np.testing.assert_allclose(np.sort(np.linalg.eigvals(A.numpy()).real), -np.arange(8, 0, -1.0), atol=1e-9)


@pytest.mark.parametrize("length", [1, 2, 40, 83])
def test_the_low_rank_kernel_equals_scipys_bilinear_discretisation(length: int) -> None:
    """The reference is the impulse response of the real HiPPO matrix in its original basis."""
    period, C = 83, random(len(STEPS), ORDER)
    A, B = (t.numpy() for t in kernels.hippo_legs(ORDER))
    w, P, b, V = kernels.normal_low_rank(ORDER)
    expected, transformed_C = [], []
    for row, dt in zip(C.numpy(), STEPS, strict=True):
        A_dt, B_dt = discrete(A, B, dt, "bilinear")
        expected.append(impulse_response(A_dt, B_dt, row, length))
        transformed_C.append(torch.tensor(row - row @ np.linalg.matrix_power(A_dt, period)))
    steps = torch.tensor(STEPS, dtype=torch.float64)
    actual = kernels.low_rank_kernel(w, P, b, torch.stack(transformed_C).to(V.dtype) @ V, steps, period)[:, :length]
    torch.testing.assert_close(actual, torch.stack(expected), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("init", ["lin", "legs", "inv"])
@pytest.mark.parametrize("length", [1, 2, 40, 82])
def test_the_diagonal_kernel_equals_scipys_zero_order_hold(init: kernels.Spectrum, length: int) -> None:
    """The reference represents each complex mode a ± ib as a real block ((a, -b), (b, a)) whose first coordinate
    receives the input."""
    modes = kernels.spectrum(init, ORDER)
    C = random(len(STEPS), ORDER // 2, dtype=torch.complex128)
    A = block_diag(*(np.array([[a.real, -a.imag], [a.imag, a.real]]) for a in modes.numpy()))
    B = np.tile([1.0, 0.0], ORDER // 2)
    expected = []
    for row, dt in zip(C.numpy(), STEPS, strict=True):
        observed = 2 * np.stack([row.real, -row.imag], 1).ravel()
        expected.append(impulse_response(*discrete(A, B, dt, "zoh"), observed, length))
    steps = torch.tensor(STEPS, dtype=torch.float64)
    actual = kernels.diagonal_kernel(*kernels.zero_order_hold(modes.expand(len(STEPS), -1), C, steps), length)
    torch.testing.assert_close(actual, torch.stack(expected), atol=1e-12, rtol=1e-12)


def test_initial_spectra_match_the_papers() -> None:
    """The references are equations 8 and 9 of S4D and, for LegS, the eigenvalues of the normal part of the matrix."""
    n = np.arange(ORDER // 2)
    A, _ = kernels.hippo_legs(ORDER)
    P = np.sqrt(np.arange(ORDER) + 0.5)
    normal = np.linalg.eigvals(A.numpy() + np.outer(P, P))
    expected = {
        "lin": math.pi * n,
        "inv": ORDER / math.pi * (ORDER / (2 * n + 1) - 1),
        "legs": np.sort(normal.imag)[ORDER // 2 :],
    }
    for init, imaginary in expected.items():
        actual = kernels.spectrum(init, ORDER)
        np.testing.assert_allclose(actual.imag.numpy(), imaginary, rtol=1e-12, atol=1e-12, err_msg=init)
        np.testing.assert_allclose(actual.real.numpy(), -0.5)


def systems(tokens: int = 24) -> list[StateSpace]:
    """Return one system of each class, in float64."""
    torch.manual_seed(0)
    return [
        DiagonalStateSpace(5, 16, (1e-3, 1e-1), "lin").double(),
        LowRankStateSpace(5, 16, (1e-3, 1e-1), tokens).double(),
    ]


@pytest.mark.parametrize("index", [0, 1], ids=["diagonal", "low rank"])
@pytest.mark.parametrize("length", [1, 23, 24])
def test_the_kernel_equals_the_recurrence(index: int, length: int) -> None:
    """The kernel of a sequence is compared with single steps from state to state."""
    system = systems()[index]
    step, state, outputs = system.unroll(1), torch.zeros(5, 1, 16).double(), []
    for t in range(length):
        u = torch.full((5, 1, 1), float(t == 0)).double()
        outputs.append(torch.bmm(state, step.state_to_outputs) + step.kernel[:, :, None] * u)
        state = step.advance(state) + u * step.inputs_to_state
    torch.testing.assert_close(system.kernel(length), torch.cat(outputs, 2)[:, 0], atol=1e-11, rtol=1e-9)


@pytest.mark.parametrize("index", [0, 1], ids=["diagonal", "low rank"])
def test_unrolling_in_two_parts_equals_unrolling_once(index: int) -> None:
    """The 37 steps are run at once, or as 20 steps and then 17. The longest kernel has fewer than 37 steps."""
    system, state, u = systems()[index], random(5, 2, 16), random(5, 2, 37)

    def run(length: int, state: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        steps = system.unroll(length)
        lags = torch.arange(length)[:, None] - torch.arange(length)
        toeplitz = torch.where(lags >= 0, steps.kernel[:, lags.clamp_min(0)], 0)
        return u @ toeplitz.mT + state @ steps.state_to_outputs, steps.advance(state) + u @ steps.inputs_to_state

    complete, last = run(37, state, u)
    first, middle = run(20, state, u[..., :20])
    second, end = run(17, middle, u[..., 20:])
    torch.testing.assert_close(torch.cat([first, second], 2), complete, atol=1e-11, rtol=1e-9)
    torch.testing.assert_close(end, last, atol=1e-11, rtol=1e-9)


def test_float32_kernels_are_close_to_float64_kernels() -> None:
    """The length, the order and the range of step sizes are as in the paper."""
    torch.manual_seed(0)
    for system in (DiagonalStateSpace(64, 64, (1e-3, 1e-1), "lin"), LowRankStateSpace(64, 64, (1e-3, 1e-1), 82)):
        kernel = system.kernel(82)
        unrolled = system.unroll(82).kernel
        exact = system.double().kernel(82)
        scale = exact.abs().amax(1, keepdim=True)
        assert ((kernel - exact).abs() / scale).max() < 2e-5
        assert ((unrolled - exact).abs() / scale).max() < 2e-5


def test_the_cached_system_is_recomputed_if_a_parameter_changes() -> None:
    """Changes through the attribute `data` of a parameter are also detected."""
    system = systems()[1]
    with torch.no_grad():
        before = system.unroll(3).kernel
        assert system._system()[0] is system._system()[0]
        system.log_dt.data.add_(0.1)
        after = system.unroll(3).kernel
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, system.kernel(3), atol=1e-11, rtol=1e-9)
