"""Resolution of the card, the preset, the tables of learning rates, the `--config` file and `-o key=value` to a frozen
configuration. Later sources in this list override earlier ones.

The configuration of a run contains all settings on which the run depends. It is stored with the weights, in
`config.toml`, and its hash identifies the run.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from iclbench.config import codes
from iclbench.config.cards import (
    Head,
    Preset,
    PresetName,
    Published,
    TaskCard,
    TrainSettings,
    load_baseline,
    load_task,
    read_toml,
)
from iclbench.config.rates import Rates, RateTable
from iclbench.config.sizes import budget_settings
from iclbench.config.state_sizes import state_budget_settings
from iclbench.core import plugins
from iclbench.core.errors import UnknownNameError, UsageError, is_ours, shorten
from iclbench.core.formats import assignments, canonical
from iclbench.core.settings import (
    MIXTURES,
    BaseSettings,
    Buckets,
    NonNegativeFloat,
    PositiveInt,
    Role,
    SeedInt,
    validate,
)
from iclbench.registry import BACKBONES, FAMILIES, backbone_builder, canonical_name, is_target

if TYPE_CHECKING:
    from iclbench.backbones.base import Backbone
    from iclbench.core.task import InputKind, TaskShape
    from iclbench.families.base import Family

# The tables that `-o` and a `--config` file can set.
ROOTS = ("task", "backbone", "train")


def family_class(name: str) -> type[Family]:
    """Return the family class with this name or target; raise `UsageError` if it is not a family."""
    return FAMILIES.subclass(name)


def backbone_class(name: str) -> type[Backbone]:
    """Return the backbone class with this name or target; raise `UsageError` if it is not a backbone."""
    return BACKBONES.subclass(name)


def unfit_reason(backbone: str, card: TaskCard) -> str | None:
    """Return the reason why a backbone cannot be trained on a task; None if it can be trained."""
    family = family_class(card.family)
    inputs: InputKind = "events" if card.head == "event" else "images" if family.reads_images else "features"
    if family.is_stream:
        inputs = "tokens" if card.head == "categorical" else "vectors"
    return backbone_class(backbone).unfit_reason(inputs)


_TRAINED_AND_EVALUATED = (Role.TRAINED, Role.EVALUATED)
# Heads with the setting `spread`.
_SPREAD_HEADS = ("gaussian", "mixture")


class TaskConfig(BaseSettings):
    """A task card at one preset. Attributes that are not listed here are as in `TaskCard` and `Preset`.

    Attributes:
        name: name of the card.
        card: hash of the card.
        code: code of the family's episodes (`codes.of_family`).
        files: locations of the data, which are the parameters of the family with `Role.LOCATION`. Identities do not
            depend on them.
        learned: the result of `Family.learn` on the training data, with the fingerprint of the data. It is empty before
            a run is created, and for families without data.
    """

    name: Annotated[str, *_TRAINED_AND_EVALUATED]
    card: str
    family: Annotated[str, *_TRAINED_AND_EVALUATED]
    code: Annotated[int | str, Role.TRAINED]
    parameters: Annotated[dict[str, Any], *_TRAINED_AND_EVALUATED] = {}
    files: dict[str, Any] = {}
    learned: Annotated[dict[str, Any], Role.TRAINED] = {}
    question: Annotated[str, *_TRAINED_AND_EVALUATED] = "next"
    head: Annotated[Head, *_TRAINED_AND_EVALUATED, Role.PROTOCOL] = "point"
    floor: Annotated[NonNegativeFloat | None, *_TRAINED_AND_EVALUATED, Role.PROTOCOL] = None
    components: Annotated[PositiveInt | None, *_TRAINED_AND_EVALUATED, Role.PROTOCOL] = None
    buckets: Annotated[Buckets | None, *_TRAINED_AND_EVALUATED, Role.PROTOCOL] = None
    context_targets: Annotated[bool, Role.TRAINED, Role.PROTOCOL] = False
    points: Annotated[PositiveInt, *_TRAINED_AND_EVALUATED, Role.PROTOCOL]
    episodes: Annotated[PositiveInt, Role.EVALUATED, Role.PROTOCOL]
    baselines: list[str] = []
    oracles: list[str] = []
    shifts: list[str] = []
    evaluators: list[str] = []
    solutions: list[str] = []
    published: list[Published] = []

    @property
    def data(self) -> str | None:
        """The data set of the episodes, in the format of result tables; None if the episodes do not need data."""
        return self.data_with()

    def data_with(self, **further_assignments: str) -> str | None:
        """Return `data` with further assignments. Files are given without their folders, which differ between
        machines."""
        values = self.parameters | {key: Path(value).name for key, value in self.files.items()}
        keys = family_class(self.family).data_parameters
        return assignments({key: values[key] for key in keys} | further_assignments) or None

    def point_count(self, examples: int) -> int:
        """Return the number of points in an episode with this number of examples.

        With the question `next`, an episode has one more point, which is only a target.
        """
        return examples + (self.question == "next")

    @property
    def family_parameters(self) -> BaseSettings:
        """The parameters of the family, with defaults."""
        model = family_class(self.family).Parameters
        return validate(model, self.parameters | self.files, f"task '{self.name}': parameters")

    def shift_name(self, shift: str) -> str:
        """Return the canonical name of a shift, which does not depend on the spelling or the order of its parts.

        Raises:
            UsageError: the family does not have the shift, or its parts cannot be combined.
        """
        return family_class(self.family).parse_class_shift(shift).name

    def build(self, data_dir: Path | None = None) -> Family:
        """Build the family with these parameters and the stored result of `Family.learn`.

        Raises:
            UsageError: a parameter, the head, an evaluator or the number of points does not fit the family.
        """
        from iclbench.core.answers import check_normaliser
        from iclbench.core.guard import fixed_state

        cls, parameters = family_class(self.family), self.family_parameters
        with plugins.plugin_errors(cls), fixed_state():
            family = cls(parameters, data_dir)
        family.learned = self.learned
        problem = (
            "classification" if family.classes is not None else "event" if family.marks is not None else "regression"
        )
        if problem != {"categorical": "classification", "event": "event"}.get(self.head, "regression"):
            raise UsageError(
                f"task '{self.name}': head '{self.head}' does not fit the {problem} family '{self.family}'",
                code="not-applicable",
            )
        self.evaluator_names(family, self.evaluators)
        family.check_shift(family.parse_shift("none"), self.point_count(self.points))
        if not is_ours(cls):  # a normaliser of 0 is reported before training, not only in the evaluation
            check_normaliser(family)
        return family

    def build_held_out(self, data_dir: Path | None = None, data_changed: bool = False) -> Family:
        """Build the family that samples the evaluation prompts.

        Raises:
            DataError: the data differ from the training data, and `data_changed` is False.
        """
        from iclbench.core.answers import check_normaliser

        family = self.build(data_dir)
        if not data_changed:
            family.check_data()
        held_out = family.held_out()
        if not is_ours(type(held_out)):
            check_normaliser(held_out)
        if data_changed:
            _ = held_out.max_prompts  # raises an error now if the run cannot read the data
        return held_out

    def with_files(self, files: Mapping[str, Any]) -> TaskConfig:
        """Return the task with other locations of its data.

        Raises:
            UnknownNameError: a key is not the location of a file.
        """
        location_keys = family_class(self.family).Parameters.with_role(Role.LOCATION)
        for key in files:
            if key not in location_keys:
                paths = [f"task.{location}" for location in location_keys]
                raise UnknownNameError("key", f"task.{key}", paths, hint=f"(data files of task '{self.name}')")
        return self.model_copy(update={"files": {**self.files, **files}})

    def on_data(self, data_dir: Path | None = None) -> TaskConfig:
        """Return the task with the result of `Family.learn` and the resolved locations of its files.

        Tasks without data do not change.

        Raises:
            DataError: the data cannot be read.
        """
        family = self.model_copy(update={"learned": {}}).build(data_dir)
        return self.model_copy(update={"learned": family.learn(), "files": self.files | family.files()})

    def shape(self, family: Family) -> TaskShape:
        """Return the shape of the task, which determines inputs and outputs of backbones."""
        from iclbench.core.task import TaskShape

        return TaskShape(
            x_dim=family.x_dim,
            points=self.point_count(self.points),
            y_dim=family.y_dim,
            classes=family.classes,
            marks=family.marks,
            x_shape=family.x_shape,
            head=self.head,
            question=self.question,
            related=family.related_sets,
            related_points=family.related_points,
            floor=self.floor or 0.0,
            components=self.components or 8,
            buckets=self.buckets or 100,
            y_scale=family.y_scale if self.head == "bar" else 1.0,
        )

    def evaluator_names(self, family: Family, names: Sequence[str]) -> list[str]:
        """Return the names of these evaluators in the spelling of the family, without duplicates.

        Raises:
            UnknownNameError: the family does not have one of the evaluators.
            UsageError: the question of the task is not `targets`, or its parameters do not allow one of the evaluators.
        """
        evaluators = {canonical(name): name for name in family.evaluators()}
        for name in names:
            if canonical(name) not in evaluators:
                raise UnknownNameError("evaluator", name, evaluators.values(), hint=f"(of task '{self.name}')")
        if names and self.question != "targets":
            raise UsageError(
                f"task '{self.name}': evaluators need targets; write question = \"targets\"", code="not-applicable"
            )
        tests = list(dict.fromkeys(evaluators[canonical(name)] for name in names))
        for name in tests:
            family.check_test(name)
        return tests


class BackboneConfig(BaseSettings):
    """A backbone with all its settings."""

    name: str
    code: codes.Code
    settings: dict[str, Any] = {}

    def build(self, shape: TaskShape, portable: bool = False) -> Backbone:
        """Build the backbone, with initial weights from torch's global generator.

        With `portable`, settings that only choose an implementation have their defaults, which all machines support.
        """
        from iclbench.core.bounds import build_within_limit

        build_backbone = backbone_builder()
        cls = backbone_class(self.name)
        settings = {k: v for k, v in self.settings.items() if not (portable and k in cls.computed_by)}
        checked = validate(cls.Settings, settings, f"backbone '{self.name}'")
        return build_within_limit(lambda: build_backbone(cls, checked, shape), f"backbone '{self.name}'", is_ours(cls))


class RunConfig(BaseSettings):
    """One backbone trained on one task with one preset and one seed."""

    preset: PresetName
    seed: SeedInt
    task: TaskConfig
    backbone: BackboneConfig
    train: TrainSettings

    @property
    def trained_part(self) -> dict[str, Any]:
        """The part of the configuration on which the weights depend, as plain values."""
        return trained_part(self.dump())

    def on_data(self, data_dir: Path | None = None) -> RunConfig:
        """See `TaskConfig.on_data`."""
        return self.model_copy(update={"task": self.task.on_data(data_dir)})

    def dump(self) -> dict[str, Any]:
        """Return the configuration as plain values, without null, because TOML does not have null."""
        return self.model_dump(mode="json", exclude_none=True)

    @property
    def targets(self) -> list[str]:
        """The targets `package.module:Class` in the configuration, including those in the cards of its baselines."""
        mixers = self.backbone.settings.get("mixers")
        names = [self.task.family, self.backbone.name, *(mixers if isinstance(mixers, list) else [])]
        for baseline in [*self.task.oracles, *self.task.baselines]:
            try:
                names.append(load_baseline(baseline)[1].estimator)
            except UsageError:  # the error is reported when the baseline is evaluated
                continue
        return list(dict.fromkeys(name for name in names if isinstance(name, str) and is_target(name)))

    def shape(self, family: Family) -> TaskShape:
        """Return the shape of the task, which determines inputs and outputs of the backbone."""
        return self.task.shape(family)

    def build(self, family: Family, portable: bool = False) -> Backbone:
        """Build the untrained backbone for the family of the task, with weights from the random stream of the seed.

        `portable` is as in `BackboneConfig.build`.
        """
        from iclbench.core.seeds import global_stream

        with global_stream(self.seed, "weights"):
            return self.backbone.build(self.shape(family), portable)


def trained_part(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a run's configuration (plain values) on which the weights depend."""
    task = {key: value for key, value in plain["task"].items() if key in TaskConfig.with_role(Role.TRAINED)}
    return {**plain, "task": task}


