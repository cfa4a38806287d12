"""How big a backbone is: at a preset's budget of parameters as big as that says, else as the preset's card says.

One rule for all backbones, ours and others': the class says what goes with a budget (`Backbone.at_budget`: depth,
heads), and by which settings it grows (`Backbone.grows`). The first of these is searched for the size nearest to the
budget; while that is more than `TOLERANCE` away, the next one is, which moves the size in finer steps. An image encoder
is left out of the count: all backbones of a task share it, and it is often bigger than they.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from iclbench.config.cards import TOLERANCE, TaskCard, deviation, load_task
from iclbench.core.errors import UsageError, is_ours
from iclbench.core.formats import canonical, count
from iclbench.core.settings import BaseSettings, validate
from iclbench.registry import BACKBONES, model_for_task, spelling

if TYPE_CHECKING:
    from iclbench.backbones.base import Backbone
    from iclbench.core.task import TaskShape

log = logging.getLogger("iclbench")

# Up to such a budget, and with no larger number in its settings, a network is built in memory to be counted: most of
# the time is not for the weights.
_SMALL, _WIDEST = 1_000_000, 4096
# Sizes that are asked for before a bracket is halved instead of guessed in.
_PATIENCE = 9
# Steps from the nearest size of the first setting where the others are searched again.
_BESIDE = (-1, 1, -2, 2)
# What a feed-forward network's hidden width is called in settings where it is a number of its own.
_PROPORTIONAL = ("hidden",)


def sized(name: str, cls: type[Backbone], budget: int, shape: TaskShape, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings at which a backbone has a budget of parameters, an image encoder left out.

    Args:
        name: of the backbone, for messages.
        cls: its class.
        budget: parameters.
        shape: of the task.
        given: fixed settings; with one that sets the width of the backbone, nothing is searched.

    Returns:
        `given`, and those that were chosen.

    Raises:
        UsageError: no settings come within `TOLERANCE` of the budget; the line names the nearest.
    """
    settings, parameters = nearest(name, cls, budget, shape, given)
    if parameters is None or abs(deviation(parameters, budget)) <= TOLERANCE:
        return settings
    growing = cls.growing(settings)
    searchable = [key for key in growing if key in cls.Settings.model_fields]
    if not searchable:
        tell_once(
            f"'{name}' has {count(parameters)} parameters where the budget is {count(budget)}, and no setting by which "
            f"it could grow (none of {', '.join(growing)})"
        )
        return settings
    size = ", ".join(f"{key} {settings[key]}" for key in searchable if key in settings)
    raise UsageError(
        f"'{name}' cannot have {count(budget)} parameters here: the nearest is {size} with {count(parameters)} "
        f"({deviation(parameters, budget):+.0%}); give -o backbone.{searchable[0]}=N for a size of your own"
    )


def nearest(
    name: str, cls: type[Backbone], budget: int, shape: TaskShape, given: Mapping[str, Any]
) -> tuple[dict[str, Any], int | None]:
    """The settings at which a backbone comes nearest to a budget, however far that is, and its parameters at them;
    None: `given` says how wide it is, and nothing is searched.

    Args:
        name, cls, budget, shape, given: as `sized` takes them.
    """
    start = {**cls.at_budget(budget, shape), **given}
    growing = [key for key in cls.growing(start) if key in cls.Settings.model_fields]
    if not growing:
        return start, _parameters(name, cls, shape, start, budget)
    if "size" in given or growing[0] in given:
        return start, None
    return _searched(
        name,
        cls,  # type: ignore[arg-type]  # mypy takes the class for one of its instances
        budget,
        shape,
        json.dumps(start, sort_keys=True),
        tuple(given),
    )


@cache
def _searched(
    name: str, cls: type[Backbone], budget: int, shape: TaskShape, start: str, given: tuple[str, ...]
) -> tuple[dict[str, Any], int]:
    """The settings that come nearest, and the parameters at them."""
    best: dict[str, Any] = json.loads(start)
    defaults = dict(cls.Settings())
    growing = [key for key in cls.growing(best) if key in defaults and key not in given]
    ratios = {
        key: defaults[key] / defaults[growing[0]]
        for key in _PROPORTIONAL
        if key in growing[1:]
        and defaults[key]
        and defaults[growing[0]]  # None: the class takes it from another setting
    }

    def at(base: dict[str, Any], key: str, value: int) -> dict[str, Any]:
        proportional = (
            {other: max(1, round(ratio * value)) for other, ratio in ratios.items()} if key == growing[0] else {}
        )
        return {**base, key: value, **proportional}

    counted: dict[str, int] = {}

    def parameters(settings: Mapping[str, Any]) -> int:
        key = json.dumps(settings, sort_keys=True)
        if key not in counted:
            counted[key] = _parameters(name, cls, shape, settings, budget)
        return counted[key]

    def best_of(base: dict[str, Any], key: str) -> dict[str, Any]:
        value = _nearest(lambda value: parameters(at(base, key, value)), budget, cls.step(key, base))
        return at(base, key, value)

    reached = first_size = 0
    for key in growing:
        candidate = best_of(best, key)
        first_size = first_size or candidate[key]
        if not reached or abs(parameters(candidate) - budget) < abs(reached - budget):
            best, reached = candidate, parameters(candidate)
        if abs(deviation(reached, budget)) <= TOLERANCE:
            return best, reached
    # The finer settings reach no further beside the nearest size of the first: they may beside its neighbours.
    for steps in _BESIDE if len(growing) > 1 else ():
        value = first_size + steps * cls.step(growing[0], best)
        for key in growing[1:] if value > 0 else ():
            candidate = best_of(at(best, growing[0], value), key)
            if abs(parameters(candidate) - budget) < abs(reached - budget):
                best, reached = candidate, parameters(candidate)
    return best, reached


