"""Whether the prompts fit into a model, seen before anything is computed; nothing is cut off in silence.

`error` refuses a prompt set of which one prompt is too long, `skip` does not ask such prompts, `drop` leaves out
demonstrations from the front, of all episodes alike where they share them, and for all methods that are compared as
many as the one that has room for the fewest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from iclbench.core.errors import UsageError
from iclbench.deep_thinking.methods import Method
from iclbench.language.models.model import LanguageModel
from iclbench.language.prompting.prompts import LanguageEpisode, LanguagePrompts
from iclbench.language.prompting.text import Prompt, prompt
from iclbench.language.prompting.tokenised import Question, answer_tokens, questions
from iclbench.language.tasks.cards import LanguageCard

Overlength = Literal["error", "skip", "drop"]

# A free answer may be so many tokens longer than the longest right one of its prompt set.
_SPARE = 2


@dataclass(frozen=True)
class TokenisedPrompts:
    """The questions of a prompt set as a model is asked them.

    Attributes:
        asked: numbers of the episodes that are asked; the other fields are of these.
        prompts: their texts.
        questions: their tokens.
        one_token: whether the right answer is one token, where the answer is free.
        tokens: of a free answer, at most; 0 where candidates are scored.
        note: what was skipped or dropped; empty: nothing.
    """

    asked: tuple[int, ...]
    prompts: tuple[Prompt, ...]
    questions: tuple[Question, ...]
    one_token: tuple[bool, ...] = ()
    tokens: int = 0
    note: str = ""

    def of(self, places: Sequence[int]) -> TokenisedPrompts:
        """Some of them."""
        return replace(
            self,
            asked=tuple(self.asked[i] for i in places),
            prompts=tuple(self.prompts[i] for i in places),
            questions=tuple(self.questions[i] for i in places),
            one_token=tuple(self.one_token[i] for i in places) if self.one_token else (),
        )

    def too_long(self, place: int, method: Method, longest: int | None) -> str:
        """Why a model cannot take in this prompt, as a clause; empty: it can."""
        question = self.questions[place]
        return method.too_long(len(question.demonstrations), question.query_length + max(0, self.tokens - 1), longest)


class PromptCache:
    """Tokenised prompts of one model, each made once: contestants and development of one prompt set share them."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int], TokenisedPrompts] = {}

    def tokenised(self, model: LanguageModel, prompts: LanguagePrompts, times: int = 1) -> TokenisedPrompts:
        """All episodes in tokens, their demonstrations written so many times."""
        key = (prompts.id, times)
        if key not in self._made:
            self._made[key] = _tokenised(model, prompts, prompts.drawn, range(len(prompts.drawn)), times)
        return self._made[key]


def fitted(
    cache: PromptCache,
    model: LanguageModel,
    method: Method,
    prompts: LanguagePrompts,
    overlength: Overlength,
    compared: Sequence[Method] = (),
) -> TokenisedPrompts:
    """The part of the prompts that fits, or the whole with fewer demonstrations: as many as all methods have room for,
    this one and those it is compared with, so that all of them see the same.

    Raises:
        UsageError: a prompt does not fit and is not to be skipped, or not even without demonstrations.
    """
    tokenised = cache.tokenised(model, prompts, method.times)
    if overlength == "drop":
        return _dropped(cache, tokenised, model, method, prompts, compared)
    reasons = _too_long(tokenised, method, model)
    if not reasons:
        return tokenised
    line = _line(prompts, model)
    reason = next(iter(reasons.values()))
    if overlength == "error":
        raise UsageError(f"{line}{reason}; give fewer --shots, or --overlength skip or drop")
    fitting = [i for i in range(len(tokenised.asked)) if i not in reasons]
    if not fitting:
        raise UsageError(f"{line}{reason}, and so it is with every prompt; give fewer --shots")
    note = f"{len(reasons)} of {len(tokenised.asked)} prompts skipped, too long for {model.longest} tokens"
    return replace(tokenised.of(fitting), note=note)


def _line(prompts: LanguagePrompts, model: LanguageModel) -> str:
    return f"task '{prompts.task.name}' at {prompts.shots} shots does not fit into '{model.name}': "


