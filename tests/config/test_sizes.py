"""How big backbones are: by a preset's budget, or as somebody says; never the biggest without a word."""

import logging
from pathlib import Path
from typing import Any, ClassVar

import pytest
import tomli_w
import torch
from torch import nn

from iclbench.backbones.base import Backbone
from iclbench.backbones.s4 import S4
from iclbench.cli.main import main
from iclbench.config import sizes
from iclbench.config.cards import TOLERANCE, deviation, load_task, names
from iclbench.config.resolution import backbone_class, resolve_run
from iclbench.config.sizes import budget_settings, check_size, missing_size
from iclbench.core import bounds
from iclbench.core.errors import UsageError
from iclbench.core.settings import BaseSettings, PositiveInt
from iclbench.core.task import TaskShape
from iclbench.registry import BACKBONES
from iclbench.sweep.grids import grid_runs
from tests.conftest import small_card

LINE = (
    "preset 'smoke' of task 'tiny-linear' has no size for 'tnp', whose own is width 128, layers 5, heads 8; "
    "give -o backbone.layers=N -o backbone.width=N"
)
_REASONS = ("# CoQE's baseline", "# Chan et al.")
SHAPE = TaskShape(x_dim=3, points=12)


def counted(task: str, backbone: str, preset: str, *overrides: str) -> tuple[dict[str, Any], int]:
    """Its settings, and the parameters of what is built of them, an encoder left out."""
    config = resolve_run(task, backbone, preset, overrides=overrides)
    model = config.build(config.task.build())
    encoder = getattr(model, "images", None)
    left_out = sum(p.numel() for p in encoder.parameters()) if isinstance(encoder, nn.Module) else 0
    return config.backbone.settings, sum(p.numel() for p in model.parameters()) - left_out


_TASKS = [
    ("linear", "grid"),
    ("bursty", "grid"),
    ("gp-mixture", "small"),
    ("point-process", "grid"),
    ("point-process", "small"),
]


def _of_its_kind(task: str, name: str) -> bool:
    return (task == "point-process") == BACKBONES.get(name).events_only


def _marks(preset: str, name: str) -> list[pytest.MarkDecorator]:
    """The search is the same whatever the budget, and an architecture meets that of `grid` on every card: of `small`
    every third of them in every run."""
    thinned = preset == "small" and name in BACKBONES.architectures()[1::3] + BACKBONES.architectures()[2::3]
    return [pytest.mark.slow] if thinned else []


@pytest.mark.parametrize(
    ("task", "preset", "backbone"),
    [
        pytest.param(task, preset, name, marks=_marks(preset, name))
        for task, preset in _TASKS
        for name in sorted(BACKBONES.shipped)
        if (task == "point-process" or not BACKBONES.get(name).events_only)
        # Of `grid` only variants: architectures are asked about on every card of it (tests/test_equal_footing.py). Of
        # `small` those of events on events, all others on targets.
        and (name not in BACKBONES.architectures() or (preset == "small" and _of_its_kind(task, name)))
    ],
)
def test_every_backbone_meets_the_budget(task: str, preset: str, backbone: str) -> None:
    budget = load_task(task)[1].presets[preset].budget  # type: ignore[index]
    assert budget == (200_000 if preset == "small" else 25_000)
    assert abs(counted(task, backbone, preset)[1] / budget - 1) <= TOLERANCE == 0.03


@pytest.mark.parametrize("backbone", [name for name in BACKBONES.architectures() if name in BACKBONES.shipped])
def test_networks_are_counted_alike_in_memory_and_without_and_move_no_random_numbers(backbone: str) -> None:
    config = resolve_run("point-process", backbone, "grid")
    shape, state = config.shape(config.task.build()), torch.get_rng_state()
    cls, settings = backbone_class(backbone), config.backbone.settings
    found = [sizes._parameters(backbone, cls, shape, settings, budget) for budget in (sizes._SMALL, sizes._SMALL + 1)]
    assert torch.equal(torch.get_rng_state(), state)
    assert found == [config.backbone.build(shape).parameter_count] * 2


