"""Base classes of families. A family defines its parameters, sizes, sampler, error normaliser and shifts.

A family samples `Episodes` on the generator's device. Most regression families of the papers draw a function and
evaluate it at random inputs. They are subclasses of `FunctionFamily` and define only these two steps.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from iclbench.core.episodes import Episodes, Points
from iclbench.core.errors import DataChangedError, UnknownNameError, UsageError
from iclbench.core.guard import guarded
from iclbench.core.settings import BaseSettings
from iclbench.core.task import TaskFacts
from iclbench.families.request import Request
from iclbench.families.sampling import normal
from iclbench.families.shifts import FUNCTION_KINDS, FunctionKind, Inputs, Kinds, Shift, repeat_earlier_points

Truth = dict[str, Tensor]

# Methods that draw episodes. In all subclasses they run under `guarded`, with a fixed global state of torch.
_DRAW_METHODS = ("sample", "sample_all_related", "sample_prompts")


@dataclass(frozen=True)
class Evaluator:
    """A named test of a family on special sequences. Predictions are limited to the labels in `Episodes.choices`.

    Attributes:
        chance: the accuracy of guessing among the allowed labels.
        group_size: number of consecutive episodes that count as one. A group is right only if the answers to all its
            episodes are right.
        answer_source: what determines the right answer: `context` (methods that are fitted on the context are then
            references), `weights` (only training data contain the answer) or `either` (both suggest an answer, and the
            test shows which of the two answers a model gives).
    """

    chance: float
    group_size: int = 1
    answer_source: Literal["context", "weights", "either"] = "context"


@dataclass(frozen=True)
class Ceiling:
    """Expected log-likelihood per target of an oracle over the episodes of a family, with its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class KnownSolutions:
    """Baselines and oracles whose distance from a model shows what the model has learned.

    Attributes:
        names: names of the baselines and oracles.
        axis: name of the property of the training distribution on which the distances depend.
        value: value of this property; None if it is unlimited.
    """

    names: tuple[str, ...]
    axis: str
    value: float | None


