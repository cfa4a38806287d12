"""Search for the settings that give a backbone the parameter budget of a preset.

The same rule holds for all backbones. The class determines the settings that are fixed for a budget
(`Backbone.at_budget`: depth, heads) and the settings by which it grows (`Backbone.grows`). The search finds the value
of the first growing setting whose size is nearest to the budget. While the size deviates by more than
`BUDGET_TOLERANCE`, the search continues with the next setting, which has finer steps. The size excludes the image
encoder, which is the same for all backbones of a task and often larger than the backbones.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from iclbench.config.cards import BUDGET_TOLERANCE, TaskCard, deviation, load_task
from iclbench.core.errors import UsageError, is_ours
from iclbench.core.formats import canonical, count
from iclbench.core.settings import BaseSettings, validate
from iclbench.registry import BACKBONES, backbone_builder, canonical_name

if TYPE_CHECKING:
    from iclbench.backbones.base import Backbone
    from iclbench.core.task import TaskShape

log = logging.getLogger("iclbench")

# A backbone whose parameters are counted is built in memory if its budget and all integers in its settings are within
# these limits. For small backbones, this is faster than building them without memory.
_MEMORY_BUDGET, _MEMORY_WIDTH = 1_000_000, 4096
# Number of evaluated sizes after which the search bisects its interval instead of interpolating.
_MAX_INTERPOLATIONS = 9
# Offsets from the nearest value of the first setting, in steps, at which the other settings are searched again.
_NEIGHBOURS = (-1, 1, -2, 2)
# Settings that are scaled with the first growing setting, such as the hidden width of a feed-forward network.
_PROPORTIONAL = ("hidden",)


def budget_settings(
    name: str, cls: type[Backbone], budget: int, shape: TaskShape, fixed: Mapping[str, Any]
) -> dict[str, Any]:
    """Return settings that give a backbone this number of parameters, excluding its image encoder.

    Args:
        name: name of the backbone, for messages.
        cls: class of the backbone.
        budget: number of parameters.
        shape: shape of the task.
        fixed: settings that do not change. If they include the first growing setting (usually the width), no search is
            needed.

    Returns:
        The fixed settings and the settings that the search determined.

    Raises:
        UsageError: all sizes deviate by more than `BUDGET_TOLERANCE` from the budget. The message contains the nearest
            size.
    """
    settings, parameters = nearest_settings(name, cls, budget, shape, fixed)
    if parameters is None or abs(deviation(parameters, budget)) <= BUDGET_TOLERANCE:
        return settings
    growing = cls.searched_settings(settings)
    searchable = [key for key in growing if key in cls.Settings.model_fields]
    if not searchable:
        log_once(
            f"'{name}' has {count(parameters)} parameters, the budget is {count(budget)}, and the class has none of "
            f"the settings by which a backbone grows ({', '.join(growing)})"
        )
        return settings
    size = ", ".join(f"{key} {settings[key]}" for key in searchable if key in settings)
    raise UsageError(
        f"'{name}' cannot have {count(budget)} parameters here: the nearest size is {size} with {count(parameters)} "
        f"({deviation(parameters, budget):+.0%}); set another size with -o backbone.{searchable[0]}=N",
        code="not-applicable",
    )


def nearest_settings(
    name: str, cls: type[Backbone], budget: int, shape: TaskShape, fixed: Mapping[str, Any]
) -> tuple[dict[str, Any], int | None]:
    """Return the settings whose size is nearest to a budget, and their number of parameters (None without a search).

    The arguments are the same as in `budget_settings`.
    """
    start = {**cls.at_budget(budget, shape), **fixed}
    growing = [key for key in cls.searched_settings(start) if key in cls.Settings.model_fields]
    if not growing:
        return start, _parameter_count(name, cls, shape, start, budget)
    if "size" in fixed or growing[0] in fixed:
        return start, None
    return _search(
        name,
        cls,  # type: ignore[arg-type]  # mypy takes the class for one of its instances
        budget,
        shape,
        json.dumps(start, sort_keys=True),
        tuple(fixed),
    )


@cache
def _search(
    name: str, cls: type[Backbone], budget: int, shape: TaskShape, start: str, fixed: tuple[str, ...]
) -> tuple[dict[str, Any], int]:
    """Return the settings with the nearest size, and their number of parameters.

    `start` is JSON text, because the cache requires hashable arguments.
    """

    def parameter_count(settings: Mapping[str, Any]) -> int:
        return _parameter_count(name, cls, shape, settings, budget)

    return search_settings(cls, budget, json.loads(start), fixed, parameter_count)


def search_settings(
    cls: type[Backbone],
    budget: int,
    start: Mapping[str, Any],
    fixed: Collection[str],
    count: Callable[[Mapping[str, Any]], int],
) -> tuple[dict[str, Any], int]:
    """Return the settings with the nearest size, and this size.

    Args:
        cls: class of the backbone.
        budget: number of parameters.
        start: settings before the search.
        fixed: names of settings that do not change.
        count: function that returns the number of parameters for settings.
    """
    best = dict(start)
    defaults = dict(cls.Settings())
    growing = [key for key in cls.searched_settings(best) if key in defaults and key not in fixed]
    ratios = {
        key: defaults[key] / defaults[growing[0]]
        for key in _PROPORTIONAL
        if key in growing[1:]
        and defaults[key]
        and defaults[growing[0]]  # a setting without a default is computed from another setting
    }

    def with_value(base: dict[str, Any], key: str, value: int) -> dict[str, Any]:
        proportional = (
            {other_key: max(1, round(ratio * value)) for other_key, ratio in ratios.items()}
            if key == growing[0]
            else {}
        )
        return {**base, key: value, **proportional}

    sizes: dict[str, int] = {}

    def parameter_count(settings: Mapping[str, Any]) -> int:
        key = json.dumps(settings, sort_keys=True)
        if key not in sizes:
            sizes[key] = count(settings)
        return sizes[key]

    def with_nearest_value(base: dict[str, Any], key: str) -> dict[str, Any]:
        value = nearest_value(lambda value: parameter_count(with_value(base, key, value)), budget, cls.step(key, base))
        return with_value(base, key, value)

    best_size = first_value = 0
    for key in growing:
        candidate = with_nearest_value(best, key)
        first_value = first_value or candidate[key]
        if not best_size or abs(parameter_count(candidate) - budget) < abs(best_size - budget):
            best, best_size = candidate, parameter_count(candidate)
        if abs(deviation(best_size, budget)) <= BUDGET_TOLERANCE:
            return best, best_size
    # With a neighbouring value of the first setting, the other settings may come nearer to the budget.
    for steps in _NEIGHBOURS if len(growing) > 1 else ():
        value = first_value + steps * cls.step(growing[0], best)
        for key in growing[1:] if value > 0 else ():
            candidate = with_nearest_value(with_value(best, growing[0], value), key)
            if abs(parameter_count(candidate) - budget) < abs(best_size - budget):
                best, best_size = candidate, parameter_count(candidate)
    return best, best_size


def nearest_value(parameter_count: Callable[[int], int], budget: int, step: int) -> int:
    """Return the multiple of `step` whose size is nearest to the budget.

    The size is approximately a quadratic function of each setting. The next factor is therefore the point at which the
    parabola through the nearest sizes meets the budget, within the interval of possible factors.
    """
    sizes = {factor: parameter_count(factor * step) for factor in (1, 4, 16)}
    if sizes[1] == sizes[16]:
        return step  # the size does not depend on this setting
    while True:
        low = max((factor for factor, size in sizes.items() if size < budget), default=0)
        high = min((factor for factor, size in sizes.items() if size >= budget and factor > low), default=None)
        if high is not None and high - low == 1:
            return step * min((f for f in (low, high) if f), key=lambda factor: abs(sizes[factor] - budget))
        upper = 16 * low if high is None else high - 1
        factor = (low + upper) // 2 if len(sizes) > _MAX_INTERPOLATIONS else _interpolated_factor(sizes, budget)
        factor = min(max(factor, low + 1), upper)
        sizes[factor] = parameter_count(factor * step)
        if high is None and sizes[factor] == sizes[low] == parameter_count(upper * step):
            return step * low  # the size no longer grows


def _interpolated_factor(sizes: Mapping[int, int], budget: int) -> int:
    """Return the last integer at which the parabola through the three nearest sizes is below the budget."""
    import numpy as np

    nearest = sorted(sizes, key=lambda factor: abs(sizes[factor] - budget))[:3]
    a, b, c = np.polyfit(nearest, [sizes[factor] - budget for factor in nearest], 2)
    roots = np.roots([a, b, c] if abs(a) > 1e-6 else [b, c])
    real = [root.real for root in roots if abs(root.imag) < 1e-9 and root.real > 0]
    return int(max(real, default=0))


def _parameter_count(name: str, cls: type[Backbone], shape: TaskShape, settings: Mapping[str, Any], budget: int) -> int:
    model = model_to_measure(name, cls, shape, settings, budget)
    return int(model.parameter_count - model.encoder_parameter_count)


def model_to_measure(
    name: str, cls: type[Backbone], shape: TaskShape, settings: Mapping[str, Any], budget: int | None
) -> Backbone:
    """Build a backbone of which only sizes are used. Tensors of large models have no memory (torch's meta device).

    Args:
        name, cls, shape: as in `budget_settings`.
        settings: settings of the backbone.
        budget: number of parameters of the preset; None if it has no budget.
    """
    from iclbench.core.bounds import build_to_measure

    checked: BaseSettings = validate(cls.Settings, settings, f"backbone '{name}'")
    build_backbone = backbone_builder()
    is_small = (
        budget is not None
        and budget <= _MEMORY_BUDGET
        and all(value <= _MEMORY_WIDTH for value in settings.values() if isinstance(value, int))
    )
    return build_to_measure(
        lambda: build_backbone(cls, checked, shape), f"backbone '{name}'", is_small or not is_ours(cls)
    )


def check_size(
    task: str, backbone: str, preset: str, settings: Mapping[str, Any], card: TaskCard | None = None
) -> None:
    """Raise `UsageError` if a built-in backbone has no size, because the preset and the user do not set it.

    A plug-in then has its default size, and the message is only logged.

    Args:
        task, backbone, preset: as in `iclbench train`.
        settings: the user's settings of the backbone.
        card: the card of the task, if it has already been read.
    """
    if (message := missing_size_message(task, backbone, preset, settings, card)) is None:
        return
    if ":" not in backbone and BACKBONES.entry(backbone).package == "iclbench":
        raise UsageError(message, code="missing-value")
    log_once(message)


def missing_size_message(
    task: str, backbone: str, preset: str, settings: Mapping[str, Any], card: TaskCard | None = None
) -> str | None:
    """Return the error message for a backbone without a size; None if the preset, the card or the user sets a size.

    The arguments are the same as in `check_size`.
    """
    name, card = load_task(task) if card is None else (task, card)
    preset_card = card.preset(canonical(preset), name)
    backbone = canonical_name(backbone)
    names = set(BACKBONES.names_in_cards(backbone))
    if preset_card.budget is not None or names & preset_card.backbones.keys() or any(map(_is_size, settings.items())):
        return None
    defaults = {key: value for key, value in BACKBONES.subclass(backbone).Settings().model_dump().items() if value}
    sizes = [(key, value) for key, value in defaults.items() if _is_size((key, value))]
    keys: list[str] = [key for key in ("layers", "width") if key in defaults] or [key for key, _ in sizes] or ["KEY"]
    sized_presets = [
        preset_name for preset_name, preset in card.presets.items() if preset.budget or names & preset.backbones.keys()
    ]
    return (
        f"preset '{canonical(preset)}' of task '{name}' has no size for '{backbone}' (default: "
        f"{', '.join(f'{key} {value}' for key, value in sizes) or 'set by its class'}); pass "
        + " ".join(f"-o backbone.{key}=N" for key in keys)
        + (f", or --preset {' or '.join(sized_presets)}" if sized_presets else "")
    )


@cache
def log_once(message: str) -> None:
    """Log a message once per process."""
    log.info(message)


def _is_size(setting: tuple[str, Any]) -> bool:
    key, value = setting
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return key == "size" or (is_number and key not in ("state_budget", "loops", "loop_window"))
