"""Greedy regression trees (scikit-learn) and gradient-boosted trees (XGBoost), fitted for each episode and prefix.

Each prefix has its own fit, so the answers are the same as with the library. For up to 128 points, compiled loops give
bitwise identical answers and are many times faster, because the libraries spend most of their time on checking
arguments. Each fit uses one thread.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable
from functools import cache, partial
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from iclbench.core.errors import one_line
from iclbench.core.settings import BaseSettings, NonNegativeFloat, PositiveFloat, PositiveInt
from iclbench.estimators.base import Estimator, slices
from iclbench.estimators.workers import fit_prefixes, map_episodes, map_in_threads

log = logging.getLogger("iclbench")

# Largest number of points for compiled loops. For more points, XGBoost bins values, and the libraries are equally fast.
MAX_COMPILED_POINTS = 128

# Number of episodes per call of compiled code, which Ctrl-C cannot interrupt.
_EPISODES_PER_CALL = 16

# A compiled method computes answers `(B, P, Q)`, with NaN for fits that need the library. Its arguments are x
# `(B, N, Dx)`, y `(B, N)`, the indices of the points sorted by each coordinate, the lengths `(B, P)` (0: no fit) and
# the queries `(B, P, Q, Dx)`.
CompiledMethod = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


_Settings = TypeVar("_Settings", bound="TreeSettings | BoostingSettings")


class LibraryEstimator(Estimator[_Settings], abstract=True):
    """A method from a library with `fit` and `predict`.

    The order is "causal", because rounding errors depend on the order of the points and decide between splits with
    equal gains.

    Attributes:
        seconds_per_fit: approximate time of one fit with the library, which decides whether worker processes are
            started.
    """

    order = "causal"
    dtype = torch.float32
    episodes_at_once = 1 << 20
    seconds_per_fit: ClassVar[float]

    @abstractmethod
    def model(self) -> Any:
        """Return an unfitted model of the library."""

    @abstractmethod
    def compiled_method(self) -> CompiledMethod | None:
        """Return the compiled method; None if these settings do not have a compiled method.

        Raises:
            ImportError: numba is not installed, or is not compatible with the installed version of NumPy.
        """

    def features(self, x: Float[Tensor, "*shape Dx"]) -> Float[Tensor, "*shape Dx"]:
        """Return the inputs of the model, computed from x."""
        return x

    def answer(
        self,
        x: Float[Tensor, "B N Dx"],
        y: Float[Tensor, "B N"],
        lengths: Int[Tensor, "#B P"],
        queries: Float[Tensor, "B P Q Dx"],
    ) -> Float[Tensor, "B P Q"]:
        tensors = (self.features(x), y, lengths.expand(len(x), -1), self.features(queries))
        inputs, outputs, fit_lengths, query_arrays = (np.ascontiguousarray(t.cpu().numpy()) for t in tensors)
        answers = np.zeros(query_arrays.shape[:3])
        method = self._available_compiled_method()
        # Infinite values and NaN are left to the library, which rejects them or treats them as missing.
        if method is not None and all(np.isfinite(array).all() for array in (inputs, outputs, query_arrays)):
            small_lengths = np.where(fit_lengths <= MAX_COMPILED_POINTS, fit_lengths, 0)
            try:
                answers = answer_compiled(method, inputs, outputs, small_lengths, query_arrays)
            except OSError as error:  # the folder with the cached machine code cannot be read or written
                _warn_once(str(error))
                answers[small_lengths > 0] = np.nan
            unanswered = (fit_lengths > MAX_COMPILED_POINTS) | np.isnan(answers).any(2)
            fit_lengths = np.where(unanswered, fit_lengths, 0)
            answers[unanswered] = 0
        if fit_lengths.any():
            model = self.model()
            jobs = [(model, *episode) for episode in zip(inputs, outputs, fit_lengths, query_arrays, strict=True)]
            answers += np.stack(map_episodes(fit_prefixes, jobs, self.seconds_per_fit * np.count_nonzero(fit_lengths)))
        return torch.as_tensor(answers, device=x.device).to(y.dtype)

    def _available_compiled_method(self) -> CompiledMethod | None:
        if self.settings.backend == "library":
            return None
        try:
            return self.compiled_method()
        except ImportError as error:
            _warn_once(f"{one_line(error)} (pip install -U numba)")
            return None


@cache
def _warn_once(reason: str) -> None:
    log.warning("trees are fitted by the libraries, which is many times slower: %s", reason)


def answer_compiled(
    method: CompiledMethod, x: np.ndarray, y: np.ndarray, lengths: np.ndarray, queries: np.ndarray
) -> np.ndarray:
    """Return the answers `(B, P, Q)` of a compiled method in float64, computed in chunks of episodes."""
    longest = int(lengths.max(initial=0))
    x, y = x[:, :longest], y[:, :longest]
    order = np.argsort(x, axis=1, kind="stable")

    def answer_chunk(chunk: slice) -> np.ndarray:
        arrays = (np.ascontiguousarray(array[chunk]) for array in (x, y, order, lengths, queries))
        return method(*arrays)

    return np.concatenate(map_in_threads(answer_chunk, list(slices(len(x), _EPISODES_PER_CALL))), dtype=np.float64)


Backend = Literal["auto", "library"]


class TreeSettings(BaseSettings):
    """Settings of scikit-learn's tree.

    Attributes:
        max_depth: largest depth (default: unlimited).
        random_state: seed of the order in which coordinates are tried.
        backend: "auto" uses compiled loops for up to 128 points, which give the same answers as the library; "library"
            always uses the library.
    """

    max_depth: PositiveInt | None = None
    random_state: int = 0
    backend: Backend = "auto"


class GreedyTree(LibraryEstimator[TreeSettings]):
    """`sklearn.tree.DecisionTreeRegressor`: squared error, best splits."""

    Settings = TreeSettings
    libraries = ("scikit-learn",)
    seconds_per_fit = 5e-4

    def model(self) -> Any:
        from sklearn.tree import DecisionTreeRegressor

        return DecisionTreeRegressor(max_depth=self.settings.max_depth, random_state=self.settings.random_state)

    def compiled_method(self) -> CompiledMethod | None:
        from iclbench.estimators.compiled_trees import answer_all, seed_of

        depth = self.settings.max_depth or 2**31 - 1
        return partial(_answer_by_trees, answer_all, depth, seed_of(self.settings.random_state))


def _answer_by_trees(
    answer_all: Callable[..., None],
    depth: int,
    seed: int,
    x: np.ndarray,
    y: np.ndarray,
    order: np.ndarray,
    lengths: np.ndarray,
    queries: np.ndarray,
) -> np.ndarray:
    answers = np.zeros(queries.shape[:3])
    answer_all(x, y.astype(np.float64), order, lengths, queries, depth, seed, answers)
    return answers


class BoostingSettings(BaseSettings):
    """Settings of XGBoost; settings that are not given have the library's defaults.

    `tree_method`, `max_bin`, `reg_lambda` and `min_child_weight` are pinned to the library's defaults, because they
    affect the answers: with few points, the method `exact` answers most queries differently. The base score is the mean
    of the outputs.

    Attributes:
        sign: whether the features are sign(x), for functions with thresholds at 0.
        backend: "auto" uses compiled loops for up to 128 points if the four pinned settings have their defaults; the
            answers are the same as with the library. "library" always uses the library.
    """

    n_estimators: PositiveInt | None = None
    max_depth: PositiveInt | None = None
    learning_rate: PositiveFloat | None = None
    sign: bool = False
    tree_method: Literal["hist", "exact", "approx"] = "hist"
    max_bin: Annotated[int, Field(ge=2)] = 256
    reg_lambda: NonNegativeFloat = 1.0
    min_child_weight: NonNegativeFloat = 1.0
    backend: Backend = "auto"


# The compiled code supports only the defaults of these settings.
_PINNED_SETTINGS = ("tree_method", "max_bin", "reg_lambda", "min_child_weight", "backend")


class XGBoost(LibraryEstimator[BoostingSettings]):
    """`xgboost.XGBRegressor` without subsampling."""

    Settings = BoostingSettings
    libraries = ("xgboost",)
    seconds_per_fit = 1e-2

    def model(self) -> Any:
        from xgboost import XGBRegressor

        not_passed = {"sign", "backend"}
        arguments = {key: value for key, value in self.settings if key not in not_passed and value is not None}
        return XGBRegressor(**arguments, n_jobs=1, random_state=0)

    def compiled_method(self) -> CompiledMethod | None:
        if any(getattr(self.settings, key) != BoostingSettings.model_fields[key].default for key in _PINNED_SETTINGS):
            return None
        from iclbench.estimators.compiled_boosting import answer_all

        # The library's defaults.
        trees, depth = self.settings.n_estimators or 100, self.settings.max_depth or 6
        rate = np.float32(0.3 if self.settings.learning_rate is None else self.settings.learning_rate)
        return partial(_answer_by_boosting, answer_all, trees, depth, rate)

    def features(self, x: Float[Tensor, "*shape Dx"]) -> Float[Tensor, "*shape Dx"]:
        return x.sign() if self.settings.sign else x


def _answer_by_boosting(
    answer_all: Callable[..., None],
    trees: int,
    depth: int,
    rate: np.float32,
    x: np.ndarray,
    y: np.ndarray,
    order: np.ndarray,
    lengths: np.ndarray,
    queries: np.ndarray,
) -> np.ndarray:
    answers = np.zeros(queries.shape[:3], np.float32)
    answer_all(x, y, order, lengths, queries, trees, depth, rate, answers)
    return answers
