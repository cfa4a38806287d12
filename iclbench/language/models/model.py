"""Pretrained language models: tokens in, logits out, and what was read as a memory."""

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

    Texts of different lengths stand in rows that are padded on the right, whose padding no token attends to; positions
    and mask are always given. A model that `remembers` reads demonstrations once (`read`) and then any number of
    queries after them (`logits` with a memory); one that `forgets` is given whole prompts.

    Attributes:
        name: the contestant's name.
        identity: hash of configuration, weights, tokenizer and precision.
        model_type: the architecture, as its configuration has it.
        device: where it lies.
        dtype: what it computes in.
        longest: tokens of the longest sequence; None: no limit.
        forgets: why its memory cannot be read out and put back, as a clause; empty: it can.
        ends: tokens with which its texts end.
        placed: tokens can be read as if they stood elsewhere (`first`), which needs positions that are given.
        generates: `greedy` can be used in place of a memory.

    Raises:
        DataError: its logits are not finite, or what follows a token changes what is predicted there.
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
        self.ends = architectures.ends(module, tokenizer)
        self.longest = architectures.longest(module.config)
        checks.causal(self)
        if not checks.keeps(self):
            self._head = None
        self.forgets = architectures.obstacle(module)
        self.placed = self.remembers
        if self.remembers:
            self.forgets = checks.memory(self)
            self.placed = self.remembers and checks.placed(self)
        self.generates = not self.remembers and module.can_generate() and checks.generates(self)

    @property
    def remembers(self) -> bool:
        """Whether what it has read can be read out and put back."""
        return not self.forgets

    def tokens(self, text: str) -> Tokens:
        """The text in tokens."""
        return self._tokenizer(text)

    def text(self, ids: Sequence[int]) -> str:
        """The text of these tokens, without tokens of beginning and end."""
        return self._tokenizer.text(ids)

    @torch.no_grad()
    def logits(
        self,
        ids: Int[Tensor, "B T"],
        mask: Bool[Tensor, "B T"],
        memory: Memory | None = None,
        keep: Int[Tensor, "B K"] | None = None,
    ) -> Float[Tensor, "B K V"]:
        """Logits of the token that follows each of these tokens, or each of those at the places `keep`, in float32.

        Args:
            ids: tokens, padded on the right.
            mask: which of them are no padding.
            memory: what comes before them, of each row or one for all.
            keep: places in the rows whose logits are wanted; the others are not computed where the architecture allows.

        Raises:
            UsageError: a sequence is longer than the model can read.
        """
        return self._forward(ids, mask, None if memory is None else self._cache(memory, len(ids)), keep=keep)

    @torch.no_grad()
    def read(self, ids: Int[Tensor, "B L"], after: Memory | None = None, first: int | None = None) -> Memory:
        """What the model remembers of these tokens, in its own precision.

        Args:
            ids: tokens, as many in each row.
            after: memory before them, which is attended to and not returned.
            first: position of the first token; None: behind `after`.

        Raises:
            UsageError: the model has no such memory or no positions to choose, or the tokens are too many.
        """
        return self.step(ids, after, first)[1]

    @torch.no_grad()
    def step(
        self, ids: Int[Tensor, "B L"], after: Memory | None = None, first: int | None = None
    ) -> tuple[Float[Tensor, "B V"], Memory]:
        """`read`, and the logits of the token that follows."""
        from iclbench.language.models import caches

        if self.forgets:
            raise UsageError(f"{self.name} has no memory to read out: {self.forgets}")
        past = 0 if after is None else after.length
        if first not in (None, past) and not self.placed:
            raise UsageError(f"{self.name} takes no positions; give -o method.positions=continue")
        cache = caches.cache_of(None) if after is None else self._cache(after, len(ids))
        last_place = torch.full((len(ids), 1), ids.shape[1] - 1)
        start, mask = past if first is None else first, torch.ones_like(ids, dtype=torch.bool)
        logits = self._forward(ids, mask, cache, start, last_place)
        return logits[:, 0], caches.present(cache)

    @torch.no_grad()
    def greedy(
        self,
        ids: Int[Tensor, "B T"],
        tokens: int,
        ended: Callable[[list[int]], bool],
        look: Callable[[Tensor], None] = checks.choosable,
    ) -> list[list[int]]:
        """The most probable tokens after each row, one by one, by transformers' `generate` and its cache.

        Args:
            ids: tokens, as many in each row.
            tokens: how many at most.
            ended: whether an answer is complete; nothing follows its last token.
            look: is shown the logits `(B, V)` before each token is chosen.

        Raises:
            UsageError: a sequence would be longer than the model can read.
            NonFiniteError: the model has no most probable token.
        """
        from transformers import GenerationConfig

        rows, length = ids.shape
        self._check_reach(length + tokens - 1)
        lengths: dict[int, int] = {}

        def shown(_: Tensor, logits: Tensor) -> Tensor:
            look(logits)
            return logits

        def complete(read: Tensor, *_: Any) -> Tensor:
            for row, answer in enumerate(read[:, length:].tolist()):
                if row not in lengths and ended(answer):
                    lengths[row] = len(answer)
            return torch.tensor([row in lengths for row in range(rows)], device=read.device)

        # Otherwise the checkpoint's own settings, such as penalties and sampling, would fill in what is not given.
        self._module.generation_config = GenerationConfig(max_new_tokens=tokens, do_sample=False, pad_token_id=0)
        ids = ids.to(self.device)
        sequences = self._module.generate(
            ids, attention_mask=torch.ones_like(ids), logits_processor=[shown], stopping_criteria=[complete]
        )
        return [answer[: lengths.get(row)] for row, answer in enumerate(sequences[:, length:].tolist())]

    def _cache(self, memory: Memory, batch: int) -> Any:
        from iclbench.language.models import caches

        if self.forgets:
            raise UsageError(f"{self.name} has no memory to put back: {self.forgets}")
        return caches.cache_of(memory.to(self.device, self.dtype).expand(batch))

    def _forward(
        self,
        ids: Int[Tensor, "B T"],
        mask: Bool[Tensor, "B T"],
        cache: Any = None,
        first: int | None = None,
        keep: Int[Tensor, "B K"] | None = None,
    ) -> Float[Tensor, "B K V"]:
        (rows, tokens), past = ids.shape, cache.get_seq_length() if cache is not None else 0
        first = past if first is None else first
        self._check_reach(max(past, first) + tokens)
        arguments: dict[str, Any] = {"input_ids": ids.to(self.device), "use_cache": cache is not None}
        if self._memory_input is not None:  # recurrent models read padding on the right without harm
            arguments["attention_mask"] = torch.cat([mask.new_ones(rows, past), mask], 1).to(self.device, torch.long)
            if "position_ids" in self._inputs:
                arguments["position_ids"] = torch.arange(first, first + tokens, device=self.device).expand(rows, -1)
            if cache is not None:
                arguments[self._memory_input] = cache
        if keep is None:
            return self._module(**arguments).logits.float()
        keep = keep.to(self.device)
        with self._only(keep) as computed:
            logits = self._module(**arguments).logits
        return (logits if computed else _at(logits, keep)).float()

    def _check_reach(self, reach: int) -> None:
        if self.longest is not None and reach > self.longest:
            raise UsageError(f"a sequence of {reach} tokens is longer than the {self.longest} that {self.name} reads")

    @contextmanager
    def _only(self, keep: Int[Tensor, "B K"]) -> Iterator[bool]:
        """Within, the head is asked at these places only; whether it can be."""
        if self._head is None:
            yield False
            return
        hook = self._head.register_forward_pre_hook(lambda _, arguments: (_at(arguments[0], keep), *arguments[1:]))
        try:
            yield True
        finally:
            hook.remove()


