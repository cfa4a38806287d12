"""MMLU (Hendrycks et al. 2021), with one CSV file for each subject and split. The files have no header and answers A to
D, as in the original archive, or a header and answers 0 to 3.

A question with two identical choices (9 of 14,042) has three candidates, since answers are judged by their texts. The
five questions in `dev` are the demonstrations of a subject, including duplicates. The questions in `val`, if the files
exist, are the development examples.
"""

from __future__ import annotations

import reprlib
from pathlib import Path

from iclbench.core.errors import DataError
from iclbench.language.tasks.pools import Example, Pool, Reader, unique
from iclbench.language.tasks.readers import files
from iclbench.language.tasks.readers.labelled import csv_rows

ANSWERS = {letter: i for letters in ("ABCD", "0123") for i, letter in enumerate(letters)}


class MMLU(Reader):
    """Reads one subject. The candidates are the texts of the choices, not their letters, as in Deep-Thinking (arXiv
    2305.13016)."""

    needs_data = True

    def read(self, subset: str | None = None) -> Pool:
        folder = self._folder(str(subset))
        demonstrations = _questions(folder / "dev" / f"{subset}_dev.csv")
        queries = _questions(folder / "test" / f"{subset}_test.csv")
        validation = folder / "val" / f"{subset}_val.csv"
        demonstration_questions = {e.question for e in demonstrations}
        queries = tuple(e for e in queries if e.question not in demonstration_questions)
        used_questions = demonstration_questions | {e.question for e in queries}
        validation_questions = unique(_questions(validation)) if validation.is_file() else ()
        development = tuple(e for e in validation_questions if e.question not in used_questions)
        return Pool(demonstrations, queries, (), development, fixed=True)

    def _folder(self, subject: str) -> Path:
        folders = files.folders(self.data_dir, "mmlu", "mmlu/data")
        for folder in folders:
            if (folder / "test" / f"{subject}_test.csv").is_file():
                return folder
        raise files.missing(f"'dev/{subject}_dev.csv' and 'test/{subject}_test.csv' of MMLU", folders)


def _questions(path: Path) -> tuple[Example, ...]:
    examples = []
    for i, (number, cells) in enumerate(csv_rows(path)):
        if i == 0 and [cells[0].lower(), cells[-1].lower()] == ["question", "answer"]:
            continue
        if len(cells) != 6 or cells[-1].strip() not in ANSWERS:
            raise DataError(
                f"{path}, line {number}: expected question, four choices and the answer (A to D or 0 to 3), got "
                f"{reprlib.repr(cells)}"
            )
        question, *choices = (cell.strip() for cell in cells[:5])
        if not question or not all(choices):
            raise DataError(f"{path}, line {number}: the question or a choice is empty")
        examples.append(Example(question, choices[ANSWERS[cells[-1].strip()]], tuple(dict.fromkeys(choices))))
    if not examples:
        raise DataError(f"{path} holds no questions")
    return tuple(examples)
