"""Contracts of trainable backbones: layers, loss and weights."""

from __future__ import annotations

import copy
import tempfile
from typing import Any

import torch
from torch import Tensor, nn

from iclbench.contracts.contract import DEFAULT, Tolerance, ask_next, ask_targets, assert_close, contract, targets_of
from iclbench.core.episodes import Episodes
from iclbench.core.predictor import Predictor


@contract(lambda predictor: bool(getattr(predictor, "has_layers", False)))
def the_last_layer_is_the_answer(predictor: Any, episodes: Episodes, tolerance: Tolerance = DEFAULT) -> None:
    """The last entry of `predict_by_layer` equals the answer of `predict_targets`."""
    context, x = episodes.context, targets_of(episodes).x
    with torch.no_grad():
        layers = predictor.predict_by_layer(context, x, episodes.related)
    expected = ask_targets(predictor, episodes, context, x)
    assert_close(layers[-1].marginals, expected, tolerance, "the last layer's prediction differs from predict_targets")


def _is_trainable(predictor: Predictor) -> bool:
    return isinstance(predictor, nn.Module) and hasattr(predictor, "loss")


# Step lengths, tried in this order. The largest may be too long to decrease the loss of a narrow model.
_STEP_LENGTHS = (1e-3, 1e-4, 1e-5)


@contract(_is_trainable)
def a_gradient_step_lowers_the_loss(predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT) -> None:
    """A small step along the negative gradient lowers the loss on the same batch with the same noise."""
    model = copy.deepcopy(predictor)
    assert isinstance(model, nn.Module)
    loss_before = _loss(model, episodes)
    loss_before.backward()
    parameters = [(p, p.detach().clone(), p.grad) for p in model.parameters() if p.grad is not None]
    assert parameters, "no parameter has a gradient"
    norm = torch.stack([gradient.norm() for *_, gradient in parameters]).norm()
    assert bool(norm.isfinite()) and norm > 0, f"the gradient's norm is {norm.item()}"
    with torch.no_grad():
        for size in _STEP_LENGTHS:
            for p, start, gradient in parameters:
                p.copy_(start - size * gradient / norm)
            loss_after = _loss(model, episodes)
            if loss_after < loss_before:
                return
    raise AssertionError(f"the loss is {loss_before.item():.6g} before the step and {loss_after.item():.6g} after it")


@contract(_is_trainable)
def saved_weights_give_the_same_answers(
    predictor: Predictor, episodes: Episodes, tolerance: Tolerance = DEFAULT
) -> None:
    """A model gives the same answers after its weights are saved to a file and loaded."""
    from safetensors.torch import load_model, save_model

    loaded_model = copy.deepcopy(predictor)
    assert isinstance(predictor, nn.Module) and isinstance(loaded_model, nn.Module)
    with torch.no_grad():
        for p in loaded_model.parameters():
            p.zero_()
    with tempfile.TemporaryDirectory() as folder:
        save_model(predictor, f"{folder}/weights.safetensors")
        load_model(loaded_model, f"{folder}/weights.safetensors")
    expected = ask_next(predictor, episodes, episodes.context)
    answer = ask_next(loaded_model, episodes, episodes.context)
    assert_close(answer, expected, tolerance, "loaded weights give different answers")


def _loss(predictor: Any, episodes: Episodes) -> Tensor:
    return predictor.loss(episodes, 1.0, torch.Generator(episodes.context.x.device).manual_seed(0))[0]
