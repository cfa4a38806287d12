"""A small language model for users without weights: a Llama trained from nothing on letters, in a few minutes.

It reads what the algorithmic tasks write, `example:{x}->{y}`, one task per sequence, and has to find out from the
examples which: what a letter is mapped to (upper case, the next one, the one before, itself) cannot be told from the
letter alone. Copying is trained besides the tasks and more often, so that without demonstrations the best guess is none
of them. The folder it is saved to is one like any other for `iclbench lm eval`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from iclbench.core.errors import UsageError
from iclbench.core.seeds import global_stream, stream_seed
from iclbench.language.prompting.text import example
from iclbench.language.tasks.cards import LanguageCard, load_language_card
from iclbench.store.runs import writing

# At most. When the tasks are told apart differs from seed to seed by a factor of two: 900 to 2,000 steps.
STEPS = 4000
BATCH, LENGTH = 24, 96
LEARNING_RATE, WARMUP, FINAL = 3e-3, 100, 0.05
# Once the mean of so many steps' accuracies in the second halves of sequences is that high, the learning rate falls to
# its end in so many steps.
WINDOW, LEARNED, FALL = 50, 0.97, 300
WIDTH, LAYERS, HEADS, CONTEXT = 64, 2, 4, 512

# How often a sequence is one of each: six tasks, and copies.
SHARES = {
    "to-upper": 12,
    "next-letter": 13,
    "previous-letter": 13,
    "to-lower": 7,
    "list-first": 16,
    "list-last": 16,
    "copy": 14,
    "copy-upper": 9,
}
TASKS = tuple(name for name in SHARES if not name.startswith("copy"))
_ARROW, _END, _OPENING, _START, _UNKNOWN = "->", "\n", "example:", "<s>", "<unk>"
VOCABULARY = (_UNKNOWN, _START, _OPENING, _ARROW, _END, ",", *ascii_lowercase, *ascii_uppercase)


@dataclass(frozen=True)
class DemoModel:
    """Where it lies, and what it took."""

    path: Path
    steps: int
    parameters: int
    loss: float


def train(
    out: Path, seed: int = 0, steps: int = STEPS, report: Callable[[int, float], None] | None = None
) -> DemoModel:
    """Train the model and save it with its tokenizer to the folder `out`.

    Args:
        out: a folder that does not exist yet, or is empty.
        seed: of weights and training data.
        steps: of 24 sequences each, at most.
        report: called with the steps done and the loss.

    Raises:
        UsageError: there is something in the folder.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is there already; name another folder, or delete it first")
    tokenizer, model = make_tokenizer(), make_model(seed)
    _, card = load_language_card(TASKS[0])
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    fall = min(FALL, (steps + 2) // 3)
    late: deque[float] = deque(maxlen=WINDOW)
    loss, step, end = float("nan"), 0, steps
    while step < end:
        if step < steps - fall and len(late) == WINDOW and sum(late) >= LEARNED * WINDOW:
            end = min(end, step + fall)
        for group in optimiser.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / WARMUP, max(FINAL, (end - step) / fall))
        ids = _batch(tokenizer, card, random.Random(stream_seed(seed, "demo-model", step)))
        logits = model(ids).logits
        answers = answer_mask(ids)[:, 1:]
        batch_loss = F.cross_entropy(logits[:, :-1][answers], ids[:, 1:][answers])
        optimiser.zero_grad(set_to_none=True)
        batch_loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        step, loss = step + 1, float(batch_loss.detach())
        late.append(late_accuracy(logits, ids))
        if report is not None:
            report(step, loss)
    with writing(out):
        model.eval().save_pretrained(out)
        tokenizer.save_pretrained(out)
    return DemoModel(out, step, sum(p.numel() for p in model.parameters()), loss)


def make_tokenizer() -> Any:
    """A token for every letter, one for `example:` and one for the arrow; a text begins with `<s>`."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    numbers = {token: number for number, token in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token=_UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(f"{_OPENING}|{_ARROW}|[\\s\\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{_START} $A", special_tokens=[(_START, numbers[_START])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=_START,
        unk_token=_UNKNOWN,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def make_model(seed: int) -> Any:
    """The untrained model: a Llama of 2 layers, 64 wide."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=VOCABULARY.index(_START),
        eos_token_id=None,
        pad_token_id=None,
        # Attention of a narrow model starts nearly uniform with the usual 0.02.
        initializer_range=0.1,
        use_cache=False,
    )
    with global_stream(seed, "weights"):
        model = LlamaForCausalLM(config)
    return model.train()


def answer_mask(ids: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """Which tokens belong to an answer: those behind an arrow, up to the end of the line and with it."""
    places = torch.arange(1, ids.shape[1] + 1).expand_as(ids)
    arrow = (places * (ids == VOCABULARY.index(_ARROW))).cummax(1).values
    end = (places * (ids == VOCABULARY.index(_END))).cummax(1).values
    before = torch.zeros_like(ids[:, :1])
    return torch.cat([before, arrow[:, :-1]], 1) > torch.cat([before, end[:, :-1]], 1)


def late_accuracy(logits: Float[Tensor, "B T V"], ids: Int[Tensor, "B T"]) -> float:
    """The share of answers in the second half of the sequences that the model would have written; the logits at a token
    are those of the next one."""
    late = answer_mask(ids) & (ids != VOCABULARY.index(_END))
    late[:, : ids.shape[1] // 2] = False
    right = logits[:, :-1].argmax(-1) == ids[:, 1:]
    return float(right[late[:, 1:]].float().mean())


def draw(task: str, rng: random.Random) -> tuple[str, str]:
    """An input of one of `SHARES`, and its output."""
    if task.startswith("list"):
        letters = rng.choices(ascii_lowercase, k=rng.randint(2, 4))
        return ",".join(letters), letters[0 if task == "list-first" else -1]
    if task in ("to-lower", "copy-upper"):
        letter = rng.choice(ascii_uppercase)
        return letter, letter.lower() if task == "to-lower" else letter
    if task in ("next-letter", "previous-letter"):
        place, step = rng.randrange(25), 1 if task == "next-letter" else -1
        pair = ascii_lowercase[place : place + 2][::step]
        return pair[0], pair[1]
    letter = rng.choice(ascii_lowercase)
    return letter, letter.upper() if task == "to-upper" else letter


def _batch(tokenizer: Any, card: LanguageCard, rng: random.Random) -> Int[Tensor, "B T"]:
    """Sequences of one task each, all of the same length: nothing is padded."""
    tasks = rng.choices(list(SHARES), weights=list(SHARES.values()), k=BATCH)
    # An example has at least five tokens.
    texts = ["".join(example(card, *draw(task, rng)) for _ in range(LENGTH // 5 + 1)) for task in tasks]
    return torch.tensor([ids[:LENGTH] for ids in tokenizer(texts)["input_ids"]])
