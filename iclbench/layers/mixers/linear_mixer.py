"""The base class of mixers that use the linear recurrence of `iclbench.layers.linear_recurrence`; a subclass defines
its terms."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

from jaxtyping import Bool, Float
from torch import Tensor, nn

from iclbench.layers import linear_recurrence as recurrence
from iclbench.layers.linear_recurrence import Terms
from iclbench.layers.mixers.mixer import Eigenvalues, Mixer, MixerState, full_precision, unit_vectors, zero_invalid
from iclbench.layers.mixers.window import Window


class LinearMixer(Mixer):
    """A mixer with a linear recurrence. The terms of the recurrence come from channels after a short convolution (the
    window) and from channels that bypass the window.

    The state holds the tail of the window, `(B, taps - 1, E)`, and the state of the recurrence, `(B, H, K, V)`, always
    in the precision of the weights.

    Args:
        window: the convolution, over E channels.
        state: sizes H, K and V of the state.
        steps: number of steps of the recurrence per token.
    """

    in_proj: nn.Linear

    def __init__(self, window: Window, state: tuple[int, int, int], steps: int = 1) -> None:
        super().__init__()
        self.window, self.state_shape, self.steps = window, state, steps

    def channels(self, x: Float[Tensor, "B T D"]) -> tuple[Float[Tensor, "B T E"], Float[Tensor, "B T R"]]:
        """Return the channels for the window, which are the first E outputs of one linear map, and the channels that
        bypass the window, which are the other outputs."""
        projected, count = self.in_proj(x), self.window.channels
        return projected[..., :count], projected[..., count:]

    @abstractmethod
    def terms(self, u: Float[Tensor, "B T E"], bypass: Float[Tensor, "B T R"]) -> Terms:
        """Compute the terms of the recurrence from u, the output of the window, and from the channels that bypass the
        window. The terms of all steps of a token are consecutive; only the last of its queries is used."""

    @abstractmethod
    def out(
        self, o: Float[Tensor, "B H T V"], terms: Terms, u: Float[Tensor, "B T E"], bypass: Float[Tensor, "B T R"]
    ) -> Float[Tensor, "B T _"]:
        """Compute the outputs of the mixer from the outputs o of the recurrence."""

    def at_positions(self, terms: Terms, positions: range) -> Terms:
        """Return the terms of tokens at `positions` after the state, where the next token has position 1. A single
        position applies to all tokens. Mixers that depend on positions override this method."""
        return terms

    def advance_origin(self, state: Float[Tensor, "B H K V"], tokens: int) -> Float[Tensor, "B H K V"]:
        """Return the state with positions relative to an origin that is `tokens` later. Mixers that depend on positions
        override this method."""
        return state

    @property
    def _weight(self) -> Tensor:
        return next(self.parameters())

    def start(self, batch: int) -> MixerState:
        return self.window.start(batch, self._weight), self._weight.new_zeros(batch, *self.state_shape)

    def forward(
        self, x: Float[Tensor, "B T D"], state: MixerState, mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T _"], MixerState]:
        tail, memory = state
        inputs, bypass = self.channels(x)
        u, tail = self.window(zero_invalid(inputs, mask), tail)
        with full_precision(x):
            terms = self._terms(u, bypass, memory, range(1, x.shape[1] + 1))
            o, memory = recurrence.linear_recurrence(mask_terms(terms, mask, self.steps), memory)
            memory = self.advance_origin(memory, x.shape[1])
        return self.out(self._last_steps(o), terms, u, bypass), (tail, memory)

    def full_pass(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T _"]:
        inputs, bypass = self.channels(x)
        u, _ = self.window(inputs, self.window.start(len(x), self._weight))
        with full_precision(x):
            terms = self._terms(u, bypass, self._weight, range(1, x.shape[1] + 1))
            o = recurrence.full_pass(terms)
        return self.out(self._last_steps(o), terms, u, bypass)

    def peek(self, x: Float[Tensor, "B Q D"], state: MixerState) -> Float[Tensor, "B Q _"]:
        tail, memory = state
        inputs, bypass = self.channels(x)
        u = self.window.peek(inputs, tail)
        with full_precision(x):
            terms = self._terms(u, bypass, memory, range(1, 2))
            o = recurrence.peek(terms, memory, self.steps)
        return self.out(o, terms, u, bypass)

    def fork(
        self, x: Float[Tensor, "B T D"], queries: Float[Tensor, "B N D"], state: MixerState
    ) -> tuple[Float[Tensor, "B T _"], Float[Tensor, "B N _"], MixerState]:
        tail, memory = state
        (inputs, bypass), (query_inputs, query_bypass) = self.channels(x), self.channels(queries)
        u, query_u, tail = self.window.fork(inputs, query_inputs, tail)
        with full_precision(x):
            terms = self._terms(u, bypass, memory, range(1, x.shape[1] + 1))
            query_terms = self._terms(query_u, query_bypass, memory, range(1, x.shape[1] + 1, 2))
            o, answers, memory = recurrence.fork(terms, query_terms, memory, steps=self.steps)
            memory = self.advance_origin(memory, x.shape[1])
        outputs = self.out(self._last_steps(o), terms, u, bypass), self.out(answers, query_terms, query_u, query_bypass)
        return *outputs, (tail, memory)

    def _last_steps(self, o: Float[Tensor, "B H _ V"]) -> Float[Tensor, "B H T V"]:
        """Return the outputs after the last step of each token."""
        return o if self.steps == 1 else o[:, :, self.steps - 1 :: self.steps]

    def _terms(self, u: Tensor, bypass: Tensor, memory: Tensor, positions: range) -> Terms:
        return self.at_positions(self.terms(u.to(memory), bypass.to(memory)), positions)


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta_logits: Float[Tensor, "B T H"],
    g: Tensor | None = None,
    eigenvalues: Eigenvalues | None = None,
) -> Terms:
    """Return the terms of the delta rule, which moves the value that the state holds for a key towards the new value by
    the fraction beta = sigmoid(.) (Yang et al. 2024, 2025).

    The transition I - beta k k^T of a token has the eigenvalue 1 - beta along its key, between 0 and 1. With negative
    eigenvalues, beta = 2 sigmoid(.), and this eigenvalue is between -1 and 1, so that a state can be reflected (Grazzi
    et al. 2024, "Unlocking state-tracking in linear RNNs through negative eigenvalues", arXiv 2411.12537).

    Args:
        q, k: queries and keys; this function scales them to length 1 and divides the queries by sqrt(K).
        v: values.
        beta_logits: logits of the learning rate beta.
        g: log decays of the state; None means no decay.
        eigenvalues: `negative`, or `positive` (the default).
    """
    k, beta = unit_vectors(k), beta_logits.sigmoid().mT.unsqueeze(-1)
    beta = 2 * beta if eigenvalues == "negative" else beta
    return Terms(unit_vectors(q) * q.shape[-1] ** -0.5, beta * k, v, g, k if g is None else g.exp() * k, -beta * k)


def mask_terms(terms: Terms, mask: Bool[Tensor, "B T"] | None, steps: int = 1) -> Terms:
    """Change the terms so that invalid tokens do not affect the state."""
    if mask is None:
        return terms
    valid = mask.repeat_interleave(steps, 1)[:, None, :, None]
    b = None if terms.b is None else terms.b * valid
    g = None if terms.g is None else terms.g * valid
    return replace(terms, k=terms.k * valid, b=b, g=g)
