"""Contracts of the phases (condition, query, update, remove) and of states."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from iclbench.contracts.contract import (
    DEFAULT,
    Tolerance,
    ask_state,
    ask_targets,
    assert_close,
    contract,
    targets_of,
)
from iclbench.core.episodes import Episodes
from iclbench.core.predictor import Predictor, State


@contract()
def condition_and_query_equal_predict_targets(
    predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT
) -> None:
    """`condition` followed by `query` gives the answers of `predict_targets`, and a query does not change the state."""
    context, x = episodes.context, targets_of(episodes).x
    expected = ask_targets(predictor, episodes, context, x)
    state = predictor.condition(context, episodes.related)
    assert_close(ask_state(predictor, state, x), expected, tolerance, "condition and query differ from predict_targets")
    assert_close(ask_state(predictor, state, x), expected, tolerance, "a query changes the state")


@contract()
def update_equals_conditioning_on_everything(
    predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT
) -> None:
    """Updates with chunks of any size, even after an empty context, give the same answers as `condition` on all
    points."""
    context, x = episodes.context, targets_of(episodes).x
    expected = ask_targets(predictor, episodes, context, x)
    for cuts in ([0, 1], [context.count // 2], [0, 2, 3]):
        edges = [*cuts, context.count]
        state = predictor.condition(context.span(0, edges[0]), episodes.related)
        for start, stop in pairwise(edges):
            state = predictor.update(state, context.span(start, stop))
        answer = ask_state(predictor, state, x)
        assert_close(answer, expected, tolerance, f"updating at {cuts} differs from conditioning on everything")


@contract()
def states_can_be_indexed_and_saved(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT) -> None:
    """An indexed state gives the answers for the selected episodes, and a loaded state gives the same answers as the
    saved state."""
    context, x = episodes.context, targets_of(episodes).x
    state = predictor.condition(context, episodes.related)
    assert isinstance(state, State), f"condition returns a {type(state).__name__}, not a State"
    assert state.nbytes > 0, "the size of the state is 0 bytes"
    expected = ask_state(predictor, state, x)
    index = torch.tensor([len(context) - 1, 0])
    assert_close(
        ask_state(predictor, state[index], x[index]),
        expected[index],
        tolerance,
        "an indexed state gives different answers",
    )
    with tempfile.TemporaryDirectory() as folder:
        state.save(Path(folder) / "state.safetensors")
        loaded = type(state).load(Path(folder) / "state.safetensors")
    assert_close(
        ask_state(predictor, loaded, x), expected, tolerance, "a saved and loaded state gives different answers"
    )


@contract(lambda predictor: predictor.removes_points)
def removing_points_undoes_updating(predictor: Any, episodes: Episodes, tolerance: Tolerance = DEFAULT) -> None:
    """After `remove`, the answers are the same as before the points were added."""
    context, x = episodes.context, targets_of(episodes).x
    before = predictor.condition(context.span(0, 2), episodes.related)
    after = predictor.remove(predictor.update(before, context.span(2)), context.span(2))
    expected = ask_state(predictor, before, x)
    assert_close(ask_state(predictor, after, x), expected, tolerance, "removed points still change the answers")
