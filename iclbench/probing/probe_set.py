"""Frozen probe sets. Their episodes have a context, queries for fitting the scale and shift of each layer's
predictions, and scored queries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from iclbench.config import codes
from iclbench.core.episodes import Episodes
from iclbench.core.errors import UsageError
from iclbench.evaluation.prompts import PromptSet
from iclbench.store import identity

# Maximum number of points in a forward pass, which limits memory use. It is fixed, so that results do not depend on the
# memory of the machine.
POINTS_PER_PASS = 64 * 41
# Why some shifts cannot be probed: each of their queries depends on a prefix of the context.
_REASONS_NOT_PROBED = {
    "orthogonal-query": "each of its queries is orthogonal to a prefix of the context",
    "repeated-query": "each of its queries repeats a point from a prefix of the context",
}


@dataclass(frozen=True)
class ProbeSet(PromptSet):
    """The episodes of a task, shift and seed at one context size. The letters k, m and n are those of Grazzi et al.
    (2024).

    Attributes:
        context: k, the number of examples in context.
        fit: m, the number of queries on which the scale and shift of each layer's predictions are fitted (the metrics
            `scale` and `shift`).
        test: n, the number of scored queries.
        tasks: the number of episodes.

    Raises:
        UsageError: the shift does not apply to the task, or its queries depend on a prefix of the context.
    """

    context: int = field(kw_only=True)
    fit: int = field(default=10, kw_only=True)
    test: int = field(default=40, kw_only=True)
    tasks: int = field(default=128, kw_only=True)

    def __post_init__(self) -> None:
        shift = self.family.parse_shift(self.shift)
        if shift.examples is not None:
            raise UsageError(
                f"the shift '{self.shift}' cannot be probed; use --context N for more examples", code="not-applicable"
            )
        if query_part := shift.part(*_REASONS_NOT_PROBED):
            raise UsageError(
                f"the shift '{self.shift}' cannot be probed: {_REASONS_NOT_PROBED[query_part.kind]}",
                code="not-applicable",
            )

    @property
    def context_points(self) -> int:
        return self.context

    @cached_property
    def id(self) -> str:
        """A readable name with a content hash."""
        sizes = [self.context, self.fit, self.test, self.tasks]
        name = f"{self.task.name}-{self.preset}-{self.shift}-probe{self.context}"
        return f"{name}-{identity.prompts_id(self, probe=codes.PROBE, sizes=sizes)}"

    @cached_property
    def episodes(self) -> Episodes:
        """Episodes with contexts of k points. Their targets are the m queries for fitting, followed by the n scored
        queries."""
        return self._split("probe", self.tasks)

    @cached_property
    def tuning_episodes(self) -> Episodes:
        """Episodes on which methods are tuned. They are independent of `episodes`, with the same number and
        distribution."""
        return self._split("probe-tuning", self.tasks)

    def blocks(self) -> Iterator[Episodes]:
        """Yield the episodes in blocks of at most about `POINTS_PER_PASS` points."""
        size = max(1, POINTS_PER_PASS // (self.context + self.fit + self.test))
        return (self.episodes[start : start + size] for start in range(0, self.tasks, size))

    def _split(self, stream: str, tasks: int) -> Episodes:
        if self.task.question == "targets":
            return self._split_targets(stream, tasks)
        drawn = self.draw(stream, tasks, self.context + self.fit + self.test)
        targets = drawn.queries.span(self.context)
        return replace(drawn, context=drawn.context.span(0, self.context), targets=targets, scored=targets.mask)

    def _split_targets(self, stream: str, tasks: int) -> Episodes:
        """Draw episodes from a family that draws its own targets. The contexts have k points, and the first m + n
        targets are the queries."""
        shift = self.family.parse_shift(self.shift).with_examples(self.context)
        prompts = PromptSet(self.task, self.preset, shift.name, self.seed, self.data_dir, self.built_family)
        drawn = prompts.draw(stream, tasks, self.context)
        targets = drawn.queries.span(0, self.fit + self.test)
        available = int(targets.counts.min())
        if available < self.fit + self.test:
            raise UsageError(
                f"an episode of task '{self.task.name}' has {available} targets, fewer than {self.fit} + {self.test}; "
                "pass smaller --fit and --test",
                code="bad-value",
            )
        return replace(drawn, targets=targets, scored=targets.mask)
