"""Keep today's answers: `python -m tests.golden backbones mamba`, after its number was raised."""

import json
import sys
from pathlib import Path

import torch

from tests.golden.answers import KINDS, answers


def main(kind: str, *chosen: str) -> None:
    torch.set_num_threads(1)
    path = Path(__file__).parent / f"{kind}.json"
    kept = json.loads(path.read_text()) if path.is_file() else {}
    for name in chosen or KINDS[kind]:
        kept[name] = {"number": KINDS[kind][name], "answers": answers(kind, name)}
    lines = [f"{json.dumps(name)}: {json.dumps(kept[name])}" for name in sorted(kept)]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
