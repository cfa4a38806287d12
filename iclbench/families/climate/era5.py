"""Temperatures of ERA5 over central Europe from the user's netCDF files (ICICL-TNP, section 5.3 and appendix G.3).

The files contain one year of WFDE5 (`iclbench.families.climate.wfde5`), the dataset that the paper cites for ERA5.
Patches, sizes and inputs are defined in `iclbench.families.climate.patches`. As in the paper, the patches of an episode
do not overlap in time. Episodes for training are from January to June and those for evaluation from July to December;
learning rates are chosen on episodes from January to June.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from iclbench.core.hashing import data_fingerprint
from iclbench.core.settings import Role
from iclbench.families.climate.patches import GridIndices, Patches, PatchParameters
from iclbench.families.climate.region import YEAR, steps_until
from iclbench.families.climate.wfde5 import load_region


class ERA5Parameters(PatchParameters):
    """Parameters of the patches and location of the files.

    Attributes:
        year: the year of the files.
        path: the folder of the files: a name in the data folder or a path relative to the current folder.
    """

    year: Annotated[int, Field(ge=1979, le=2100)] = YEAR
    path: Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f]*$"), Role.LOCATION] = "era5"


class ERA5(Patches):
    """Patches of temperatures from files.

    Args:
        parameters: see `ERA5Parameters`.
        data_dir: the data folder.

    Raises:
        DataError: on first use of the data; see `iclbench.families.climate.wfde5.load_region`.
    """

    Parameters = ERA5Parameters
    data_parameters: ClassVar[tuple[str, ...]] = ("year",)
    parameters: ERA5Parameters

    def __init__(self, parameters: ERA5Parameters, data_dir: Path | None = None) -> None:
        super().__init__(parameters, data_dir)
        self._data_by_device: dict[Any, Tensor] = {}  # shared by the families of both halves of the year

    @property
    def year(self) -> int:
        return self.parameters.year

    @property
    def needs_data(self) -> bool:
        return True

    @cached_property
    def fingerprint(self) -> str:
        return data_fingerprint(self._data("cpu").numpy().tobytes())

    def files(self) -> dict[str, str]:
        """Return the folder: unchanged if it is relative to the data folder, otherwise as an absolute path."""
        path, folder = Path(self.parameters.path), self._folder
        return {"path": self.parameters.path if folder != path else str(path.absolute())}

    @property
    def min_separation(self) -> int:
        return self.parameters.times

    @property
    def elevation(self) -> Float[Tensor, "22 40"]:
        return self._data("cpu")[0]

    @property
    def y_moments(self) -> tuple[float, float]:
        training_half = self._data("cpu")[1 : 1 + steps_until(7, self.year)].double()
        on_land = training_half[:, self.elevation.isfinite()]
        return float(on_land.mean()), float(on_land.std(correction=0))

    def temperatures(
        self, grid_indices: GridIndices, coordinates: Float[Tensor, "B S P 4"], generator: torch.Generator
    ) -> tuple[Float[Tensor, "B S P"], dict[str, Tensor]]:
        kelvin = self._data(generator.device)[1 + grid_indices.step, grid_indices.row, grid_indices.column]
        return kelvin.double().flatten(2), {}

    def _data(self, device: torch.device | str) -> Float[Tensor, "fields 22 40"]:
        """Return the elevation, followed by the temperatures at every step of the year."""
        if "cpu" not in self._data_by_device:
            self._data_by_device["cpu"] = torch.from_numpy(load_region(self._folder, self.year))
        if str(device) not in self._data_by_device:
            self._data_by_device[str(device)] = self._data_by_device["cpu"].to(device)
        return self._data_by_device[str(device)]

    @property
    def _folder(self) -> Path:
        """The folder `path` in the data folder, or in the current folder if it exists only there."""
        path = Path(self.parameters.path)
        in_data_dir = path if self.data_dir is None else self.data_dir / path
        return path if path.is_dir() and not in_data_dir.is_dir() else in_data_dir
