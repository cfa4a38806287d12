"""Completed images: what was observed, what was predicted from it, and how sure the prediction is.

As figures 5 and 14 of the ICICL-TNP paper (arXiv 2406.13493): unobserved pixels are blue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float, UInt8

from iclbench.core.png import encode
from iclbench.report.blocks import Gallery, Picture
from iclbench.report.drawn_episodes import Shown

_UNSEEN = (0x2B, 0x5C, 0xB8)
# Shorter sides are enlarged to at least so many pixels, because browsers and printers smooth small pictures.
_SIDE = 84
CAPTION = (
    "Blue: unobserved pixels; below each predicted mean: the width of the central 90 % interval (white: the widest of "
    "the episode)."
)


@dataclass(frozen=True)
class _Grid:
    """Where the pixels lie: the values of both coordinates, in order; and the range of grey or colour."""

    rows: np.ndarray
    columns: np.ndarray
    outputs: int
    black: float
    white: float

    def unfold(self, points: pd.DataFrame, column: str = "value") -> Float[np.ndarray, "height width outputs"]:
        """The points as an image; NaN where there is none."""
        image = np.full((len(self.rows), len(self.columns), self.outputs), np.nan)
        at = _index(self.rows, points["x1"]), _index(self.columns, points["x2"]), points["output"].to_numpy(int)
        image[at] = points[column].to_numpy(float, na_value=np.nan)
        return image

    def picture(self, points: pd.DataFrame, alt: str) -> Picture:
        return Picture(_png((self.unfold(points) - self.black) / (self.white - self.black)), alt)

    def width(self, points: pd.DataFrame, widest: float, alt: str) -> Picture:
        return Picture(_png((self.unfold(points, "high") - self.unfold(points, "low")) / widest), alt)


def gallery(
    name: str, title: str, caption: str, episodes: Mapping[str, pd.DataFrame], shown: Sequence[Shown]
) -> Gallery:
    """Two rows per episode: means and widths. Columns: the image, its context, one related dataset, contestants.

    Args:
        name: of the gallery.
        title: of the gallery.
        caption: what comes before the legend of colours.
        episodes: per row title the examples of one episode.
        shown: contestants, and their numbers of related datasets.
    """
    grid = _grid(pd.concat(episodes.values()))
    related = any((rows["role"] == "related").any() for rows in episodes.values())
    given = ("image", "context", *(["first related"] if related else []))
    rows: list[tuple[str, tuple[Picture | None, ...]]] = []
    for label, examples in episodes.items():
        known = examples[examples["role"].isin(["context", "target", "function"])]
        seen = [
            grid.picture(known, f"{label}: the image"),
            grid.picture(examples[examples["role"] == "context"], f"{label}: its observed pixels"),
        ]
        if related:
            first = examples[(examples["role"] == "related") & (examples["set"] == 0)]
            seen.append(grid.picture(first, f"{label}: the first related dataset"))
        answers = {one: _answer(examples, one) for one in shown}
        rows.append((label, (*seen, *(_mean(grid, points, label, one) for one, points in answers.items()))))
        widest = max((float((p["high"] - p["low"]).max()) for p in answers.values() if _banded(p)), default=0.0)
        if widest > 0:
            widths = tuple(
                grid.width(p, widest, f"{label}: width of the interval of {one.title}") if _banded(p) else None
                for one, p in answers.items()
            )
            rows.append((f"{label}, width", (*[None] * len(given), *widths)))
    return Gallery(name, title, f"{caption} {CAPTION}", (*given, *(one.title for one in shown)), tuple(rows))


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


def _index(places: np.ndarray, coordinate: pd.Series) -> np.ndarray:
    """The nearest place: coordinates have gone through another number format in between."""
    between = (places[1:] + places[:-1]) / 2
    return np.searchsorted(between, coordinate.to_numpy(float))


def _answer(examples: pd.DataFrame, shown: Shown) -> pd.DataFrame:
    own = examples[(examples["role"] == "predicted") & (examples["contestant"] == shown.contestant)]
    return own[own["n_related"].fillna(0) == shown.n_related]


def _banded(points: pd.DataFrame) -> bool:
    return len(points) > 0 and bool(points["low"].notna().all())


def _mean(grid: _Grid, points: pd.DataFrame, label: str, shown: Shown) -> Picture | None:
    return grid.picture(points, f"{label}: mean predicted by {shown.title}") if len(points) else None


def _png(image: Float[np.ndarray, "height width outputs"]) -> bytes:
    """Shares of white as an enlarged colour PNG; what is NaN is blue."""
    there = np.isfinite(image).all(-1)
    level = np.rint(255 * np.clip(np.nan_to_num(image), 0, 1)).astype(np.uint8)
    colour: UInt8[np.ndarray, "height width 3"] = np.broadcast_to(level, (*there.shape, 3)).copy()
    colour[~there] = _UNSEEN
    times = max(1, -(-_SIDE // min(there.shape)))
    return encode(colour.repeat(times, 0).repeat(times, 1))