def without_codes(trained: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of `trained_part` without the codes of the family and the backbone."""
    parts = {key: {k: v for k, v in trained[key].items() if k != "code"} for key in ("task", "backbone")}
    return {**trained, **parts}


def without_learned(trained: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of `trained_part` without the result of `Family.learn`."""
    return {**trained, "task": {key: value for key, value in trained["task"].items() if key != "learned"}}


def with_evaluation_of(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration `old` (plain values) with the evaluation settings of `new`.

    The part on which the weights depend does not change.
    """
    evaluated = {key: value for key, value in new["task"].items() if key not in TaskConfig.with_role(Role.TRAINED)}
    return {**old, "task": {**trained_part(old)["task"], **evaluated}}


def parse_overrides(pairs: Sequence[str], roots: Sequence[str] = ROOTS) -> dict[str, Any]:
    """Convert `key=value` pairs to nested tables. Values are TOML, but strings do not need quotes.

    >>> parse_overrides(["backbone.layers=6", "task.glyphs=omniglot"])
    {'backbone': {'layers': 6}, 'task': {'glyphs': 'omniglot'}}
    """
    tables: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        path = [part.strip().replace("-", "_") for part in key.split(".")]
        if not equals or len(path) < 2 or not all(path):
            raise UsageError(
                f"-o {shorten(pair)}: write -o root.key=value, where root is one of {', '.join(roots)}",
                code="bad-syntax",
            )
        _check_root(path[0], roots)
        table = tables
        for key in path[:-1]:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise UsageError(f"-o {shorten(pair)}: '{key}' already has a value", code="conflict")
        key, value = path[-1], _toml_value(text)
        if isinstance(table.get(key), dict) and not isinstance(value, dict):
            raise UsageError(f"-o {shorten(pair)}: '{key}' already has a value", code="conflict")
        table |= _merge(table, {key: value})
    return tables


def user_tables(overrides: Sequence[str] = (), config_file: Path | None = None) -> dict[str, Any]:
    """Return the tables of a `--config` file, with the changes by `-o`."""
    return _merge(_read_config(config_file) if config_file else {}, parse_overrides(overrides))


def tables_origin(overrides: Sequence[str] = (), config_file: Path | None = None) -> str:
    """Return the origin of the user's tables, as a prefix for the names of tables in messages."""
    if config_file is None:
        return "-o "
    return f"{config_file} or -o " if overrides else f"{config_file}: "


def resolve_task(
    name: str, preset: str, overrides: Mapping[str, Any] | None = None, where: str = "-o task"
) -> tuple[TaskConfig, TaskCard]:
    """Return the configuration of a task at a preset, and the card of the task.

    Args:
        name: name of the card, or a path to it.
        preset: name of the preset.
        overrides: the user's changes, in the format of a table `task`.
        where: origin of the changes, for messages.

    Raises:
        UsageError: the card or a change is not valid.
    """
    task, card = load_task(name)
    preset_card = card.preset(canonical(preset), task)
    family = family_class(card.family)
    parameters = family.Parameters
    values = {**card.parameters, **preset_card.parameters}
    validate(parameters, values, f"task '{task}': parameters")
    if card.question not in family.questions:
        questions = " or ".join(f'question = "{name}"' for name in sorted(family.questions))
        raise UsageError(
            f"task '{task}': family '{card.family}' does not have the question '{card.question}'; write {questions}",
            code="not-applicable",
        )
    for baseline in [*card.baselines, *card.oracles, *card.solutions]:
        load_baseline(baseline)
    for shift in card.shifts:
        family.parse_class_shift(shift)
    for key in {key: None for number in card.published for key in number.data}:
        if key not in family.data_parameters:
            hint = f"(in published.data of task '{task}')"
            raise UnknownNameError("parameter of data", key, family.data_parameters, hint=hint)
    protocol_changes, parameter_changes = _split_task_table(overrides or {}, parameters, where)
    owners = {key: preset_card if key in Preset.model_fields else card for key in TaskConfig.with_role(Role.PROTOCOL)}
    protocol = {key: getattr(owner, key) for key, owner in owners.items()} | protocol_changes
    # Settings that the head does not use are not part of the configuration.
    heads_of = {"floor": ("gaussian", "mixture", "event"), "components": MIXTURES, "buckets": ("bar",)}
    for key, heads in heads_of.items():
        if (head := protocol["head"]) not in heads:
            if key in protocol_changes:
                allowed_heads = " or ".join(filter(None, [", ".join(heads[:-1]), heads[-1]]))
                raise UsageError(
                    f"{where}.{key} needs head {allowed_heads}, but task '{task}' has head {head}; remove it",
                    code="not-applicable",
                )
            del protocol[key]
    if protocol["context_targets"] is True and card.question != "targets":
        raise UsageError(
            f'task \'{task}\': context_targets needs question = "targets", since question = "next" scores all '
            "points; remove it",
            code="not-applicable",
        )
    family_parameters = validate(parameters, {**values, **parameter_changes}, where)
    all_parameters = family_parameters.model_dump(mode="json", exclude_none=True)
    files = {key: all_parameters.pop(key) for key in parameters.with_role(Role.LOCATION) & all_parameters.keys()}
    config = {
        "name": task,
        "card": card.hash,
        "family": canonical(card.family) if ":" not in card.family else card.family,
        "code": codes.of_family(card.family),
        "parameters": all_parameters,
        "files": files,
        "question": card.question,
        "baselines": card.baselines,
        "oracles": list(dict.fromkeys([*card.oracles, *family.further_oracles(family_parameters)])),
        "shifts": card.shifts,
        "evaluators": card.evaluators,
        "solutions": card.solutions,
        "published": card.published,
        **protocol,
    }
    return validate(TaskConfig, config, where), card


def _split_task_table(
    table: Mapping[str, Any], parameters: type[BaseSettings], where: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a table `task` into changes of the protocol and changes of the parameters of the family.

    The table may contain tables `protocol` and `parameters`. All other keys are assigned to one of the two by name.

    Raises:
        UsageError: a key belongs to both or to neither, or is given twice.
    """
    protocol_keys, parameter_keys = TaskConfig.with_role(Role.PROTOCOL), parameters.model_fields.keys()
    top_level = dict(table)
    changes: dict[str, dict[str, Any]] = {"protocol": {}, "parameters": {}}
    for name in changes:
        nested = top_level.pop(name, {})
        if not isinstance(nested, Mapping):
            raise UsageError(f"{where}.{name}: expected a table of keys, got {shorten(repr(nested))}", code="bad-value")
        changes[name] |= nested
    for key, value in top_level.items():
        if key in protocol_keys and key in parameter_keys:
            keys = f"{where}.protocol.{key} or {where}.parameters.{key}"
            raise UsageError(f"{where}.{key}: the task and its family have this key; write {keys}", code="conflict")
        if key not in protocol_keys and key not in parameter_keys:
            unknown = UnknownNameError("key", key, protocol_keys | parameter_keys)
            raise UsageError(f"{where}: {unknown}", code=unknown.code)
        name = "protocol" if key in protocol_keys else "parameters"
        if key in changes[name]:
            raise UsageError(f"{where}.{key}: given twice, also as {name}.{key}", code="duplicate")
        changes[name][key] = value
    if unknown_keys := changes["protocol"].keys() - protocol_keys:
        unknown = UnknownNameError("key", min(unknown_keys), protocol_keys)
        raise UsageError(f"{where}.protocol: {unknown}", code=unknown.code)
    return changes["protocol"], changes["parameters"]


def resolve_run(
    task: str,
    backbone: str,
    preset: str = "small",
    seed: int = 0,
    overrides: Sequence[str] = (),
    config_file: Path | None = None,
    data_dir: Path | None = None,
    read_rates: Callable[[str], RateTable] | None = None,
) -> RunConfig:
    """Return the frozen configuration of a run; raise `UsageError` for the first invalid value."""
    tables = user_tables(overrides, config_file)
    prefix = tables_origin(overrides, config_file)
    return resolve_tables(task, backbone, preset, seed, tables, prefix, data_dir=data_dir, read_rates=read_rates)


def resolve_tables(
    task: str,
    backbone: str,
    preset: str = "small",
    seed: int = 0,
    tables: Mapping[str, Any] | None = None,
    prefix: str = "-o ",
    data_dir: Path | None = None,
    read_rates: Callable[[str], RateTable] | None = None,
    tuned: bool = True,
    resolved: tuple[TaskConfig, TaskCard] | None = None,
) -> RunConfig:
    """Return the frozen configuration of a run, given the user's tables `task`, `backbone` and `train`.

    Args:
        task, backbone, preset, seed: as in `iclbench train`.
        tables: the user's tables, as in a `--config` file.
        prefix: text before the names of tables in messages.
        data_dir: folder of the task's data, on which the size of a backbone may depend.
        read_rates: a function that returns a table of learning rates for a preset. The table overrides the shipped
            table (default: no such table).
        tuned: whether to use the tables of learning rates.
        resolved: the result of `resolve_task`, if the task has already been resolved.

    Raises:
        UsageError: a value is not valid.
    """
    tables = tables or {}
    task_config, card = resolved or resolve_task(task, preset, tables.get("task"), f"{prefix}task")
    preset_card = card.preset(canonical(preset), task_config.name)
    name = canonical_name(backbone)
    for card_name in [*preset_card.backbones, *preset_card.train_for]:
        BACKBONES.entry(card_name)  # raises an error for a mistyped name, which would otherwise have no effect
    if (reason := unfit_reason(name, card)) is not None:
        raise UsageError(f"task '{task_config.name}', backbone '{name}': {reason}", code="not-applicable")
    if task_config.context_targets and (setting := backbone_class(name).own_context_targets) is not None:
        raise UsageError(
            f"task '{task_config.name}': with context_targets, '{name}' would read every context point twice; "
            f"remove it and write -o backbone.{setting}",
            code="conflict",
        )
    settings = _settings(name, task_config, preset_card, tables.get("backbone", {}), prefix, data_dir)
    all_settings = settings.model_dump(mode="json", exclude_none=True)
    rates = Rates()
    if tuned:
        table = None if read_rates is None else read_rates(canonical(preset))
        rates = Rates.of(canonical(preset), task_config.name, card.hash_without_monitoring, table)
    training = resolve_training(task_config, preset_card, name, tables.get("train", {}), prefix, rates=rates)
    return validate(
        RunConfig,
        {
            "preset": canonical(preset),
            "seed": seed,
            "task": task_config,
            "backbone": {
                "name": name,
                "code": codes.of_backbone(name, all_settings),
                "settings": all_settings,
            },
            "train": training,
        },
        "run",
    )


def resolve_training(
    task: TaskConfig,
    preset: Preset,
    backbone: str | None,
    changes: Mapping[str, Any],
    prefix: str = "-o ",
    *,
    rates: Rates,
) -> TrainSettings:
    """Return the training settings.

    They come from these sources, in order; later sources override earlier sources: the preset, the preset for this
    backbone, the tables of learning rates, and the user.

    Args:
        task: the task.
        preset: the preset of the task.
        backbone: registered name of the backbone, or None.
        changes: the user's table `train`.
        prefix: text before the names of tables in messages.
        rates: the learning rates.

    Raises:
        UsageError: a value is not valid.
    """
    train = preset.train.model_dump(mode="json", exclude_none=True)
    if backbone is not None:
        for name in BACKBONES.names_in_cards(backbone):
            train = _merge(train, preset.train_for.get(name, {}))
            validate(TrainSettings, train, f"task '{task.name}': train_for.{name}")
        train = _merge(train, rates.settings(backbone))
    training = validate(TrainSettings, _merge(train, changes), f"{prefix}train")
    _check_monitoring(task, training)
    _check_curriculum(task, training, prefix)
    return training


def _settings(
    name: str, task: TaskConfig, preset: Preset, changes: Mapping[str, Any], prefix: str, data_dir: Path | None
) -> BaseSettings:
    """Return the settings of a backbone from the card, the user, the variant, the budget of the preset, and the state
    budget.

    Raises:
        UsageError: a setting is unknown or conflicts with the variant, or no size is near a budget.
    """
    cls = backbone_class(name)
    model, settings = cls.Settings, {}
    if preset.encoder is not None and "encoder" in model.model_fields:
        settings = validate(model, {"encoder": preset.encoder}, f"task '{task.name}'").model_dump(exclude_unset=True)
    for card_name in BACKBONES.names_in_cards(name):
        where = f"task '{task.name}': backbones.{card_name}"
        card_settings = validate(model, preset.backbones.get(card_name, {}), where).model_dump(exclude_unset=True)
        if frozen_keys := card_settings.keys() & BACKBONES.variant(card_name).frozen.keys():
            raise UsageError(
                f"{where}: variant '{card_name}' already sets {min(frozen_keys)}; remove it",
                code="conflict",
            )
        settings = _merge(settings, card_settings)
    settings = validate(model, _merge(settings, changes), f"{prefix}backbone").model_dump(exclude_unset=True)
    if contradiction := BACKBONES.contradiction(name, settings):
        raise UsageError(f"{prefix}backbone.{contradiction}", code="conflict")
    if "spread" in changes and task.head not in _SPREAD_HEADS:
        heads = " or ".join(_SPREAD_HEADS)
        raise UsageError(
            f"{prefix}backbone.spread needs head {heads}, but the task has head {task.head}; remove it",
            code="not-applicable",
        )
    unsized = validate(model, _merge(settings, BACKBONES.variant(name).frozen), f"backbone '{name}'")
    fixed = unsized.model_dump(mode="json", exclude_unset=True)
    if fixed.get("state_budget") is not None:
        shape = task.shape(task.build(data_dir))
        sized = state_budget_settings(name, cls, preset.budget, shape, fixed)
    elif preset.budget is not None:
        shape = task.shape(task.build(data_dir))
        sized = budget_settings(name, cls, preset.budget, shape, fixed)
    else:
        return unsized
    return validate(model, sized, f"backbone '{name}'")


def _check_monitoring(task: TaskConfig, train: TrainSettings) -> None:
    """Raise `UsageError` if the card lacks an evaluator that is used during training, or has nothing to evaluate."""
    evaluators = {canonical(name) for name in task.evaluators}
    for name in train.evaluators:
        if canonical(name) not in evaluators:
            hint = f"(in train.evaluators, for task '{task.name}')"
            raise UnknownNameError("evaluator", name, task.evaluators, hint=hint)
    if train.evaluate_every and not (task.evaluators or task.solutions):
        raise UsageError(
            f"train.evaluate_every: the card of task '{task.name}' has no evaluators and no solutions; set it to 0",
            code="not-applicable",
        )


def _check_curriculum(task: TaskConfig, train: TrainSettings, prefix: str) -> None:
    """Raise `UsageError` if a curriculum has no effect on the task, or its first episodes are too short."""
    where, curriculum = f"{prefix}train.curriculum", train.curriculum
    if curriculum.dims is not None and (family_class(task.family).is_stream or task.head == "event"):
        raise UsageError(
            f"{where}.dims: elements of task '{task.name}' have no inputs; remove it", code="not-applicable"
        )
    if curriculum.points is not None:
        family, end = task.build(), task.point_count(task.points)
        start = curriculum.points.at(0, end)
        sizes = (n for n in range(start, end) if family.accepts(n, f"points-{n}"))
        smallest = next(sizes, end)
        if smallest > start:
            raise UsageError(f"{where}.points.start: expected at least {smallest}, got {start}", code="conflict")


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the differences between two configurations, in the form `key: old -> new`."""
    lines = []
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            lines += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            lines.append(f"{prefix}{key}: {a} -> {b}")
    return lines


def _read_config(path: Path) -> dict[str, Any]:
    tables = read_toml(path)
    for root in tables:
        try:
            _check_root(root)
        except UnknownNameError as error:
            raise UsageError(f"{path}: {error}", code=error.code) from error
        if not isinstance(tables[root], dict):
            raise UsageError(f"{path}: '{root}' must be a table, like [{root}]", code="bad-value")
    return tables


def _check_root(root: str, roots: Sequence[str] = ROOTS) -> None:
    if root not in roots:
        raise UnknownNameError("key", root, roots)


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        # An empty table removes all keys.
        is_nested = isinstance(value, Mapping) and value and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if is_nested else value
    return merged


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # not TOML, a number with thousands of digits, or a deeply nested list
        return text
