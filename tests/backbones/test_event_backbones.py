"""THP and CMHP: masked events and open intervals do not change later predictions, and states can be saved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from iclbench.backbones.event_backbone import EventBackbone
from iclbench.core.episodes import Points
from iclbench.core.events import CENSORED, MARK
from tests.backbones import test_cmhp, test_thp
from tests.backbones.event_models import COUNT, assert_same, empty_queries, events, model

BOTH_MODELS = pytest.mark.parametrize(
    ("cls", "small"),
    [(test_thp.THP, test_thp.SMALL), (test_cmhp.CMHP, test_cmhp.SMALL)],
    ids=["thp", "cmhp"],
)


@BOTH_MODELS
@torch.no_grad()
def test_masked_events_do_not_change_predictions(cls: type[EventBackbone], small: dict[str, int]) -> None:
    backbone, context = model(cls, **small), events()
    garbage = replace(context, y=torch.where(context.mask.unsqueeze(-1), context.y, 1.7))
    next_answer, target_answer = backbone.predict_next(garbage), backbone.predict_targets(garbage, empty_queries())
    for b in range(2):
        valid = context.y[b : b + 1, context.mask[b]]
        unmasked = Points.full(valid[..., :0], valid)
        assert_same(next_answer[b : b + 1].at(context.mask[b]), backbone.predict_next(unmasked), 1e-12)
        assert_same(target_answer[b : b + 1], backbone.predict_targets(unmasked, empty_queries(1)), 1e-12)


@BOTH_MODELS
@torch.no_grad()
def test_the_open_interval_at_the_end_is_predicted_but_does_not_change_later_predictions(
    cls: type[EventBackbone], small: dict[str, int]
) -> None:
    backbone, context = model(cls, **small), events(masked=False)
    end = context.y[:, -1:].clone()
    end[..., MARK] = CENSORED
    observed = context.append(Points.full(end[..., :0], end))
    assert_same(
        backbone.predict_targets(observed, empty_queries()), backbone.predict_targets(context, empty_queries()), 1e-12
    )
    last = backbone.predict_next(observed).at(slice(COUNT, None))
    assert_same(last, backbone.predict_targets(context, empty_queries()), 1e-12)


@BOTH_MODELS
@torch.no_grad()
def test_loaded_states_give_identical_predictions_before_and_after_an_update(
    cls: type[EventBackbone], small: dict[str, int], tmp_path: Path
) -> None:
    backbone, context, new_events = model(cls, **small), events(), events(3)
    state = backbone.condition(context)
    backbone.save_state(state, tmp_path / "state")
    reloaded = model(cls, **small)
    loaded = reloaded.load_state(tmp_path / "state")
    for a, b in ((loaded, state), (reloaded.update(loaded, new_events), backbone.update(state, new_events))):
        assert_same(reloaded.query(a, empty_queries()), backbone.query(b, empty_queries()), 0.0)
