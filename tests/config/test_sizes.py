"""Backbone sizes follow from the budget of a preset or from settings. Without either, training is refused."""

import logging
from itertools import pairwise
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
from iclbench.config.cards import BUDGET_TOLERANCE, card_names, cards_folder, deviation, load_task
from iclbench.config.resolution import backbone_class, resolve_run
from iclbench.config.sizes import budget_settings, check_size, missing_size_message
from iclbench.core import bounds
from iclbench.core.settings import BaseSettings, PositiveInt
from iclbench.core.task import TaskShape
from iclbench.registry import BACKBONES
from iclbench.sweep.grids import grid_runs
from tests.conftest import small_card
from tests.refusals import refused

# Parts of the message about the missing size of `tnp`.
MISSING_SIZE = ("'smoke'", "'tiny-linear'", "'tnp'", "width 128, layers 5, heads 8", "-o backbone.layers=N")
SHAPE = TaskShape(x_dim=3, points=12)


def settings_and_size(task: str, backbone: str, preset: str, *overrides: str) -> tuple[dict[str, Any], int]:
    """Return the settings of a backbone and its number of parameters without the image encoder."""
    config = resolve_run(task, backbone, preset, overrides=overrides)
    model = config.build(config.task.build())
    encoder = getattr(model, "images", None)
    encoder_size = sum(p.numel() for p in encoder.parameters()) if isinstance(encoder, nn.Module) else 0
    return config.backbone.settings, sum(p.numel() for p in model.parameters()) - encoder_size


_TASKS = [
    ("linear", "grid"),
    ("bursty", "grid"),
    ("gp-mixture", "small"),
    ("point-process", "grid"),
    ("point-process", "small"),
]


def _reads_task(task: str, name: str) -> bool:
    return (task == "point-process") == BACKBONES.get(name).reads_only_events()


def _marks(preset: str, name: str) -> list[pytest.MarkDecorator]:
    """Mark two thirds of the architectures as slow for `small`, because all of them are tested for `grid`."""
    is_slow = preset == "small" and name in BACKBONES.architectures()[1::3] + BACKBONES.architectures()[2::3]
    return [pytest.mark.slow] if is_slow else []


@pytest.mark.parametrize(
    ("task", "preset", "backbone"),
    [
        pytest.param(task, preset, name, marks=_marks(preset, name))
        for task, preset in _TASKS
        for name in sorted(BACKBONES.builtin_entries)
        if (task == "point-process" or not BACKBONES.get(name).reads_only_events())
        # For `grid`, tests/test_equal_budget.py tests the architectures, so only variants are tested.
        and (name not in BACKBONES.architectures() or (preset == "small" and _reads_task(task, name)))
    ],
)
def test_every_backbone_meets_the_budget(task: str, preset: str, backbone: str) -> None:
    budget = load_task(task)[1].presets[preset].budget  # type: ignore[index]
    assert budget == (200_000 if preset == "small" else 25_000)
    assert abs(settings_and_size(task, backbone, preset)[1] / budget - 1) <= BUDGET_TOLERANCE == 0.03


@pytest.mark.parametrize("backbone", [name for name in BACKBONES.architectures() if name in BACKBONES.builtin_entries])
def test_parameter_counts_do_not_depend_on_allocation_and_use_no_random_numbers(backbone: str) -> None:
    cls = backbone_class(backbone)
    config = resolve_run("point-process" if "events" in cls.input_kinds else "linear", backbone, "grid")
    shape, state, settings = config.shape(config.task.build()), torch.get_rng_state(), config.backbone.settings
    counts = [
        sizes._parameter_count(backbone, cls, shape, settings, budget)
        for budget in (sizes._MEMORY_BUDGET, sizes._MEMORY_BUDGET + 1)
    ]
    assert torch.equal(torch.get_rng_state(), state)
    assert counts == [config.backbone.build(shape).parameter_count] * 2


