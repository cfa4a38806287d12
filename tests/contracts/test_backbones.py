"""Every registered backbone passes every contract, with every head that it supports."""

import json
from functools import lru_cache, partial

import pytest
import torch

from iclbench.backbones.base import Backbone, TaskShape
from iclbench.backbones.image_backbone import build_backbone
from iclbench.backbones.sequence import SequenceBackbone
from iclbench.backbones.sequence_model import UniformModel
from iclbench.contracts import CONTRACTS, Contract, Tolerance, example_episodes
from iclbench.contracts.examples import CLASSES, CONTEXT, episodes_of, example_shape, randomise_zeros
from iclbench.contracts.examples import build as build_for
from iclbench.core.errors import UsageError
from iclbench.registry import BACKBONES
from tests.contracts.cases import check_contracts, split_cases

# Small settings that together use every part of a model. A backbone that is not listed is built with its defaults.
SMALL: dict[str, list[dict[str, object]]] = {
    "gpt2": [
        {"layers": 2, "width": 16, "heads": 2, "init_std": 0.3},
        {"layers": 2, "width": 16, "heads": 2, "init_std": 0.3, "positions": "learned", "max_points": 40},
        {"layers": 2, "width": 16, "heads": 2, "init_std": 0.3, "positions": "sinusoidal", "read_in": "mlp"},
        {"layers": 2, "width": 16, "heads": 2, "init_std": 0.3, "positions": "rotary"},
        {"layers": 1, "width": 16, "heads": 2, "init_std": 0.3, "positions": "learned", "loops": 3, "loop_window": 2}
        | {"max_points": 40},
    ],
    "transformer": [{"layers": 2, "width": 16, "heads": 2}],
    "coqe": [
        {"layers": 2, "width": 16, "heads": 2, "init_std": 0.3},
        {"layers": 2, "width": 16, "heads": 2, "init_std": 0.3, "sample_dim": 5, "readout": "mlp"},
        {"layers": 2, "width": 16, "heads": 2, "init_std": 0.3, "positions": "rotary"},
        {"layers": 1, "width": 16, "heads": 2, "init_std": 0.3, "positions": "sinusoidal", "variant": "paper"},
    ],
    "mamba": [{"layers": 2, "width": 8, "state": 4, "dt_rank": 2}],
    **{
        name: [{"layers": 2, "width": 8, "heads": 2}]
        for name in (
            "linear-attention",
            "gla",
            "gated-deltanet",
            "kda",
            "rwkv7",
            "mlstm",
            "attention",
            "mesa",
            "fox",
            "path",
        )
    },
    "deltanet": [{"layers": 2, "width": 8, "heads": 2, "eigenvalues": "negative"}],
    "gated-deltaproduct": [{"layers": 2, "width": 8, "heads": 2, "householders": 3}],
    "based": [{"layers": 2, "width": 8, "heads": 2, "state": 3}],
    "retnet": [{"layers": 2, "width": 8, "heads": 2, "conv": 4}],
    "mamba2": [{"layers": 2, "width": 8, "heads": 2, "state": 4}],
    "mamba3": [
        {"layers": 2, "width": 8, "heads": 2, "state": 8},
        {"layers": 2, "width": 8, "heads": 2, "state": 4, "conv": 4},
    ],
    "lstm": [{"layers": 2, "width": 8}],
    "gru": [{"layers": 2, "width": 8, "conv": 4, "mlp": "swiglu"}],
    "hyena": [{"layers": 2, "width": 8, "max_points": 60}],
    "hybrid": [
        {
            "layers": 4,
            "width": 8,
            "heads": 2,
            "state": 4,
            "mixers": ["mamba2", "attention", "rwkv7", "hyena"],
            "max_points": 60,
        },
        {"layers": 3, "width": 8, "heads": 2, "mixers": ["rwkv7", "attention", "rwkv7"], "norm": "layer"},
        {"layers": 2, "width": 8, "heads": 2, "mixers": ["deltanet", "attention"], "loops": 3, "loop_window": 2},
    ],
    "mambaformer": [{"layers": 1, "width": 8, "heads": 2, "state": 4}],
    "s4": [{"layers": 2, "width": 8, "state": 8}],
    "s4d": [{"layers": 2, "width": 8, "state": 8}],
    "thp": [
        {"layers": 2, "width": 16, "heads": 2},
        {"layers": 2, "width": 9, "feedforward": 5, "decoder": 4, "encode": "time"},
    ],
    "lbanp": [{"layers": 2, "width": 8, "heads": 2, "hidden": 8, "latents": 3}],
    "cmanp": [{"layers": 2, "width": 8, "heads": 2, "hidden": 8, "latents": 3, "chunk": 2}],
    "cmanp-and": [{"layers": 2, "width": 8, "heads": 2, "hidden": 8, "latents": 3, "chunk": 2, "block": 2}],
    "cmhp": [
        {"layers": 2, "width": 8, "heads": 2, "hidden": 8, "latents": 3, "chunk": 2},
        {"layers": 1, "width": 8, "heads": 2, "hidden": 8, "latents": 3, "encode": "gap", "residual": "normed"},
    ],
    "cnp": [{"width": 8}],
    "icicl-cnp": [{"width": 8}],
    "two-path-cnp": [{"width": 8}],
    "np": [{"width": 8, "samples": 3, "train_samples": 2}],
    "bnp": [{"width": 8, "samples": 3, "train_samples": 2}],
    "canp": [{"width": 8, "heads": 2}],
    "anp": [{"width": 8, "heads": 2, "samples": 3, "train_samples": 2}],
    "banp": [{"width": 8, "heads": 2, "samples": 3, "train_samples": 2}],
    "tnp": [{"layers": 2, "width": 16, "heads": 2, "fourier": 2}],
    "tnp-d": [{"layers": 2, "width": 8, "heads": 2}],
    "tnp-nd": [
        {"layers": 2, "width": 8, "heads": 2},
        {"layers": 1, "width": 8, "heads": 2, "covariance": "low-rank"},
    ],
    "tnp-a": [{"layers": 1, "width": 8, "heads": 2, "samples": 3}],
    "eqtnp": [{"layers": 2, "width": 8, "heads": 2, "hidden": 8}],
    "cells": [{"layers": 2, "width": 8, "heads": 2, "hidden": 8, "fourier": 1}],
    "pt-tnp": [
        {"layers": 2, "width": 16, "heads": 2, "pseudo_tokens": 5},
        {"layers": 2, "width": 16, "heads": 2, "pseudo_tokens": 5, "style": "ist"},
    ],
    "icicl-tnp": [
        {"layers": 2, "width": 16, "heads": 2, "pseudo_tokens": 5, "related_pseudo_tokens": 4},
        {"layers": 2, "width": 16, "heads": 2, "pseudo_tokens": 5, "coupling": "direct"},
    ],
}
ONE_MIXER = [name for name in BACKBONES.architectures() if issubclass(BACKBONES.get(name), UniformModel)]
# `make test` checks fewer contracts for these models than for `hybrid`, which has the same code except for the mixers.
MIXER_MODELS = [*ONE_MIXER, "mambaformer"]
# The heads that are checked for some backbones. Their other heads need no separate checks, because they use the same
# code as a checked head, or the code of another backbone that is checked with every head. Backbones that are not listed
# are checked with every head.
HEADS: dict[str, tuple[str, ...]] = {
    "canp": ("gaussian", "categorical", "event"),
    "anp": ("gaussian", "categorical"),
    "banp": ("gaussian", "categorical"),
    "tnp-d": ("gaussian", "categorical", "event"),
    "tnp-nd": ("gaussian",),
    "tnp-a": ("point", "gaussian", "mixture", "bar", "categorical"),
    "eqtnp": ("gaussian", "categorical"),
    "cmanp-and": ("gaussian",),
    # These backbones differ from `hybrid` only in their mixers, and `hybrid` is checked with every head.
    "mambaformer": ("gaussian",),
    **dict.fromkeys(ONE_MIXER, ("gaussian",)),
}


