"""A model under a method, put to a prompt set: its answers, and how they came about."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from iclbench.deep_thinking.memory import Memory
from iclbench.deep_thinking.passes import DeepThinking
from iclbench.language.answering import answers, development
from iclbench.language.answering.answers import Answer, Answers
from iclbench.language.answering.asking import Round, ask
from iclbench.language.answering.generation import generate
from iclbench.language.answering.methods import Method
from iclbench.language.answering.scoring import AtEnd, candidate_scores
from iclbench.language.models.batches import Batches
from iclbench.language.models.models import LanguageModel
from iclbench.language.prompting.fitting import Overlength, Sheet, Sheets, fitted
from iclbench.language.prompting.prompts import LanguagePrompts
from iclbench.language.prompting.tokenised import Question


@dataclass(frozen=True)
class Pass:
    """The answers after so many passes, and what the passes have done; arrays over episodes as in `Round`."""

    answers: Answers
    divergence: Float[np.ndarray, " E"]
    change: Float[np.ndarray, " E"]


@dataclass(frozen=True)
class Outcome:
    """What one contestant makes of a prompt set.

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
class Sitting:
    """A model under a method, put to prompt sets; `beside`: the methods that it is compared with."""

    model: LanguageModel
    method: Method
    batches: Batches
    overlength: Overlength
    sheets: Sheets
    beside: Sequence[Method] = ()

    def sheet(self, prompts: LanguagePrompts) -> Sheet:
        """What is asked, as far as it fits."""
        return fitted(self.sheets, self.model, self.method, prompts, self.overlength, self.beside)

    def outcome(self, prompts: LanguagePrompts, sheet: Sheet) -> Outcome:
        """The answers to this sheet of the prompt set."""
        texts = _texts(sheet, prompts)
        if not isinstance(self.method.settings, DeepThinking):
            return Outcome(self.after(prompts, sheet, {1})[1].answers, sheet.note, texts=texts)
        passes, most = self.method.settings.passes, self.method.settings.most
        every, traced, reason = set(range(1, most + 1)), self.method.settings.trace, ""
        on_development: dict[int, Pass] = {}
        if passes == "dev":
            held_out = development.development(prompts)
            on_development = self.after(held_out, self.sheet(held_out), every)
            chosen = _best(on_development)
            known = on_development[chosen].answers.scores["accuracy"]
            reason = f"T = {chosen} of 1..{most}, chosen on {np.isfinite(known).sum()} development episodes"
            found = self.after(prompts, sheet, every if traced else {1, chosen})
        elif passes == "best":
            found = self.after(prompts, sheet, every)
            chosen = _best(found)
            reason = f"T = {chosen} of 1..{most}, best T on the evaluation data"
        else:
            chosen = passes
            found = self.after(prompts, sheet, every if traced else {1, chosen})
        reason = "; ".join(filter(None, [reason, sheet.note]))
        return Outcome(found[chosen].answers, reason, found, on_development, texts, chosen)

    def after(self, prompts: LanguagePrompts, sheet: Sheet, wanted: Collection[int]) -> dict[int, Pass]:
        """The answers after each of these numbers of passes; 1 alone is plain ICL."""
        card = prompts.task.card

        def reply(some: Sequence[Question], memory: Memory | None, at_end: AtEnd | None) -> Sequence[Any]:
            if card.answers == "choice":
                return candidate_scores(self.model, some, self.batches, memory, at_end)
            ends = answers.endings(card)
            return generate(self.model, some, self.batches, sheet.tokens, ends, memory, at_end)

        def judged(place: int, replied: Any) -> Answer:
            episode = prompts.drawn[sheet.asked[place]]
            if card.answers == "choice":
                return answers.chosen(episode, sheet.questions[place], replied)
            return answers.written(card, episode.query.y, replied, self.model.text, sheet.one_token[place])

        def over_episodes(round_: Round) -> Pass:
            every: list[Answer | None] = [None] * len(prompts.drawn)
            divergence, change = (np.full(len(every), np.nan) for _ in range(2))
            for place, number in enumerate(sheet.asked):
                every[number] = judged(place, round_.replies[place])
            asked = list(sheet.asked)
            divergence[asked], change[asked] = round_.divergence, round_.change
            return Pass(Answers.of(every), divergence, change)

        shared = prompts.shared is not None
        apart = any(isinstance(each.settings, DeepThinking) for each in (self.method, *self.beside))
        rounds = ask(
            self.model, self.method, sheet.questions, reply, self.batches, shared=shared, wanted=wanted, apart=apart
        )
        return {passes: over_episodes(found) for passes, found in rounds.items()}


def _best(found: Mapping[int, Pass]) -> int:
    return development.best({passes: each.answers for passes, each in found.items()})


def _texts(sheet: Sheet, prompts: LanguagePrompts) -> list[str]:
    """The whole prompt, or, after the first, its end behind shared demonstrations."""
    texts = [""] * len(prompts.drawn)
    for place, (number, prompt) in enumerate(zip(sheet.asked, sheet.prompts, strict=True)):
        texts[number] = prompt.text if place == 0 or prompts.shared is None else prompt.query
    return texts
