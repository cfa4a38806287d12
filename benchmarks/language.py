"""Time to read demonstrations once for all queries, compared with the complete prompt for every candidate.

    python benchmarks/language.py            # some minutes; writes language.md, exits with 1 if a target is missed
    python benchmarks/language.py --dry      # a trial that writes no file

There are five demonstrations of about a hundred tokens each, and 64 queries of about twenty tokens with four
candidates, two of which are one token. The reference is the loop of evaluation scripts: every candidate of every query
is one row of prompt and answer, in the same batches with the same padding. A third variant reads equal candidates once.
The methods are plain ICL and Deep-Thinking (five passes, of which the last one is scored). The measure is CPU seconds
of one thread (`time.process_time`), the minimum of two.
"""

from __future__ import annotations

import argparse
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from iclbench.deep_thinking.methods import Method, method
from iclbench.language.answering.rounds import run_rounds
from iclbench.language.answering.scoring import candidate_scores
from iclbench.language.models.batches import Batches, pad_tokens
from iclbench.language.models.model import LanguageModel, load
from iclbench.language.prompting.text import Prompt
from iclbench.language.prompting.tokenised import Question, questions

PROMISED, QUERIES, BATCH = 3.0, 64, 64
CANDIDATES = (" w1", " w2", " w3 w4", " w5 w6 w7")


def model(folder: Path) -> LanguageModel:
    """Build a random Llama with six layers of width 256, whose tokens are words."""
    words = {f"w{i}": i for i in range(1000)} | {"<unk>": 1000}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.WhitespaceSplit(), decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=6,
        num_attention_heads=8,
        max_position_embeddings=2048,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return load(str(folder))


def prompts() -> list[Prompt]:
    """Sample prompts of random words."""
    rng = random.Random(0)

    def words(count: int) -> str:
        return " ".join(f"w{rng.randrange(10, 1000)}" for _ in range(count))

    demonstrations = words(500)
    return [Prompt(demonstrations, " " + words(rng.randrange(15, 26)), CANDIDATES) for _ in range(QUERIES)]


def ours(llama: LanguageModel, queries: Sequence[Question], how: Method, scored_passes: set[int]) -> np.ndarray:
    batches = Batches(BATCH)
    rounds = run_rounds(
        llama,
        how,
        queries,
        lambda rows, memory, on_prompt_end: candidate_scores(llama, rows, batches, memory, on_prompt_end),
        batches,
        shared=True,
        pass_counts=scored_passes,
    )
    return np.array(rounds[max(scored_passes)].replies)


def complete_prompts(llama: LanguageModel, queries: Sequence[Question]) -> np.ndarray:
    """Score complete prompts, with equal candidates read once."""
    return np.array(candidate_scores(llama, [question.merge_demonstrations() for question in queries], Batches(BATCH)))


def loop(llama: LanguageModel, queries: Sequence[Question]) -> np.ndarray:
    """Score complete prompts, with a row for every candidate."""
    rows = [c for question in queries for c in question.merge_demonstrations().continuations]
    likelihoods = []
    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        ids, mask = pad_tokens([row.ids for row in batch])
        logs = llama.logits(ids, mask).log_softmax(-1)
        for row, log_probabilities in zip(batch, logs, strict=True):
            likelihoods.append(sum(float(log_probabilities[i - 1, row.ids[i]]) for i in range(row.start, len(row.ids))))
    return np.array(likelihoods).reshape(len(queries), -1)


def measure(work: Callable[[], np.ndarray], repeats: int = 2) -> tuple[np.ndarray, float]:
    """Return the result of the work, and the minimum of its seconds."""
    seconds = []
    for _ in range(repeats):
        started = time.process_time()
        result = work()
        seconds.append(time.process_time() - started)
    return result, min(seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry", action="store_true", help="write no file")
    dry = parser.parse_args().dry
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        llama = model(Path(folder))
    texts = prompts()
    queries = questions(llama.tokens, texts, shared=True)
    plain, thinking = method("icl"), method("deep-thinking", {"trace": False})
    # Only our times include tokenisation. The others are given tokens.
    ways = {
        "every candidate with its complete prompt": lambda: loop(llama, queries),
        "complete prompts, equal candidates once": lambda: complete_prompts(llama, queries),
        "demonstrations once": lambda: ours(llama, questions(llama.tokens, texts, shared=True), plain, {1}),
        "demonstrations once, Deep-Thinking, T = 5": lambda: ours(llama, queries, thinking, {1, 5}),
        "the same, all five passes scored": lambda: ours(llama, queries, thinking, {1, 2, 3, 4, 5}),
    }
    results = {name: measure(work) for name, work in ways.items()}
    seconds, names = {name: each[1] for name, each in results.items()}, list(ways)
    largest_difference = max(float(np.abs(results[names[0]][0] - results[name][0]).max()) for name in names[1:3])
    slowest, ratio = seconds[names[0]], seconds[names[0]] / seconds[names[2]]
    lines = [
        "# Pretrained language models",
        "",
        f"`python benchmarks/language.py`, {date.today()}, {platform.machine()}, torch {torch.__version__}, one",
        "thread, CPU seconds. A random Llama, 6 layers, 256 wide;",
        f"{len(queries[0].demonstrations)} tokens of demonstrations, {QUERIES} queries of 15 to 25 tokens,",
        f"{len(CANDIDATES)} candidates of which two are one token.",
        "",
        "| way | seconds | times as fast |",
        "| --- | --- | --- |",
        *(f"| {name} | {seconds[name]:.2f} | {slowest / seconds[name]:.1f} |" for name in names),
        "",
        f"Promised: demonstrations once at least {PROMISED:.0f} times as fast as every candidate with its complete",
        f"prompt: {ratio:.1f}. The largest difference between scores of the first three: {largest_difference:.1e}.",
        "",
    ]
    print("\n".join(lines))
    if not dry:
        Path(__file__).with_suffix(".md").write_text("\n".join(lines), encoding="utf-8")
    return 0 if ratio >= PROMISED and largest_difference < 1e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