def fast_heads(name: str) -> tuple[str, ...]:
    """Return the heads that `make test` checks."""
    return HEADS.get(name, BACKBONES.get(name).heads)


def is_slow_head(name: str, head: str) -> bool:
    """Return whether a head is checked only by `make test-slow`, which checks all combinations of mixers and heads."""
    return name in MIXER_MODELS and head not in fast_heads(name)


def all_heads(name: str) -> tuple[str, ...]:
    """Return the heads that `make test` or `make test-slow` checks."""
    return tuple(BACKBONES.get(name).heads) if name in MIXER_MODELS else fast_heads(name)


# The height and width of the smallest images that the encoders accept.
SIDE = 12


@lru_cache(1)
def build_on_images(name: str, encoder: str) -> Backbone:
    cls = BACKBONES.get(name)
    torch.manual_seed(0)
    shape = TaskShape(
        x_dim=SIDE * SIDE, points=12, classes=CLASSES, x_shape=(SIDE, SIDE), head="categorical", question="targets"
    )
    return randomise_zeros(build_backbone(cls, cls.Settings(**SMALL.get(name, [{}])[0], encoder=encoder), shape)).eval()


def build(name: str, settings: dict[str, object], head: str, related: int = 0) -> Backbone:
    """Build the backbone of a case. It is cached for all contracts of the case, which do not change it."""
    return _build_once(name, json.dumps(settings), head, related)


