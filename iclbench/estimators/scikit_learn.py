"""Estimators from classes with scikit-learn's interface (`fit`, `predict`, `predict_proba`).

A card or `--baseline` names the class as `package.module:Class`. The settings of the card are the arguments of its
constructor. A table with the key `class` in these settings becomes an object. In this example, `XGBRegressor` is fitted
to each context with the best settings of a grid search:

    estimator = "sklearn.model_selection:GridSearchCV"

    [settings]
    estimator = { class = "xgboost:XGBRegressor", n_estimators = 50 }
    param_grid = { max_depth = [2, 4], learning_rate = [0.1, 0.3] }

If the card does not set them, `random_state` is the seed of the evaluation, and the number of threads is one.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import ConfigDict
from torch import Tensor

from iclbench.core import trust
from iclbench.core.episodes import Points
from iclbench.core.errors import UnknownNameError, UsageError, error_text
from iclbench.core.predictions import Categorical, Gaussian, Point, Prediction
from iclbench.core.settings import BaseSettings
from iclbench.core.task import TaskFacts
from iclbench.estimators.base import FittedPredictor, move_valid_first
from iclbench.estimators.library_fits import fit_classes, fit_values
from iclbench.estimators.workers import map_episodes
from iclbench.registry import Entry

# The key that marks a table as an object.
_CLASS = "class"
# Default arguments of constructors, which the card can override: use one thread, and do not write files.
_DEFAULT_ARGUMENTS = {"n_jobs": 1, "thread_count": 1, "allow_writing_files": False}


class ModelSettings(BaseSettings):
    """The arguments of a constructor, which the class itself validates."""

    model_config = ConfigDict(extra="allow")


class ScikitLearn(FittedPredictor[ModelSettings], abstract=True):
    """A class with scikit-learn's interface, fitted on each context.

    Classes without `predict_proba` give the predicted class a probability of 0.99. Regressors whose `predict` has the
    argument `return_std` predict Gaussians.

    Attributes:
        model_class: the class.
        target: name of the class, `package.module:Class`.
        distribution: the installed package that contains the class; its version identifies the code. Empty for a user's
            own module, which is identified by its source.

    Raises:
        UsageError: the class does not accept a setting, or the points of the task are not rows of features.
    """

    Settings = ModelSettings
    order = "causal"  # fits may depend on the order of the points
    model_class: ClassVar[type]
    target: ClassVar[str]
    distribution: ClassVar[str] = ""

    def __init__(self, settings: ModelSettings | None = None, facts: TaskFacts | None = None, seed: int = 0) -> None:
        super().__init__(settings, facts, seed)
        family = self.facts.family
        if family is not None and (family.is_stream or family.marks is not None or family.x_shape is not None):
            points = "images" if family.x_shape is not None else "elements of a stream"
            raise UsageError(f"'{self.target}' needs rows of features; this task has {points}", code="not-applicable")
        self.model = _build(self.model_class, self.target, self.settings.model_dump(), seed)
        if len(self.heads) > 1:  # the head depends on the settings, for example on the model inside a search
            self.heads = _heads(_kind(self.model), self.model)  # type: ignore[misc]

    def _predict_prefixes(
        self, points: Points, is_unmasked: bool, lengths: Int[Tensor, "#B P"], queries: Float[Tensor, "B P Q Dx"]
    ) -> Prediction:
        has_labels = not points.y.is_floating_point()
        self._check_outputs(has_labels)
        points = points if is_unmasked or points.count == 0 else move_valid_first(points)
        x, query = (t.double().cpu().numpy() for t in (points.x, queries))
        rows = lengths.expand(len(points), -1).cpu().numpy()
        if has_labels:
            labels = points.y.cpu().numpy()
            assert self.facts.classes is not None
            logits = self._fit(fit_classes, x, labels, rows, query, self.facts.classes)
            return Categorical(torch.from_numpy(logits).to(queries))
        outputs = points.y.double().cpu().numpy()
        with_std = _predicts_std(self.model)
        answers = [self._fit(fit_values, x, outputs[..., i], rows, query, with_std) for i in range(outputs.shape[-1])]
        means, stds = (torch.from_numpy(np.stack([a[..., i] for a in answers], -1)).to(queries) for i in (0, 1))
        return Gaussian(means, stds) if with_std else Point(means)

    def _check_outputs(self, has_labels: bool) -> None:
        if has_labels and self.facts.classes is None:
            raise UsageError(f"'{self.target}' needs the number of classes of the task", code="not-applicable")
        is_classifier = _kind(self.model) == "classifier"
        if is_classifier != has_labels:
            predicted, required = ("class labels", "numbers") if is_classifier else ("numbers", "class labels")
            raise UsageError(
                f"'{self.target}' predicts {predicted}; this task requires {required}", code="not-applicable"
            )

    def _fit(
        self, function: Any, x: np.ndarray, y: np.ndarray, lengths: np.ndarray, queries: np.ndarray, option: Any
    ) -> np.ndarray:
        """Return the answers of all episodes.

        If the remaining episodes are expected to take a long time, they run in worker processes. The expected
        time is that of the second episode times the number of remaining ones; the first one also imports modules.
        """
        jobs = [(self.model, *episode, option) for episode in zip(x, y, lengths, queries, strict=True)]
        answers = [function(*job) for job in jobs[:1]]
        start = time.perf_counter()
        answers += [function(*job) for job in jobs[1:2]]
        seconds = (time.perf_counter() - start) * (len(jobs) - 2)
        answers += map_episodes(function, jobs[2:], seconds)
        return (
            np.stack(answers) if answers else np.zeros((0, *queries.shape[1:3], option if y.dtype.kind == "i" else 2))
        )


@cache
def as_estimator(cls: Any, target: str) -> Any:
    """Wrap a class with scikit-learn's interface as an estimator, and return any other class unchanged.

    Args:
        cls: the class.
        target: name of the class, `package.module:Class`.
    """
    if not isinstance(cls, type) or issubclass(cls, FittedPredictor) or not _has_interface(cls):
        return cls
    heads = _heads(_kind(cls), cls)
    distribution = _distribution(cls)
    members = {
        "__doc__": f"`{target}`, fitted on each context.",
        "model_class": cls,
        "target": target,
        "heads": heads,
        "distribution": distribution,
        "libraries": (distribution,) if distribution else (),
    }
    return type(cls.__name__, (ScikitLearn,), members)


def _heads(kind: str, model: Any) -> tuple[str, ...]:
    """Return the heads of a class or model of this kind; `point` and `categorical` if the kind is unknown."""
    if kind == "regressor":
        return ("gaussian",) if _predicts_std(model) else ("point",)
    return ("categorical",) if kind == "classifier" else ("point", "categorical")


def _has_interface(cls: type) -> bool:
    return callable(getattr(cls, "fit", None)) and (hasattr(cls, "predict") or hasattr(cls, "predict_proba"))


def _kind(model: Any) -> str:
    """Return "classifier" or "regressor" for a class or model; empty for classes that wrap either, such as searches."""
    from sklearn.base import ClassifierMixin, MetaEstimatorMixin, RegressorMixin, is_classifier

    if not isinstance(model, type):
        try:
            return "classifier" if is_classifier(model) else "regressor"
        except (AttributeError, TypeError):  # the class does not inherit from scikit-learn's base classes
            return _kind(type(model))
    if issubclass(model, ClassifierMixin):
        return "classifier"
    if issubclass(model, RegressorMixin):
        return "regressor"
    declared = getattr(model, "_estimator_type", None)
    if declared in ("classifier", "regressor"):
        return str(declared)
    if issubclass(model, MetaEstimatorMixin) or hasattr(model, "steps") or model.__name__ == "Pipeline":
        return ""
    return "classifier" if hasattr(model, "predict_proba") else "regressor"


def _predicts_std(model: Any) -> bool:
    predict = getattr(model, "predict", None)
    try:
        return predict is not None and "return_std" in inspect.signature(predict).parameters
    except (TypeError, ValueError):
        return False


def _distribution(cls: type) -> str:
    """Return the name of the installed package that contains a class.

    The name is empty for a user's own module or an editable installation.
    """
    module = sys.modules[cls.__module__]
    file = getattr(module, "__file__", None) or getattr(sys.modules[cls.__module__.partition(".")[0]], "__file__", "")
    if not {"site-packages", "dist-packages"} & {*Path(file or "").parts}:
        return ""
    return next(iter(packages_distributions().get(cls.__module__.partition(".")[0], ())), "")


def _build(cls: type, target: str, settings: Mapping[str, Any], seed: int) -> Any:
    """Create the model with these settings and with the default arguments for the seed and the number of threads."""
    names, accepts_other_names = _argument_names(cls)
    arguments = {key: _value(value, seed) for key, value in settings.items()}
    if not accepts_other_names:
        for key in arguments:
            if key not in names:
                unknown = UnknownNameError("setting", key, names)
                raise UsageError(f"'{target}': {unknown}", code=unknown.code)
    additions = {key: value for key, value in (_DEFAULT_ARGUMENTS | {"random_state": seed}).items() if key in names}
    if "thread_count" in names:  # the class is from CatBoost, which prints its progress by default
        additions.update(verbose=False)
        additions.pop("n_jobs", None)
    try:
        return cls(**(additions | arguments))
    except Exception as error:  # the class may raise anything
        raise UsageError(f"'{target}': {error_text(error)}", code="bad-value") from error


def _value(value: Any, seed: int) -> Any:
    """Return a setting with each table that has the key `class` replaced by an object."""
    if isinstance(value, list | tuple):
        return [_value(item, seed) for item in value]
    if not isinstance(value, Mapping):
        return value
    if _CLASS not in value:
        return {key: _value(item, seed) for key, item in value.items()}
    target = str(value[_CLASS])
    trust.require(target)
    cls = Entry(target, package=trust.package_of(target)).load()
    return _build(cls, target, {key: item for key, item in value.items() if key != _CLASS}, seed)


def _argument_names(cls: type) -> tuple[list[str], bool]:
    """Return the names of a constructor's arguments, and whether it accepts arguments with other names."""
    parameters = inspect.signature(cls).parameters.values()
    accepts_other_names = any(p.kind == p.VAR_KEYWORD for p in parameters)
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if (collect := getattr(cls, "_get_param_names", None)) is not None:
        names += [name for name in collect() if name not in names]
    return names, accepts_other_names
