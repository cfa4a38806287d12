"""Answers of a model, from its scores of candidates or its generated tokens, and their comparison with the correct
answer.

The score of a candidate is the sum of the log-probabilities of its tokens. Further metrics divide this sum by the
number of tokens, characters (as in lm-evaluation-harness) or bytes of the candidate, without the white space before it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from iclbench.core.errors import DataError
from iclbench.language.answering.generation import read_up_to
from iclbench.language.prompting.prompts import LanguageEpisode
from iclbench.language.prompting.text import endings
from iclbench.language.prompting.tokenised import Question
from iclbench.language.tasks.cards import LanguageCard


@dataclass(frozen=True)
class Answers:
    """The answers to all episodes.

    Attributes:
        scores: for each metric, one value per episode; NaN if the metric does not apply.
        predicted: for each episode, the answer; None if the episode was skipped.
        candidates: for each episode, the summed log-probabilities of the candidates; None if the answer is generated or
            the episode was skipped.
    """

    scores: dict[str, Float[np.ndarray, " E"]]
    predicted: list[str | None]
    candidates: list[list[float] | None]

    @property
    def nonfinite_count(self) -> int:
        """The number of episodes with a candidate whose log-probability is not finite."""
        return sum(not np.isfinite(scores).all() for scores in self.candidates if scores is not None)

    @classmethod
    def of(cls, answers: Sequence[Answer | None]) -> Answers:
        """Collect the answers to all episodes; None for skipped episodes."""
        metrics = list(dict.fromkeys(metric for answer in answers if answer for metric in answer.scores))
        scores = {m: np.array([a.scores.get(m, np.nan) if a else np.nan for a in answers]) for m in metrics}
        return cls(
            scores, [a.predicted if a else None for a in answers], [a.candidates if a else None for a in answers]
        )


@dataclass(frozen=True)
class Answer:
    """The answer to one episode."""

    predicted: str
    scores: dict[str, float]
    candidates: list[float] | None = None


def judge_candidates(episode: LanguageEpisode, question: Question, sums: Float[np.ndarray, " candidates"]) -> Answer:
    """Choose the candidate with the highest score, and judge it. In case of a tie, the first one is chosen.

    Raises:
        DataError: the correct answer is not a candidate.
    """
    candidates, is_right = episode.candidates, np.array([c == episode.query.y for c in episode.candidates])
    if not is_right.any():
        candidate_list = ", ".join(repr(c) for c in candidates)
        raise DataError(
            f"the answer {episode.query.y!r} to {episode.query.x[:40]!r} is not one of the candidates {candidate_list}"
        )
    lengths = {
        "accuracy": np.ones(len(candidates)),
        "accuracy_per_token": np.array([len(c.ids) - c.start for c in question.continuations]),
        "accuracy_per_character": np.array([max(1, len(c)) for c in candidates]),
        "accuracy_per_byte": np.array([max(1, len(c.encode())) for c in candidates]),
    }
    scores = {metric: float(is_right[np.argmax(sums / length)]) for metric, length in lengths.items()}
    with np.errstate(invalid="ignore"):  # `Answers.nonfinite_count` counts sums that are not finite
        likelihood = np.logaddexp.reduce(sums[is_right]) - np.logaddexp.reduce(sums)
    predicted = candidates[int(np.argmax(sums))]
    return Answer(predicted, scores | {"log_likelihood": float(likelihood)}, sums.tolist())


def judge_text(
    card: LanguageCard, target: str, tokens: Sequence[int], decode: Callable[[Sequence[int]], str], is_one_token: bool
) -> Answer:
    """Judge a generated answer, which is the generated text up to the end of the example. If the correct answer is one
    token, also judge the first token alone (as in Hendel et al., arXiv 2310.15916)."""
    predicted = read_up_to(decode(tokens), endings(card))
    scores = {"accuracy": float(is_correct(card, predicted, target))}
    if is_one_token:
        scores["accuracy_first_token"] = float(
            is_correct(card, decode(tokens[:1]).strip(), target, is_first_token=True)
        )
    return Answer(predicted, scores)


def is_correct(card: LanguageCard, predicted: str, target: str, is_first_token: bool = False) -> bool:
    """Return whether a generated answer is correct.

    The answer must equal the target or, with `match = "prefix"`, begin with it. If only the first token of the answer
    is judged (`is_first_token`), `match = "prefix"` also accepts a token that the target begins with.
    """
    target = target.strip()
    if card.match == "prefix" and predicted and target:
        return predicted.startswith(target) or (is_first_token and target.startswith(predicted))
    return predicted == target


def answer_rows(
    shared: dict[str, object], episodes: Sequence[LanguageEpisode], prompts: Sequence[str], answers: Answers
) -> list[dict[str, object]]:
    """Return the rows of the table `answers`. Skipped episodes have no row."""
    return [
        shared
        | {
            "episode": number,
            "prompt": prompt,
            "target": episode.query.y,
            "predicted": predicted,
            "correct": bool(correct),
            "candidates": json.dumps(list(episode.candidates)) if scores else None,
            "scores": json.dumps([round(s, 6) for s in scores]) if scores else None,
        }
        for number, (episode, prompt, predicted, scores, correct) in enumerate(
            zip(episodes, prompts, answers.predicted, answers.candidates, answers.scores["accuracy"], strict=True)
        )
        if predicted is not None
    ]
