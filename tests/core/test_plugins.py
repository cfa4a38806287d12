"""Errors in plug-ins are reported in one line that names the class and the method."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w
import torch

from iclbench import tables
from iclbench.backbones.base import Backbone, TaskShape
from iclbench.cli.main import main
from iclbench.config.cards import TrainSettings
from iclbench.core import trust
from iclbench.core.answers import check_normaliser
from iclbench.core.episodes import Episodes, Points
from iclbench.core.errors import PluginError
from iclbench.core.plugins import plugin_errors
from iclbench.families.request import Request
from iclbench.registry import BACKBONES, FAMILIES
from iclbench.training.step import TrainingData
from tests.conftest import small_card
from tests.refusals import refused

NET = """
import torch
from torch import nn

from iclbench.backbones.base import Backbone
from iclbench.core.settings import BaseSettings
from iclbench.families.linear import Linear
from iclbench.core.joint import Samples
from iclbench.core.predictions import Point


class Nothing(BaseSettings):
    pass


class Net(Backbone):
    order = "causal"
    heads = ("point",)
    Settings = Nothing

    def __init__(self, settings, shape):
        super().__init__(settings, shape)
        self.out = nn.Linear(shape.x_dim, shape.y_dim)

    def predict_next(self, points, related=None, *, x_query=None, prefixes=None):
        queries = points.x if x_query is None else x_query
        answer = self.out(queries if prefixes is None else queries[:, list(prefixes)])
        return self.change(answer)

    def change(self, answer):
        return Point(answer)


class Transposed(Net):
    def change(self, answer):
        return Point(answer.mT)


class Integers(Net):
    def change(self, answer):
        point = Point(answer)
        object.__setattr__(point, "mean", answer.long())  # bypasses the type checks that are active in tests
        return point


class Bare(Net):
    def change(self, answer):
        return answer


class Functions(Net):
    def change(self, answer):
        means = answer[:, :, None, None].expand(-1, -1, 5, 2, 1)
        return Samples(means[..., 0], means, means.exp())


class FewFunctions(Functions):
    def change(self, answer):
        return super().change(answer[:, :2])


class Raises(Net):
    def change(self, answer):
        return answer[:, 100]


class Exits(Net):
    def change(self, answer):
        raise SystemExit(0)


class OutOfMemory(Net):
    def change(self, answer):
        raise MemoryError("enough")


class Losses(Net):
    def loss(self, episodes, progress, generator):
        return self.predict_next(episodes.context).mean, {}


class Wide(Net):
    def __init__(self, settings, shape):
        raise KeyError("width")


class Talks(Net):
    def change(self, answer):
        raise ValueError(99 * "word ")


class Unset(Backbone):
    def predict_next(self, *args, **kwargs):
        raise NotImplementedError


class Flat(Linear):
    @property
    def normaliser(self):
        return 0.0


class Narrow(Linear):
    def sample(self, request):
        episodes = super().sample(request)
        episodes.context.__dict__["x"] = episodes.context.x[..., :1]
        return episodes
"""


RECURRENT = """
import torch

from iclbench.backbones.base import BackboneSettings
from iclbench.backbones.recurrent import RecurrentBackbone, RecurrentBlock


class Settings(BackboneSettings):
    width: int = 8


class Block(RecurrentBlock):
    def start(self, batch):
        return (torch.zeros(batch, 1),)

    def forward(self, x):
        return x

    def resume(self, x, state, mask=None):
        return x, state

    def peek(self, queries, state):
        return queries

    def fork(self, x, queries, state=None):
        return x, queries


class Net(RecurrentBackbone):
    Settings = Settings

    def __init__(self, settings, shape):
        super().__init__(settings, shape, settings.width, [Block()])

    def finish(self, hidden):
        return hidden


class Misfit(Net):
    def __init__(self, settings, shape):
        super().__init__(settings, shape)
        self.read_out = torch.nn.Linear(3, 1)
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write the module `mynet` to the current folder, which is not on Python's search path."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "mynet.py").write_text(NET)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(folder))])
    monkeypatch.setitem(os.environ, trust.VARIABLE, "")
    yield folder
    sys.modules.pop("mynet", None)


