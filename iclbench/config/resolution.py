"""From what a user types to a frozen configuration: card, preset, `--config` file and `-o key=value`, in this order.

A run's configuration is complete: it names every number that the run depends on, is written beside the weights as
`config.toml`, and its hash tells whether two runs are the same.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
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
from iclbench.config.rates import Rates
from iclbench.config.sizes import sized
from iclbench.core import plugins
from iclbench.core.errors import UnknownNameError, UsageError, is_ours, shortened
from iclbench.core.formats import assignments, canonical
from iclbench.core.settings import MIXTURES, BaseSettings, NonNegativeFloat, PositiveInt, Role, SeedInt, validate
from iclbench.registry import BACKBONES, FAMILIES, is_target, model_for_task, spelling

if TYPE_CHECKING:
    from iclbench.backbones.base import Backbone
    from iclbench.core.task import TaskShape
    from iclbench.families.base import Family

# What `-o` can reach: the three tables of a `--config` file.
ROOTS = ("task", "backbone", "train")


def family_class(name: str) -> type[Family]:
    """The family behind a name or target; raises `UsageError` when it is something else."""
    return FAMILIES.subclass(name)


def backbone_class(name: str) -> type[Backbone]:
    """The backbone behind a name or target; raises `UsageError` when it is something else."""
    return BACKBONES.subclass(name)


def unfit(backbone: str, task: str, head: str) -> str | None:
    """Why a backbone cannot be trained on a task with such a head; None: it can."""
    if head == "event" or not backbone_class(backbone).events_only:
        return None
    return f"backbone '{backbone}' reads event sequences and nothing else; task '{task}' has none, point-process does"


_BOTH = (Role.TRAINED, Role.EVALUATED)
# Heads of which a standard deviation is read as `spread` says.
_SPREAD = ("gaussian", "mixture")


class TaskConfig(BaseSettings):
    """A task card at one preset.

    `files` says where the data are: the parameters of the family with `Role.LOCATION`. Moving a file changes no
    identity. `learned` is what `Family.learn` found in the training data, their fingerprint included; it is empty until
    a run is created, and for families that need no data.
    """

    name: Annotated[str, *_BOTH]
    card: str
    family: Annotated[str, *_BOTH]
    code: Annotated[int | str, Role.TRAINED]
    parameters: Annotated[dict[str, Any], *_BOTH] = {}
    files: dict[str, Any] = {}
    learned: Annotated[dict[str, Any], Role.TRAINED] = {}
    question: Annotated[str, *_BOTH] = "next"
    head: Annotated[Head, *_BOTH, Role.TYPED] = "point"
    floor: Annotated[NonNegativeFloat | None, *_BOTH, Role.TYPED] = None
    components: Annotated[PositiveInt | None, *_BOTH, Role.TYPED] = None
    context_targets: Annotated[bool, Role.TRAINED, Role.TYPED] = False
    points: Annotated[PositiveInt, *_BOTH, Role.TYPED]
    episodes: Annotated[PositiveInt, Role.EVALUATED, Role.TYPED]
    baselines: list[str] = []
    oracles: list[str] = []
    shifts: list[str] = []
    evaluators: list[str] = []
    published: list[Published] = []

    @property
    def data(self) -> str | None:
        """The images that episodes are made of, as result tables name them; None: no data set."""
        return self.data_with()

    def data_with(self, **more: str) -> str | None:
        """The same with further assignments. Files are named without their folders, which other machines lack."""
        known = self.parameters | {key: Path(value).name for key, value in self.files.items()}
        named = family_class(self.family).data_parameters
        return assignments({key: known[key] for key in named} | more) or None

    def drawn(self, examples: int) -> int:
        """Points that a family is asked for, so that there are so many examples: with the question `next` the last one
        is only ever asked."""
        return examples + (self.question == "next")

    @property
    def checked(self) -> BaseSettings:
        """The parameters of the family, complete."""
        model = family_class(self.family).Parameters
        return validate(model, self.parameters | self.files, f"task '{self.name}': parameters")

    def shift_name(self, shift: str) -> str:
        """How tables and hashes call a shift, in whatever order and spelling it was written.

        Raises:
            UsageError: the family has none of this name, or its parts do not combine.
        """
        return family_class(self.family).known_shift(shift).name

    def build(self, data_dir: Path | None = None) -> Family:
        """The family with these parameters, and with what was learned from its training data where that is stored."""
        from iclbench.core.answers import check_normaliser
        from iclbench.core.guard import fixed_state

        cls, parameters = family_class(self.family), self.checked
        with plugins.named(cls), fixed_state():
            family = cls(parameters, data_dir)
        family.learned = self.learned
        kind = "classification" if family.classes is not None else "event" if family.marks is not None else "regression"
        if kind != {"categorical": "classification", "event": "event"}.get(self.head, "regression"):
            raise UsageError(f"task '{self.name}': head '{self.head}' does not fit the {kind} family '{self.family}'")
        self.tests(family, self.evaluators)
        if not is_ours(cls):  # errors divided by 0 would be found after training only
            check_normaliser(family)
        return family

    def build_held_out(self, data_dir: Path | None = None, data_changed: bool = False) -> Family:
        """The family that prompts are drawn from.

        Raises:
            DataError: the data are not those that the run was trained on, unless `data_changed` allows it.
        """
        from iclbench.core.answers import check_normaliser

        family = self.build(data_dir)
        if not data_changed:
            family.check_data()
        held_out = family.held_out()
        if not is_ours(type(held_out)):
            check_normaliser(held_out)
        if data_changed:
            _ = held_out.most_prompts  # data that the run cannot read are refused before anything is computed
        return held_out

    def at(self, files: Mapping[str, Any]) -> TaskConfig:
        """The same task with its data at these places.

        Raises:
            UnknownNameError: a key is not the place of a file.
        """
        known = family_class(self.family).Parameters.with_role(Role.LOCATION)
        for key in files:
            if key not in known:
                paths = [f"task.{each}" for each in known]
                raise UnknownNameError("key", f"task.{key}", paths, hint=f"(places of the data of task '{self.name}')")
        return self.model_copy(update={"files": {**self.files, **files}})

    def on_data(self, data_dir: Path | None = None) -> TaskConfig:
        """The same task with what is learned from its data and the resolved locations of its files; unchanged for
        families that need no data.

        Raises:
            DataError: the data cannot be read.
        """
        family = self.model_copy(update={"learned": {}}).build(data_dir)
        return self.model_copy(update={"learned": family.learn(), "files": self.files | family.files()})

    def shape(self, family: Family) -> TaskShape:
        """What a backbone is told about the task."""
        from iclbench.core.task import TaskShape

        return TaskShape(
            x_dim=family.x_dim,
            points=self.drawn(self.points),
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
        )

    def tests(self, family: Family, asked: Sequence[str]) -> list[str]:
        """The evaluators of these names, in either spelling, as the family spells them.

        Raises:
            UnknownNameError: the family has none of this name.
            UsageError: they ask for targets, and this task does not; or the task's parameters do not allow one.
        """
        known = {canonical(name): name for name in family.evaluators()}
        for name in asked:
            if canonical(name) not in known:
                raise UnknownNameError("evaluator", name, known.values(), hint=f"(of task '{self.name}')")
        if asked and self.question != "targets":
            raise UsageError(f"task '{self.name}': evaluators ask for targets; write question = \"targets\"")
        found = list(dict.fromkeys(known[canonical(name)] for name in asked))
        for name in found:
            family.check_test(name)
        return found


class BackboneConfig(BaseSettings):
    """A backbone with all its settings."""

    name: str
    code: codes.Code
    settings: dict[str, Any] = {}

    def build(self, shape: TaskShape, anywhere: bool = False) -> Backbone:
        """The backbone, its weights drawn from torch's global generator; with `anywhere`, the settings that only say
        how to compute have their defaults."""
        from iclbench.core.bounds import bounded

        for_task = model_for_task()
        cls = backbone_class(self.name)
        settings = {k: v for k, v in self.settings.items() if not (anywhere and k in cls.computed_by)}
        checked = validate(cls.Settings, settings, f"backbone '{self.name}'")
        return bounded(lambda: for_task(cls, checked, shape), f"backbone '{self.name}'", is_ours(cls))


class RunConfig(BaseSettings):
    """One backbone trained on one task with one preset and one seed."""

    preset: PresetName
    seed: SeedInt
    task: TaskConfig
    backbone: BackboneConfig
    train: TrainSettings

    @property
    def trained(self) -> dict[str, Any]:
        """What the weights depend on."""
        return trained_part(self.dump())

    def on_data(self, data_dir: Path | None = None) -> RunConfig:
        """See `TaskConfig.on_data`."""
        return self.model_copy(update={"task": self.task.on_data(data_dir)})

    def dump(self) -> dict[str, Any]:
        """Plain values for TOML, which has no null."""
        return self.model_dump(mode="json", exclude_none=True)

    @property
    def targets(self) -> list[str]:
        """The classes outside the registry that the configuration names, its baselines' included."""
        mixers = self.backbone.settings.get("mixers")
        named = [self.task.family, self.backbone.name, *(mixers if isinstance(mixers, list) else [])]
        for baseline in [*self.task.oracles, *self.task.baselines]:
            try:
                named.append(load_baseline(baseline)[1].estimator)
            except UsageError:  # to be reported by what needs it
                continue
        return list(dict.fromkeys(name for name in named if isinstance(name, str) and is_target(name)))

    def shape(self, family: Family) -> TaskShape:
        """What the backbone is told about the task."""
        return self.task.shape(family)

    def build(self, family: Family, anywhere: bool = False) -> Backbone:
        """The untrained backbone for the task's family, its weights drawn from the run's own stream; `anywhere` as in
        `BackboneConfig.build`."""
        from iclbench.core.seeds import global_stream

        with global_stream(self.seed, "weights"):
            return self.backbone.build(self.shape(family), anywhere)


