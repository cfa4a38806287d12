"""BIG-Bench Hard (Suzgun et al. 2022): one JSON file per task, `{"examples": [{"input": ..., "target": ...}, ...]}`.

Most questions end with a list of options, and the target is the letter of an option. By default, as in the released
code of Deep-Thinking, the list is removed from the question, and the candidates are the texts of the options. With
`options = "letters"`, the question is unchanged and the candidates are `(A)`, `(B)`, ... In files without options, all
distinct targets are candidates if they are few; otherwise answers are generated.

Demonstrations and development examples are drawn from the file with a fixed seed. (The papers use three handwritten
demonstrations.) Questions about the same paragraph are in the same split, because otherwise a demonstration could
reveal the answer to a query. If most questions have the same text before their options (hyperbaton, snarks), this text
does not count as a paragraph. Three examples are omitted, because their target is a title with commas that the file
lists as several options. Two examples (of snarks) are omitted, because they have a single option.
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

# If a file without options has more distinct targets than this number, answers are generated.
MAX_TARGETS = 20
_LETTERED = re.compile(r"(\([A-Z]\)) ?(.*)")
_LISTED = re.compile(r"(- ?)(.*)")


class BBHParameters(BaseSettings):
    """Parameters of the reader `bbh`.

    Attributes:
        options: whether candidates are the texts or the letters of the options.
        demonstrations: maximum number of examples in the split for demonstrations.
        development: maximum number of examples in the development split.
    """

    options: Literal["texts", "letters"] = "texts"
    demonstrations: PositiveInt = 20
    development: PositiveInt = 40


class BBH(Reader):
    """Reads the file of one task."""

    Parameters = BBHParameters
    needs_data = True

    def read(self, subset: str | None = None) -> Pool:
        path = self._path(str(subset))
        parsed = [self._example(path, i, raw) for i, raw in enumerate(_raw_examples(path), 1)]
        examples = unique(example for example in parsed if example is not None)
        labels: tuple[str, ...] = ()
        if not any(e.candidates for e in examples):
            targets = tuple(sorted({e.y for e in examples}))
            labels = targets if len(targets) <= MAX_TARGETS else ()
        elif len({e.candidates for e in examples}) == 1:
            labels = examples[0].candidates
            examples = tuple(Example(e.x, e.y) for e in examples)
        n_demonstrations, n_development = self.parameters.demonstrations, self.parameters.development
        if len(examples) <= n_demonstrations + n_development:
            raise DataError(
                f"{path}: {len(examples)} examples, but {n_demonstrations + n_development} are needed for "
                "demonstrations and development; reduce these parameters in the card"
            )
        demonstrations, development, queries = _split(
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
            raise DataError(f"{path}, example {number}: the target {reprlib.repr(target)} is not an option")
        if len(set(texts.values())) < 2:  # snarks has two questions with a single option
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


def _split(examples: Sequence[Example], *sizes: int) -> list[tuple[Example, ...]]:
    """Divide examples into splits of at most these sizes, and a last split with the remaining examples. All examples
    with the same paragraph are added, in order, to the first split that has enough space for them."""
    paragraphs = [e.x.rpartition("\nOptions:\n")[0] or e.x for e in examples]
    (_, max_count), *_ = Counter(paragraphs).most_common(1)
    groups: dict[object, list[Example]] = {}
    for number, (paragraph, example) in enumerate(zip(paragraphs, examples, strict=True)):
        groups.setdefault(number if 2 * max_count > len(examples) else paragraph, []).append(example)
    splits: list[list[Example]] = [[] for _ in range(len(sizes) + 1)]
    for group in groups.values():
        fitting = (split for split, size in zip(splits, sizes, strict=False) if len(split) + len(group) <= size)
        next(fitting, splits[-1]).extend(group)
    return [tuple(split) for split in splits]


def _options(option_lines: str) -> dict[str, str]:
    """Return the texts of the options by the target that selects them, which is a letter such as `(A)` or the text
    itself."""
    texts = {}
    for line in option_lines.split("\n"):
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