@pytest.fixture
def trusted(net: Path) -> None:
    trust.trust("mynet")


POINTS = Points.full(torch.zeros(4, 6, 3), torch.zeros(4, 6, 1))
EPISODES = Episodes(POINTS, POINTS.mask)


def build_backbone(name: str) -> Backbone:
    cls = BACKBONES.get(f"mynet:{name}")
    return cls(cls.Settings(), TaskShape(x_dim=3, points=6))


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize(
    ("name", "returned", "expected"),
    [
        ("Transposed", "(4, 1, 6)", "(4, 6, 1)"),
        ("Integers", "int64", "float32"),
        ("FewFunctions", "(4, 2, 5, 2)", "(4, 6, functions, ...)"),
        ("Bare", "Tensor", "Point"),
    ],
)
def test_the_error_for_an_invalid_prediction_names_class_and_method(name: str, returned: str, expected: str) -> None:
    with refused("plugin", f"mynet:{name}.predict_next", returned, expected, exit_code=1) as error:
        build_backbone(name).ask(EPISODES, "next")
    assert isinstance(error.value, PluginError) and error.value.target == f"mynet:{name}"


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize(
    ("name", "problem"),
    [("Raises", "IndexError: index 100"), ("Exits", "sys.exit(0)"), ("Talks", "ValueError: word word")],
)
def test_the_error_for_an_exception_names_the_method_that_raised_it(name: str, problem: str) -> None:
    with refused("plugin", f"mynet:{name}.change", problem, exit_code=1) as error, plugin_errors(None):
        build_backbone(name).ask(EPISODES, "next")
    assert len(str(error.value)) < 300


@pytest.mark.usefixtures("trusted")
def test_the_error_for_an_exception_outside_of_methods_names_the_class() -> None:
    with (
        refused("plugin", "mynet:Net ", "RuntimeError: no gradient", exit_code=1),
        plugin_errors(build_backbone("Net")),
    ):
        raise RuntimeError("no gradient")
    with pytest.raises(RuntimeError), plugin_errors(BACKBONES.get("gpt2")):
        raise RuntimeError("no gradient")


@pytest.mark.usefixtures("trusted")
def test_valid_predictions_and_out_of_memory_errors_are_passed_through() -> None:
    assert build_backbone("Net").ask(EPISODES, "next", prefixes=[0, 3]).mean.shape == (4, 2, 1)
    assert build_backbone("Functions").ask(EPISODES, "next").means.shape == (4, 6, 5, 2, 1)
    with pytest.raises(MemoryError), plugin_errors(None):
        build_backbone("OutOfMemory").ask(EPISODES, "next")


@pytest.mark.usefixtures("trusted")
def test_the_normaliser_and_the_samples_of_a_family_are_checked_before_use() -> None:
    parameters = FAMILIES.get("linear").Parameters(dim=3)
    with refused("plugin", "mynet:Flat.normaliser", "0.0", exit_code=1):
        check_normaliser(FAMILIES.get("mynet:Flat")(parameters))
    narrow = TrainingData(FAMILIES.get("mynet:Narrow")(parameters), points=5)
    with refused("plugin", "mynet:Narrow.sample", "context.x", "(2, 5, 1)", "3)", exit_code=1):
        narrow.batch(TrainSettings(steps=1, batch=2), seed=0, step=0)


def run(*arguments: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, list[str]]:
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err.splitlines()


