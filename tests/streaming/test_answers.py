"""Answers as columns, against SciPy."""

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.stats import norm

from iclbench.backbones.base import TaskShape
from iclbench.core.predictions import Categorical, Gaussian, Mixture, Point
from iclbench.streaming.answers import answer_columns, heading, quantile


def test_names_of_the_columns() -> None:
    def named(**changes: object) -> str:
        return ",".join(heading(TaskShape(x_dim=2, points=9, **changes)))

    assert named(head="point", y_dim=2) == "mean1,mean2"
    assert named(head="gaussian") == named(head="mixture") == "mean1,std1,low1,high1"
    assert named(head="categorical", classes=3) == "label,p0,p1,p2"


def test_a_gaussian_has_its_central_90_percent() -> None:
    mean, std = torch.randn(1, 4, 2).double(), torch.rand(1, 4, 2).double() + 0.1
    columns = answer_columns(Gaussian(mean, std))
    low, high = norm.interval(0.9, mean.numpy(), std.numpy())
    np.testing.assert_allclose(columns["low"].numpy(), low, rtol=1e-12)
    np.testing.assert_allclose(columns["high"].numpy(), high, rtol=1e-12)
    assert torch.equal(columns["mean"], mean) and torch.equal(columns["std"], std)
    assert list(answer_columns(Point(mean))) == ["mean"]


def test_quantiles_of_a_mixture_by_root_finding() -> None:
    torch.manual_seed(0)
    logits, means, stds = torch.randn(1, 2, 3), 3 * torch.randn(1, 2, 3, 1), torch.rand(1, 2, 3, 1) + 0.01
    mixture = Mixture(*(t.double() for t in (logits, means, stds)))
    for level in (0.05, 0.5, 0.95):
        found = quantile(mixture, level)
        for q in range(2):
            w, m, s = (t[0, q].numpy().reshape(-1) for t in (mixture.logits.softmax(-1), mixture.means, mixture.stds))
            root = brentq(lambda y, w=w, m=m, s=s, level=level: w @ norm.cdf(y, m, s) - level, -100, 100, xtol=1e-13)
            np.testing.assert_allclose(found[0, q, 0].item(), root, rtol=1e-10, atol=1e-10)


def test_the_likeliest_class_and_all_probabilities() -> None:
    columns = answer_columns(Categorical(torch.tensor([[[0.0, 2.0, 1.0]]])))
    assert columns["label"].item() == 1
    np.testing.assert_allclose(columns["p"].sum(), 1, rtol=1e-6)
