"""What the answers of both models for event sequences may depend on: no masked event, no open interval."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from iclbench.backbones.event_backbone import EventBackbone
from iclbench.core.episodes import Points
from iclbench.core.events import CENSORED, MARK
from tests.backbones import test_cmhp, test_thp
from tests.backbones.event_models import COUNT, assert_same, events, model, nothing_asked

BOTH = pytest.mark.parametrize(
    ("cls", "small"),
    [(test_thp.THP, test_thp.SMALL), (test_cmhp.CMHP, test_cmhp.SMALL)],
    ids=["thp", "cmhp"],
)


@BOTH
@torch.no_grad()
def test_masked_events_are_not_there_whatever_they_hold(cls: type[EventBackbone], small: dict[str, int]) -> None:
    own, context = model(cls, **small), events()
    garbage = replace(context, y=torch.where(context.mask.unsqueeze(-1), context.y, 1.7))
    found, asked = own.predict_next(garbage), own.predict_targets(garbage, nothing_asked())
    for b in range(2):
        kept = context.y[b : b + 1, context.mask[b]]
        alone = Points.full(kept[..., :0], kept)
        assert_same(found[b : b + 1].at(context.mask[b]), own.predict_next(alone), 1e-12)
        assert_same(asked[b : b + 1], own.predict_targets(alone, nothing_asked(1)), 1e-12)


@BOTH
@torch.no_grad()
def test_the_open_interval_at_the_end_is_asked_and_never_read(cls: type[EventBackbone], small: dict[str, int]) -> None:
    own, context = model(cls, **small), events(holes=False)
    end = context.y[:, -1:].clone()
    end[..., MARK] = CENSORED
    observed = context.append(Points.full(end[..., :0], end))
    assert_same(own.predict_targets(observed, nothing_asked()), own.predict_targets(context, nothing_asked()), 1e-12)
    last = own.predict_next(observed).at(slice(COUNT, None))
    assert_same(last, own.predict_targets(context, nothing_asked()), 1e-12)