@pytest.mark.parametrize(
    ("name", "code", "names"),
    [
        ("Losses", 1, ["mynet:Losses.loss", "(8, 5, 1)"]),
        ("Wide", 1, ["mynet:Wide.__init__", "KeyError: 'width'"]),
        ("Unset", 2, ["mynet:Unset", "Settings", "iclbench.backbones.base.BackboneSettings"]),
        ("Exits", 1, ["mynet:Exits.change", "sys.exit(0)"]),
    ],
)
def test_errors_of_plug_ins_in_training_name_the_class_and_do_not_suggest_a_bug_report(
    name: str, code: int, names: list[str], net: Path, card_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exit_code, _, err = run("train", card_path, f"mynet:{name}", "-p", "smoke", "--results", net / "r", capsys=capsys)
    assert exit_code == code and all(text in err[-1] for text in names), err
    assert not re.search(r"\bbug\b", " ".join(err))


def test_an_invalid_prediction_is_a_failed_row_whose_reason_names_the_class(
    net: Path, card_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = "return Point(answer if self.training else answer[:, :5])\n"
    (net / "mynet.py").write_text(NET.replace("return Point(answer)\n", short, 1))
    results = ("--results", net / "r")
    code, name, _ = run("train", card_path, "mynet:Net", "-p", "smoke", *results, capsys=capsys)
    assert code == 0
    code, _, err = run("eval", name.strip(), "--baseline", "zero", "--trust", "mynet", *results, capsys=capsys)
    assert code == 1
    rows = tables.read_all("values", net / "r" / "tables")
    (reason,) = rows.loc[rows["status"].eq("failed"), "reason"]
    assert all(text in reason for text in ("mynet:Net.predict_next", "(48, 5, 1)", "(48, 9, 1)"))
    assert any(reason in line for line in err)


def test_a_zero_normaliser_is_refused_before_training(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = net / "flat.toml"
    card.write_text(tomli_w.dumps(small_card(family="mynet:Flat")))
    code, _, err = run("train", card, "gpt2", "-p", "smoke", "--trust", "mynet", "--results", net / "r", capsys=capsys)
    assert code == 1 and "mynet:Flat.normaliser" in err[-1] and "0.0" in err[-1]
    assert not (net / "r").exists()


def test_check_finds_modules_in_the_current_folder_and_logs_their_path(
    net: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    code, out, _ = run("check", "mynet:Net", capsys=capsys)
    assert code == 0 and out.count("ok ") >= 10, out
    assert str(net / "mynet.py") in caplog.text
    code, out, _ = run("check", "mynet:Transposed", capsys=capsys)
    assert code == 1 and all(text in out for text in ("mynet:Transposed.predict_next", "(3, 2, 3)", "(3, 3, 2)"))
    code, _, err = run("check", "nowhere:Net", capsys=capsys)
    assert code == 2 and "nowhere" in err[0] and len(err) == 1


def test_a_module_that_exits_when_it_is_imported_raises_an_error(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (net / "mynet.py").write_text("raise SystemExit(0)")
    code, _, err = run("check", "mynet:Net", capsys=capsys)
    assert code == 2 and "mynet:Net" in err[-1] and "sys.exit(0)" in err[-1]


@pytest.mark.usefixtures("net")
def test_code_in_the_current_folder_needs_trust() -> None:
    with refused("untrusted", "mynet:Net", "--trust mynet", exit_code=1):
        BACKBONES.get("mynet:Net")


def test_the_error_for_an_exception_in_an_inherited_method_names_the_plug_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
from iclbench.families.linear import Linear


class Short(Linear):
    def draw(self, episodes, generator, active_dims=None):
        return {"w": super().draw(episodes, generator, active_dims)["weights"]}
"""
    (tmp_path / "shortnet.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ICLBENCH_TRUST", "shortnet")
    family = FAMILIES.get("shortnet:Short")
    with refused("plugin", "shortnet:Short.", "KeyError: 'weights'", exit_code=1), plugin_errors(family):
        family(family.Parameters(dim=2)).sample(Request(3, 4, torch.Generator()))


@pytest.mark.slow
def test_the_error_for_a_shape_mismatch_inside_a_plug_in_names_the_plug_in(
    net: Path, card_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (net / "mynet.py").write_text(RECURRENT)
    options = ("-p", "smoke", "-o", "backbone.width=8", "--results", net / "r")
    code, _, err = run("train", card_path, "mynet:Misfit", *options, capsys=capsys)
    assert code == 1
    for name in ("mynet:Misfit.predict_next", "RuntimeError", "(40x8 and 3x1)", "--debug", "check mynet:Misfit"):
        assert name in err[-1]
    code, out, _ = run("check", "mynet:Net", capsys=capsys)
    assert code == 1
    assert re.search(r"FAILED separate_queries_are_answered \(point head\): mynet:Net.\w+ .*ValueError", out)
