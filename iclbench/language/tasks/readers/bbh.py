"""BIG-Bench Hard (Suzgun et al. 2022): one JSON file a task, `{"examples": [{"input": ..., "target": ...}, ...]}`.

Most questions end in a list of options, and targets are their letters. Deep-Thinking's released code takes the list out
of the question and lets the model choose among the texts of the options; `options = "letters"` leaves the question as
it is and lets it choose among `(A)`, `(B)`, ... Where no options are listed, the candidates are the targets of the
file, if they are few; else the answers are free.

Demonstrations and development examples are set aside from the file by a fixed stream (the papers have three handmade
demonstrations). Questions on one paragraph stay together: what is answered in a demonstration would tell the answer to
another of them. Where most questions have the same words before their options (hyperbaton, snarks), these are no
paragraph. In three examples a title was torn into options at its commas and the target is none of them: they are
left out.
"""

from __future__ import annotations

import re
import reprlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from iclbench.core.errors import DataError
from iclbench.core.json_text import parse_json
from iclbench.core.settings import BaseSettings, PositiveInt
from iclbench.language.tasks.pools import Example, Pool, Reader, fixed_shuffle, unique
from iclbench.language.tasks.readers import files

# Above so many different targets the answers of a file are free.
MOST_TARGETS = 20
_LETTERED = re.compile(r"(\([A-Z]\)) ?(.*)")
_LISTED = re.compile(r"(- ?)(.*)")


class BBHParameters(BaseSettings):
    """`options`: what stands for an option; `demonstrations` and `development`: examples set aside from every file."""

    options: Literal["texts", "letters"] = "texts"
    demonstrations: PositiveInt = 20
    development: PositiveInt = 40


class BBH(Reader):
    """A pool of one file."""

    Parameters = BBHParameters
    needs_data = True

    def read(self, subset: str | None = None) -> Pool:
        path = self._path(str(subset))
        parsed = [self._example(path, i, raw) for i, raw in enumerate(_raw_examples(path), 1)]
        examples = unique(example for example in parsed if example is not None)
        labels: tuple[str, ...] = ()
        if not any(e.candidates for e in examples):
            targets = tuple(sorted({e.y for e in examples}))
            labels = targets if len(targets) <= MOST_TARGETS else ()
        elif len({e.candidates for e in examples}) == 1:
            labels = examples[0].candidates
            examples = tuple(Example(e.x, e.y) for e in examples)
        n_demonstrations, n_development = self.parameters.demonstrations, self.parameters.development
        if len(examples) <= n_demonstrations + n_development:
            raise DataError(
                f"{path}: {len(examples)} examples, of which {n_demonstrations + n_development} are set aside: none "
                "is left"
            )
        demonstrations, development, queries = _parted(
            fixed_shuffle(examples, "language-bbh"), n_demonstrations, n_development
        )
        return Pool(demonstrations, queries, labels, development)

    def _example(self, path: Path, number: int, raw: dict[str, str]) -> Example | None:
        text, target = raw["input"].strip(), raw["target"].strip()
        question, has_options, options = text.rpartition("\nOptions:\n")
        if not has_options:
            return Example(text, target)
        texts = _options(options)
        if target not in texts:
            if "," in target and all(item in texts.values() for item in target.split(", ")):
                return None
            raise DataError(f"{path}, example {number}: the target {reprlib.repr(target)} is none of the options")
        if len(set(texts.values())) < 2:  # snarks has two questions without a choice
            return None
        if self.parameters.options == "letters":
            return Example(text, target, tuple(texts))
        return Example(question.strip(), texts[target], tuple(dict.fromkeys(texts.values())))

    def _path(self, subset: str) -> Path:
        folders = files.folders(self.data_dir, "bbh", "bbh/bbh", "BIG-Bench-Hard/bbh")
        for folder in folders:
            if (folder / f"{subset}.json").is_file():
                return folder / f"{subset}.json"
        raise files.missing(f"the JSON files of BIG-Bench Hard ('{subset}.json')", folders)


def _parted(examples: Sequence[Example], *sizes: int) -> list[tuple[Example, ...]]:
    """Parts of at most these sizes, and the rest: examples on one paragraph go together into the first part that has
    room for them, in the order in which they come."""
    paragraphs = [e.x.rpartition("\nOptions:\n")[0] or e.x for e in examples]
    (_, most), *_ = Counter(paragraphs).most_common(1)
    groups: dict[object, list[Example]] = {}
    for number, (paragraph, example) in enumerate(zip(paragraphs, examples, strict=True)):
        groups.setdefault(number if 2 * most > len(examples) else paragraph, []).append(example)
    parts: list[list[Example]] = [[] for _ in range(len(sizes) + 1)]
    for group in groups.values():
        room = (part for part, size in zip(parts, sizes, strict=False) if len(part) + len(group) <= size)
        next(room, parts[-1]).extend(group)
    return [tuple(part) for part in parts]


def _options(listed: str) -> dict[str, str]:
    """The texts of the options by what a target calls them: `(A)`, or the text itself."""
    texts = {}
    for line in listed.split("\n"):
        if lettered := _LETTERED.fullmatch(line.strip()):
            texts[lettered[1]] = lettered[2].strip()
        elif plain := _LISTED.fullmatch(line.strip()):
            texts[plain[2].strip()] = plain[2].strip()
    return texts


def _raw_examples(path: Path) -> list[dict[str, Any]]:
    value = parse_json(files.read_text(path), str(path))
    examples = value.get("examples") if isinstance(value, dict) else None
    if not isinstance(examples, list) or not examples:
        raise DataError(f'{path}: expected {{"examples": [{{"input": ..., "target": ...}}, ...]}}')
    for i, raw in enumerate(examples, 1):
        for key in ("input", "target"):
            if not isinstance(raw, dict) or not isinstance(raw.get(key), str) or not raw[key].strip():
                raise DataError(f"{path}, example {i}: expected a text as '{key}', got {reprlib.repr(raw)}")
    return examples
