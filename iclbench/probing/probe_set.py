"""Frozen probe sets, whose episodes have a context, queries for fitting scale and shift, and scored queries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from iclbench.config import codes
from iclbench.core.episodes import Episodes
from iclbench.core.errors import UsageError
from iclbench.evaluation.prompts import PromptSet
from iclbench.store import identity

# Number of points in a forward pass, which limits memory use. It is fixed, so that all machines give equal results.
POINTS_PER_PASS = 64 * 41
# The reasons why some shifts cannot be probed: their queries depend on a prefix of the context.
_REASONS_NOT_PROBED = {
    "orthogonal-query": "its queries are orthogonal to one prefix each",
    "repeated-query": "its queries repeat points of one prefix each",
}


@dataclass(frozen=True)
class ProbeSet(PromptSet):
    """The episodes of a task, shift and seed at one context size, with k, m and n of Grazzi et al. (2024).

    Attributes:
        context: k, the number of examples in context.
        fit: m, the number of queries on which scale and shift are fitted.
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
        """Readable name and content hash."""
        sizes = [self.context, self.fit, self.test, self.tasks]
        name = f"{self.task.name}-{self.preset}-{self.shift}-probe{self.context}"
        return f"{name}-{identity.prompts_id(self, probe=codes.PROBE, sizes=sizes)}"

    @cached_property
    def episodes(self) -> Episodes:
        """Contexts of k points; the targets are the m queries for fitting, then the n scored queries."""
        return self._split("probe", self.tasks)

    @cached_property
    def tuning_episodes(self) -> Episodes:
        """The same number of independent episodes of the same distribution, on which a method is tuned."""
        return self._split("probe-tuning", self.tasks)

    def blocks(self) -> Iterator[Episodes]:
        """The episodes in blocks of about `POINTS_PER_PASS` points."""
        size = max(1, POINTS_PER_PASS // (self.context + self.fit + self.test))
        return (self.episodes[start : start + size] for start in range(0, self.tasks, size))

    def _split(self, stream: str, tasks: int) -> Episodes:
        if self.task.question == "targets":
            return self._split_targets(stream, tasks)
        drawn = self.draw(stream, tasks, self.context + self.fit + self.test)
        targets = drawn.queries.span(self.context)
        return replace(drawn, context=drawn.context.span(0, self.context), targets=targets, scored=targets.mask)

    def _split_targets(self, stream: str, tasks: int) -> Episodes:
        """Episodes of a family that draws its own targets: contexts of k points; the first m + n targets are
        queries."""
        shift = self.family.parse_shift(self.shift).with_examples(self.context)
        prompts = PromptSet(self.task, self.preset, shift.name, self.seed, self.data_dir, self.built_family)
        drawn = prompts.draw(stream, tasks, self.context)
        targets = drawn.queries.span(0, self.fit + self.test)
        available = int(targets.counts.min())
        if available < self.fit + self.test:
            raise UsageError(
                f"an episode of task '{self.task.name}' has {available} targets, fewer than {self.fit} + {self.test}; "
                "give smaller --fit and --test",
                code="bad-value",
            )
        return replace(drawn, targets=targets, scored=targets.mask)
