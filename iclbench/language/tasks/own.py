"""A user's own data as a task: a mapping (`.json`) or labelled texts (`.jsonl`) without a card."""

from __future__ import annotations

from pathlib import Path

from iclbench.config.cards import card_name, names
from iclbench.core.errors import DataError
from iclbench.language.tasks.cards import LanguageCard, LanguageTask


def own_task(path: Path) -> LanguageTask:
    """The task that a file stands for; its name is that of the file.

    `pairs.json` (see `readers.mapping`) is written and asked like our mapping tasks. `reviews.jsonl`, lines of `text`
    and `label`, or the two files `reviews.train.jsonl` and `reviews.test.jsonl` (either name stands for both), is a
    choice among its labels after eight demonstrations. For other templates write a card.

    Raises:
        DataError: there is no such file, or its name belongs to one of our own cards.
    """
    if not path.is_file():
        raise DataError(f"cannot read {path}: no such file")
    stem = path.name.removesuffix(path.suffix)
    if path.suffix == ".jsonl":
        for split in (".train", ".test", ".dev"):
            stem = stem.removesuffix(split)
    name = card_name(Path(stem + ".toml"))
    if name in names("tasks/language"):
        raise DataError(f"{path}: '{name}' is the name of a task that comes with iclbench; give the file another name")
    card = _pairs(path.name) if path.suffix == ".json" else _texts(stem)
    return LanguageTask(name, card, None, card.family, "", path.parent)


def _pairs(file: str) -> LanguageCard:
    return LanguageCard(
        family="own",
        summary=f"pairs of {file}",
        reader="mapping",
        parameters={"file": file},
        template="example:{x}->{y}\n",
        separator="",
        shots=5,
        demonstrations="own",
        answers="greedy",
    )


def _texts(stem: str) -> LanguageCard:
    return LanguageCard(
        family="own",
        summary=f"labelled texts of {stem}",
        reader="classification",
        parameters={"layout": "jsonl", "file": stem},
        template="Text: {x}\nLabel: {y}",
        shots=8,
    )
