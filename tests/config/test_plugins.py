"""Whatever a class from outside does wrong is told in one line under its own name."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w
import torch

from iclbench import tables
from iclbench.backbones.base import TaskShape
from iclbench.cli.main import main
from iclbench.config import trust
from iclbench.config.plugins import PluginError
from iclbench.config.registry import BACKBONES, FAMILIES
from iclbench.core.episodes import Points
from iclbench.families.request import Request
from tests.conftest import small_card

NET = """
import torch
from torch import nn

from iclbench.backbones.base import Backbone
from iclbench.config.cards import Strict
from iclbench.families.linear import Linear
from iclbench.core.joint import Samples
from iclbench.core.predictions import Point


class Nothing(Strict):
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


class Whole(Net):
    def change(self, answer):
        found = Point(answer)
        object.__setattr__(found, "mean", answer.long())  # past the checks of types in tests
        return found


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


class Yields(Net):
    def predict_by_layer(self, context, x_target, related=None):
        yield Point(x_target[..., :1])


class Raises(Net):
    def change(self, answer):
        return answer[:, 100]


class Exits(Net):
    def change(self, answer):
        raise SystemExit(0)


class OutOfMemory(Net):
    def change(self, answer):
        raise MemoryError("enough")


class Targets(Net):
    def predict_by_related(self, context, x_target, related, counts):
        yield Point(torch.zeros(len(context), 1, 1))
        yield Point(torch.zeros(1, 1))


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
    def sample(self, *args, **kwargs):
        found = super().sample(*args, **kwargs)
        found.context.__dict__["x"] = found.context.x[..., :1]
        return found
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


class Half(Net):
    def finish(self, hidden):
        return hidden[..., :4]