def _too_long(tokenised: TokenisedPrompts, method: Method, model: LanguageModel) -> dict[int, str]:
    """Why prompts do not fit, by their place."""
    return {i: reason for i in range(len(tokenised.asked)) if (reason := tokenised.too_long(i, method, model.longest))}


def _dropped(
    cache: PromptCache,
    all_prompts: TokenisedPrompts,
    model: LanguageModel,
    method: Method,
    prompts: LanguagePrompts,
    compared: Sequence[Method],
) -> TokenisedPrompts:
    """The prompts with as few demonstrations left out as need be."""
    too_long = _too_long(all_prompts, method, model)
    others = [(other, cache.tokenised(model, prompts, other.times)) for other in compared if other.hash != method.hash]
    long = sorted({*too_long, *(i for other, tokenised in others for i in _too_long(tokenised, other, model))})
    shared = prompts.shared is not None
    units = [list(range(len(all_prompts.asked)))] * bool(long) if shared else [[i] for i in long]
    texts, tokens, most = list(all_prompts.prompts), list(all_prompts.questions), 0
    for unit in units:
        dropped_here = _fewest(all_prompts.of(unit), model, method, prompts)
        if dropped_here is None:
            reason = next(iter(too_long.values()))
            raise UsageError(
                f"{_line(prompts, model)}{reason}, and dropping demonstrations is not enough; give --overlength skip"
            )
        # A method that does not fit at all fails on its own, and does not affect the others.
        dropped = max(
            [dropped_here, *(_fewest(tokenised.of(unit), model, other, prompts) or 0 for other, tokenised in others)]
        )
        shortened, most = _cut(all_prompts.of(unit), model, method, prompts, dropped), max(most, dropped)
        for place, text, question in zip(unit, shortened.prompts, shortened.questions, strict=True):
            texts[place], tokens[place] = text, question
    if not most:
        return all_prompts
    affected = "all" if shared else f"{len(long)} of {len(texts)}"
    stricter = " (as many as those beside it need)" if not too_long else ""
    note = f"up to {most} of {prompts.shots} demonstrations dropped from the front of {affected} prompts{stricter}"
    return replace(all_prompts, prompts=tuple(texts), questions=tuple(tokens), note=note)


def _fewest(long: TokenisedPrompts, model: LanguageModel, method: Method, prompts: LanguagePrompts) -> int | None:
    """The fewest demonstrations left out that make all of these episodes fit; None: there is no such number."""
    least = int(method.name == "deep-thinking")  # it has nothing to think over without any
    for dropped in range(prompts.shots - least + 1):
        shortened = _cut(long, model, method, prompts, dropped)
        if not _too_long(shortened, method, model):
            return dropped
    return None


def _cut(
    long: TokenisedPrompts, model: LanguageModel, method: Method, prompts: LanguagePrompts, fewer: int
) -> TokenisedPrompts:
    """These episodes with so many demonstrations left out from the front."""
    if not fewer:
        return long
    episodes = [prompts.drawn[n] for n in long.asked]
    cut = [replace(e, demonstrations=e.demonstrations[fewer:]) for e in episodes]
    return replace(_tokenised(model, prompts, cut, long.asked, method.times), tokens=long.tokens)


def _tokenised(
    model: LanguageModel,
    prompts: LanguagePrompts,
    episodes: Sequence[LanguageEpisode],
    numbers: Sequence[int],
    times: int,
) -> TokenisedPrompts:
    card, shared = prompts.task.card, prompts.shared is not None
    texts = [prompt(card, e.demonstrations, e.query.x, e.candidates if _choice(card) else (), times) for e in episodes]
    tokens = questions(model.tokens, texts, shared)
    if _choice(card):
        return TokenisedPrompts(tuple(numbers), tuple(texts), tuple(tokens))
    right = [prompt(card, (), e.query.x, [e.query.y]).answers[0] for e in episodes]
    sizes = [answer_tokens(model.tokens, text, answer) for text, answer in zip(texts, right, strict=True)]
    one_token = tuple(count == 1 and follows for count, follows in sizes)
    longest = max(count for count, _ in sizes) + _SPARE
    return TokenisedPrompts(tuple(numbers), tuple(texts), tuple(tokens), one_token, longest)


def _choice(card: LanguageCard) -> bool:
    return card.answers == "choice"
