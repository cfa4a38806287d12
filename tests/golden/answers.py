"""Seeded questions to all built-in families, estimators and backbones, and their golden answers."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from iclbench.backbones.base import Backbone, TaskShape
from iclbench.config import codes
from iclbench.config.cards import card_names, load_baseline, load_task
from iclbench.config.resolution import resolve_tables, resolve_task
from iclbench.contracts import example_episodes
from iclbench.core.episodes import Episodes
from iclbench.core.formats import canonical
from iclbench.core.predictions import Prediction
from iclbench.core.seeds import generator, global_stream
from iclbench.evaluation import contestants
from iclbench.evaluation.prompts import PromptSet
from iclbench.families.request import Request
from iclbench.registry import BACKBONES, ESTIMATORS, FAMILIES
from iclbench.training.step import TrainingData, descend
from tests.families.climate import wfde5_files

Answers = dict[str, list[float]]
# The sizes of the models, which do not depend on the budgets of presets.
_SIZES = {"layers": 2, "width": 32, "init_std": 0.02, "pseudo_tokens": 8, "latents": 8, "hidden": 32, "state": 8}
_SIZES_OF = {
    "gpt2": {"heads": 2},
    **{key: {"heads": 2, "init_std": None} for key in ("coqe", "transformer")},
    "mambaformer": {"layers": 1},
    **{key: {"width": 48, "state": 16} for key in ("s4", "s4d")},
}
# The heads of backbones that do not use the head of the task.
_HEADS = {"tnp-nd": "gaussian", "cmanp-and": "gaussian"}
# Parameters of the task for estimators that do not apply to a task with default parameters.
_PARAMETERS_FOR = {"pool-oracle": {"pool": 8}}
EPISODES = 4
# The number of values sampled from a tensor: enough to distinguish two answers, and few enough to read.
VALUES = 6

# The code versions of all built-in classes, by kind.
KINDS = {
    "families": {
        name: [codes.of_family(name), codes.of_prompts(name), codes.of_normaliser(name)]
        for name in FAMILIES.builtin_entries
    },
    "estimators": {name: codes.of_estimator(name) for name in ESTIMATORS.builtin_entries},
    "backbones": {
        name: codes.of_backbone(name) for name in BACKBONES.architectures() if name in BACKBONES.builtin_entries
    },
}


def read_stored(kind: str) -> dict[str, Any]:
    """Read the golden answers of a kind of class, each with its code version."""
    path = _path(kind)
    return json.loads(path.read_text()) if path.is_file() else {}


def write_missing(kind: str) -> list[str]:
    """Store the answers that are missing for the current code versions, and return their names."""
    before, after = read_stored(kind), {}
    for name, number in KINDS[kind].items():
        old_entry = before.get(name, {"number": None, "answers": {}})
        is_current = old_entry["number"] == number
        if is_current and (kind == "backbones" or old_entry["answers"].keys() == _questions(kind, name)):
            after[name] = old_entry
            continue
        current_answers = answers(kind, name)
        old = old_entry["answers"] if is_current else {}
        after[name] = {
            "number": number,
            "answers": {question: old.get(question, current_answers[question]) for question in current_answers},
        }
    lines = [f"{json.dumps(name)}: {json.dumps(after[name])}" for name in sorted(after)]
    _path(kind).write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return [name for name in after if after[name] != before.get(name)]


def _questions(kind: str, name: str) -> set[str]:
    """Return the questions that a family or an estimator answers."""
    if kind == "estimators":
        return set(_cards_of(name))
    task, _ = resolve_task(_task_of(name), "smoke", {"episodes": EPISODES})
    training = {"training"} if "sample_prompts" in vars(FAMILIES.get(name)) else set()
    return {"none", *task.shifts, *task.evaluators} | training


def _path(kind: str) -> Path:
    return Path(__file__).parent / f"{kind}.json"


def answers(kind: str, name: str) -> Answers:
    """Compute the answers of a class, by question."""
    with tempfile.TemporaryDirectory() as folder:
        _write_table(Path(folder) / "tabular")
        _write_sequences(Path(folder) / "events")
        if name == "era5":
            wfde5_files.write(Path(folder) / "era5")
        return {"families": family, "estimators": estimator, "backbones": backbone}[kind](name, Path(folder))


def _write_table(folder: Path) -> None:
    """Write a table under every name that the card of the family needs."""
    folder.mkdir()
    parameters = load_task("tabular")[1].parameters
    for name in [*parameters.get("tables", []), *parameters.get("held_out", [])]:
        rows = np.sin(np.arange(len(name), len(name) + 900, dtype=float) ** 1.5).reshape(150, 6)
        np.savetxt(folder / f"{name}.csv", rows, delimiter=",")


def _write_sequences(folder: Path) -> None:
    """Write a file of event sequences of different lengths, some of which have an open interval at the end."""
    folder.mkdir()
    with (folder / "sequences.jsonl").open("w") as file:
        for number in range(40):
            times = np.arange(1, 3 + number % 20) ** 1.5 + 0.01 * number
            marks = [(number + event) % 3 for event in range(len(times))]
            end = {"end": times[-1] + number} if number % 2 else {}
            file.write(json.dumps({"times": times.tolist(), "marks": marks, **end}) + "\n")


def family(name: str, data_dir: Path) -> Answers:
    """Sample episodes of a task of the family (`_task_of`), for every shift and test on its card, and training episodes
    if their distribution differs."""
    prompts = _prompts(_task_of(name), data_dir)
    prompt_sets = {shift: replace(prompts, shift=shift) for shift in ("none", *prompts.task.shifts)}
    prompt_sets |= {test: replace(prompts, evaluator=test) for test in prompts.task.evaluators}
    answers_by_name = {name: _episode_values(prompt_set.episodes) for name, prompt_set in prompt_sets.items()}
    if "sample_prompts" in vars(type(prompts.family)):
        episodes = prompts.task.build(data_dir).sample(Request(EPISODES, prompts.task.points, generator(0, "golden")))
        answers_by_name["training"] = _episode_values(episodes)
    return answers_by_name


def estimator(name: str, data_dir: Path) -> Answers:
    """Compute answers for every baseline card of the estimator, on prompts of a task that names the card."""
    answers_by_card = {}
    for card in _cards_of(name):
        tasks = [task for task in _tasks() if card in _listed_baselines(task)] or ["linear"]
        # If only a task with a data set uses the card, take the same family with procedural images.
        task = "image-completion" if tasks == ["image-completion-emnist"] else tasks[0]
        prompts = _prompts(task, data_dir, **_PARAMETERS_FOR.get(name, {}))
        (contestant,) = contestants.baselines(prompts, [card])
        episodes = prompts.episodes
        informed = contestant.predictor.informed(episodes.truth)
        answer = informed.predict_targets(episodes.context, episodes.queries.x)
        answers_by_card[card] = _prediction_values(answer)
    return answers_by_card


def _cards_of(estimator: str) -> list[str]:
    """Return the names of the baseline cards of an estimator."""
    return [card for card in card_names("baselines") if canonical(load_baseline(card)[1].estimator) == estimator]


def backbone(name: str, data_dir: Path) -> Answers:
    """Compute the loss before and predictions after a training step, with all weights perturbed so that every part of
    the model matters, and predictions of class labels with initial weights. A backbone that reads only events predicts
    only events.
    """
    cls = BACKBONES.get(name)
    fields = cls.Settings.model_fields
    sizes = {key: value for key, value in (_SIZES | _SIZES_OF.get(name, {})).items() if key in fields}
    task = "point-process" if cls.reads_only_events() else "linear"
    head = {"head": _HEADS[name]} if name in _HEADS else {}
    config = resolve_tables(task, name, "smoke", tables={"task": head, "backbone": sizes, "train": {"batch": 8}})
    built_family = config.task.build(data_dir)
    model = config.build(built_family).train()
    weights = [
        len(list(model.parameters())),
        *_summary_values(torch.cat([w.flatten() for w in model.parameters()]), VALUES),
    ]
    weight_generator = generator(0, "golden-weights")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=weight_generator)
    batch = TrainingData.of(config.task, built_family).batch(config.train, config.seed, 0)
    loss, _ = model.loss(batch, 0.5, generator(config.seed, "loss", 0))
    # Use SGD because Adam would amplify rounding errors in tiny gradients to the size of a step.
    descend(loss, model, torch.optim.SGD(model.parameters(), lr=1e-2), clip=1.0)
    with torch.inference_mode():
        points = built_family.sample(Request(EPISODES, 8, generator(0, "golden"))).context
        golden_answers = {
            "initial weights": weights,
            "loss": [float(f"{loss.item():.7g}")],
            "next": _prediction_values(model.eval().predict_next(points)),
        }
    return (
        golden_answers
        if cls.reads_only_events()
        else {**golden_answers, "labels": _label_values(cls, config.backbone.settings)}
    )


def _label_values(cls: type[Backbone], settings: Mapping[str, Any]) -> list[float]:
    shape = TaskShape(x_dim=4, points=12, classes=5, head="categorical", question="targets")
    with global_stream(0, "weights"):
        model = cls(cls.Settings(**settings), shape).eval()
    episodes = example_episodes(points=7, classes=5)
    with torch.inference_mode():
        return _prediction_values(model.predict_targets(episodes.context, episodes.queries.x))


def _tasks() -> list[str]:
    """Return the tasks in the order of their families in the registry, first those with the question `next`. A family
    that is added at the end of the registry does not change the golden answers of estimators. Tables with class labels
    are last, because the classifiers of images need the question `targets`."""
    families = list(FAMILIES.builtin_entries)
    cards = {name: load_task(name)[1] for name in card_names("tasks")}

    def position(name: str) -> tuple[bool, int]:
        family = canonical(cards[name].family)
        return cards[name].question != "next" or family == "tabular-prior", families.index(family)

    return sorted(cards, key=position)


def _task_of(family: str) -> str:
    """Return the task named like the family, or the first task of the family."""
    family_tasks = [task for task in card_names("tasks") if canonical(load_task(task)[1].family) == family]
    if not family_tasks:
        raise SystemExit(f"no card names the family '{family}': write tasks/{family}.toml, like tasks/gp-mixture.toml")
    return family if family in family_tasks else family_tasks[0]


def _listed_baselines(task: str) -> list[str]:
    """Return the oracles and baselines on a card, or none if the task needs data files or has no preset `smoke`."""
    card = load_task(task)[1]
    user_data = ("omniglot", "emnist", "mnist", "celeba32", "mooc", "reddit")
    needs_data = task in ("events", "era5") or task.partition("-")[2] in user_data
    return [] if needs_data or "smoke" not in card.presets else [*card.oracles, *card.baselines]


def _prompts(task: str, data_dir: Path, **parameters: Any) -> PromptSet:
    frozen, _ = resolve_task(task, "smoke", {"episodes": EPISODES, **parameters})
    return PromptSet(frozen, "smoke", data_dir=data_dir)


def _episode_values(episodes: Episodes) -> list[float]:
    parts = [episodes.context.x, episodes.context.y, episodes.queries.x, episodes.queries.y]
    return [value for part in parts if part.numel() for value in _summary_values(part, VALUES // 2)]


def _prediction_values(answer: Prediction) -> list[float]:
    return [value for tensor in answer.marginals.tensors().values() for value in _summary_values(tensor, VALUES)]


def _summary_values(values: Tensor, count: int) -> list[float]:
    """Return the mean absolute value, and `count` evenly spaced values."""
    flat = values.detach().double().flatten().clamp(-1e6, 1e6)
    spaced = flat[torch.linspace(0, len(flat) - 1, count).round().long()]
    return [float(f"{value:.7g}") for value in [flat.abs().mean().item(), *spaced.tolist()]]