class Family(ABC):
    """A distribution over episodes.

    Attributes:
        Parameters: the settings that a task card may set.
        y_dim: number of output dimensions (regression).
        classes: number of classes, None for regression.
        marks: number of marks if episodes are event sequences (`iclbench.core.events`); None for other families.
        is_stream: whether episodes are sequences of tokens or vectors without inputs.
        predicts_labels: whether models of a stream predict a label of each prefix (`Episodes.targets`) instead of the
            next element.
        reads_images: whether the inputs are images (`x_shape`).
        time_unit: divisor of the times of a user's events; models read the quotients.
        starts_with_event: whether a user's sequence is observed from its first event on. This event is then the origin
            of time and not a point of the sequence.
        x_shape: shape of the image into which `x` unfolds; None for plain vectors.
        shift_kinds: the kinds of shift except `points-N`, by name; see `iclbench.families.shifts`.
        linear_in_x: whether every function is w·x, so that gradient descent on w is applicable.
        questions: the questions that the episodes support, `next` or `targets`.
        target_metrics: metrics that are computed from all targets of an episode together (`iclbench.core.set_metrics`).
        data_parameters: the parameters that select the data of episodes. Results also list them.
        learned: stored facts about the training data (see `learn`); if empty, the facts are computed from the data.
        related_sets: the largest number of related datasets of an episode.
        related_points: number of points of the largest related dataset; 0 if not known.
        oracles: baselines that are Bayes-optimal for the episodes of this class without a shift. Subclasses do not
            inherit this set, since they draw other episodes (`lists_oracle`).
    """

    Parameters: ClassVar[type[BaseSettings]]
    y_dim: int = 1
    classes: int | None = None
    marks: int | None = None
    is_stream: ClassVar[bool] = False
    predicts_labels: ClassVar[bool] = False
    reads_images: ClassVar[bool] = False
    time_unit: float = 1.0
    starts_with_event: bool = False
    x_shape: tuple[int, ...] | None = None
    shift_kinds: ClassVar[Kinds] = {}
    linear_in_x: ClassVar[bool] = False
    questions: ClassVar[frozenset[str]] = frozenset({"next"})
    target_metrics: ClassVar[tuple[str, ...]] = ()
    data_parameters: ClassVar[tuple[str, ...]] = ()
    learned: Mapping[str, Any] = {}
    related_sets: int = 0
    related_points: int = 0
    oracles: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def lists_oracle(cls, baseline: str) -> bool:
        """Return whether this class itself lists a baseline in `oracles`. A card may name any baseline as its
        oracle."""
        return baseline in cls.__dict__.get("oracles", ())

    @classmethod
    def further_oracles(cls, parameters: Any) -> tuple[str, ...]:
        """Return baselines that are Bayes-optimal for these parameters, in addition to the oracles of a task card."""
        return ()

    def __init__(self, parameters: Any, data_dir: Path | None = None) -> None:
        self.parameters = parameters
        self.data_dir = data_dir

    @property
    @abstractmethod
    def x_dim(self) -> int:
        """Dimension of the inputs."""

    @property
    def normaliser(self) -> float:
        """Divisor of errors: the variance of the noiseless output under the training distribution."""
        return 1.0

    @property
    def y_scale(self) -> float:
        """Standard deviation of one output under the training distribution. It is the unit of the bin borders of a bar
        head. By default, all outputs have an equal share of the normaliser."""
        return math.sqrt(self.normaliser / self.y_dim)

    @property
    def fingerprint(self) -> str:
        """Hash of the data files from which episodes are drawn; empty if episodes need no files."""
        return ""

    @property
    def training_fingerprint(self) -> str:
        """Hash of the training data; the held-out family has the same hash."""
        return self.fingerprint

    @property
    def max_prompts(self) -> int | None:
        """Number of distinct evaluation episodes; None if it is unlimited. Prompt sets are not larger, since repeated
        episodes do not make a score more precise."""
        return None

    def prompt_limit(self, points: int) -> int | None:
        """Return the number of distinct evaluation episodes with contexts of `points` points. The default is
        `max_prompts`."""
        return self.max_prompts

    @property
    def needs_data(self) -> bool:
        """Whether episodes are drawn from the user's files below `data_dir`."""
        return False

    def learn(self) -> dict[str, Any]:
        """Return facts about the training data as plain values: the `fingerprint` and, in some families, units, moments
        and the number of marks. A run stores these facts and does not recompute them. A family that needs no data
        returns an empty dictionary.

        Raises:
            DataError: the data cannot be read.
        """
        return {"fingerprint": self.training_fingerprint} if self.needs_data else {}

    def files(self) -> dict[str, str]:
        """Return the parameters with `Role.LOCATION`, as absolute paths or as names in the data folder."""
        return {}

    def check_data(self, learned: Mapping[str, Any] | None = None) -> None:
        """Raise `DataChangedError` if the data differ from the data described by `learned` (default:
        `self.learned`)."""
        fingerprint = (self.learned if learned is None else learned).get("fingerprint")
        if fingerprint is not None and fingerprint != self.training_fingerprint:
            raise DataChangedError(str(fingerprint), self.training_fingerprint)

    @property
    def trained_data(self) -> str | None:
        """Fingerprint of the data that the run was trained on; None if the current data are the same or if no
        fingerprint is stored."""
        fingerprint = self.learned.get("fingerprint")
        return None if fingerprint is None or fingerprint == self.training_fingerprint else str(fingerprint)

    @classmethod
    def parse_class_shift(cls, name: str) -> Shift:
        """Parse the name of a shift of this class. All families have `none` and `points-N`.

        Raises:
            UsageError: the class has no such kind (the message lists its kinds), a number is missing or not valid, or
                two parts of the name set the same aspect of an episode.
        """
        return Shift.parse(name, cls.shift_kinds)

    def parse_shift(self, name: str) -> Shift:
        """Parse the name of a shift and check the shift against the parameters.

        Raises:
            UsageError: as in `parse_class_shift`, or a number in the name is not valid for the parameters.
        """
        return self.parse_class_shift(name)

    def check_shift(self, shift: Shift, points: int) -> None:  # noqa: B027 - an optional hook
        """Raise `UsageError` if no episodes of this many points can be sampled under a parsed shift."""

    def accepts(self, points: int, shift: str = "none") -> bool:
        """Return whether episodes of this many points can be sampled under a shift (`check_shift`)."""
        try:
            self.check_shift(self.parse_shift(shift), points)
        except UsageError:
            return False
        return True

    def noise_to_signal(self, shift: str = "none") -> float:
        """Return the variance of the label noise divided by the prior variance of a weight. This is the Bayes-optimal
        ridge penalty if functions are linear in x or in `features`."""
        return 0.0

    def is_oracle_optimal(self, oracle: str, shift: str) -> bool:
        """Return whether a baseline that is Bayes-optimal for the task is also optimal under a shift if it is given the
        shift."""
        return True

    def known_solutions(self, shift: str) -> KnownSolutions | None:
        """Return the solutions from which the evaluation under a shift measures the distances of models; None to
        measure no distances."""
        return None

    @property
    def hidden_width(self) -> int:
        """Hidden width of the two-layer network baseline: the width of the sampled networks if functions are networks,
        otherwise 100."""
        return 100

    def facts(self, shift: str = "none") -> TaskFacts:
        """Return the facts about the task that estimators receive in addition to the points."""
        return TaskFacts(
            self.noise_to_signal(shift),
            self.hidden_width,
            self,
            shift,
            self.classes,
            self.marks,
            predicts_labels=self.predicts_labels,
        )

    def held_out(self) -> Family:
        """Return the family for evaluation, with data that training does not use. The default is the family itself."""
        return self

    def validation(self) -> Family:
        """Return the family for choosing learning rates, which does not use the data of the evaluation prompts
        (`held_out`).

        The default is the family itself. Its episodes are new samples of the training distribution, or come from the
        training data: a family without held-out data, like `tabular`, uses the same rows for training, validation and
        evaluation.
        """
        return self

    def evaluators(self) -> dict[str, Evaluator]:
        """Return the tests of this family by name. They are run in addition to the evaluation on episodes of the
        family."""
        return {}

    def check_test(self, evaluator: str) -> None:
        """Raise `UsageError` if the family has no such test or the parameters exclude it."""
        if evaluator not in self.evaluators():
            raise UnknownNameError("evaluator", evaluator, self.evaluators())

    def sample_test(self, evaluator: str, episodes: int, generator: torch.Generator) -> Episodes:
        """Draw episodes of one of the `evaluators`. Families with evaluators override this method.

        Raises:
            UsageError: see `check_test`.
        """
        self.check_test(evaluator)
        raise NotImplementedError(
            f"{type(self).__name__} lists the evaluator '{evaluator}' but does not define sample_test"
        )

    def ceiling(self, oracle: str, points: int, shift: str = "none") -> Ceiling | None:
        """Return the expected score of an oracle for contexts of up to `points` points, or None if it has not been
        computed. The mean over a frozen prompt set deviates from this value by chance."""
        return None

    def strata(self, episodes: Episodes) -> dict[str, Bool[Tensor, " B"]]:
        """Return masks of named subsets of the episodes, defined by their truth. Scores are also reported for each
        subset."""
        return {}

    def clusters(self, episodes: Episodes) -> Int[Tensor, " B"] | None:
        """Return the cluster of each episode (question `targets`), or None if episodes are independent. With several
        clusters, confidence intervals of means cover the variation over new clusters, and paired comparisons use
        cluster means."""
        return None

    def display_inputs(self) -> Float[Tensor, "points Dx"] | None:
        """Return the inputs at which reports plot predictions, like a grid or the pixels of an image, or None for no
        plot. If the function is known, its values at these inputs are `truth["display"]`, `(B, points, Dy)`."""
        return None

    def features(self, x: Float[Tensor, "N Dx"]) -> Float[Tensor, "N features"] | None:
        """Return the features in which every function of the family is linear, or None if no such features exist."""
        return None

    def feature_directions(self) -> Float[Tensor, "features Dx"] | None:
        """Return unit vectors u such that feature j depends only on u_j·x. Reports plot each feature along its
        vector."""
        return None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in _DRAW_METHODS:
            if inspect.isfunction(method := vars(cls).get(name)):
                setattr(cls, name, guarded(method))

    @abstractmethod
    def sample(self, request: Request) -> Episodes:
        """Draw episodes."""

    @guarded
    def sample_all_related(self, request: Request) -> Episodes:
        """Draw episodes with the largest number of related datasets."""
        return self.sample(replace(request, related=self.related_sets or None))

    @guarded
    def sample_prompts(self, request: Request) -> Episodes:
        """Draw the frozen episodes for evaluation, with the largest number of related datasets. A family may stratify
        them, for example by the kind of function: means over stratified episodes have the same expectation as means
        over independent episodes, and a smaller standard error."""
        return self.sample_all_related(request)


