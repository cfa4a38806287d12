"""Frozen language prompts, which are the same for all models. The task, the number of shots, the demonstration seed,
the order and the shift determine the episodes.

The queries are the same for all demonstration seeds, numbers of shots and shifts, so that answers can be compared in
pairs. If each query has its own demonstrations, queries are repeated with other demonstrations until the number of
episodes is reached. Without demonstrations, queries are not repeated. The demonstrations for fewer shots are a subset
of the demonstrations for more shots. A query is never one of its own demonstrations.
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

from iclbench.config import codes
from iclbench.core.errors import DataError, UnknownNameError, UsageError
from iclbench.core.formats import assignments
from iclbench.core.seeds import stream_seed
from iclbench.language.prompting.text import endings
from iclbench.language.tasks.cards import PRESET, LanguageTask
from iclbench.language.tasks.pools import Example, Pool
from iclbench.store import identity

SHIFTS = ("none", "shuffled-labels")
# Card fields that define the text of examples and how answers are judged.
_PROMPT_FIELDS = ("template", "separator", "demonstrations", "answers", "match")


@dataclass(frozen=True)
class LanguageEpisode:
    """A query with its demonstrations; `candidates` is empty if the answer is generated."""

    demonstrations: tuple[Example, ...]
    query: Example
    candidates: tuple[str, ...] = ()


@dataclass(frozen=True)
class LanguagePrompts:
    """A set of frozen language prompts.

    Attributes:
        task: the task.
        shots: number of demonstrations before each query.
        episodes: maximum number of queries.
        demo_seed: seed that draws the demonstrations.
        order: order of the demonstrations; 0 is the order in which they are drawn.
        shift: `none`, or `shuffled-labels`, which permutes the outputs of the demonstrations.
        seed: evaluation seed, which selects and orders the queries.
        split: `test`, or `development` for held-out queries on which settings are selected.
        data_dir: folder of the user's data sets.
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
            raise UnknownNameError("shift of language prompts", self.shift, SHIFTS)
        if self.shift != "none" and self.shots == 0:
            raise UsageError(f"shift '{self.shift}' needs demonstrations; give at least one shot", code="conflict")

    def with_pool(self, pool: Pool) -> LanguagePrompts:
        """Set the pool of these prompts, so that it is not read again, and return the prompts."""
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
        """The key `data` of the card as text; None if it is empty."""
        return assignments(self.task.card.data) or None

    @property
    def card(self) -> str:
        """Content hash of the task's card."""
        return self.task.hash

    @cached_property
    def pool(self) -> Pool:
        """All examples of the task, which are read on first use."""
        return self.task.pool(self.data_dir)

    @cached_property
    def id(self) -> str:
        """Identifier of the prompt set: a readable name, followed by `q` and a content hash."""
        # The hash does not cover the seed and the order of the demonstrations, which are in the readable name. Prompt
        # sets that differ only in these have the same hash.
        identity_fields = {
            "data": self.pool.fingerprint,
            "shots": self.shots,
            "episodes": len(self.queries),
            "shift": self.shift,
            "seed": self.seed,
            "split": self.split,
            "version": codes.LANGUAGE_PROMPTS,
            **({} if self.repeated_queries is None else {"intervals": "over queries"}),
            "card": [getattr(self.task.card, field) for field in _PROMPT_FIELDS],
        }
        demonstration_part = f"{self.shots}shot-d{self.demo_seed}" + (f"-o{self.order}" if self.order else "")
        prompts_hash = identity.language_prompts_id(**identity_fields)
        return f"{self.task.name}-{PRESET}-{self.evaluation}-{demonstration_part}-q{prompts_hash}"

    @property
    def evaluation(self) -> str:
        """The shift, or `development` for the development split."""
        return self.shift if self.split == "test" else self.split

    @cached_property
    def shared(self) -> tuple[Example, ...] | None:
        """The demonstrations that all queries share; None if each query has its own."""
        if self.shots and self._has_own_demonstrations:
            return None
        return self._arrange(self._draw_shared(), 0)

    @cached_property
    def queries(self) -> tuple[Example, ...]:
        """The queries."""
        if self.split == "development":
            return self._development_queries()
        return tuple(self._query_pool[i] for i in self._query_index)

    @property
    def _has_own_demonstrations(self) -> bool:
        """Whether each query has its own demonstrations."""
        return self.task.card.demonstrations == "own"

    @property
    def _query_pool(self) -> Sequence[Example]:
        """The examples from which queries are drawn."""
        return self.pool.queries if self._has_own_demonstrations else self.pool.splits[0]

    @cached_property
    def _query_index(self) -> np.ndarray:
        """Index of the query of each episode."""
        order = self._rng("queries").permutation(len(self._query_pool))
        if self._has_own_demonstrations and self.shots:  # queries repeat with other demonstrations
            order = np.resize(order, self.episodes)
        return order[: self.episodes]

    @property
    def repeated_queries(self) -> np.ndarray | None:
        """The index of each episode's query if queries repeat; otherwise None."""
        if self.split == "development" or len(np.unique(self._query_index)) == len(self._query_index):
            return None
        return self._query_index

    @cached_property
    def drawn_episodes(self) -> tuple[LanguageEpisode, ...]:
        """The episodes.

        Raises:
            UsageError: the pool has too few examples for this number of demonstrations, or it has no candidates but the
                card scores candidates.
            DataError: a correct answer cannot be generated, because it contains a text at which generation stops.
        """
        shared, is_choice = self.shared, self.task.card.answers == "choice"
        if is_choice and not all(query.candidates or self.pool.labels for query in self.queries):
            raise UsageError(
                f"task '{self.task.name}' has no candidates to choose from; use a copy of its card with answers = "
                '"greedy"',
                code="not-applicable",
            )
        cut_answer = None if is_choice else next((q.y for q in self.queries if self._ending_in(q.y)), None)
        if cut_answer is not None:
            raise DataError(
                f"task '{self.task.name}': the answer {reprlib.repr(cut_answer)} cannot be generated, because "
                f"generation stops at {reprlib.repr(self._ending_in(cut_answer))}; give answers of one line, or a card "
                "with candidates"
            )
        return tuple(
            LanguageEpisode(
                self._own_examples(query, i) if shared is None else shared, query, query.candidates or self.pool.labels
            )
            for i, query in enumerate(self.queries)
        )

    def _ending_in(self, answer: str) -> str | None:
        """Return a text in the answer at which generation would stop; None if the answer contains no such text."""
        return next((end for end in endings(self.task.card) if end in answer.rstrip()), None)

    @property
    def can_shuffle(self) -> bool:
        """Whether the outputs of the demonstrations can be shuffled. This requires two demonstrations, or one that has
        its own candidates."""
        return self.shots > 1 or (self.shots == 1 and any(e.candidates for e in self.pool.demonstrations))

    def _draw_shared(self) -> list[Example]:
        pool = self.pool.splits[1]
        self._check_available(len(pool))
        if not self.pool.fixed:
            return _draw_stratified(pool, self.shots, self._rng("demonstrations", self.demo_seed))
        examples = list(pool[: self.shots])
        if self.demo_seed:  # the data set defines the demonstrations, so the seed changes only their order
            examples = [examples[i] for i in self._rng("fixed", self.demo_seed).permutation(len(examples))]
        return examples

    def _own_examples(self, query: Example, episode: int) -> tuple[Example, ...]:
        """Return the demonstrations of one query, which do not include the query."""
        pool = self.pool.demonstrations
        order = self._rng("own", self.demo_seed, episode).permutation(len(pool))
        examples = list(islice((pool[i] for i in order if pool[i].question != query.question), self.shots))
        self._check_available(len(examples))
        return self._arrange(examples, episode + 1)

    def _arrange(self, examples: list[Example], episode: int) -> tuple[Example, ...]:
        """Return examples in the requested order, with the shift applied to their outputs."""
        if self.order:
            rng = self._rng("order", self.demo_seed, self.order, episode)
            examples = [examples[i] for i in rng.permutation(len(examples))]
        if self.shift == "shuffled-labels":
            examples = _shuffle_outputs(examples, self._rng("shuffle", self.demo_seed, self.order, episode))
        return tuple(examples)

    def _development_queries(self) -> tuple[Example, ...]:
        examples = self.pool.development if self._has_own_demonstrations else self.pool.splits[2]
        if not examples:
            raise UsageError(
                f"task '{self.task.name}' has no development examples; pass -o method.passes=5", code="not-applicable"
            )
        order = self._rng("development").permutation(len(examples))
        return tuple(examples[i] for i in order[: self.episodes])

    def _check_available(self, available: int) -> None:
        if self.shots > available:
            raise UsageError(
                f"task '{self.task.name}' has {available} examples for demonstrations, fewer than {self.shots}; give a "
                "smaller --shots",
                code="bad-value",
            )

    def _rng(self, stream: str, *counter: int) -> np.random.Generator:
        return np.random.default_rng(stream_seed(self.seed, f"language-{stream}", *counter))


