"""Parameters of bursty sequences and their validation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from iclbench.core.settings import BaseSettings, NonNegativeFloat, SeedInt
from iclbench.families.images.omniglot import ALL_CLASSES, DRAWINGS, SIZE

# Number of context images of every test: four of each of two classes.
TEST_CONTEXT = 8
_NAMED_LABELS = ("first", "rarest", "common", "random")


def _check_labels(value: object) -> object:
    is_pair = isinstance(value, list) and len(value) == 2 and all(type(v) is int for v in value)
    if value not in _NAMED_LABELS and not (is_pair and value[0] != value[1]):  # type: ignore[index]
        raise ValueError(f"expected {', '.join(_NAMED_LABELS)} or two different labels like [0, 1], got {value!r}")
    return value


class BurstyParameters(BaseSettings):
    """Parameters of bursty sequences.

    Attributes:
        glyphs: the characters, `procedural` or `omniglot`.
        image_size: height and width of an image in pixels.
        classes: number of classes, including the held-out and the common classes.
        holdout: number of held-out classes.
        common: number of common classes; all other training classes are rare.
        alpha: exponent of the Zipf weights of the training classes.
        p_bursty: probability that a training sequence is bursty.
        train_drawings: number of drawings of each class that are used in training.
        jitter: factor of the variation between drawings of a class (only for procedural glyphs).
        split_seed: seed that determines the rare, common and held-out classes and their labels.
        icl_labels: labels of the test `icl`: `first`, `rarest`, `common`, `random`, or a list of two labels.
        anchor_compat: whether sequences are sampled as in the code of Chan et al. and of CoQE.
    """

    glyphs: Literal["procedural", "omniglot"] = "procedural"
    image_size: Annotated[int, Field(ge=8, le=SIZE)] = 28
    classes: Annotated[int, Field(ge=2, le=10_000)] = ALL_CLASSES
    holdout: Annotated[int, Field(ge=2)] = 100
    common: Annotated[int, Field(ge=1)] = 10
    alpha: NonNegativeFloat = 0.0
    p_bursty: Annotated[float, Field(ge=0, le=1)] = 0.9
    train_drawings: Annotated[int, Field(ge=TEST_CONTEXT // 2 + 1, le=DRAWINGS)] = DRAWINGS
    jitter: NonNegativeFloat = 1.0
    split_seed: SeedInt = 0
    icl_labels: Annotated[
        Literal["first", "rarest", "common", "random"] | list[int], BeforeValidator(_check_labels)
    ] = "first"
    anchor_compat: bool = False

    @model_validator(mode="after")
    def _check_classes(self) -> BurstyParameters:
        rare = self.classes - self.holdout - self.common
        if rare < 2:
            raise ValueError(
                f"classes: expected at least 2 rare classes, got {max(rare, 0)} with {self.classes} classes, "
                f"{self.holdout} held out and {self.common} common; raise classes or lower holdout"
            )
        if self.glyphs == "omniglot" and self.classes > ALL_CLASSES:
            raise ValueError(f"classes: expected at most {ALL_CLASSES} for Omniglot, got {self.classes}")
        for label in self.icl_labels if isinstance(self.icl_labels, list) else ():
            if not 0 <= label < self.classes:
                raise ValueError(f"icl_labels: expected labels from 0 to {self.classes - 1}, got {label}")
        return self
