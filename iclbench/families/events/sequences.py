"""The user's own event sequences: does a model predict when the next event of a sequence comes, and with what mark?

A file holds many sequences, and one episode is one of them from its beginning on, as in the released code of Meta TPP
(Bae et al. 2023): its first events, as many as an episode has points, or all of them and padding. Formats are those of
`iclbench.families.events.readers`. Three fifths of the sequences are trained on, a fifth chooses learning rates, a
fifth is evaluated on; no sequence is in two parts. Training draws sequences with replacement, prompts are the sequences
one after the other in a fixed random order, each once as long as there are enough.

Choices that results depend on are parameters, and are recorded in every run:

- `ties`: real clocks have steps, so that events share a time, and a density at a gap of 0 can be made as large as one
  likes. Public code adds a number to every gap (Meta TPP 1e-12, neural flows 1e-8) or makes it at least so large
  (Shchur et al. 2020: 1e-10), and its likelihoods depend on that number. The Wikipedia sequences that Shchur et al.
  made from a file of JODIE lack its events at the time of the one before: `keep-first` does the same. The default is to
  refuse such events and to say where the first one is.
- `start`: the observation starts at time 0 of the file, or with a sequence's first event, which is not an event then.
  Where first events come so late that times look like dates (`_LATE`), one of both must be typed.
- `time_scale`: the unit of time. Log-likelihoods move by its logarithm, errors are multiples of it.
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
from iclbench.families.events.event_data import MOST_MARKS, EventData
from iclbench.families.events.packed import Packed
from iclbench.families.events.readers import SUFFIXES, read_events
from iclbench.families.request import Request

Part = Literal["train", "validation", "test"]
# Shares of the sequences; the rest is evaluated on.
_TRAINED, _CHOOSING = 0.6, 0.2
# Fewer sequences leave a part empty.
_FEWEST = 5
# Median first gap, in median gaps between events, from which on times seem to count from elsewhere.
_LATE = 1000


class EventParameters(BaseSettings):
    """What a card or `-o task.KEY=VALUE` says of a file of sequences.

    Attributes:
        path: the file: a name in the folder `events` of the data folder, or a path from the current folder; empty: the
            only file in that folder.
        format: `npz`, `jsonl` or `csv`, where the suffix does not say it.
        times: whether the times of an `.npz` are gaps or absolute, where they look absolute.
        marks: number of marks K; None: as many as the file has.
        start: where a sequence's observation starts: at time 0 (`zero`) or with its first event, which is not an event
            then and whose mark is not read (`first`); None: at time 0, and times that seem to count from elsewhere are
            refused.
        ties: what becomes of events at one time, see `EventData.settled`.
        split: `seeded`: by a random order of the sequences; `file`: the first three fifths are trained on, the next
            fifth chooses, as the released code of Meta TPP has it.
        split_seed: of the random order, and of the order in which prompts are taken.
        time_scale: what times are divided by; `mean-gap`: the mean gap of the sequences trained on.
        max_events: longer sequences are cut into consecutive ones of at most so many events, each observed from the
            last event of the one before on; None: they are not cut, and an episode has their beginning.
    """

    path: Annotated[str, Field(max_length=4096, pattern=r"^[^\x00-\x1f]*$"), Role.LOCATION] = ""
    format: Literal["npz", "jsonl", "csv"] | None = None
    times: Literal["gaps", "absolute"] | None = None
    marks: Annotated[int, Field(ge=1, le=MOST_MARKS)] | None = None
    start: Literal["zero", "first"] | None = None
    ties: Literal["refuse", "keep-first", "spread"] = "refuse"
    split: Literal["seeded", "file"] = "seeded"
    split_seed: SeedInt = 0
    time_scale: PositiveFloat | Literal["mean-gap"] = 1.0
    max_events: PositiveInt | None = None


class Events(Family):
    """Each episode is the beginning of one sequence of the file, all sequences of a part equally likely.

    Args:
        parameters: see `EventParameters`.
        data_dir: the folder that holds `events/`.

    Raises:
        DataError: on first use, when the file is not there or cannot be read as sequences.
    """

    Parameters = EventParameters
    y_dim = 3
    data_parameters: ClassVar[tuple[str, ...]] = ("path", "time_scale")
    parameters: EventParameters

    def __init__(self, parameters: EventParameters, data_dir: Path | None = None) -> None:
        super().__init__(parameters, data_dir)
        self._part: Part = "train"
        self._shared: dict[str, Any] = {}  # with the families of the other parts

    def held_out(self) -> Events:
        """The same task on the sequences that are never trained on; what is loaded is shared."""
        return self._with_part("test")

    def validation(self) -> Events:
        """The same task on the sequences that neither training nor prompts have."""
        return self._with_part("validation")

    def _with_part(self, part: Part) -> Events:
        events = copy.copy(self)
        events._part = part
        return events

    @property
    def x_dim(self) -> int:
        return 0

    @property
    def marks(self) -> int:  # type: ignore[override]
        """Number of marks K: that of the parameters, of the training data, or of the file."""
        return self.parameters.marks or self.learned.get("marks") or self.file.kinds

    @property
    def most_prompts(self) -> int:
        return len(self._sequences(self._part))

    @property
    def needs_data(self) -> bool:
        return True

    @property
    def fingerprint(self) -> str:
        return self.file.fingerprint

    def learn(self) -> dict[str, Any]:
        return super().learn() | {"marks": self.file.kinds, "time_unit": self.time_unit}

    def files(self) -> dict[str, str]:
        """A file of the data folder by its name, any other by its absolute path."""
        path, folder = self._path, None if self.data_dir is None else self.data_dir / "events"
        return {"path": path.name if folder is not None and path.parent == folder else str(path.absolute())}

    @property
    def _path(self) -> Path:
        if "path" not in self._shared:
            self._shared["path"] = _find_file(self.data_dir, self.parameters.path)
        path: Path = self._shared["path"]
        return path

    @property
    def file(self) -> EventData:
        """The sequences as they are in the file."""
        if "file" not in self._shared:
            parameters = self.parameters
            self._shared["file"] = read_events(self._path, parameters.format, parameters.marks, parameters.times)
        return self._shared["file"]

    def _sequences(self, part: Part) -> EventData:
        """The sequences of one part, in the units of the file, in the order in which prompts take them."""
        if part not in self._shared:
            data = self.file
            if data.kinds > self.marks:
                raise DataError(f"{self._path} has {data.kinds} marks, the run was trained on {self.marks}")
            if self.parameters.start == "first":
                data = data.from_first_event()
            data = data.settled(self.parameters.ties)
            if self.parameters.start is None:
                data.check_start(_LATE)
            if len(data) < _FEWEST:
                raise DataError(
                    f"{self._path}: {len(data)} sequence(s) with events, fewer than the {_FEWEST} that make "
                    "parts to train, to choose and to evaluate on; give a file with more"
                )
            training_end = int(_TRAINED * len(data))
            choosing_end = training_end + int(_CHOOSING * len(data))
            order = torch.arange(len(data))
            if self.parameters.split == "seeded":
                order = torch.randperm(len(data), generator=stream(self.parameters.split_seed, "split"))
            for name, numbers in zip(get_args(Part), order.tensor_split([training_end, choosing_end]), strict=True):
                sequences = data.part(numbers.numpy())
                if not len(sequences.gaps):
                    raise DataError(
                        f"{self._shared['path']}: none of the {len(sequences)} sequence(s) of the part '{name}' has an "
                        "event; give a file with more events, or another -o task.split_seed"
                    )
                self._shared[name] = (
                    sequences.windows(self.parameters.max_events) if self.parameters.max_events else sequences
                )
        return self._shared[part]

    @property
    def starts_with_event(self) -> bool:  # type: ignore[override]
        return self.parameters.start == "first"

    def facts(self, shift: str = "none") -> TaskFacts:
        """With the mean gaps of the sequences trained on, in the unit of the episodes."""
        trained, unit = self._sequences("train"), self.time_unit
        return replace(
            super().facts(shift), mean_gap=trained.mean_gap / unit, mean_first_gap=trained.mean_first_gap / unit
        )

    @property
    def time_unit(self) -> float:  # type: ignore[override]
        time_scale = self.parameters.time_scale
        if time_scale != "mean-gap":
            return time_scale
        return float(self.learned.get("time_unit") or self._sequences("train").gaps.mean())

    def _packed(self, device: torch.device) -> Packed:
        key = f"packed {self._part}"
        if key not in self._shared:
            self._shared[key] = Packed.of(self._sequences(self._part), self.time_unit)
        on_device = f"{key} {device}"
        if on_device not in self._shared:
            self._shared[on_device] = self._shared[key].to(device)
        return self._shared[on_device]

    def sample(self, request: Request) -> Episodes:
        """Sequences drawn with replacement."""
        packed, device = self._packed(request.generator.device), request.generator.device
        numbers = torch.randint(len(packed), (request.episodes,), generator=request.generator, device=device)
        return self._episodes(packed, numbers, request)

    def sample_prompts(self, request: Request) -> Episodes:
        """Sequences one after the other in a fixed random order, behind those of the blocks before."""
        packed, device = self._packed(request.generator.device), request.generator.device
        order = torch.randperm(len(packed), generator=stream(self.parameters.split_seed, "prompts")).to(device)
        numbers = order[(request.before + torch.arange(request.episodes, device=device)) % len(packed)]
        return self._episodes(packed, numbers, request)

    def _episodes(self, packed: Packed, numbers: Int[Tensor, " B"], request: Request) -> Episodes:
        self.parse_shift(request.shift)
        y, valid, events = packed.beginnings(numbers, request.points)
        x = torch.zeros(*valid.shape, 0, device=y.device)
        truth = {"sequence": packed.sequence[numbers], "event": packed.event[numbers]}
        return Episodes(context=Points(x, y, valid), scored=events, truth=truth)


def _find_file(data_dir: Path | None, name: str) -> Path:
    """The file of this name in the data folder or, where there is none, at this path; without a name the only file in
    the data folder."""
    advice = "name the file of your sequences (.npz, .jsonl or .csv): -o task.path=my.jsonl"
    folder = None if data_dir is None else data_dir / "events"
    if name:
        # Below the data folder first: there a card's file is found wherever the command is typed.
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
        advice = advice.replace("name the file of your sequences", "or name another file")
        if Path(name).is_absolute():
            raise DataError(f"no file '{name}'; {advice.removeprefix('or ')}")
        raise DataError(
            f"no file '{name}' {location}; put it into 'events' below --data-dir or ICLBENCH_DATA, {advice}"
        )
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise DataError(f"{folder} holds {len(candidates)} files; {advice.replace('my.jsonl', candidates[0].name)}")
    raise DataError(f"the events family reads sequences of your own; {advice}")
