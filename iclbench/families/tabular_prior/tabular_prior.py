"""Synthetic tables: the prior on which in-context learners for tables are trained (TabPFN).

Every episode is a table with a new function. The rows of the table are the points of the episode, so models of
sequences and of sets can read them. The default prior mixes these kinds of tables:

| kind | share | columns and target |
| --- | --- | --- |
| `scm` | 35 % | hidden units of a random network, a structural causal model (`networks`) |
| `bnn` | 35 % | inputs and output of a random network, a Bayesian neural network (`networks`) |
| `trees` | 30 % | the same with ensembles of trees, half of them causal (`trees`) |

A fourth kind, `gp`, is used only if it is selected. Its functions are samples from a Gaussian process with a discrete
prior over hyperparameters (`gaussian_process`), so `oracle-gp-prior` is Bayes-optimal. Its inputs are N(0, 1)
before standardisation. Its tables have no categorical columns and no missing cells, and its targets are not
standardised. Every kind is also a shift, which evaluates a model on a prior that differs from its training prior.

Inputs are the columns of the table (`columns`): a table uses 1 to `dim` of them, 20 % of the columns are categorical,
and some have missing cells. Inputs are standardised over all rows of the table, since the inputs of targets are known.
Targets are standardised, or cut into at most `classes` classes, with the statistics of further rows (`labels`):
statistics of the table's own targets would reveal the last target.

With `rescale`, the used columns are multiplied by `dim` and divided by their number, so that the expected sum of
absolute input values does not depend on this number. The first TabPFN does this, because it embeds all columns with one
linear layer. A model that ignores empty columns does not need this scale, and a user's table would have to be scaled in
the same way, so `rescale` is off by default.

The ranges of hyperparameters come from the released code of the first TabPFN (Hollmann et al. 2023, arXiv 2207.01848).
The main differences from that code are:

- every table has its own hyperparameters and class cuts (in the code, groups of tables share them);
- values do not exceed the ranges, and layers, width, initial standard deviation and noise are log-uniform. In the code,
  the ranges limit means of truncated normal distributions; for layers, width and causes, these distributions are
  commented out, and gamma distributions are used;
- half of the tables have normal, categorical and Zipf causes with equal probability, and the latter two are
  standardised by their distribution (in the code, two thirds of the causes of such tables are normal on average,
  categorical causes are standardised by their sample, and Zipf variables are only centred; the training notebook of the
  code uses only normal causes);
- Gaussian processes are a separate kind (in the code, a small share of the tables);
- every layer (in the code, every network) has its own activation: identity, tanh or ReLU;
- weights have block-wise dropout or no dropout (in the code, block-wise or independent dropout), and the noise has one
  standard deviation per network (in the code, optionally one per unit);
- tree ensembles, which the code does not have, are oblivious trees as in the prior of nanoTabICL;
- targets and class cuts depend on further rows (in the code, on all rows of the table), and cuts are between two
  quantiles of these rows (in the code, at the values of any random rows, or at normal numbers). The code also
  compresses outliers and shuffles rows until context and targets have the same classes; this family does neither;
- 20 % of all columns are categorical (in the code, a random share of the columns of some tables);
- missing cells have indicator columns (in the code, a constant replaces missing values).

About a third of the tables of all kinds except `gp` are mostly noise, since functions with small weights are smaller
than the noise. The prior of nanoTabICL removes tables that extremely randomised trees cannot predict; this family does
not. The playground of tabular foundation models (TFM-Playground, snapshot of May 2026) loads data sampled from the
priors of TabPFN, TICL and TabICL.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, model_validator
from torch import Tensor

from iclbench.core import limits
from iclbench.core.episodes import Episodes, Points
from iclbench.core.settings import BaseSettings, PositiveFloat
from iclbench.families.base import Family
from iclbench.families.request import Request
from iclbench.families.sampling import normal
from iclbench.families.shifts import Kind
from iclbench.families.tabular_prior import gaussian_process, labels
from iclbench.families.tabular_prior.columns import Layout, inputs, standardised
from iclbench.families.tabular_prior.draws import chance, first, uniform
from iclbench.families.tabular_prior.networks import Networks, draw_networks
from iclbench.families.tabular_prior.trees import TreeTables, draw_trees

SCM, BNN, TREES, GP = range(4)
KINDS = ("scm", "bnn", "trees", "gp")

KIND_SHIFTS = {kind: Kind(("the kind of tables",)) for kind in KINDS}
Probability = Annotated[float, Field(ge=0, le=1)]


class TabularPriorParameters(BaseSettings):
    """Parameters of synthetic tables.

    Attributes:
        dim: number of input columns.
        classes: the largest number of classes; 0 for regression.
        kind: the kind of tables; `mix` is the default prior.
        trees: share of tree ensembles in `mix`.
        categorical: share of categorical columns.
        missing: share of tables that may have missing cells; each column of such a table has some with probability 1/2.
        rescale: whether used columns are multiplied by `dim` and divided by their number.
        lengthscales, noises: the hyperparameters of the kind `gp`; all pairs are equally likely.
    """

    dim: Annotated[int, Field(ge=1, le=100)] = 5
    classes: Annotated[int, Field(ge=0, le=100)] = 0
    kind: Literal["mix", "scm", "bnn", "trees", "gp"] = "mix"
    trees: Probability = 0.3
    categorical: Probability = 0.2
    missing: Probability = 0.2
    rescale: bool = False
    lengthscales: tuple[PositiveFloat, ...] = Field(default=(0.5, 1.0, 2.0, 4.0), strict=False, min_length=1)
    noises: tuple[PositiveFloat, ...] = Field(default=(0.1, 0.2, 0.4), strict=False, min_length=1)

    @model_validator(mode="after")
    def _check(self) -> TabularPriorParameters:
        if self.classes == 1:
            raise ValueError("classes: expected 0 for regression, or at least 2, got 1")
        for name in ("lengthscales", "noises"):
            if not all(1e-2 <= value <= 1e2 for value in getattr(self, name)):
                raise ValueError(f"{name}: expected numbers from 0.01 to 100")
        return self


class TabularPrior(Family):
    """Tables with a new function in every episode; the question is `next`.

    For each table, `truth` contains the kind (index in `KINDS`), the number of used columns (including indicators of
    missing cells), the number of columns with values, the number of classes (0 for regression), and the hyperparameters
    of the Gaussian process (0 for other kinds). For a given seed, networks and ensembles of trees do not depend on the
    number of points; rows, targets, categories and class cuts do.

    Errors are divided by 1, which is roughly the variance of standardised targets.
    """

    Parameters = TabularPriorParameters
    shift_kinds = KIND_SHIFTS
    oracles = frozenset({"oracle-gp", "oracle-gp-prior"})
    parameters: TabularPriorParameters

    def __init__(self, parameters: TabularPriorParameters, data_dir: Path | None = None) -> None:
        super().__init__(parameters, data_dir)
        self.classes = parameters.classes or None

    @property
    def x_dim(self) -> int:
        return self.parameters.dim

    def kind(self, shift: str = "none") -> str:
        """Return the kind of tables under a shift, or `mix`."""
        part = self.parse_shift(shift).part(*KINDS)
        return self.parameters.kind if part is None else part.kind

    def is_oracle_optimal(self, oracle: str, shift: str) -> bool:
        """Return whether an oracle is optimal under a shift. Both oracles are exact only for regression on Gaussian
        processes."""
        return self.kind(shift) == "gp" and self.classes is None

    def strata(self, episodes: Episodes) -> dict[str, Bool[Tensor, " B"]]:
        """Group tables by kind. The result is empty if all tables are of one kind."""
        kind = episodes.truth["kind"]
        masks = {name: kind == index for index, name in enumerate(KINDS)}
        return {name: mask for name, mask in masks.items() if mask.any()} if len(kind.unique()) > 1 else {}

    def sample(self, request: Request) -> Episodes:
        parameters, generator = self.parameters, request.generator
        limits.check(4 * request.episodes * request.points * (parameters.dim + 1), "the inputs of these tables need")
        kind = self._kinds(request.episodes, self.kind(request.shift), generator)
        is_process = kind == GP
        largest = min(parameters.dim, request.active_dims or parameters.dim)
        shares = parameters.categorical, parameters.missing
        layout = Layout.draw(is_process, parameters.dim, largest, *shares, generator)
        counts = torch.zeros_like(kind)
        if parameters.classes:
            counts = labels.class_counts(len(kind), parameters.classes, generator)
        lengthscale, noise = (torch.where(is_process, t, 0) for t in self._hyperparameters(len(kind), generator))
        truth = {
            "kind": kind,
            "used": layout.used,
            "columns": layout.columns,
            "classes": counts,
            "lengthscale": lengthscale,
            "noise": noise,
        }
        values, outputs, reference = self._rows(truth, request.points, generator)
        x = inputs(values, layout, generator)
        if parameters.rescale:
            x = x * (parameters.dim / layout.used).view(-1, 1, 1)
        if parameters.classes:
            y = labels.class_labels(outputs, reference, counts, parameters.classes, generator)
        else:
            standard = labels.standardised_targets(outputs, reference)
            y = torch.where(is_process.unsqueeze(1), outputs, standard).unsqueeze(2)
        context = Points.full(x, y)
        return Episodes(context=context, scored=context.mask, classes=self.classes, truth=truth)

    def _rows(
        self, truth: dict[str, Tensor], points: int, generator: torch.Generator
    ) -> tuple[Float[Tensor, "B N C"], Float[Tensor, "B N"], Float[Tensor, "B R"]]:
        """Sample the columns and outputs of the rows of tables, and the outputs of further rows, the reference rows.
        All networks and ensembles of trees are drawn before the first row."""
        kind, columns, dim = truth["kind"], truth["columns"], self.parameters.dim
        functions = self._functions(kind, columns, generator)
        values = torch.zeros((len(kind), points, dim), device=generator.device)
        outputs = torch.zeros((len(kind), points), device=generator.device)
        reference = torch.zeros((len(kind), labels.REFERENCE_ROWS), device=generator.device)
        for index, function in functions:
            x, y = function.sample(labels.REFERENCE_ROWS + points, generator)
            values[index] = x[:, labels.REFERENCE_ROWS :]
            reference[index], outputs[index] = y.split([labels.REFERENCE_ROWS, points], 1)
        process = (kind == GP).nonzero().squeeze(1)
        if len(process):
            limits.check(8 * points**2, "the covariance of the rows of a table needs")
            x = normal((len(process), points, dim), generator) * first(columns[process], dim).unsqueeze(1)
            values[process] = standardised(x, torch.ones_like(x, dtype=torch.bool))
            hyperparameters = columns[process], truth["lengthscale"][process], truth["noise"][process]
            outputs[process] = gaussian_process.sample_outputs(values[process], *hyperparameters, generator)
            reference[process] = normal((len(process), labels.REFERENCE_ROWS), generator)
        return values, outputs, reference

    def _kinds(self, tables: int, kind: str, generator: torch.Generator) -> Int[Tensor, " B"]:
        """Draw the kinds of tables."""
        is_tree = chance((tables,), self.parameters.trees, generator)
        network = torch.where(chance((tables,), 0.5, generator), SCM, BNN)
        return torch.where(is_tree, TREES, network) if kind == "mix" else torch.full_like(network, KINDS.index(kind))

    def _hyperparameters(
        self, tables: int, generator: torch.Generator
    ) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """Draw the lengthscales and noises of Gaussian processes."""
        hyperparameters = []
        for choices in (self.parameters.lengthscales, self.parameters.noises):
            values = torch.tensor(choices, dtype=torch.float64, device=generator.device)
            position = (len(choices) * uniform((tables,), generator)).long().clamp_max(len(choices) - 1)
            hyperparameters.append(values[position])
        return hyperparameters[0], hyperparameters[1]

    def _functions(
        self, kind: Int[Tensor, " B"], columns: Int[Tensor, " B"], generator: torch.Generator
    ) -> list[tuple[Int[Tensor, " G"], Networks | TreeTables]]:
        """Draw the networks and ensembles of tables, in groups, each with the indices of its tables."""
        is_causal = torch.where(kind == TREES, chance(tuple(kind.shape), 0.5, generator), kind == SCM)
        network, tree = ((kind < TREES).nonzero().squeeze(1), (kind == TREES).nonzero().squeeze(1))
        functions: list[tuple[Tensor, Networks | TreeTables]] = []
        if len(network):
            groups = draw_networks(is_causal[network], columns[network], self.parameters.dim, generator)
            functions += [(network[index], networks) for index, networks in groups]
        if len(tree):
            ensembles = draw_trees(is_causal[tree], columns[tree], self.parameters.dim, generator)
            functions += [(tree[index], trees) for index, trees in ensembles]
        return functions
