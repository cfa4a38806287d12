"""Checks before an evaluation that all prompts fit into the context length of a model. Nothing is truncated silently.

If a prompt is too long, `error` refuses the prompt set, `skip` skips the prompt, and `drop` drops demonstrations from
the front of the prompt. The number of dropped demonstrations is the same for all episodes with shared demonstrations
and for all compared methods; the method with the longest prompts determines it.
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

# A generated answer may be this many tokens longer than the longest correct answer of its prompt set.
_SPARE_TOKENS = 2


@dataclass(frozen=True)
class TokenisedPrompts:
    """The tokenised prompts of the episodes that are evaluated.

    Attributes:
        episodes: indices of the episodes.
        prompts: the prompt of each episode as text.
        questions: the prompt of each episode as tokens.
        is_one_token: for generated answers, whether the correct answer of each episode is one token.
        tokens: maximum number of tokens in a generated answer; 0 if candidates are scored.
        note: a note on skipped prompts or dropped demonstrations; may be empty.
    """

    episodes: tuple[int, ...]
    prompts: tuple[Prompt, ...]
    questions: tuple[Question, ...]
    is_one_token: tuple[bool, ...] = ()
    tokens: int = 0
    note: str = ""

    def select(self, places: Sequence[int]) -> TokenisedPrompts:
        """Return the prompts at these places."""
        return replace(
            self,
            episodes=tuple(self.episodes[i] for i in places),
            prompts=tuple(self.prompts[i] for i in places),
            questions=tuple(self.questions[i] for i in places),
            is_one_token=tuple(self.is_one_token[i] for i in places) if self.is_one_token else (),
        )

    def too_long(self, place: int, method: Method, longest: int | None) -> str:
        """Return why a prompt does not fit into the context length `longest`, as a clause; empty if it fits."""
        question = self.questions[place]
        return method.too_long(len(question.demonstrations), question.query_length + max(0, self.tokens - 1), longest)


class PromptCache:
    """A cache of the tokenised prompts of one model, which the contestants on a prompt set share."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, int], TokenisedPrompts] = {}

    def tokenise(self, model: LanguageModel, prompts: LanguagePrompts, times: int = 1) -> TokenisedPrompts:
        """Tokenise all episodes of a prompt set, with the demonstrations repeated `times` times."""
        key = (prompts.id, times)
        if key not in self._by_key:
            self._by_key[key] = _tokenise(
                model, prompts, prompts.drawn_episodes, range(len(prompts.drawn_episodes)), times
            )
        return self._by_key[key]


def fitting_prompts(
    cache: PromptCache,
    model: LanguageModel,
    method: Method,
    prompts: LanguagePrompts,
    overlength: Overlength,
    compared_methods: Sequence[Method] = (),
) -> TokenisedPrompts:
    """Return the prompts that fit into the model. With `drop`, return all prompts, some of them with fewer
    demonstrations.

    Raises:
        UsageError: with `error`, a prompt does not fit; with `skip`, no prompt fits; with `drop`, a prompt does not fit
            even with as few demonstrations as the method allows.
    """
    tokenised = cache.tokenise(model, prompts, method.times)
    if overlength == "drop":
        return _with_fewer_demonstrations(cache, tokenised, model, method, prompts, compared_methods)
    reasons = _too_long(tokenised, method, model)
    if not reasons:
        return tokenised
    reason = next(iter(reasons.values()))
    if overlength == "error":
        raise _too_long_error(prompts, model, f"{reason}; give fewer --shots, or --overlength skip or drop")
    fitting_places = [i for i in range(len(tokenised.episodes)) if i not in reasons]
    if not fitting_places:
        raise _too_long_error(prompts, model, f"{reason}, and no other prompt fits; give fewer --shots")
    note = f"{len(reasons)} of {len(tokenised.episodes)} prompts skipped, too long for {model.longest} tokens"
    return replace(tokenised.select(fitting_places), note=note)


def _too_long_error(prompts: LanguagePrompts, model: LanguageModel, reason: str) -> UsageError:
    start = f"task '{prompts.task.name}' at {prompts.shots} shots does not fit into '{model.name}'"
    return UsageError(f"{start}: {reason}", code="too-large")


def _too_long(tokenised: TokenisedPrompts, method: Method, model: LanguageModel) -> dict[int, str]:
    """Return, by place, the reason for each prompt that does not fit."""
    reasons = {i: tokenised.too_long(i, method, model.longest) for i in range(len(tokenised.episodes))}
    return {i: reason for i, reason in reasons.items() if reason}


