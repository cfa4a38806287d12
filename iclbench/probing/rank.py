"""The rank of a predictor's answers: all queries after all contexts, as one matrix (CoQE, theorem 3.10).

A predictor that answers <task vector of the context, features of the query> has a matrix of predictions, contexts x
queries, whose rank is at most the width of the features, however many contexts there are; so have linear
self-attention and least squares. That of softmax attention grows with the contexts. Every context belongs to a function
of its own; all of them are asked the same queries.

Rows of `values`, evaluator `rank`, `n_context` k: axis `contexts` (metrics effective_rank and rank of the first so many
rows of the matrix), axis `singular_value` (metric singular_value, counted from 1, over the largest, of the whole
matrix). Everything is computed in float64 on the CPU: in float32 rounding has full rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from jaxtyping import Float
from torch import Tensor

from iclbench.backbones.base import Backbone
from iclbench.config import codes
from iclbench.core.answers import check_answer
from iclbench.core.context import Context
from iclbench.core.episodes import Episodes
from iclbench.core.errors import NonFiniteError, UsageError
from iclbench.core.predictions import Categorical
from iclbench.core.predictor import Predictor
from iclbench.core.seeds import generator
from iclbench.evaluation import cells, contestants
from iclbench.evaluation.cells import CellResult, Rows, Tables
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.probing.probe import NotProbedError, cached_cell
from iclbench.probing.probe_set import POINTS, ProbeSet
from iclbench.store import identity
from iclbench.store.runs import Run

EVALUATOR = "rank"
# Singular values below this fraction of the largest count as 0.
TOLERANCE = 1e-6
# The test of a classification family whose sequences all admit the same kind of answer: one of two labels.
_TWO_LABELS = "icl"


@dataclass(frozen=True)
class RankSet(ProbeSet):
    """Contexts of `context` points, a function each, and queries that are put to all of them.

    Attributes:
        contexts: rows of the matrix.
        queries: columns: the first query of as many episodes.
    """

    fit: int = field(default=0, kw_only=True)
    test: int = field(default=1, kw_only=True)
    contexts: int = field(default=64, kw_only=True)
    queries: int = field(default=128, kw_only=True)

    @cached_property
    def id(self) -> str:
        """Readable name and content hash."""
        digest = identity.prompts_id(self, probe=codes.PROBE, rank=[self.context, self.contexts, self.queries])
        return f"{self.task.name}-{self.preset}-{self.shift}-rank{self.context}-{digest}"

    @cached_property
    def episodes(self) -> Episodes:
        """Episodes: the larger of the numbers of contexts and queries, with one query each."""
        if self.evaluator:
            return self.draw("rank", self._drawn, self.context)
        return self._split("rank", self._drawn)

    @property
    def _drawn(self) -> int:
        return max(self.contexts, self.queries)


def probe_rank(
    context: Context,
    run: Run,
    sizes: list[int] | None = None,
    *,
    contexts: int = 64,
    queries: int = 128,
    shift: str = "none",
    seed: int = 0,
) -> Iterator[CellResult]:
    """Measure the rank of the matrix of predictions of a run, of least squares and of the oracles.

    Args:
        context: results folder and data sets; the probe computes on the CPU.
        run: a finished run.
        sizes: examples in each context; None: the trained number, of class labels that of the test.
        contexts: rows of the largest matrix.
        queries: columns.
        shift: change of the distribution.
        seed: seed of the probe set.

    Raises:
        NotProbedError: a classification family without sequences of two labels, or event sequences.
        UsageError: the run is not finished, or its test has another number.
    """
    model = contestants.backbone(run, "cpu", context.data_dir)
    assert isinstance(model.predictor, Backbone)
    model.predictor.double()
    task, categorical = run.config.task, run.config.task.head == "categorical"
    if task.head == "event":
        raise NotProbedError(f"run '{run.name}' answers with events, which have no inputs that a matrix could act on")
    context_sizes, shift = list(dict.fromkeys(sizes or [task.points])), task.shift_name(shift)
    if categorical:
        family = task.build(context.data_dir)
        if _TWO_LABELS not in family.evaluators():
            raise NotProbedError(
                f"run '{run.name}' answers with class labels, and family '{task.family}' has no sequences of two "
                f"labels (evaluator '{_TWO_LABELS}') whose log-odds could be the matrix; probe the rank of a run that "
                "answers with numbers"
            )
        test_size = family.sample_test(_TWO_LABELS, 1, generator(seed, "rank")).context.count
        if sizes and context_sizes != [test_size]:
            raise UsageError(
                f"run '{run.name}' answers with class labels, and the sequences of two labels (evaluator "
                f"'{_TWO_LABELS}') of family '{task.family}' have {test_size} examples; leave --context out"
            )
        context_sizes = [test_size]
    for size in context_sizes:
        prompts = RankSet(
            task,
            run.config.preset,
            shift,
            seed,
            context.data_dir,
            evaluator=_TWO_LABELS if categorical else "",
            context=size,
            contexts=contexts,
            queries=queries,
        )
        exact = [] if categorical else contestants.baselines(prompts, ["least-squares", *task.oracles])
        for contestant in [model, *exact]:
            work = partial(_ranks, contestant, prompts)
            yield cached_cell(context.results, contestant, prompts, _row(contestant, prompts), work)


def prediction_matrix(predictor: Predictor, contexts: Episodes, x_query: Float[Tensor, "Q Dx"]) -> Float[Tensor, "C _"]:
    """What is answered to every query after every context, several outputs side by side; of classification the
    log-odds of the second of a sequence's two labels (`choices`)."""
    answer = predictor.informed(contexts.truth).predict_targets(
        contexts.context, x_query.expand(len(contexts), -1, -1), contexts.related
    )
    check_answer(predictor, "predict_targets", answer, (len(contexts), len(x_query)), contexts.context.y)
    if contexts.choices is None:
        return answer.point().flatten(1)
    assert isinstance(answer, Categorical)
    labels = contexts.choices.nonzero()[:, 1].view(-1, 1, 2)
    logit, other_logit = answer.logits.gather(2, labels.expand(-1, answer.logits.shape[1], 2)).unbind(-1)
    return other_logit - logit


