"""Tasks from the user's data files, without a card: pairs (`.json`) or labelled texts (`.jsonl`)."""

from __future__ import annotations

from pathlib import Path

from iclbench.config.cards import card_name, card_names
from iclbench.core.errors import DataError
from iclbench.language.tasks.cards import LanguageCard, LanguageTask


def task_from_file(path: Path) -> LanguageTask:
    """Create the task of a data file. The task is named after the file.

    For a file of pairs such as `pairs.json` (see `readers.mapping`), the task has the template of the mapping tasks.
    For a file of labelled texts such as `reviews.jsonl`, with `text` and `label` on each line, the model chooses among
    the labels after eight demonstrations. The texts may be in two files, `reviews.train.jsonl` and
    `reviews.test.jsonl`; `path` is then one of them. Other templates need a card.

    Raises:
        DataError: the file does not exist, or a card of iclbench has the same name.
    """
    if not path.is_file():
        raise DataError(f"cannot read {path}: no such file", code="missing-file")
    stem = path.name.removesuffix(path.suffix)
    if path.suffix == ".jsonl":
        for split in (".train", ".test", ".dev"):
            stem = stem.removesuffix(split)
    name = card_name(Path(stem + ".toml"))
    if name in card_names("tasks/language"):
        raise DataError(f"{path}: '{name}' is the name of a task in iclbench; rename the file", code="duplicate")
    card = _pairs_card(path.name) if path.suffix == ".json" else _texts_card(stem)
    return LanguageTask(name, card, None, card.family, "", path.parent)


def _pairs_card(file: str) -> LanguageCard:
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


def _texts_card(stem: str) -> LanguageCard:
    return LanguageCard(
        family="own",
        summary=f"labelled texts of {stem}",
        reader="classification",
        parameters={"layout": "jsonl", "file": stem},
        template="Text: {x}\nLabel: {y}",
        shots=8,
    )
