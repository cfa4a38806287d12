"""The hand-written GELU against the library's."""

import torch
import torch.nn.functional as F

from iclbench.backbones.activations import gelu_tanh


def test_values_and_gradients_equal_the_librarys_tanh_gelu() -> None:
    x = torch.linspace(-12, 12, 2001, requires_grad=True)
    weight = torch.randn(2001, generator=torch.Generator().manual_seed(0))
    (gelu_tanh(x) * weight).sum().backward()
    exact = x.detach().double().requires_grad_()
    (F.gelu(exact, approximate="tanh") * weight).sum().backward()
    assert torch.allclose(gelu_tanh(x).double(), F.gelu(exact, approximate="tanh"), atol=1e-6)
    assert torch.allclose(x.grad.double(), exact.grad, atol=2e-6)
