"""The Lasso, (1/2n)|y - Xw|² + alpha |w|_1 without intercept, solved exactly for all prefixes of all episodes.

Coordinate descent with scikit-learn's default tolerance does not converge for alpha <= 1e-3, which makes its learning
curves wrong. This implementation follows the exact path and checks each solution against the optimality (KKT)
conditions.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections import OrderedDict
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclbench.core.settings import BaseSettings, PositiveFloat
from iclbench.estimators.base import Estimator, select_lengths
from iclbench.estimators.homotopy import homotopy

log = logging.getLogger("iclbench")

# The penalties in the papers. One path contains the solutions for all of them.
ALPHAS = (1.0, 0.1, 0.01, 0.001, 0.0001)
# Largest accepted violation of the optimality conditions: in units of min(1, max |b|), and in units of max |b| for
# large data, where rounding errors would exceed the first limit.
KKT_TOLERANCE, ROUNDING_TOLERANCE = 1e-8, 1e-13
# Number of entries in a batch of Gram matrices, chosen so that the batch fits into the processor's cache.
_BATCH_ENTRIES = 2**19
# Largest number and largest total bytes of cached answers (a hundred times 64 episodes of a hundred points).
_MAX_ANSWERS, _MAX_BYTES = 256, 2**25


class LassoSettings(BaseSettings):
    """Settings of the Lasso; `alpha` is the penalty, as in scikit-learn."""

    alpha: PositiveFloat


class Lasso(Estimator[LassoSettings]):
    """The Lasso with one penalty.

    Recent answers for all `ALPHAS` are cached, so that the five baselines with these penalties share one path.
    """

    Settings = LassoSettings
    _answers_by_key: ClassVar[OrderedDict[bytes, Tensor]] = OrderedDict()

    def answer(
        self,
        x: Float[Tensor, "B N Dx"],
        y: Float[Tensor, "B N"],
        lengths: Int[Tensor, "#B P"],
        queries: Float[Tensor, "B P Q Dx"],
    ) -> Float[Tensor, "B P Q"]:
        alphas = sorted({*ALPHAS, self.settings.alpha}, reverse=True)
        key = _digest(x, y, lengths, queries, torch.tensor(alphas, dtype=torch.float64))
        if key in self._answers_by_key:
            self._answers_by_key.move_to_end(key)
        else:
            w, _ = lasso_path(x, y, alphas, lengths)
            self._answers_by_key[key] = torch.einsum("bpkd,bpqd->kbpq", w, queries).cpu()
            self._drop_oldest()
        return self._answers_by_key[key][alphas.index(self.settings.alpha)].to(x.device)

    def _drop_oldest(self) -> None:
        """Remove the oldest answers from the cache until it is within its limits or contains only one answer."""
        size = sum(answers.nbytes for answers in self._answers_by_key.values())
        while len(self._answers_by_key) > 1 and (len(self._answers_by_key) > _MAX_ANSWERS or size > _MAX_BYTES):
            size -= self._answers_by_key.popitem(last=False)[1].nbytes


def lasso_path(
    x: Float[Tensor, "B N Dx"],
    y: Float[Tensor, "B N"],
    alphas: list[float],
    lengths: Int[Tensor, "#B P"] | None = None,
) -> tuple[Float[Tensor, "B P K Dx"], int]:
    """Return exact Lasso weights for several penalties and prefixes.

    Args:
        x: inputs, float64.
        y: outputs, float64.
        alphas: K penalties, in any order.
        lengths: prefix lengths (default: 1 to N). The solution for a length of 0 is arbitrary.

    Returns:
        The weights, and the number of solutions that failed the optimality check and were recomputed by scikit-learn.
    """
    batch, n, d = x.shape
    if lengths is None:
        lengths = torch.arange(1, n + 1, device=x.device).unsqueeze(0)
    order = sorted(range(len(alphas)), key=lambda k: -alphas[k])
    descending = torch.tensor(alphas, dtype=x.dtype, device=x.device)[order]
    weights = x.new_empty(batch, lengths.shape[1], len(alphas), d)
    fallbacks = 0
    batch_size = max(1, _BATCH_ENTRIES // (n * d * d))
    for start in range(0, batch, batch_size):
        rows = slice(start, start + batch_size)
        counts = lengths.expand(batch, -1)[rows]
        gram, moment = _moments(x[rows], y[rows], counts)
        w = homotopy(gram, moment, descending)
        for problem, k in (kkt_violation(gram, moment, descending, w) > KKT_TOLERANCE).nonzero().tolist():
            episode, p = divmod(problem, counts.shape[1])
            size = int(counts[episode, p])
            w[problem, k] = _coordinate_descent(x[rows][episode, :size], y[rows][episode, :size], descending[k].item())
            fallbacks += 1
        weights[rows][:, :, order] = w.unflatten(0, counts.shape)
    if fallbacks:
        total = weights[..., 0].numel()
        log.warning("lasso: %d of %d solutions were computed by scikit-learn (tolerance 1e-10)", fallbacks, total)
    return weights, fallbacks


def kkt_violation(
    gram: Float[Tensor, "P D D"], moment: Float[Tensor, "P D"], alphas: Float[Tensor, " K"], w: Float[Tensor, "P K D"]
) -> Float[Tensor, "P K"]:
    """Return the largest violation of the conditions b - Gw = alpha sign(w), and |b - Gw| <= alpha where w = 0.

    The unit is the larger of min(1, max |b|) and `ROUNDING_TOLERANCE` / `KKT_TOLERANCE` times max |b|.
    """
    correlation = moment.unsqueeze(1) - w @ gram
    alpha = alphas.unsqueeze(1)
    violation = torch.where(w != 0, (correlation - alpha * w.sign()).abs(), correlation.abs() - alpha)
    largest = moment.abs().amax(1, keepdim=True)
    scale = largest.clamp(1e-300, 1.0).maximum(ROUNDING_TOLERANCE / KKT_TOLERANCE * largest)
    return violation.amax(-1).nan_to_num(torch.inf) / scale


def _moments(
    x: Float[Tensor, "B N Dx"], y: Float[Tensor, "B N"], lengths: Int[Tensor, "B P"]
) -> tuple[Float[Tensor, "BP Dx Dx"], Float[Tensor, "BP Dx"]]:
    """Return X'X/n and X'y/n for each prefix."""
    count = lengths.clamp_min(1).flatten()
    distinct_lengths = lengths[:1] if bool((lengths == lengths[:1]).all()) else lengths
    outer = (x.unsqueeze(3) * x.unsqueeze(2)).cumsum_(1)
    gram = select_lengths(outer, distinct_lengths).flatten(0, 1) / count[:, None, None]
    moment = select_lengths((x * y.unsqueeze(-1)).cumsum_(1), distinct_lengths).flatten(0, 1) / count[:, None]
    return gram, moment


def _coordinate_descent(x: Float[Tensor, "n Dx"], y: Float[Tensor, " n"], alpha: float) -> Float[Tensor, " Dx"]:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import Lasso as CoordinateDescent

    if len(x) == 0:
        return x.new_zeros(x.shape[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = CoordinateDescent(alpha=alpha, fit_intercept=False, tol=1e-10, max_iter=1_000_000)
        return torch.as_tensor(model.fit(x.cpu().numpy(), y.cpu().numpy()).coef_, device=x.device)


def _digest(*tensors: Tensor) -> bytes:
    content = hashlib.sha256()
    for tensor in tensors:
        content.update(str(tensor.shape).encode())
        content.update(tensor.detach().cpu().contiguous().numpy().data)
    return content.digest()