@lru_cache(1)
def _build_once(name: str, settings: str, head: str, related: int) -> Backbone:
    return build_for(name, BACKBONES.get(name), json.loads(settings), example_shape(head, related))


def reads_related(name: str, settings: dict[str, object]) -> bool:
    try:
        return build(name, settings, "gaussian", related=3).uses_related
    except UsageError:
        return False


def head_of_other_settings(name: str, settings: dict[str, object]) -> str:
    """Return the head that is used to check all settings of a backbone except the first."""
    if BACKBONES.get(name).reads_only_events():
        return "event"
    return "categorical" if "variant" in settings else "gaussian"


# The first settings of a backbone are combined with every head. Other settings, and tasks with related datasets, are
# combined with one head.
CASES = [
    (name, settings, head, related)
    for name in BACKBONES.architectures()
    for i, settings in enumerate(SMALL.get(name, [{}]))
    for head in (
        [*fast_heads(name), *filter(partial(is_slow_head, name), BACKBONES.get(name).heads)]
        if i == 0
        else [head_of_other_settings(name, settings)]
    )
    for related in ([0, 3] if head == "gaussian" and reads_related(name, settings) else [0])
]


# The heads `point`, `mixture` and `bar` use the same network as `gaussian`. For these heads, `make test` checks only
# the following contracts about decoded outputs, and `make test-slow` checks the others.
HEAD_CONTRACTS = {
    "answers_have_the_right_shape",
    "condition_and_query_equal_predict_targets",
    "the_last_layer_is_the_answer",
    "a_gradient_step_lowers_the_loss",
}
SETTINGS_CONTRACTS = HEAD_CONTRACTS | {"saved_weights_give_the_same_answers"}


# `make test` also checks only HEAD_CONTRACTS for models of SHARED_READ_OUT with a head other than `gaussian`. The
# read-in and read-out layers of these models belong to a base class, and the layers between them do not depend on the
# type of the labels. For classes and events, `make test` checks all contracts with other backbones of the same base
# class: `gpt2`, `hybrid`, `cnp`, `tnp`, and two-path models with pooling.
COMPLETE_SEQUENCE_MODELS = ("gpt2", "hybrid")
SHARED_READ_OUT = {
    *(name for name in BACKBONES.architectures() if issubclass(BACKBONES.get(name), SequenceBackbone)),
    *("lbanp", "cmanp", "eqtnp", "icicl-cnp", "pt-tnp", "icicl-tnp", "tnp-d", "canp", "anp", "banp"),
} - {*COMPLETE_SEQUENCE_MODELS}


