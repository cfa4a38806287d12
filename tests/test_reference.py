"""The reference pages of docs/, which are generated from code and cards, are complete."""

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from iclbench.cli.lazy import COMMANDS
from iclbench.registry import BACKBONES
from iclbench.tables.schema import SCHEMAS


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", Path(__file__).parents[1] / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.formula = cache(module.formula)  # two tests use it
    return module


def test_every_option_of_every_command_has_a_description(generate: ModuleType) -> None:
    text = generate.commands()
    assert all(f"## iclbench {name}\n" in text for name in COMMANDS)
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_key_of_every_card_has_a_description(generate: ModuleType) -> None:
    for models in generate.CARDS.values():
        for model in models:
            assert set(model.model_fields) <= generate.meanings(model).keys(), model
    assert "| `lr` | number | `0.0001` | peak learning rate. |" in generate.cards()


def test_every_column_of_every_table_is_listed(generate: ModuleType) -> None:
    text = generate.tables()
    for name, columns in SCHEMAS.items():
        section = text.partition(f"## {name}\n")[2].partition("\n## ")[0]
        assert all(f"| `{column}` | {dtype} |" in section for column, (dtype, _, _) in columns.items())


def test_formulas_for_parameter_counts_agree_with_the_papers(generate: ModuleType) -> None:
    # Radford et al. 2019: a block has 12 D² weights and 13 D biases and gains, and the final norm has 2 D. The read-in
    # has d inputs, and the read-out has one output.
    assert generate.formula("gpt2") == r"$12\,L\,D^2 + 13\,L\,D + D\,d + 4\,D + 1$."
    # Bae et al. 2023: a layer has 4 D² weights of attention, 2 D² of the feed-forward network and 7 D biases and gains.
    # Each mark and the start have a vector. The read-outs of gaps have D² + D and 24 D + 24, those of marks K D + K.
    assert generate.formula("thp") == r"$6\,L\,D^2 + 7\,L\,D + D^2 + 2\,D\,K + 26\,D + K + 24$."


@pytest.mark.slow
def test_every_backbone_states_its_number_of_parameters(generate: ModuleType) -> None:
    text = generate.backbones()
    assert all(f"\n## {name}\n" in text for name in BACKBONES.builtin_entries if name in BACKBONES.architectures())
    architectures = [name for name in BACKBONES.builtin_entries if name in BACKBONES.architectures()]
    assert text.count("Parameters: ") == len(architectures)
    # Sizes without a formula are rounded (8/3 D hidden units of SwiGLU, ranks of rwkv7), or layers differ (hybrid).
    rounded = {"based", "retnet", "gla", "deltanet", "gated-deltanet", "kda", "fox", "mamba3", "mesa", "path"}
    assert {name for name in architectures if not generate.formula(name).startswith("$")} == {
        *rounded,
        "gated-deltaproduct",
        "rwkv7",
        "hybrid",
    }
