"""Embeddings of class labels start as small as those of Chan et al. 2022: in-context learning hangs on it."""

import pytest
import scipy.stats
import torch
from torch import nn

from iclbench.backbones.base import TaskShape
from iclbench.backbones.image_backbone import for_task
from iclbench.registry import BACKBONES

CLASSES = 500
# `modules/embedding.py` of their code: haiku's TruncatedNormal(stddev=0.02), which is cut off at two of them.
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
def test_labels_start_at_a_fiftieth(name: str, settings: dict[str, int]) -> None:
    """With PyTorch's 1, or with each model's own deviation for its weights, labels drown what they stand beside."""
    torch.manual_seed(0)
    shape = TaskShape(x_dim=256, points=4, classes=CLASSES, head="categorical", question="targets", x_shape=(16, 16))
    cls = BACKBONES.get(name)
    model = for_task(cls, cls.Settings(**settings), shape)
    tables = [part.weight for part in model.modules() if isinstance(part, nn.Embedding) and len(part.weight) == CLASSES]
    assert tables
    for table in tables:
        drawn = table.detach().flatten().double().numpy()
        assert drawn.std() == pytest.approx(START.std(), rel=0.03)
        assert abs(drawn).max() <= 0.04
        assert scipy.stats.kstest(drawn, START.cdf).pvalue > 1e-3
