"""Frozen language prompts: the episodes of (task, shots, demonstration seed, shift) that every model is asked.

Queries are the same for all demonstration seeds, shots and shifts, so that answers are compared pair by pair; only
where every query has demonstrations of its own they come again, with others, until there are as many episodes as asked
for, and without demonstrations each is asked once. With fewer shots the demonstrations are some of those with more. No
query is among its demonstrations.
"""

from __future__ import annotations

import reprlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from iclbench.core.errors import UsageError
from iclbench.core.formats import assignments
from iclbench.core.seeds import stream_seed
from iclbench.language.prompting.text import endings
from iclbench.language.tasks.cards import PRESET, LanguageTask
from iclbench.language.tasks.pools import Example, Pool
from iclbench.store import identity

# Raised whenever a change of the drawing gives other prompts for the same configuration.
VERSION = 2
SHIFTS = ("none", "shuffled-labels")
# What a card says of how examples are written down and how an answer is judged.
_WRITTEN_AND_JUDGED = ("template", "separator", "demonstrations", "answers", "match")


@dataclass(frozen=True)
class LanguageEpisode:
    """A query after its demonstrations; `candidates` is empty where the answer is free."""

    demonstrations: tuple[Example, ...]
    query: Example
    candidates: tuple[str, ...] = ()


@dataclass(frozen=True)
class LanguagePrompts:
    """What defines a set of frozen language prompts.

    Attributes:
        task: the task.
        shots: demonstrations before every query.
        episodes: queries; at most all there are.
        demo_seed: which demonstrations are drawn.
        order: which order they have; 0: as they were drawn.
        shift: `shuffled-labels`: outputs are exchanged among the demonstrations.
        seed: evaluation seed: which queries, in which order.
        split: `development`: queries that are neither asked nor demonstrated, to choose settings on.
        data_dir: where the user's copies of data sets lie.
    """

    task: LanguageTask
    shots: int
    episodes: int
    demo_seed: int = 0
    order: int = 0
    shift: str = "none"
    seed: int = 0
    split: Literal["test", "development"] = "test"
    data_dir: Path | None = None

    preset = PRESET
    headline = "accuracy"
    extrapolated_to = None
    related_from = None
    trained_data = None

    def __post_init__(self) -> None:
        if self.shift not in SHIFTS:
            raise UsageError(f"unknown shift '{self.shift}' of language prompts; known: {', '.join(SHIFTS)}")
        if self.shift != "none" and self.shots == 0:
            raise UsageError("without demonstrations there are no labels to shuffle; ask for at least one shot")

    def with_pool(self, pool: Pool) -> LanguagePrompts:
        """The same, drawing from a pool that was read already."""
        self.__dict__["pool"] = pool
        return self

    @property
    def task_name(self) -> str:
        return self.task.name

    @property
    def distribution(self) -> str:
        return self.shift

    @property
    def family_name(self) -> str:
        return self.task.family

    @property
    def data(self) -> str | None:
        """What the examples are, as far as the card says so."""
        return assignments(self.task.card.data) or None

    @property
    def card(self) -> str:
        """Content hash of the task's card."""
        return self.task.hash

    @cached_property
    def pool(self) -> Pool:
        return self.task.pool(self.data_dir)

    @cached_property
    def id(self) -> str:
        """Readable name, `q` and content hash."""
        # Without seed and order of the demonstrations, which stand in the name: what differs in these alone ends alike.
        drawn_from = {
            "data": self.pool.fingerprint,
            "shots": self.shots,
            "episodes": len(self.queries),
            "shift": self.shift,
            "seed": self.seed,
            "split": self.split,
            "version": VERSION,
            # Whose intervals were once over episodes.
            **({} if self.repeated is None else {"intervals": "over queries"}),
            "card": [getattr(self.task.card, field) for field in _WRITTEN_AND_JUDGED],
        }
        draw = f"{self.shots}shot-d{self.demo_seed}" + (f"-o{self.order}" if self.order else "")
        return f"{self.task.name}-{PRESET}-{self.evaluation}-{draw}-q{identity.language_prompts_id(**drawn_from)}"

    @property
    def evaluation(self) -> str:
        """The evaluation in a word: its shift, or its split of the data."""
        return self.shift if self.split == "test" else self.split

    @cached_property
    def shared(self) -> tuple[Example, ...] | None:
        """The demonstrations of all queries; None where every query has its own."""
        if self.shots and self._own_demonstrations:
            return None
        return self._arranged(self._shared(), 0)

    @cached_property
    def queries(self) -> tuple[Example, ...]:
        """The queries, before any demonstrations are drawn."""
        if self.split == "development":
            return self._development()
        return tuple(self._askable[i] for i in self._query_index)

    @property
    def _own_demonstrations(self) -> bool:
        """Whether every query has demonstrations of its own."""
        return self.task.card.demonstrations == "own"

    @property
    def _askable(self) -> Sequence[Example]:
        """All possible queries."""
        return self.pool.queries if self._own_demonstrations else self.pool.apart[0]

    @cached_property
    def _query_index(self) -> np.ndarray:
        """Index of the query of each episode."""
        order = self._rng("queries").permutation(len(self._askable))
        if self._own_demonstrations and self.shots:  # the same query comes again with other demonstrations
            order = np.resize(order, self.episodes)
        return order[: self.episodes]

    @property
    def repeated(self) -> np.ndarray | None:
        """Which query every episode asks, where some are asked more than once; None: none is."""
        if self.split == "development" or len(np.unique(self._query_index)) == len(self._query_index):
            return None
        return self._query_index

    @cached_property
    def drawn(self) -> tuple[LanguageEpisode, ...]:
        """The episodes.

        Raises:
            UsageError: there are too few examples for so many demonstrations, no answers to choose from, or some that
                cannot be read.
        """
        shared, choice = self.shared, self.task.card.answers == "choice"
        if choice and not all(query.candidates or self.pool.labels for query in self.queries):
            raise UsageError(
                f"the answers of task '{self.task.name}' are free, there is nothing to choose from; ask a copy of its "
                'card that says answers = "greedy"'
            )
        cut = None if choice else next((q.y for q in self.queries if self._cut(q.y)), None)
        if cut is not None:
            raise UsageError(
                f"task '{self.task.name}': no answer can be {reprlib.repr(cut)}, since a free one is read up to "
                f"{reprlib.repr(self._cut(cut))}; give answers of one line, or a card with candidates to choose from"
            )
        return tuple(
            LanguageEpisode(
                self._own_examples(query, i) if shared is None else shared, query, query.candidates or self.pool.labels
            )
            for i, query in enumerate(self.queries)
        )

    def _cut(self, answer: str) -> str | None:
        """What in a right answer would end it; None: nothing does."""
        return next((end for end in endings(self.task.card) if end in answer.rstrip()), None)

    @property
    def can_shuffle(self) -> bool:
        """Whether an output can be exchanged at all: the only one cannot, unless it brings its own candidates."""
        return self.shots > 1 or (self.shots == 1 and any(e.candidates for e in self.pool.demonstrations))

    def _shared(self) -> list[Example]:
        pool = self.pool.apart[1]
        self._enough(len(pool))
        if not self.pool.fixed:
            return _stratified(pool, self.shots, self._rng("demonstrations", self.demo_seed))
        examples = list(pool[: self.shots])
        if self.demo_seed:  # the data set has one set of them: seeds change its order
            examples = [examples[i] for i in self._rng("fixed", self.demo_seed).permutation(len(examples))]
        return examples

    def _own_examples(self, query: Example, episode: int) -> tuple[Example, ...]:
        """Demonstrations other than the query."""
        pool = self.pool.demonstrations
        order = self._rng("own", self.demo_seed, episode).permutation(len(pool))
        examples = list(islice((pool[i] for i in order if pool[i].asked != query.asked), self.shots))
        self._enough(len(examples))
        return self._arranged(examples, episode + 1)

    def _arranged(self, examples: list[Example], episode: int) -> tuple[Example, ...]:
        """In the asked order, with outputs exchanged where that is the shift."""
        if self.order:
            rng = self._rng("order", self.demo_seed, self.order, episode)
            examples = [examples[i] for i in rng.permutation(len(examples))]
        if self.shift == "shuffled-labels":
            examples = _shuffled(examples, self._rng("shuffle", self.demo_seed, self.order, episode))
        return tuple(examples)

    def _development(self) -> tuple[Example, ...]:
        examples = self.pool.development if self._own_demonstrations else self.pool.apart[2]
        if not examples:
            raise UsageError(f"task '{self.task.name}' has no examples to choose settings on; give -o method.passes=5")
        order = self._rng("development").permutation(len(examples))
        return tuple(examples[i] for i in order[: self.episodes])

    def _enough(self, available: int) -> None:
        if self.shots > available:
            raise UsageError(
                f"task '{self.task.name}' has {available} examples to demonstrate with, asked for {self.shots}; give a "
                "smaller --shots"
            )

    def _rng(self, stream: str, *counter: int) -> np.random.Generator:
        return np.random.default_rng(stream_seed(self.seed, f"language-{stream}", *counter))


