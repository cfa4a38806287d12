"""Mixers over one linear recurrence (`iclbench.layers.linear_recurrence`): a subclass says what its terms are."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.layers import linear_recurrence as recurrence
from iclbench.layers.linear_recurrence import Terms
from iclbench.layers.mixers.mixer import Mixer, MixerState, in_full, silenced, unit
from iclbench.layers.mixers.window import Window


class LinearMixer(Mixer):
    """Channels that go through a short window, beside others that do not; both give the terms of the recurrence and
    what becomes of its answers.

    Its state are the window's tail, `(B, taps - 1, E)`, and the recurrence's, `(B, H, K, V)`, always of the weights'
    precision.

    Args:
        window: of E channels.
        state: H, K and V.
    """

    in_proj: nn.Linear

    def __init__(self, window: Window, state: tuple[int, int, int]) -> None:
        super().__init__()
        self.window, self.kept = window, state

    def channels(self, x: Float[Tensor, "B T D"]) -> tuple[Float[Tensor, "B T E"], Float[Tensor, "B T R"]]:
        """What goes through the window, and what does not: the first E outputs of one map, and the others."""
        projected, windowed = self.in_proj(x), self.window.channels
        return projected[..., :windowed], projected[..., windowed:]

    @abstractmethod
    def terms(self, u: Float[Tensor, "B T E"], rest: Float[Tensor, "B T R"]) -> Terms:
        """What tokens do to the state; u has gone through the window."""

    @abstractmethod
    def out(
        self, o: Float[Tensor, "B H T V"], terms: Terms, u: Float[Tensor, "B T E"], rest: Float[Tensor, "B T R"]
    ) -> Float[Tensor, "B T _"]:
        """What becomes of the answers."""

    def placed(self, terms: Terms, places: range) -> Terms:
        """The terms of tokens at `places` after the state, 1 being the next; one place: all of them. For mixers that
        depend on positions."""
        return terms

    def moved(self, state: Float[Tensor, "B H K V"], tokens: int) -> Float[Tensor, "B H K V"]:
        """A state that places are counted from, so many tokens later."""
        return state

    @property
    def _weight(self) -> Tensor:
        return next(self.parameters())

    def start(self, batch: int) -> MixerState:
        return self.window.start(batch, self._weight), self._weight.new_zeros(batch, *self.kept)

    def forward(
        self, x: Float[Tensor, "B T D"], state: MixerState, mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T _"], MixerState]:
        tail, memory = state
        inputs, rest = self.channels(x)
        u, tail = self.window(silenced(inputs, mask), tail)
        with in_full(x):
            terms = self._terms(u, rest, memory, range(1, x.shape[1] + 1))
            o, memory = recurrence.linear_recurrence(_without(terms, mask), memory)
            memory = self.moved(memory, x.shape[1])
        return self.out(o, terms, u, rest), (tail, memory)

    def full_pass(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T _"]:
        inputs, rest = self.channels(x)
        u, _ = self.window(inputs, self.window.start(len(x), self._weight))
        with in_full(x):
            terms = self._terms(u, rest, self._weight, range(1, x.shape[1] + 1))
            o = recurrence.full_pass(terms)
        return self.out(o, terms, u, rest)

    def peek(self, x: Float[Tensor, "B Q D"], state: MixerState) -> Float[Tensor, "B Q _"]:
        tail, memory = state
        inputs, rest = self.channels(x)
        u = self.window.peek(inputs, tail)
        with in_full(x):
            terms = self._terms(u, rest, memory, range(1, 2))
            o = recurrence.peek(terms, memory)
        return self.out(o, terms, u, rest)

    def fork(
        self, x: Float[Tensor, "B T D"], queries: Float[Tensor, "B N D"], state: MixerState
    ) -> tuple[Float[Tensor, "B T _"], Float[Tensor, "B N _"], MixerState]:
        tail, memory = state
        (inputs, rest), (query_inputs, query_rest) = self.channels(x), self.channels(queries)
        u, v, tail = self.window.fork(inputs, query_inputs, tail)
        with in_full(x):
            terms = self._terms(u, rest, memory, range(1, x.shape[1] + 1))
            query_terms = self._terms(v, query_rest, memory, range(1, x.shape[1] + 1, 2))
            o, answers, memory = recurrence.fork(terms, query_terms, memory)
            memory = self.moved(memory, x.shape[1])
        outputs = self.out(o, terms, u, rest), self.out(answers, query_terms, v, query_rest)
        return *outputs, (tail, memory)

    def _terms(self, u: Tensor, rest: Tensor, memory: Tensor, places: range) -> Terms:
        return self.placed(self.terms(u.to(memory), rest.to(memory)), places)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Float[Tensor, "B T H"], g: Tensor | None = None) -> Terms:
    """What a state says of a key moves by beta = sigmoid(.) towards the value, after it has decayed by g (None: it does
    not); q and k of length 1, answers over the root of K (Yang et al. 2024, 2025)."""
    k, beta = unit(k), beta.sigmoid().mT.unsqueeze(-1)
    return Terms(unit(q) * q.shape[-1] ** -0.5, beta * k, v, g, k if g is None else g.exp() * k, -beta * k)


def _without(terms: Terms, mask: Bool[Tensor, "B T"] | None) -> Terms:
    """Nothing is written where there is no token, and nothing taken away."""
    if mask is None:
        return terms
    present = mask[:, None, :, None]
    b = None if terms.b is None else terms.b * present
    g = None if terms.g is None else terms.g * present
    return replace(terms, k=terms.k * present, b=b, g=g)