def trained_part(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a run's configuration, in plain values, that the weights depend on: not how the run is evaluated."""
    task = {key: value for key, value in plain["task"].items() if key in TaskConfig.with_role(Role.TRAINED)}
    return {**plain, "task": task}


def without_codes(trained: Mapping[str, Any]) -> dict[str, Any]:
    """The same without saying which code the family's and the backbone's names stood for."""
    parts = {key: {k: v for k, v in trained[key].items() if k != "code"} for key in ("task", "backbone")}
    return {**trained, **parts}


def without_learned(trained: Mapping[str, Any]) -> dict[str, Any]:
    """The same without what was learned from the data."""
    return {**trained, "task": {key: value for key, value in trained["task"].items() if key != "learned"}}


def evaluated_as(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """A run's configuration in plain values, evaluated as `new` says.

    What weights depend on stays as it was written.
    """
    evaluated = {key: value for key, value in new["task"].items() if key not in TaskConfig.with_role(Role.TRAINED)}
    return {**old, "task": {**trained_part(old)["task"], **evaluated}}


def parse_overrides(pairs: Sequence[str], roots: Sequence[str] = ROOTS) -> dict[str, Any]:
    """Nested tables from `key=value` pairs; values are TOML, and plain words need no quotes.

    >>> parse_overrides(["backbone.layers=6", "task.glyphs=omniglot"])
    {'backbone': {'layers': 6}, 'task': {'glyphs': 'omniglot'}}
    """
    tables: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        path = [part.strip().replace("-", "_") for part in key.split(".")]
        if not equals or len(path) < 2 or not all(path):
            raise UsageError(f"-o {shortened(pair)}: write -o root.key=value with root one of {', '.join(roots)}")
        _check_root(path[0], roots)
        table = tables
        for part in path[:-1]:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise UsageError(f"-o {shortened(pair)}: '{part}' already has a value")
        last, value = path[-1], _toml_value(text)
        if isinstance(table.get(last), dict) and not isinstance(value, dict):
            raise UsageError(f"-o {shortened(pair)}: '{last}' already has a value")
        table |= _merge(table, {last: value})
    return tables


def typed_tables(overrides: Sequence[str] = (), config_file: Path | None = None) -> dict[str, Any]:
    """What `--config` and `-o` say, the latter over the former."""
    return _merge(_read_config(config_file) if config_file else {}, parse_overrides(overrides))


def resolve_task(
    name: str, preset: str, overrides: Mapping[str, Any] | None = None, where: str = "-o task"
) -> tuple[TaskConfig, TaskCard]:
    """The task at a preset, with `overrides` (the `task` table) applied and the family's parameters checked and
    complete."""
    task, card = load_task(name)
    chosen = card.preset(canonical(preset), task)
    family = family_class(card.family)
    parameters = family.Parameters
    values = {**card.parameters, **chosen.parameters}
    validate(parameters, values, f"task '{task}': parameters")
    if card.question not in family.questions:
        known = " or ".join(f'question = "{name}"' for name in sorted(family.questions))
        raise UsageError(f"task '{task}': family '{card.family}' does not ask '{card.question}'; write {known}")
    for baseline in [*card.baselines, *card.oracles]:
        load_baseline(baseline)
    for shift in card.shifts:
        family.known_shift(shift)
    for key in {key: None for number in card.published for key in number.data}:
        if key not in family.data_parameters:
            where = f"(in published.data of task '{task}')"
            raise UnknownNameError("parameter that names data", key, family.data_parameters, hint=where)
    typed, changed = _split(overrides or {}, parameters, where)
    owners = {key: chosen if key in Preset.model_fields else card for key in TaskConfig.with_role(Role.TYPED)}
    protocol = {key: getattr(owner, key) for key, owner in owners.items()} | typed
    # What the head has no use for is no part of the configuration.
    for key, heads in {"floor": ("gaussian", "mixture", "event"), "components": MIXTURES}.items():
        if protocol["head"] not in heads:
            if key in typed:
                head, known = protocol["head"], f"{', '.join(heads[:-1])} or {heads[-1]}"
                raise UsageError(f"{where}.{key} is for head {known}; task '{task}' has head {head}: leave it out")
            del protocol[key]
    if protocol["context_targets"] is True and card.question != "targets":
        raise UsageError(
            f"task '{task}': context_targets is for question = \"targets\": where the next point is asked "
            "after every number of points, all of them are scored; leave it out"
        )
    complete = validate(parameters, {**values, **changed}, where).model_dump(mode="json", exclude_none=True)
    files = {key: complete.pop(key) for key in parameters.with_role(Role.LOCATION) & complete.keys()}
    config = {
        "name": task,
        "card": card.hash,
        "family": canonical(card.family) if ":" not in card.family else card.family,
        "code": codes.of_family(card.family),
        "parameters": complete,
        "files": files,
        "question": card.question,
        "baselines": card.baselines,
        "oracles": card.oracles,
        "shifts": card.shifts,
        "evaluators": card.evaluators,
        "published": card.published,
        **protocol,
    }
    return validate(TaskConfig, config, where), card


def _split(
    table: Mapping[str, Any], parameters: type[BaseSettings], where: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a `task` table says of the task's own protocol, and of its family's parameters.

    Both have tables of their own, `protocol` and `parameters`; a key beside these is of the one that has a key of this
    name.

    Raises:
        UsageError: both have it, or neither; or it is given in both ways.
    """
    own, theirs, short = TaskConfig.with_role(Role.TYPED), parameters.model_fields.keys(), dict(table)
    found: dict[str, dict[str, Any]] = {"protocol": {}, "parameters": {}}
    for name in found:
        given = short.pop(name, {})
        if not isinstance(given, Mapping):
            raise UsageError(f"{where}.{name}: expected a table of keys, got {shortened(repr(given))}")
        found[name] |= given
    for key, value in short.items():
        if key in own and key in theirs:
            both = f"{where}.protocol.{key} or {where}.parameters.{key}"
            raise UsageError(f"{where}.{key}: the task and its family both have it; write {both}")
        if key not in own and key not in theirs:
            raise UsageError(f"{where}: {UnknownNameError('key', key, own | theirs)}")
        name = "protocol" if key in own else "parameters"
        if key in found[name]:
            raise UsageError(f"{where}.{key}: given twice, also as {name}.{key}")
        found[name][key] = value
    if unknown := found["protocol"].keys() - own:
        raise UsageError(f"{where}.protocol: {UnknownNameError('key', min(unknown), own)}")
    return found["protocol"], found["parameters"]


def resolve_run(
    task: str,
    backbone: str,
    preset: str = "small",
    seed: int = 0,
    overrides: Sequence[str] = (),
    config_file: Path | None = None,
    data_dir: Path | None = None,
    results: Path | None = None,
) -> RunConfig:
    """The frozen configuration of a run; raises `UsageError` naming the first thing that does not fit."""
    typed = typed_tables(overrides, config_file)
    return resolve_tables(task, backbone, preset, seed, typed, data_dir=data_dir, results=results)


def resolve_tables(
    task: str,
    backbone: str,
    preset: str = "small",
    seed: int = 0,
    tables: Mapping[str, Any] | None = None,
    typed_as: str = "-o ",
    data_dir: Path | None = None,
    results: Path | None = None,
    tuned: bool = True,
    resolved: tuple[TaskConfig, TaskCard] | None = None,
) -> RunConfig:
    """The same from tables `task`, `backbone` and `train`, as `--config` holds them.

    Args:
        task, backbone, preset, seed: as `iclbench train` takes them.
        tables: what the user says.
        typed_as: stands before the names of tables in what is said of a wrong value.
        data_dir: where the task finds its data, whose size a backbone's depends on.
        results: the results folder, whose table of learning rates goes over the shipped one.
        tuned: whether these tables are read at all.
        resolved: the task as `resolve_task` has resolved it before; its card is not read again.
    """
    tables = tables or {}
    frozen, card = resolved or resolve_task(task, preset, tables.get("task"), f"{typed_as}task")
    chosen = card.preset(canonical(preset), frozen.name)
    name = spelling(backbone)
    for mentioned in [*chosen.backbones, *chosen.train_for]:
        BACKBONES.entry(mentioned)  # a mistyped name would silently mean the default size
    if (why := unfit(name, frozen.name, card.head)) is not None:
        raise UsageError(why)
    if frozen.context_targets and (own := backbone_class(name).own_context_targets) is not None:
        raise UsageError(
            f"task '{frozen.name}': context_targets would show '{name}' every context point twice; "
            f"leave it out, and write -o backbone.{own}"
        )
    settings = _settings(name, frozen, chosen, tables.get("backbone", {}), typed_as, data_dir)
    complete = settings.model_dump(mode="json", exclude_none=True)
    rates = Rates.of(canonical(preset), frozen.name, card.unobserved, results) if tuned else Rates()
    training = resolve_training(frozen, chosen, name, tables.get("train", {}), typed_as, rates=rates)
    return validate(
        RunConfig,
        {
            "preset": canonical(preset),
            "seed": seed,
            "task": frozen,
            "backbone": {
                "name": name,
                "code": codes.of_backbone(name, complete),
                "settings": complete,
            },
            "train": training,
        },
        "run",
    )


def resolve_training(
    task: TaskConfig,
    preset: Preset,
    backbone: str | None,
    typed: Mapping[str, Any],
    typed_as: str = "-o ",
    *,
    rates: Rates,
) -> TrainSettings:
    """How a backbone is trained: as the preset says of all and of this one (None: of none), as tables of learning rates
    have it, and as the user says."""
    train = preset.train.model_dump(mode="json", exclude_none=True)
    if backbone is not None:
        for each in BACKBONES.names_in_cards(backbone):
            train = _merge(train, preset.train_for.get(each, {}))
            validate(TrainSettings, train, f"task '{task.name}': train_for.{each}")
        train = _merge(train, rates.settings(backbone))
    training = validate(TrainSettings, _merge(train, typed), f"{typed_as}train")
    _check_monitored(task, training)
    return training


def _settings(
    name: str, task: TaskConfig, preset: Preset, typed: Mapping[str, Any], typed_as: str, data_dir: Path | None
) -> BaseSettings:
    """The backbone's settings: those of the card, over them the user's, what the name stands for, and where the preset
    has a budget those that meet it.

    Raises:
        UsageError: a setting is unknown, or contradicts the name; or nothing meets the budget.
    """
    cls = backbone_class(name)
    model, given = cls.Settings, {}
    if preset.encoder is not None and "encoder" in model.model_fields:
        given = validate(model, {"encoder": preset.encoder}, f"task '{task.name}'").model_dump(exclude_unset=True)
    for each in BACKBONES.names_in_cards(name):
        where = f"task '{task.name}': backbones.{each}"
        of_card = validate(model, preset.backbones.get(each, {}), where).model_dump(exclude_unset=True)
        if named := of_card.keys() & BACKBONES.variant(each).frozen.keys():
            raise UsageError(f"{where}: {min(named)} is part of a contestant's name, like {each}; leave it out")
        given = _merge(given, of_card)
    asked = validate(model, _merge(given, typed), f"{typed_as}backbone").model_dump(exclude_unset=True)
    if contradiction := BACKBONES.contradiction(name, asked):
        raise UsageError(f"{typed_as}backbone.{contradiction}")
    if "spread" in typed and task.head not in _SPREAD:
        known = " or ".join(_SPREAD)
        raise UsageError(f"{typed_as}backbone.spread is for head {known}; the task has head {task.head}: leave it out")
    chosen = validate(model, _merge(asked, BACKBONES.variant(name).frozen), f"backbone '{name}'")
    if preset.budget is None:
        return chosen
    shape = task.shape(task.build(data_dir))
    found = sized(name, cls, preset.budget, shape, chosen.model_dump(mode="json", exclude_unset=True))
    return validate(model, found, f"backbone '{name}'")


def _check_monitored(task: TaskConfig, train: TrainSettings) -> None:
    """Raise `UsageError` unless what training is to be evaluated on is on the card."""
    known = {canonical(name) for name in task.evaluators}
    for name in train.evaluators:
        if canonical(name) not in known:
            where = f"(in train.evaluators; those of the card of task '{task.name}')"
            raise UnknownNameError("evaluator", name, task.evaluators, hint=where)
    if train.evaluate_every and not task.evaluators:
        raise UsageError(f"train.evaluate_every: the card of task '{task.name}' names no evaluators; leave it at 0")


def difference(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The keys in which two configurations differ, as `key: old -> new`."""
    lines = []
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            lines += difference(a, b, f"{prefix}{key}.")
        elif a != b:
            lines.append(f"{prefix}{key}: {a} -> {b}")
    return lines


def _read_config(path: Path) -> dict[str, Any]:
    tables = read_toml(path)
    for root in tables:
        _check_root(root)
        if not isinstance(tables[root], dict):
            raise UsageError(f"{path}: '{root}' must be a table, like [{root}]")
    return tables


def _check_root(root: str, roots: Sequence[str] = ROOTS) -> None:
    if root not in roots:
        raise UnknownNameError("key", root, roots)


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        # An empty table says that there is nothing, which merging it would not.
        nested = isinstance(value, Mapping) and value and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if nested else value
    return merged


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # also numbers with thousands of digits, lists in lists in ...
        return text
