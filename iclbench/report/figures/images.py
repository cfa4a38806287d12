"""Galleries of completed images: observed pixels, predicted means, and widths of the predictive intervals.

Unobserved pixels are blue, as in figures 5 and 14 of the ICICL-TNP paper (arXiv 2406.13493).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float, UInt8

from iclbench.core.png import encode
from iclbench.report.blocks import Gallery, Picture
from iclbench.report.drawn_episodes import DrawnContestant

_UNOBSERVED = (0x2B, 0x5C, 0xB8)
# Smallest side of a picture in pixels; smaller images are enlarged, because browsers and printers would smooth them.
_SIDE = 84
CAPTION = (
    "Unobserved pixels are blue. The picture below each predicted mean shows the width of the central 90 % interval "
    "(white is the largest width in the episode)."
)


@dataclass(frozen=True)
class _Grid:
    """The pixels of an image.

    Attributes:
        rows: values of the first coordinate, ascending.
        columns: values of the second coordinate, ascending.
        outputs: number of channels.
        black: value of black.
        white: value of white.
    """

    rows: np.ndarray
    columns: np.ndarray
    outputs: int
    black: float
    white: float

    def unfold(self, points: pd.DataFrame, column: str = "value") -> Float[np.ndarray, "height width outputs"]:
        """The points as an image; NaN at pixels without a point."""
        image = np.full((len(self.rows), len(self.columns), self.outputs), np.nan)
        index = (
            _grid_indices(self.rows, points["x1"]),
            _grid_indices(self.columns, points["x2"]),
            points["output"].to_numpy(int),
        )
        image[index] = points[column].to_numpy(float, na_value=np.nan)
        return image

    def value_picture(self, points: pd.DataFrame, alt: str) -> Picture:
        return Picture(_png((self.unfold(points) - self.black) / (self.white - self.black)), alt)

    def width_picture(self, points: pd.DataFrame, widest: float, alt: str) -> Picture:
        return Picture(_png((self.unfold(points, "high") - self.unfold(points, "low")) / widest), alt)


def gallery(
    name: str,
    title: str,
    caption: str,
    episodes: Mapping[str, pd.DataFrame],
    contestants: Sequence[DrawnContestant],
) -> Gallery:
    """A gallery with two rows per episode (predicted means and widths of intervals), and with columns for the image,
    its context, one related dataset and the contestants.

    Args:
        name: name of the gallery.
        title: title of the gallery.
        caption: caption, to which a description of the colours is added.
        episodes: the examples of one episode for each row title.
        contestants: contestants in order.
    """
    grid = _grid(pd.concat(episodes.values()))
    has_related = any((rows["role"] == "related").any() for rows in episodes.values())
    data_titles = ("image", "context", *(["first related"] if has_related else []))
    rows: list[tuple[str, tuple[Picture | None, ...]]] = []
    for label, examples in episodes.items():
        pixels = examples[examples["role"].isin(["context", "target", "function"])]
        data_pictures = [
            grid.value_picture(pixels, f"{label}: the image"),
            grid.value_picture(examples[examples["role"] == "context"], f"{label}: its observed pixels"),
        ]
        if has_related:
            first_set = examples[(examples["role"] == "related") & (examples["set"] == 0)]
            data_pictures.append(grid.value_picture(first_set, f"{label}: the first related dataset"))
        predictions = {contestant: _prediction(examples, contestant) for contestant in contestants}
        means = (_mean_picture(grid, points, label, drawn) for drawn, points in predictions.items())
        rows.append((label, (*data_pictures, *means)))
        widest = max((float((p["high"] - p["low"]).max()) for p in predictions.values() if _has_band(p)), default=0.0)
        if widest > 0:
            widths = tuple(
                grid.width_picture(p, widest, f"{label}: width of the interval of {drawn.title}")
                if _has_band(p)
                else None
                for drawn, p in predictions.items()
            )
            rows.append((f"{label}, width", (*[None] * len(data_titles), *widths)))
    columns = (*data_titles, *(drawn.title for drawn in contestants))
    return Gallery(name, title, f"{caption} {CAPTION}", columns, tuple(rows))


def _grid(examples: pd.DataFrame) -> _Grid:
    inputs = examples[examples["role"] == "predicted"]
    truth = examples[examples["role"].isin(["context", "target"])]["value"]
    black, white = float(truth.min()), float(truth.max())
    return _Grid(
        np.unique(inputs["x1"].to_numpy(float)),
        np.unique(inputs["x2"].to_numpy(float)),
        int(examples["output"].max()) + 1,
        black,
        white if white > black else black + 1.0,
    )


def _grid_indices(grid_values: np.ndarray, coordinate: pd.Series) -> np.ndarray:
    """The index of the grid value nearest to each coordinate, since equal coordinates may differ by rounding."""
    midpoints = (grid_values[1:] + grid_values[:-1]) / 2
    return np.searchsorted(midpoints, coordinate.to_numpy(float))


def _prediction(examples: pd.DataFrame, drawn: DrawnContestant) -> pd.DataFrame:
    rows = examples[(examples["role"] == "predicted") & (examples["contestant"] == drawn.contestant)]
    return rows[rows["n_related"].fillna(0) == drawn.n_related]


def _has_band(points: pd.DataFrame) -> bool:
    return len(points) > 0 and bool(points["low"].notna().all())


def _mean_picture(grid: _Grid, points: pd.DataFrame, label: str, drawn: DrawnContestant) -> Picture | None:
    return grid.value_picture(points, f"{label}: mean predicted by {drawn.title}") if len(points) else None


def _png(image: Float[np.ndarray, "height width outputs"]) -> bytes:
    """An enlarged colour PNG of values between 0 (black) and 1 (white); NaN is blue."""
    is_observed = np.isfinite(image).all(-1)
    level = np.rint(255 * np.clip(np.nan_to_num(image), 0, 1)).astype(np.uint8)
    colour: UInt8[np.ndarray, "height width 3"] = np.broadcast_to(level, (*is_observed.shape, 3)).copy()
    colour[~is_observed] = _UNOBSERVED
    factor = max(1, -(-_SIDE // min(is_observed.shape)))
    return encode(colour.repeat(factor, 0).repeat(factor, 1))
