"""What a family is: parameters, sizes, a sampler, the normaliser of its errors and the shifts it knows.

A family samples `Episodes` on the generator's device. Most families of the regression papers draw a function and
evaluate it on random inputs; `FunctionFamily` asks them for just these two things.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from iclbench.core.episodes import Episodes, Points
from iclbench.core.errors import DataChangedError, UnknownNameError
from iclbench.core.guard import guarded
from iclbench.core.settings import BaseSettings
from iclbench.core.task import TaskFacts
from iclbench.families.request import Request
from iclbench.families.sampling import normal
from iclbench.families.shifts import FUNCTION_KINDS, FunctionKind, Inputs, Kinds, Shift, repeated

Truth = dict[str, Tensor]

# The methods that draw episodes. They run in one known state of torch, in subclasses too.
_DRAWS = ("sample", "sample_all_related", "sample_prompts")


@dataclass(frozen=True)
class Evaluator:
    """A test that a family has of its own, on sequences made for it; accuracy is counted within `Episodes.choices`.

    Attributes:
        chance: the accuracy of guessing among the admitted labels.
        group_size: so many neighbouring episodes count as one, right only where all of them are.
        knows: what the right answer can be learnt from: the context, so that a method fitted to it sets the mark; only
            the weights; or either of them, where the test tells which of two answers is given and neither is better.
    """

    chance: float
    group_size: int = 1
    knows: Literal["context", "weights", "either"] = "context"


@dataclass(frozen=True)
class Ceiling:
    """The mean log-likelihood per target of an oracle over all episodes that a family can draw, and its standard
    error."""

    value: float
    error: float


class Family(ABC):
    """A distribution over episodes.

    Attributes:
        Parameters: what a task card may fix about it.
        y_dim: output dimensions (regression).
        classes: number of classes, None for regression.
        marks: number of marks of a family of events (`iclbench.core.events`), None for all others.
        time_unit: what the times of a user's events are divided by before a model reads them.
        starts_with_event: whether a user's sequence is observed from its first event on, which then is no event.
        x_shape: how to unfold `x` into an image, None where it is a plain vector.
        shift_kinds: the shifts it can be evaluated under besides `points-N`, by name; see `iclbench.families.shifts`.
        linear_in_x: whether every function is w·x, so that gradient descent on w is a method for it.
        questions: what its episodes can ask.
        data_parameters: the parameters that name the images which episodes are made of; results name them too.
        learned: what a run stores of its training data (`learn`); empty: it is computed from the data.
        related_sets: the largest number of related datasets of an episode.
        related_points: points of the largest of them; 0: not known.
        oracles: baselines that are Bayes-optimal for what this very class draws, without a shift. A class that derives
            from it draws something else, and vouches for its own alone (`vouches_for`).
    """

    Parameters: ClassVar[type[BaseSettings]]
    y_dim: int = 1
    classes: int | None = None
    marks: int | None = None
    time_unit: float = 1.0
    starts_with_event: bool = False
    x_shape: tuple[int, ...] | None = None
    shift_kinds: ClassVar[Kinds] = {}
    linear_in_x: ClassVar[bool] = False
    questions: ClassVar[frozenset[str]] = frozenset({"next"})
    data_parameters: ClassVar[tuple[str, ...]] = ()
    learned: Mapping[str, Any] = {}
    related_sets: int = 0
    related_points: int = 0
    oracles: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def vouches_for(cls, baseline: str) -> bool:
        """Whether a baseline that a card names its oracle is one for this family, by its own word; a card may name
        any."""
        return baseline in cls.__dict__.get("oracles", ())

    def __init__(self, parameters: Any, data_dir: Path | None = None) -> None:
        self.parameters = parameters
        self.data_dir = data_dir

    @property
    @abstractmethod
    def x_dim(self) -> int:
        """Dimension of the inputs."""

    @property
    def normaliser(self) -> float:
        """What errors are divided by: the variance of the noiseless output under the training distribution."""
        return 1.0

    @property
    def fingerprint(self) -> str:
        """Hash of the data files that episodes are drawn from; empty where everything comes from the generator."""
        return ""

    @property
    def training_fingerprint(self) -> str:
        """Hash of the data that training draws from, also of the family to evaluate on."""
        return self.fingerprint

    @property
    def most_prompts(self) -> int | None:
        """How many different episodes there are to evaluate on, if each is drawn complete; None: unlimited.
        Prompt sets have no more, since an episode that comes twice makes nothing surer."""
        return None

    @property
    def needs_data(self) -> bool:
        """Whether episodes are drawn from files of the user's, below `data_dir`."""
        return False

    def learn(self) -> dict[str, Any]:
        """What training takes from the data, in plain values: the `fingerprint`, and units, moments and numbers of
        marks where a family computes such. A run stores it and never computes it again. Empty for a family that needs
        no data.

        Raises:
            DataError: the data cannot be read.
        """
        return {"fingerprint": self.training_fingerprint} if self.needs_data else {}

    def files(self) -> dict[str, str]:
        """The parameters with `Role.LOCATION`, resolved so that they name the same files from any folder."""
        return {}

    def check_data(self, learned: Mapping[str, Any] | None = None) -> None:
        """Raise `DataChangedError` where the data are not those that a run has `learned` from; None: this family's."""
        fingerprint = (self.learned if learned is None else learned).get("fingerprint")
        if fingerprint is not None and fingerprint != self.training_fingerprint:
            raise DataChangedError(str(fingerprint), self.training_fingerprint)

    @property
    def trained_data(self) -> str | None:
        """Fingerprint of the data that the run was trained on, where the data are others; None: they are the same."""
        fingerprint = self.learned.get("fingerprint")
        return None if fingerprint is None or fingerprint == self.training_fingerprint else str(fingerprint)

    @classmethod
    def known_shift(cls, name: str) -> Shift:
        """The named shift, if families of this class can be evaluated under it; all families have `none` and
        `points-N`.

        Raises:
            UsageError: it has no such kind, and those it has are listed; or parts do not combine.
        """
        return Shift.parse(name, cls.shift_kinds)

    def parse_shift(self, name: str) -> Shift:
        """The named shift, if a family with these parameters can be evaluated under it.

        Raises:
            UsageError: as `known_shift`; or a number does not fit.
        """
        return self.known_shift(name)

    def noise_to_signal(self, shift: str = "none") -> float:
        """Label noise variance over the prior variance of a weight: the Bayes-optimal ridge penalty where functions are
        linear in x, or on the features in which they are."""
        return 0.0

    def keeps_oracle(self, oracle: str, shift: str) -> bool:
        """Whether a baseline that is Bayes-optimal for the task, with access to the shift, is so under it."""
        return True

    @property
    def hidden_width(self) -> int:
        """Width for the two-layer network baseline: that of the task's own networks, 100 where it has none."""
        return 100

    def facts(self, shift: str = "none") -> TaskFacts:
        """What estimators may know of the task in addition to the points."""
        return TaskFacts(self.noise_to_signal(shift), self.hidden_width, self, shift, self.classes, self.marks)

    def held_out(self) -> Family:
        """The family to evaluate on: its data kept from training; itself where every episode is drawn afresh."""
        return self

    def validation(self) -> Family:
        """The family to choose learning rates on: no data of its prompts, which choose nothing; itself where every
        episode is drawn afresh, and by default where it has data, those that are trained on. A family that keeps
        nothing for its prompts either (`held_out`), as `tabular`, chooses on the rows that these are made of."""
        return self

    def evaluators(self) -> dict[str, Evaluator]:
        """The tests that this family has besides being asked about further episodes of its own, by name."""
        return {}

    def check_test(self, evaluator: str) -> None:
        """Raise `UsageError` when there is no such test, or the parameters leave nothing to put it with."""
        if evaluator not in self.evaluators():
            raise UnknownNameError("evaluator", evaluator, self.evaluators())

    def sample_test(self, evaluator: str, episodes: int, generator: torch.Generator) -> Episodes:
        """Episodes of one of the `evaluators`; a family that has some writes this.

        Raises:
            UsageError: see `check_test`.
        """
        self.check_test(evaluator)
        raise NotImplementedError(
            f"{type(self).__name__} names the evaluator '{evaluator}' and does not write sample_test"
        )

    def ceiling(self, oracle: str, points: int, shift: str = "none") -> Ceiling | None:
        """What an oracle scores on average over all episodes with contexts of up to so many points, where it was
        computed; that of a frozen prompt set strays from it."""
        return None

    def strata(self, episodes: Episodes) -> dict[str, Bool[Tensor, " B"]]:
        """Named parts of these episodes that are also reported separately (by the truth)."""
        return {}

    def display_inputs(self) -> Float[Tensor, "points Dx"] | None:
        """Inputs at which predictions are drawn in a report: a grid, the pixels of an image; None: none are drawn. The
        values of the function there, where they are known, are `truth["display"]`, `(B, points, Dy)`."""
        return None

    def features(self, x: Float[Tensor, "N Dx"]) -> Float[Tensor, "N features"] | None:
        """The features in which every function of the family is linear, where it has such and they are known."""
        return None

    def feature_directions(self) -> Float[Tensor, "features Dx"] | None:
        """Unit vectors u: feature j depends on u_j·x alone. Features are drawn along them."""
        return None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in _DRAWS:
            if inspect.isfunction(method := vars(cls).get(name)):
                setattr(cls, name, guarded(method))

    @abstractmethod
    def sample(self, request: Request) -> Episodes:
        """Draw episodes."""

    @guarded
    def sample_all_related(self, request: Request) -> Episodes:
        """Episodes with the largest number of related datasets, with which costs are measured."""
        return self.sample(replace(request, related=self.related_sets or None))

    @guarded
    def sample_prompts(self, request: Request) -> Episodes:
        """Frozen episodes to evaluate on, with the largest number of related datasets. A family of several kinds of
        functions may draw them stratified: every mean over them has the expectation that it has over free draws, and
        a smaller error."""
        return self.sample_all_related(request)


