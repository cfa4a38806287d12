"""Pretrained language models, which map tokens to logits and return the keys and values of a text as a memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from iclbench.core.errors import UsageError
from iclbench.deep_thinking.memory import Memory
from iclbench.language.models import architectures, checks
from iclbench.language.models.tokenizing import Tokenizer, Tokens


class LanguageModel:
    """A causal language model of transformers with its tokenizer.

    Rows of different lengths are padded on the right, and no token attends to padding. If the architecture accepts
    positions and a mask, they are passed explicitly. A model with a memory (`has_memory`) reads demonstrations once
    (`read`) and then any number of queries that follow them (`logits` with a memory). Other models read complete
    prompts.

    Attributes:
        name: the name of the model in the tables.
        identity: hash of configuration, weights, tokenizer and precision.
        model_type: the architecture (`model_type` of its configuration).
        device: the device of its weights.
        dtype: the type of its weights and activations.
        longest: context length in tokens; None if it is unlimited.
        memory_obstacle: why its keys and values cannot be used as a memory, as a clause; empty if they can be used.
        end_tokens: its end-of-text tokens.
        uses_positions: whether tokens can be read at other positions than their own (argument `first` of `read`).
        can_generate: whether `greedy` can be used. It is False if the model has a memory, which is used instead.

    Raises:
        DataError: the logits of the model are not finite, or depend on later tokens.
    """

    def __init__(self, module: Any, tokenizer: Any, name: str, identity: str) -> None:
        self._module: Any = module.eval().requires_grad_(False)
        self._inputs = architectures.inputs(module)
        self._memory_input = architectures.memory_input(module)
        self.vocabulary = int(module.get_input_embeddings().weight.shape[0])
        self._tokenizer = Tokenizer(tokenizer, self.vocabulary, name)
        self._head: nn.Module | None = module.get_output_embeddings()
        self.name, self.identity = name, identity
        self.model_type = str(module.config.model_type)
        self.device = str(module.device)
        self.dtype: torch.dtype = module.dtype
        self.end_tokens = architectures.end_tokens(module, tokenizer)
        self.longest = architectures.context_length(module.config)
        checks.check_causal(self)
        if not checks.can_select_positions(self):
            self._head = None
        self.memory_obstacle = architectures.memory_obstacle(module)
        self.uses_positions = self.has_memory
        if self.has_memory:
            self.memory_obstacle = checks.memory_obstacle(self)
            self.uses_positions = self.has_memory and checks.uses_positions(self)
        self.can_generate = not self.has_memory and module.can_generate() and checks.can_generate(self)

    @property
    def has_memory(self) -> bool:
        """Whether the keys and values of the model can be used as a memory."""
        return not self.memory_obstacle

    def tokens(self, text: str) -> Tokens:
        """Return the tokens of a text."""
        return self._tokenizer(text)

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of these tokens, without special tokens."""
        return self._tokenizer.text(ids)

    @torch.no_grad()
    def logits(
        self,
        ids: Int[Tensor, "B T"],
        mask: Bool[Tensor, "B T"],
        memory: Memory | None = None,
        keep: Int[Tensor, "B K"] | None = None,
    ) -> Float[Tensor, "B K V"]:
        """Compute next-token logits in float32, at all positions or only at the positions `keep`.

        Args:
            ids: tokens, padded on the right.
            mask: True for tokens that are not padding.
            memory: memory of the preceding tokens, with one row for each row of `ids` or one row for all.
            keep: positions whose logits are returned. Other logits are not computed, if the architecture supports this.

        Raises:
            UsageError: a sequence is longer than the context length.
        """
        return self._forward(ids, mask, None if memory is None else self._cache(memory, len(ids)), keep=keep)

    @torch.no_grad()
    def read(self, ids: Int[Tensor, "B L"], after: Memory | None = None, first: int | None = None) -> Memory:
        """Read tokens and return their keys and values as a memory, in the precision of the model.

        Args:
            ids: tokens; all rows have the same length.
            after: memory of the preceding tokens. The tokens attend to it, but it is not part of the returned memory.
            first: position of the first token (default: the position after `after`).

        Raises:
            UsageError: the model has no memory or no explicit positions, or the sequence is longer than the context
                length.
        """
        return self.step(ids, after, first)[1]

    @torch.no_grad()
    def step(
        self, ids: Int[Tensor, "B L"], after: Memory | None = None, first: int | None = None
    ) -> tuple[Float[Tensor, "B V"], Memory]:
        """Read tokens. Return the next-token logits after the last token, and the memory that `read` returns."""
        from iclbench.language.models import caches

        if self.memory_obstacle:
            raise self._no_memory()
        past_length = 0 if after is None else after.length
        if first not in (None, past_length) and not self.uses_positions:
            raise UsageError(
                f"'{self.name}' does not take positions; pass -o method.positions=continue", code="not-applicable"
            )
        cache = caches.cache_of(None) if after is None else self._cache(after, len(ids))
        last_place = torch.full((len(ids), 1), ids.shape[1] - 1)
        start, mask = past_length if first is None else first, torch.ones_like(ids, dtype=torch.bool)
        logits = self._forward(ids, mask, cache, start, last_place)
        return logits[:, 0], caches.new_memory(cache)

    @torch.no_grad()
    def greedy(
        self,
        ids: Int[Tensor, "B T"],
        tokens: int,
        is_complete: Callable[[list[int]], bool],
        on_logits: Callable[[Tensor], None] = checks.check_logits,
    ) -> list[list[int]]:
        """Generate the most probable tokens after each row, with transformers' `generate` and its cache.

        Args:
            ids: tokens; all rows have the same length.
            tokens: maximum number of generated tokens.
            is_complete: returns whether the generated tokens of a row are a complete answer.
            on_logits: called with the logits `(B, V)` before each token is chosen.

        Raises:
            UsageError: a sequence would be longer than the context length.
            NonFiniteError: the largest logit is not finite.
        """
        from transformers import GenerationConfig

        rows, length = ids.shape
        self._check_length(length + tokens - 1)
        lengths: dict[int, int] = {}

        def report_logits(_: Tensor, logits: Tensor) -> Tensor:
            on_logits(logits)
            return logits

        def stopping_criterion(sequences: Tensor, *_: Any) -> Tensor:
            for row, answer in enumerate(sequences[:, length:].tolist()):
                if row not in lengths and is_complete(answer):
                    lengths[row] = len(answer)
            return torch.tensor([row in lengths for row in range(rows)], device=sequences.device)

        # Override the settings of the checkpoint, which may enable penalties or sampling.
        self._module.generation_config = GenerationConfig(max_new_tokens=tokens, do_sample=False, pad_token_id=0)
        ids = ids.to(self.device)
        sequences = self._module.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            logits_processor=[report_logits],
            stopping_criteria=[stopping_criterion],
        )
        return [answer[: lengths.get(row)] for row, answer in enumerate(sequences[:, length:].tolist())]

    def _cache(self, memory: Memory, batch: int) -> Any:
        from iclbench.language.models import caches

        if self.memory_obstacle:
            raise self._no_memory()
        return caches.cache_of(memory.to(self.device, self.dtype).expand(batch))

    def _no_memory(self) -> UsageError:
        return UsageError(f"'{self.name}' does not support a memory: {self.memory_obstacle}", code="not-applicable")

    def _forward(
        self,
        ids: Int[Tensor, "B T"],
        mask: Bool[Tensor, "B T"],
        cache: Any = None,
        first: int | None = None,
        keep: Int[Tensor, "B K"] | None = None,
    ) -> Float[Tensor, "B K V"]:
        (rows, tokens), past_length = ids.shape, cache.get_seq_length() if cache is not None else 0
        first = past_length if first is None else first
        self._check_length(max(past_length, first) + tokens)
        arguments: dict[str, Any] = {"input_ids": ids.to(self.device), "use_cache": cache is not None}
        if self._memory_input is not None:  # recurrent models need no mask, since the padding is on the right
            full_mask = torch.cat([mask.new_ones(rows, past_length), mask], 1)
            arguments["attention_mask"] = full_mask.to(self.device, torch.long)
            if "position_ids" in self._inputs:
                arguments["position_ids"] = torch.arange(first, first + tokens, device=self.device).expand(rows, -1)
            if cache is not None:
                arguments[self._memory_input] = cache
        if keep is None:
            return self._module(**arguments).logits.float()
        keep = keep.to(self.device)
        with self._select_in_head(keep) as is_supported:
            logits = self._module(**arguments).logits
        return (logits if is_supported else _select_positions(logits, keep)).float()

    def _check_length(self, length: int) -> None:
        if self.longest is not None and length > self.longest:
            raise UsageError(
                f"a sequence of {length} tokens is longer than the context length of '{self.name}', {self.longest}",
                code="too-large",
            )

    @contextmanager
    def _select_in_head(self, keep: Int[Tensor, "B K"]) -> Iterator[bool]:
        """Within the block, let the output head compute logits only at these positions. Yield whether the model
        supports this."""
        if self._head is None:
            yield False
            return
        hook = self._head.register_forward_pre_hook(
            lambda _, arguments: (_select_positions(arguments[0], keep), *arguments[1:])
        )
        try:
            yield True
        finally:
            hook.remove()


