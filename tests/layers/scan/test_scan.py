"""The selective scan in plain torch against a recurrence in float64, with shapes that reach every code path."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from iclbench.layers.scan import scan, scan_torch
from iclbench.layers.scan.scan import resolve_backend, selective_peek, selective_scan
from tests.refusals import refused


def inputs(
    batch: int = 3, tokens: int = 11, channels: int = 5, state: int = 4, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Return the arguments u, dt, A, B, C and h0 of a scan."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    dt = torch.exp(normal(batch, tokens, channels) - 2)
    A = -torch.exp(normal(channels, state))
    tensors = [
        normal(batch, tokens, channels),
        dt,
        A,
        normal(batch, tokens, state),
        normal(batch, tokens, state),
        normal(batch, state, channels),
    ]
    return [t.to(dtype).requires_grad_() for t in tensors]


def recurrence(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the scan step by step from its definition."""
    h, ys = h0, []
    for t in range(u.shape[1]):
        h = torch.exp(dt[:, t, None] * A.T) * h + (dt * u)[:, t, None] * B[:, t, :, None]
        ys.append((C[:, t, :, None] * h).sum(1))
    return torch.stack(ys, 1), h


def relative_error(ours: Tensor, expected: Tensor) -> float:
    return float((ours - expected).abs().max() / expected.abs().max())


def assert_equal_with_gradients(arguments: list[Tensor], tolerance: float) -> None:
    """Assert that both outputs and all six gradients equal the recurrence in float64."""
    exact = [t.detach().double().requires_grad_() for t in arguments]
    results = []
    for method, tensors in ((selective_scan, arguments), (recurrence, exact)):
        y, last = method(*tensors)
        weights = torch.linspace(-1, 2, y[0].numel(), dtype=y.dtype).view_as(y[0])
        gradients = torch.autograd.grad((y * weights).sum() + last.square().sum(), tensors)
        results.append([y.detach(), last.detach(), *gradients])
    for name, ours, theirs in zip(["y", "h", "u", "dt", "A", "B", "C", "h0"], *results, strict=True):
        assert relative_error(ours.double(), theirs) < tolerance, name


@pytest.mark.parametrize("tokens", [1, 2, 7, 8, 9, 16, 33])
def test_the_scan_equals_the_recurrence_at_every_length(tokens: int) -> None:
    assert_equal_with_gradients(inputs(tokens=tokens), 1e-6)


@pytest.mark.parametrize("channels", [1, 255, 256, 300])
def test_the_scan_equals_the_recurrence_for_few_and_many_channels(channels: int) -> None:
    assert_equal_with_gradients(inputs(channels=channels), 2e-6)


def test_tiling_the_batch_does_not_change_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_torch, "_TILE", 2 * 5 * 4)
    assert_equal_with_gradients(inputs(batch=5), 1e-6)


@pytest.mark.parametrize("dt", [1e-6, 0.7, 20.0, 200.0])
def test_the_scan_equals_the_recurrence_for_extreme_step_sizes(dt: float) -> None:
    """Cumulative sums in log space would be NaN for step sizes of 0.7 or more. With 40 equal decays, the same rounding
    error accumulates 40 times."""
    arguments = inputs(tokens=40)
    arguments[1] = torch.full_like(arguments[1], dt).requires_grad_()
    assert_equal_with_gradients(arguments, 2e-6)


def test_gradients_equal_finite_differences() -> None:
    arguments = inputs(batch=2, tokens=10, channels=3, state=2, dtype=torch.float64)
    assert torch.autograd.gradcheck(selective_scan, arguments)


def test_scanning_in_chunks_equals_one_scan() -> None:
    u, dt, A, B, C, h0 = inputs()
    complete, last = selective_scan(u, dt, A, B, C, h0)
    ys, h = [], h0
    for chunk in (slice(0, 1), slice(1, 6), slice(6, 11)):
        y, h = selective_scan(u[:, chunk], dt[:, chunk], A, B[:, chunk], C[:, chunk], h)
        ys.append(y)
    torch.testing.assert_close(torch.cat(ys, 1), complete)
    torch.testing.assert_close(h, last)


def test_peek_equals_one_step() -> None:
    u, dt, A, B, C, h0 = inputs()
    answers = selective_peek(h0, u, dt, A, B, C)
    for q in range(u.shape[1]):
        one = slice(q, q + 1)
        separate, _ = selective_scan(u[:, one], dt[:, one], A, B[:, one], C[:, one], h0)
        torch.testing.assert_close(answers[:, one], separate)


@pytest.mark.slow
def test_the_custom_operation_passes_the_checks_of_torch() -> None:
    torch.library.opcheck(scan_torch._forward, [t.detach() for t in inputs()])
    torch.library.opcheck(scan_torch._forward, inputs(), test_utils="test_autograd_registration")


@pytest.mark.slow
def test_torch_compile_treats_the_back_end_as_a_constant() -> None:
    marks = vars(torch.compiler.assume_constant_result(lambda: None)).items()
    assert marks and marks <= vars(scan._resolve_cached).items()
    code = "import sys, iclbench.backbones.mamba; assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_layer_saves_at_most_60_mb_for_the_backward_pass() -> None:
    """The training protocol has batches of 64 sequences of 82 tokens, 512 channels and 16 states. The states at all
    tokens take 172 MB, and autograd would save three such tensors."""
    saved: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        saved[t.data_ptr()] = t.numel() * t.element_size()
        return t

    arguments = inputs(64, 82, 512, 16)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        selective_scan(*arguments)
    assert sum(saved.values()) <= 60e6


@pytest.mark.parametrize("backend", ["triton", "mamba-ssm"])
@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is available")
def test_a_cuda_back_end_without_cuda_is_refused(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with refused("not-supported", f"backbone.scan={backend}", "backbone.scan=auto"):
        resolve_backend(backend, torch.device("cpu"))
    assert resolve_backend("auto", torch.device("cpu")) == "torch"


def test_cuda_kernels_are_not_used_for_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    class AvailableKernel:
        @staticmethod
        def unavailable() -> None:
            return None

    monkeypatch.setattr(scan, "_module", lambda backend: AvailableKernel)
    cuda = torch.device("cuda")
    assert resolve_backend("auto", cuda) == "triton"
    assert resolve_backend("auto", cuda, torch.float64) == "torch"
    with refused("not-supported", "backbone.scan=triton", "float64"):
        resolve_backend("triton", cuda, torch.float64)