def effective_rank(matrix: Float[Tensor, "rows columns"]) -> float:
    """exp(entropy of the singular values over their sum) (Roy and Vetterli 2007); 0 of a matrix of zeros."""
    values = torch.linalg.svdvals(matrix)
    share = values / values.sum().clamp_min(torch.finfo(values.dtype).tiny)
    return float(torch.special.entr(share).sum().exp()) if values.any() else 0.0


def numerical_rank(matrix: Float[Tensor, "rows columns"], tolerance: float = TOLERANCE) -> int:
    """The number of singular values above this fraction of the largest."""
    values = torch.linalg.svdvals(matrix)
    return int((values > tolerance * values[0]).sum())


def numbers_of_contexts(most: int) -> list[int]:
    """4, 8, 16, ... and the last."""
    doubled = [4 * 2**n for n in range(most.bit_length()) if 4 * 2**n < most]
    return [*doubled, most]


def _ranks(contestant: PredictorContestant, prompts: RankSet) -> Tables:
    episodes = prompts.episodes.to(dtype=torch.float64)
    x_query = episodes.asked.x[: prompts.queries, 0]
    size = max(1, POINTS // (prompts.context + prompts.queries))
    blocks = (episodes[start : min(start + size, prompts.contexts)] for start in range(0, prompts.contexts, size))
    with torch.inference_mode():
        matrix = torch.cat([prediction_matrix(contestant.predictor, block, x_query) for block in blocks])
    if not matrix.isfinite().all():
        bad = int((~matrix.isfinite()).any(1).sum())
        raise NonFiniteError(
            f"the answers after {bad} of {len(matrix)} contexts are not finite; their rank is undefined"
        )
    shared = _row(contestant, prompts) | {"normaliser": 1.0}
    rows: Rows = []
    for count in numbers_of_contexts(prompts.contexts):
        at = shared | {"axis": "contexts", "axis_value": float(count), "n_episodes": count}
        rows.append(at | {"metric": "effective_rank", "value": effective_rank(matrix[:count])})
        rows.append(at | {"metric": "rank", "value": float(numerical_rank(matrix[:count]))})
    values = torch.linalg.svdvals(matrix)
    spectrum = shared | {"axis": "singular_value", "metric": "singular_value", "n_episodes": prompts.contexts}
    if values[0] > 0:
        rows += [
            spectrum | {"axis_value": float(index), "value": value, "normaliser": float(values[0])}
            for index, value in enumerate((values / values[0]).tolist(), 1)
        ]
    return {"values": rows}


def _row(contestant: PredictorContestant, prompts: RankSet) -> dict[str, object]:
    return cells.row(contestant, prompts, EVALUATOR) | {"n_context": prompts.context}