# All sequence models read related datasets with the same code, as a prefix of the sequence. With related datasets,
# `make test` checks all contracts only for the first settings of COMPLETE_SEQUENCE_MODELS. For other sequence models it
# checks the contracts about related datasets and STATE_CONTRACTS, and for mixer models MIXER_CONTRACTS_WITH_RELATED.
# Other settings of a backbone differ from the first settings in one part of the model. For them, `make test` checks the
# contracts about related datasets, SETTINGS_CONTRACTS and STATE_CONTRACTS.
# `make test-slow` checks the remaining contracts. STATE_CONTRACTS are about points and queries that continue a state.
STATE_CONTRACTS = {
    "later_points_change_nothing",
    "separate_queries_are_answered",
    "condition_and_query_equal_predict_targets",
    "update_equals_conditioning_on_everything",
}
MIXER_CONTRACTS_WITH_RELATED = {
    "absent_related_datasets_equal_none",
    "related_datasets_of_batch_neighbours_change_nothing",
    "update_equals_conditioning_on_everything",
}
# Contracts about the code that prepares points and queries for any mixer. `make test` checks them for `hybrid`.
QUESTION_CONTRACTS = {
    "answers_are_deterministic",
    "targets_do_not_see_each_other",
    "the_order_of_the_targets_changes_nothing",
    "no_answer_sees_its_own_label",
    "the_two_questions_agree",
    "selected_prefixes_are_answered",
    "an_empty_context_works",
}


def is_slow(name: str, settings: dict[str, object], head: str, related: int, contract: Contract) -> bool:
    """Return whether only `make test-slow` checks a contract of a case."""
    shared_head = head in ("point", "mixture", "bar") or (name in SHARED_READ_OUT and head != "gaussian")
    shared_prefix = related and BACKBONES.get(name).order == "causal"
    # `cmanp-and` is `cmanp` with other outputs, so it is treated like other settings of `cmanp`.
    is_first = settings == SMALL.get(name, [{}])[0] and name != "cmanp-and"
    if name in COMPLETE_SEQUENCE_MODELS and is_first:
        shared_prefix = False
    has_mixers = name in MIXER_MODELS
    return (
        is_slow_head(name, head)
        or (shared_head and contract.name not in HEAD_CONTRACTS)
        or (has_mixers and contract.name in QUESTION_CONTRACTS)
        or (has_mixers and related and contract.name not in MIXER_CONTRACTS_WITH_RELATED)
        or (shared_prefix and not contract.needs_related and contract.name not in STATE_CONTRACTS)
        or (not (is_first or contract.needs_related) and contract.name not in SETTINGS_CONTRACTS | STATE_CONTRACTS)
    )


@pytest.mark.parametrize(("name", "settings", "head", "related", "contracts"), split_cases(CASES, is_slow))
def test_backbones_pass_the_contracts(
    name: str, settings: dict[str, object], head: str, related: int, contracts: list[Contract]
) -> None:
    backbone = build(name, settings, head, related)
    episodes = episodes_of(example_shape(head, related))
    check_contracts(contracts, backbone, episodes, Tolerance(2e-5, 1e-4))


# Every backbone is tested with the small image encoder. A causal model and a set model are also tested with a residual
# network.
IMAGE_CASES = [
    *(
        (name, "contours-64")
        for name in BACKBONES.architectures()
        if "categorical" in all_heads(name) and "images" in BACKBONES.get(name).input_kinds
    ),
    ("transformer", "resnet-64"),
    ("cmanp", "resnet-64"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "encoder"), IMAGE_CASES)
def test_backbones_pass_the_contracts_on_images(name: str, encoder: str) -> None:
    backbone = build_on_images(name, encoder)
    episodes = example_episodes(dim=SIDE * SIDE, points=CONTEXT, classes=CLASSES)
    check_contracts(CONTRACTS, backbone, episodes, Tolerance(2e-5, 1e-4))


def test_names_of_contracts_in_this_file_exist() -> None:
    selected = SETTINGS_CONTRACTS | STATE_CONTRACTS | MIXER_CONTRACTS_WITH_RELATED | QUESTION_CONTRACTS
    assert {contract.name for contract in CONTRACTS} > selected
