"""A small demo model for users without a checkpoint: a Llama that is trained on letter tasks in a few minutes.

Each training sequence contains examples of one task in the format of the algorithmic cards, `example:{x}->{y}`. The
model has to infer the task from the examples, because the input alone does not determine the output: it may be the
upper-case letter, the next letter, the previous letter or the input itself. For single letters, copying is more
frequent than any of the tasks, so the best guess without demonstrations is not the answer to any task. The saved folder
is a checkpoint that `iclbench lm eval` accepts.
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
from iclbench.store.runs import write_errors

# Maximum number of training steps. Depending on the seed, the model learns to infer the task in 900 to 2,000 steps.
STEPS = 4000
BATCH, LENGTH = 24, 96
LEARNING_RATE, WARMUP, FINAL_FACTOR = 3e-3, 100, 0.05
# If the mean of `late_accuracy` over WINDOW steps reaches TARGET_ACCURACY, the learning rate decays over the next
# DECAY_STEPS steps, and training ends.
WINDOW, TARGET_ACCURACY, DECAY_STEPS = 50, 0.97, 300
WIDTH, LAYERS, HEADS, CONTEXT = 64, 2, 4, 512

# Sampling weights of the six tasks and of two copying tasks, which are not evaluated.
SAMPLING_WEIGHTS = {
    "to-upper": 12,
    "next-letter": 13,
    "previous-letter": 13,
    "to-lower": 7,
    "list-first": 16,
    "list-last": 16,
    "copy": 14,
    "copy-upper": 9,
}
TASKS = tuple(name for name in SAMPLING_WEIGHTS if not name.startswith("copy"))
_ARROW, _END, _OPENING, _START, _UNKNOWN = "->", "\n", "example:", "<s>", "<unk>"
VOCABULARY = (_UNKNOWN, _START, _OPENING, _ARROW, _END, ",", *ascii_lowercase, *ascii_uppercase)


@dataclass(frozen=True)
class DemoModel:
    """A trained demo model.

    Attributes:
        path: the folder of the saved model.
        steps: number of training steps.
        parameters: number of parameters.
        loss: training loss of the last step, in nats.
    """

    path: Path
    steps: int
    parameters: int
    loss: float


def train(
    out: Path, seed: int = 0, steps: int = STEPS, report: Callable[[int, float], None] | None = None
) -> DemoModel:
    """Train the model and save it with its tokenizer.

    Args:
        out: the folder in which the model is saved; it must be empty or not exist yet.
        seed: seed of weights and training data.
        steps: maximum number of steps, of 24 sequences each.
        report: called after each step with the number of finished steps and the loss.

    Raises:
        UsageError: the folder is not empty.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} already exists; choose another folder, or delete it first", code="exists")
    tokenizer, model = make_tokenizer(), make_model(seed)
    _, card = load_language_card(TASKS[0])
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    decay_steps = min(DECAY_STEPS, (steps + 2) // 3)
    recent_accuracies: deque[float] = deque(maxlen=WINDOW)
    loss, step, end = float("nan"), 0, steps
    while step < end:
        has_target_accuracy = len(recent_accuracies) == WINDOW and sum(recent_accuracies) >= TARGET_ACCURACY * WINDOW
        if step < steps - decay_steps and has_target_accuracy:
            end = min(end, step + decay_steps)
        for group in optimiser.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / WARMUP, max(FINAL_FACTOR, (end - step) / decay_steps))
        ids = _batch(tokenizer, card, random.Random(stream_seed(seed, "demo-model", step)))
        logits = model(ids).logits
        answers = answer_mask(ids)[:, 1:]
        batch_loss = F.cross_entropy(logits[:, :-1][answers], ids[:, 1:][answers])
        optimiser.zero_grad(set_to_none=True)
        batch_loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        step, loss = step + 1, float(batch_loss.detach())
        recent_accuracies.append(late_accuracy(logits, ids))
        if report is not None:
            report(step, loss)
    with write_errors(out):
        model.eval().save_pretrained(out)
        tokenizer.save_pretrained(out)
    return DemoModel(out, step, sum(p.numel() for p in model.parameters()), loss)


def make_tokenizer() -> Any:
    """Create a tokenizer with one token for each letter, one for `example:` and one for the arrow. It begins each text
    with `<s>`."""
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
    """Create the untrained model, a Llama with 2 layers of width 64."""
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
        # With the default of 0.02, the attention of a narrow model is almost uniform at initialisation.
        initializer_range=0.1,
        use_cache=False,
    )
    with global_stream(seed, "weights"):
        model = LlamaForCausalLM(config)
    return model.train()


def answer_mask(ids: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """Return a mask of the answer tokens: the tokens after an arrow, up to and including the end of the line."""
    positions = torch.arange(1, ids.shape[1] + 1).expand_as(ids)
    last_arrow = (positions * (ids == VOCABULARY.index(_ARROW))).cummax(1).values
    last_end = (positions * (ids == VOCABULARY.index(_END))).cummax(1).values
    first_column = torch.zeros_like(ids[:, :1])
    return torch.cat([first_column, last_arrow[:, :-1]], 1) > torch.cat([first_column, last_end[:, :-1]], 1)


def late_accuracy(logits: Float[Tensor, "B T V"], ids: Int[Tensor, "B T"]) -> float:
    """Return the next-token accuracy on the answers in the second half of the sequences."""
    is_late = answer_mask(ids) & (ids != VOCABULARY.index(_END))
    is_late[:, : ids.shape[1] // 2] = False
    is_correct = logits[:, :-1].argmax(-1) == ids[:, 1:]
    return float(is_correct[is_late[:, 1:]].float().mean())


def draw(task: str, rng: random.Random) -> tuple[str, str]:
    """Draw a random input of a task in `SAMPLING_WEIGHTS`. Return the input and its output."""
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
    """Return training sequences, each of which has examples of one task. They are cut to the same length, so that they
    need no padding."""
    tasks = rng.choices(list(SAMPLING_WEIGHTS), weights=list(SAMPLING_WEIGHTS.values()), k=BATCH)
    # An example has at least five tokens.
    texts = ["".join(example(card, *draw(task, rng)) for _ in range(LENGTH // 5 + 1)) for task in tasks]
    return torch.tensor([ids[:LENGTH] for ids in tokenizer(texts)["input_ids"]])
