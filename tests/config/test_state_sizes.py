"""The setting `state_budget`: sizes of states, the search, and its errors."""

import re
from typing import Any

import pytest
import torch

from iclbench.config import state_sizes
from iclbench.config.cards import BUDGET_TOLERANCE, deviation, load_task
from iclbench.config.resolution import RunConfig, resolve_run
from iclbench.config.sizes import missing_size_message, nearest_value
from iclbench.config.state_sizes import STATE_TOLERANCE
from iclbench.core.episodes import Points
from iclbench.core.errors import UsageError
from iclbench.core.task import TaskShape
from iclbench.registry import BACKBONES, MIXERS
from iclbench.store.identity import run_id
from tests.refusals import refused

SHAPE = TaskShape(x_dim=4, points=24)


def model(name: str, **settings: Any) -> Any:
    cls = BACKBONES.get(name)
    return cls(cls.Settings(**settings), SHAPE).eval()


def points(count: int) -> Points:
    return Points.full(torch.randn(2, count, 4), torch.randn(2, count, 1))


def config_with_state(task: str, backbone: str, size: int, *overrides: str, preset: str = "grid") -> RunConfig:
    return resolve_run(task, backbone, preset, overrides=[f"backbone.state_budget={size}", *overrides])


def sizes(config: RunConfig) -> tuple[int, int]:
    """Return the number of values in the state after the context of the preset, and the number of parameters."""
    backbone = config.build(config.task.build())
    assert backbone.state_size is not None
    return backbone.state_size, backbone.parameter_count