class FunctionParameters(BaseSettings):
    """Parameters that all families of functions share; `dim` is the number of inputs d."""

    dim: Annotated[int, Field(gt=0, le=10_000)] = 20


class FunctionFamily(Family):
    """y = f(x) + noise with f drawn per episode and, unless a subclass overrides `inputs`, x ~ N(0, I)."""

    Parameters = FunctionParameters
    shift_kinds: ClassVar[Mapping[str, FunctionKind]] = FUNCTION_KINDS

    @property
    def x_dim(self) -> int:
        return int(self.parameters.dim)

    @property
    def noise(self) -> float:
        """Standard deviation of the label noise without a shift."""
        return 0.0

    def label_noise(self, shift: Shift) -> float:
        """Return the standard deviation of the label noise under a shift."""
        return shift.value("noisy", self.noise)

    @property
    def weight_variance(self) -> float:
        """Prior variance of one weight if the function is linear in x or in `features`; used by `noise_to_signal`."""
        return 1.0

    def noise_to_signal(self, shift: str = "none") -> float:
        parsed = self.parse_shift(shift)
        noise, scale = self.label_noise(parsed), parsed.value("weight-scale", 1.0)
        return noise**2 / (self.weight_variance * scale**2)

    def is_oracle_optimal(self, oracle: str, shift: str) -> bool:
        """Return False if a query repeats a point with its noise, because the label of the query is then known
        exactly."""
        parsed = self.parse_shift(shift)
        return parsed.part("repeated-query") is None or not self.label_noise(parsed)

    def inputs(self, episodes: int, points: int, generator: torch.Generator) -> Float[Tensor, "B N Dx"]:
        """Draw inputs from the training distribution, including random parameters of an episode such as a rotation."""
        return normal((episodes, points, self.x_dim), generator)

    @abstractmethod
    def draw(self, episodes: int, generator: torch.Generator, active_dims: int | None = None) -> Truth:
        """Draw one function per episode. In a curriculum, all inputs after the first `active_dims` are 0."""

    def draw_under(
        self, shift: Shift, episodes: int, generator: torch.Generator, active_dims: int | None = None
    ) -> Truth:
        """Draw one function per episode under a shift. Most shifts do not change the functions."""
        return self.draw(episodes, generator, active_dims)

    @abstractmethod
    def apply(self, truth: Truth, x: Float[Tensor, "B N Dx"]) -> Float[Tensor, "B N"]:
        """Return the noiseless outputs at x."""

    def sample(self, request: Request) -> Episodes:
        episodes, points, generator = request.episodes, request.points, request.generator
        shift = self.parse_shift(request.shift)
        # The functions are drawn first, so that they are the same under every shift that does not change them.
        truth = self.draw_under(shift, episodes, generator, request.active_dims)
        kinds = [(self.shift_kinds[part.kind], part.value) for part in shift.parts if part.kind in self.shift_kinds]
        if any(kind.isotropic for kind, _ in kinds):
            inputs = Inputs(normal((episodes, points, self.x_dim), generator))
        else:
            inputs = Inputs(self.inputs(episodes, points, generator))
        for kind, value in kinds:
            if kind.transform is not None:
                inputs = kind.transform(inputs, value, generator)
        x, queries, is_defined = inputs.truncate(request.active_dims)
        noise, scale = self.label_noise(shift), shift.value("weight-scale", 1.0)
        context = self.observe(truth, x, generator, noise, scale)
        targets = None
        if shift.part("repeated-query"):
            targets, is_defined = repeat_earlier_points(context, generator)
        elif queries is not None:
            targets = self.observe(truth, queries, generator, noise, scale)
        scored = context.mask if is_defined is None else is_defined
        return Episodes(context=context, scored=scored, targets=targets, truth=truth)

    def observe(
        self, truth: Truth, x: Float[Tensor, "B N Dx"], generator: torch.Generator, noise: float, scale: float = 1.0
    ) -> Points:
        """Return points with the labels `scale` * f(x) plus noise of standard deviation `noise`."""
        y = scale * self.apply(truth, x)
        if noise:
            y = y + noise * normal(y.shape, generator)
        return Points.full(x, y.unsqueeze(-1))
