"""Find the classes with the given name, and check the contracts that apply to each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from iclbench.core.task import TaskFacts
from iclbench.estimators.base import FittedPredictor
from iclbench.families.base import Family
from iclbench.families.linear import SparseLinear
from iclbench.registry import BACKBONES, ESTIMATORS, FAMILIES

# The numbers of related datasets in the checks. Models run different code for tasks with related datasets.
RELATED_COUNTS = (0, 3)


def check_class(cls: Any, target: str, data_dir: Any) -> Iterator[tuple[str, str | None]]:
    """Check every contract that applies to the class, and yield its name and its problem (None if it holds).

    An estimator is checked with the settings of its card, and a backbone with a few thousand parameters. For a
    backbone, this also checks that a size meets each budget of the presets.

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
            _ = family.fingerprint  # so that missing data raise one error and do not break every contract
        for family_contract in FAMILY_CONTRACTS:
            yield family_contract.__name__, _problem(family_contract, family)
        return
    if issubclass(checked_class, FittedPredictor):
        cases = _estimator_cases(target, checked_class)
    elif issubclass(checked_class, Backbone):
        frozen = {} if ":" in target else BACKBONES.variant(target).frozen
        settings = checked_class.Settings(**frozen).model_dump(mode="json", exclude_unset=True)
        for budget in _budgets():
            contract_name = f"a_size_meets_the_budget ({count(budget)} parameters)"
            shape = example_shape(checked_class.heads[0])
            yield contract_name, _problem(budget_settings, target, checked_class, budget, shape, settings)
        cases = _backbone_cases(target, checked_class, settings)
    elif families := _families_of(target):
        raise UsageError(
            f"'{target}' is specific to a family; run: iclbench check {' or '.join(families)}", code="not-applicable"
        )
    else:
        raise UsageError(f"'{target}' is not a Backbone, an Estimator or a Family of iclbench", code="bad-value")
    for suffix, predictor, episodes in cases:
        for contract in CONTRACTS:
            if contract.is_checkable(predictor, episodes):
                yield contract.name + suffix, _problem(contract.check, predictor, episodes, Tolerance(2e-5, 1e-4))


def _estimator_cases(target: str, cls: type[FittedPredictor]) -> Iterator[tuple[str, Predictor, Episodes]]:
    """The estimator with episodes to check it on, without and with related datasets. The first item of each case is a
    suffix for the contracts' names."""
    head = next((head for head in ("categorical", "event") if head in cls.heads), "")
    settings = validate(cls.Settings, _settings_of(target), f"estimator '{target}'")
    family = SparseLinear(SparseLinear.Parameters(dim=4, sparsity=2))  # for methods that read the number of weights
    for related_count in (0,) if cls.reads_streams else _related_counts(head):
        shape = stream_shape(head or "point") if cls.reads_streams else example_shape(head or "point", related_count)
        facts = TaskFacts(noise_to_signal=0.25, family=family, classes=shape.classes, marks=shape.marks)
        yield _suffix(head, related_count), cls(settings, facts), episodes_of(shape)


def _settings_of(target: str) -> dict[str, Any]:
    """The settings of a baseline's card, or those of the first shipped card of a registered estimator."""
    if target.endswith(".toml"):
        return load_baseline(target)[1].settings
    cards = (load_baseline(name)[1] for name in card_names("baselines"))
    return next((card.settings for card in cards if card.estimator == canonical(target)), {})


def _families_of(target: str) -> list[str]:
    """The families of the shipped tasks with this estimator."""
    baselines = {name for name in card_names("baselines") if load_baseline(name)[1].estimator == canonical(target)}
    cards = (load_task(name)[1] for name in card_names("tasks"))
    return sorted({card.family for card in cards if baselines & {*card.baselines, *card.oracles}})


def _backbone_cases(
    name: str, cls: type[Backbone], settings: Mapping[str, Any]
) -> Iterator[tuple[str, Predictor, Episodes]]:
    """The backbone to check, with each of its heads: for a task without related datasets, on which it reads a sequence
    in one pass, and for a task with related datasets, on which it continues from a state."""
    small = small_settings(name, cls, settings)
    for head in cls.heads:
        for related_count in _related_counts(head):
            shape = example_shape(head, related_count)
            yield _suffix(head, related_count), build(name, cls, small, shape), episodes_of(shape)


def _related_counts(head: str) -> tuple[int, ...]:
    """The numbers of related datasets in the checks of a head; event sequences have none."""
    return (0,) if head == "event" else RELATED_COUNTS


def _budgets() -> list[int]:
    """The budgets of the presets of all shipped tasks."""
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
    """The class of package.module:Class, the family or estimator of a card, or all classes with this registered name
    (for example an estimator and a family)."""
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
    """The oracles on the cards of a family, and whether the family lists them. The cards are the shipped ones and
    those in the current folder, or the card that is checked."""

    def canonical_family(family: str) -> str:
        return family if ":" in family else canonical(family)

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
        if not is_card and canonical_family(task_card.family) != canonical_family(target):
            continue
        for oracle in task_card.oracles:
            if family_class(task_card.family).lists_oracle(oracle):
                yield f"oracle {oracle} of task {task}: confirmed by the family"
            else:
                yield f"claim  {oracle} of task {task}: only on the card, not confirmed by the family"


def summary(contracts: int, broken_contracts: list[str]) -> str:
    """The last line: the number of contracts, and each broken contract once."""
    broken_names = dict.fromkeys(name.partition(" (")[0] for name in broken_contracts)
    return (
        f"{len(broken_contracts)} of {contracts} broken: {', '.join(broken_names)}"
        if broken_contracts
        else f"{plural(contracts, 'contract')} passed"
    )