def _draw_stratified(pool: Sequence[Example], shots: int, rng: np.random.Generator) -> list[Example]:
    """Draw `shots` examples with balanced classes, in a random order.

    Rounds over the classes draw one example of each class, as long as the class has examples left. If outputs rarely
    repeat, this is close to a uniform draw.
    """
    by_class: dict[str, list[int]] = defaultdict(list)
    for i in rng.permutation(len(pool)):
        by_class[pool[i].y].append(int(i))
    numbers: list[int] = []
    while len(numbers) < shots:
        nonempty = [group for group in by_class.values() if group]
        numbers += [nonempty[i].pop() for i in rng.permutation(len(nonempty))]
    return [pool[numbers[i]] for i in rng.permutation(shots)]


def _shuffle_outputs(examples: list[Example], rng: np.random.Generator) -> list[Example]:
    """Return the examples with shuffled outputs.

    An example with its own candidates gets another one of them as its output. Class labels are permuted until at least
    one example has another label. Some labels may remain correct: if all were wrong, they would reveal the correct one
    of two classes. If all outputs are different, each example gets the output of another example.
    """
    if any(e.candidates for e in examples):
        alternatives = [[c for c in e.candidates if c != e.y] or [e.y] for e in examples]
        return [
            replace(e, y=choices[rng.integers(len(choices))]) for e, choices in zip(examples, alternatives, strict=True)
        ]
    outputs = [e.y for e in examples]
    order = rng.permutation(len(examples))
    if len(set(outputs)) == len(outputs):  # a cycle through all outputs
        source_of = {int(a): int(b) for a, b in zip(order, np.roll(order, 1), strict=True)}
        return [replace(e, y=outputs[source_of[i]]) for i, e in enumerate(examples)]
    while len(set(outputs)) > 1 and [outputs[i] for i in order] == outputs:
        order = rng.permutation(len(examples))
    return [replace(e, y=outputs[i]) for e, i in zip(examples, order, strict=True)]
