"""Every registered backbone keeps every contract, with every head it has."""

import json
from functools import lru_cache, partial

import pytest
import torch

from iclbench.backbones.base import Backbone, TaskShape
from iclbench.backbones.image_backbone import for_task
from iclbench.backbones.sequence import SequenceBackbone
from iclbench.backbones.sequence_model import UniformModel
from iclbench.contracts import CONTRACTS, Contract, Tolerance, example_episodes
from iclbench.contracts.examples import CLASSES, CONTEXT, episodes_of, example_shape, without_zeros
from iclbench.contracts.examples import build as build_for
from iclbench.core.errors import UsageError
from iclbench.registry import BACKBONES
from tests.contracts.together import check, picked

# Small settings that still have every part; a backbone that is not listed is built with its defaults.
SMALL: dict[str, list[dict[str, object]]] = {
    "gpt2": [
        {"layers": 2, "width": 16, "heads": 2, "init_std": 0.3},
        {"layers": 2, "width": 16, "heads": 2, "init_std": 0.3, "positions": "learned", "max_points": 40},
        {"layers": 2, "width": 16, "heads": 2, "init_std": 0.3, "positions": "sinusoidal", "read_in": "mlp"},
        {"layers": 2, "width": 16, "heads": 2, "init_std": 0.3, "positions": "rotary"},
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
        for name in ("linear-attention", "gla", "deltanet", "gated-deltanet", "kda", "rwkv7", "mlstm", "attention")
    },
    "based": [{"layers": 2, "width": 8, "heads": 2, "state": 3}],
    "retnet": [{"layers": 2, "width": 8, "heads": 2, "conv": 4}],
    "mamba2": [{"layers": 2, "width": 8, "heads": 2, "state": 4}],
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
    "pt-tnp": [
        {"layers": 2, "width": 16, "heads": 2, "pseudo_tokens": 5},
        {"layers": 2, "width": 16, "heads": 2, "pseudo_tokens": 5, "style": "ist"},
    ],
    "icicl-tnp": [
        {"layers": 2, "width": 16, "heads": 2, "pseudo_tokens": 5, "related_pseudo_tokens": 4},
        {"layers": 2, "width": 16, "heads": 2, "pseudo_tokens": 5, "coupling": "direct"},
    ],
}
MIXERS_ALONE = [name for name in BACKBONES.architectures() if issubclass(BACKBONES.get(name), UniformModel)]
# `hybrid` has all contracts in every run, and stands for all of these.
OF_MIXERS = [*MIXERS_ALONE, "mambaformer"]
# Heads of those whose other heads take the same way, or that of the backbone they derive from (which they equal then:
# tests of theirs), or of the one with pooled encoders in place of attentive ones; of all others every head.
HEADS: dict[str, tuple[str, ...]] = {
    "canp": ("gaussian", "categorical", "event"),
    "anp": ("gaussian", "categorical"),
    "banp": ("gaussian", "categorical"),
    "tnp-d": ("gaussian", "categorical", "event"),
    "tnp-nd": ("gaussian",),
    "tnp-a": ("point", "gaussian", "mixture", "categorical"),
    "eqtnp": ("gaussian", "categorical"),
    "cmanp-and": ("gaussian",),
    # `hybrid` of its mixers.
    "mambaformer": ("gaussian",),
    # Sequence models of one mixer differ in the mixer alone, and `hybrid` has every head.
    **dict.fromkeys(MIXERS_ALONE, ("gaussian",)),
}


def heads_of(name: str) -> tuple[str, ...]:
    return HEADS.get(name, BACKBONES.get(name).heads)


def thinned(name: str, head: str) -> bool:
    """Whether a head is left to `make test-slow`, which has the full product of mixers and heads."""
    return name in OF_MIXERS and head not in heads_of(name)


def all_heads_of(name: str) -> tuple[str, ...]:
    """With those of `make test-slow`."""
    return tuple(BACKBONES.get(name).heads) if name in OF_MIXERS else heads_of(name)


# Height and width of the smallest images.
SIDE = 12


@lru_cache(1)
def build_on_images(name: str, encoder: str) -> Backbone:
    cls = BACKBONES.get(name)
    torch.manual_seed(0)
    shape = TaskShape(
        x_dim=SIDE * SIDE, points=12, classes=CLASSES, x_shape=(SIDE, SIDE), head="categorical", question="targets"
    )
    return without_zeros(for_task(cls, cls.Settings(**SMALL.get(name, [{}])[0], encoder=encoder), shape)).eval()


def build(name: str, settings: dict[str, object], head: str, related: int = 0) -> Backbone:
    """The contracts leave a backbone as it was: all of one case are about the same one."""
    return _built(name, json.dumps(settings), head, related)


@lru_cache(1)
def _built(name: str, settings: str, head: str, related: int) -> Backbone:
    return build_for(name, BACKBONES.get(name), json.loads(settings), example_shape(head, related))


def reads_related(name: str, settings: dict[str, object]) -> bool:
    try:
        return build(name, settings, "gaussian", related=3).uses_related
    except UsageError:
        return False


def other_head(name: str, settings: dict[str, object]) -> str:
    """The head that the further settings of a backbone are for."""
    if BACKBONES.get(name).events_only:
        return "event"
    return "categorical" if "variant" in settings else "gaussian"


# Every head with the first settings of a backbone; the other settings, and tasks with related datasets, with one head:
# the one that they are for.
CASES = [
    (name, settings, head, related)
    for name in BACKBONES.architectures()
    for i, settings in enumerate(SMALL.get(name, [{}]))
    for head in (
        [*heads_of(name), *filter(partial(thinned, name), BACKBONES.get(name).heads)]
        if i == 0
        else [other_head(name, settings)]
    )
    for related in ([0, 3] if head == "gaussian" and reads_related(name, settings) else [0])
]


