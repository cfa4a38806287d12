"""The adapter to mamba-ssm's CUDA extension, without CUDA: a stand-in with its interface and its restrictions.

The stand-in's two functions take the arguments of `selective_scan.cpp`, insist on what it insists on, start from zero,
and give no gradient through the last state.
"""

import sys
from collections.abc import Iterator
from importlib import invalidate_caches
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from iclbench.core.errors import UsageError
from iclbench.layers.scan import scan_mamba_ssm
from iclbench.layers.scan.scan import resolved_backend
from tests.layers.scan.test_scan import inputs, recurrence, relative

EXTENSION = "selective_scan_cuda"


def states_of_the_kernel(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> list[Tensor]:
    """`(B, D, S)` before the first token, which is zero, and after each; checks what the kernel insists on."""
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
        now, value, slope = delta[:, :, t, None], u[:, :, t, None], dout[:, :, t, None]
        decay, column = torch.exp(now * A), B[:, :, :, t]
        g = g + C[:, :, :, t] * slope
        grad_log = g * decay * states[t]
        du[:, :, t] = (g * column * now).sum(2)
        ddelta[:, :, t] = (g * column * value + grad_log * A).sum(2)
        dA += (grad_log * now).sum(0)
        dB[:, 0, :, t] = (g * now * value).sum(1)
        dC[:, 0, :, t] = (states[t + 1] * slope).sum(1)
        g = g * decay
    return [du, ddelta, dA, dB, dC, None, None]


@pytest.fixture
def extension(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(EXTENSION)
    module.fwd, module.bwd = fwd, bwd  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, EXTENSION, module)


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a module that is found but does not load may be written."""
    monkeypatch.delitem(sys.modules, EXTENSION, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    invalidate_caches()
    yield tmp_path / f"{EXTENSION}.py"
    sys.modules.pop(EXTENSION, None)


@pytest.mark.usefixtures("extension")
@pytest.mark.parametrize("tokens", [1, 11])
def test_initial_and_last_state_go_through_a_kernel_that_knows_neither(tokens: int) -> None:
    ours = [t.detach().requires_grad_() for t in inputs(tokens=tokens)]
    exact = [t.detach().double().requires_grad_() for t in ours]
    results = []
    for scan, given in ((scan_mamba_ssm.selective_scan, ours), (recurrence, exact)):
        y, last = scan(*given)
        weights = torch.linspace(-1, 2, y[0].numel(), dtype=torch.float64).view_as(y[0])
        gradients = torch.autograd.grad((y * weights).sum() + last.double().square().sum(), given)
        results.append([y.detach(), last.detach(), *gradients])
    for name, one, other in zip(["y", "last", "u", "dt", "A", "B", "C", "h0"], *results, strict=True):
        assert relative(one.double(), other) < 1e-6, name


@pytest.mark.usefixtures("extension")
def test_bfloat16_inputs_have_bfloat16_gradients_and_a_float32_state() -> None:
    given = [t.detach().bfloat16() if i in (0, 3, 4) else t.detach() for i, t in enumerate(inputs())]
    given = [t.requires_grad_() for t in given]
    y, last = scan_mamba_ssm.selective_scan(*given)
    assert (y.dtype, last.dtype) == (torch.bfloat16, torch.float32)
    gradients = torch.autograd.grad(y.float().sum() + last.sum(), given)
    assert [g.dtype for g in gradients] == [t.dtype for t in given]


@pytest.mark.slow
@pytest.mark.usefixtures("extension")
def test_the_compiler_sees_sound_operations() -> None:
    given = [t.detach().requires_grad_() for t in inputs()]
    torch.library.opcheck(scan_mamba_ssm._forward, tuple(given))
    detached = [t.detach() for t in given]
    y, last, kept = scan_mamba_ssm._forward(*detached)
    torch.library.opcheck(scan_mamba_ssm._backward, (*detached, kept, y, last))


@pytest.mark.usefixtures("extension")
def test_more_states_than_the_kernel_has_are_refused() -> None:
    with pytest.raises(UsageError, match=r"backbone\.state=257.*256"):
        scan_mamba_ssm.selective_scan(*inputs(batch=1, tokens=1, channels=1, state=257))


@pytest.mark.usefixtures("extension")
def test_available_where_it_loads() -> None:
    assert scan_mamba_ssm.unavailable() is None


def test_unavailable_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, EXTENSION, None)
    assert scan_mamba_ssm.unavailable() == f"the extension '{EXTENSION}' of mamba-ssm is not installed"


@pytest.mark.parametrize(
    "error",
    ['ImportError("undefined symbol: _ZN3c10\\nsecond line")', 'OSError("libcudart.so.12: cannot open")'],
)
def test_found_but_does_not_load(broken: Path, error: str) -> None:
    broken.write_text(f"raise {error}\n")
    reason = scan_mamba_ssm.unavailable()
    assert reason is not None and "found but does not load" in reason
    assert "second line" not in reason
    with pytest.raises(UsageError, match=r"backbone\.scan=mamba-ssm.*does not load"):
        resolved_backend("mamba-ssm", torch.device("cuda"))


def test_a_module_that_it_misses_is_named(broken: Path) -> None:
    broken.write_text("import a_module_that_is_not_there\n")
    reason = scan_mamba_ssm.unavailable()
    assert reason is not None and "does not load" in reason and "a_module_that_is_not_there" in reason