@pytest.mark.parametrize(
    ("budget", "settings", "memory"), [(1000, {}, True), (10**7, {}, False), (1000, {"hidden": 5000}, False)]
)
def test_what_may_be_large_has_no_memory_until_it_is_counted(
    budget: int, settings: dict[str, int], memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slip of the finger beside a small budget would be gigabytes."""
    seen = []
    monkeypatch.setattr(bounds, "measured", lambda build, what, memory: seen.append(memory) or build())
    sizes._parameters("lbanp", backbone_class("lbanp"), SHAPE, {"width": 8, "latents": 2, **settings}, budget)
    assert seen == [memory]


def test_a_backbone_for_events_alone_is_refused_on_other_tasks_and_left_out_of_grids(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    line = "backbone 'thp' reads event sequences and nothing else; task 'linear' has none, point-process does"
    with pytest.raises(UsageError, match=line):
        resolve_run("linear", "thp", "smoke")
    grid = {"summary": "one", "tasks": ["linear"], "backbones": ["cnp", "thp"], "presets": ["smoke"], "seeds": [0]}
    (tmp_path / "one.toml").write_text(tomli_w.dumps(grid))
    with caplog.at_level(logging.INFO, logger="iclbench"):
        assert [run.backbone for run in grid_runs(str(tmp_path / "one.toml"))] == ["cnp"]
    assert caplog.messages == [f"{line}: left out"]


def test_a_backbone_for_events_alone_is_not_what_a_wrong_head_of_their_task_is_about() -> None:
    with pytest.raises(UsageError, match="head 'gaussian' does not fit the event family 'point-process'"):
        resolve_run("point-process", "thp", "smoke", overrides=["task.head=gaussian"])
    with pytest.raises(UsageError, match="'thp' reads event sequences and nothing else; task 'linear' has none"):
        resolve_run("linear", "thp", "smoke", overrides=["task.head=event"])


def test_every_preset_but_the_papers_has_a_budget_and_what_else_it_says_has_a_reason() -> None:
    for task in names("tasks"):
        card = load_task(task)[1]
        for name, preset in card.presets.items():
            assert (preset.budget is None) == (name == "paper")
            if preset.budget is not None:
                size = {"layers", "width", "heads", "hidden", "latents", "pseudo_tokens", "state", "size"}
                assert not size & {key for each in preset.backbones.values() for key in each}, (task, name)
    kept = sum(len(p.backbones) for t in names("tasks") for n, p in load_task(t)[1].presets.items() if n != "paper")
    folder = Path(__file__).parents[2] / "tasks"
    reasons = [
        line for path in folder.glob("*.toml") for line in path.read_text().splitlines() if line.startswith(_REASONS)
    ]
    assert kept == len(reasons) == 22


def test_a_budget_is_met_by_width_first_and_then_by_finer_settings() -> None:
    """TNP's width at four heads jumps by 15 %: the feed-forward networks make up for it."""
    settings, parameters = counted("linear", "tnp", "grid")
    assert settings["width"] % settings["heads"] == 0
    assert settings["feedforward"] != settings["width"]
    by_width = counted("linear", "tnp", "grid", f"backbone.width={settings['width']}")
    assert "feedforward" not in by_width[0]
    assert abs(by_width[1] / 25_000 - 1) > TOLERANCE >= abs(parameters / 25_000 - 1)


def test_the_nearest_size_is_the_nearest() -> None:
    """Against all widths, one by one."""
    cls = backbone_class("cnp")
    found = budget_settings("cnp", cls, 25_000, SHAPE, {})
    counts = {width: cls(cls.Settings(width=width), SHAPE).parameter_count for width in range(40, 80)}
    assert found["width"] == min(counts, key=lambda width: abs(counts[width] - 25_000))


@pytest.mark.parametrize("budget", [1, 30, 500, 25_000, 10**6, 10**9])
@pytest.mark.parametrize("power", [1, 2, 3])
def test_nearest_of_any_growth(budget: int, power: float) -> None:
    def size(value: int) -> int:
        return 7 + int(3 * value**power)

    asked: list[int] = []
    found = sizes._nearest(lambda value: asked.append(value) or size(value), budget, 4)  # type: ignore[func-returns-value]
    assert found % 4 == 0
    assert len(asked) <= 40
    error = abs(size(found) - budget)
    assert error <= abs(size(found + 4) - budget)
    assert found == 4 or error <= abs(size(found - 4) - budget)


def test_the_search_ends_where_nothing_grows_any_more() -> None:
    asked: list[int] = []
    found = sizes._nearest(lambda value: asked.append(value) or min(value, 64) ** 2, 10**6, 4)  # type: ignore[func-returns-value]
    assert found >= 64 and len(asked) < 10


def test_settings_that_are_given_stay_and_a_width_ends_the_search() -> None:
    settings, parameters = counted("linear", "mamba", "grid", "backbone.state=4", "backbone.layers=3")
    assert (settings["state"], settings["layers"]) == (4, 3)
    assert abs(parameters / 25_000 - 1) <= TOLERANCE
    assert counted("linear", "mamba", "grid", "backbone.width=8")[0]["width"] == 8
    assert counted("linear", "gpt2", "grid", "backbone.size=tiny")[0] | {"width": None} == {
        "size": "tiny", "layers": 2, "heads": 4, "init_std": 0.12, "positions": "none", "width": None,
    }  # fmt: skip


def test_a_hidden_width_keeps_its_ratio_to_the_width() -> None:
    settings, _ = counted("linear", "lbanp", "small")
    assert settings["hidden"] / settings["width"] == pytest.approx(2, rel=0.3)


def test_a_budget_out_of_reach_names_the_nearest_size() -> None:
    with pytest.raises(UsageError) as raised:
        budget_settings("s4", S4, 40, SHAPE, {})
    assert str(raised.value).startswith("'s4' cannot have 40 parameters here: the nearest is width 1, state ")
    assert str(raised.value).endswith("; give -o backbone.width=N for a size of your own")


class Fixed(Backbone["Fixed.Settings"]):
    """A plug-in with nothing to grow by."""

    order = "set"

    class Settings(BaseSettings):
        pass

    def __init__(self, settings: Any, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        self.line = nn.Linear(shape.x_dim, 9)

    def condition(self, context: Any, related: Any = None) -> Any:
        raise NotImplementedError

    query = update = condition  # type: ignore[assignment]


class Growing(Fixed):
    """One that says itself by what."""

    grows: ClassVar[tuple[str, ...]] = ("units",)

    class Settings(BaseSettings):
        units: PositiveInt = 3

    def __init__(self, settings: Any, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        self.wide = nn.Linear(settings.units, 10, bias=False)


class Unset(Fixed):
    """Its hidden width follows from the width unless somebody gives one."""

    class Settings(BaseSettings):
        width: PositiveInt = 16
        hidden: PositiveInt | None = None

    def __init__(self, settings: Any, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        self.up = nn.Linear(settings.width, settings.hidden or 2 * settings.width, bias=False)


def test_a_hidden_width_that_is_unset_is_left_to_the_class() -> None:
    assert budget_settings("unset", Unset, 36 + 2 * 30**2, SHAPE, {}) == {"width": 30}


def test_a_plug_in_is_sized_by_the_same_rule(caplog: pytest.LogCaptureFixture) -> None:
    assert budget_settings("mine", Growing, 1036, SHAPE, {}) == {"units": 100}
    caplog.set_level(logging.INFO, "iclbench")
    sizes.log_once.cache_clear()
    assert budget_settings("fixed", Fixed, 36, SHAPE, {}) == {}
    assert not caplog.records
    assert budget_settings("fixed", Fixed, 50, SHAPE, {}) == {}
    line = "'fixed' has 36 parameters where the budget is 50, and no setting by which it could grow (none of width, "
    assert [record.message.startswith(line) for record in caplog.records] == [True]


def test_deviations_are_shares_of_the_budget() -> None:
    assert deviation(103, 100) == pytest.approx(0.03)


def test_a_backbone_without_a_size_is_refused_with_what_to_do(card_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        check_size(str(card_path), "TNP", "smoke", {})
    assert str(raised.value) == LINE


def test_presets_that_have_one_are_named(tmp_path: Path) -> None:
    card = small_card()
    other = {**card["presets"]["smoke"], "backbones": {"tnp": {"width": 8}}}  # type: ignore[index]
    budget = {**card["presets"]["smoke"], "budget": 1000}  # type: ignore[index]
    path = tmp_path / "two.toml"
    presets = {**card["presets"], "small": other, "grid": budget}  # type: ignore[dict-item]
    path.write_text(tomli_w.dumps(card | {"presets": presets}))
    assert str(missing_size(str(path), "tnp", "smoke", {})).endswith("-o backbone.width=N, or --preset small or grid")
    assert missing_size(str(path), "tnp", "small", {}) is None
    assert missing_size(str(path), "tnp", "grid", {}) is None


@pytest.mark.parametrize(
    ("given", "enough"), [({"layers": 2}, True), ({"encoder": "linear"}, False), ({"residual": "none"}, False)]
)
def test_a_size_that_is_given_is_enough_and_another_setting_is_not(
    given: dict[str, Any], enough: bool, card_path: Path
) -> None:
    assert (missing_size(str(card_path), "lbanp", "smoke", given) is None) == enough


def test_the_papers_preset_has_published_sizes_and_no_others() -> None:
    assert missing_size("linear", "gpt2", "paper", {}) is None
    assert str(missing_size("linear", "tnp", "paper", {})).endswith(
        "whose own is width 128, layers 5, heads 8; give -o backbone.layers=N -o backbone.width=N, or --preset smoke "
        "or grid or small"
    )


def test_train_refuses_before_there_is_a_folder_and_goes_on_with_a_run_that_has_begun(
    card_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of an earlier version may have the backbone's own size: the same command still continues it."""
    command = ["train", str(card_path), "cnp", "-p", "smoke", "-o", "train.steps=2", "--results", str(tmp_path / "r")]
    assert main(command) == 2
    assert "error: preset 'smoke' of task 'tiny-linear' has no size for 'cnp'" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()
    assert main([*command, "-o", "backbone.width=128"]) == 0  # its own
    assert main(command) == 0
    assert "is finished" in capsys.readouterr().err


def test_a_plug_in_and_a_grid_are_told_once_and_go_on(
    card_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "iclbench")
    sizes.log_once.cache_clear()
    for _ in range(2):
        check_size(str(card_path), "iclbench.backbones.cnp:CNP", "smoke", {})
    assert [record.message for record in caplog.records] == [
        "preset 'smoke' of task 'tiny-linear' has no size for 'iclbench.backbones.cnp:CNP', whose own is width 128; "
        "give -o backbone.width=N"
    ]
    caplog.clear()
    grid = {
        "summary": "two",
        "tasks": [str(card_path)],
        "backbones": ["gpt2", "tnp"],
        "presets": ["smoke"],
        "seeds": [0, 1],
    }
    (tmp_path / "grid.toml").write_text(tomli_w.dumps(grid))
    assert len(grid_runs(str(tmp_path / "grid.toml"))) == 4
    assert [record.message for record in caplog.records] == [LINE]


def test_a_budget_leaves_the_state_and_the_layer_of_a_mixer_as_they_are() -> None:
    """What is not searched is a factor: mlstm's queries stay in blocks of four channels, mamba2's state at 64."""
    for conv in ([], ["backbone.conv=0"]):
        for name in ("mamba2", "mlstm"):
            settings, count = counted("linear", name, "grid", *conv)
            assert "state" not in settings and abs(deviation(count, 25_000)) <= TOLERANCE
    config = resolve_run("linear", "mlstm", "grid")
    mixer = config.build(config.task.build()).layers[0].mixer
    assert mixer.q.shape[1:] == (4, 4) and len(mixer.q) == len(mixer.skip) // 4
    for state in (8, 32):
        settings, count = counted("linear", "mamba2", "grid", f"backbone.state={state}")
        assert settings["state"] == state and abs(deviation(count, 25_000)) <= TOLERANCE


@pytest.mark.parametrize("mixers", [["retnet"], ["retnet", "attention"], ["gla", "retnet"]])
def test_a_hybrid_has_widths_that_all_its_mixers_take(mixers: list[str]) -> None:
    settings, count = counted("linear", "hybrid", "smoke", f"backbone.mixers={mixers}".replace("'", '"'))
    assert settings["width"] // settings["heads"] % 2 == 0 and abs(deviation(count, 25_000)) <= TOLERANCE
    assert "state" not in settings


@pytest.mark.parametrize(("backbone", "given"), [("attention", "backbone.mlp=none"), ("mlstm", "backbone.heads=8")])
def test_a_finer_setting_may_meet_a_budget_beside_another_width(backbone: str, given: str) -> None:
    settings, count = counted("linear", backbone, "grid", given)
    assert abs(deviation(count, 25_000)) <= TOLERANCE and settings["inner"] % settings["heads"] == 0


def test_mixers_without_heads_take_every_width() -> None:
    settings, count = counted("linear", "hybrid", "grid", 'backbone.mixers=["lstm", "gru"]')
    assert settings["width"] % settings["heads"] and abs(deviation(count, 25_000)) <= TOLERANCE


def test_retnet_without_a_channel_mlp_has_a_budget() -> None:
    settings, count = counted("linear", "retnet", "smoke", "backbone.mlp=none")
    assert settings["inner"] % settings["heads"] == 0 and abs(deviation(count, 25_000)) <= TOLERANCE