def _stratified(pool: Sequence[Example], shots: int, rng: np.random.Generator) -> list[Example]:
    """Draw `shots` examples, one of each class in turn as long as there are any, in a random order. Where outputs are
    hardly ever the same, this is a plain draw."""
    by_class: dict[str, list[int]] = defaultdict(list)
    for i in rng.permutation(len(pool)):
        by_class[pool[i].y].append(int(i))
    numbers: list[int] = []
    while len(numbers) < shots:
        nonempty = [group for group in by_class.values() if group]
        numbers += [nonempty[i].pop() for i in rng.permutation(len(nonempty))]
    return [pool[numbers[i]] for i in rng.permutation(shots)]


def _shuffled(examples: list[Example], rng: np.random.Generator) -> list[Example]:
    """Outputs exchanged. Those that bring their own candidates get another one of these; class labels are permuted (to
    give every input a wrong one would tell of two classes which is right) until one has moved; where outputs are all
    different, none keeps its own."""
    if any(e.candidates for e in examples):
        alternatives = [[c for c in e.candidates if c != e.y] or [e.y] for e in examples]
        return [
            replace(e, y=choices[rng.integers(len(choices))]) for e, choices in zip(examples, alternatives, strict=True)
        ]
    outputs = [e.y for e in examples]
    order = rng.permutation(len(examples))
    if len(set(outputs)) == len(outputs):  # a cycle through all of them
        target = {int(a): int(b) for a, b in zip(order, np.roll(order, 1), strict=True)}
        return [replace(e, y=outputs[target[i]]) for i, e in enumerate(examples)]
    while len(set(outputs)) > 1 and [outputs[i] for i in order] == outputs:
        order = rng.permutation(len(examples))
    return [replace(e, y=outputs[i]) for e, i in zip(examples, order, strict=True)]