class FunctionParameters(BaseSettings):
    """Parameters that all function classes share."""

    dim: Annotated[int, Field(gt=0, le=10_000)] = 20


class FunctionFamily(Family):
    """y = f(x) + noise with f drawn per episode and x ~ N(0, I) unless the family says otherwise."""

    Parameters = FunctionParameters
    shift_kinds: ClassVar[Mapping[str, FunctionKind]] = FUNCTION_KINDS

    @classmethod
    def counts_vary(cls, parameters: Any, points: int) -> bool:
        return False

    @property
    def x_dim(self) -> int:
        return int(self.parameters.dim)

    @property
    def noise(self) -> float:
        """Standard deviation of the label noise."""
        return 0.0

    @property
    def weight_variance(self) -> float:
        """Prior variance of one weight, where the function is linear in x or in `features`; what the noise-to-signal
        ratio is made of."""
        return 1.0

    def noise_to_signal(self, shift: str = "none") -> float:
        parsed = self.parse_shift(shift)
        noise, scale = parsed.value("noisy", self.noise), parsed.value("weight-scale", 1.0)
        return noise**2 / (self.weight_variance * scale**2)

    def keeps_oracle(self, oracle: str, shift: str) -> bool:
        """Not where a query repeats a point with its noise: then that point's own label is right."""
        parsed = self.parse_shift(shift)
        return parsed.part("repeated-query") is None or not parsed.value("noisy", self.noise)

    def inputs(self, episodes: int, points: int, generator: torch.Generator) -> Float[Tensor, "B N Dx"]:
        """Inputs of the training distribution; what belongs to the episode (a rotation) is drawn here."""
        return normal((episodes, points, self.x_dim), generator)

    @abstractmethod
    def draw(self, episodes: int, generator: torch.Generator, active_dims: int | None = None) -> Truth:
        """One function per episode; `active_dims` says which inputs a curriculum has reached, the others are 0."""

    @abstractmethod
    def apply(self, truth: Truth, x: Float[Tensor, "B N Dx"]) -> Float[Tensor, "B N"]:
        """The noiseless outputs."""

    def sample(self, request: Request) -> Episodes:
        episodes, points, generator = request.episodes, request.points, request.generator
        shift = self.parse_shift(request.shift)
        # The functions are drawn first, so that a shift meets the same ones as the task itself.
        truth = self.draw(episodes, generator, request.active_dims)
        kinds = [(self.shift_kinds[part.kind], part.value) for part in shift.parts if part.kind in self.shift_kinds]
        if any(kind.isotropic for kind, _ in kinds):
            inputs = Inputs(normal((episodes, points, self.x_dim), generator))
        else:
            inputs = Inputs(self.inputs(episodes, points, generator))
        for kind, value in kinds:
            if kind.place is not None:
                inputs = kind.place(inputs, value, generator)
        x, queries, defined = inputs.truncate(request.active_dims)
        noise, scale = shift.value("noisy", self.noise), shift.value("weight-scale", 1.0)
        context = self.observe(truth, x, generator, noise, scale)
        targets = None
        if shift.part("repeated-query"):
            targets, defined = repeated(context, generator)
        elif queries is not None:
            targets = self.observe(truth, queries, generator, noise, scale)
        scored = context.mask if defined is None else defined
        return Episodes(context=context, scored=scored, targets=targets, truth=truth)

    def observe(
        self, truth: Truth, x: Float[Tensor, "B N Dx"], generator: torch.Generator, noise: float, scale: float = 1.0
    ) -> Points:
        """Points with labels: `scale` times the function, plus noise of the given standard deviation."""
        y = scale * self.apply(truth, x)
        if noise:
            y = y + noise * normal(y.shape, generator)
        return Points.full(x, y.unsqueeze(-1))
