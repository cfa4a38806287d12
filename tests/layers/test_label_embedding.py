"""Embeddings of class labels start as small as those of Chan et al. 2022; in-context learning depends on it."""

import pytest
import scipy.stats
import torch
from torch import nn

from iclbench.backbones.base import TaskShape
from iclbench.backbones.image_backbone import build_backbone
from iclbench.registry import BACKBONES

CLASSES = 500
# `modules/embedding.py` of their code: haiku's TruncatedNormal(stddev=0.02), truncated at two standard deviations.
START = scipy.stats.truncnorm(-2, 2, scale=0.02)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gpt2", {"layers": 1, "width": 16, "heads": 2}),
        ("coqe", {"layers": 1, "width": 16, "heads": 2}),
        ("mamba", {"layers": 1, "width": 16}),
        ("transformer", {"layers": 1, "width": 16, "heads": 2}),
    ],
)
def test_label_embeddings_start_with_a_standard_deviation_of_0_02(name: str, settings: dict[str, int]) -> None:
    """With PyTorch's standard deviation of 1, or with that of a model's other weights, labels dominate their tokens."""
    torch.manual_seed(0)
    shape = TaskShape(x_dim=256, points=4, classes=CLASSES, head="categorical", question="targets", x_shape=(16, 16))
    cls = BACKBONES.get(name)
    model = build_backbone(cls, cls.Settings(**settings), shape)
    tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding) and len(m.weight) == CLASSES]
    assert tables
    for table in tables:
        values = table.detach().flatten().double().numpy()
        assert values.std() == pytest.approx(START.std(), rel=0.03)
        assert abs(values).max() <= 0.04
        assert scipy.stats.kstest(values, START.cdf).pvalue > 1e-3
