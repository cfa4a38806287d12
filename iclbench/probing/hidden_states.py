"""Linear probes of hidden states for models that read streams. They measure which properties of a sequence a layer
represents after its first n elements.

The inputs of the probe of a layer are the hidden vectors of the layer at element n. A ridge regression is fitted on
some episodes and scored on others (Alain and Bengio 2017, arXiv 1610.01644; for in-context learning, Akyürek et al.
2023, arXiv 2211.15661, section 4.3). The family defines the targets (`StreamFamily.probe_targets`). For numbers, the
score is R² over the scored episodes, with squared errors summed over dimensions. For tokens, the regression predicts
indicators of the tokens, the token with the largest output is the answer, and the score is the accuracy. Tokens that do
not occur in the fitted episodes are never the answer.

The baseline is the same model before training, because even a wide random network represents much of its input.

Rows of `values` have evaluator `probe`, axis `layer` and `n_context` n, and metrics `r_squared_of_TARGET` or
`accuracy_of_TARGET`. A target that is not defined after n elements, or is equal in all episodes, has a skipped row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from iclbench.config import codes
from iclbench.core.context import Context
from iclbench.core.episodes import Episodes, Points
from iclbench.core.formats import plural
from iclbench.core.metrics import ACCURACY_OF, R_SQUARED_OF
from iclbench.evaluation import cells
from iclbench.evaluation.cells import CellResult, Rows, Tables
from iclbench.evaluation.contestants import PredictorContestant
from iclbench.families.streams.base import ProbeTarget, StreamFamily
from iclbench.probing.cells import LAYER_EVALUATOR, NotProbedError, cached_cell, rows_along_axis, untrained_control
from iclbench.probing.probe_set import POINTS_PER_PASS, ProbeSet
from iclbench.probing.ridge import fit_ridge
from iclbench.store import identity
from iclbench.store.runs import Run

FIT, TEST = 4096, 1024


@runtime_checkable
class LayeredBackbone(Protocol):
    """A backbone whose hidden vectors after each layer can be read."""

    def hidden_by_layer(
        self, context: Points, x_target: Float[Tensor, "B Q 0"], related: Points | None = None
    ) -> Iterable[Float[Tensor, " B #Q D"]]:
        """Yield the hidden vectors of the last element, from the first to the last layer."""


@dataclass(frozen=True)
class HiddenStateSet(ProbeSet):
    """Episodes for which hidden states are read after `context` elements.

    Attributes:
        fit: number of episodes on which probes are fitted.
        test: number of episodes on which probes are scored.
    """

    fit: int = field(default=FIT, kw_only=True)
    test: int = field(default=TEST, kw_only=True)

    @cached_property
    def id(self) -> str:
        """Readable name and content hash."""
        digest = identity.prompts_id(self, probe=codes.PROBE, hidden_states=[self.context, self.fit, self.test])
        return f"{self.task.name}-{self.preset}-{self.shift}-probe{self.context}-{digest}"

    @cached_property
    def episodes(self) -> Episodes:
        """The episodes for fitting, followed by the episodes for scoring.

        They have the length that was used in training, because the distribution of some families depends on the length.
        If the context is longer, they end one element after it.
        """
        points = self.task.point_count(max(self.context, self.task.points))
        return self.draw("probe-hidden-states", self.fit + self.test, points)

    @cached_property
    def targets(self) -> dict[str, ProbeTarget]:
        """The targets of all episodes, by name."""
        assert isinstance(self.family, StreamFamily)
        return self.family.probe_targets(self.episodes, self.context, self.shift)


def probe_hidden_states(
    context: Context,
    run: Run,
    model: PredictorContestant,
    sizes: Sequence[int],
    *,
    fit: int = FIT,
    test: int = TEST,
    shift: str = "none",
    seed: int = 0,
) -> Iterator[CellResult]:
    """Probe a run that reads a stream, and the same model before training. Yield each finished cell.

    Args:
        context: results folder, data sets, and device of the backbone.
        run: a finished run.
        model: the trained backbone of the run.
        sizes: numbers of elements after which hidden states are probed.
        fit: number of episodes on which probes are fitted.
        test: number of scored episodes.
        shift: the shift of the distribution.
        seed: seed of the probe set.

    Raises:
        NotProbedError: the backbone has no `hidden_by_layer`.
    """
    if not isinstance(model.predictor, LayeredBackbone):
        raise NotProbedError(
            f"run '{run.name}' has no hidden states to probe: its backbone '{model.name}' does not define "
            "hidden_by_layer"
        )
    contestants = [model, untrained_control(run, model, context.data_dir)]
    for size in sizes:
        prompts = HiddenStateSet(
            run.config.task, run.config.preset, shift, seed, context.data_dir, context=size, fit=fit, test=test
        )
        for contestant in contestants:
            columns = cells.shared_columns(contestant, prompts, LAYER_EVALUATOR) | {"n_context": size}
            work = partial(_tables, contestant, prompts, columns)
            yield cached_cell(context.results, contestant, prompts, columns, work)


def hidden_states(model: LayeredBackbone, prompts: HiddenStateSet, device: str = "cpu") -> list[Float[Tensor, "B D"]]:
    """Return the hidden vectors after the context, as one matrix for each layer, in float64 on the CPU."""
    size, blocks = max(1, POINTS_PER_PASS // (prompts.context + 1)), []
    context = prompts.episodes.context.span(0, prompts.context)
    for start in range(0, len(context), size):
        block = context[start : start + size].to(device)
        with torch.inference_mode():
            layers = model.hidden_by_layer(block, block.x[:, :1])
            blocks.append([hidden[:, 0].double().cpu() for hidden in layers])
    return [torch.cat(layer) for layer in zip(*blocks, strict=True)]


def probe_scores(hidden: Float[Tensor, "B D"], target: ProbeTarget, fit: int) -> Float[Tensor, " T"]:
    """Fit a probe on the first `fit` episodes, and return its scores on the other episodes. Episodes for which the
    target is not defined are omitted.

    The mean of the scores is the accuracy for tokens, and R² for numbers. For numbers, the score of an episode is 1
    minus its squared error divided by the variance of the target.
    """
    is_fitted = target.is_defined.clone()
    is_fitted[fit:] = False
    is_scored = target.is_defined & ~is_fitted
    is_scored[:fit] = False
    if target.values.is_floating_point():
        truth = target.values[is_scored].double()
        answer = fit_ridge(hidden[is_fitted], target.values[is_fitted])(hidden[is_scored])
        variance = (truth - truth.mean(0)).square().sum(1).mean()
        return 1 - (answer - truth).square().sum(1) / variance
    tokens, index = target.values[is_fitted].unique(return_inverse=True)
    answer = fit_ridge(hidden[is_fitted], F.one_hot(index, len(tokens)))(hidden[is_scored]).argmax(1)
    return (tokens[answer] == target.values[is_scored]).double()


def _tables(contestant: PredictorContestant, prompts: HiddenStateSet, columns: dict[str, object]) -> Tables:
    assert isinstance(contestant.predictor, LayeredBackbone)
    layers = hidden_states(contestant.predictor, prompts, contestant.device)
    nonfinite = [(~hidden.isfinite()).any(1) for hidden in layers]
    rows: Rows = []
    for name, target in prompts.targets.items():
        prefix = R_SQUARED_OF if target.values.is_floating_point() else ACCURACY_OF
        shared = columns | {"axis": "layer", "metric": prefix + name, "normaliser": 1.0}
        if reason := _unprobed_reason(name, prompts):
            rows.append(shared | {"axis": None, "status": "skipped", "reason": reason})
            continue
        for layer, (hidden, is_nonfinite) in enumerate(zip(layers, nonfinite, strict=True), 1):
            if is_nonfinite.any():
                reason = f"the hidden state is not finite in {int(is_nonfinite.sum())} of {len(hidden)} episodes"
                rows.append(shared | {"axis_value": float(layer), "status": "failed", "reason": reason})
            else:
                scores = probe_scores(hidden, target, prompts.fit).unsqueeze(1)
                rows += rows_along_axis(shared, [float(layer)], scores, prompts.seed)
    return {"values": rows}


def _unprobed_reason(name: str, prompts: HiddenStateSet) -> str:
    """Return why a target cannot be probed after this many elements; empty if it can be probed."""
    target, after = prompts.targets[name], f"after {plural(prompts.context, 'element')}"
    parts = [target.values[part][target.is_defined[part]] for part in (slice(0, prompts.fit), slice(prompts.fit, None))]
    if not all(map(len, parts)):
        nearest = _nearest_context(name, prompts)
        advice = "" if nearest is None else f"; use --context {nearest}"
        return f"no episode has the target '{name}' {after}{advice}"
    if any(bool((values == values[:1]).all()) for values in parts):
        return f"the target '{name}' is equal in all episodes {after}"
    return ""


def _nearest_context(name: str, prompts: HiddenStateSet) -> int | None:
    """Return the nearest number of elements after which episodes for fitting and scoring have a target. If two numbers
    are equally near, the smaller one is returned. None means that such a number does not exist."""
    assert isinstance(prompts.family, StreamFamily)
    sizes = range(1, prompts.episodes.context.count)
    for context in sorted(sizes, key=lambda size: (abs(size - prompts.context), size)):
        is_defined = prompts.family.probe_targets(prompts.episodes, context, prompts.shift)[name].is_defined
        if is_defined[: prompts.fit].any() and is_defined[prompts.fit :].any():
            return context
    return None
