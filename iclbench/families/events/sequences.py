"""Event sequences from the user's files: prediction of the time and mark of the next event.

A file contains many sequences; `iclbench.families.events.readers` describes the formats. As in the released code of
Meta TPP (Bae et al. 2023), an episode consists of the first `points` events of one sequence, with padding after shorter
sequences. Three fifths of the sequences are training data, one fifth is used to choose learning rates, and one fifth is
used for evaluation. Training draws sequences with replacement. Prompts are the sequences in a fixed random order; no
sequence is repeated before all have been used.

The following parameters affect results and are recorded in every run:

- `ties`: real clocks have finite steps, so events can have the same time. A density at a gap of 0 has no upper limit.
  Published code adds a number to every gap (Meta TPP 1e-12, neural flows 1e-8) or sets a minimum (Shchur et al. 2020:
  1e-10), and the reported likelihoods depend on that number. The Wikipedia sequences of Shchur et al. lack the events
  of the JODIE file that have the time of the previous event; `keep-first` removes the same events. By default, such
  events are refused, and the error names the first one.
- `start`: the observation starts at time 0 of the file, or at the first event of a sequence, which then does not count
  as an event. The parameter is required if first events are so late that times look like dates
  (`_MAX_FIRST_GAP_RATIO`).
- `time_scale`: the unit of time. Log-likelihoods change by its logarithm, and errors of times are in this unit.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

import torch
from jaxtyping import Int
from pydantic import Field
from torch import Tensor

from iclbench.core.episodes import Episodes, Points
from iclbench.core.errors import DataError, UnknownNameError
from iclbench.core.seeds import generator as stream
from iclbench.core.settings import BaseSettings, PositiveFloat, PositiveInt, Role, SeedInt
from iclbench.core.task import TaskFacts
from iclbench.families.base import Family
from iclbench.families.events.event_data import MAX_MARKS, EventData
from iclbench.families.events.packed import PackedSequences
from iclbench.families.events.readers import SUFFIXES, read_events
from iclbench.families.request import Request

Part = Literal["train", "validation", "test"]
# Shares of the training and validation sequences; the other sequences are evaluated.
_TRAINING_SHARE, _VALIDATION_SHARE = 0.6, 0.2
# Smallest number of sequences. With fewer sequences, the training, validation or evaluation part would be empty.
_MIN_SEQUENCES = 5
# The largest allowed ratio of the median first gap to the median gap between events.
_MAX_FIRST_GAP_RATIO = 1000


class EventParameters(BaseSettings):
    """Parameters of a file of sequences, in a card or as `-o task.KEY=VALUE`.

    Attributes:
        path: a name in the folder `events` of the data folder, or a path relative to the current folder (default: the
            only file in `events`).
        format: `npz`, `jsonl` or `csv` (default: by suffix).
        times: whether the times of an `.npz` file are gaps or absolute; required if they look absolute.
        marks: number of marks K (default: the number in the file).
        start: start of the observation of a sequence: time 0 (`zero`), or its first event, which then does not count as
            an event and whose mark is not used (`first`). By default it is time 0, and late first events are refused.
        ties: treatment of events at the same time; see `EventData.resolve_ties`.
        split: order in which sequences are divided into training, validation and evaluation parts: a random order
            (`seeded`) or, as in the released code of Meta TPP, the order of the file (`file`).
        split_seed: seed of the random order of sequences and of the order of prompts.
        time_scale: divisor of times; `mean-gap` is the mean gap of the training sequences.
        max_events: longer sequences are split into windows of at most this number of events, each observed from the
            last event of the window before (default: no windows; an episode has only the first events of a sequence).
    """

    path: Annotated[str, Field(max_length=4096, pattern=r"^[^\x00-\x1f]*$"), Role.LOCATION] = ""
    format: Literal["npz", "jsonl", "csv"] | None = None
    times: Literal["gaps", "absolute"] | None = None
    marks: Annotated[int, Field(ge=1, le=MAX_MARKS)] | None = None
    start: Literal["zero", "first"] | None = None
    ties: Literal["refuse", "keep-first", "spread"] = "refuse"
    split: Literal["seeded", "file"] = "seeded"
    split_seed: SeedInt = 0
    time_scale: PositiveFloat | Literal["mean-gap"] = 1.0
    max_events: PositiveInt | None = None


class Events(Family):
    """Event sequences of a file. An episode is the beginning of one sequence; all sequences are equally likely.

    Args:
        parameters: see `EventParameters`.
        data_dir: the folder that contains `events/`.

    Raises:
        DataError: on first use, if the file is missing or cannot be read as sequences.
    """

    Parameters = EventParameters
    y_dim = 3
    data_parameters: ClassVar[tuple[str, ...]] = ("path", "time_scale")
    parameters: EventParameters

    def __init__(self, parameters: EventParameters, data_dir: Path | None = None) -> None:
        super().__init__(parameters, data_dir)
        self._part: Part = "train"
        self._cache: dict[str, Any] = {}  # shared with the families of the other parts

    def held_out(self) -> Events:
        """Return the same task on the evaluation sequences. Both families share the loaded data."""
        return self._with_part("test")

    def validation(self) -> Events:
        """Return the same task on the validation sequences, which are used neither for training nor for prompts."""
        return self._with_part("validation")

    def _with_part(self, part: Part) -> Events:
        family = copy.copy(self)
        family._part = part
        return family

    @property
    def x_dim(self) -> int:
        return 0

    @property
    def marks(self) -> int:  # type: ignore[override]
        """Number of marks K, from the first available source: the parameters, the training data or the file."""
        return self.parameters.marks or self.learned.get("marks") or self.file.mark_count

    @property
    def max_prompts(self) -> int:
        return len(self._sequences(self._part))

    @property
    def needs_data(self) -> bool:
        return True

    @property
    def fingerprint(self) -> str:
        return self.file.fingerprint

    def learn(self) -> dict[str, Any]:
        return super().learn() | {"marks": self.file.mark_count, "time_unit": self.time_unit}

    def files(self) -> dict[str, str]:
        """Return the file: its name if it is in the folder `events` of the data folder, otherwise its absolute path."""
        path, folder = self._path, None if self.data_dir is None else self.data_dir / "events"
        return {"path": path.name if folder is not None and path.parent == folder else str(path.absolute())}

    @property
    def _path(self) -> Path:
        if "path" not in self._cache:
            self._cache["path"] = _find_file(self.data_dir, self.parameters.path)
        path: Path = self._cache["path"]
        return path

    @property
    def file(self) -> EventData:
        """The unprocessed sequences of the file."""
        if "file" not in self._cache:
            parameters = self.parameters
            self._cache["file"] = read_events(self._path, parameters.format, parameters.marks, parameters.times)
        return self._cache["file"]

    def _sequences(self, part: Part) -> EventData:
        """Return the sequences of a part, with times in the units of the file."""
        if part not in self._cache:
            data = self.file
            if data.mark_count > self.marks:
                raise DataError(
                    f"{self._path} has {data.mark_count} marks, but the run was trained on {self.marks}; use a file "
                    "with fewer marks",
                    code="not-applicable",
                )
            if self.parameters.start == "first":
                data = data.from_first_event()
            data = data.resolve_ties(self.parameters.ties)
            if self.parameters.start is None:
                data.check_start(_MAX_FIRST_GAP_RATIO)
            if len(data) < _MIN_SEQUENCES:
                raise DataError(
                    f"{self._path}: expected at least {_MIN_SEQUENCES} sequences with events to split into parts, got "
                    f"{len(data)}; use a file with more sequences"
                )
            training_end = int(_TRAINING_SHARE * len(data))
            validation_end = training_end + int(_VALIDATION_SHARE * len(data))
            order = torch.arange(len(data))
            if self.parameters.split == "seeded":
                order = torch.randperm(len(data), generator=stream(self.parameters.split_seed, "split"))
            for name, numbers in zip(get_args(Part), order.tensor_split([training_end, validation_end]), strict=True):
                sequences = data.select(numbers.numpy())
                if not len(sequences.gaps):
                    raise DataError(
                        f"{self._cache['path']}: the {len(sequences)} sequence(s) of the part '{name}' have no "
                        "events; use a file with more events, or another -o task.split_seed"
                    )
                self._cache[name] = (
                    sequences.windows(self.parameters.max_events) if self.parameters.max_events else sequences
                )
        return self._cache[part]

    @property
    def starts_with_event(self) -> bool:  # type: ignore[override]
        return self.parameters.start == "first"

    def facts(self, shift: str = "none") -> TaskFacts:
        """Return the facts with the mean gaps of the training sequences, in the unit of the episodes."""
        training, unit = self._sequences("train"), self.time_unit
        return replace(
            super().facts(shift), mean_gap=training.mean_gap / unit, mean_first_gap=training.mean_first_gap / unit
        )

    @property
    def time_unit(self) -> float:  # type: ignore[override]
        time_scale = self.parameters.time_scale
        if time_scale != "mean-gap":
            return time_scale
        return float(self.learned.get("time_unit") or self._sequences("train").gaps.mean())

    def _packed_sequences(self, device: torch.device) -> PackedSequences:
        key = f"packed {self._part}"
        if key not in self._cache:
            self._cache[key] = PackedSequences.of(self._sequences(self._part), self.time_unit)
        device_key = f"{key} {device}"
        if device_key not in self._cache:
            self._cache[device_key] = self._cache[key].to(device)
        return self._cache[device_key]

    def sample(self, request: Request) -> Episodes:
        """Draw sequences with replacement."""
        packed, device = self._packed_sequences(request.generator.device), request.generator.device
        sequences = torch.randint(len(packed), (request.episodes,), generator=request.generator, device=device)
        return self._episodes(packed, sequences, request)

    def sample_prompts(self, request: Request) -> Episodes:
        """Return the next sequences in a fixed random order, after those of earlier requests."""
        packed, device = self._packed_sequences(request.generator.device), request.generator.device
        order = torch.randperm(len(packed), generator=stream(self.parameters.split_seed, "prompts")).to(device)
        sequences = order[(request.before + torch.arange(request.episodes, device=device)) % len(packed)]
        return self._episodes(packed, sequences, request)

    def _episodes(self, packed: PackedSequences, sequences: Int[Tensor, " B"], request: Request) -> Episodes:
        self.parse_shift(request.shift)
        y, valid, is_event = packed.first_points(sequences, request.points)
        x = torch.zeros(*valid.shape, 0, device=y.device)
        truth = {"sequence": packed.sequence_number[sequences], "event": packed.first_event_number[sequences]}
        return Episodes(context=Points(x, y, valid), scored=is_event, truth=truth)


def _find_file(data_dir: Path | None, name: str) -> Path:
    """Return the file of this name in the folder `events` of the data folder or, if it does not exist, the file at this
    path. Without a name, return the only file in `events`."""
    advice = "pass the path of your sequences (.npz, .jsonl or .csv): -o task.path=my.jsonl"
    folder = None if data_dir is None else data_dir / "events"
    if name:
        # The folder `events` comes first, so that cards work in every current folder.
        for path in ([folder / name] if folder else []) + [Path(name)]:
            if path.exists():
                return path
    try:
        candidates = sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES) if folder else []
    except OSError:
        candidates = []
    if name:
        location = f"in {folder} or the current folder" if folder else "in the current folder"
        if candidates:
            raise UnknownNameError("file of sequences", name, [p.name for p in candidates], hint=f"({location})")
        advice = advice.replace("pass the path of your sequences", "or pass the path of another file")
        if Path(name).is_absolute():
            raise DataError(f"no file '{name}'; {advice.removeprefix('or ')}", code="missing-file")
        raise DataError(
            f"no file '{name}' {location}; put it into 'events' below --data-dir or ICLBENCH_DATA, {advice}",
            code="missing-file",
        )
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise DataError(
            f"{folder} has {len(candidates)} files; {advice.replace('my.jsonl', candidates[0].name)}",
            code="missing-value",
        )
    raise DataError(f"the events family reads your sequences; {advice}", code="missing-value")
