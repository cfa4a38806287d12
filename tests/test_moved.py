"""Modules of version 0.1.0 under their old names."""

import importlib
import re
import subprocess
import sys

import pytest
import torch

from iclbench.config.registry import BACKBONES, FAMILIES
from iclbench.core.predictions import Point
from iclbench.core.records import TensorRecord, _rebuild
from iclbench.moved import MOVED, current


@pytest.mark.parametrize("old", sorted(name for name in MOVED if "triton" not in name))
def test_an_old_name_is_the_module_of_the_new_name(old: str) -> None:
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=re.escape(MOVED[old])):
        found = importlib.import_module(old)
    assert found is importlib.import_module(MOVED[old])
    assert found.__name__ == found.__spec__.name == MOVED[old]


def test_no_old_name_hides_a_module_of_today() -> None:
    assert not [name for name in MOVED if name in MOVED.values()]


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("iclbench.config", "RunConfig"),
        ("iclbench.families.tabular", "Tabular"),
        ("iclbench.evaluation.costs", "Sizes"),
    ],
)
def test_a_module_that_became_a_package_hands_on_its_names(package: str, name: str) -> None:
    module = importlib.import_module(package)
    with pytest.warns(DeprecationWarning):
        assert getattr(module, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("iclbench.backbones.latent_layers", "LatentSettings", "iclbench.backbones.latent_backbone.LatentSettings"),
        ("iclbench.backbones.transformer_np", "TransformerSettings", "TransformerNPSettings"),
        ("iclbench.backbones.convolution", "causal_convolution", "long_convolution"),
        ("iclbench.backbones.depthwise", "causal_convolution", "depthwise_convolution"),
    ],
)
@pytest.mark.filterwarnings("ignore:'iclbench.backbones.[a-z_]+' is:DeprecationWarning")
def test_a_name_that_changed_or_moved_is_found_where_it_was(module: str, old: str, new: str) -> None:
    found = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=re.escape(new)):
        assert getattr(found, old).__name__ == new.rpartition(".")[2]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = found.nothing


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("iclbench.backbones.base", "TaskShape"),
        ("iclbench.backbones.base", "EncoderName"),
        ("iclbench.backbones.sequence", "PairReadIn"),
        ("iclbench.estimators.base", "TaskFacts"),
        ("iclbench.estimators.base", "NoSettings"),
    ],
)
def test_a_name_that_moved_to_a_lower_room_is_found_where_it_was(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name)


@pytest.mark.slow
def test_an_import_by_an_old_name_works_in_a_fresh_process() -> None:
    code = "from iclbench.predictions import Point; import iclbench.core.predictions as new; assert Point is new.Point"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_state_saved_under_an_old_name_is_read() -> None:
    mean = torch.zeros(2, 3)
    spec = {"record": "iclbench.predictions.Point", "fields": {"mean": {"tensor": "mean"}}}
    found = _rebuild(spec, {"mean": mean}.__getitem__)
    assert type(found) is Point and found.mean is mean and isinstance(found, TensorRecord)


def test_a_class_named_by_its_old_module_is_the_registered_one() -> None:
    old = "iclbench.families.gp_mixture:GPMixture"
    assert FAMILIES.entry(old).target == FAMILIES.entry("gp-mixture").target
    assert BACKBONES.entry("iclbench.backbones.gpt2:GPT2").target == BACKBONES.entry("gpt2").target


def test_names_that_have_not_moved_stay() -> None:
    assert current("iclbench.backbones.gpt2:GPT2") == "iclbench.backbones.gpt2:GPT2"
    assert current("my_package.net.State") == "my_package.net.State"
    assert current("iclbench.png") == "iclbench.core.png"
