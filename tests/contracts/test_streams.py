"""Causal sequence models pass every contract on streams of tokens and of vectors. Other models refuse streams."""

import pytest

from iclbench.backbones.sequence import SequenceBackbone
from iclbench.contracts import CONTRACTS, Tolerance
from iclbench.contracts.examples import build, episodes_of, stream_shape
from iclbench.registry import BACKBONES
from tests.contracts.cases import check_contracts
from tests.refusals import refused

# A Transformer with and without positional encoding, and one model for each class of recurrent blocks.
MODELS: dict[str, dict[str, object]] = {
    "gpt2": {"layers": 2, "width": 16, "heads": 2, "init_std": 0.3},
    "gpt2-learned": {"layers": 2, "width": 16, "heads": 2, "init_std": 0.3, "positions": "learned", "max_points": 40},
    "transformer": {"layers": 2, "width": 16, "heads": 2},
    "mamba": {"layers": 2, "width": 8, "state": 4, "dt_rank": 2},
    "s4d": {"layers": 2, "width": 8, "state": 8},
    "hybrid": {"layers": 3, "width": 8, "heads": 2, "mixers": ["mamba2", "attention", "gated-deltanet"]},
    "gru": {"layers": 2, "width": 8},
}
HEADS = ("categorical", "gaussian")


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", MODELS)
def test_sequence_models_pass_the_contracts_on_streams(name: str, head: str) -> None:
    shape = stream_shape(head)
    backbone = build(name, BACKBONES.get(name.removesuffix("-learned")), MODELS[name], shape)
    episodes = episodes_of(shape)
    assert shape.inputs == ("tokens" if head == "categorical" else "vectors")
    contracts = [contract for contract in CONTRACTS if contract.is_checkable(backbone, episodes)]
    check_contracts(contracts, backbone, episodes, Tolerance())


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", sorted(BACKBONES.architectures()))
def test_only_sequence_models_accept_streams(name: str, head: str) -> None:
    cls = BACKBONES.get(name)
    shape = stream_shape(head)
    if issubclass(cls, SequenceBackbone):
        assert shape.inputs in cls.input_kinds
    else:
        with refused("not-applicable", cls.__name__):
            cls(cls.Settings(), shape)


def test_the_table_of_learned_positions_has_one_row_per_element_of_a_stream() -> None:
    shape = stream_shape("categorical")
    settings = {"layers": 1, "width": 16, "heads": 2, "positions": "learned"}
    backbone = build("gpt2", BACKBONES.get("gpt2"), settings, shape)
    assert backbone.longest == shape.points
    table = dict(backbone.named_parameters())["positions.weight"]
    assert len(table) == shape.points
