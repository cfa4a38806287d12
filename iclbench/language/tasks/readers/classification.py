"""Reader of labelled texts: SST, MR, TREC and AG News in their public layouts, and JSON Lines.

The reader looks for the public files of a data set, then for `NAME.train.jsonl` and `NAME.test.jsonl` (optionally with
`NAME.dev.jsonl`), then for a single file `NAME.jsonl`. It searches the folders `classification`,
`language/classification`, `.` and `language` of the data folder, in this order. With `layout = "jsonl"`, it first
searches the folder of the card.

A single file is split with a fixed seed. A tenth of its texts, but at least 400, are queries, and the same number are
development examples. Queries are limited to half of all texts, and development examples to a quarter.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from iclbench.core.errors import DataError
from iclbench.core.settings import BaseSettings
from iclbench.language.tasks.pools import Example, Pool, Reader, fixed_shuffle, unique
from iclbench.language.tasks.readers import files
from iclbench.language.tasks.readers.labelled import RowsOf, json_lines, prefixed_labels, title_and_description

Split = Literal["train", "test", "dev", "all"]


@dataclass(frozen=True)
class Layout:
    """The names and the format of the files of a data set.

    Attributes:
        rows: reads the rows of one file.
        files: names of the files, by split.
        optional: splits whose files may be missing.
    """

    rows: RowsOf
    files: dict[Split, str]
    optional: tuple[Split, ...] = ()


class ClassificationParameters(BaseSettings):
    """Parameters of the reader `classification`.

    Attributes:
        layout: name of the data set, which determines its public files.
        file: name of JSON Lines files, without `.jsonl` or `.train.jsonl` (default: the name of the layout).
    """

    layout: Literal["sst2", "sst5", "mr", "trec", "ag-news", "jsonl"]
    file: str = ""


class Classification(Reader):
    """Reads labelled texts. The candidates are the words in the card's `labels` or, if the card has no labels, the
    names of the classes in the data."""

    Parameters = ClassificationParameters
    needs_data = True

    def read(self, subset: str | None = None) -> Pool:
        layout, paths = self._find_files()
        rows = {split: [(path, *row) for row in layout.rows(path)] for split, path in paths.items()}
        for split, split_rows in rows.items():
            if not split_rows:
                raise DataError(f"{paths[split]} holds no labelled texts")
        labels = self.labels or _labels_in([row for split_rows in rows.values() for row in split_rows])
        splits = {split: tuple(_example(row, labels) for row in split_rows) for split, split_rows in rows.items()}
        candidates = tuple(dict.fromkeys(labels.values()))
        if "all" in splits:
            return _split(unique(splits["all"]), candidates, paths["all"])
        return Pool(unique(splits["train"]), splits["test"], candidates, unique(splits.get("dev", ())))

    def _find_files(self) -> tuple[Layout, dict[Split, Path]]:
        """Return the first layout whose required files exist, and the paths of its files."""
        name = self.parameters.file or self.parameters.layout
        layouts = [
            *PUBLIC_LAYOUTS.get(self.parameters.layout, ()),
            Layout(
                json_lines,
                {"train": f"{name}.train.jsonl", "test": f"{name}.test.jsonl", "dev": f"{name}.dev.jsonl"},
                ("dev",),
            ),
            Layout(json_lines, {"all": f"{name}.jsonl"}),
        ]
        task_folder = [self.folder] if self.folder and self.parameters.layout == "jsonl" else []
        folders = [*task_folder, *files.folders(self.data_dir, "classification")]
        problem = ""
        for layout in layouts:
            for folder in folders:
                paths = {split: folder / file for split, file in layout.files.items() if (folder / file).is_file()}
                missing = [file for split, file in layout.files.items() if split not in {*paths, *layout.optional}]
                if not missing:
                    return layout, paths
                if paths and not problem:
                    problem = f"'{missing[0]}' is missing next to {next(iter(paths.values()))}"
        if problem:
            raise DataError(f"{problem}; {files.ADVICE}", code="missing-data")
        public_files = layouts[0].files if self.parameters.layout in PUBLIC_LAYOUTS else {}
        public_names = ", ".join(f"'{file}'" for file in public_files.values())
        json_names = f"'{name}.jsonl' or '{name}.train.jsonl' and '{name}.test.jsonl'"
        raise files.missing(f"{public_names} (or {json_names})" if public_names else json_names, folders)


def _labels_in(rows: list[tuple[Path, int, str, str]]) -> dict[str, str]:
    """Return the labels in these rows. The word of a label in the prompt is the label itself."""
    labels, path = sorted({label for *_, label in rows}), rows[0][0]
    if len(labels) < 2:
        raise DataError(f"{path}: expected at least two different labels, got only '{labels[0]}'")
    if 2 * len(labels) > len(rows):
        raise DataError(
            f"{path}: {len(labels)} distinct labels for {len(rows)} texts are too many for candidates; for generated "
            "answers, give pairs in a .json file"
        )
    return {label: label for label in labels}


def _example(row: tuple[Path, int, str, str], labels: dict[str, str]) -> Example:
    path, number, text, label = row
    word = labels.get(label, label if label in labels.values() else None)
    if word is None:
        raise DataError(f"{path}, line {number}: unknown label '{label}'; known: {', '.join(labels)}")
    return Example(text, word)


def _split(examples: tuple[Example, ...], labels: tuple[str, ...], path: Path) -> Pool:
    """Split the examples of a single file into demonstrations, queries and development examples."""
    count = len(examples)
    if count < 4:
        raise DataError(f"{path}: {count} distinct texts, expected at least 4 for queries and demonstrations")
    size = max(400, count // 10)
    n_queries, n_development = min(size, count // 2), min(size, count // 4)
    shuffled = fixed_shuffle(examples, "language-split")
    return Pool(
        shuffled[n_queries + n_development :],
        shuffled[:n_queries],
        labels,
        shuffled[n_queries : n_queries + n_development],
    )


_POLARITY = ("negative", "positive")
_STARS = ("very negative", "negative", "neutral", "positive", "very positive")
_TREC = ("DESC", "ENTY", "ABBR", "HUM", "LOC", "NUM")
_AG_NEWS = ("World", "Sports", "Business", "Sci/Tech")

# For a long time, the test split of SST-2 was only available without labels, so papers (including Deep-Thinking) report
# results on the development split. We do the same and use the test split as development data.
PUBLIC_LAYOUTS: dict[str, tuple[Layout, ...]] = {
    "sst2": (
        Layout(
            prefixed_labels(_POLARITY),
            {"train": "stsa.binary.train", "test": "stsa.binary.dev", "dev": "stsa.binary.test"},
        ),
    ),
    "sst5": (
        Layout(prefixed_labels(_STARS), {"train": "stsa.fine.train", "test": "stsa.fine.test", "dev": "stsa.fine.dev"}),
    ),
    "mr": (Layout(prefixed_labels(_POLARITY), {"all": "rt-polarity.all"}),),
    "trec": (
        Layout(prefixed_labels(_TREC), {"train": "TREC.train.all", "test": "TREC.test.all"}),
        Layout(prefixed_labels(), {"train": "train_5500.label", "test": "TREC_10.label"}),
    ),
    "ag-news": tuple(
        Layout(title_and_description(_AG_NEWS), {"train": f"{folder}train.csv", "test": f"{folder}test.csv"})
        for folder in ("ag_news_csv/", "ag_news/", "ag-news/", "")
    ),
}