class Misfit(Net):
    def __init__(self, settings, shape):
        super().__init__(settings, shape)
        self.read_out = torch.nn.Linear(3, 1)
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The module `mynet`, in a folder of its own that is the current one and not searched."""
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


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Transposed", "mynet:Transposed.predict_next returned (4, 1, 6), expected (4, 6, 1)"),
        ("Whole", "mynet:Whole.predict_next returned int64, expected float32"),
        ("FewFunctions", "mynet:FewFunctions.predict_next returned (4, 2, 5, 2), expected (4, 6, functions, ...)"),
        ("Bare", "mynet:Bare.predict_next returned a Tensor, expected a Prediction such as Point(mean)"),
        ("Raises", "mynet:Raises.predict_next raised IndexError: index 100 is out of bounds"),
        ("Exits", "mynet:Exits.predict_next called sys.exit(0)"),
        ("Talks", "mynet:Talks.predict_next raised ValueError: word word"),
    ],
)
def test_a_wrong_answer_names_class_and_method(name: str, told: str) -> None:
    cls = BACKBONES.get(f"mynet:{name}")
    with pytest.raises(PluginError) as error:
        cls(cls.Settings(), TaskShape(x_dim=3, points=6)).predict_next(POINTS)
    assert str(error.value).startswith(told) and len(str(error.value)) < 300


@pytest.mark.usefixtures("trusted")
def test_a_right_answer_and_an_error_of_memory_pass() -> None:
    shape = TaskShape(x_dim=3, points=6)
    net, full = (BACKBONES.get(f"mynet:{name}") for name in ("Net", "OutOfMemory"))
    assert net(net.Settings(), shape).predict_next(POINTS, prefixes=[0, 3]).mean.shape == (4, 2, 1)
    functions = BACKBONES.get("mynet:Functions")
    assert functions(functions.Settings(), shape).predict_next(POINTS).means.shape == (4, 6, 5, 2, 1)
    with pytest.raises(MemoryError, match="enough"):
        full(full.Settings(), shape).predict_next(POINTS)


@pytest.mark.usefixtures("trusted")
def test_answers_by_related_datasets_are_looked_at_one_by_one() -> None:
    cls = BACKBONES.get("mynet:Targets")
    answers = cls(cls.Settings(), TaskShape(x_dim=3, points=6)).predict_by_related(
        POINTS, POINTS.x[:, :1], None, (0, 1)
    )
    assert next(answers).mean.shape == (4, 1, 1)
    with pytest.raises(PluginError, match=r"mynet:Targets.predict_by_related returned \(1, 1\), expected \(4, 1, 1\)"):
        next(answers)


@pytest.mark.usefixtures("trusted")
def test_answers_of_layers_that_are_looked_at_are_still_there() -> None:
    cls = BACKBONES.get("mynet:Yields")
    with pytest.raises(PluginError, match=r"Yields.predict_by_layer returned a generator, expected a list with a Pred"):
        cls(cls.Settings(), TaskShape(x_dim=3, points=6)).predict_by_layer(POINTS, POINTS.x)


@pytest.mark.usefixtures("trusted")
def test_families_are_watched_too() -> None:
    parameters = FAMILIES.get("linear").Parameters(dim=3)
    with pytest.raises(PluginError, match=r"mynet:Flat.normaliser is 0.0, expected a positive number"):
        _ = FAMILIES.get("mynet:Flat")(parameters).normaliser
    with pytest.raises(PluginError, match=r"mynet:Narrow.sample returned context.x of \(2, 5, 1\), expected .* 3\)"):
        FAMILIES.get("mynet:Narrow")(parameters).sample(Request(2, 5, torch.Generator()))


def test_classes_of_our_own_are_left_as_they_are() -> None:
    assert not hasattr(BACKBONES.get("gpt2").predict_next, "_watched")


def run(*arguments: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, list[str]]:
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err.splitlines()


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("Losses", 1, "error: mynet:Losses.loss returned a loss of (8, 5, 1), expected"),
        ("Wide", 1, "error: mynet:Wide.__init__ raised KeyError: 'width'"),
        (
            "Unset",
            2,
            "error: 'mynet:Unset' lacks `Settings`: write a subclass of iclbench.backbones.base.BackboneSettings",
        ),
        ("Exits", 1, "error: mynet:Exits.predict_next called sys.exit(0)"),
    ],
)
def test_training_names_the_class_and_never_calls_it_a_bug(
    name: str, code: int, told: str, net: Path, card_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, _, err = run("train", card_path, f"mynet:{name}", "-p", "smoke", "--results", net / "r", capsys=capsys)
    assert found == code and err[-1].startswith(told)
    assert "this is a bug" not in " ".join(err)


def test_a_wrong_answer_fails_its_cell_by_name(net: Path, card_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = "return Point(answer if self.training else answer[:, :5])\n"
    (net / "mynet.py").write_text(NET.replace("return Point(answer)\n", short, 1))
    results = ("--results", net / "r")
    code, name, _ = run("train", card_path, "mynet:Net", "-p", "smoke", *results, capsys=capsys)
    assert code == 0
    code, _, err = run("eval", name.strip(), "--baseline", "zero", "--trust", "mynet", *results, capsys=capsys)
    assert code == 1
    rows = tables.read_all("values", net / "r" / "tables")
    (reason,) = rows.loc[rows["status"].eq("failed"), "reason"]
    assert reason == "mynet:Net.predict_next returned (48, 5, 1), expected (48, 9, 1)"
    assert any(reason in line for line in err)


def test_a_zero_normaliser_is_told_by_name_before_anything_is_trained(
    net: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card = net / "flat.toml"
    card.write_text(tomli_w.dumps(small_card(family="mynet:Flat")))
    code, _, err = run("train", card, "gpt2", "-p", "smoke", "--trust", "mynet", "--results", net / "r", capsys=capsys)
    assert code == 1 and err[-1].startswith("error: mynet:Flat.normaliser is 0.0, expected a positive number")
    assert not (net / "r").exists()


def test_check_searches_the_current_folder_and_says_so(
    net: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    code, out, _ = run("check", "mynet:Net", capsys=capsys)
    assert code == 0 and out.count("ok ") >= 10, out
    assert f"'mynet' is taken from the current folder: {net / 'mynet.py'}" in caplog.text
    code, out, _ = run("check", "mynet:Transposed", capsys=capsys)
    assert code == 1 and "mynet:Transposed.predict_next returned (3, 2, 7), expected (3, 7, 2)" in out
    code, _, err = run("check", "nowhere:Net", capsys=capsys)
    assert code == 2 and "neither installed nor in the current folder" in err[0] and len(err) == 1


def test_a_module_that_exits_when_it_is_imported_is_an_error(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (net / "mynet.py").write_text("raise SystemExit(0)")
    code, _, err = run("check", "mynet:Net", capsys=capsys)
    assert code == 2 and err[-1] == "error: cannot load 'mynet:Net': importing it calls sys.exit(0)"


def test_code_of_the_current_folder_asks_for_trust(net: Path) -> None:
    with pytest.raises(trust.UntrustedError, match="--trust mynet"):
        BACKBONES.get("mynet:Net")


def test_what_a_method_of_ours_makes_of_a_plug_ins_is_told_under_the_plug_ins_name(
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
    with pytest.raises(PluginError, match=r"shortnet:Short.sample raised KeyError: 'weights'"):
        family(family.Parameters(dim=2)).sample(Request(3, 4, torch.Generator()))


def test_a_block_and_what_is_done_with_its_tokens_are_told_under_their_names(
    net: Path, card_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Layers of a class from outside are watched with it, and so are methods of ours that put its tokens together."""
    (net / "mynet.py").write_text(RECURRENT)
    told = {
        "Half": "mynet:Half.finish returned (8, 5, 4), expected (8, 5, 8): the width that the read-out takes",
        "Misfit": "mynet:Misfit.predict_next raised RuntimeError: mat1 and mat2 shapes cannot be multiplied (40x8 and "
        "3x1) (--debug shows where)",
    }
    options = ("-p", "smoke", "-o", "backbone.width=8", "--results", net / "r")
    for name, line in told.items():
        code, _, err = run("train", card_path, f"mynet:{name}", *options, capsys=capsys)
        assert (code, err[-1]) == (1, f"error: {line}; for more: iclbench check mynet:{name}")
    code, out, _ = run("check", "mynet:Net", capsys=capsys)
    assert code == 1
    assert "FAILED shifted_queries_are_answered (point head): mynet:Block.fork returned 2 values, expected 3\n" in out