def _select_positions(sequence: Float[Tensor, "B T D"], places: Int[Tensor, "B K"]) -> Float[Tensor, "B K D"]:
    return sequence.gather(1, places[..., None].expand(-1, -1, sequence.shape[-1]))


def load(
    name: str,
    *,
    revision: str | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    trust_remote_code: bool = False,
    offline: bool = False,
    contestant_name: str | None = None,
) -> LanguageModel:
    """Load a model from a folder or the Hugging Face hub.

    Args:
        name: folder or hub id.
        revision: branch, tag or commit of a hub id.
        dtype: precision; `auto` uses the precision of the checkpoint.
        device: the device.
        trust_remote_code: whether code of the checkpoint may run.
        offline: whether to use only the local cache, without network access.
        contestant_name: name in the tables (default: the last part of `name`, with the precision if it is not float32).

    Raises:
        UsageError: the model does not exist, needs untrusted code, or is not a causal language model.
        DataError: files of the checkpoint are missing or damaged.
    """
    from iclbench.language.models import loading

    if contestant_name is not None and (
        not contestant_name or contestant_name.startswith(".") or {"/", "\\"} & set(contestant_name)
    ):
        raise UsageError(
            f"'{contestant_name}' is not a valid name; give one without slashes that does not begin with a dot",
            code="bad-value",
        )
    source = loading.find(name, revision=revision, trust_remote_code=trust_remote_code, offline=offline)
    with loading.quiet_logs():
        module, tokenizer, identity = loading.read(source, dtype=dtype, device=device)
        precision = "" if module.dtype == torch.float32 else f"-{str(module.dtype).removeprefix('torch.')}"
        return LanguageModel(module, tokenizer, contestant_name or source.model_name + precision, identity)
