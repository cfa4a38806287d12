"""The Triton kernels against a float64 recurrence.

The cases run on CUDA where there is a device. Everywhere else they are skipped here and run by one test in a process of
their own, in Triton's interpreter, which must be chosen before Triton is first imported.
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
from tests.layers.scan.test_scan import inputs, recurrence, relative

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
NAMES = ["y", "last", "u", "dt", "A", "B", "C", "h0"]

# One case of every kind that takes a second or two in the interpreter; `make test-slow` runs the others.
QUICK = "length and (1 or 13 or 17) and not 16 or chunk or 11-4 or 0.7 or views or decays or bfloat16"

runs_kernels = pytest.mark.skipif(
    scan_triton.unavailable() is not None, reason=f"{scan_triton.unavailable()}; see test_in_the_interpreter"
)


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(INTERPRETED, reason="this is that process")
@pytest.mark.parametrize("cases", [QUICK, pytest.param(f"not ({QUICK})", marks=pytest.mark.slow)])
def test_in_the_interpreter(cases: str) -> None:
    child = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", cases, str(Path(__file__))],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stdout + child.stderr


def both(given: list[Tensor], state_counts: bool = True, **sizes: int) -> tuple[list[Tensor], list[Tensor]]:
    """y, the last state and the gradients of all inputs: ours, and in float64. The loss is of y and the last state."""
    ours = [t.detach().to(DEVICE).requires_grad_() for t in given]
    exact = [t.detach().double().requires_grad_() for t in given]
    results = []
    for scan, tensors in ((partial(scan_triton.selective_scan, **sizes), ours), (recurrence, exact)):
        y, last = scan(*tensors)
        weights = torch.linspace(-1, 2, y[0].numel(), dtype=torch.float64, device=y.device).view_as(y[0])
        loss = (y * weights).sum() + state_counts * last.double().square().sum()
        gradients = torch.autograd.grad(loss, tensors)
        results.append([t.detach().cpu() for t in (y, last, *gradients)])
    return results[0], results[1]


def assert_close(given: list[Tensor], tolerance: float = 1e-6, **sizes: int) -> None:
    for name, ours, exact in zip(NAMES, *both(given, **sizes), strict=True):
        assert ours.isfinite().all(), name
        assert relative(ours.double(), exact) < tolerance, name


@runs_kernels
@pytest.mark.parametrize("tokens", [1, 2, 13, 16, 17, 50])
def test_equals_the_recurrence_at_every_length(tokens: int) -> None:
    """One chunk that is not full, that is full, and several with a carried state."""
    assert_close(inputs(batch=2, tokens=tokens), chunk=16)


@runs_kernels
def test_the_sizes_that_are_used_take_more_than_one_chunk() -> None:
    assert_close(inputs(batch=1, tokens=scan_triton.CHUNK + 2, state=1))


@runs_kernels
@pytest.mark.parametrize(("channels", "block"), [(1, 8), (8, 8), (11, 4), (17, 16)])
def test_channels_that_do_not_fill_a_block(channels: int, block: int) -> None:
    assert_close(inputs(channels=channels), channels=block)


@runs_kernels
def test_blocks_of_other_sizes_and_another_number_of_warps() -> None:
    assert_close(inputs(channels=7), channels=2, warps=2, chunk=8)


@runs_kernels
@pytest.mark.parametrize("dt", [1e-6, 0.7, 20.0])
def test_extreme_step_sizes(dt: float) -> None:
    given = inputs(batch=2, tokens=20)
    given[1] = torch.full_like(given[1], dt).requires_grad_()
    assert_close(given, 1e-5, chunk=16)


@runs_kernels
def test_strong_decays_do_not_cancel_in_the_gradient_of_the_step() -> None:
    """Two states are read with opposite signs: what the last token adds cancels, what is left of the state does not."""
    u, dt, A, B, C, h0 = (t.detach() for t in inputs(batch=1, tokens=3, channels=2, state=2))
    dt, A = torch.ones_like(dt), torch.tensor([[-14.0, -10.0]] * 2)
    B[:, -1], C[:, -1] = torch.ones(2), torch.tensor([1.0, -1.0])
    ours, exact = both([u, dt, A, B, C, h0], state_counts=False)
    step = NAMES.index("dt")
    assert relative(ours[step][:, -1].double(), exact[step][:, -1]) < 1e-5


@runs_kernels
def test_views_of_a_projection_are_read_where_they_lie() -> None:
    u, dt, A, B, C, h0 = inputs()
    wide = torch.cat([B, C], 2).detach().to(DEVICE)
    rest = [t.detach().to(DEVICE) for t in (u, dt, A)]
    y, _ = scan_triton.selective_scan(*rest, *wide.split(4, 2), h0.detach().to(DEVICE))
    expected, _ = recurrence(u, dt, A, B, C, h0)
    assert relative(y.cpu(), expected.detach()) < 1e-5


@runs_kernels
def test_bfloat16_inputs_have_bfloat16_gradients_and_a_float32_state() -> None:
    given = [t.detach().bfloat16() if i in (0, 3, 4) else t.detach() for i, t in enumerate(inputs())]
    ours, exact = both(given)
    assert [t.dtype for t in ours[:2]] == [torch.bfloat16, torch.float32]
    assert [t.dtype for t in ours[2:]] == [t.dtype for t in given]
    for name, one, other in zip(NAMES, ours, exact, strict=True):
        assert relative(one.double(), other.double()) < 2e-2, name


@runs_kernels
def test_the_same_inputs_give_the_same_bits() -> None:
    given = inputs(tokens=20)
    (one, _), (other, _) = both(given, chunk=16), both(given, chunk=16)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@runs_kernels
def test_the_compiler_sees_sound_operations() -> None:
    """Schema, shapes without data, and autograd, as `torch.library` checks them."""
    given = [t.detach().to(DEVICE) for t in inputs(batch=2, tokens=20, channels=3, state=2)]
    given[0], sizes = given[0].bfloat16(), (4, 4, 16)
    y, last, between = scan_triton._forward(*given, *sizes)
    torch.library.opcheck(scan_triton._backward, (*given, between, y, last, *sizes))
    torch.library.opcheck(scan_triton._forward, (*(t.requires_grad_() for t in given), *sizes))


def test_says_why_it_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_triton, "find_spec", lambda name: None)
    assert scan_triton.unavailable() == "triton is not installed"
    monkeypatch.setattr(scan_triton, "find_spec", lambda name: name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert scan_triton.unavailable() == "no CUDA device was found"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert scan_triton.unavailable() is None