def _nearest(parameters: Callable[[int], int], budget: int, step: int) -> int:
    """The multiple of `step` whose size is nearest to the budget.

    Sizes grow with every setting, as a polynomial of degree two or nearly so: the next guess is where the parabola
    through the known ones meets the budget, within the bracket that they leave.
    """
    sizes = {factor: parameters(factor * step) for factor in (1, 4, 16)}
    if sizes[1] == sizes[16]:
        return step  # nothing grows with it
    while True:
        low = max((factor for factor, size in sizes.items() if size < budget), default=0)
        high = min((factor for factor, size in sizes.items() if size >= budget), default=None)
        if high is not None and high - low == 1:
            return step * min((f for f in (low, high) if f), key=lambda factor: abs(sizes[factor] - budget))
        upper = 16 * low if high is None else high - 1
        guess = (low + upper) // 2 if len(sizes) > _PATIENCE else _meets(sizes, budget)
        guess = min(max(guess, low + 1), upper)
        sizes[guess] = parameters(guess * step)
        if high is None and sizes[guess] == sizes[low] == parameters(upper * step):
            return step * low  # nothing grows any more


def _meets(sizes: Mapping[int, int], budget: int) -> int:
    """The last whole number at which the parabola through the three points next to the budget is below it."""
    import numpy as np

    x = sorted(sizes, key=lambda factor: abs(sizes[factor] - budget))[:3]
    a, b, c = np.polyfit(x, [sizes[factor] - budget for factor in x], 2)
    roots = np.roots([a, b, c] if abs(a) > 1e-6 else [b, c])
    real = [root.real for root in roots if abs(root.imag) < 1e-9 and root.real > 0]
    return int(max(real, default=0))


def _parameters(name: str, cls: type[Backbone], shape: TaskShape, settings: Mapping[str, Any], budget: int) -> int:
    from iclbench.core.bounds import measured

    checked: BaseSettings = validate(cls.Settings, settings, f"backbone '{name}'")
    for_task = model_for_task()
    small = budget <= _SMALL and all(value <= _WIDEST for value in settings.values() if isinstance(value, int))
    memory = small or not is_ours(cls)
    model = measured(lambda: for_task(cls, checked, shape), f"backbone '{name}'", memory)
    return int(model.parameter_count - model.encoder_parameter_count)


def check_size(task: str, backbone: str, preset: str, given: Mapping[str, Any], card: TaskCard | None = None) -> None:
    """Raise `UsageError` if no size is set for a built-in backbone; log a note if a plug-in has its own size.

    Args:
        task, backbone, preset: as `iclbench train` takes them.
        given: settings of the backbone that a user gives.
        card: the card of the task where it was read before.
    """
    if (line := missing_size(task, backbone, preset, given, card)) is None:
        return
    if ":" not in backbone and BACKBONES.entry(backbone).package == "iclbench":
        raise UsageError(line)
    tell_once(line)


def missing_size(
    task: str, backbone: str, preset: str, given: Mapping[str, Any], card: TaskCard | None = None
) -> str | None:
    """That the preset of the task's card has neither a budget nor a size for this backbone and nobody gave one, with
    what to do; None: it has, or somebody did."""
    name, card = load_task(task) if card is None else (task, card)
    preset_card = card.preset(canonical(preset), name)
    backbone = spelling(backbone)
    names = set(BACKBONES.names_in_cards(backbone))
    if preset_card.budget is not None or names & preset_card.backbones.keys() or any(map(_is_size, given.items())):
        return None
    defaults = {key: value for key, value in BACKBONES.subclass(backbone).Settings().model_dump().items() if value}
    sizes = [(key, value) for key, value in defaults.items() if _is_size((key, value))]
    keys: list[str] = [key for key in ("layers", "width") if key in defaults] or [key for key, _ in sizes] or ["KEY"]
    sized_presets = [
        preset_name for preset_name, preset in card.presets.items() if preset.budget or names & preset.backbones.keys()
    ]
    return (
        f"preset '{canonical(preset)}' of task '{name}' has no size for '{backbone}', whose own is "
        f"{', '.join(f'{key} {value}' for key, value in sizes) or 'what its class says'}; give "
        + " ".join(f"-o backbone.{key}=N" for key in keys)
        + (f", or --preset {' or '.join(sized_presets)}" if sized_presets else "")
    )


@cache
def tell_once(line: str) -> None:
    """Log the line, however many runs it is about."""
    log.info(line)


def _is_size(setting: tuple[str, Any]) -> bool:
    key, value = setting
    return key == "size" or (isinstance(value, int) and not isinstance(value, bool))
