"""TNP-A (Nguyen and Grover 2022, section 3.1): TNP-D that goes from target to target, each given those before it.

The sequence has every target twice, [context (x, y); targets (x, y); queries (x, 0)]. All rows attend the context; a
target attends those before it and itself, a query the targets before its own. So one pass gives the density of every
target given the true outputs of all before it, in the order in which they are asked: it is trained by that, and the
product of these densities is its joint density (`joint_scores`, which is fed true targets and says so in its name).

An answer must not see true targets. It consists of paths: drawn target by target, each drawn output fed back before the
next target is asked, with keys and values kept. Where paths are `permute`d, each has an order of its own. All that is
random comes from a fixed table, the same for every episode, so that answers are deterministic and depend on no batch;
draws (`sample_targets`) are new paths. A target that is asked alone has no others before it, and is answered exactly.
So are events, of which only the next one is ever asked: with them TNP-A is TNP-D.

Beside what `tnp_d` lists, it differs from the released code in that

- marginal scores are of the mixture over paths; the released code reports the teacher-forced score and nothing else;
- every step computes two rows with what is kept; the released one runs the whole sequence again for every target;
- a point head feeds back its point, so that paths differ by their orders alone; labels are drawn and fed back one-hot;
- masked targets are left out of the chain: those that count stand in their order, before all others;
- `pretrain` of the released code of CMANP, whose model is trained on whole sequences at first, is not there: no
  released configuration switches it on.

As released, earlier targets are read with noise of 0.05 in training where `spread` is `bounded-0.05`. As many
parameters as TNP-D.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from iclbench.backbones.base import Backbone
from iclbench.backbones.tnp_d import TNPD, TNPDSettings
from iclbench.backbones.transformer_np import LayeredMemory
from iclbench.core.episodes import Episodes, Points
from iclbench.core.joint import Paths, Samples, over_samples
from iclbench.core.predictions import Prediction
from iclbench.core.records import cat
from iclbench.core.seeds import generator as stream
from iclbench.core.settings import PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.attention import KeysValues
from iclbench.layers.key_value_cache import causal
from iclbench.layers.paths import PathMemory, draw

# Noise on the true outputs of earlier targets in training, where the spread is bounded by as much.
_NOISE = 0.05
# Numbers that keys and values of all paths may take at once.
_HELD = 2**25
# The order of the targets in each path, and numbers from 0 to 1 and standard normal ones that draw the target of each
# step.
_Table = tuple[Int[Tensor, "S Q"], Float[Tensor, "S Q"], Float[Tensor, "S Q dy"]]


class TNPASettings(TNPDSettings):
    """The published sizes, the same for all tasks."""

    samples: PositiveInt = 50
    """Paths that are drawn where several targets are asked together."""
    permute: bool = True
    """Whether each path goes through the targets in a random order of its own, as published."""


class TNPA(TNPD[TNPASettings]):
    Settings: ClassVar[type[TNPASettings]] = TNPASettings
    predict_by_layer = Backbone.predict_by_layer  # what a layer says of a target depends on what was drawn before

    def __init__(self, settings: TNPASettings, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        self.joint = "ordered" if shape.marks is None else "apart"

    def loss(
        self, episodes: Episodes, progress: float, generator: torch.Generator
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        """The mean loss over targets, each given the true outputs of those before it; the mean over episodes."""
        if self.joint == "apart":
            return super().loss(episodes, progress, generator)
        context, targets, weights = self.training_split(episodes, generator)
        ordered, _ = targets.compact()
        fed_y = ordered.y
        if self.settings.spread == "bounded-0.05" and fed_y.is_floating_point():
            noise = torch.randn(fed_y.shape, generator=generator, device=generator.device)
            fed_y = fed_y + _NOISE * noise.to(fed_y)
        losses = self.chained(self.condition(context, episodes.related), replace(ordered, y=fed_y)).loss(ordered.y)
        loss = weights.mean((losses * ordered.mask).sum(1) / ordered.counts.clamp(min=1))
        return loss, {"loss": loss.detach()}

    def chained(self, state: LayeredMemory, targets: Points) -> Prediction:
        """The answer at every target given the outputs of all targets before it."""
        count, rows = targets.count, torch.cat([self.embed(targets), self.embed_targets(targets.x)], 1)
        earlier = causal(count, 0, rows.device)
        visible = torch.cat([earlier, earlier.tril(-1)])
        for layer, context in zip(self.targets, state.layers, strict=True):
            target_memory = layer.keys(rows[:, :count])
            joined = KeysValues(
                torch.cat([context.keys, target_memory.keys], 2), torch.cat([context.values, target_memory.values], 2)
            )
            context_visible = state.context.mask[:, None, None].expand(-1, 1, 2 * count, -1)
            rows = layer.attend(rows, joined, torch.cat([context_visible, visible.expand(len(rows), 1, -1, -1)], 3))
        return self.decode(rows[:, count:])

    def joint_scores(
        self,
        answer: Prediction,
        context: Points,
        targets: Points,
        scored: Bool[Tensor, "B Q"],
        related: Points | None = None,
    ) -> dict[str, Float[Tensor, " B"]]:
        """The product of the densities of the scored targets, each given the true outputs of those before it."""
        scored_targets, _ = replace(targets, mask=scored).compact()
        joint = self.chained(self.condition(context, related), scored_targets).joint_log_likelihood(
            scored_targets.y, scored_targets.mask
        )
        if joint is None:
            return {}
        score = joint / scored_targets.counts
        return {"log_likelihood_joint": score, "log_likelihood_teacher_forced": score}

    def query(self, state: LayeredMemory, x: Float[Tensor, "B Q Dx"]) -> Prediction:
        if x.shape[1] < 2 or self.joint == "apart":
            return super().query(state, x)
        table, size = self._table(x), max(1, self._at_once(x.shape[1]) // self.settings.samples)
        return cat([self._paths(state[b : b + size], x[b : b + size], table)[0] for b in range(0, len(x), size)])

    def sample_targets(
        self,
        context: Points,
        x_target: Float[Tensor, "B Q Dx"],
        n: int,
        generator: torch.Generator,
        related: Points | None = None,
    ) -> Tensor:
        """Paths of their own for every draw and generator; those of an answer are always the same."""
        if x_target.shape[1] < 2 or self.joint == "apart" or self.shape.head == "point":
            return super().sample_targets(context, x_target, n, generator, related)
        state, size = self.condition(context, related), max(1, self._at_once(x_target.shape[1]) // len(context))
        parts = [min(size, n - start) for start in range(0, n, size)]
        samples = [self._paths(state, x_target, self._new_table(x_target, paths, generator))[1] for paths in parts]
        return torch.cat(samples, 2).movedim(2, 0)

    def _at_once(self, targets: int) -> int:
        """Paths through so many targets that are held together."""
        return _HELD // (2 * self.settings.layers * self.settings.width * targets)

    @torch.no_grad()
    def _paths(self, state: LayeredMemory, x: Float[Tensor, "B Q Dx"], table: _Table) -> tuple[Prediction, Tensor]:
        """Paths through all targets, one step per target: the answer that they are, and what was drawn, `(B, Q, S,
        dy)`."""
        order, uniform, normal = table
        samples, count = order.shape
        features, queries = self.x_features(x)[:, order], self.embed_targets(x)[:, order]
        memories = [PathMemory(context, samples, count - 1) for context in state.layers]
        raw: list[Tensor] = []
        outputs: list[Tensor] = []
        for step in range(count):
            if step == 0:
                *_, rows = self.read_layers(state, x[:, order[:, 0]])
            else:
                drawn_tokens = self.embedding(torch.cat([features[:, :, step - 1], self.y_features(outputs[-1])], -1))
                rows = self._step(memories, torch.stack([drawn_tokens, queries[:, :, step]], 2))
            raw.append(self.decoder(rows))
            outputs.append(draw(self.read(raw[-1]), uniform[:, step], normal[:, step]))
        place, path = order.argsort(1), torch.arange(samples, device=x.device).unsqueeze(1)
        ordered_raw, ordered_outputs = (torch.stack(t, 2)[:, path, place].transpose(1, 2) for t in (raw, outputs))
        answer = over_samples(self.read(ordered_raw))
        if isinstance(answer, Samples):
            answer = Paths(answer.logits, answer.means, answer.stds, ordered_outputs)
        return answer, ordered_outputs

    def _step(self, memories: list[PathMemory], rows: Float[Tensor, "B S 2 D"]) -> Float[Tensor, "B S D"]:
        """The vectors of the next targets. Both rows of a path, the target that was drawn last and the query of the
        next one, read the context and all that was drawn; keys and values of the first are kept."""
        rows = rows.flatten(1, 2)
        for layer, memory in zip(self.targets, memories, strict=True):
            memory.add(layer.keys(rows[:, ::2]))
            rows = layer.finish(rows, memory.read(layer.queries(rows)))
        return rows[:, 1::2]

    def _table(self, x: Float[Tensor, "B Q Dx"]) -> _Table:
        """Random numbers for the paths of an answer, the same on every device."""
        size = (self.settings.samples, x.shape[1])
        order, uniform = (
            torch.rand(size, generator=stream(0, f"paths-{kind}"), device="cpu") for kind in ("order", "uniform")
        )
        normal = torch.randn(*size, self.shape.outputs, generator=stream(0, "paths-normal"), device="cpu")
        return self._ordered(order, uniform, normal, x)

    def _new_table(self, x: Float[Tensor, "B Q Dx"], samples: int, generator: torch.Generator) -> _Table:
        """Random numbers for further paths."""
        size, device = (samples, x.shape[1]), generator.device
        order, uniform = (torch.rand(size, generator=generator, device=device) for _ in range(2))
        normal = torch.randn(*size, self.shape.outputs, generator=generator, device=device)
        return self._ordered(order, uniform, normal, x)

    def _ordered(self, order: Tensor, uniform: Tensor, normal: Tensor, x: Tensor) -> _Table:
        index = order.argsort(1) if self.settings.permute else torch.arange(x.shape[1]).expand(order.shape)
        return index.to(x.device), uniform.to(x), normal.to(x)
