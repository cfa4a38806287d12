"""Pretrained language models: accuracy by task and model, controls, and Deep-Thinking."""

from __future__ import annotations

from collections.abc import Sequence

from iclbench.report.blocks import Block, Section, Text
from iclbench.report.data import Results
from iclbench.report.figures import language as figures
from iclbench.report.figures import language_passes as passes
from iclbench.report.sections import language_comparisons as comparisons
from iclbench.report.sections import language_records as records
from iclbench.report.sections import language_tables as numbers

_READING = (
    "Frozen language models answer queries after demonstrations in their prompt.",
    (
        "Accuracy: share of right answers. With candidates, the answer is the candidate with the highest summed "
        "log-probability; without, it is decoded greedily.",
        "Sets of demonstrations: one per seed, with the same queries for all models and methods.",
        "Deep-Thinking (arXiv 2305.13016): the model reads its demonstrations several times and updates its cached "
        "keys and values; one pass is plain in-context learning.",
        "Controls: compare with the majority answer, zero-shot accuracy and shuffled labels.",
    ),
)


def section(results: Results) -> Section | None:
    found = results.language
    if found.cells.empty:
        return None
    parts = (
        _part(
            "accuracy",
            "Accuracy by task and model",
            [
                *numbers.by_model(found),
                figures.families(found),
                numbers.scores(found),
            ],
        ),
        _part("controls", "Controls", numbers.controls(found)),
        _part("shots", "Number of demonstrations", [figures.shots(found), numbers.by_shots(found)]),
        _part("gains", "Methods against plain in-context learning", [figures.gains(found), comparisons.gains(found)]),
        _part("passes", "Passes of Deep-Thinking", [*passes.against_passes(found)]),
        _part(
            "demonstrations",
            "Choice and order of demonstrations",
            [
                figures.spread(found, "demo_seed"),
                figures.spread(found, "order"),
            ],
        ),
        _part("published", "Published results", comparisons.published(found)),
        _part(
            "answers",
            "Answers, prompts and costs",
            [
                records.samples(found),
                records.notes(found),
                records.prompt_sets(found),
                records.costs(found),
            ],
        ),
    )
    return Section("language", "Pretrained language models", (Text(*_READING),), tuple(p for p in parts if p))


def _part(name: str, title: str, blocks: Sequence[Block | None]) -> Section | None:
    """A part with the blocks that exist; None if there are none."""
    found = tuple(block for block in blocks if block is not None)
    return Section(f"language-{name}", title, found) if found else None
