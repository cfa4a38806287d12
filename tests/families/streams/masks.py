"""A check that predictors of tokens do not read masked tokens."""

from __future__ import annotations

from dataclasses import replace

import torch

from iclbench.core.episodes import Points
from iclbench.core.predictor import Predictor


def assert_masked_tokens_are_not_read(predictor: Predictor, points: Points, other_token: int) -> None:
    """Check that predictions for eight words of 30 tokens, of which 40 % are masked and replaced by `other_token`,
    equal the predictions for the words without the masked tokens."""
    mask = torch.rand(8, 30, generator=torch.Generator().manual_seed(0)) < 0.6
    masked_points = replace(points, y=points.y.masked_fill(~mask, other_token), mask=mask)
    answer = predictor.predict_next(masked_points).logits
    for b in range(8):
        alone = Points.full(points.x[b : b + 1, mask[b]], points.y[b : b + 1, mask[b]])
        torch.testing.assert_close(answer[b, mask[b]], predictor.predict_next(alone).logits[0])
