"""A saved state can be loaded only by the model that computed it."""

from pathlib import Path

import pytest
import torch

from iclbench.backbones.base import Backbone, TaskShape
from iclbench.core.episodes import Points
from iclbench.core.errors import DataError
from iclbench.registry import BACKBONES
from tests.refusals import refused

SIZES = {
    "gpt2": {"layers": 2, "width": 16, "heads": 2},
    "mamba": {"layers": 2, "width": 8, "state": 4},
    "s4": {"layers": 2, "width": 8, "state": 8},
    "s4d": {"layers": 2, "width": 8, "state": 8},
}


def model(name: str, seed: int = 0, points: int = 9, **changes: object) -> Backbone:
    torch.manual_seed(seed)
    cls = BACKBONES.get(name)
    return cls(cls.Settings(**SIZES[name] | changes), TaskShape(x_dim=3, points=points)).eval()


def points(count: int = 7) -> Points:
    return Points.full(torch.randn(2, count, 3), torch.randn(2, count, 1))


@pytest.mark.parametrize("name", SIZES)
@torch.no_grad()
def test_loaded_states_give_identical_predictions_before_and_after_an_update(name: str, tmp_path: Path) -> None:
    context, new_points, x = points(), points(2), torch.randn(2, 3, 3)
    state = model(name).condition(context)
    model(name).save_state(state, tmp_path / "state")
    reloaded = model(name)
    loaded = reloaded.load_state(tmp_path / "state")
    assert torch.equal(reloaded.query(loaded, x).mean, reloaded.query(state, x).mean)
    assert torch.equal(
        reloaded.query(reloaded.update(loaded, new_points), x).mean,
        reloaded.query(reloaded.update(state, new_points), x).mean,
    )


@pytest.mark.parametrize(
    ("other", "names"),
    [
        (lambda: model("mamba"), ["GPT2", "Mamba"]),
        (lambda: model("gpt2", heads=4), ["settings"]),
        (lambda: model("gpt2", points=12), ["settings"]),
        (lambda: model("gpt2", seed=1), ["weights"]),
        (lambda: model("gpt2").double(), ["float32", "float64"]),
    ],
)
@torch.no_grad()
def test_the_state_of_another_model_is_refused(other, names: list[str], tmp_path: Path) -> None:
    backbone = model("gpt2")
    backbone.save_state(backbone.condition(points()), tmp_path / "state")
    with refused("not-applicable", tmp_path / "state", *names):
        other().load_state(tmp_path / "state")


@torch.no_grad()
def test_files_that_contain_no_state_are_refused(tmp_path: Path) -> None:
    backbone = model("gpt2")
    backbone.condition(points()).save(tmp_path / "plain")
    with refused("bad-syntax", tmp_path / "plain", "save_state"):
        backbone.load_state(tmp_path / "plain")
    backbone.save_state(backbone.condition(points()), tmp_path / "state")
    (tmp_path / "cut").write_bytes((tmp_path / "state").read_bytes()[:-10])
    (tmp_path / "text").write_text("not a state")
    for name in ("cut", "text", "nowhere"):
        with pytest.raises(DataError) as error:
            backbone.load_state(tmp_path / name)
        assert str(tmp_path / name) in str(error.value)
