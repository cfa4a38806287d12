"""The answers of a model under a method to a prompt set, and how they came about."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from iclbench.deep_thinking.memory import Memory
from iclbench.deep_thinking.methods import Method
from iclbench.language.answering import answers, development
from iclbench.language.answering.answers import Answer, Answers
from iclbench.language.answering.asking import Round, ask
from iclbench.language.answering.generation import generate
from iclbench.language.answering.scoring import AtEnd, candidate_scores
from iclbench.language.models.batches import Batches
from iclbench.language.models.model import LanguageModel
from iclbench.language.prompting.fitting import Overlength, PromptCache, TokenisedPrompts, fitted
from iclbench.language.prompting.prompts import LanguagePrompts
from iclbench.language.prompting.text import endings
from iclbench.language.prompting.tokenised import Question


@dataclass(frozen=True)
class Pass:
    """The answers after so many passes, and what the passes have done; arrays over episodes as in `Round`."""

    answers: Answers
    divergence: Float[np.ndarray, " E"]
    change: Float[np.ndarray, " E"]


@dataclass(frozen=True)
class Outcome:
    """The answers of one contestant to a prompt set.

    Attributes:
        answers: those that count.
        reason: how they were found, where that is not plain.
        passes: after each number of passes of Deep-Thinking.
        development: the same on the development split, where the number was chosen there.
        texts: what the contestant was given, for each episode; "" where it was not asked.
        made: passes over the demonstrations that the answers need.
    """

    answers: Answers
    reason: str = ""
    passes: Mapping[int, Pass] = field(default_factory=dict)
    development: Mapping[int, Pass] = field(default_factory=dict)
    texts: Sequence[str] = ()
    made: int = 1


@dataclass(frozen=True)
class Session:
    """A model under a method that answers prompt sets; `beside`: the methods that it is compared with."""

    model: LanguageModel
    method: Method
    batches: Batches
    overlength: Overlength
    cache: PromptCache
    beside: Sequence[Method] = ()

    def tokenised(self, prompts: LanguagePrompts) -> TokenisedPrompts:
        """The prompts in tokens, as far as they fit."""
        return fitted(self.cache, self.model, self.method, prompts, self.overlength, self.beside)

    def outcome(self, prompts: LanguagePrompts, tokenised: TokenisedPrompts) -> Outcome:
        """The answers to these prompts."""
        texts = _texts(tokenised, prompts)
        settings = self.method.settings
        all_passes, reason = set(range(1, settings.pass_limit + 1)), ""
        on_development: dict[int, Pass] = {}
        if settings.selection == "best":
            by_passes = self.after(prompts, tokenised, all_passes)
            best_passes = _best(by_passes)
            reason = f"T = {best_passes} of 1..{settings.pass_limit}, best T on the evaluation data"
        else:
            best_passes = settings.pass_limit
            if settings.selection == "dev":
                held_out = development.development(prompts)
                development_prompts = self.tokenised(held_out)
                on_development = self.after(held_out, development_prompts, all_passes)
                best_passes = _best(on_development)
                scores = on_development[best_passes].answers.scores["accuracy"]
                count = np.isfinite(scores).sum()
                reason = f"T = {best_passes} of 1..{settings.pass_limit}, chosen on {count} development episodes"
                if (
                    development_prompts.note != tokenised.note
                ):  # their prompts may be longer or shorter than those that are asked
                    reason += f" ({development_prompts.note or 'nothing left out of theirs'})"
            by_passes = self.after(prompts, tokenised, all_passes if settings.traced else {1, best_passes})
        reason = "; ".join(filter(None, [reason, tokenised.note]))
        passes = by_passes if settings.thinks else {}
        return Outcome(by_passes[best_passes].answers, reason, passes, on_development, texts, best_passes)

    def after(
        self, prompts: LanguagePrompts, tokenised: TokenisedPrompts, pass_counts: Collection[int]
    ) -> dict[int, Pass]:
        """The answers after each of these numbers of passes; 1 alone is plain ICL."""
        card = prompts.task.card

        def reply(questions: Sequence[Question], memory: Memory | None, at_end: AtEnd | None) -> Sequence[Any]:
            if card.answers == "choice":
                return candidate_scores(self.model, questions, self.batches, memory, at_end)
            return generate(self.model, questions, self.batches, tokenised.tokens, endings(card), memory, at_end)

        def judged(place: int, replied: Any) -> Answer:
            episode = prompts.drawn[tokenised.asked[place]]
            if card.answers == "choice":
                return answers.best_candidate(episode, tokenised.questions[place], replied)
            return answers.written(card, episode.query.y, replied, self.model.text, tokenised.one_token[place])

        def over_episodes(round_: Round) -> Pass:
            judged_answers: list[Answer | None] = [None] * len(prompts.drawn)
            divergence, change = (np.full(len(judged_answers), np.nan) for _ in range(2))
            for place, number in enumerate(tokenised.asked):
                judged_answers[number] = judged(place, round_.replies[place])
            numbers = list(tokenised.asked)
            divergence[numbers], change[numbers] = round_.divergence, round_.change
            return Pass(Answers.of(judged_answers), divergence, change)

        shared = prompts.shared is not None
        rounds = ask(
            self.model, self.method, tokenised.questions, reply, self.batches, shared=shared, wanted=pass_counts
        )
        return {passes: over_episodes(round_result) for passes, round_result in rounds.items()}


def _best(by_passes: Mapping[int, Pass]) -> int:
    return development.best({passes: result.answers for passes, result in by_passes.items()})


def _texts(tokenised: TokenisedPrompts, prompts: LanguagePrompts) -> list[str]:
    """The whole prompt, or, after the first, its end behind shared demonstrations."""
    texts = [""] * len(prompts.drawn)
    for place, (number, prompt) in enumerate(zip(tokenised.asked, tokenised.prompts, strict=True)):
        texts[number] = prompt.text if place == 0 or prompts.shared is None else prompt.query
    return texts