def _at(sequence: Float[Tensor, "B T D"], places: Int[Tensor, "B K"]) -> Float[Tensor, "B K D"]:
    return sequence.gather(1, places[..., None].expand(-1, -1, sequence.shape[-1]))


def load(
    name: str,
    *,
    revision: str | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    trust_remote_code: bool = False,
    offline: bool = False,
    called: str | None = None,
) -> LanguageModel:
    """A model by its folder or its id on the hub.

    Args:
        name: folder or id.
        revision: branch, tag or commit, of an id.
        dtype: precision; `auto`: the checkpoint's own.
        device: where to.
        trust_remote_code: whether code of the checkpoint may be run.
        offline: look for ids in the local cache only, without any attempt to reach the network.
        called: name of the contestant; None: the last part of `name`, and the precision where it is not float32.

    Raises:
        UsageError: there is no such model, it wants what was not allowed, or it is no causal language model.
        DataError: files of the checkpoint are missing or damaged.
    """
    from iclbench.language.models import loading

    if called is not None and (not called or called.startswith(".") or {"/", "\\"} & set(called)):
        raise UsageError(
            f"'{called}' is no name of a contestant, whose tables are files of that name; leave out slashes"
        )
    source = loading.find(name, revision=revision, trust_remote_code=trust_remote_code, offline=offline)
    with loading.quiet():
        module, tokenizer, identity = loading.read(source, dtype=dtype, device=device)
        precision = "" if module.dtype == torch.float32 else f"-{str(module.dtype).removeprefix('torch.')}"
        return LanguageModel(module, tokenizer, called or source.called + precision, identity)
