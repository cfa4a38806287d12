"""Heads: the classes of predictions that a task card selects by name."""

from __future__ import annotations

from iclbench.core.bar import Bar
from iclbench.core.events import LogNormalEvent
from iclbench.core.predictions import Categorical, Gaussian, Mixture, Point, Prediction

HEADS: dict[str, type[Prediction]] = {
    "point": Point,
    "gaussian": Gaussian,
    "mixture": Mixture,
    "bar": Bar,
    "categorical": Categorical,
    "event": LogNormalEvent,
}
