"""Growth of memory with the size of the context, as in table 1 of the CMANP paper (arXiv 2306.12599)."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from iclbench.core.episodes import Points
from iclbench.core.task import TaskShape
from iclbench.evaluation.costs.live_bytes import LiveBytes
from iclbench.registry import BACKBONES

SMALL = {"layers": 2, "width": 16, "heads": 2}


@pytest.mark.parametrize(
    ("name", "lower", "upper"), [("tnp-d", 3, 4), ("eqtnp", 3, 4), ("lbanp", 1.5, 2), ("cmanp", 1, 1.05)]
)
def test_memory_grows_by_the_expected_factor_if_the_context_doubles(name: str, lower: float, upper: float) -> None:
    """Memory is quadratic, linear or constant in the size of the context if attention scores are stored as a matrix
    (without a fused kernel)."""
    cls = BACKBONES.get(name)
    latent_sizes = {"latents": 64, "hidden": 16} if name in ("lbanp", "cmanp") else {}
    model = cls(cls.Settings(**SMALL, **latent_sizes), TaskShape(2, 8, head="gaussian", question="targets")).eval()

    def peak(count: int) -> int:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), LiveBytes() as live:
            model.condition(Points.full(torch.randn(1, count, 2), torch.randn(1, count, 1)))
        return live.peak

    assert lower <= peak(1024) / peak(512) <= upper
