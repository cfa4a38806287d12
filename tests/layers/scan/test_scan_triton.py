"""The Triton kernels against a recurrence in float64.

The kernel tests run on a CUDA device if one is available. Otherwise they are skipped, and one test runs them in a
separate process with Triton's interpreter, which must be selected before Triton is imported.
"""

import os
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor

from iclbench.layers.scan import scan_triton
from tests.layers.scan.test_scan import inputs, recurrence, relative_error

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
NAMES = ["y", "last", "u", "dt", "A", "B", "C", "h0"]

# Selects one case of each kind. `make test` runs only these cases, because each case takes seconds in the interpreter.
QUICK = "length and (1 or 13 or 17) and not 16 or chunk or 11-4 or 0.7 or views or decays or bfloat16"

runs_kernels = pytest.mark.skipif(
    scan_triton.unavailable() is not None,
    reason=f"{scan_triton.unavailable()}; see test_kernel_tests_pass_in_the_interpreter",
)


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(INTERPRETED, reason="this process uses the interpreter")
@pytest.mark.parametrize("cases", [QUICK, pytest.param(f"not ({QUICK})", marks=pytest.mark.slow)])
def test_kernel_tests_pass_in_the_interpreter(cases: str) -> None:
    child = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", cases, str(Path(__file__))],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stdout + child.stderr


def kernel_and_recurrence(
    arguments: list[Tensor], state_counts: bool = True, **sizes: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Return y, the last state and the gradients of all inputs, from the kernel and from the recurrence in float64.
    The loss depends on y and, if `state_counts` is set, on the last state."""
    ours = [t.detach().to(DEVICE).requires_grad_() for t in arguments]
    exact = [t.detach().double().requires_grad_() for t in arguments]
    results = []
    for scan, tensors in ((partial(scan_triton.selective_scan, **sizes), ours), (recurrence, exact)):
        y, last = scan(*tensors)
        weights = torch.linspace(-1, 2, y[0].numel(), dtype=torch.float64, device=y.device).view_as(y[0])
        loss = (y * weights).sum() + state_counts * last.double().square().sum()
        gradients = torch.autograd.grad(loss, tensors)
        results.append([t.detach().cpu() for t in (y, last, *gradients)])
    return results[0], results[1]


def assert_close(arguments: list[Tensor], tolerance: float = 1e-6, **sizes: int) -> None:
    for name, ours, exact in zip(NAMES, *kernel_and_recurrence(arguments, **sizes), strict=True):
        assert ours.isfinite().all(), name
        assert relative_error(ours.double(), exact) < tolerance, name


@runs_kernels
@pytest.mark.parametrize("tokens", [1, 2, 13, 16, 17, 50])
def test_the_kernel_equals_the_recurrence_at_every_length(tokens: int) -> None:
    """The lengths cover a partly filled chunk, a full chunk, and several chunks."""
    assert_close(inputs(batch=2, tokens=tokens), chunk=16)


@runs_kernels
def test_the_kernel_equals_the_recurrence_for_several_chunks_of_the_default_size() -> None:
    assert_close(inputs(batch=1, tokens=scan_triton.CHUNK + 2, state=1))


@runs_kernels
@pytest.mark.parametrize(("channels", "block"), [(1, 8), (8, 8), (11, 4), (17, 16)])
def test_the_number_of_channels_need_not_be_a_multiple_of_the_block_size(channels: int, block: int) -> None:
    assert_close(inputs(channels=channels), channels=block)


@runs_kernels
def test_results_do_not_depend_on_the_block_size_or_the_number_of_warps() -> None:
    assert_close(inputs(channels=7), channels=2, warps=2, chunk=8)


@runs_kernels
@pytest.mark.parametrize("dt", [1e-6, 0.7, 20.0])
def test_the_kernel_equals_the_recurrence_for_extreme_step_sizes(dt: float) -> None:
    arguments = inputs(batch=2, tokens=20)
    arguments[1] = torch.full_like(arguments[1], dt).requires_grad_()
    assert_close(arguments, 1e-5, chunk=16)


@runs_kernels
def test_the_gradient_of_the_step_size_is_accurate_for_strong_decays() -> None:
    """Two states are read with opposite signs, so the terms of the last token cancel, but the terms of the decayed
    states do not.
    """
    u, dt, A, B, C, h0 = (t.detach() for t in inputs(batch=1, tokens=3, channels=2, state=2))
    dt, A = torch.ones_like(dt), torch.tensor([[-14.0, -10.0]] * 2)
    B[:, -1], C[:, -1] = torch.ones(2), torch.tensor([1.0, -1.0])
    ours, exact = kernel_and_recurrence([u, dt, A, B, C, h0], state_counts=False)
    step = NAMES.index("dt")
    assert relative_error(ours[step][:, -1].double(), exact[step][:, -1]) < 1e-5


@runs_kernels
def test_views_of_a_projection_are_accepted() -> None:
    u, dt, A, B, C, h0 = inputs()
    wide = torch.cat([B, C], 2).detach().to(DEVICE)
    other_arguments = [t.detach().to(DEVICE) for t in (u, dt, A)]
    y, _ = scan_triton.selective_scan(*other_arguments, *wide.split(4, 2), h0.detach().to(DEVICE))
    expected, _ = recurrence(u, dt, A, B, C, h0)
    assert relative_error(y.cpu(), expected.detach()) < 1e-5


@runs_kernels
def test_bfloat16_inputs_have_bfloat16_gradients_and_a_float32_state() -> None:
    arguments = [t.detach().bfloat16() if i in (0, 3, 4) else t.detach() for i, t in enumerate(inputs())]
    ours, exact = kernel_and_recurrence(arguments)
    assert [t.dtype for t in ours[:2]] == [torch.bfloat16, torch.float32]
    assert [t.dtype for t in ours[2:]] == [t.dtype for t in arguments]
    for name, one, other in zip(NAMES, ours, exact, strict=True):
        assert relative_error(one.double(), other.double()) < 2e-2, name


@runs_kernels
def test_equal_inputs_give_identical_results() -> None:
    arguments = inputs(tokens=20)
    (one, _), (other, _) = kernel_and_recurrence(arguments, chunk=16), kernel_and_recurrence(arguments, chunk=16)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@runs_kernels
def test_the_custom_operations_pass_the_checks_of_torch() -> None:
    """`torch.library.opcheck` checks the schema, shapes on meta tensors, and autograd."""
    arguments = [t.detach().to(DEVICE) for t in inputs(batch=2, tokens=20, channels=3, state=2)]
    arguments[0], sizes = arguments[0].bfloat16(), (4, 4, 16)
    y, last, between = scan_triton._forward(*arguments, *sizes)
    torch.library.opcheck(scan_triton._backward, (*arguments, between, y, last, *sizes))
    torch.library.opcheck(scan_triton._forward, (*(t.requires_grad_() for t in arguments), *sizes))


def test_the_reason_for_unavailability_names_triton_or_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_triton, "find_spec", lambda name: None)
    assert "triton" in str(scan_triton.unavailable())
    monkeypatch.setattr(scan_triton, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert "CUDA" in str(scan_triton.unavailable())
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert scan_triton.unavailable() is None