@pytest.mark.parametrize(
    ("budget", "settings", "has_memory"), [(1000, {}, True), (10**7, {}, False), (1000, {"hidden": 5000}, False)]
)
def test_parameters_of_large_backbones_are_counted_without_allocation(
    budget: int, settings: dict[str, int], has_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, a mistyped setting could allocate gigabytes."""
    calls = []
    monkeypatch.setattr(
        bounds, "build_to_measure", lambda build, description, allocate: calls.append(allocate) or build()
    )
    sizes._parameter_count("lbanp", backbone_class("lbanp"), SHAPE, {"width": 8, "latents": 2, **settings}, budget)
    assert calls == [has_memory]


def test_an_event_backbone_is_refused_for_other_tasks_and_omitted_from_grids(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with refused("not-applicable", "'thp'", "'linear'", "point-process"):
        resolve_run("linear", "thp", "smoke")
    grid = {"summary": "one", "tasks": ["linear"], "backbones": ["cnp", "thp"], "presets": ["smoke"], "seeds": [0]}
    (tmp_path / "one.toml").write_text(tomli_w.dumps(grid))
    with caplog.at_level(logging.INFO, logger="iclbench"):
        assert [run.backbone for run in grid_runs(str(tmp_path / "one.toml"))] == ["cnp"]
    (message,) = caplog.messages
    assert "'thp'" in message and "'linear'" in message


def test_errors_about_events_name_the_head_or_the_backbone() -> None:
    with refused("not-applicable", "'gaussian'", "'point-process'"):
        resolve_run("point-process", "thp", "smoke", overrides=["task.head=gaussian"])
    with refused("not-applicable", "'thp'", "'linear'"):
        resolve_run("linear", "thp", "smoke", overrides=["task.head=event"])


def test_presets_except_paper_have_a_budget_and_explain_their_backbone_settings() -> None:
    for task in card_names("tasks"):
        path, card = cards_folder("tasks") / f"{task}.toml", load_task(task)[1]
        for name, preset in card.presets.items():
            assert (preset.budget is None) == (name == "paper")
            if preset.budget is not None:
                size = {"layers", "width", "heads", "hidden", "latents", "pseudo_tokens", "state", "size"}
                assert not size & {key for settings in preset.backbones.values() for key in settings}, (task, name)
            if name != "paper" and preset.backbones:
                table = path.read_text().partition(f"[presets.{name}.backbones]\n")[2].partition("\n\n")[0].splitlines()
                reasons = [line for line, entry in pairwise(table) if line[0] == "#" and entry[0] != "#"]
                assert len(reasons) == len(preset.backbones) > 0, (task, name)


def test_finer_settings_are_used_if_no_width_is_near_the_budget() -> None:
    """With four heads, the possible widths of TNP change its size in steps of 15 %, so the feed-forward width is
    searched, too.
    """
    settings, parameters = settings_and_size("linear", "tnp", "grid")
    assert settings["width"] % settings["heads"] == 0
    assert settings["feedforward"] != settings["width"]
    width_settings, width_size = settings_and_size("linear", "tnp", "grid", f"backbone.width={settings['width']}")
    assert "feedforward" not in width_settings
    assert abs(width_size / 25_000 - 1) > BUDGET_TOLERANCE >= abs(parameters / 25_000 - 1)


def test_the_search_finds_the_width_nearest_to_the_budget() -> None:
    cls = backbone_class("cnp")
    settings = budget_settings("cnp", cls, 25_000, SHAPE, {})
    counts = {width: cls(cls.Settings(width=width), SHAPE).parameter_count for width in range(40, 80)}
    assert settings["width"] == min(counts, key=lambda width: abs(counts[width] - 25_000))


@pytest.mark.parametrize("budget", [1, 30, 500, 25_000, 10**6, 10**9])
@pytest.mark.parametrize("power", [1, 2, 3])
def test_the_search_finds_the_nearest_value_for_polynomial_sizes(budget: int, power: float) -> None:
    def size(value: int) -> int:
        return 7 + int(3 * value**power)

    values: list[int] = []
    nearest = sizes.nearest_value(lambda value: values.append(value) or size(value), budget, 4)  # type: ignore[func-returns-value]
    assert nearest % 4 == 0
    assert len(values) <= 40
    error = abs(size(nearest) - budget)
    assert error <= abs(size(nearest + 4) - budget)
    assert nearest == 4 or error <= abs(size(nearest - 4) - budget)


def test_the_search_ends_if_the_size_stops_growing() -> None:
    values: list[int] = []
    nearest = sizes.nearest_value(lambda value: values.append(value) or min(value, 64) ** 2, 10**6, 4)  # type: ignore[func-returns-value]
    assert nearest >= 64 and len(values) < 10


def test_given_settings_do_not_change_and_a_given_width_disables_the_search() -> None:
    settings, parameters = settings_and_size("linear", "mamba", "grid", "backbone.state=4", "backbone.layers=3")
    assert (settings["state"], settings["layers"]) == (4, 3)
    assert abs(parameters / 25_000 - 1) <= BUDGET_TOLERANCE
    assert settings_and_size("linear", "mamba", "grid", "backbone.width=8")[0]["width"] == 8
    assert settings_and_size("linear", "gpt2", "grid", "backbone.size=tiny")[0] | {"width": None} == {
        "size": "tiny", "layers": 2, "heads": 4, "init_std": 0.12, "positions": "none", "width": None,
    }  # fmt: skip


def test_the_hidden_width_is_proportional_to_the_width() -> None:
    settings, _ = settings_and_size("linear", "lbanp", "small")
    assert settings["hidden"] / settings["width"] == pytest.approx(2, rel=0.3)


def test_the_error_for_an_unreachable_budget_names_the_nearest_size() -> None:
    with refused("not-applicable", "'s4'", 40, "width 1, state ", "-o backbone.width=N"):
        budget_settings("s4", S4, 40, SHAPE, {})


class Fixed(Backbone["Fixed.Settings"]):
    """A plug-in without settings that change its size."""

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
    """A plug-in whose size grows with a setting."""

    grows: ClassVar[tuple[str, ...]] = ("units",)

    class Settings(BaseSettings):
        units: PositiveInt = 3

    def __init__(self, settings: Any, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        self.wide = nn.Linear(settings.units, 10, bias=False)


class Unset(Fixed):
    """A plug-in whose hidden width depends on the width by default."""

    class Settings(BaseSettings):
        width: PositiveInt = 16
        hidden: PositiveInt | None = None

    def __init__(self, settings: Any, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        self.up = nn.Linear(settings.width, settings.hidden or 2 * settings.width, bias=False)


def test_a_hidden_width_whose_default_is_none_is_not_set() -> None:
    assert budget_settings("unset", Unset, 36 + 2 * 30**2, SHAPE, {}) == {"width": 30}


def test_plug_ins_are_sized_by_their_budget_like_shipped_backbones(caplog: pytest.LogCaptureFixture) -> None:
    assert budget_settings("mine", Growing, 1036, SHAPE, {}) == {"units": 100}
    caplog.set_level(logging.INFO, "iclbench")
    sizes.log_once.cache_clear()
    assert budget_settings("fixed", Fixed, 36, SHAPE, {}) == {}
    assert not caplog.records
    assert budget_settings("fixed", Fixed, 50, SHAPE, {}) == {}
    (message,) = caplog.messages
    assert "'fixed'" in message and "36" in message and "50" in message


def test_deviations_are_relative_to_the_budget() -> None:
    assert deviation(103, 100) == pytest.approx(0.03)


def test_a_backbone_without_a_size_is_refused(card_path: Path) -> None:
    with refused("missing-value", *MISSING_SIZE):
        check_size(str(card_path), "TNP", "smoke", {})


def test_the_error_for_a_missing_size_lists_presets_with_a_size(tmp_path: Path) -> None:
    card = small_card()
    sized = {**card["presets"]["smoke"], "backbones": {"tnp": {"width": 8}}}  # type: ignore[index]
    budget = {**card["presets"]["smoke"], "budget": 1000}  # type: ignore[index]
    path = tmp_path / "two.toml"
    presets = {**card["presets"], "small": sized, "grid": budget}  # type: ignore[dict-item]
    path.write_text(tomli_w.dumps(card | {"presets": presets}))
    assert "--preset small or grid" in str(missing_size_message(str(path), "tnp", "smoke", {}))
    assert missing_size_message(str(path), "tnp", "small", {}) is None
    assert missing_size_message(str(path), "tnp", "grid", {}) is None


@pytest.mark.parametrize(
    ("settings", "has_size"), [({"layers": 2}, True), ({"encoder": "linear"}, False), ({"residual": "none"}, False)]
)
def test_only_integer_settings_count_as_a_size(settings: dict[str, Any], has_size: bool, card_path: Path) -> None:
    assert (missing_size_message(str(card_path), "lbanp", "smoke", settings) is None) == has_size


def test_the_preset_paper_has_only_published_sizes() -> None:
    assert missing_size_message("linear", "gpt2", "paper", {}) is None
    message = str(missing_size_message("linear", "tnp", "paper", {}))
    assert all(name in message for name in ("'paper'", "'linear'", "'tnp'", "--preset smoke or grid or small"))


def test_training_without_a_size_is_refused_unless_the_run_has_started(
    card_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of an earlier version may have the default size, and the same command must continue it."""
    command = ["train", str(card_path), "cnp", "-p", "smoke", "-o", "train.steps=2", "--results", str(tmp_path / "r")]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert all(name in error for name in ("'smoke'", "'tiny-linear'", "'cnp'"))
    assert not (tmp_path / "r").exists()
    assert main([*command, "-o", "backbone.width=128"]) == 0  # the default width
    assert main(command) == 0
    assert "is finished" in capsys.readouterr().err


def test_missing_sizes_of_plug_ins_and_in_grids_are_logged_once(
    card_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "iclbench")
    sizes.log_once.cache_clear()
    for _ in range(2):
        check_size(str(card_path), "iclbench.backbones.cnp:CNP", "smoke", {})
    (message,) = caplog.messages
    assert all(name in message for name in ("'smoke'", "'iclbench.backbones.cnp:CNP'", "width 128"))
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
    (message,) = caplog.messages
    assert all(name in message for name in MISSING_SIZE)


def test_the_budget_search_does_not_change_the_state_or_block_size_of_a_mixer() -> None:
    """The projections of mlstm have blocks of four channels, and mamba2 has a state of size 64."""
    for conv in ([], ["backbone.conv=0"]):
        for name in ("mamba2", "mlstm"):
            settings, count = settings_and_size("linear", name, "grid", *conv)
            assert "state" not in settings and abs(deviation(count, 25_000)) <= BUDGET_TOLERANCE
    config = resolve_run("linear", "mlstm", "grid")
    mixer = config.build(config.task.build()).layers[0].mixer
    assert mixer.q.shape[1:] == (4, 4) and len(mixer.q) == len(mixer.skip) // 4
    for state in (8, 32):
        settings, count = settings_and_size("linear", "mamba2", "grid", f"backbone.state={state}")
        assert settings["state"] == state and abs(deviation(count, 25_000)) <= BUDGET_TOLERANCE


@pytest.mark.parametrize("mixers", [["retnet"], ["retnet", "attention"], ["gla", "retnet"]])
def test_the_width_of_a_hybrid_is_valid_for_all_its_mixers(mixers: list[str]) -> None:
    settings, count = settings_and_size("linear", "hybrid", "smoke", f"backbone.mixers={mixers}".replace("'", '"'))
    assert settings["width"] // settings["heads"] % 2 == 0 and abs(deviation(count, 25_000)) <= BUDGET_TOLERANCE
    assert "state" not in settings


@pytest.mark.parametrize(("backbone", "override"), [("attention", "backbone.mlp=none"), ("mlstm", "backbone.heads=8")])
def test_finer_settings_are_searched_at_neighbouring_widths(backbone: str, override: str) -> None:
    settings, count = settings_and_size("linear", backbone, "grid", override)
    assert abs(deviation(count, 25_000)) <= BUDGET_TOLERANCE and settings["inner"] % settings["heads"] == 0


def test_mixers_without_heads_do_not_restrict_the_width() -> None:
    settings, count = settings_and_size("linear", "hybrid", "grid", 'backbone.mixers=["lstm", "gru"]')
    assert settings["width"] % settings["heads"] and abs(deviation(count, 25_000)) <= BUDGET_TOLERANCE


def test_retnet_without_a_channel_mlp_meets_the_budget() -> None:
    settings, count = settings_and_size("linear", "retnet", "smoke", "backbone.mlp=none")
    assert settings["inner"] % settings["heads"] == 0 and abs(deviation(count, 25_000)) <= BUDGET_TOLERANCE
