"""Sessions, in which a language model answers prompt sets with a method of reading the demonstrations."""

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
from iclbench.language.answering.generation import generate
from iclbench.language.answering.rounds import Round, run_rounds
from iclbench.language.answering.scoring import OnPromptEnd, candidate_scores
from iclbench.language.models.batches import Batches
from iclbench.language.models.model import LanguageModel
from iclbench.language.prompting.fitting import Overlength, PromptCache, TokenisedPrompts, fitting_prompts
from iclbench.language.prompting.prompts import LanguagePrompts
from iclbench.language.prompting.text import endings
from iclbench.language.prompting.tokenised import Question


@dataclass(frozen=True)
class Pass:
    """The answers after a number of passes over the demonstrations. `divergence` and `change` are those of `Round`,
    with one value for each episode."""

    answers: Answers
    divergence: Float[np.ndarray, " E"]
    change: Float[np.ndarray, " E"]


@dataclass(frozen=True)
class LanguageOutcome:
    """The answers of one contestant to a prompt set.

    Attributes:
        answers: the final answers.
        reason: a note on the selected number of passes and on dropped demonstrations; may be empty.
        passes: the answers by number of Deep-Thinking passes; empty for other methods.
        development: the answers on the development split by number of passes; empty if the number of passes is not
            selected on this split.
        texts: the prompt of each episode; "" if the episode was skipped.
        passes_used: number of passes over the demonstrations before the final answers.
    """

    answers: Answers
    reason: str = ""
    passes: Mapping[int, Pass] = field(default_factory=dict)
    development: Mapping[int, Pass] = field(default_factory=dict)
    texts: Sequence[str] = ()
    passes_used: int = 1


@dataclass(frozen=True)
class Session:
    """A model that answers prompt sets with a method of reading the demonstrations.

    Attributes:
        model: the model.
        method: the method.
        batches: runs the model in batches.
        overlength: treatment of prompts that are too long for the model.
        cache: tokenised prompts, shared by all contestants.
        compared_methods: methods with which this one is compared. With `overlength = "drop"`, demonstrations are
            dropped until the prompts of these methods fit as well.
    """

    model: LanguageModel
    method: Method
    batches: Batches
    overlength: Overlength
    cache: PromptCache
    compared_methods: Sequence[Method] = ()

    def tokenise(self, prompts: LanguagePrompts) -> TokenisedPrompts:
        """Return the tokenised prompts that fit into the model."""
        return fitting_prompts(self.cache, self.model, self.method, prompts, self.overlength, self.compared_methods)

    def answer(self, prompts: LanguagePrompts, tokenised: TokenisedPrompts) -> LanguageOutcome:
        """Answer prompts, and select the number of passes if the method requires it."""
        texts = _texts(tokenised, prompts)
        settings = self.method.settings
        all_passes, reason = set(range(1, settings.pass_limit + 1)), ""
        development_by_passes: dict[int, Pass] = {}
        if settings.selection == "best":
            by_passes = self.answers_by_passes(prompts, tokenised, all_passes)
            best_passes = _best(by_passes)
            reason = f"T = {best_passes} of 1..{settings.pass_limit}, best T on the evaluation data"
        else:
            best_passes = settings.pass_limit
            if settings.selection == "dev":
                dev_prompts = development.development_prompts(prompts)
                tokenised_development = self.tokenise(dev_prompts)
                development_by_passes = self.answers_by_passes(dev_prompts, tokenised_development, all_passes)
                best_passes = _best(development_by_passes)
                scores = development_by_passes[best_passes].answers.scores["accuracy"]
                count = np.isfinite(scores).sum()
                reason = f"T = {best_passes} of 1..{settings.pass_limit}, chosen on {count} development episodes"
                if tokenised_development.note != tokenised.note:  # development prompts may be longer or shorter
                    reason += f" ({tokenised_development.note or 'no demonstrations dropped from their prompts'})"
            by_passes = self.answers_by_passes(
                prompts, tokenised, all_passes if settings.is_traced else {1, best_passes}
            )
        reason = "; ".join(filter(None, [reason, tokenised.note]))
        passes = by_passes if settings.thinks else {}
        return LanguageOutcome(
            by_passes[best_passes].answers, reason, passes, development_by_passes, texts, best_passes
        )

    def answers_by_passes(
        self, prompts: LanguagePrompts, tokenised: TokenisedPrompts, pass_counts: Collection[int]
    ) -> dict[int, Pass]:
        """Return the answers after each of these numbers of passes. A single pass is plain ICL."""
        card = prompts.task.card

        def replies(
            questions: Sequence[Question], memory: Memory | None, on_prompt_end: OnPromptEnd | None
        ) -> Sequence[Any]:
            if card.answers == "choice":
                return candidate_scores(self.model, questions, self.batches, memory, on_prompt_end)
            return generate(self.model, questions, self.batches, tokenised.tokens, endings(card), memory, on_prompt_end)

        def judge(index: int, reply: Any) -> Answer:
            episode = prompts.drawn_episodes[tokenised.episodes[index]]
            if card.answers == "choice":
                return answers.judge_candidates(episode, tokenised.questions[index], reply)
            return answers.judge_text(card, episode.query.y, reply, self.model.text, tokenised.is_one_token[index])

        def pass_of(round_: Round) -> Pass:
            judged_answers: list[Answer | None] = [None] * len(prompts.drawn_episodes)
            divergence, change = (np.full(len(judged_answers), np.nan) for _ in range(2))
            episode_indices = list(tokenised.episodes)
            for index, episode_index in enumerate(episode_indices):
                judged_answers[episode_index] = judge(index, round_.replies[index])
            divergence[episode_indices], change[episode_indices] = round_.divergence, round_.change
            return Pass(Answers.of(judged_answers), divergence, change)

        shared = prompts.shared is not None
        rounds = run_rounds(
            self.model, self.method, tokenised.questions, replies, self.batches, shared=shared, pass_counts=pass_counts
        )
        return {passes: pass_of(round_result) for passes, round_result in rounds.items()}


def _best(by_passes: Mapping[int, Pass]) -> int:
    return development.best_pass_count({passes: result.answers for passes, result in by_passes.items()})


def _texts(tokenised: TokenisedPrompts, prompts: LanguagePrompts) -> list[str]:
    """Return the prompt of each episode. If all episodes share their demonstrations, only the first prompt includes
    them, and the others are only queries."""
    texts = [""] * len(prompts.drawn_episodes)
    for index, (episode_index, prompt) in enumerate(zip(tokenised.episodes, tokenised.prompts, strict=True)):
        texts[episode_index] = prompt.text if index == 0 or prompts.shared is None else prompt.query
    return texts
