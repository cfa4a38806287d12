"""Markov chains of tokens, with another chain in every episode.

The rows of the transition matrix of an episode have a Dirichlet distribution with all parameters `concentration`. In a
chain of order m, the row depends on the last m tokens, as in Edelman et al. (2024, arXiv 2402.11004). The first m
tokens are uniform, because with a stationary start a prediction from counts would not be exactly Bayesian. Before every
token, with probability `switch`, the chain is replaced by a new chain. Switches are not marked, and the last tokens of
the old chain are the first context of the new chain. Models have to infer the chain from the tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from iclbench.core import limits
from iclbench.core.episodes import Episodes, Points
from iclbench.core.errors import UsageError
from iclbench.core.settings import BaseSettings
from iclbench.families.request import Request
from iclbench.families.shifts import Kind, Number, Shift
from iclbench.families.streams.base import ProbeTarget, StreamFamily
from iclbench.families.streams.chain_posterior import ChainPrior, posterior_rows

# Smallest and largest parameter of a Dirichlet distribution.
CONCENTRATIONS = (0.01, 1000.0)

MARKOV_KINDS = {
    "concentration": Kind(("the distribution of rows",), Number()),
    "switch": Kind(("the probability of a switch",), Number(largest=1.0)),
}


class MarkovParameters(BaseSettings):
    """Parameters of the chains.

    Attributes:
        symbols: number of tokens k.
        order: number of previous tokens on which the next token depends.
        concentration: parameter of the Dirichlet distribution of rows. Large values make all tokens equally likely;
            small values make one token of a row much more likely than the others.
        switch: probability that a new chain replaces the chain before a token.
    """

    symbols: Annotated[int, Field(ge=2, le=64)] = 3
    order: Annotated[int, Field(ge=1, le=2)] = 1
    concentration: Annotated[float, Field(ge=CONCENTRATIONS[0], le=CONCENTRATIONS[1])] = 1.0
    switch: Annotated[float, Field(ge=0, le=1)] = 0.0


class MarkovChains(StreamFamily):
    """Sequences of tokens; the question is `next`.

    `truth["rows"]` contains the distribution of each token, and of one further token, given the chain in force and the
    tokens before it. `truth["is_switch"]` marks the tokens before which the chain was replaced.

    Shifts: `concentration-C` sets the parameter of the rows, and `switch-P` sets the probability of a switch. The first
    chain of an episode does not depend on the length of the sequence or on the probability of a switch.
    """

    Parameters = MarkovParameters
    shift_kinds = MARKOV_KINDS
    oracles = frozenset({"oracle-chain", "oracle-bayes-chain"})
    parameters: MarkovParameters

    def __init__(self, parameters: MarkovParameters, data_dir: Path | None = None) -> None:
        super().__init__(parameters, data_dir)
        self.classes = parameters.symbols

    def parse_shift(self, name: str) -> Shift:
        shift, (smallest, largest) = super().parse_shift(name), CONCENTRATIONS
        if not smallest <= shift.value("concentration", 1.0) <= largest:
            raise UsageError(
                f"shift '{name}': expected a concentration from {smallest:g} to {largest:g}", code="bad-value"
            )
        return shift

    def prior(self, shift: str = "none") -> ChainPrior:
        """Return the distribution of chains under a shift."""
        parsed, parameters = self.parse_shift(shift), self.parameters
        return ChainPrior(
            parsed.value("concentration", parameters.concentration), parsed.value("switch", parameters.switch)
        )

    def probe_targets(self, episodes: Episodes, elements: int, shift: str = "none") -> dict[str, ProbeTarget]:
        """Return the targets `prediction` and `previous_element`.

        `prediction` is the exact prediction of the next token without access to the chain (`oracle-bayes-chain`), as
        log-probabilities in nats minus their mean. Without switches, it depends only on the counts of the tokens that
        followed the last `order` tokens, which is the solution of Edelman et al. 2024.
        """
        tokens = episodes.context.y[:, :elements]
        lengths = torch.full((len(tokens), 1), elements, device=tokens.device)
        order, symbols = self.parameters.order, self.parameters.symbols
        logits = posterior_rows(tokens, lengths, order, symbols, self.prior(shift)).squeeze(1).log()
        prediction = ProbeTarget.of_all(logits - logits.mean(1, keepdim=True))
        return {"prediction": prediction, **super().probe_targets(episodes, elements, shift)}

    def sample(self, request: Request) -> Episodes:
        prior, generator = self.prior(request.shift), request.generator
        # All first chains are drawn before any token, so that they do not depend on the length of the sequences.
        chains = self._chains(request.episodes, prior.concentration, generator)
        # One further position, whose row is part of the truth.
        shape = request.points + 1, request.episodes
        uniform = torch.rand(shape, generator=generator, dtype=torch.float64, device=generator.device)
        is_switch = torch.zeros(shape, dtype=torch.bool, device=generator.device)
        if prior.switch:
            is_switch = torch.rand(shape, generator=generator, device=generator.device) < prior.switch
            new_chains = self._chains(int(is_switch.sum()), prior.concentration, generator)
            chains = torch.cat([chains, new_chains])
        tokens, rows = self._follow(chains, _chains_in_force(is_switch), uniform)
        tokens = tokens[:, :-1].contiguous()
        context = Points.full(torch.empty((*tokens.shape, 0), device=generator.device), tokens)
        return Episodes(
            context=context,
            scored=context.mask,
            classes=self.classes,
            truth={"rows": rows, "is_switch": is_switch.T.contiguous()},
        )

    def _chains(self, count: int, concentration: float, generator: torch.Generator) -> Float[Tensor, "C S K"]:
        """Draw transition matrices, which contain the distribution of the next token after each of the S = k^m
        contexts."""
        symbols = self.parameters.symbols
        shape = count, symbols**self.parameters.order, symbols
        limits.check(16 * count * shape[1] * symbols, "the Markov chains of these episodes need")
        # The log of a Gamma variable of shape c is the log of a Gamma variable of shape c + 1 plus log(U) / c, which
        # does not underflow.
        shapes = torch.full(shape, concentration + 1, dtype=torch.float64, device=generator.device)
        gamma = torch._standard_gamma(shapes, generator=generator)
        uniform = torch.rand(shape, generator=generator, dtype=torch.float64, device=generator.device)
        return (gamma.log() + torch.log1p(-uniform) / concentration).softmax(-1)

    def _follow(
        self, chains: Float[Tensor, "C S K"], in_force: Int[Tensor, "N B"], quantiles: Float[Tensor, "N B"]
    ) -> tuple[Int[Tensor, "B N"], Float[Tensor, "B N K"]]:
        """Return the tokens of chains, and the distribution of each token given the tokens before it.

        Args:
            chains: the chains.
            in_force: index of the chain of each token.
            quantiles: a uniform number u for each token, which is the u-quantile of its distribution.
        """
        order, (_, contexts, symbols) = self.parameters.order, chains.shape
        all_rows, edges = chains.flatten(0, 1), chains[..., :-1].cumsum(-1).flatten(0, 1)
        first = (quantiles[:order] * symbols).long()
        tokens, indices = list(first), []
        for start, quantile in zip((in_force * contexts)[order:], quantiles[order:].unsqueeze(-1), strict=True):
            context = tokens[-1] if order == 1 else torch.add(tokens[-1], tokens[-2], alpha=symbols)
            indices.append(start + context)
            tokens.append((edges.index_select(0, indices[-1]) <= quantile).sum(-1))
        rows = torch.full((*first.shape, symbols), 1 / symbols, dtype=chains.dtype, device=chains.device)
        if indices:
            rows = torch.cat([rows, all_rows[torch.stack(indices)]])
        return torch.stack(tokens, 1), rows.transpose(0, 1).contiguous()


def _chains_in_force(is_switch: Bool[Tensor, "N B"]) -> Int[Tensor, "N B"]:
    """Return the index of the chain in force at each position. The first chains of the B episodes have the indices 0 to
    B - 1, and the new chains follow in the order of `is_switch`."""
    length, episodes = is_switch.shape
    first_chains = torch.arange(episodes, device=is_switch.device).expand(1, -1)
    new_chains = episodes - 1 + is_switch.flatten().cumsum(0).view(length, episodes)
    # Later chains have larger indices, so the maximum so far is the chain in force.
    return torch.cat([first_chains, new_chains.masked_fill(~is_switch, 0)]).cummax(0).values[1:]
