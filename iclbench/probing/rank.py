"""Probe of the rank of a model's prediction matrix, which contains the predictions for all queries after all contexts
(CoQE, theorem 3.10).

Each context has its own function, and all contexts have the same queries. If a prediction has the form <task vector of
the context, features of the query>, the rank of the matrix (contexts x queries) is at most the number of features, for
any number of contexts. This is the case for linear self-attention and for least squares. For softmax attention, the
rank grows with the number of contexts.

Rows of `values` have evaluator `rank` and `n_context` k. Rows with axis `contexts` have the metrics effective_rank and
rank of the first rows of the matrix. Rows with axis `singular_value` have the singular values of the complete matrix,
divided by the largest one and numbered from 1. The probe computes in float64 on the CPU, because rounding errors in
float32 would give the matrix full rank.
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
from iclbench.probing.cells import NotProbedError, cached_cell
from iclbench.probing.probe_set import POINTS_PER_PASS, ProbeSet
from iclbench.store import identity
from iclbench.store.runs import Run

EVALUATOR = "rank"
# Singular values that are smaller than this fraction of the largest one count as 0.
TOLERANCE = 1e-6
# Name of the test of a classification family whose sequences have two possible labels.
_TWO_LABEL_EVALUATOR = "icl"


@dataclass(frozen=True)
class RankSet(ProbeSet):
    """Contexts of `context` points, each with its own function, and queries for all of them.

    Attributes:
        contexts: number of contexts, which are the rows of the matrix.
        queries: number of queries, which are the columns of the matrix. Each is the first query of a different episode.
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
        """Episodes with one query each. Their number is the number of contexts or of queries, whichever is larger."""
        count = max(self.contexts, self.queries)
        return self.draw("rank", count, self.context) if self.evaluator else self._split("rank", count)


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
    """Measure the rank of the prediction matrix of a run, of least squares and of the oracles.

    Args:
        context: results folder and data sets; the probe computes on the CPU.
        run: a finished run.
        sizes: numbers of examples in context (default: the number in training or, for classification, in the test with
            two labels).
        contexts: number of rows of the complete matrix.
        queries: number of columns of the matrix.
        shift: the shift of the distribution.
        seed: seed of the probe set.

    Raises:
        NotProbedError: the run predicts events or reads a stream, or its classification family has no test with two
            labels.
        UsageError: the run is not finished, or `sizes` differs from the number of examples in the test with two labels.
    """
    model = contestants.backbone(run, "cpu", context.data_dir)
    assert isinstance(model.predictor, Backbone)
    model.predictor.double()
    task, categorical = run.config.task, run.config.task.head == "categorical"
    if task.head == "event":
        raise NotProbedError(f"run '{run.name}' predicts events, whose queries have no inputs")
    if not model.predictor.shape.x_dim:
        raise NotProbedError(f"run '{run.name}' reads a stream, whose queries have no inputs; probe another run")
    context_sizes, shift = list(dict.fromkeys(sizes or [task.points])), task.shift_name(shift)
    if categorical:
        family = task.build(context.data_dir)
        if _TWO_LABEL_EVALUATOR not in family.evaluators():
            raise NotProbedError(
                f"run '{run.name}': the rank of a classification run is measured on sequences with two possible labels "
                f"(evaluator '{_TWO_LABEL_EVALUATOR}'), which family '{task.family}' does not have; probe a regression "
                "run"
            )
        test_size = family.sample_test(_TWO_LABEL_EVALUATOR, 1, generator(seed, "rank")).context.count
        if sizes and context_sizes != [test_size]:
            raise UsageError(
                f"run '{run.name}': the rank of a classification run is measured on sequences with two possible labels "
                f"(evaluator '{_TWO_LABEL_EVALUATOR}'), which have {test_size} examples in family '{task.family}'; "
                "remove --context",
                code="not-applicable",
            )
        context_sizes = [test_size]
    for size in context_sizes:
        prompts = RankSet(
            task,
            run.config.preset,
            shift,
            seed,
            context.data_dir,
            evaluator=_TWO_LABEL_EVALUATOR if categorical else "",
            context=size,
            contexts=contexts,
            queries=queries,
        )
        references = [] if categorical else contestants.baselines(prompts, ["least-squares", *task.oracles])
        for contestant in [model, *references]:
            work = partial(_rank_tables, contestant, prompts)
            yield cached_cell(context.results, contestant, prompts, _shared_columns(contestant, prompts), work)


def prediction_matrix(predictor: Predictor, contexts: Episodes, x_query: Float[Tensor, "Q Dx"]) -> Float[Tensor, "C _"]:
    """Return the predictions for each query after each context. The matrix has one row for each context and one column
    for each query and output.

    For classification, the entries are the log-odds of the second of the two labels of a sequence (`choices`).
    """
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
    """Return the effective rank, exp(entropy of the normalised singular values) (Roy and Vetterli 2007). It is 0 for a
    matrix of zeros."""
    values = torch.linalg.svdvals(matrix)
    share = values / values.sum().clamp_min(torch.finfo(values.dtype).tiny)
    return float(torch.special.entr(share).sum().exp()) if values.any() else 0.0


def numerical_rank(matrix: Float[Tensor, "rows columns"], tolerance: float = TOLERANCE) -> int:
    """Return the number of singular values that are larger than `tolerance` times the largest one."""
    values = torch.linalg.svdvals(matrix)
    return int((values > tolerance * values[0]).sum())


def numbers_of_contexts(maximum: int) -> list[int]:
    """Return 4, 8, 16, ... and finally the maximum."""
    doubled = [4 * 2**n for n in range(maximum.bit_length()) if 4 * 2**n < maximum]
    return [*doubled, maximum]


def _rank_tables(contestant: PredictorContestant, prompts: RankSet) -> Tables:
    episodes = prompts.episodes.to(dtype=torch.float64)
    x_query = episodes.queries.x[: prompts.queries, 0]
    size = max(1, POINTS_PER_PASS // (prompts.context + prompts.queries))
    blocks = (episodes[start : min(start + size, prompts.contexts)] for start in range(0, prompts.contexts, size))
    with torch.inference_mode():
        matrix = torch.cat([prediction_matrix(contestant.predictor, block, x_query) for block in blocks])
    if not matrix.isfinite().all():
        count = int((~matrix.isfinite()).any(1).sum())
        raise NonFiniteError(f"the predictions after {count} of {len(matrix)} contexts are not finite")
    shared = _shared_columns(contestant, prompts) | {"normaliser": 1.0}
    rows: Rows = []
    for count in numbers_of_contexts(prompts.contexts):
        count_columns = shared | {"axis": "contexts", "axis_value": float(count), "n_episodes": count}
        rows.append(count_columns | {"metric": "effective_rank", "value": effective_rank(matrix[:count])})
        rows.append(count_columns | {"metric": "rank", "value": float(numerical_rank(matrix[:count]))})
    singular_values = torch.linalg.svdvals(matrix)
    spectrum = shared | {"axis": "singular_value", "metric": "singular_value", "n_episodes": prompts.contexts}
    if singular_values[0] > 0:
        rows += [
            spectrum | {"axis_value": float(index), "value": value, "normaliser": float(singular_values[0])}
            for index, value in enumerate((singular_values / singular_values[0]).tolist(), 1)
        ]
    return {"values": rows}


def _shared_columns(contestant: PredictorContestant, prompts: RankSet) -> dict[str, object]:
    return cells.shared_columns(contestant, prompts, EVALUATOR) | {"n_context": prompts.context}