# A point and a mixture are read from the same network as a Gaussian is. Those contracts are asked of them in every run
# that look at what is read; all others by `make test-slow`.
OF_A_HEAD = {
    "answers_have_the_right_shape",
    "phases_equal_the_question",
    "the_last_layer_is_the_answer",
    "a_gradient_step_lowers_the_loss",
}
OF_SETTINGS = OF_A_HEAD | {"saved_weights_give_the_same_answers"}


# So it is with every head of these: what they do between read-in and read-out knows nothing of labels and marks, and
# both they have from a class whose other backbones keep all contracts with classes and events in every run: `gpt2` and
# `hybrid`, `cnp`, `tnp`, and of those with two paths the ones that pool.
ALL_OF_A_SEQUENCE = ("gpt2", "hybrid")
READ_ALIKE = {
    *(name for name in BACKBONES.architectures() if issubclass(BACKBONES.get(name), SequenceBackbone)),
    *("lbanp", "cmanp", "eqtnp", "icicl-cnp", "pt-tnp", "icicl-tnp", "tnp-d", "canp", "anp", "banp"),
} - {*ALL_OF_A_SEQUENCE}


# Related datasets stand before a sequence alike for all sequence models: with the first settings of two of them all
# contracts are kept in every run. Of others those are asked that are about related datasets, or about points and
# queries that come after a state (of models of one mixer, where both meet in it); all others by `make test-slow`. Of a
# backbone with further settings, which differ from its first ones in one part, those are asked that look at what is
# read and at what comes after a state.
OF_A_STATE = {
    "later_points_change_nothing",
    "shifted_queries_are_answered",
    "phases_equal_the_question",
    "update_equals_conditioning_on_everything",
}
OF_A_MIXER_WITH_RELATED = {
    "absent_related_datasets_equal_none",
    "related_datasets_of_batch_neighbours_change_nothing",
    "update_equals_conditioning_on_everything",
}
# What sequence models do alike with points and questions before a mixer sees them: `hybrid` stands for those of mixers.
OF_THE_QUESTION = {
    "asking_twice_gives_the_same",
    "targets_do_not_see_each_other",
    "the_order_of_the_targets_changes_nothing",
    "no_answer_sees_its_own_label",
    "the_two_questions_agree",
    "chosen_prefixes_are_answered",
    "an_empty_context_works",
}


def left_of(name: str, settings: dict[str, object], head: str, related: int, contract: Contract) -> bool:
    """Whether a contract of a case is left to `make test-slow`."""
    once = head in ("point", "mixture") or (name in READ_ALIKE and head != "gaussian")
    shared = related and BACKBONES.get(name).order == "causal"
    # `cmanp-and` is `cmanp` with other answers: what is read, and what comes after a state, is asked of it.
    first = settings == SMALL.get(name, [{}])[0] and name != "cmanp-and"
    if name in ALL_OF_A_SEQUENCE and first:
        shared = False
    mixed = name in OF_MIXERS
    return (
        thinned(name, head)
        or (once and contract.name not in OF_A_HEAD)
        or (mixed and contract.name in OF_THE_QUESTION)
        or (mixed and related and contract.name not in OF_A_MIXER_WITH_RELATED)
        or (shared and not contract.of_related and contract.name not in OF_A_STATE)
        or (not (first or contract.of_related) and contract.name not in OF_SETTINGS | OF_A_STATE)
    )


@pytest.mark.parametrize(("name", "settings", "head", "related", "contracts"), picked(CASES, left_of))
def test_contracts(name: str, settings: dict[str, object], head: str, related: int, contracts: list[Contract]) -> None:
    backbone = build(name, settings, head, related)
    episodes = episodes_of(example_shape(head, related))
    check(contracts, backbone, episodes, Tolerance(2e-5, 1e-4))


# Every backbone behind the cheap encoder, a causal one and a set model behind a residual network too.
IMAGE_CASES = [
    *((name, "contours-64") for name in BACKBONES.architectures() if "categorical" in all_heads_of(name)),
    ("transformer", "resnet-64"),
    ("cmanp", "resnet-64"),
]


# The encoder stands before backbones, which know nothing of it. In every run all contracts are asked of a causal one,
# one behind a residual network, a set of latents, and one with answers in turn. Of others but mixers those that go
# through the encoder both ways and compare two ways of asking; the full product by `make test-slow`.
ON_IMAGES = {
    ("attention", "contours-64"),
    ("transformer", "resnet-64"),
    ("lbanp", "contours-64"),
    ("tnp-a", "contours-64"),
}
THROUGH_THE_ENCODER = {"phases_equal_the_question", "a_gradient_step_lowers_the_loss"}


def left_on_images(name: str, encoder: str, contract: Contract) -> bool:
    read = contract.name in THROUGH_THE_ENCODER and name not in OF_MIXERS
    return not read and (name, encoder) not in ON_IMAGES


@pytest.mark.slow
@pytest.mark.parametrize(("name", "encoder", "contracts"), picked(IMAGE_CASES, left_on_images))
def test_contracts_on_images(name: str, encoder: str, contracts: list[Contract]) -> None:
    backbone = build_on_images(name, encoder)
    check(
        contracts, backbone, example_episodes(dim=SIDE * SIDE, points=CONTEXT, classes=CLASSES), Tolerance(2e-5, 1e-4)
    )


def test_contracts_and_cases_that_are_picked_are_known() -> None:
    named = OF_SETTINGS | OF_A_STATE | OF_A_MIXER_WITH_RELATED | OF_THE_QUESTION | THROUGH_THE_ENCODER
    assert {contract.name for contract in CONTRACTS} > named
    assert set(IMAGE_CASES) > ON_IMAGES