def _with_fewer_demonstrations(
    cache: PromptCache,
    all_prompts: TokenisedPrompts,
    model: LanguageModel,
    method: Method,
    prompts: LanguagePrompts,
    compared_methods: Sequence[Method],
) -> TokenisedPrompts:
    """Return all prompts, and drop as few demonstrations as necessary."""
    too_long = _too_long(all_prompts, method, model)
    others = [
        (other, cache.tokenise(model, prompts, other.times)) for other in compared_methods if other.hash != method.hash
    ]
    long_places = sorted({*too_long, *(i for other, tokenised in others for i in _too_long(tokenised, other, model))})
    shared = prompts.shared is not None
    groups = [list(range(len(all_prompts.episodes)))] * bool(long_places) if shared else [[i] for i in long_places]
    new_prompts, new_questions, max_dropped = list(all_prompts.prompts), list(all_prompts.questions), 0
    for group in groups:
        dropped_alone = _fewest_dropped(all_prompts.select(group), model, method, prompts)
        if dropped_alone is None:
            reason = next(iter(too_long.values()))
            raise _too_long_error(
                prompts, model, f"{reason}, and dropping demonstrations is not enough; pass --overlength skip"
            )
        # A compared method that never fits fails in its own cell. It does not affect this method.
        dropped_by_others = [
            _fewest_dropped(tokenised.select(group), model, other, prompts) or 0 for other, tokenised in others
        ]
        dropped = max([dropped_alone, *dropped_by_others])
        shortened = _without_first(all_prompts.select(group), model, method, prompts, dropped)
        max_dropped = max(max_dropped, dropped)
        for place, new_prompt, question in zip(group, shortened.prompts, shortened.questions, strict=True):
            new_prompts[place], new_questions[place] = new_prompt, question
    if not max_dropped:
        return all_prompts
    affected = "all" if shared else f"{len(long_places)} of {len(new_prompts)}"
    reason = " (so that the compared methods fit)" if not too_long else ""
    note = f"up to {max_dropped} of {prompts.shots} demonstrations dropped from the front of {affected} prompts{reason}"
    return replace(all_prompts, prompts=tuple(new_prompts), questions=tuple(new_questions), note=note)


def _fewest_dropped(
    tokenised: TokenisedPrompts, model: LanguageModel, method: Method, prompts: LanguagePrompts
) -> int | None:
    """Return the smallest number of demonstrations that must be dropped so that all of these episodes fit; None if they
    never fit."""
    required = int(method.name == "deep-thinking")  # Deep-Thinking needs at least one demonstration
    for dropped in range(prompts.shots - required + 1):
        shortened = _without_first(tokenised, model, method, prompts, dropped)
        if not _too_long(shortened, method, model):
            return dropped
    return None


def _without_first(
    tokenised: TokenisedPrompts, model: LanguageModel, method: Method, prompts: LanguagePrompts, dropped: int
) -> TokenisedPrompts:
    """Return these episodes without their first `dropped` demonstrations."""
    if not dropped:
        return tokenised
    episodes = [prompts.drawn_episodes[n] for n in tokenised.episodes]
    shortened = [replace(e, demonstrations=e.demonstrations[dropped:]) for e in episodes]
    return replace(_tokenise(model, prompts, shortened, tokenised.episodes, method.times), tokens=tokenised.tokens)


def _tokenise(
    model: LanguageModel,
    prompts: LanguagePrompts,
    episodes: Sequence[LanguageEpisode],
    numbers: Sequence[int],
    times: int,
) -> TokenisedPrompts:
    card, shared = prompts.task.card, prompts.shared is not None
    texts = [
        prompt(card, e.demonstrations, e.query.x, e.candidates if _is_choice(card) else (), times) for e in episodes
    ]
    tokens = questions(model.tokens, texts, shared)
    if _is_choice(card):
        return TokenisedPrompts(tuple(numbers), tuple(texts), tuple(tokens))
    correct_answers = [prompt(card, (), e.query.x, [e.query.y]).answers[0] for e in episodes]
    sizes = [answer_tokens(model.tokens, text, answer) for text, answer in zip(texts, correct_answers, strict=True)]
    is_one_token = tuple(count == 1 and is_separate for count, is_separate in sizes)
    longest = max(count for count, _ in sizes) + _SPARE_TOKENS
    return TokenisedPrompts(tuple(numbers), tuple(texts), tuple(tokens), is_one_token, longest)


def _is_choice(card: LanguageCard) -> bool:
    return card.answers == "choice"
