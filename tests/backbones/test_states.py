"""A state on disk belongs to one model: that one reads it back, every other one refuses it."""

from pathlib import Path

import pytest
import torch

from iclbench.backbones.base import Backbone, TaskShape
from iclbench.core.episodes import Points
from iclbench.core.errors import DataError
from iclbench.registry import BACKBONES

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
def test_a_loaded_state_answers_and_goes_on_like_the_saved_one(name: str, tmp_path: Path) -> None:
    context, more, x = points(), points(2), torch.randn(2, 3, 3)
    state = model(name).condition(context)
    model(name).save_state(state, tmp_path / "state")
    again = model(name)
    loaded = again.load_state(tmp_path / "state")
    assert torch.equal(again.query(loaded, x).mean, again.query(state, x).mean)
    assert torch.equal(again.query(again.update(loaded, more), x).mean, again.query(again.update(state, more), x).mean)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: model("mamba"), "of a?nother model .GPT2, this is Mamba."),
        (lambda: model("gpt2", heads=4), "it has other settings"),
        (lambda: model("gpt2", points=12), "it has other settings"),
        (lambda: model("gpt2", seed=1), "it has other weights"),
        (lambda: model("gpt2").double(), "float32, this is float64"),
    ],
)
@torch.no_grad()
def test_the_state_of_another_model_is_refused_in_one_line(other, message: str, tmp_path: Path) -> None:
    own = model("gpt2")
    own.save_state(own.condition(points()), tmp_path / "state")
    with pytest.raises(DataError, match=message) as raised:
        other().load_state(tmp_path / "state")
    assert "\n" not in str(raised.value)


@torch.no_grad()
def test_files_that_hold_no_state_of_a_known_model_are_refused(tmp_path: Path) -> None:
    own = model("gpt2")
    own.condition(points()).save(tmp_path / "plain")
    with pytest.raises(DataError, match="does not say which model"):
        own.load_state(tmp_path / "plain")
    own.save_state(own.condition(points()), tmp_path / "state")
    (tmp_path / "cut").write_bytes((tmp_path / "state").read_bytes()[:-10])
    (tmp_path / "text").write_text("not a state")
    for name in ("cut", "text", "nowhere"):
        with pytest.raises(DataError, match="does not hold"):
            own.load_state(tmp_path / name)
