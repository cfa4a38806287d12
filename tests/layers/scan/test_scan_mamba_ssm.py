"""The adapter to the CUDA extension of mamba-ssm, with a substitute for the extension that runs without CUDA.

The two functions of the substitute have the arguments and checks of `selective_scan.cpp`, start from a zero state, and
give no gradient through the last state.
"""

import sys
from collections.abc import Iterator
from importlib import invalidate_caches
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from iclbench.layers.scan import scan_mamba_ssm
from iclbench.layers.scan.scan import resolve_backend
from tests.layers.scan.test_scan import inputs, recurrence, relative_error
from tests.refusals import refused

EXTENSION = "selective_scan_cuda"


def states_of_the_kernel(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> list[Tensor]:
    """Return the state `(B, D, S)` before the first token (zero) and after each token. Arguments are checked as in
    the kernel.
    """
    batch, channels, length = u.shape
    assert delta.shape == u.shape and A.shape[0] == channels
    assert B.shape == C.shape == (batch, 1, A.shape[1], length)
    assert all(t.stride(-1) == 1 and t.dtype == torch.float32 for t in (u, delta, A, B, C))
    states = [u.new_zeros(batch, *A.shape)]
    for t in range(length):
        added = (delta * u)[:, :, t, None] * B[:, :, :, t]
        states.append(torch.exp(delta[:, :, t, None] * A) * states[-1] + added)
    return states


def fwd(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: None, z: None, delta_bias: None, softplus: bool
) -> list[Tensor]:
    assert (D, z, delta_bias, softplus) == (None, None, None, False)
    _, *states = states_of_the_kernel(u, delta, A, B, C)
    out = torch.stack([(h * C[:, :, :, t]).sum(2) for t, h in enumerate(states)], 2)
    return [out, torch.zeros(*u.shape[:2], 1, 2 * A.shape[1])]


def bwd(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: None,
    z: None,
    delta_bias: None,
    dout: Tensor,
    x: Tensor,
    out: None,
    dz: None,
    softplus: bool,
    recompute: bool,
) -> list[Tensor | None]:
    assert (D, z, delta_bias, out, dz, softplus, recompute) == (None, None, None, None, None, False, False)
    assert dout.shape == u.shape and dout.dtype == u.dtype and dout.stride(-1) == 1
    assert x.is_contiguous() and x.shape == (*u.shape[:2], 1, 2 * A.shape[1])
    states = states_of_the_kernel(u, delta, A, B, C)
    du, ddelta, dA, dB, dC = (torch.zeros_like(t) for t in (u, delta, A, B, C))
    g = torch.zeros_like(states[0])
    for t in reversed(range(u.shape[2])):
        step, value, slope = delta[:, :, t, None], u[:, :, t, None], dout[:, :, t, None]
        decay, column = torch.exp(step * A), B[:, :, :, t]
        g = g + C[:, :, :, t] * slope
        grad_log = g * decay * states[t]
        du[:, :, t] = (g * column * step).sum(2)
        ddelta[:, :, t] = (g * column * value + grad_log * A).sum(2)
        dA += (grad_log * step).sum(0)
        dB[:, 0, :, t] = (g * step * value).sum(1)
        dC[:, 0, :, t] = (states[t + 1] * slope).sum(1)
        g = g * decay
    return [du, ddelta, dA, dB, dC, None, None]


@pytest.fixture
def extension(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(EXTENSION)
    module.fwd, module.bwd = fwd, bwd  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, EXTENSION, module)


@pytest.fixture
def extension_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The path where a test writes an extension that fails to load."""
    monkeypatch.delitem(sys.modules, EXTENSION, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    invalidate_caches()
    yield tmp_path / f"{EXTENSION}.py"
    sys.modules.pop(EXTENSION, None)


@pytest.mark.usefixtures("extension")
@pytest.mark.parametrize("tokens", [1, 11])
def test_initial_and_last_states_and_their_gradients_equal_the_recurrence(tokens: int) -> None:
    ours = [t.detach().requires_grad_() for t in inputs(tokens=tokens)]
    exact = [t.detach().double().requires_grad_() for t in ours]
    results = []
    for scan, arguments in ((scan_mamba_ssm.selective_scan, ours), (recurrence, exact)):
        y, last = scan(*arguments)
        weights = torch.linspace(-1, 2, y[0].numel(), dtype=torch.float64).view_as(y[0])
        gradients = torch.autograd.grad((y * weights).sum() + last.double().square().sum(), arguments)
        results.append([y.detach(), last.detach(), *gradients])
    for name, actual, expected in zip(["y", "last", "u", "dt", "A", "B", "C", "h0"], *results, strict=True):
        assert relative_error(actual.double(), expected) < 1e-6, name


@pytest.mark.usefixtures("extension")
def test_bfloat16_inputs_have_bfloat16_gradients_and_a_float32_state() -> None:
    arguments = [t.detach().bfloat16() if i in (0, 3, 4) else t.detach() for i, t in enumerate(inputs())]
    arguments = [t.requires_grad_() for t in arguments]
    y, last = scan_mamba_ssm.selective_scan(*arguments)
    assert (y.dtype, last.dtype) == (torch.bfloat16, torch.float32)
    gradients = torch.autograd.grad(y.float().sum() + last.sum(), arguments)
    assert [g.dtype for g in gradients] == [t.dtype for t in arguments]


@pytest.mark.slow
@pytest.mark.usefixtures("extension")
def test_the_custom_operations_pass_the_checks_of_torch() -> None:
    arguments = [t.detach().requires_grad_() for t in inputs()]
    torch.library.opcheck(scan_mamba_ssm._forward, tuple(arguments))
    detached = [t.detach() for t in arguments]
    y, last, saved = scan_mamba_ssm._forward(*detached)
    torch.library.opcheck(scan_mamba_ssm._backward, (*detached, saved, y, last))


@pytest.mark.usefixtures("extension")
def test_more_states_than_the_kernel_supports_are_refused() -> None:
    with refused("not-supported", "backbone.state=257", 256, "backbone.scan=auto"):
        scan_mamba_ssm.selective_scan(*inputs(batch=1, tokens=1, channels=1, state=257))


@pytest.mark.usefixtures("extension")
def test_the_back_end_is_available_if_the_extension_loads() -> None:
    assert scan_mamba_ssm.unavailable() is None


def test_the_back_end_is_unavailable_if_the_extension_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, EXTENSION, None)
    reason = scan_mamba_ssm.unavailable()
    assert reason is not None and EXTENSION in reason


@pytest.mark.parametrize(
    "error",
    ['ImportError("undefined symbol: _ZN3c10\\nsecond line")', 'OSError("libcudart.so.12: cannot open")'],
)
def test_the_back_end_is_unavailable_if_the_extension_fails_to_load(extension_path: Path, error: str) -> None:
    extension_path.write_text(f"raise {error}\n")
    reason = scan_mamba_ssm.unavailable()
    assert reason is not None and error.split('"')[1].split("\\n")[0] in reason
    assert "second line" not in reason
    with refused("not-supported", "backbone.scan=mamba-ssm", "backbone.scan=auto"):
        resolve_backend("mamba-ssm", torch.device("cuda"))


def test_the_reason_for_an_unavailable_back_end_names_the_missing_module(extension_path: Path) -> None:
    extension_path.write_text("import missing_module\n")
    reason = scan_mamba_ssm.unavailable()
    assert reason is not None and EXTENSION in reason and "missing_module" in reason
