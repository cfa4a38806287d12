"""Pretrained language models: accuracy by task and model, beside its controls, and what Deep-Thinking makes of it."""

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
    "Frozen language models answer queries after demonstrations in their prompt; no weight is changed.",
    (
        "Accuracy: the share of queries whose answer is right. Of tasks with candidates the answer is the candidate of "
        "the highest summed log-probability, of the others what the model writes when the most probable token is taken "
        "at every step.",
        "Sets of demonstrations: every seed draws others; queries stay the same, for all models and methods.",
        "Deep-Thinking (arXiv 2305.13016): the model reads its demonstrations several times, and the keys and values "
        "it remembers move a little towards those of every further pass. One pass is plain in-context learning.",
        "Hold every accuracy against the majority, zero-shot and shuffled-label numbers beside it: a task of one "
        "frequent answer is easy to score on, and what shuffled labels do not lower was not learnt in context.",
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
        _part("controls", "Beside controls", numbers.controls(found)),
        _part("shots", "Number of demonstrations", [figures.shots(found), numbers.by_shots(found)]),
        _part("gains", "Methods against plain in-context learning", [figures.gains(found), comparisons.gains(found)]),
        _part("passes", "Passes of Deep-Thinking", [*passes.against_passes(found)]),
        _part(
            "demonstrations",
            "Which demonstrations, and in which order",
            [
                figures.spread(found, "demo_seed"),
                figures.spread(found, "order"),
            ],
        ),
        _part("published", "Published numbers", comparisons.published(found)),
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
    """A part of what there is; none where there is nothing."""
    found = tuple(block for block in blocks if block is not None)
    return Section(f"language-{name}", title, found) if found else None
