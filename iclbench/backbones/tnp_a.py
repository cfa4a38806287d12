"""TNP-A (Nguyen and Grover 2022, section 3.1): an autoregressive TNP-D, in which each target depends on the targets
before it.

The sequence contains every target twice: [context (x, y); targets (x, y); queries (x, 0)]. All rows attend to the
context. A target also attends to itself and to the targets before it, and a query also attends to the targets before
its own target. One pass therefore gives the density of every target given the true outputs of the targets before it.
These densities give the training loss, and their product is the joint density (`joint_scores`, with teacher forcing).

A prediction must not use true outputs. It consists of paths, which are drawn target by target: the model reads each
drawn output before it predicts the next target, with cached keys and values. With `permute`, each path has a separate
order of the targets. Random numbers come from a fixed table that all episodes share, so predictions are deterministic
and do not depend on the batch; `sample_targets` draws new paths. The prediction of a single target is exact, because no
target comes before it. For events, only the next event is predicted, so TNP-A equals TNP-D.

Differences from the released code, in addition to those of `tnp_d`:

- Marginal scores use the mixture over paths; the released code reports only the teacher-forced score.
- Every step computes two rows with cached keys and values; the released code recomputes the complete sequence for every
  target.
- With a point head, the model reads its own point predictions, so that paths differ only in their order. Labels are
  drawn and read as one-hot vectors.
- Masked targets are not part of the chain. Scored targets keep their order and come before all other targets.
- The option `pretrain` of CMANP's released code, to train on complete sequences first, is omitted, because no released
  configuration uses it.

As in the released code, training adds noise with standard deviation 0.05 to the outputs of earlier targets if `spread`
is `bounded-0.05`. The model has as many parameters as TNP-D.
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
from iclbench.core.joint import Paths, Samples, mix_samples
from iclbench.core.predictions import Prediction
from iclbench.core.records import cat
from iclbench.core.seeds import generator as stream
from iclbench.core.settings import PositiveInt
from iclbench.core.task import TaskShape
from iclbench.layers.attention import KeysAndValues
from iclbench.layers.key_value_cache import causal_mask
from iclbench.layers.paths import PathMemory, draw

# Standard deviation of the noise on the true outputs of earlier targets in training, if the spread has the same bound.
_NOISE = 0.05
# Largest number of elements of the keys and values of all paths that are in memory at once.
_MAX_ELEMENTS = 2**25
# The order of the targets in each path, and uniform and standard normal numbers for the draw of each step.
_PathNumbers = tuple[Int[Tensor, "S Q"], Float[Tensor, "S Q"], Float[Tensor, "S Q dy"]]


class TNPASettings(TNPDSettings):
    """Settings of tnp-a. The defaults are the published sizes, which are the same for all tasks."""

    samples: PositiveInt = 50
    """Number of paths of a prediction at several targets."""
    permute: bool = True
    """Whether each path has a separate random order of the targets, as published."""


class TNPA(TNPD[TNPASettings]):
    """TNP-D in which each target also depends on the targets before it: on their true outputs in the loss and in joint
    scores, and on drawn outputs in predictions."""

    Settings: ClassVar[type[TNPASettings]] = TNPASettings
    predict_by_layer = Backbone.predict_by_layer  # not supported, because layers depend on earlier draws

    def __init__(self, settings: TNPASettings, shape: TaskShape) -> None:
        super().__init__(settings, shape)
        self.joint = "ordered" if shape.marks is None else "apart"

    def loss(
        self, episodes: Episodes, progress: float, generator: torch.Generator
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        """Return the loss of each target given the true outputs of the targets before it, averaged over the targets of
        each episode and then over episodes."""
        if self.joint == "apart":
            return super().loss(episodes, progress, generator)
        context, targets, weights = self.training_split(episodes, generator)
        ordered_targets, _ = targets.compact()
        read_y = ordered_targets.y
        if self.settings.spread == "bounded-0.05" and read_y.is_floating_point():
            noise = torch.randn(read_y.shape, generator=generator, device=generator.device)
            read_y = read_y + _NOISE * noise.to(read_y)
        state = self.condition(context, episodes.related)
        losses = self.predict_chain(state, replace(ordered_targets, y=read_y)).loss(ordered_targets.y)
        loss = weights.mean((losses * ordered_targets.mask).sum(1) / ordered_targets.counts.clamp(min=1))
        return loss, {"loss": loss.detach()}

    def predict_chain(self, state: LayeredMemory, targets: Points) -> Prediction:
        """Return the prediction at every target given the outputs of all targets before it."""
        count, rows = targets.count, torch.cat([self.embed(targets), self.embed_targets(targets.x)], 1)
        earlier = causal_mask(count, 0, rows.device)
        visible = torch.cat([earlier, earlier.tril(-1)])
        for layer, context in zip(self.targets, state.layers, strict=True):
            target_memory = layer.keys(rows[:, :count])
            memory = KeysAndValues(
                torch.cat([context.keys, target_memory.keys], 2), torch.cat([context.values, target_memory.values], 2)
            )
            context_visible = state.context.mask[:, None, None].expand(-1, 1, 2 * count, -1)
            rows = layer.attend(rows, memory, torch.cat([context_visible, visible.expand(len(rows), 1, -1, -1)], 3))
        return self.decode(rows[:, count:])

    def joint_scores(
        self,
        answer: Prediction,
        context: Points,
        targets: Points,
        scored: Bool[Tensor, "B Q"],
        related: Points | None = None,
    ) -> dict[str, Float[Tensor, " B"]]:
        """Return the joint log-likelihood of the scored targets, divided by their number: the sum of the log-densities
        of the targets, each given the true outputs of the targets before it."""
        scored_targets, _ = replace(targets, mask=scored).compact()
        joint = self.predict_chain(self.condition(context, related), scored_targets).joint_log_likelihood(
            scored_targets.y, scored_targets.mask
        )
        if joint is None:
            return {}
        score = joint / scored_targets.counts
        return {"log_likelihood_joint": score, "log_likelihood_teacher_forced": score}

    def query(self, state: LayeredMemory, x: Float[Tensor, "B Q Dx"]) -> Prediction:
        if x.shape[1] < 2 or self.joint == "apart":
            return super().query(state, x)
        path_numbers, size = self._fixed_path_numbers(x), max(1, self._max_paths(x.shape[1]) // self.settings.samples)
        return cat([self._paths(state[b : b + size], x[b : b + size], path_numbers)[0] for b in range(0, len(x), size)])

    def sample_targets(
        self,
        context: Points,
        x_target: Float[Tensor, "B Q Dx"],
        n: int,
        generator: torch.Generator,
        related: Points | None = None,
    ) -> Tensor:
        """Draw samples from new paths with the generator, whereas a prediction uses fixed paths."""
        if x_target.shape[1] < 2 or self.joint == "apart" or self.shape.head == "point":
            return super().sample_targets(context, x_target, n, generator, related)
        state, size = self.condition(context, related), max(1, self._max_paths(x_target.shape[1]) // len(context))
        portions = [min(size, n - start) for start in range(0, n, size)]
        samples = [
            self._paths(state, x_target, self._new_path_numbers(x_target, paths, generator))[1] for paths in portions
        ]
        return torch.cat(samples, 2).movedim(2, 0)

    def _max_paths(self, targets: int) -> int:
        """Return the largest number of paths over this many targets that are in memory at once."""
        return _MAX_ELEMENTS // (2 * self.settings.layers * self.settings.width * targets)

    @torch.no_grad()
    def _paths(
        self, state: LayeredMemory, x: Float[Tensor, "B Q Dx"], path_numbers: _PathNumbers
    ) -> tuple[Prediction, Tensor]:
        """Draw paths over all targets, one target per step. Return the prediction and the drawn outputs, with shape
        `(B, Q, S, dy)`."""
        order, uniform, normal = path_numbers
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
        step_of_target, path = order.argsort(1), torch.arange(samples, device=x.device).unsqueeze(1)
        ordered_raw, ordered_outputs = (
            torch.stack(t, 2)[:, path, step_of_target].transpose(1, 2) for t in (raw, outputs)
        )
        answer = mix_samples(self.read(ordered_raw))
        if isinstance(answer, Samples):
            answer = Paths(answer.logits, answer.means, answer.stds, ordered_outputs)
        return answer, ordered_outputs

    def _step(self, memories: list[PathMemory], rows: Float[Tensor, "B S 2 D"]) -> Float[Tensor, "B S D"]:
        """Return the vectors of the next targets. A path has two rows: the target that was drawn last, whose keys and
        values are added to the cache, and the query of the next target. Both attend to the context and to all drawn
        targets."""
        rows = rows.flatten(1, 2)
        for layer, memory in zip(self.targets, memories, strict=True):
            memory.add(layer.keys(rows[:, ::2]))
            rows = layer.finish(rows, memory.read(layer.queries(rows)))
        return rows[:, 1::2]

    def _fixed_path_numbers(self, x: Float[Tensor, "B Q Dx"]) -> _PathNumbers:
        """Draw the random numbers for the paths of a prediction, which are the same on every device."""
        size = (self.settings.samples, x.shape[1])
        order, uniform = (
            torch.rand(size, generator=stream(0, f"paths-{name}"), device="cpu") for name in ("order", "uniform")
        )
        normal = torch.randn(*size, self.shape.outputs, generator=stream(0, "paths-normal"), device="cpu")
        return self._to_path_numbers(order, uniform, normal, x)

    def _new_path_numbers(self, x: Float[Tensor, "B Q Dx"], samples: int, generator: torch.Generator) -> _PathNumbers:
        """Draw random numbers for new paths."""
        size, device = (samples, x.shape[1]), generator.device
        order, uniform = (torch.rand(size, generator=generator, device=device) for _ in range(2))
        normal = torch.randn(*size, self.shape.outputs, generator=generator, device=device)
        return self._to_path_numbers(order, uniform, normal, x)

    def _to_path_numbers(self, order: Tensor, uniform: Tensor, normal: Tensor, x: Tensor) -> _PathNumbers:
        index = order.argsort(1) if self.settings.permute else torch.arange(x.shape[1]).expand(order.shape)
        return index.to(x.device), uniform.to(x), normal.to(x)
