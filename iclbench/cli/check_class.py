"""Find the classes with a given name, and check the contracts that apply to each class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from iclbench.backbones.base import Backbone
from iclbench.config.cards import card_names, is_baseline, load_baseline, load_task
from iclbench.config.resolution import family_class, resolve_task
from iclbench.config.sizes import budget_settings
from iclbench.contracts import CONTRACTS, Tolerance
from iclbench.contracts.examples import build, episodes_of, example_shape, small_settings, stream_shape
from iclbench.contracts.families import FAMILY_CONTRACTS
from iclbench.core import trust
from iclbench.core.episodes import Episodes
from iclbench.core.errors import UnknownNameError, UsageError, shorten
from iclbench.core.formats import canonical, count, plural
from iclbench.core.plugins import as_plugin_error
from iclbench.core.predictor import Predictor
from iclbench.core.settings import validate
from iclbench.core.task import TaskFacts, TaskShape
from iclbench.estimators.base import FittedPredictor
from iclbench.families.base import Family
from iclbench.families.linear import NoisyLinear, SparseLinear
from iclbench.layers.mixers.mixer import Mixer
from iclbench.registry import BACKBONES, ESTIMATORS, FAMILIES, canonical_name

# The numbers of related datasets in the checks. Both cases are checked, since models run different code for them.
RELATED_COUNTS = (0, 3)


def check_class(cls: Any, target: str, data_dir: Any) -> Iterator[tuple[str, str | None]]:
    """Check every contract that applies to the class. Yield the name of each contract, and the problem (None if the
    contract holds).

    An estimator is checked with the settings on its card. A backbone is checked at a size of a few thousand parameters.
    For each parameter budget of the presets, the backbone must also have a size that meets the budget.

    Raises:
        DataError: the data of a family cannot be read.
    """
    checked_class = cls if isinstance(cls, type) else object
    if issubclass(checked_class, Family):
        if target.endswith(".toml"):
            preset = next(iter(load_task(target)[1].presets))
            family = resolve_task(target, preset)[0].build(data_dir)
        else:
            family = checked_class(checked_class.Parameters(), data_dir)
        if family.needs_data:
            _ = family.fingerprint  # raise one error for missing data, instead of failing every contract
        for family_contract in FAMILY_CONTRACTS:
            yield family_contract.__name__, _problem(family_contract, family)
        return
    if issubclass(checked_class, FittedPredictor):
        cases = _estimator_cases(target, checked_class)
    elif issubclass(checked_class, Backbone):
        frozen_settings = {} if ":" in target else BACKBONES.variant(target).frozen
        settings = checked_class.Settings(**frozen_settings).model_dump(mode="json", exclude_unset=True)
        shape = next((shape for _, shape in _example_shapes(checked_class)), None)
        if shape is None:
            raise UsageError(f"'{target}' has no head for its input_kinds; add one to heads", code="plugin")
        for budget in _budgets():
            contract_name = f"a_size_meets_the_budget ({count(budget)} parameters)"
            yield contract_name, _problem(budget_settings, target, checked_class, budget, shape, settings)
        cases = _backbone_cases(target, checked_class, settings)
    elif families := _families_of(target):
        raise UsageError(
            f"'{target}' is specific to a family; run: iclbench check {' or '.join(families)}", code="not-applicable"
        )
    elif issubclass(checked_class, Mixer):
        raise UsageError(
            f"'{target}' is a mixer; check the backbone class that uses it, as in docs/add-mixer.md", code="bad-value"
        )
    else:
        raise UsageError(f"'{target}' is not a Backbone, an Estimator or a Family of iclbench", code="bad-value")
    for suffix, predictor, episodes in cases:
        for contract in CONTRACTS:
            if contract.is_checkable(predictor, episodes):
                yield contract.name + suffix, _problem(contract.check, predictor, episodes, Tolerance(2e-5, 1e-4))


def _estimator_cases(target: str, cls: type[FittedPredictor]) -> Iterator[tuple[str, Predictor, Episodes]]:
    """Yield an estimator and the episodes to check it on, without and with related datasets.

    The first item of each case is a suffix for the contracts' names.
    """
    head = next((head for head in ("categorical", "event") if head in cls.heads), "")
    settings = validate(cls.Settings, _settings_of(target), f"estimator '{target}'")
    for related_count in (0,) if cls.reads_streams else _related_counts(head):
        shape = stream_shape(head or "point") if cls.reads_streams else example_shape(head or "point", related_count)
        facts = TaskFacts(noise_to_signal=0.25, classes=shape.classes, marks=shape.marks)
        yield _suffix(head, related_count), _with_example_family(cls, settings, facts), episodes_of(shape)


def _with_example_family(cls: type[FittedPredictor], settings: Any, facts: TaskFacts) -> FittedPredictor:
    """Return an estimator for the first example family that it supports. Some methods need the number of non-zero
    weights, others need a pool of functions."""
    pooled = NoisyLinear(NoisyLinear.Parameters(dim=4, pool=8))
    try:
        return cls(settings, replace(facts, family=SparseLinear(SparseLinear.Parameters(dim=4, sparsity=2))))
    except UsageError as error:
        if error.code != "not-applicable":
            raise
        return cls(settings, replace(facts, family=pooled))


def _settings_of(target: str) -> dict[str, Any]:
    """Return the settings on the card of a baseline. For a registered estimator, take the first shipped card that uses
    it."""
    if target.endswith(".toml"):
        return load_baseline(target)[1].settings
    cards = (load_baseline(name)[1] for name in card_names("baselines"))
    return next((card.settings for card in cards if card.estimator == canonical(target)), {})


def _families_of(target: str) -> list[str]:
    """Return the families of the shipped tasks that list this estimator as a baseline or an oracle."""
    baselines = {name for name in card_names("baselines") if load_baseline(name)[1].estimator == canonical(target)}
    cards = (load_task(name)[1] for name in card_names("tasks"))
    return sorted({card.family for card in cards if baselines & {*card.baselines, *card.oracles}})


def _backbone_cases(
    name: str, cls: type[Backbone], settings: Mapping[str, Any]
) -> Iterator[tuple[str, Predictor, Episodes]]:
    """Yield the backbone for each of its example tasks, and the episodes to check it on.

    Without related datasets, the backbone reads a sequence in one pass. With related datasets, it continues from a
    state.
    """
    shapes = list(_example_shapes(cls))
    small = small_settings(name, cls, settings, shapes[0][1])
    for suffix, shape in shapes:
        yield suffix, build(name, cls, small, shape), episodes_of(shape)


def _example_shapes(cls: type[Backbone]) -> Iterator[tuple[str, TaskShape]]:
    """Yield the example tasks of a backbone, each with a suffix for the names of contracts: tasks with inputs or events
    for each head, without and with related datasets, and streams of tokens and of vectors."""
    for head in cls.heads:
        if ("events" if head == "event" else "features") in cls.input_kinds:
            for related_count in _related_counts(head):
                yield _suffix(head, related_count), example_shape(head, related_count)
    vector_head = next((head for head in cls.heads if head not in ("categorical", "event")), None)
    for kind, stream_head in (("tokens", "categorical"), ("vectors", vector_head)):
        if kind in cls.input_kinds and stream_head in cls.heads:
            yield f" ({stream_head} head, {kind})", stream_shape(str(stream_head))


def _related_counts(head: str) -> tuple[int, ...]:
    """Return the numbers of related datasets in the checks of a head. Event sequences have none."""
    return (0,) if head == "event" else RELATED_COUNTS


def _budgets() -> list[int]:
    """Return the parameter budgets of the presets of all shipped tasks."""
    presets = (preset for task in card_names("tasks") for preset in load_task(task)[1].presets.values())
    return sorted({preset.budget for preset in presets if preset.budget is not None})


def _suffix(head: str, related_count: int) -> str:
    words = [f"{head} head"] * bool(head) + ["related datasets"] * bool(related_count)
    return f" ({', '.join(words)})" if words else ""


def _problem(contract: Any, *arguments: Any) -> str | None:
    try:
        contract(*arguments)
    except (Exception, SystemExit) as error:
        cause = as_plugin_error(error)
        return shorten(str(cause)) or type(cause).__name__
    return None


def classes(target: str) -> list[Any]:
    """Return the classes to check: the class of a target, the family or estimator of a card, or all classes with a
    registered name. An estimator and a family may have the same name."""
    if is_baseline(target):
        return [ESTIMATORS.get(load_baseline(target)[1].estimator)]
    if target.endswith(".toml"):
        return [family_class(load_task(target)[1].family)]
    trust.trust_typed(target)
    if ":" in target:
        return [BACKBONES.get(target)]
    registries = (BACKBONES, ESTIMATORS, FAMILIES)
    registered_classes = [registry.get(target) for registry in registries if canonical(target) in registry.entries]
    if not registered_classes:
        all_names = {name for registry in registries for name in registry.entries}
        raise UnknownNameError("backbone, estimator or family", target, all_names, hint="(or package.module:Class)")
    return registered_classes


def oracle_claims(target: str) -> Iterator[str]:
    """Yield one line for each oracle that a task card lists. The line says whether the family of the task confirms that
    the oracle is optimal.

    If the target is a card, only this card is used. Otherwise the target is the name of a class, and all shipped cards
    and all cards in the current folder with this family are used.
    """

    if is_baseline(target):
        return
    is_card = target.endswith(".toml")
    for card in [target] if is_card else [*card_names("tasks"), *map(str, sorted(Path().glob("*.toml")))]:
        try:
            task, task_card = load_task(card)
        except UsageError:
            if is_card:
                raise
            continue  # not the card of a task
        if not is_card and canonical_name(task_card.family) != canonical_name(target):
            continue
        for oracle in task_card.oracles:
            if family_class(task_card.family).lists_oracle(oracle):
                yield f"oracle {oracle} of task {task}: confirmed by the family"
            else:
                yield f"claim  {oracle} of task {task}: only on the card, not confirmed by the family"


def summary(contracts: int, broken_contracts: list[str]) -> str:
    """Return the last line of the output: the number of contracts, and the name of each broken contract."""
    broken_names = dict.fromkeys(name.partition(" (")[0] for name in broken_contracts)
    return (
        f"{len(broken_contracts)} of {contracts} broken: {', '.join(broken_names)}"
        if broken_contracts
        else f"{plural(contracts, 'contract')} passed"
    )