# Sizes of the states of one layer, from the equations of the papers. A convolution of 4 taps stores the 3 last inputs.
D, H, K, E = 24, 2, 5, 36
STATES = [
    ("linear-attention", {"heads": H, "state": K, "inner": E}, H * K * (E // H + 1)),
    ("gla", {"heads": H, "state": K, "inner": E}, H * K * (E // H)),
    ("deltanet", {"heads": H, "state": K}, K * D + 3 * (2 * H * K + D)),
    ("gated-deltanet", {"heads": H, "state": K, "conv": 0}, K * (2 * H * (3 * D // (4 * H)))),
    ("mamba2", {"heads": H, "state": K}, K * 2 * D + 3 * (2 * D + 2 * K)),
    ("mamba3", {"heads": H, "state": K}, K * 2 * D + 2 * D + K),
    ("mamba", {"state": K}, K * 2 * D + 3 * 2 * D),
    ("retnet", {"heads": H, "state": 6}, 6 * 2 * D),
    ("based", {"heads": H, "state": K}, H * (K + 1) * (K + 2) // 2 * (D // H + 1)),
    ("rwkv7", {"heads": H}, H * (D // H) ** 2 + D),
    ("lstm", {}, 2 * D),
]


@pytest.mark.parametrize(("name", "settings", "expected"), STATES)
def test_the_size_of_a_state_follows_from_the_equations(name: str, settings: dict[str, int], expected: int) -> None:
    backbone = model(name, layers=3, width=D, **settings)
    assert backbone.state_size == 3 * expected
    assert backbone.condition(points(7)).nbytes == 2 * 4 * backbone.state_size


@pytest.mark.parametrize("name", sorted(MIXERS.builtin_entries))
def test_a_mixer_declares_whether_its_state_grows(name: str) -> None:
    backbone = model("hybrid", layers=1, width=16, heads=2, mixers=[name])
    shorter, longer = (backbone.condition(points(count)).nbytes // 8 for count in (5, 20))
    assert MIXERS.subclass(name).state_grows == (longer > shorter)
    assert backbone.state_size == (None if longer > shorter else shorter)


SEARCH_CASES = [
    ("linear", "mamba2", 2048),
    ("linear", "mamba2", 5000),
    ("linear", "mamba3", 2048),
    ("linear", "mlstm", 2048),
    ("linear", "retnet", 8192),
    ("linear", "based", 1024),
    ("linear", "rwkv7", 600),
    ("recall-overwrite", "gla", 512),
    ("recall-overwrite", "deltanet", 4096),
    ("recall-overwrite", "gated-deltanet", 2048),
    ("recall-overwrite", "kda", 1024),
    ("recall-overwrite", "linear-attention", 2048),
    ("recall-overwrite", "mamba", 2048),
    ("recall-overwrite", "rwkv7", 512),
    ("image-completion", "mamba2", 2048),
]


@pytest.mark.parametrize(("task", "backbone", "size"), SEARCH_CASES)
def test_the_search_meets_the_state_budget_and_the_parameter_budget(task: str, backbone: str, size: int) -> None:
    config = config_with_state(task, backbone, size)
    built = config.build(config.task.build())
    assert abs(built.state_size / size - 1) <= STATE_TOLERANCE == 0.1  # type: ignore[operator]
    budget = load_task(task)[1].presets["grid"].budget
    assert budget is not None
    assert abs(deviation(built.parameter_count - built.encoder_parameter_count, budget)) <= BUDGET_TOLERANCE
    assert config.backbone.settings["state_budget"] == size


def test_a_hybrid_of_two_mixers_meets_the_state_budget() -> None:
    config = config_with_state("linear", "hybrid", 2048, 'backbone.mixers=["mamba2", "gated-deltanet"]')
    assert abs(sizes(config)[0] / 2048 - 1) <= STATE_TOLERANCE


def test_a_large_state_needs_fewer_heads_but_not_a_narrow_model() -> None:
    usual = resolve_run("linear", "deltanet", "grid").backbone.settings
    small, large = (config_with_state("linear", "deltanet", size).backbone.settings for size in (1536, 8192))
    assert small["heads"] == usual["heads"] == 4 and large["heads"] < 4
    assert large["width"] >= 0.5 * usual["width"]


def test_a_model_whose_usual_state_is_near_the_budget_does_not_change() -> None:
    usual = resolve_run("linear", "deltanet", "grid")
    size = sizes(usual)[0]
    assert config_with_state("linear", "deltanet", size + 1).backbone.settings == {
        **usual.backbone.settings,
        "state_budget": size + 1,
    }


def test_the_search_is_deterministic_and_rarely_builds_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of this size is built in two milliseconds, so the search takes less than a second."""
    built = []
    build = state_sizes.model_to_measure
    monkeypatch.setattr(state_sizes, "model_to_measure", lambda *args: built.append(args) or build(*args))
    results = []
    for _ in range(2):
        state_sizes._search.cache_clear()
        results.append(config_with_state("linear", "mlstm", 1024))
    assert results[0] == results[1]
    assert 0 < len(built) <= 2 * 300


@pytest.mark.parametrize(
    "override", ["backbone.heads=2", "backbone.state=8", "backbone.inner=80", "backbone.layers=3", "backbone.width=20"]
)
def test_given_settings_do_not_change(override: str) -> None:
    key, value = override.removeprefix("backbone.").split("=")
    config = config_with_state("linear", "mamba2", 2048, override)
    size, parameters = sizes(config)
    assert config.backbone.settings[key] == int(value)
    assert abs(size / 2048 - 1) <= STATE_TOLERANCE
    assert (abs(deviation(parameters, 25_000)) <= BUDGET_TOLERANCE) == (key != "width")


def test_a_given_width_excludes_heads_that_do_not_divide_it() -> None:
    config = config_with_state("linear", "deltanet", 8192, "backbone.width=20")
    assert 20 % config.backbone.settings["heads"] == 0 and abs(sizes(config)[0] / 8192 - 1) <= STATE_TOLERANCE


def test_a_preset_without_a_parameter_budget_searches_only_the_state() -> None:
    settings = ["backbone.layers=2", "backbone.width=32"]
    config = config_with_state("linear", "mamba2", 20_000, *settings, preset="paper")
    assert abs(sizes(config)[0] / 20_000 - 1) <= STATE_TOLERANCE
    assert (config.backbone.settings["layers"], config.backbone.settings["width"]) == (2, 32)


def test_a_state_budget_is_not_the_size_of_a_model() -> None:
    assert missing_size_message("linear", "mamba2", "paper", {"state_budget": 2048}) is not None


def test_the_error_for_an_unreachable_number_of_parameters_is_the_same_as_without_a_state_budget() -> None:
    overrides = ["backbone.inner=4000"]
    with pytest.raises(UsageError) as usual:
        resolve_run("linear", "mamba2", "grid", overrides=overrides)
    with refused("not-applicable", str(usual.value)):
        config_with_state("linear", "mamba2", 2048, *overrides)


@pytest.mark.parametrize("name", ["attention", "hyena", "hybrid", "mambaformer"])
def test_a_state_budget_is_refused_if_the_state_grows(name: str) -> None:
    with refused("not-applicable", "backbone.state_budget", f"'{name}'"):
        config_with_state("linear", name, 2048)


def test_backbones_without_the_setting_refuse_it() -> None:
    with refused("unknown-name", "state_budget"):
        config_with_state("linear", "gpt2", 2048)


@pytest.mark.parametrize(
    ("name", "size"), [("gru", 512), ("rwkv7", 8192), ("gla", 8192), ("mamba2", 10**9), ("mamba2", 10)]
)
def test_the_error_for_an_unreachable_state_names_the_nearest_one(name: str, size: int) -> None:
    with pytest.raises(UsageError) as error:
        config_with_state("recall-overwrite", name, size)
    assert error.value.code == "not-applicable"
    assert f"'{name}'" in str(error.value) and f"{size:,}" in str(error.value) and "width " in str(error.value)
    suggested = re.search(r"-o backbone\.state_budget=(\d+)$", str(error.value))
    assert suggested is not None
    nearest = int(suggested[1])
    assert sizes(config_with_state("recall-overwrite", name, nearest))[0] == pytest.approx(nearest, rel=STATE_TOLERANCE)


def test_runs_without_a_state_budget_keep_their_ids() -> None:
    config = resolve_run("linear", "mamba2", "grid")
    assert "state_budget" not in config.dump()["backbone"]["settings"]
    plain = config.dump()
    plain["backbone"]["settings"]["state_budget"] = None
    assert run_id(RunConfig.model_validate(plain)) == run_id(config)
    assert run_id(config_with_state("linear", "mamba2", 2048)) != run_id(config)


def test_the_nearest_value_is_at_the_last_crossing_if_sizes_first_fall() -> None:
    """For a state of fixed size, a narrow model needs many rows, so it may have more parameters than a wider one."""

    def size(value: int) -> int:
        return 400 // value + value**2

    assert nearest_value(size, 200, 1) == 13  # size(13) is 199, and size(2) is 204
