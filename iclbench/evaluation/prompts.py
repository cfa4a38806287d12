"""Frozen prompt sets: the episodes on which all contestants are evaluated, for one task, shift and seed.

A prompt set is determined by the family, its parameters, the sizes, the shift and the evaluation seed, and its name
contains a hash of them. Episodes are sampled in blocks, each from its own random stream, so a larger set starts with
all complete blocks of a smaller set.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from iclbench.config.resolution import TaskConfig
from iclbench.core.answers import check_episodes
from iclbench.core.bounds import check_size_of_episodes
from iclbench.core.episodes import Episodes
from iclbench.core.guard import guarded
from iclbench.core.heads import HEADS
from iclbench.core.metrics import curve_metric
from iclbench.core.plugins import plugin_errors
from iclbench.core.records import cat
from iclbench.core.seeds import generator
from iclbench.families.base import Family
from iclbench.families.request import Request
from iclbench.store import identity

BLOCK_SIZE = 64


@dataclass(frozen=True)
class PromptSet:
    """A set of frozen episodes, which are sampled on first use.

    Attributes:
        task: the task with the sizes of one preset.
        preset: the preset, which affects only the readable name.
        shift: name of the shift.
        seed: evaluation seed.
        data_dir: folder of data sets.
        built_family: the family, if it has already been built.
        evaluator: the family's own test that samples the episodes; empty if the episodes are samples of the task.
        stream: name of the random stream.
    """

    task: TaskConfig
    preset: str
    shift: str = "none"
    seed: int = 0
    data_dir: Path | None = None
    built_family: Family | None = field(default=None, compare=False)
    evaluator: str = ""
    stream: ClassVar[str] = "prompts"

    @cached_property
    def family(self) -> Family:
        return self.built_family or self.task.build_held_out(self.data_dir)

    @property
    def group_size(self) -> int:
        """Number of consecutive episodes that count as one, for example in the bootstrap."""
        return self.family.evaluators()[self.evaluator].group_size if self.evaluator else 1

    @property
    def evaluation(self) -> str:
        """The name of the evaluator if there is one, otherwise the name of the shift."""
        return self.evaluator or self.shift

    @property
    def question(self) -> str:
        """Value of the column `evaluator`: the family's own test if there is one, otherwise the task's question."""
        return self.evaluator or self.task.question

    @property
    def context_points(self) -> int:
        """The largest number of context points."""
        return self.extrapolated_to or self.task.points

    @property
    def extrapolated_to(self) -> int | None:
        """The number of examples that the shift sets; None if it does not set one."""
        return self.family.parse_shift(self.shift).examples

    @property
    def distribution(self) -> str:
        """The shift without its number of examples."""
        return self.family.parse_shift(self.shift).distribution

    @property
    def related_from(self) -> str | None:
        """The process that generates the related datasets, if the shift sets it."""
        kinds = self.family.shift_kinds
        parts = self.family.parse_shift(self.shift).parts
        return next((kinds[part.kind].related_from for part in parts if part.kind in kinds), None)

    @property
    def task_name(self) -> str:
        return self.task.name

    @property
    def family_name(self) -> str:
        return self.task.family

    @property
    def data(self) -> str | None:
        """The name of the data set of the episodes; None if the episodes do not come from a data set.

        If the run was trained on other data, the name includes a fingerprint.
        """
        if self.trained_data is None:
            return self.task.data
        return self.task.data_with(fingerprint=self.family.training_fingerprint)

    @property
    def trained_data(self) -> str | None:
        """Fingerprint of the run's training data, if the episodes come from other data."""
        return self.family.trained_data

    @property
    def card(self) -> str:
        """Content hash of the task's card."""
        return self.task.card

    @property
    def headline(self) -> str:
        """The main metric of the task, which is also the metric in the row of a failed contestant."""
        head = HEADS[self.task.head]
        return curve_metric(head.metrics) if self.task.question == "next" else head.headline

    @cached_property
    def id(self) -> str:
        """The identifier of the prompt set: a readable name with a content hash."""
        sizes = {"question": self.task.question, "points": self.context_points, "episodes": self.task.episodes}
        return f"{self.task.name}-{self.preset}-{self.evaluation}-{identity.prompts_id(self, **sizes)}"

    @cached_property
    def episodes(self) -> Episodes:
        """The frozen episodes, on the CPU, in complete groups.

        Their number is limited by the task and by the number of different episodes that the family has.
        """
        groups = max(1, self.task.episodes // self.group_size)
        limit = self.family.prompt_limit(self.context_points)
        number = min(groups * self.group_size, limit or groups * self.group_size)
        return self.draw(self.stream, number, self.task.point_count(self.context_points))

    @guarded
    def draw(self, stream: str, episodes: int, points: int) -> Episodes:
        """Sample episodes in blocks from the named random stream, with the family's largest number of related
        datasets."""
        check_size_of_episodes(episodes, points, self.family.x_dim + self.family.y_dim)
        sizes = [min(BLOCK_SIZE, episodes - start) for start in range(0, episodes, BLOCK_SIZE)]
        return cat([self._block(size, points, stream, index) for index, size in enumerate(sizes)])

    def _block(self, episodes: int, points: int, stream: str, index: int) -> Episodes:
        random = generator(self.seed, stream, index)
        method = "sample_test" if self.evaluator else "sample_prompts"
        with plugin_errors(self.family):
            if self.evaluator:
                block = self.family.sample_test(self.evaluator, episodes, random)
            else:
                request = Request(episodes, points, random, shift=self.shift, before=BLOCK_SIZE * index)
                block = self.family.sample_prompts(request)
        check_episodes(self.family, method, block)
        return block
