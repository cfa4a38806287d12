"""The columns of a stream's answers, compared with SciPy."""

import numpy as np
import torch
from scipy.stats import norm

from iclbench.backbones.base import TaskShape
from iclbench.core.predictions import Categorical, Gaussian, Point
from iclbench.streaming.answers import answer_column_names


def test_column_names_depend_on_the_prediction() -> None:
    def column_names(**changes: object) -> str:
        return ",".join(answer_column_names(TaskShape(x_dim=2, points=9, **changes)))

    assert column_names(head="point", y_dim=2) == "mean1,mean2"
    assert column_names(head="gaussian") == column_names(head="mixture") == "mean1,std1,low1,high1"
    assert column_names(head="categorical", classes=3) == "label,p0,p1,p2"


def test_a_gaussian_answer_has_the_central_90_percent_interval() -> None:
    mean, std = torch.randn(1, 4, 2).double(), torch.rand(1, 4, 2).double() + 0.1
    columns = Gaussian(mean, std).columns()
    low, high = norm.interval(0.9, mean.numpy(), std.numpy())
    np.testing.assert_allclose(columns["low"].numpy(), low, rtol=1e-12)
    np.testing.assert_allclose(columns["high"].numpy(), high, rtol=1e-12)
    assert torch.equal(columns["mean"], mean) and torch.equal(columns["std"], std)
    assert list(Point(mean).columns()) == ["mean"]


def test_a_categorical_answer_has_the_most_probable_class_and_all_probabilities() -> None:
    columns = Categorical(torch.tensor([[[0.0, 2.0, 1.0]]])).columns()
    assert columns["label"].item() == 1
    np.testing.assert_allclose(columns["p"].sum(), 1, rtol=1e-6)
