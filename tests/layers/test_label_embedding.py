"""Label embeddings are initialised at the small scale of Chan et al. 2022, which in-context learning depends on."""

import pytest
import scipy.stats
import torch
from torch import nn

from iclbench.backbones.base import TaskShape
from iclbench.backbones.image_backbone import build_backbone
from iclbench.registry import BACKBONES

CLASSES = 500
# `modules/embedding.py` of Chan et al. uses TruncatedNormal(stddev=0.02) of Haiku, which is truncated at two standard
# deviations.
DISTRIBUTION = scipy.stats.truncnorm(-2, 2, scale=0.02)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gpt2", {"layers": 1, "width": 16, "heads": 2}),
        ("coqe", {"layers": 1, "width": 16, "heads": 2}),
        ("mamba", {"layers": 1, "width": 16}),
        ("transformer", {"layers": 1, "width": 16, "heads": 2}),
    ],
)
def test_label_embeddings_are_initialised_from_a_truncated_normal_distribution(
    name: str, settings: dict[str, int]
) -> None:
    """Embeddings with PyTorch's standard deviation of 1, or initialised like the other weights of a model, would
    dominate their tokens.
    """
    torch.manual_seed(0)
    shape = TaskShape(x_dim=256, points=4, classes=CLASSES, head="categorical", question="targets", x_shape=(16, 16))
    cls = BACKBONES.get(name)
    model = build_backbone(cls, cls.Settings(**settings), shape)
    tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding) and len(m.weight) == CLASSES]
    assert tables
    for table in tables:
        values = table.detach().flatten().double().numpy()
        assert values.std() == pytest.approx(DISTRIBUTION.std(), rel=0.03)
        assert abs(values).max() <= 0.04
        assert scipy.stats.kstest(values, DISTRIBUTION.cdf).pvalue > 1e-3
