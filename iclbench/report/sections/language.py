"""Pretrained language models: accuracy by task and model, controls, and Deep-Thinking."""

from __future__ import annotations

from collections.abc import Sequence

from iclbench.report.blocks import Block, Section, Text
from iclbench.report.data import Results
from iclbench.report.figures import language as figures
from iclbench.report.figures import language_passes
from iclbench.report.sections import language_comparisons, language_records, language_tables

_INTRODUCTION = (
    "Frozen language models answer queries after demonstrations in their prompt.",
    (
        "Accuracy: share of correct answers. With candidates, the answer is the candidate with the highest summed "
        "log-probability; without candidates, the answer is decoded greedily.",
        "Sets of demonstrations: one per seed, with the same queries for all models and methods.",
        "Deep-Thinking (arXiv 2305.13016): the model reads its demonstrations several times and updates its cached "
        "keys and values; one pass is plain in-context learning.",
        "Controls: compare with the majority answer, zero-shot accuracy and shuffled labels.",
    ),
)


def section(results: Results) -> Section | None:
    language = results.language
    if language.cells.empty:
        return None
    parts = (
        _part(
            "accuracy",
            "Accuracy by task and model",
            [
                *language_tables.by_model(language),
                figures.families(language),
                language_tables.scores(language),
            ],
        ),
        _part("controls", "Controls", language_tables.controls(language)),
        _part("shots", "Number of demonstrations", [figures.shots(language), language_tables.by_shots(language)]),
        _part(
            "gains",
            "Methods against plain in-context learning",
            [figures.gains(language), language_comparisons.gains(language)],
        ),
        _part("passes", "Passes of Deep-Thinking", [*language_passes.against_passes(language)]),
        _part(
            "demonstrations",
            "Choice and order of demonstrations",
            [
                figures.spread(language, "demo_seed"),
                figures.spread(language, "order"),
            ],
        ),
        _part("published", "Published results", language_comparisons.published(language)),
        _part(
            "answers",
            "Answers, prompts and costs",
            [
                language_records.samples(language),
                language_records.notes(language),
                language_records.prompt_sets(language),
                language_records.costs(language),
            ],
        ),
    )
    return Section("language", "Pretrained language models", (Text(*_INTRODUCTION),), tuple(p for p in parts if p))


def _part(name: str, title: str, blocks: Sequence[Block | None]) -> Section | None:
    """A part with the blocks that are not None; None if all blocks are None."""
    contents = tuple(block for block in blocks if block is not None)
    return Section(f"language-{name}", title, contents) if contents else None
