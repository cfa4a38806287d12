"""The hand-written GELU against `F.gelu`."""

import pytest
import torch
import torch.nn.functional as F

from iclbench.layers.activations import gelu_tanh


@pytest.mark.parametrize(("rows", "columns"), [(3, 667), (2, 70_000)], ids=["one chunk", "several chunks"])
@pytest.mark.parametrize("transposed", [False, True])
def test_values_and_gradients_equal_torch_gelu(rows: int, columns: int, transposed: bool) -> None:
    x = torch.linspace(-12, 12, rows * columns).view(rows, columns)
    x = (x.T if transposed else x).detach().requires_grad_()
    weight = torch.randn(columns, rows, generator=torch.Generator().manual_seed(0)).T
    weight = weight.T if transposed else weight
    (gelu_tanh(x) * weight).sum().backward()
    exact = x.detach().double().requires_grad_()
    (F.gelu(exact, approximate="tanh") * weight).sum().backward()
    assert torch.allclose(gelu_tanh(x).double(), F.gelu(exact, approximate="tanh"), atol=1e-6)
    assert torch.allclose(x.grad.double(), exact.grad, atol=2e-6)


def test_a_second_derivative_is_refused() -> None:
    """A second derivative would be silently wrong, because the saved gate is treated as a constant, although it depends
    on x."""
    x = torch.linspace(-1, 1, 5, requires_grad=True)
    (slope,) = torch.autograd.grad(gelu_tanh(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()
